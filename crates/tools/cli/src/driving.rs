//! How a device is driven, as the user says it: what protects memory, how it signals, how its data
//! move.

use std::time::Duration;

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

impl QuirkArgs {
    /// The words of the user.
    pub fn names(&self) -> &[String] {
        &self.quirks
    }
}

impl From<QuirkArgs> for Circumstances {
    fn from(args: QuirkArgs) -> Self {
        Self::wanting(args.quirks)
    }
}

/// What an NVMe controller is given and may do by itself.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct NvmeLimits {
    /// Most memory that an NVMe controller gets for itself, if it asks for such (host memory
    /// buffer): whole MiB up to 1024M, 0 for none. Default: 128M.
    #[arg(long, value_name = "SIZE", global = true, value_parser = whole_mib)]
    hmb: Option<u64>,
    /// Milliseconds that an NVMe controller may take to leave a power state that it enters by
    /// itself while it is idle. 0 keeps it awake. Default: 100.
    #[arg(
        long, value_name = "MS", global = true,
        value_parser = clap::value_parser!(u32).range(0..=60_000),
    )]
    power_latency: Option<u32>,
}

/// Whole MiB.
fn whole_mib(text: &str) -> Result<u64, String> {
    ring3_backend::parse_size(text)
        .filter(|bytes| bytes.is_multiple_of(1 << 20) && *bytes <= 1 << 30)
        .ok_or_else(|| "whole MiB up to 1024M, such as 64M, or 0".into())
}

impl NvmeLimits {
    /// `settings` with it.
    pub fn apply(self, settings: Settings) -> Settings {
        let power_latency = self.power_latency();
        Settings { host_memory: self.hmb, power_latency, ..settings }
    }

    /// `options` with it.
    pub fn options(self, options: ring3_driver::nvme::Options) -> ring3_driver::nvme::Options {
        let host_memory = self.hmb.unwrap_or(options.host_memory);
        let power_latency = self.power_latency().unwrap_or(options.power_latency);
        ring3_driver::nvme::Options { host_memory, power_latency, ..options }
    }

    fn power_latency(self) -> Option<Duration> {
        self.power_latency.map(|ms| Duration::from_millis(ms.into()))
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
