//! Where a driver can be, and who makes the load.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Where the driver is, and who makes the load. One name means the same in every study.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Placement {
    /// The kernel's driver as it comes, our generator over io_uring.
    Kernel,
    /// The same under fio.
    KernelFio,
    /// The kernel's driver, its disk without a scheduler; our generator over io_uring.
    KernelNone,
    /// The same, with its data in huge pages.
    KernelNoneHuge,
    /// The same as `KernelNone`, and without the multipath head that the kernel puts before each
    /// NVMe disk.
    KernelNomultipath,
    /// The same under fio.
    KernelNomultipathFio,
    /// The kernel's driver past the block layer: NVMe commands of our generator over io_uring.
    KernelPassthrough,
    /// The same under fio.
    KernelPassthroughFio,
    /// The kernel's driver without a scheduler and without heads, polled: its queue has no
    /// interrupt.
    KernelIopoll,
    /// The same under fio.
    KernelIopollFio,
    /// The same past the block layer: NVMe commands of our generator over io_uring.
    KernelPassthroughIopoll,
    /// ring3's driver in the process of our generator, which sleeps until the interrupt.
    Process,
    /// The same, never sleeping.
    ProcessPolled,
    /// The same, which polls for a while before it sleeps, as long as that pays.
    ProcessAdaptive,
    /// The same, with a thread of its own for the interrupt.
    ProcessThreads,
    /// ring3's driver in a process of its own, exported over ublk; our generator over io_uring.
    Export,
    /// The same under fio.
    ExportFio,
    /// The same as `Export`, with the data of our generator in memory that it shares with the
    /// driver's process: nobody copies.
    ExportShared,
    /// The same as `Export`, with commands of ublk for many requests at once.
    ExportBatch,
    /// Both.
    ExportSharedBatch,
    /// The same as `Export`, where the driver's process looks for the next request before it
    /// sleeps.
    ExportPolled,
    /// The same as `Export`, by VDUSE in place of ublk.
    ExportVduse,
    /// Linux's driver, unmodified, in a process of its own; exported over ublk by another one that
    /// uses its disk.
    Hosted,
    /// The same under fio.
    HostedFio,
    /// The same as `Export`, started, confined and watched by the supervisor.
    Supervised,
    /// ublk with nothing behind it: the floor that ublk itself sets.
    UblkNull,
    /// The same, which looks for the next request before it sleeps.
    UblkNullPolled,
    /// The same of VDUSE.
    VduseNull,
    /// QEMU's driver in a process of its own, exported over VDUSE by qemu-storage-daemon; our
    /// generator over io_uring.
    QemuVduse,
    /// QEMU's driver in the process of its own generator, `qemu-img bench`.
    QemuImg,
}

/// Whose driver it is, and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The kernel's.
    Kernel(Tuning),
    /// ring3's, in this process.
    Process,
    /// ring3's, in a process of its own.
    Export,
    /// The same, to whom clients lend their memory.
    Shared,
    /// The same as `Export`, with commands for many requests at once.
    Batch,
    /// Both.
    SharedBatch,
    /// The same as `Export`, which looks for the next request.
    ExportPolled,
    /// The same as `Export`, behind VDUSE.
    Vduse,
    /// Linux's, unmodified, in a process of its own, behind ublk.
    Hosted,
    /// ring3's, held by the supervisor.
    Supervised,
    /// None.
    Null,
    /// None, which looks for the next request.
    NullPolled,
    /// None, behind VDUSE.
    VduseNull,
    /// QEMU's, in qemu-storage-daemon.
    QemuVduse,
    /// QEMU's, in qemu-img.
    QemuImg,
}

/// What is done to the kernel's disk before it is measured. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tuning {
    /// Nothing.
    AsItComes,
    /// It has no scheduler.
    NoScheduler,
    /// Its driver was loaded without multipath heads.
    NoMultipath,
    /// Its driver was loaded with a queue that is polled.
    Polled,
    /// It is reached past the block layer, by interrupt.
    Passthrough,
    /// The same, on a queue that is polled.
    PassthroughPolled,
}

impl Tuning {
    /// Whether it is reached past the block layer.
    pub fn is_past_the_block_layer(self) -> bool {
        matches!(self, Self::Passthrough | Self::PassthroughPolled)
    }

    /// Whether its queue is polled.
    pub fn is_polled(self) -> bool {
        matches!(self, Self::Polled | Self::PassthroughPolled)
    }
}

impl Placement {
    /// All of them, in the order of their turns.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The ones that ordinary loads are measured in: all but those of the papers' figures, those
    /// with memory of their own or that only newer kernels have, the second way of an export, and a
    /// driver of Linux's, which has to be built.
    pub fn loads() -> Vec<Self> {
        let of_figures =
            [Self::ProcessAdaptive, Self::ProcessThreads, Self::ExportPolled, Self::UblkNullPolled];
        let newer =
            [Self::KernelNoneHuge, Self::ExportShared, Self::ExportBatch, Self::ExportSharedBatch];
        let others = [
            Self::ExportVduse,
            Self::VduseNull,
            Self::QemuVduse,
            Self::QemuImg,
            Self::Hosted,
            Self::HostedFio,
        ];
        let usual = |placement: &Self| {
            !of_figures.contains(placement)
                && !newer.contains(placement)
                && !others.contains(placement)
                && !placement.is_iopoll()
        };
        Self::ALL.iter().copied().filter(usual).collect()
    }

