//! What a drive says about itself, and what that makes of it as a disk. [ACS-3 7.12]

use ring3_class::block::{Discard, Info};
use ring3_device::dma::SegmentRules;
use ring3_device::{Device, Error};
use ring3_quirks::Quirks;
use ring3_spec::ata::{
    self, LBA28_SECTORS, MAX_COUNT_28, MAX_COUNT_48, SECTOR, TrimRange, identify,
};
use ring3_spec::text::Printable;

use super::options::{Level, Options};
use super::quirks::{
    self, BROKEN_DMA, BROKEN_FUA, BROKEN_NCQ, BROKEN_NCQ_ON_ATI, BROKEN_TRIM, HBA_255_SECTORS,
    HBA_BROKEN_NCQ, MAX_128_SECTORS, MAX_1024_SECTORS, MAX_8191_SECTORS, SHORT_TRIM, TRUSTED_FUA,
};

/// What a drive takes at once that locks up at longer TRIMs. [Linux, ATA_QUIRK_MAX_TRIM_128M]
const SHORT_TRIM_BYTES: u32 = 128 << 20;

/// How a drive is told to make writes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flush {
    /// Not at all: a drive before ATA-5, without a cache that needs it.
    None,
    /// FLUSH CACHE.
    Short,
    /// FLUSH CACHE EXT.
    Ext,
}

/// A drive's description.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Maker's name for it.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Bytes of a physical block.
    pub physical_block_size: u32,
    /// Whether it takes 48-bit commands.
    pub lba48: bool,
    /// Commands that it queues: 1 to 32, or 0 if it does not.
    pub queue_depth: u16,
    /// Whether it can do DMA.
    pub dma: bool,
    /// Its best Ultra DMA mode.
    pub ultra_dma: Option<u8>,
    /// Its best multiword DMA mode.
    pub multiword_dma: Option<u8>,
    /// Whether it saw a cable of 80 wires, which Ultra DMA above mode 2 needs. Parallel drives
    /// only.
    pub wide_cable: bool,
    /// Most sectors of one interrupt of READ MULTIPLE; 0 if it has none.
    pub multiple: u8,
    /// Whether its volatile write cache is on.
    pub cache: bool,
    /// How its cache is flushed.
    pub flush: Flush,
    /// Whether it writes through for a single command.
    pub fua: bool,
    /// Units of 512 bytes of TRIM ranges that one command takes; 0 if it has no TRIM.
    pub trim_sectors: u16,
    /// Whether it has SMART.
    pub smart: bool,
    /// Rotations a minute; 1 is a drive that does not turn, 0 is not reported.
    pub rotation: u16,
    /// How it is otherwise than it says.
    #[serde(default, skip_serializing_if = "Quirks::is_empty")]
    pub quirks: Quirks,
}

/// What the host controller adds to a drive's own limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most bytes of one request.
    pub(super) max_transfer: u32,
    /// Lists of segments that it takes.
    pub(super) segments: SegmentRules,
    /// The best level that it is used at.
    pub(super) level: Level,
    /// The slowest that it may be set to while it is used.
    pub(super) lowest: Level,
}

impl Identity {
    /// What `data` says, or why it cannot be a disk.
    pub(super) fn new(data: &ata::Identify) -> Result<Self, Error> {
        if !data.is_ata() {
            return Err(packet_drive());
        }
        if !data.is_intact() {
            return Err(Error::Protocol(
                "its identify data are damaged: their sum is wrong".into(),
            ));
        }
        if !data.has_lba() {
            return Err(Error::Unsupported(
                "it knows cylinders and heads only, no block addresses".into(),
            ));
        }
        let (blocks, block_size) = (data.blocks(), data.block_size());
        if ![512, 4096].contains(&block_size) {
            return Err(Error::Unsupported(format!(
                "its blocks have {block_size} bytes; 512 and 4096 are supported"
            )));
        }
        let most = if data.has_lba48() { 1 << 48 } else { LBA28_SECTORS };
        if blocks == 0 || blocks > most {
            return Err(Error::Protocol(format!("it says that it has {blocks} blocks")));
        }
        let text = |words| Printable(data.text(words).collect::<Vec<_>>().trim_ascii()).to_string();
        Ok(Self {
            model: text(identify::MODEL),
            serial: text(identify::SERIAL),
            firmware: text(identify::FIRMWARE),
            blocks,
            block_size,
            physical_block_size: data.physical_block_size(),
            lba48: data.has_lba48(),
            queue_depth: if data.has_lba48() { data.queue_depth() } else { 0 },
            dma: data.has_dma(),
            ultra_dma: data.best_ultra_dma(),
            multiword_dma: data.best_multiword_dma(),
            wide_cable: data.reset_result() & 1 << 13 != 0,
            multiple: data.multiple_limit(),
            cache: data.cache_enabled(),
            flush: match (data.has_flush_ext() && data.has_lba48(), data.has_flush()) {
                (true, _) => Flush::Ext,
                (false, true) => Flush::Short,
                (false, false) => Flush::None,
            },
            fua: data.has_fua(),
            trim_sectors: if data.has_trim() && data.has_lba48() {
                data.max_trim_sectors().max(1)
            } else {
                0
            },
            smart: data.has_smart(),
            rotation: data.rotation(),
            quirks: Quirks::default(),
        })
    }

