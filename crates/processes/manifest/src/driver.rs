//! A driver's manifest.

use std::ops::Range;

use ring3_lease::Quiesce;
use serde::Deserialize;

use crate::{Error, SystemCalls};

/// What a driver needs, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What it is called.
    pub driver: Name,
    /// The functions that it drives.
    pub r#match: Match,
    /// The registers that it touches.
    #[serde(rename = "bar")]
    pub bars: Vec<Bar>,
    /// How its device signals.
    pub interrupts: Interrupts,
    /// What it takes of the arena.
    pub memory: Memory,
    /// What it touches of configuration space.
    pub config: Config,
    /// Which threads run its code.
    pub threads: Threads,
    /// What it calls.
    pub system_calls: SystemCalls,
    /// How its controller is stopped; by a reset of the function if nothing is said.
    pub quiesce: Option<Quiesce>,
    /// What another process can do with its device.
    pub restart: Restart,
}

/// What a driver is called.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// Its name.
    pub name: String,
    /// The word by which users call it and its like.
    pub family: String,
    /// What it drives, in words.
    pub about: String,
}

/// Which functions a driver drives. [PCI 6.2.1]
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Match {
    /// By class codes (24 bits: base class, sub-class, interface) that agree with `class` in the
    /// bits of `class_mask`.
    Class {
        /// The code.
        class: u32,
        /// The bits that count.
        #[serde(default = "all_of_class")]
        class_mask: u32,
    },
    /// By ids, where the class says nothing.
    Ids {
        /// Vendor.
        vendor: u16,
        /// Device.
        device: u16,
    },
    /// By ids, as a family of one maker.
    AnyOf {
        /// Vendor.
        vendor: u16,
        /// Devices.
        devices: Vec<u16>,
    },
}

fn all_of_class() -> u32 {
    0xff_ff_ff
}

/// What a function says of itself. [PCI 6.2.1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
}

impl Match {
    /// Whether it names a function.
    pub fn has(&self, identity: Identity) -> bool {
        match self {
            Self::Class { class, class_mask } => identity.class & class_mask == *class,
            Self::Ids { vendor, device } => {
                (*vendor, *device) == (identity.vendor, identity.device)
            }
            Self::AnyOf { vendor, devices } => {
                *vendor == identity.vendor && devices.contains(&identity.device)
            }
        }
    }
}

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Which.
    pub index: u8,
    /// Where its registers are.
    pub kind: Kind,
    /// It has so many bytes at least.
    pub bytes_min: u64,
    /// What is done with them.
    pub access: Access,
}

/// Where registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// In memory.
    Memory,
    /// At ports.
    Port,
}

/// What is done with registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// They are read and written.
    ReadWrite,
}

/// How a device signals.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupts {
    /// The ways that the driver knows, the best first.
    pub kinds: Vec<Interrupt>,
    /// How many it takes at most.
    pub vectors_max: Vectors,
}

/// A way to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interrupt {
    /// Messages by a table.
    Msix,
    /// Messages to one address.
    Msi,
    /// The pin.
    Intx,
}

/// A number of vectors: `N`, `queues` or `queues + N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Vectors {
    /// One for each queue.
    pub each_queue: bool,
    /// So many besides.
    pub fixed: u16,
}

impl TryFrom<String> for Vectors {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (each_queue, rest) = match text.strip_prefix("queues") {
            Some("") => return Ok(Self { each_queue: true, fixed: 0 }),
            Some(rest) => (true, rest.strip_prefix(" + ").unwrap_or_default()),
            None => (false, &*text),
        };
        let fixed = rest
            .parse()
            .map_err(|_| format!("{text:?} is no number of vectors: N, queues or queues + N"))?;
        Ok(Self { each_queue, fixed })
    }
}

/// What a driver takes of the arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// For its administration.
    #[serde(default)]
    pub admin_bytes: u64,
    /// For each drive, at most.
    #[serde(default)]
    pub drive_bytes_max: u64,
    /// For each channel.
    #[serde(default)]
    pub channel_bytes: u64,
    /// For each queue, at most.
    pub queue_bytes_max: u64,
    /// Its devices drive so many address lines at least.
    pub address_bits: u32,
}

/// Bytes of configuration space.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// That are read.
    #[serde(deserialize_with = "ranges")]
    pub read: Vec<Range<u64>>,
    /// That are written.
    #[serde(deserialize_with = "ranges")]
    pub write: Vec<Range<u64>>,
}

/// Registers of the header by their names. [PCI 6.1]
const REGISTERS: [(&str, Range<u64>); 5] =
    [("vendor", 0..2), ("device", 2..4), ("command", 4..6), ("revision", 8..9), ("class", 9..12)];

/// Of configuration space. [PCIe 7.2]
const CONFIG_LEN: u64 = 4096;

