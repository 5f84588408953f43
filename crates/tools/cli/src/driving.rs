//! How a device is driven, as the user says it: what protects memory, how it signals, how its data
//! move.

use ring3_backend::OpenOptions;
use ring3_class::net::Throttle;
use ring3_device::irq::IrqKind;
use ring3_driver::ata::Level;
use ring3_driver::registry::Settings;
use ring3_driver::{Circumstances, Interrupts};

/// Options of every command that takes a device.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Protection {
    /// Drive a device that no IOMMU protects the machine from (uio:ADDRESS). A bug in the driver
    /// can then overwrite any memory of this machine.
    #[arg(long, global = true)]
    pub unprotected: bool,
}

impl Protection {
    /// `memory` as the user wants it protected.
    pub fn apply(self, memory: OpenOptions) -> OpenOptions {
        OpenOptions { unprotected: self.unprotected, ..memory }
    }

    /// The same on another command's line, after a word.
    pub fn words(self) -> &'static str {
        if self.unprotected { " --unprotected" } else { "" }
    }
}

/// What a device does otherwise than its specification.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct QuirkArgs {
    /// A quirk of the device that the driver does not know, or with no- before it one that the
    /// device does not have. May be given several times. docs/quirks.md has the names.
    #[arg(long = "quirk", value_name = "NAME", global = true)]
    quirks: Vec<String>,
}

impl From<QuirkArgs> for Circumstances {
    fn from(args: QuirkArgs) -> Self {
        Self::wanting(args.quirks)
    }
}

/// What `--irq` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Interrupt {
    /// The best kind that the device supports.
    Auto,
    /// MSI-X, one for each queue.
    Msix,
    /// MSI, one for all queues.
    Msi,
    /// The interrupt pin.
    Intx,
    /// No interrupts: the device is polled while requests are in flight.
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

/// How a network card signals.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Signals {
    /// How the card raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    /// Minimum time between two interrupts of a queue: off, microseconds from 1 to 8191, or
    /// adaptive, which follows the traffic. Only cards of the e1000 family support it. Default:
    /// off.
    #[arg(long, value_name = "US")]
    throttle: Option<Throttle>,
}

impl Signals {
    /// What of it the user has chosen, which no driver of Linux can be told.
    pub fn chosen(self) -> Option<&'static str> {
        match self {
            Self { throttle: Some(_), .. } => Some("--throttle"),
            Self { irq: Interrupt::Auto, .. } => None,
            Self { .. } => Some("--irq"),
        }
    }

    /// `settings` with it.
    pub fn apply(self, settings: Settings) -> Settings {
        Settings { interrupts: self.irq.into(), throttle: self.throttle, ..settings }
    }
}

/// What `--transfer` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transfer {
    /// Many commands at once (NCQ) where drive and AHCI controller support it, else as dma.
    Queued,
    /// DMA, one command at a time.
    Dma,
    /// By the processor, word by word. IDE only; AHCI uses dma instead.
    Pio,
}

impl From<Transfer> for Level {
    fn from(transfer: Transfer) -> Self {
        match transfer {
            Transfer::Queued => Self::Queued,
            Transfer::Dma => Self::Dma,
            Transfer::Pio => Self::Pio,
        }
    }
}
