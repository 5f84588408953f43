//! libFuzzer with the target `virtio_net`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::virtio_net::run(data));
