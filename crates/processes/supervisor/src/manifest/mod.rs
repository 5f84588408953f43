//! The devices that a user wants to be supervised, as TOML.
//!
//! A manifest is a file, or a folder of files called `*.toml`. What nobody knows in it is an error:
//! a word that is passed over would be a limit that nobody keeps.

mod export;
mod file;
mod half;
mod restart;
#[cfg(test)]
mod tests;
mod user;

use std::path::PathBuf;

use ring3_class::net::Throttle;
use ring3_device::Uri;
use ring3_pci::Address;
use ring3_sandbox::CPU_WEIGHT;
use serde::Deserialize;

pub use export::{ExportConfig, Kind, Share};
pub use file::{metrics, parse, read};
pub use half::UserHalf;
pub use restart::{Limits, Restart};
pub use user::User;

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error(
        "reading {path}: {error}; put a manifest there (docs/supervisor.md), or name another file \
         or folder with --config",
        path = path.display(),
    )]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It says what makes no sense.
    #[error("{path}: {reason}", path = path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// What, and what to do.
        reason: String,
    },
    /// It asks for nothing.
    #[error(
        "{path} names no device: write [device.NAME] with match = {{ address = \
         \"0000:01:00.0\" }} (ring3 devices lists addresses), or [split.DRIVER]",
        path = path.display(),
    )]
    Empty {
        /// Which.
        path: PathBuf,
    },
}

/// What is to be supervised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestEntry {
    /// A device, by a driver in a process.
    Device(Box<Device>),
    /// The user half of a split driver.
    UserHalf(UserHalf),
}

impl ManifestEntry {
    /// What its user calls it.
    pub fn name(&self) -> &str {
        match self {
            Self::Device(device) => &device.name,
            Self::UserHalf(half) => &half.name,
        }
    }

    /// The device that it is, if it is one.
    pub fn device(&self) -> Option<&Device> {
        match self {
            Self::Device(device) => Some(device),
            Self::UserHalf(_) => None,
        }
    }
}

/// A device that is to be supervised.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What its user calls it.
    #[serde(skip)]
    pub name: String,
    /// Which one it is.
    pub r#match: Match,
    /// The family of drivers, or `dde:NAME`, a driver of Linux in its own process; the one for the
    /// device's class if `None`.
    pub driver: Option<String>,
    /// The one namespace or drive that is wanted; all if `None`.
    pub part: Option<u32>,
    /// It may be taken from the kernel's driver.
    #[serde(default)]
    pub bind: bool,
    /// It may be driven though the platform does not check its interrupts.
    #[serde(default)]
    pub unsafe_interrupts: bool,
    /// How it signals.
    #[serde(default = "auto")]
    pub interrupts: String,
    /// How often it may interrupt, a network card; as its driver thinks best if `None`.
    #[serde(default)]
    pub throttle: Option<Throttle>,
    /// What the user wants otherwise than its driver's table of quirks has it.
    #[serde(default)]
    pub quirks: Vec<String>,
    /// Most MiB of memory that it gets for itself, an NVMe controller; the driver's usual limit if
    /// `None`.
    #[serde(default)]
    pub hmb_mib: Option<u16>,
    /// Milliseconds that it may take to leave a power state that it enters by itself, an NVMe
    /// controller; the driver's usual limit if `None`.
    #[serde(default)]
    pub power_latency_ms: Option<u32>,
    /// What its disks become.
    #[serde(default)]
    pub export: ExportConfig,
    /// When its driver is started again.
    #[serde(default)]
    pub restart: Restart,
    /// What its driver may use up.
    #[serde(default)]
    pub limits: Limits,
    /// Whose its driver is; of one who owns nothing if `None`.
    pub user: Option<User>,
}

fn auto() -> String {
    "auto".into()
}

/// By what a device is known.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Match {
    /// Where it sits.
    Address(String),
    /// A disk of it has this serial number.
    Serial(String),
    /// `nvme`, `ahci`, `ide`, `ethernet`, or a class code such as `0x010802`: the first that no
    /// other device is.
    Class(String),
    /// A name of a backend, such as `vfio-user:/path`.
    Device(String),
}

/// Before the name of a driver of Linux that ring3 hosts.
const HOSTED: &str = "dde:";
/// As many requests of 128 KiB as it has set memory aside for.
const HOSTED_DEPTH: u16 = 128;

/// Most MiB that a controller may get for itself.
const MOST_HMB_MIB: u16 = 1024;
/// What a controller may get if nothing is said: the NVMe driver's default.
const USUAL_HMB_MIB: u16 = 128;
/// The longest time that a controller may take to wake.
const MOST_POWER_LATENCY_MS: u32 = 60_000;

impl Device {
    /// The driver of Linux that drives it, if one does.
    pub fn hosted(&self) -> Option<&str> {
        self.driver.as_deref()?.strip_prefix(HOSTED)
    }

    /// Most bytes that its controller gets for itself, by a driver of `family`.
    pub fn host_memory(&self, family: Option<&str>) -> u64 {
        if family.is_some_and(|family| family != "nvme") || self.export.kind.is_card() {
            return 0;
        }
        u64::from(self.hmb_mib.unwrap_or(USUAL_HMB_MIB)) << 20
    }

