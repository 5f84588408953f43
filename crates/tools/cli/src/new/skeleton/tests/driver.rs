//! The driver and the model of its device.

use std::sync::Arc;
use std::time::Duration;

use ring3_device::dma::DmaBuffer;
use ring3_device::{Deadline, Error};
use ring3_model::SimHandle;

use skeleton::driver::Skeleton;
use skeleton::model::{self, SkeletonModel};

fn attached() -> (Skeleton, SimHandle<SkeletonModel>) {
    let device = model::open("sim:skeleton").unwrap();
    let handle = device.handle();
    (Skeleton::attach(Arc::new(device)).unwrap(), handle)
}

fn buffer(driver: &Skeleton, bytes: &[u8]) -> DmaBuffer {
    let buffer = driver.device().dma().arena().alloc(bytes.len(), 64).unwrap();
    buffer.write(0, bytes).unwrap();
    buffer
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[test]
fn bytes_are_summed_and_the_buffer_comes_back() {
    let (driver, _) = attached();
    let (sum, back) = driver.sum(buffer(&driver, &[1, 2, 250]), soon()).unwrap();
    assert_eq!((sum, back.len()), (253, 3));
}

#[test]
fn a_device_that_never_ends_is_reset_and_the_buffer_is_free_again() {
    let (driver, handle) = attached();
    let free = driver.device().dma().arena().free_bytes();
    handle.with(|model, _| model.stuck = true);
    let error = driver.sum(buffer(&driver, &[1]), Deadline::after(Duration::from_millis(10)));
    assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    assert_eq!(driver.device().dma().arena().free_bytes(), free);
}

#[test]
fn a_device_that_is_pulled_out_is_gone_and_no_panic() {
    let (driver, handle) = attached();
    handle.remove();
    let error = driver.sum(buffer(&driver, &[1]), soon());
    assert!(matches!(error, Err(Error::Gone)), "{error:?}");
}

#[test]
fn another_device_is_refused() {
    let edu = ring3_backend::open(&"sim:edu".parse().unwrap(), Default::default()).unwrap();
    assert!(matches!(Skeleton::attach(edu), Err(Error::Protocol(_))));
}

#[test]
fn the_manifest_is_one() {
    let manifest = ring3_manifest::Manifest::parse(skeleton::MANIFEST).unwrap();
    assert_eq!(manifest.driver.name, "skeleton");
}
