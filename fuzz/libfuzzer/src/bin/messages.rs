//! libFuzzer with the target `messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::messages::run(data));
