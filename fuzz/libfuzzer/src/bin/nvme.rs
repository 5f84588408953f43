//! libFuzzer with the target `nvme`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::nvme::run(data));
