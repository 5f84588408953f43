//! What a simulated NVMe controller is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::Error;
use ring3_spec::nvme::feature::POWER_STATES;
use ring3_spec::nvme::identify::csi;
use ring3_spec::nvme::registers::Version;

use super::host_memory::{MOST_PIECES, Wanted};
use super::power::Sleep;
use super::protection;
use super::quirk::{QUIRKS, Quirk};
use crate::Timing;
use crate::options::{Options, duration, number};
use ring3_device::{Uri, parse_size};

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceShape {
    /// Bytes, metadata not counted; a multiple of the block.
    pub bytes: u64,
    /// log2 of a block's data bytes: 9 to 16.
    pub block_shift: u32,
    /// Metadata bytes of a block, in a buffer of their own: 0 to 64.
    pub metadata: u16,
    /// The type of its protection information, 1 to 3, which is its metadata; 0 for none.
    pub protection: u8,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its I/O command set, as `ring3_spec::nvme::identify::csi` numbers them. Of others than NVM,
    /// the model knows that they are there.
    pub command_set: u8,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Namespaces 1, 2, and so on.
    pub namespaces: Vec<NamespaceShape>,
    /// I/O queue pairs, 1 to 64.
    pub queues: u16,
    /// Most entries of an I/O queue, 2 to 65536; 1 makes CAP.MQES 0, as of drives that say so and
    /// take queues of 64 entries.
    pub entries: u32,
    /// log2 of the most bytes of a transfer, in the smallest memory pages; 0 for no limit.
    pub mdts: u8,
    /// CAP.MPSMIN: the smallest memory page is 4096 bytes shifted left by this, 0 to 4.
    pub mpsmin: u32,
    /// MSI-X vectors, 0 to 65; 0 leaves MSI and the pin.
    pub vectors: u16,
    /// Whether there is a volatile write cache.
    pub cache: bool,
    /// log2 of the distance of doorbells, in units of 4 bytes: 0 to 4.
    pub stride: u32,
    /// Whether commands may describe their data by scatter gather lists.
    pub sgl: bool,
    /// Whether its strings hold what a terminal would act on.
    pub wild_text: bool,
    /// How long it takes to become ready and to stop.
    pub ready: Duration,
    /// CAP.TO, up to 127.5 s in steps of 500 ms: what it says of that.
    pub timeout: Duration,
    /// CRTO.CRWMT in such steps; zero is a controller without that register.
    pub ready_timeout: Duration,
    /// CRDT1 in steps of 100 ms: the delay that a status with CRD = 1 asks for.
    pub retry_delay: Duration,
    /// The version of the specification: 1.0, which has no list of namespaces, or 2.1.
    pub version: Version,
    /// PCI vendor and device.
    pub id: (u16, u16),
    /// Model and firmware, other than the usual ones.
    pub strings: (Option<String>, Option<String>),
    /// What it does otherwise than its specification.
    pub quirks: Vec<Quirk>,
    /// MTFA in steps of 100 ms: how long the activation of firmware may take, of which it gives
    /// notice; zero is a controller without notices.
    pub activation: Duration,
    /// NOIOB of each namespace, in blocks; 0 for none.
    pub optimal_boundary: u16,
    /// What it asks for of the host's memory.
    pub host_memory: Wanted,
    /// Its power states behind state 0, none of which takes commands; at most 31.
    pub sleeps: Vec<Sleep>,
    /// When I/O commands are done.
    pub timing: Timing,
}

impl Default for Shape {
    fn default() -> Self {
        let namespace = NamespaceShape {
            bytes: 64 << 20,
            block_shift: 9,
            metadata: 0,
            protection: 0,
            read_only: false,
            command_set: csi::NVM,
        };
        Self {
            namespaces: vec![namespace],
            queues: 4,
            entries: 1024,
            mdts: 5,
            mpsmin: 0,
            vectors: 5,
            cache: true,
            stride: 0,
            sgl: true,
            wild_text: false,
            ready: Duration::ZERO,
            timeout: Duration::from_secs(1),
            ready_timeout: Duration::ZERO,
            retry_delay: Duration::ZERO,
            version: VERSIONS[2].1,
            id: ID,
            strings: (None, None),
            quirks: Vec::new(),
            activation: Duration::ZERO,
            optimal_boundary: 0,
            host_memory: Wanted { miss: MISS, ..Wanted::default() },
            sleeps: Vec::new(),
            timing: Timing::Inline,
        }
    }
}

/// Entries that a queue may have whose most the controller does not say.
const ENTRIES_UNSAID: u32 = 64;
/// Versions by their names.
const VERSIONS: [(&str, Version); 3] =
    [("1.0", Version(0x0001_0000)), ("1.1", Version(0x0001_0100)), ("2.1", Version(0x0002_0100))];
/// Vendor and device that no real controller has: drivers know some real ones by their quirks.
const ID: (u16, u16) = (0x1234, 0x0802);

