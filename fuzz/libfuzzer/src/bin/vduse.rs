//! libFuzzer with the target `vduse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::vduse::run(data));
