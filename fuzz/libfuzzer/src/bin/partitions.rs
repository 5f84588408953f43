//! libFuzzer with the target `partitions`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::partitions::run(data));
