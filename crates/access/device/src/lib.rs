//! The one interface between a driver and its device.
//!
//! A driver holds its device as `Arc<dyn Device>` and does not know its backend: a function that is
//! claimed through VFIO, a model inside a QEMU that is driven over its qtest socket, or a model in
//! this process or in another one. Only register accesses are performance-critical. Where the
//! registers are mapped, these need no dynamic dispatch: [`Bar`] is one type.
//!
//! # Trust
//! What a device wrote, in a register or in memory, is untrusted input. Nothing in this crate
//! indexes memory by it, and every wait that depends on it has a [`Deadline`].
//!
//! # Removal
//! A removed device answers every read with all ones, as PCI Express does; writes are lost. Drivers
//! read registers that are never all ones through [`Registers::read_alive`], which turns that value
//! into [`Error::Gone`].

mod bar;
mod clock;
pub mod config;
mod deadline;
mod decorator;
pub mod dma;
mod error;
pub mod found;
pub mod irq;
pub mod journal;
mod options;
pub mod order;
pub mod probes;
pub mod ring;
mod uri;
pub mod wait;

pub use bar::{Access, Bar, BarInfo, BusWidth, Registers};
pub use deadline::{Deadline, poll_until};
pub use decorator::Decorator;
pub use error::Error;
pub use options::{OpenOptions, parse_duration, parse_number, parse_range, parse_size};
pub use uri::{Uri, UriError};

use dma::Dma;
use irq::{Irq, IrqKind, IrqLimits};
use journal::Journal;

/// One PCI function, claimed exclusively.
///
/// Dropping the last handle gives the function up: bus mastering off first, then reset, then the
/// claim. If another process holds the claim, it does nothing to the device.
pub trait Device: Send + Sync + 'static {
    /// The URI by which the user named it, for messages: `vfio:0000:01:00.0`, `qtest:nvme`,
    /// `sim:nvme`.
    fn name(&self) -> &str;

    /// Reads `width` (1, 2 or 4) bytes of configuration space at `offset`; all ones where there is
    /// nothing.
    fn config_read(&self, offset: u64, width: usize) -> u32;

    /// Writes `width` (1, 2 or 4) bytes of configuration space. BARs, MSI and MSI-X belong to the
    /// backend: writes there are refused.
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error>;

    /// What BAR `index` (0 to 5) is, without mapping it; `None` if it is absent.
    fn bar_info(&self, index: u8) -> Option<BarInfo>;

    /// Maps BAR `index` (0 to 5), memory or port. An absent BAR is [`Error::Unsupported`].
    fn bar(&self, index: u8) -> Result<Bar, Error>;

    /// The memory that the device can reach.
    fn dma(&self) -> &Dma;

    /// Which interrupts the function can raise.
    fn irq_limits(&self) -> IrqLimits;

    /// Enables `count` interrupts of one kind, vectors 0 to `count - 1`, and disables what was
    /// enabled before.
    ///
    /// Enable them before the device does: some (QEMU's nvme) look at the vectors only then.
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error>;

    /// Allows or forbids the function to start transfers. Off: no DMA and no MSI leaves it. [PCI
    /// 6.2.2]
    fn set_bus_master(&self, on: bool) -> Result<(), Error>;

    /// Resets the function. When it returns, nothing that was started before can still write to
    /// memory; what was enabled of interrupts and bus mastering is enabled again.
    ///
    /// A function that cannot be reset is [`Error::Unsupported`]: its transfers are stopped then
    /// (bus mastering is off).
    fn reset(&self) -> Result<(), Error>;

    /// Signalled when the platform wants the device back (surprise removal, unbind); `None` where
    /// the backend cannot know.
    fn removal(&self) -> Option<&Irq> {
        None
    }

    /// Signalled when the bus reports an error of the function that it cannot correct: what it
    /// transferred since may be lost or wrong. `None` where the backend cannot know. [PCIe 6.2.2]
    fn bus_errors(&self) -> Option<&Irq> {
        None
    }

    /// What the device has for a driver that can be repeated; `None` if it is neither recorded nor
    /// replayed.
    fn journal(&self) -> Option<&dyn Journal> {
        None
    }
}
