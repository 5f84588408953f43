//! From a device's name to a disk in this process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_backend::{Job, OpenOptions, Uri, with_device};
use ring3_class::block::{Disk, Null};
use ring3_device::{Device, Error};
use ring3_driver::nvme::{Controller, Options};

use crate::protection::Protection;

/// Bytes of the null disk.
const NULL_BYTES: u64 = 1 << 30;

/// How long a load polls before it sleeps, as long as that pays: it has nothing else to do, and a guest without KVM takes some
/// hundred microseconds for what hardware does in ten.
const POLL: Duration = Duration::from_millis(1);

/// The first disk of the NVMe controller that `uri` names, with room for `buffers` bytes of requests; `null` is a disk that does
/// nothing. Dropping it gives the device back.
pub fn open_disk(uri: &str, buffers: usize, protection: Protection) -> Result<Arc<dyn Disk>> {
    if uri == "null" {
        return Ok(Arc::new(Null::new(512, NULL_BYTES / 512, buffers)?));
    }
    let uri: Uri = uri.parse()?;
    let memory = protection.apply(OpenOptions { arena: buffers, ..OpenOptions::default() });
    let opened = with_device(&uri, memory, First).and_then(|disk| disk);
    opened.with_context(|| uri.to_string())
}

struct First;

impl Job for First {
    type Output = Result<Arc<dyn Disk>, Error>;

    fn run<D: Device>(self, device: D) -> Self::Output {
        first_disk(device)
    }
}

/// Starts the driver on `device` and takes its first disk.
pub fn first_disk<D: Device>(device: D) -> Result<Arc<dyn Disk>, Error> {
    let name = device.name().to_owned();
    let controller = Controller::open(device, Options { max_queues: 1, poll: POLL, ..Options::default() })?;
    match controller.namespaces().first() {
        Some(namespace) => Ok(Arc::new(namespace.clone())),
        None => Err(Error::Unsupported(format!("{name} has no namespace that can be used"))),
    }
}
