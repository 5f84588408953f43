//! libFuzzer with the target `vfio_user_client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::vfio_user_client::run(data));