    /// The drive that describes itself by `data`, behind the controller `device`, as far as what it
    /// says can be trusted.
    pub(super) fn behind(
        device: &dyn Device,
        data: &ata::Identify,
        options: &Options,
    ) -> Result<Self, Error> {
        let identity = Self::new(data)?;
        let quirks = quirks::of(device, data, options)?;
        let is_single = quirks.has(BROKEN_NCQ)
            || quirks.has(HBA_BROKEN_NCQ)
            || quirks.has(BROKEN_NCQ_ON_ATI) && quirks::is_of_ati(device);
        Ok(Self {
            queue_depth: if is_single { 0 } else { identity.queue_depth },
            dma: identity.dma && !quirks.has(BROKEN_DMA),
            fua: identity.fua && quirks.has(TRUSTED_FUA) && !quirks.has(BROKEN_FUA),
            trim_sectors: if quirks.has(BROKEN_TRIM) { 0 } else { identity.trim_sectors },
            quirks,
            ..identity
        })
    }

    /// Most blocks of one read or write.
    pub(super) fn max_blocks(&self) -> u32 {
        let most = if self.lba48 { MAX_COUNT_48 } else { MAX_COUNT_28 };
        let limits = [
            (MAX_128_SECTORS, 128),
            (HBA_255_SECTORS, 255),
            (MAX_1024_SECTORS, 1024),
            (MAX_8191_SECTORS, 8191),
        ];
        let limits = limits.into_iter().filter(|(name, _)| self.quirks.has(name));
        limits.map(|(_, sectors)| sectors / (self.block_size / SECTOR as u32)).fold(most, u32::min)
    }

    /// Most blocks of one TRIM, whose ranges are one unit of 512 bytes here: that frees 2 GiB of
    /// small blocks.
    fn max_discard_blocks(&self) -> u32 {
        let most = TrimRange::PER_SECTOR as u32 * TrimRange::MAX_BLOCKS;
        if self.quirks.has(SHORT_TRIM) {
            most.min(SHORT_TRIM_BYTES / self.block_size)
        } else {
            most
        }
    }

    /// The disk that it is behind a controller with `limits`.
    pub(super) fn info(&self, limits: Limits) -> Info {
        let max_transfer = limits
            .max_transfer
            .min(self.max_blocks().saturating_mul(self.block_size))
            .max(self.block_size);
        Info {
            model: self.model.clone(),
            serial: self.serial.clone(),
            firmware: self.firmware.clone(),
            block_size: self.block_size,
            blocks: self.blocks,
            max_transfer: max_transfer - max_transfer % self.block_size,
            segments: limits.segments,
            optimal_io: self.physical_block_size,
            boundary: 0,
            volatile_cache: self.cache && self.flush != Flush::None,
            // By PIO it takes WRITE MULTIPLE FUA EXT, and what was promised holds after a
            // slow-down, too.
            fua: self.fua && (limits.lowest > Level::Pio || self.multiple > 0),
            max_write_zeroes_blocks: 0,
            // TRIM is a DMA command.
            discard: (self.trim_sectors > 0 && limits.level > Level::Pio).then_some(Discard {
                max_blocks: self.max_discard_blocks(),
                granularity: self.physical_block_size,
            }),
            read_only: false,
            // 1 does not turn; disks that turn and are older than the word say nothing. [ACS-3
            // 7.12.7, word 217]
            rotates: self.rotation != 1,
        }
    }
}

