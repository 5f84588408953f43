//! libFuzzer with the target `recording`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::recording::run(data));
