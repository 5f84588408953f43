//! libFuzzer with the target `manifests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::manifests::run(data));
