//! libFuzzer with the target `broker`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::broker::run(data));
