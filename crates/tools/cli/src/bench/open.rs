//! From a device's name to a disk in this process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_bench::disk::Waiting;
use ring3_class::block::{Disk, Null};
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};
use ring3_driver::registry::Settings;
use ring3_host::open::{Claim, Requirements};

use crate::driving::{NvmeLimits, Protection};

/// Bytes of the null disk.
const NULL_BYTES: u64 = 1 << 30;

/// How long a load polls before it sleeps, as long as that pays: it has nothing else to do, and a
/// guest without KVM takes some hundred microseconds for what hardware does in ten.
pub const POLL: Duration = Duration::from_millis(1);

/// As a load waits.
pub const LOAD: Waiting = Waiting::Interrupt(POLL);

/// The first disk of the device that `uri` names, with room for `buffers` bytes of requests; `null`
/// is a disk that does nothing. Dropping it gives the device back.
pub fn open_disk(
    uri: &str,
    buffers: usize,
    waiting: Waiting,
    (protection, nvme): (Protection, NvmeLimits),
) -> Result<Arc<dyn Disk>> {
    if uri == "null" {
        return Ok(Arc::new(Null::new(512, NULL_BYTES / 512, buffers)?));
    }
    let (interrupts, poll) = match waiting {
        Waiting::Polled => (Interrupts::Polled, None),
        Waiting::Interrupt(poll) => (Interrupts::Auto, Some(poll)),
    };
    let settings = nvme.apply(Settings { interrupts, ..Settings::default() });
    let claim = Claim { unprotected: protection.unprotected, settings, ..Claim::new(uri.parse()?) };
    let needs = Requirements { queues: 1, arena: buffers, max_transfer: None, poll };
    claim
        .open(&needs)?
        .disks
        .into_iter()
        .next()
        .with_context(|| format!("{uri} has no disk that can be used"))
}

/// Starts the driver on `device` and takes its first disk.
pub fn first_disk(device: Arc<dyn Device>) -> Result<Arc<dyn Disk>, Error> {
    let name = device.name().to_owned();
    let controller =
        Controller::open(device, Options { max_queues: 1, poll: POLL, ..Options::default() })?;
    match controller.namespaces().first() {
        Some(namespace) => Ok(Arc::new(namespace.clone())),
        None => Err(Error::Unsupported(format!("{name} has no namespace that can be used"))),
    }
}