/// Why a drive with the packet interface is refused.
pub(super) fn packet_drive() -> Error {
    Error::Unsupported(
        "it is a packet drive (ATAPI: CD, DVD or tape); disks only are driven".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_transfer: 1 << 20,
        segments: SEGMENTS,
        level: Level::Queued,
        lowest: Level::Dma,
    };
    const SEGMENTS: SegmentRules = SegmentRules { align: 2, boundary: 2, max: 8 };

    fn drive(set: impl FnOnce(&mut ata::Identify)) -> ata::Identify {
        let mut data = ata::Identify::zeroed();
        data.set_capabilities(3 << 8)
            .set_sets83(1 << 14 | 1 << 13 | 1 << 12 | 1 << 10)
            .set_sectors28(LBA28_SECTORS as u32);
        data.set_sectors48(1 << 32).set_text(identify::MODEL, "A DRIVE");
        set(&mut data);
        data
    }

    #[test]
    fn a_large_drive_has_its_48_bit_size() {
        let identity = Identity::new(&drive(|_| ())).unwrap();
        assert_eq!(
            (identity.blocks, identity.model.as_str(), identity.flush),
            (1 << 32, "A DRIVE", Flush::Ext)
        );
    }

    #[test]
    fn an_old_drive_takes_256_sectors_at_once() {
        let identity = Identity::new(&drive(|data| {
            data.set_sets83(1 << 14);
        }))
        .unwrap();
        assert_eq!(identity.info(LIMITS).max_transfer, 128 << 10);
        assert_eq!(identity.flush, Flush::None);
    }

    #[test]
    fn a_packet_drive_is_refused_by_its_kind() {
        let error = Identity::new(&drive(|data| {
            data.set_general(0x8580);
        }));
        assert!(
            matches!(&error, Err(Error::Unsupported(text)) if text.contains("ATAPI")),
            "{error:?}"
        );
    }

    #[test]
    fn damaged_data_are_refused() {
        let data = drive(|data| {
            data.seal();
            data.set_sectors48(77);
        });
        assert!(matches!(Identity::new(&data), Err(Error::Protocol(_))));
    }

    #[test]
    fn blocks_of_4096_bytes_count_as_blocks() {
        let data = drive(|data| {
            data.set_sector_sizes(1 << 14 | 1 << 12).set_block_words(2048);
        });
        let info = Identity::new(&data).unwrap().info(LIMITS);
        assert_eq!((info.block_size, info.blocks, info.optimal_io), (4096, 1 << 32, 4096));
    }

    #[test]
    fn a_size_of_nothing_is_refused() {
        let data = drive(|data| {
            data.set_sectors48(0).set_sectors28(0);
        });
        assert!(matches!(Identity::new(&data), Err(Error::Protocol(_))));
    }

    #[test]
    fn writing_through_is_promised_only_if_every_level_can() {
        let data = drive(|data| {
            data.set_sets84(1 << 14 | 1 << 6);
        });
        let (none, some) = (
            Identity::new(&data).unwrap(),
            Identity { multiple: 16, ..Identity::new(&data).unwrap() },
        );
        let by_pio = Limits { lowest: Level::Pio, ..LIMITS };
        assert!(none.info(LIMITS).fua && some.info(by_pio).fua);
        assert!(!none.info(by_pio).fua);
    }

    #[test]
    fn quirks_limit_what_one_command_may_be_long() {
        let identity = |name: &str, data: ata::Identify| Identity {
            quirks: Quirks::from_iter([name]),
            ..Identity::new(&data).unwrap()
        };
        let trims = |data: &mut ata::Identify| {
            data.set_data_set_management(1);
        };
        let large = |data: &mut ata::Identify| {
            data.set_sector_sizes(1 << 14 | 1 << 12).set_block_words(2048);
        };
        let max = |name, data| identity(name, data).info(LIMITS).max_transfer;
        assert_eq!(max(MAX_128_SECTORS, drive(|_| ())), 64 << 10);
        assert_eq!(max(MAX_1024_SECTORS, drive(large)), 512 << 10);
        let discard = identity(SHORT_TRIM, drive(trims)).info(LIMITS).discard.unwrap();
        assert_eq!(discard.max_blocks, 256 << 10);
    }

    #[test]
    fn trim_needs_dma() {
        let data = drive(|data| {
            data.set_data_set_management(1);
        });
        let identity = Identity::new(&data).unwrap();
        assert!(identity.info(LIMITS).discard.is_some());
        assert_eq!(identity.info(Limits { level: Level::Pio, ..LIMITS }).discard, None);
    }
}
