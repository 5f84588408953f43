//! How a controller signals, as the user says it.

use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;

/// What `--irq` takes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Interrupt {
    /// The best that it has.
    Auto,
    /// Messages, one for each queue.
    Msix,
    /// One message for all.
    Msi,
    /// The pin.
    Intx,
    /// Not at all: it is looked at again and again while requests are in flight.
    Poll,
}

impl From<Interrupt> for Interrupts {
    fn from(irq: Interrupt) -> Self {
        match irq {
            Interrupt::Auto => Self::Auto,
            Interrupt::Msix => Self::Only(IrqKind::MsiX),
            Interrupt::Msi => Self::Only(IrqKind::Msi),
            Interrupt::Intx => Self::Only(IrqKind::Intx),
            Interrupt::Poll => Self::Polled,
        }
    }
}
