//! Which disk, and how much of it.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ring3_backend::Uri;
use ring3_class::block::{Disk, Info};
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};

use crate::dde::{Class, Hosted, Name, Tools};
use crate::driving::Interrupt;
use crate::driving::NvmeLimits;
use crate::driving::Protection;
use crate::driving::QuirkArgs;
use crate::driving::Transfer;

/// The disk to use.
#[derive(Clone, clap::Args)]
pub struct Target {
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:nvme, qtest:ich9-ahci,
    /// qtest:virtio-blk-pci, vfio-user:PATH, sim:nvme, sim:ahci, sim:ide, sim:virtio-blk, or
    /// remote:PATH, a disk that ring3 serve shares.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// The namespace of an NVMe controller. Required if it has several.
    #[arg(long, value_name = "ID", conflicts_with = "drive")]
    namespace: Option<u32>,
    /// The drive of an IDE or AHCI controller, by its port or place, from 0. Required if it has
    /// several.
    #[arg(long, value_name = "PLACE")]
    drive: Option<u32>,
    /// How the controller raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    /// The fastest transfer mode of an ATA drive that the driver may use.
    #[arg(long, value_enum, default_value = "queued")]
    transfer: Transfer,
    #[command(flatten)]
    quirks: QuirkArgs,
    #[command(flatten)]
    nvme: NvmeLimits,
}

impl Target {
    /// The same disk, driven by another process, which is looked at with `tools`.
    pub fn hosted(&mut self, name: &Name, tools: &Tools) -> Result<Hosted> {
        ensure!(
            self.irq == Interrupt::Auto && self.transfer == Transfer::Queued,
            "--irq and --transfer are for ring3's drivers: a driver of Linux chooses itself among \
            what the device has; {},msix=off has no MSI-X",
            self.device
        );
        ensure!(
            self.namespace.or(self.drive).is_none(),
            "a driver of Linux serves the first disk that it finds: leave --namespace and --drive \
            out"
        );
        let hosted = Hosted::start_with(
            name,
            Class::Block,
            &self.device,
            self.protection.unprotected,
            tools,
        )?;
        self.device = hosted.device().clone();
        Ok(hosted)
    }

    /// All its disks, with an arena that holds `buffers` bytes beside what the driver needs.
    pub fn attach(&self, queues: u16, buffers: usize) -> Result<Attached> {
        let claim = Claim {
            unprotected: self.protection.unprotected,
            settings: self.nvme.apply(Settings {
                part: self.namespace.or(self.drive),
                interrupts: self.irq.into(),
                level: self.transfer.into(),
                quirks: self.quirks.clone().into(),
                ..Settings::default()
            }),
            ..Claim::new(self.device.clone())
        };
        // Rings and address lists of the queues, copy buffers of foreign memory, administration.
        let arena = buffers + usize::from(queues.min(8)) * (8 << 20) + (4 << 20);
        Ok(claim.open(&Requirements { queues, arena, max_transfer: None, poll: None })?)
    }

    /// Why a device without disks is refused.
    pub fn no_disk(&self) -> anyhow::Error {
        anyhow!(
            "{}: no disk; ring3 nvme id, ring3 ata id or, of a network card, ring3 net info \
            --device {0} says what it has",
            self.device
        )
    }

    /// The one disk that is meant.
    pub fn open(&self, queues: u16, buffers: usize) -> Result<Arc<dyn Disk>> {
        let disks = self.attach(queues, buffers)?.disks;
        match &disks[..] {
            [disk] => Ok(disk.clone()),
            [] => Err(self.no_disk()),
            several => {
                let names: Vec<_> = several.iter().map(|disk| disk.name()).collect();
                bail!(
                    "{}: choose one with --namespace or --drive: {}",
                    self.device,
                    names.join(", ")
                )
            }
        }
    }
}

/// A position or a length: `4096`, `64M`, or in blocks: `8b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    Blocks(u64),
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = match text.strip_suffix('b') {
            Some(blocks) => blocks.parse().ok().map(Self::Blocks),
            None => ring3_backend::parse_size(text).map(Self::Bytes),
        };
        amount.ok_or_else(|| {
            "a number of bytes such as 4096, 64M or 1G, or of blocks such as 8b".into()
        })
    }
}

impl Amount {
    /// In blocks of a disk.
    pub fn blocks(self, info: &Info, what: &str) -> Result<u64> {
        match self {
            Self::Blocks(blocks) => Ok(blocks),
            Self::Bytes(bytes) => {
                let size = u64::from(info.block_size);
                ensure!(
                    bytes.is_multiple_of(size),
                    "{what} {bytes} is not a multiple of the disk's blocks of {size} bytes"
                );
                Ok(bytes / size)
            }
        }
    }
}

/// Blocks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub lba: u64,
    pub blocks: u64,
}

impl Span {
    /// From `offset` on, `length` or to the end.
    pub fn of(info: &Info, offset: Amount, length: Option<Amount>) -> Result<Self> {
        let lba = offset.blocks(info, "the offset")?;
        let rest = info.blocks.checked_sub(lba).with_context(|| beyond(info))?;
        let blocks = length.map_or(Ok(rest), |length| length.blocks(info, "the length"))?;
        ensure!(blocks <= rest, beyond(info));
        Ok(Self { lba, blocks })
    }
}

fn beyond(info: &Info) -> String {
    format!(
        "beyond the end of the disk, which has {} blocks of {} bytes",
        info.blocks, info.block_size
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::block::Null;

    fn info() -> Info {
        Null::new(512, 100, 4096).unwrap().info().clone()
    }

    fn span(offset: &str, length: Option<&str>) -> Result<Span> {
        Span::of(&info(), offset.parse().unwrap(), length.map(|length| length.parse().unwrap()))
    }

    #[test]
    fn bytes_and_blocks_mean_the_same_place() {
        assert_eq!(span("1K", Some("4b")).unwrap(), Span { lba: 2, blocks: 4 });
        assert_eq!(span("2b", Some("2048")).unwrap(), Span { lba: 2, blocks: 4 });
    }

    #[test]
    fn without_a_length_it_is_the_rest_of_the_disk() {
        assert_eq!(span("90b", None).unwrap(), Span { lba: 90, blocks: 10 });
    }

    #[test]
    fn what_is_beyond_the_end_is_refused_with_the_size() {
        for (offset, length) in [("101b", None), ("99b", Some("2b"))] {
            assert!(
                span(offset, length).unwrap_err().to_string().contains("100 blocks of 512 bytes")
            );
        }
    }

    #[test]
    fn half_a_block_is_refused() {
        assert!(span("100", None).unwrap_err().to_string().contains("not a multiple"));
    }

    #[test]
    fn an_amount_that_is_none_is_refused() {
        assert!("8q".parse::<Amount>().is_err() && "b".parse::<Amount>().is_err());
    }
}
