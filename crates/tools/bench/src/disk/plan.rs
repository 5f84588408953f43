//! What is measured, and what is told while it is.

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{Leslie, Placement, Timeline, Work, timeline, work};
use crate::report::{Lab, Measurement};
use crate::workload::Workload;

/// One instruction is 2^3 ns for a disk that takes real time: 125 million a second.
const PACED_SHIFT: u32 = 3;

/// The disk's controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Controller {
    /// NVMe, by MSI-X.
    Nvme,
    /// AHCI, by MSI.
    Ahci,
    /// PCI IDE (PIIX) in compatibility mode; ring3 polls it.
    Ide,
}

impl Controller {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What limits the lab's disk, as heads and platters limit a real one that reads ahead: both from
/// the start of one command to that of the next, so that what the processor does meanwhile costs no
/// throughput as long as it is done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Commands per second.
    pub commands: u64,
    /// Bytes per second.
    pub bytes: u64,
}

/// What is measured. Two runs with the same plan may be put together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What is done with each placement in its turn.
    pub study: Study,
    /// Rounds, in each of which every placement has its turn.
    pub rounds: u32,
    /// The placements in the order of their turns.
    pub placements: Vec<Placement>,
    /// Whether the clock counts instructions.
    pub instructions: bool,
    /// The guest's kernel, by version prefix; empty on this machine.
    pub kernel: String,
    /// Whether the IOMMU stands between the kernel's driver and memory, too, as it does for the
    /// other disk.
    pub translated: bool,
    /// The disk's controller.
    pub controller: Controller,
    /// What limits the lab's disk; without it, there is nothing behind the controller, and it
    /// answers at once.
    pub pace: Option<Pace>,
}

/// What is done with a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Study {
    /// Loads of all kinds, each for a time.
    Loads {
        /// Milliseconds of one measurement's throughput pass.
        millis: u64,
        /// Nothing but throughput and what it costs: no latency, and nothing of the driver alone.
        brief: bool,
        /// The loads, by name.
        workloads: Vec<String>,
    },
    /// The papers' figure: a stretch of the disk, read in pieces of each size.
    Leslie(Leslie),
    /// Where one request's time goes.
    Timeline(Timeline),
    /// The distribution of work.
    Work(Work),
}

impl Plan {
    /// The loads. Names that make no sense were refused when the plan was made, and are left out
    /// here.
    pub fn loads(&self) -> Vec<Workload> {
        match &self.study {
            Study::Loads { workloads, .. } => {
                workloads.iter().filter_map(|name| name.parse().ok()).collect()
            }
            Study::Timeline(_) => {
                timeline::LOADS.iter().filter_map(|name| name.parse().ok()).collect()
            }
            Study::Work(_) => work::LOADS.iter().filter_map(|name| name.parse().ok()).collect(),
            Study::Leslie(leslie) => {
                leslie.sectors.iter().map(|&sectors| Workload::reading(sectors)).collect()
            }
        }
    }

    /// Measurements of all rounds together.
    pub fn cells(&self) -> u64 {
        u64::from(self.rounds) * self.placements.len() as u64 * self.loads().len() as u64
    }

    /// Milliseconds, by the measured machine's clock, that a load should take in one placement.
    pub fn millis(&self, load: Workload) -> u64 {
        match &self.study {
            Study::Loads { millis, brief: true, .. } => *millis,
            Study::Loads { millis, .. } => millis + millis / 3,
            Study::Leslie(leslie) => leslie.millis(load, self.pace),
            Study::Timeline(_) => 2000,
            Study::Work(work) => work.millis + work.millis / 10,
        }
    }

    /// The same for all rounds and placements together.
    pub fn total_millis(&self) -> u64 {
        let round: u64 = self.loads().into_iter().map(|load| self.millis(load)).sum();
        round * u64::from(self.rounds) * self.placements.len() as u64
    }

    /// Whether nothing is measured but throughput and what it costs.
    pub fn is_brief(&self) -> bool {
        matches!(self.study, Study::Loads { brief: true, .. })
    }

    /// Whether the instruction clock follows the host's while the guest sleeps: for a disk that
    /// takes real time, where idle time is measured, and where nothing is measured that sleeps. A
    /// guest that spins instead takes its host ten seconds for one.
    pub fn sleeps(&self) -> bool {
        // A processor that spins instead of sleeping is not woken: what looking for the next
        // request spares would not be seen.
        let wakes = self.placements.iter().any(|placement| placement.takes_a_processor());
        self.instructions
            && (self.pace.is_some()
                || self.is_brief()
                || wakes
                || matches!(self.study, Study::Work(_)))
    }

    /// Nanoseconds of an instruction by the instruction clock. Utilisation of a disk that takes
    /// real time needs a processor about as fast as the host emulates it, so that the two clocks
    /// keep together; elsewhere, the unit is all that counts.
    pub fn instruction_ns(&self) -> u32 {
        match (self.instructions, self.pace, &self.study) {
            (false, ..) => 0,
            (true, Some(_), Study::Leslie(_)) | (true, _, Study::Work(_)) => 1 << PACED_SHIFT,
            (true, ..) => 1,
        }
    }

    /// The disk in words.
    pub fn disk(&self) -> String {
        match self.pace {
            // This machine's own.
            None if self.kernel.is_empty() => self.controller.name().into(),
            None => format!("{}, nothing behind it", self.controller.name()),
            Some(Pace { commands, bytes }) => {
                let mib = bytes as f64 / f64::from(1 << 20);
                format!("{}, {commands} commands/s and {mib} MiB/s", self.controller.name())
            }
        }
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
    /// Whoever emulates the device may count what is done to it from here on, or up to here; for
    /// what is measured next.
    Window {
        /// Requests since it was opened; `None` when it opens.
        requests: Option<u64>,
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
    fn a_brief_plan_measures_nothing_that_sleeps_and_its_guest_need_not_spin() {
        let of = |brief| Plan {
            study: Study::Loads { millis: 300, brief, workloads: vec!["randread-4k-qd1".into()] },
            rounds: 1,
            placements: vec![Placement::Process],
            instructions: true,
            kernel: String::new(),
            translated: false,
            controller: Controller::Nvme,
            pace: None,
        };
        assert!(of(true).sleeps() && !of(false).sleeps());
        assert!(Plan { placements: vec![Placement::ExportPolled], ..of(false) }.sleeps());
        assert_eq!((of(true).total_millis(), of(false).total_millis()), (300, 400));
        assert_eq!((of(true).instruction_ns(), of(false).instruction_ns()), (1, 1));
    }

    #[test]
    fn an_event_is_one_line_and_is_read_back() {
        let event = Event::Measured(
            Measurement::new(1, "randread-4k-qd1", Placement::UblkNull).with("iops", 1.5),
        );
        let line = serde_json::to_string(&event).unwrap();
        assert!(!line.contains('\n') && line.contains("ublk-null"));
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