fn ranges<'d, D: serde::Deserializer<'d>>(from: D) -> Result<Vec<Range<u64>>, D::Error> {
    let wrong = |text: &str| {
        serde::de::Error::custom(format!("{text:?} is no register of configuration space"))
    };
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| range(text).ok_or_else(|| wrong(text))).collect()
}

/// `vendor`, `0x40` or `0x40..0x44`.
fn range(text: &str) -> Option<Range<u64>> {
    if let Some((_, range)) = REGISTERS.iter().find(|(name, _)| *name == text) {
        return Some(range.clone());
    }
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let range = match text.split_once("..") {
        Some((first, end)) => number(first)?..number(end)?,
        None => number(text)?..number(text)? + 1,
    };
    (range.start < range.end && range.end <= CONFIG_LEN).then_some(range)
}

/// Which threads run a driver's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threads {
    /// For each queue.
    pub each_queue: Thread,
    /// That the driver starts, at most.
    pub own: u16,
}

/// A thread that runs a driver's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Thread {
    /// Of whoever has opened the queue.
    #[serde(rename = "the caller's")]
    Caller,
}

/// What another process can do with a driver's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// What is left for it.
    pub state: State,
}

/// What a driver leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing: the device starts anew.
    None,
    /// All: left on purpose, the device goes on for the next process.
    Saved,
}

impl Manifest {
    /// Of `text`, a TOML document.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let manifest: Self = toml::from_str(text).map_err(|error| Error(error.to_string()))?;
        manifest.quiesce.as_ref().map_or(Ok(()), Quiesce::check).map_err(Error)?;
        if !(1..=64).contains(&manifest.memory.address_bits) {
            return Err(Error("address_bits: a device drives 1 to 64 address lines".into()));
        }
        Ok(manifest)
    }

    /// Where the device addresses end that its devices reach.
    pub fn dma_limit(&self) -> u64 {
        1u64.checked_shl(self.memory.address_bits).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVME: &str = include_str!("../../../drivers/driver/src/nvme/manifest.toml");

    #[test]
    fn what_a_manifest_says_is_read_whole() {
        let manifest = Manifest::parse(NVME).unwrap();
        assert_eq!((&*manifest.driver.name, &*manifest.driver.family), ("nvme", "nvme"));
        assert_eq!(manifest.interrupts.vectors_max, Vectors { each_queue: true, fixed: 1 });
        assert!(manifest.config.read.iter().eq([&(4..6)]) && manifest.config.write.is_empty());
        assert_eq!((manifest.restart.state, manifest.quiesce.unwrap().bar), (State::Saved, 0));
    }

    #[test]
    fn a_word_that_nobody_knows_and_a_value_that_makes_no_sense_are_errors() {
        for (from, to) in [
            ("[threads]", "[treads]"),
            ("queue_bytes_max", "queue_bytes"),
            ("class = 0x010802", "class = 0x010802\nsubclass = 1"),
            ("class = 0x010802", "vendor = 1"),
            ("\"msix\"", "\"msi-x\""),
            ("\"queues + 1\"", "\"queues + x\""),
            ("\"queues + 1\"", "\"queues1\""),
            ("\"queues + 1\"", "70000"),
            ("\"command\"", "\"commands\""),
            ("\"command\"", "\"0x10..0x10\""),
            ("\"command\"", "\"0x10..0x1001\""),
            ("\"command\"", "\"16\""),
            ("= \"saved\"", "= \"kept\""),
            ("address_bits = 64", "address_bits = 0"),
            ("mask = 1", "mask = 0"),
            ("limit_ms", "limit"),
            ("run = [", "start = []\nrun = ["),
            ("name = \"nvme\"", ""),
        ] {
            assert!(NVME.contains(from), "{from}");
            assert!(Manifest::parse(&NVME.replacen(from, to, 1)).is_err(), "{to}");
        }
    }

    #[test]
    fn a_class_without_a_mask_counts_whole_and_ids_are_compared_both() {
        let identity = Identity { vendor: 0x1234, device: 0x11e8, class: 0x01_08_02 };
        assert!(Manifest::parse(NVME).unwrap().r#match.has(identity));
        assert!(
            !Manifest::parse(NVME).unwrap().r#match.has(Identity { class: 0x01_08_03, ..identity })
        );
        let ids = Match::Ids { vendor: 0x1234, device: 0x11e8 };
        assert!(ids.has(identity) && !ids.has(Identity { device: 0, ..identity }));
        let any = Match::AnyOf { vendor: 0x1234, devices: vec![0x11e7, 0x11e8] };
        assert!(
            any.has(identity)
                && !any.has(Identity { device: 0, ..identity })
                && !any.has(Identity { vendor: 0, ..identity })
        );
    }

    #[test]
    fn a_device_of_64_address_lines_reaches_everything() {
        assert_eq!(Manifest::parse(NVME).unwrap().dma_limit(), u64::MAX);
        let narrow = NVME.replace("address_bits = 64", "address_bits = 28");
        assert_eq!(Manifest::parse(&narrow).unwrap().dma_limit(), 1 << 28);
    }
}