pub(super) const KEYS: [&str; 32] = [
    "size",
    "namespaces",
    "block",
    "sets",
    "readonly",
    "queues",
    "entries",
    "mdts",
    "mpsmin",
    "vectors",
    "cache",
    "stride",
    "sgl",
    "text",
    "ready",
    "timeout",
    "crto",
    "retry-delay",
    "version",
    "id",
    "model",
    "firmware",
    "quirk",
    "mtfa",
    "noiob",
    "hmb",
    "hmb-min",
    "hmb-piece",
    "hmb-pieces",
    "hmb-miss",
    "sleep",
    "fault",
];

impl Shape {
    pub(super) fn from_options(options: &Options<'_>) -> Result<Self, Error> {
        let default = Self::default();
        let within = |least: u64, most: u64| {
            move |text: &str| number(text).filter(|n| (least..=most).contains(n))
        };
        let quirks = options.quirks("quirk", &QUIRKS)?;
        let queues = options.get("queues", "1 to 64", u64::from(default.queues), within(1, 64))?;
        Ok(Self {
            namespaces: namespaces(options)?,
            queues: queues as u16,
            entries: options.get(
                "entries",
                "1 (CAP.MQES is 0) to 65536",
                u64::from(default.entries),
                within(1, 65536),
            )? as u32,
            mdts: options.get(
                "mdts",
                "0 (no limit) to 12, log2 of the pages of a transfer",
                default.mdts.into(),
                within(0, 12),
            )? as u8,
            mpsmin: options.get(
                "mpsmin",
                "0 to 4, log2 of the smallest memory page in units of 4096",
                0,
                within(0, 4),
            )? as u32,
            vectors: options.get("vectors", "0 to 65", queues + 1, within(0, 65))? as u16,
            cache: options.switch("cache", true)?,
            stride: options.get("stride", "0 to 4", 0, within(0, 4))? as u32,
            sgl: options.switch("sgl", true)?,
            wild_text: options.wild_text()?,
            ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
            timeout: options.get(
                "timeout",
                "a time up to 60s, as 5s",
                default.timeout,
                duration,
            )?,
            ready_timeout: options.get(
                "crto",
                "a time up to 60s, as 5s",
                Duration::ZERO,
                duration,
            )?,
            retry_delay: options.get(
                "retry-delay",
                "a time up to 60s, as 200ms",
                Duration::ZERO,
                duration,
            )?,
            id: options.id(ID)?,
            strings: options.strings()?,
            activation: options.get("mtfa", "a time up to 60s, as 5s", Duration::ZERO, duration)?,
            optimal_boundary: options.get("noiob", "0 (none) to 65535", 0, within(0, 65535))?
                as u16,
            host_memory: host_memory(options)?,
            sleeps: sleeps(options, &quirks)?,
            quirks,
            version: options.get("version", "1.0, 1.1 or 2.1", default.version, |text| {
                VERSIONS.iter().find(|(name, _)| *name == text).map(|(_, version)| *version)
            })?,
            timing: options.timing()?,
        })
    }

    /// Whether it has a quirk.
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }

    /// Whether I/O commands may cost more than the usual, or not be done.
    pub(super) fn is_peculiar(&self) -> bool {
        !self.quirks.is_empty() || self.host_memory.preferred > 0 || !self.sleeps.is_empty()
    }

    /// Entries that an I/O queue may have.
    pub(super) fn entries_taken(&self) -> u32 {
        if self.entries == 1 { ENTRIES_UNSAID } else { self.entries }
    }
}

/// What a read costs that misses its page of the mapping: about a read of flash.
const MISS: Duration = Duration::from_micros(50);

fn host_memory(options: &Options<'_>) -> Result<Wanted, Error> {
    let bytes = |key| {
        let wants = "bytes in units of 4096 up to 16T, as 64M";
        options.get(key, wants, 0, |text| {
            parse_size(text).filter(|bytes| bytes.is_multiple_of(4096) && *bytes >> 44 == 0)
        })
    };
    Ok(Wanted {
        preferred: bytes("hmb")?,
        minimum: bytes("hmb-min")?,
        smallest_piece: bytes("hmb-piece")?,
        pieces: options.get("hmb-pieces", "0 (no limit) to 64", 0, |text| {
            number(text).filter(|pieces| *pieces <= MOST_PIECES.into())
        })? as u16,
        miss: options.get("hmb-miss", "a time up to 60s, as 50us", MISS, duration)?,
    })
}

/// States that take no commands. A controller that is not to enter one has one.
fn sleeps(options: &Options<'_>, quirks: &[Quirk]) -> Result<Vec<Sleep>, Error> {
    let wants = "ENLAT/EXLAT of each state that takes no commands, as 2ms/3ms+20ms/40ms, up to 31";
    let sleep = |text: &str| {
        let (entry, exit) = text.split_once('/')?;
        Some(Sleep { entry: duration(entry)?, exit: duration(exit)? })
    };
    let all = |text: &str| text.split('+').map(sleep).collect::<Option<Vec<_>>>();
    let none = match quirks.contains(&Quirk::BrokenApst) {
        true => vec![Sleep { entry: Duration::ZERO, exit: Duration::ZERO }],
        false => Vec::new(),
    };
    options.get("sleep", wants, none, |text| all(text).filter(|all| all.len() < POWER_STATES))
}

