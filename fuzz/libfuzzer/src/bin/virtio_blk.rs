//! libFuzzer with the target `virtio_blk`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ring3_fuzz::targets::virtio_blk::run(data));
