//! Device models in this process, with one place for fault hooks.
//!
//! # Shape
//! [`SimDevice`] is a PCI function around a [`Model`]: it has configuration space, BARs, an MSI-X
//! table, real eventfds for interrupts, and an IOMMU through which every access of the model to
//! memory goes. [`SimHandle`] is the other side of it: what a test does to the device while a
//! driver runs.
//!
//! # Time
//! A model does its work inside of the register write that starts it, so that a test is
//! deterministic and needs no thread; [`Timing`] holds work back or delays it.
//!
//! # Options
//! A device is named `sim:MODEL,KEY=VALUE,...`. Every model knows `arena=64M` (bytes of DMA
//! memory), `below=4G` (device addresses below that), `reserved=0x100000-0x1fffff` (device
//! addresses that cannot be used) and `delay=100us` (how long its work takes).
//!
//! # A model for a device of your own
//! Implement [`Model`]: say what the function is, answer reads, act on writes, forget everything at
//! a reset. Memory is reached through the [`Bus`]. The whole of a device that counts its writes and
//! tells memory about each:
//!
//! ```
//! use ring3_model::{BarLayout, Bus, Identity, Model, Platform, SimDevice};
//! use ring3_device::Device as _;
//!
//! #[derive(Default)]
//! struct Counter { writes: u64 }
//!
//! impl Model for Counter {
//!     fn identity(&self) -> Identity {
//!         let bars = vec![BarLayout { index: 0, len: 4096, ports: false }];
//!         Identity {
//!             vendor: 0x1234,
//!             device: 1,
//!             revision: 0,
//!             class: 0xff0000,
//!             bars,
//!             pins: 0,
//!             msi: 1,
//!             msix: None,
//!             express: false,
//!             dma_bits: 64,
//!         }
//!     }
//!     fn read(&mut self, _: &Bus, _: u8, _: u64, _: usize) -> u64 {
//!         self.writes
//!     }
//!     fn write(&mut self, bus: &Bus, _: u8, _: u64, _: usize, target: u64) {
//!         self.writes += 1;
//!         if bus.store(target, self.writes).is_ok() {
//!             bus.raise(0);
//!         }
//!     }
//!     fn reset(&mut self, _: &Bus) {
//!         self.writes = 0;
//!     }
//! }
//!
//! # fn main() -> Result<(), ring3_device::Error> {
//! let device = SimDevice::new("sim:counter", Counter::default(), &Platform::default())?;
//! device.set_bus_master(true)?;
//! let buffer = device.dma().arena().alloc(8, 8)?;
//! device.bar(0)?.write64(0, buffer.iova());
//! let mut count = [0; 8];
//! buffer.read(0, &mut count)?;
//! assert_eq!(u64::from_le_bytes(count), 1);
//!
//! device.bar(0)?.write64(0, 0xdead_0000);
//! assert_eq!(device.handle().faults()[0].iova, 0xdead_0000);
//! # Ok(())
//! # }
//! ```
//!
//! [`edu`] is a complete one: registers, transfers both ways, MSI and the pin, in 200 lines.

pub mod ahci;
mod ata;
mod bar;
mod bus;
mod config;
mod device;
mod disk;
mod doorbells;
pub mod e1000;
pub mod edu;
pub mod fault;
mod handle;
mod held;
pub mod ide;
mod interrupts;
mod iommu;
mod medium;
mod model;
pub mod nvme;
mod options;
mod posted;
mod timer;
pub mod vfio_user;
mod violations;
pub mod virtio;
mod window;
mod wire;

pub use bus::Bus;
pub use device::{Platform, SimDevice};
pub use disk::DiskModel;
pub use handle::SimHandle;
pub use iommu::{Blocked, DmaFault, SimIommu};
pub use model::{BarLayout, Identity, Model, MsixLayout, Timing};
pub use wire::WireShape;

use std::sync::Arc;

use ring3_device::{Error, OpenOptions, Uri};

/// Opens the model that `uri` names, for its driver in this process or in [another](vfio_user).
pub fn open(uri: &Uri, options: OpenOptions) -> Result<Arc<dyn vfio_user::VfioUserDevice>, Error> {
    Ok(match (uri.scheme.as_str(), uri.target.as_str()) {
        ("sim", "edu") => Arc::new(edu::open(uri, options)?),
        ("sim", "e1000") => Arc::new(e1000::open(uri, options)?),
        ("sim", "ahci") => Arc::new(ahci::open(uri, options)?),
        ("sim", "ide") => Arc::new(ide::open(uri, options)?),
        ("sim", "nvme") => Arc::new(nvme::open(uri, options)?),
        ("sim", "virtio-blk") => Arc::new(virtio::blk::open(uri, options)?),
        ("sim", "virtio-net") => Arc::new(virtio::net::open(uri, options)?),
        _ => {
            return Err(Error::Unsupported(format!(
                "{uri}: there is no such model; there are sim:nvme, sim:ahci, sim:ide, \
                sim:virtio-blk, sim:e1000, sim:virtio-net and sim:edu"
            )));
        }
    })
}