    /// Its driver's part of the processors' time. A card's has the largest: packets that it does
    /// not move wait where no queueing discipline sees them.
    pub fn cpu_weight(&self) -> u32 {
        let usual = if self.export.kind.is_card() { 10_000 } else { CPU_WEIGHT };
        self.limits.cpu_weight.unwrap_or(usual)
    }

    /// What a driver of Linux cannot be told, and who else can be.
    fn check_hosted(&self) -> Result<(), String> {
        let Some(driver) = self.hosted() else { return Ok(()) };
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        range(
            "driver",
            !driver.is_empty() && driver.bytes().all(known),
            "dde:NAME: ring3 dde list has them",
        )?;
        range(
            "interrupts",
            self.interrupts == "auto",
            "auto with driver = \"dde:...\": a driver of Linux chooses itself among what the \
            device has",
        )?;
        range(
            "throttle",
            self.throttle.is_none(),
            "left out with driver = \"dde:...\": a driver of Linux chooses itself how often its \
            card interrupts",
        )?;
        range(
            "quirks",
            self.quirks.is_empty(),
            "left out with driver = \"dde:...\": a driver of Linux has a table of its own",
        )?;
        range(
            "hmb_mib and power_latency_ms",
            self.hmb_mib.is_none() && self.power_latency_ms.is_none(),
            "left out with driver = \"dde:...\": they are for ring3's own driver of NVMe",
        )?;
        range(
            "export.kind",
            matches!(self.export.kind, Kind::Tap | Kind::Ublk),
            "\"tap\" or \"ublk\" with driver = \"dde:...\": a driver of Linux makes an interface \
            of its card, or a block device of its disk",
        )?;
        range(
            "export.depth",
            self.export.depth <= HOSTED_DEPTH,
            "128 at most with driver = \"dde:...\": for more requests a driver of Linux has no \
            memory",
        )?;
        range(
            "export.share",
            self.export.share.is_none(),
            "left out with driver = \"dde:...\": a driver of Linux takes memory of its own",
        )?;
        range(
            "part",
            self.part.is_none(),
            "left out with driver = \"dde:...\": of its disks, a driver of Linux serves the first",
        )?;
        range(
            "restart.adopt",
            !self.restart.adopt,
            "false with driver = \"dde:...\": a driver of Linux starts its device",
        )
    }

    fn check(&self) -> Result<(), String> {
        range("its name", is_name(&self.name), NAME)?;
        self.check_export()?;
        self.check_hosted()?;
        self.restart.check()?;
        self.limits.check()?;
        ring3_manifest::check_quirks(self.driver.as_deref(), &self.quirks)
            .map_err(|why| format!("quirks: {why}"))?;
        range(
            "throttle",
            self.throttle.is_none() || self.export.kind.is_card(),
            "left out with a disk: it is a network card's (export.kind = \"tap\")",
        )?;
        let is_nvme = self.driver.as_deref().is_none_or(|driver| driver == "nvme")
            && !self.export.kind.is_card();
        range(
            "hmb_mib and power_latency_ms",
            is_nvme || self.hmb_mib.is_none() && self.power_latency_ms.is_none(),
            "left out with other drivers than nvme",
        )?;
        range("hmb_mib", self.hmb_mib.is_none_or(|mib| mib <= MOST_HMB_MIB), "0 to 1024")?;
        range(
            "power_latency_ms",
            self.power_latency_ms.is_none_or(|ms| ms <= MOST_POWER_LATENCY_MS),
            "0 to 60000",
        )?;
        let interrupts = ["auto", "msix", "msi", "intx", "poll"];
        range(
            "interrupts",
            interrupts.contains(&&*self.interrupts),
            "auto, msix, msi, intx or poll",
        )?;
        match &self.r#match {
            Match::Address(address) => {
                address.parse::<Address>().map(drop).map_err(|error| error.to_string())
            }
            Match::Device(uri) => uri.parse::<Uri>().map(drop).map_err(|error| error.to_string()),
            Match::Class(class) => class_code(class).map(drop).ok_or_else(|| {
                format!(
                    "match.class = {class:?}: write nvme, ahci, ide, ethernet, or a class code \
                     such as 0x010802"
                )
            }),
            Match::Serial(serial) => {
                range("match.serial", !serial.trim().is_empty(), "the serial number of a disk")
            }
        }
    }
}

/// Whether `what` is as it must be.
fn range(what: &str, fits: bool, wanted: &str) -> Result<(), String> {
    if fits { Ok(()) } else { Err(format!("{what} must be {wanted}")) }
}

const NAME: &str = "1 to 64 letters, digits, `-`, `_` or `.`, and not begin with a dot";

fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(known)
}

/// A class code with the bits of it that count.
pub(crate) fn class_code(word: &str) -> Option<(u32, u32)> {
    match word {
        "nvme" => Some((0x01_08_02, 0xff_ff_ff)),
        "ahci" => Some((0x01_06_01, 0xff_ff_ff)),
        // The interface says in which modes its channels are.
        "ide" => Some((0x01_01_00, 0xff_ff_00)),
        "ethernet" => Some((0x02_00_00, 0xff_ff_00)),
        code => u32::from_str_radix(code.strip_prefix("0x")?, 16)
            .ok()
            .filter(|&code| code <= 0xff_ff_ff)
            .map(|code| (code, 0xff_ff_ff)),
    }
}
