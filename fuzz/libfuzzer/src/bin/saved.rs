//! libFuzzer with the target `saved`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::saved::run(data));
