//! libFuzzer with the target `vfio_user_server`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::vfio_user_server::run(data));
