//! Which network card.

use std::sync::Arc;

use anyhow::{Result, bail};
use ring3_backend::Uri;
use ring3_class::net::Nic;
use ring3_driver::registry::Settings;
use ring3_host::open::{Claim, Requirements};

use crate::dde::{Choice, Place, Tools};
use crate::driving::{Protection, Signals};

/// How a card is driven.
#[derive(clap::Args)]
pub struct Target {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    signals: Signals,
}

/// Bytes of the arena: buffers both ways for the longest packets, and rings.
const ARENA: usize = 16 << 20;

impl Target {
    /// Where the card is that `device` is, with its driver if that is one of Linux.
    pub fn place(&self, device: &Uri) -> Result<Place> {
        self.choice.place(device, self.protection.unprotected, self.signals.chosen())
    }

    /// The same; a driver of Linux is looked at with `tools`.
    pub fn place_with(&self, device: &Uri, tools: &Tools) -> Result<Place> {
        self.choice.place_with(device, self.protection.unprotected, self.signals.chosen(), tools)
    }

    /// Whether a driver of Linux drives the card.
    pub fn is_hosted(&self) -> bool {
        self.choice.hosted().is_some()
    }

    /// The card that `device` is, in this process.
    pub fn open(&self, device: &Uri) -> Result<Arc<dyn Nic>> {
        let claim = Claim {
            unprotected: self.protection.unprotected,
            settings: self.signals.apply(Settings::default()),
            ..Claim::new(device.clone())
        };
        let attached = claim.open(&Requirements {
            queues: 1,
            arena: ARENA,
            max_transfer: None,
            poll: None,
        })?;
        match &attached.nics[..] {
            [nic] => Ok(nic.clone()),
            _ => bail!(
                "{device}: it is no network card that ring3 drives; ring3 net info --help names \
                those that are"
            ),
        }
    }
}
