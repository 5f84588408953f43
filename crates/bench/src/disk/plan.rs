//! What is measured, and what is told while it is.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::report::{Lab, Measurement};
use crate::workload::Workload;

/// Where the driver is, and who makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The kernel's driver, our generator over io_uring.
    Kernel,
    /// The kernel's driver under fio.
    KernelFio,
    /// ring3's driver in the process of our generator.
    Process,
    /// ring3's driver in a process of its own, exported over ublk; our generator over io_uring.
    Export,
    /// The same under fio.
    ExportFio,
    /// ublk with nothing behind it: the floor that ublk itself sets.
    UblkNull,
}

impl Placement {
    /// All of them, in the order of their turns.
    pub const ALL: [Self; 6] = [Self::Kernel, Self::KernelFio, Self::Process, Self::Export, Self::ExportFio, Self::UblkNull];

    /// Whether fio makes the load.
    pub fn is_fio(self) -> bool {
        matches!(self, Self::KernelFio | Self::ExportFio)
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|placement| placement.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no placement: {}", Self::ALL.map(|placement| placement.to_string()).join(", ")))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::KernelFio => "kernel-fio",
            Self::Process => "process",
            Self::Export => "export",
            Self::ExportFio => "export-fio",
            Self::UblkNull => "ublk-null",
        })
    }
}

/// What is measured. Two runs with the same plan may be put together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Rounds, in each of which every placement has its turn.
    pub rounds: u32,
    /// Milliseconds of one measurement's throughput pass.
    pub millis: u64,
    /// The loads, by name.
    pub workloads: Vec<String>,
    /// The placements in the order of their turns.
    pub placements: Vec<Placement>,
    /// Whether the clock counts instructions.
    pub instructions: bool,
    /// The guest's kernel, by version prefix; empty on this machine.
    pub kernel: String,
    /// Whether the IOMMU stands between the kernel's driver and memory, too, as it does for the other disk.
    pub translated: bool,
}

impl Plan {
    /// The loads. Names that make no sense were refused when the plan was made, and are left out here.
    pub fn loads(&self) -> Vec<Workload> {
        self.workloads.iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// Length of one throughput pass.
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Measurements of all rounds together.
    pub fn cells(&self) -> u64 {
        u64::from(self.rounds) * self.placements.len() as u64 * self.workloads.len() as u64
    }
}

/// A step of a campaign, one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// It begins, on this machine.
    Begin(Lab),
    /// A cell begins.
    Cell {
        /// Its round.
        round: u32,
        /// Its load.
        workload: String,
        /// Its placement.
        placement: Placement,
    },
    /// Something was measured.
    Measured(Measurement),
    /// A round is complete.
    Round {
        /// Which.
        round: u32,
    },
}

/// Whoever wants to hear the events.
pub type Progress<'a> = dyn FnMut(&Event) + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_and_is_read_back() {
        let event = Event::Measured(Measurement::new(1, "randread-4k-qd1", Placement::UblkNull).with("iops", 1.5));
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n') && line.contains("ublk-null"));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
