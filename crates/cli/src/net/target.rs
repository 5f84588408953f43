//! Which network card.

use std::sync::Arc;

use anyhow::{Result, bail};
use ring3_backend::Uri;
use ring3_class::net::Nic;
use ring3_driver::registry::Settings;
use ring3_host::open::{Claim, Requirements};

use crate::driving::{Interrupt, Protection};

/// How a card is driven.
#[derive(clap::Args)]
pub struct Target {
    #[command(flatten)]
    protection: Protection,
    /// How the card signals.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
}

/// Bytes of the arena: buffers both ways for the longest packets, and rings.
const ARENA: usize = 16 << 20;

impl Target {
    /// Whether the user has said that no IOMMU need stand between the card and memory.
    pub fn unprotected(&self) -> bool {
        self.protection.unprotected
    }

    /// Whether the user has said how the card signals.
    pub fn chooses_irq(&self) -> bool {
        !matches!(self.irq, Interrupt::Auto)
    }

    /// The card that `device` is.
    pub fn open(&self, device: &Uri) -> Result<Arc<dyn Nic>> {
        let claim = Claim {
            unprotected: self.protection.unprotected,
            settings: Settings { interrupts: self.irq.into(), ..Settings::default() },
            ..Claim::new(device.clone())
        };
        let attached = claim.open(&Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: None })?;
        match &attached.nics[..] {
            [nic] => Ok(nic.clone()),
            _ => bail!("{device}: it is no network card that ring3 drives; ring3 net info --help names those that are"),
        }
    }
}
