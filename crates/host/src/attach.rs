//! From a device's name to its disks.

use std::sync::Arc;

use ring3_backend::{Job, OpenOptions, Uri, with_device};
use ring3_class::block::{Disk, Null};
use ring3_device::Device;
use ring3_device::irq::Irq;
use ring3_driver::Interrupts;
use ring3_driver::nvme::{self, Controller};
use ring3_export::ublk;

use crate::Error;

/// What to drive, and with which driver.
#[derive(Clone, Debug)]
pub enum Source {
    /// No device: requests end at once. The floor of measurements.
    Null {
        /// Bytes of the disk.
        bytes: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// An NVMe controller.
    Nvme {
        /// Which.
        device: Uri,
        /// The user does without an IOMMU.
        unprotected: bool,
        /// The namespace to use; all that can be used if `None`.
        namespace: Option<u32>,
        /// How it is signalled.
        interrupts: Interrupts,
    },
}

impl Source {
    /// As the user named it.
    pub fn name(&self) -> String {
        match self {
            Self::Null { .. } => "null".into(),
            Self::Nvme { device, .. } => device.to_string(),
        }
    }
}

/// A device that is driven.
pub struct Attached {
    /// Its disks. The device is given back when the last of them, and the monitor, are dropped.
    pub disks: Vec<Arc<dyn Disk>>,
    /// Its own word on how it is, if it has one.
    pub monitor: Option<Box<dyn Monitor>>,
}

/// What a device reports by itself, apart from requests.
pub trait Monitor {
    /// Logs what has come since the last call.
    fn look(&self);

    /// Signalled when the platform wants the device back; `None` where the backend cannot know.
    fn removal(&self) -> Option<&Irq>;
}

/// Claims the device and starts its driver, with room in its arena for exports of all its disks with `options`.
pub fn attach(source: &Source, options: &ublk::Options) -> Result<Attached, Error> {
    match source {
        Source::Null { bytes, block_size } => {
            let disk = Null::new(*block_size, bytes / u64::from(*block_size), options.buffer_bytes());
            let disk = disk.map_err(|error| Error::Device { device: source.name(), source: error })?;
            Ok(Attached { disks: vec![Arc::new(disk)], monitor: None })
        }
        Source::Nvme { device, unprotected, namespace, interrupts } => {
            let open = |disks| {
                let arena = arena_bytes(options, disks);
                let memory = OpenOptions { arena, unprotected: *unprotected, ..OpenOptions::default() };
                open(device, *namespace, nvme_options(*interrupts, options, disks), memory)
            };
            let attached = open(1)?;
            match attached.disks.len() {
                0 => Err(Error::NoDisk { device: source.name() }),
                1 => Ok(attached),
                // Only now it is known how many disks there are, and an arena does not grow.
                disks => {
                    drop(attached);
                    open(disks)
                }
            }
        }
    }
}

/// What the driver must offer for exports of `disks` disks.
fn nvme_options(interrupts: Interrupts, options: &ublk::Options, disks: usize) -> nvme::Options {
    let queues = usize::from(options.queues) * disks;
    nvme::Options {
        interrupts,
        max_queues: queues.min(u16::MAX.into()) as u16,
        max_transfer: Some(options.max_bytes),
        ..nvme::Options::default()
    }
}

/// Claims the NVMe controller `device` and starts its driver as `driver` says, with the memory that `memory` says: for use in
/// this process. All namespaces that can be used, or the one that is named.
pub fn open(device: &Uri, namespace: Option<u32>, driver: nvme::Options, memory: OpenOptions) -> Result<Attached, Error> {
    let failed = |source| Error::Device { device: device.to_string(), source };
    let job = StartNvme { options: driver, namespace };
    with_device(device, memory, job).and_then(|started| started).map_err(failed)
}

/// Buffers, and for each queue its rings (at most 160 bytes per request) and a page of addresses per request; then what the
/// administration needs, generously.
fn arena_bytes(options: &ublk::Options, disks: usize) -> usize {
    let per_queue = usize::from(options.depth) * (4096 + 160) + (64 << 10);
    disks * (options.buffer_bytes() + usize::from(options.queues) * per_queue) + (1 << 20)
}

struct StartNvme {
    options: nvme::Options,
    namespace: Option<u32>,
}

impl Job for StartNvme {
    type Output = Result<Attached, ring3_device::Error>;

    fn run<D: Device>(self, device: D) -> Self::Output {
        let controller = Controller::open(device, self.options)?;
        let disks = match self.namespace {
            Some(id) => vec![controller.disk(id)?],
            None => {
                for (id, error) in controller.refused() {
                    tracing::warn!(namespace = id, %error, "a namespace is left out");
                }
                controller.namespaces().iter().map(|namespace| Arc::new(namespace.clone()) as Arc<dyn Disk>).collect()
            }
        };
        Ok(Attached { disks, monitor: Some(Box::new(controller)) })
    }
}

impl<D: Device> Monitor for Controller<D> {
    fn look(&self) {
        match self.events() {
            Ok(events) => events.iter().for_each(|event| tracing::warn!(?event, "the controller reports")),
            Err(error) => tracing::warn!(%error, "the controller does not say how it is"),
        }
    }

    fn removal(&self) -> Option<&Irq> {
        Controller::removal(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach_sim(uri: &str, namespace: Option<u32>, options: &ublk::Options) -> Result<Attached, Error> {
        let (device, interrupts) = (uri.parse().unwrap(), Interrupts::Auto);
        let source = Source::Nvme { device, unprotected: false, namespace, interrupts };
        attach(&source, options)
    }

    #[test]
    fn the_arena_holds_the_buffers_and_queues_of_an_export() {
        let options = ublk::Options { queues: 2, depth: 128, ..ublk::Options::default() };
        let attached = attach_sim("sim:nvme", None, &options).unwrap();
        let disk = &attached.disks[0];
        let _queues: Vec<_> = (0..options.queues).map(|_| disk.open_queue(options.depth).unwrap()).collect();
        let bytes = options.max_bytes as usize;
        let buffers: Result<Vec<_>, _> =
            (0..options.queues * options.depth).map(|_| disk.dma().arena().alloc_pages(bytes)).collect();
        assert!(buffers.is_ok());
    }

    #[test]
    fn a_namespace_that_is_not_there_is_refused_with_those_that_are() {
        let error = attach_sim("sim:nvme", Some(9), &ublk::Options::default()).err().unwrap().to_string();
        assert!(error.contains("sim:nvme has no namespace 9; there are: 1"), "{error}");
    }

    #[test]
    fn a_device_that_no_backend_has_is_an_error_with_its_name() {
        let error = attach_sim("sim:toaster", None, &ublk::Options::default()).err().unwrap().to_string();
        assert!(error.contains("sim:toaster"), "{error}");
    }
}
