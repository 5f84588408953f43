//! libFuzzer with the target `ide`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::ide::run(data));
