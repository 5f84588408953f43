//! libFuzzer with the target `ahci`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::ahci::run(data));
