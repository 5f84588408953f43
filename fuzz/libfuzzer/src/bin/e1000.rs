//! libFuzzer with the target `e1000`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::e1000::run(data));
