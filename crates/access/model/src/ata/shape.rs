//! What a simulated drive is like.

use ring3_device::Error;

use super::quirk::{QUIRKS, Quirk};
use crate::fault::Action;
use crate::options::{Options, number};
use ring3_device::parse_size;
use ring3_spec::ata::TaskFile;

/// How a drive is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Serial ATA.
    Serial,
    /// Parallel ATA; an 80-wire cable or one of 40.
    Parallel {
        /// Whether the cable has 80 wires, which Ultra DMA above mode 2 needs.
        wide_cable: bool,
    },
}

/// What a drive says of how often it was powered on. [ACS-4 9.5]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// Nothing: it has no device statistics.
    Off,
    /// How often that was.
    On,
    /// It has the statistic, and its value does not hold.
    Invalid,
    /// It lists the log and refuses to read it.
    Refused,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveShape {
    /// Bytes, a multiple of the block.
    pub bytes: u64,
    /// log2 of a block's bytes: 9 or 12.
    pub block_shift: u32,
    /// Commands that it queues, 1 to 32; 0 for none.
    pub depth: u16,
    /// Whether it takes 48-bit commands.
    pub lba48: bool,
    /// Most blocks of one interrupt of READ MULTIPLE, a power of two up to 128; 0 for none.
    pub multiple: u8,
    /// Whether it can do DMA.
    pub dma: bool,
    /// Its best Ultra DMA mode, 0 to 6.
    pub ultra_dma: Option<u8>,
    /// Whether it has a volatile write cache.
    pub cache: bool,
    /// Whether it can write through for a single command.
    pub fua: bool,
    /// Whether it has TRIM.
    pub trim: bool,
    /// What it says of how often it was powered on.
    pub statistics: Statistics,
    /// Whether its strings hold what a terminal would act on.
    pub wild_text: bool,
    /// Its model and its firmware, if they are not the model's own.
    pub strings: (Option<String>, Option<String>),
    /// Its faults.
    pub quirks: Vec<Quirk>,
    /// How it is attached.
    pub link: Link,
}

impl DriveShape {
    /// A drive of 64 MiB that can do all there is.
    pub const fn new(link: Link) -> Self {
        let depth = if matches!(link, Link::Serial) { 32 } else { 0 };
        Self {
            bytes: 64 << 20,
            block_shift: 9,
            depth,
            lba48: true,
            multiple: 16,
            dma: true,
            ultra_dma: Some(5),
            cache: true,
            fua: true,
            trim: true,
            statistics: Statistics::On,
            wild_text: false,
            strings: (None, None),
            quirks: Vec::new(),
            link,
        }
    }

    /// Whether it has a fault.
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }

    /// What becomes of a command by its faults.
    pub(crate) fn fault(&self, task: &TaskFile) -> Option<Action> {
        self.quirks.iter().find_map(|quirk| quirk.fault(task))
    }

    /// Whether a transfer of `task` fails on a link of the generation `speed`.
    pub(crate) fn fails_at(&self, task: &TaskFile, speed: u32) -> bool {
        self.quirks.iter().any(|quirk| quirk.fails_at(task, speed))
    }
}

/// The options of every ATA drive.
pub(crate) const KEYS: [&str; 12] = [
    "text",
    "size",
    "block",
    "cache",
    "fua",
    "trim",
    "statistics",
    "lba48",
    "multiple",
    "model",
    "firmware",
    "quirk",
];

/// What the user wants of `default`.
pub(crate) fn of_options(options: &Options<'_>, default: DriveShape) -> Result<DriveShape, Error> {
    let lba48 = options.switch("lba48", default.lba48)?;
    let multiple =
        |text: &str| number(text).filter(|n| *n == 0 || n.is_power_of_two() && *n <= 128);
    let block_shift =
        options.get("block", "512 or 4096", default.block_shift, |text| match text {
            "512" => Some(9),
            "4096" => Some(12),
            _ => None,
        })?;
    let bytes = options.get(
        "size",
        "bytes of each drive, whole blocks up to 1T, as 64M",
        default.bytes,
        |text| {
            parse_size(text).filter(|size| {
                (1..=1 << 40).contains(size) && size.is_multiple_of(1 << block_shift)
            })
        },
    )?;
    let shape = DriveShape {
        bytes,
        block_shift,
        lba48,
        multiple: options.get(
            "multiple",
            "0 (none) or a power of two up to 128",
            default.multiple.into(),
            multiple,
        )? as u8,
        cache: options.switch("cache", default.cache)?,
        // These are 48-bit commands.
        fua: options.switch("fua", lba48)? && lba48,
        trim: options.switch("trim", lba48)? && lba48,
        statistics: options
            .get("statistics", "on, off, invalid or refused", default.statistics, |text| match text
            {
                "on" => Some(Statistics::On),
                "off" => Some(Statistics::Off),
                "invalid" => Some(Statistics::Invalid),
                "refused" => Some(Statistics::Refused),
                _ => None,
            })
            .map(|asked| if lba48 { asked } else { Statistics::Off })?,
        wild_text: options.wild_text()?,
        strings: options.strings()?,
        quirks: options.quirks("quirk", &QUIRKS)?,
        ..default
    };
    if !lba48 && bytes >> shape.block_shift > ring3_spec::ata::LBA28_SECTORS {
        return Err(Error::Invalid(
            "lba48=off: a drive of that size has more blocks than 28 bits reach".into(),
        ));
    }
    Ok(shape)
}