fn namespaces(options: &Options<'_>) -> Result<Vec<NamespaceShape>, Error> {
    let count = options.get("namespaces", "1 to 1024", 1, |text| {
        number(text).filter(|n| (1..=1024).contains(n))
    })?;
    let wants = "512, 4096 or another power of two up to 65536, with m8 behind it for 8 bytes of \
                 metadata, or p1, p2 or p3 for protection information of that type; one for each \
                 namespace with + between";
    let formats = options
        .get("block", wants, vec![(9, 0, 0)], |text| text.split('+').map(format).collect())?;
    let largest = formats.iter().map(|&(shift, ..)| 1 << shift).max().unwrap_or(512);
    let bytes = options.get(
        "size",
        "bytes of each namespace, whole blocks up to 1T, as 64M",
        64 << 20,
        |text| {
            parse_size(text)
                .filter(|size| (1..=1 << 40).contains(size) && size.is_multiple_of(largest))
        },
    )?;
    let wants = "nvm, zoned, kv or a number up to 0xff; one for each namespace with + between";
    let sets = options
        .get("sets", wants, vec![csi::NVM], |text| text.split('+').map(command_set).collect())?;
    let read_only = options.switch("readonly", false)?;
    let shape = |((block_shift, metadata, protection), command_set)| NamespaceShape {
        bytes,
        block_shift,
        metadata,
        protection,
        read_only,
        command_set,
    };
    Ok(for_ever(formats).zip(for_ever(sets)).map(shape).take(count as usize).collect())
}

/// `values`, then the last of them again and again.
fn for_ever<T: Copy>(values: Vec<T>) -> impl Iterator<Item = T> {
    let last = values.last().copied();
    values.into_iter().chain(last.into_iter().cycle())
}

/// A command set by its name or number.
fn command_set(text: &str) -> Option<u8> {
    match text {
        "nvm" => Some(csi::NVM),
        "kv" => Some(csi::KEY_VALUE),
        "zoned" => Some(csi::ZONED),
        _ => number(text).and_then(|set| set.try_into().ok()),
    }
}

/// `512`, `4096` or, with 8 bytes of metadata, `512m8`, or with protection information of a type,
/// `512p1`.
fn format(text: &str) -> Option<(u32, u16, u8)> {
    let (text, kind) = text.split_once('p').unwrap_or((text, "0"));
    let kind = number(kind).filter(|kind| *kind <= 3)?;
    let own = if kind > 0 { "8" } else { "0" };
    let (block, metadata) = text.split_once('m').unwrap_or((text, own));
    let block =
        number(block).filter(|block| block.is_power_of_two() && (512..=65536).contains(block))?;
    let metadata = number(metadata).filter(|bytes| *bytes <= 64)?;
    let is_sound = kind == 0 || metadata == protection::SIZE;
    is_sound.then_some((block.ilog2(), metadata as u16, kind as u8))
}

/// Opens the shape that `uri` describes.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let options = Options::of(uri, "nvme", &KEYS)?;
    let shape = Shape::from_options(&options)?;
    Ok((options, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Result<Shape, Error> {
        let uri: Uri = text.parse().unwrap();
        of_uri(&uri).map(|(_, shape)| shape)
    }

    #[test]
    fn no_options_make_the_default_shape() {
        assert_eq!(shape("sim:nvme").unwrap(), Shape::default());
    }

    #[test]
    fn each_namespace_has_its_format_and_the_last_one_repeats() {
        let shape = shape("sim:nvme,namespaces=4,block=512+512m8+4096p1").unwrap();
        let formats: Vec<_> =
            shape.namespaces.iter().map(|n| (n.block_shift, n.metadata, n.protection)).collect();
        assert_eq!(formats, [(9, 0, 0), (9, 8, 0), (12, 8, 1), (12, 8, 1)]);
    }

    #[test]
    fn each_namespace_has_its_command_set_and_the_last_one_repeats() {
        let shape = shape("sim:nvme,namespaces=4,sets=nvm+zoned+0x30").unwrap();
        let sets: Vec<_> = shape.namespaces.iter().map(|n| n.command_set).collect();
        assert_eq!(sets, [csi::NVM, csi::ZONED, 0x30, 0x30]);
    }

    #[test]
    fn a_namespace_may_be_as_small_as_a_block() {
        assert_eq!(shape("sim:nvme,size=512").unwrap().namespaces[0].bytes, 512);
        assert!(shape("sim:nvme,size=512,block=4096").is_err());
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for text in [
            "queues=0",
            "block=1000",
            "block=512p4",
            "block=512m16p1",
            "size=1",
            "mdts=13",
            "cache=maybe",
            "namespaces=0",
            "entries=0",
            "mpsmin=5",
            "sets=tape",
            "version=3",
            "id=1234",
            "quirk=none",
            "firmware=123456789",
        ] {
            assert!(shape(&format!("sim:nvme,{text}")).is_err(), "{text}");
        }
    }
}
