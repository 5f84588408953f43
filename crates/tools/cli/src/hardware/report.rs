//! The file that a test writes. docs/hardware.md describes the fields.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the first field says.
pub const FORMAT: &str = "ring3-hardware";
/// The version of the fields: they are only ever added within one.
pub const SCHEMA: u32 = 1;

/// Everything about one device on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub format: String,
    pub schema: u32,
    pub ring3: Version,
    /// By RFC 3339.
    pub date: String,
    /// False while the test runs: the machine, or the test, ended before its end.
    pub finished: bool,
    pub seconds: f64,
    pub options: Options,
    pub machine: Machine,
    pub device: Device,
    /// Names of the quirks that matched.
    pub quirks: Vec<String>,
    pub steps: Vec<Step>,
    /// What `ring3 doctor --json` prints.
    pub doctor: Vec<Value>,
    /// What `ring3 blk check --json` or `ring3 net check --json` prints of each check.
    pub conformance: Vec<Value>,
    pub performance: Vec<Performance>,
    pub kill: Option<Kill>,
    pub reset: Option<Reset>,
    pub verify: Option<Verify>,
    pub health: Option<Health>,
    pub recording: Option<RecordingFile>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
    pub commit: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    pub destroy: bool,
    pub quick: bool,
    pub verify_seconds: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The running kernel's release.
    pub kernel: String,
    pub distribution: String,
    pub architecture: String,
    pub processor: String,
    pub processors: u64,
    pub memory_bytes: u64,
    /// Groups of the IOMMU; 0 without one.
    pub iommu_groups: u64,
    /// Whether the processor says that it is a virtual machine's.
    pub virtual_machine: bool,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Disk,
    Card,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its URI, without paths.
    pub uri: String,
    pub kind: Kind,
    pub vendor: Option<u16>,
    pub device: Option<u16>,
    pub subsystem_vendor: Option<u16>,
    pub subsystem_device: Option<u16>,
    pub class: Option<u32>,
    /// Vendor and device in words.
    pub name: String,
    /// The kernel's driver that had it.
    pub kernel_driver: Option<String>,
    /// Ways in which the kernel can reset it.
    pub reset_methods: Vec<String>,
    /// What `ring3 nvme id`, `ring3 ata id`, `ring3 blk info` or `ring3 net info` prints, without
    /// what is one device's own.
    pub identity: Value,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step: String,
    pub verdict: Verdict,
    /// What was found, or why it was skipped.
    pub detail: String,
    pub seconds: f64,
}

/// One load with one driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    pub driver: Measured,
    pub workload: String,
    pub iops: f64,
    pub mib_s: f64,
    pub latency_us_p50: Option<f64>,
    pub latency_us_p99: Option<f64>,
}

/// Whose figures they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measured {
    KernelBefore,
    Ring3,
    KernelAfter,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kill {
    pub kills: u64,
    pub reads: u64,
    pub writes: u64,
    pub mismatches: u64,
    pub recovery_ms_p50: f64,
    pub recovery_ms_p99: f64,
    pub recovery_ms_max: f64,
    pub function_resets: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reset {
    pub resets: u64,
    /// From the reset to the next read that was done, of each.
    pub recovery_ms: Vec<f64>,
    pub passes: u64,
    pub errors: u64,
    pub mismatches: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verify {
    pub seconds: f64,
    pub passes: u64,
    pub bytes: u64,
    pub errors: u64,
    pub mismatches: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    pub temperatures: Vec<Temperature>,
    /// What `ring3 nvme smart --json` prints, at the end.
    pub smart: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// The step before.
    pub after: String,
    pub celsius: i64,
}

/// The recording beside the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordingFile {
    /// Its name, without folders.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// Whether serial numbers were removed from it.
    pub cleaned: bool,
    /// Whether it has data of the disk.
    pub data: bool,
}