    /// The kernel's driver at its best, QEMU's and ring3's in process and exported, with the floors
    /// of either export.
    pub fn rivals() -> Vec<Self> {
        let best = |placement: &Self| match placement.driver() {
            Driver::Kernel(tuning) => tuning >= Tuning::NoMultipath,
            Driver::Process => *placement == Self::Process,
            Driver::Export => *placement == Self::Export,
            Driver::Vduse
            | Driver::Null
            | Driver::VduseNull
            | Driver::QemuVduse
            | Driver::QemuImg => true,
            Driver::Shared
            | Driver::Batch
            | Driver::SharedBatch
            | Driver::Hosted
            | Driver::ExportPolled
            | Driver::NullPolled
            | Driver::Supervised => false,
        };
        Self::ALL.iter().copied().filter(best).collect()
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whose driver it is, and where.
    pub fn driver(self) -> Driver {
        match self {
            Self::Kernel | Self::KernelFio => Driver::Kernel(Tuning::AsItComes),
            Self::KernelNone | Self::KernelNoneHuge => Driver::Kernel(Tuning::NoScheduler),
            Self::KernelNomultipath | Self::KernelNomultipathFio => {
                Driver::Kernel(Tuning::NoMultipath)
            }
            Self::KernelPassthrough | Self::KernelPassthroughFio => {
                Driver::Kernel(Tuning::Passthrough)
            }
            Self::KernelIopoll | Self::KernelIopollFio => Driver::Kernel(Tuning::Polled),
            Self::KernelPassthroughIopoll => Driver::Kernel(Tuning::PassthroughPolled),
            Self::Process | Self::ProcessPolled | Self::ProcessAdaptive | Self::ProcessThreads => {
                Driver::Process
            }
            Self::Export | Self::ExportFio => Driver::Export,
            Self::ExportShared => Driver::Shared,
            Self::ExportBatch => Driver::Batch,
            Self::ExportSharedBatch => Driver::SharedBatch,
            Self::ExportPolled => Driver::ExportPolled,
            Self::ExportVduse => Driver::Vduse,
            Self::Hosted | Self::HostedFio => Driver::Hosted,
            Self::Supervised => Driver::Supervised,
            Self::UblkNull => Driver::Null,
            Self::UblkNullPolled => Driver::NullPolled,
            Self::VduseNull => Driver::VduseNull,
            Self::QemuVduse => Driver::QemuVduse,
            Self::QemuImg => Driver::QemuImg,
        }
    }

    /// Whether fio makes the load.
    pub fn is_fio(self) -> bool {
        self.name().ends_with("-fio")
    }

    /// Whether the kernel polls its device for completions.
    pub fn is_iopoll(self) -> bool {
        matches!(self.driver(), Driver::Kernel(tuning) if tuning.is_polled())
    }

    /// Whether it is QEMU's driver, whose programs must be there.
    pub fn is_qemus(self) -> bool {
        matches!(self.driver(), Driver::QemuVduse | Driver::QemuImg)
    }

    /// Whether the driver's process takes a second processor.
    pub fn takes_a_processor(self) -> bool {
        matches!(self.driver(), Driver::ExportPolled | Driver::NullPolled)
    }

    /// Whether a VDUSE device is made.
    pub fn is_by_vduse(self) -> bool {
        matches!(self.driver(), Driver::Vduse | Driver::VduseNull | Driver::QemuVduse)
    }

    /// Whether there is no device behind it.
    pub fn is_null(self) -> bool {
        matches!(self.driver(), Driver::Null | Driver::NullPolled | Driver::VduseNull)
    }

    /// Whether the driver goes on running from one to the other.
    pub(super) fn shares_driver_with(self, other: Self) -> bool {
        self == other || (self.driver() == other.driver() && self.driver() != Driver::Process)
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|placement| placement.name() == text);
        let names = || Self::ALL.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("{text:?} is no placement: {}", names()))
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_has_one_name_in_reports_and_on_the_command_line() {
        for &placement in Placement::ALL {
            assert_eq!(placement.name().parse(), Ok(placement));
            assert_eq!(
                serde_json::to_string(&placement).unwrap(),
                format!("{:?}", placement.name())
            );
        }
    }

    #[test]
    fn the_rivals_are_the_kernel_at_its_best_and_qemus_driver_beside_ring3s_and_the_usual_loads_have_neither()
     {
        let (rivals, usual) = (Placement::rivals(), Placement::loads());
        let names: Vec<&str> = rivals.iter().map(|placement| placement.name()).collect();
        for name in [
            "kernel-nomultipath",
            "kernel-passthrough",
            "kernel-iopoll",
            "qemu-vduse",
            "qemu-img",
            "export",
            "ublk-null",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        assert!(!names.contains(&"kernel") && !names.contains(&"kernel-none"), "{names:?}");
        assert!(usual.iter().all(|placement| !placement.is_iopoll()
            && !placement.is_qemus()
            && !placement.takes_a_processor()));
    }

    #[test]
    fn fio_takes_its_turn_while_the_driver_of_our_own_generator_runs() {
        assert!(Placement::Export.shares_driver_with(Placement::ExportFio));
        assert!(Placement::Hosted.shares_driver_with(Placement::HostedFio));
        assert!(!Placement::Export.shares_driver_with(Placement::Hosted));
        assert!(!Placement::Kernel.shares_driver_with(Placement::KernelNone));
        assert!(!Placement::Process.shares_driver_with(Placement::ProcessPolled));
    }
}
