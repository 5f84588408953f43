//! What stands between a user and a PCI function, with the command that mends it and the one that undoes the mending.
//!
//! `ring3 doctor` finds these beforehand; opening a device finds the same ones when it fails. `docs/errors.md` explains each.

use std::fmt;

use serde::Serialize;

use crate::{Address, Holder, Use};

/// Why a function cannot be claimed as things are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// No such function.
    NoFunction,
    /// It forwards to another bus.
    Bridge,
    /// No IOMMU confines its transfers.
    NoIommu,
    /// A kernel module that is needed is not loaded, and could not be.
    NoModule {
        /// The module.
        module: String,
        /// Why it could not be loaded, where that was tried.
        reason: Option<String>,
    },
    /// Another driver has it, or none.
    NotBound {
        /// The one that has it.
        driver: Option<String>,
    },
    /// File systems or interfaces on it are in use.
    InUse {
        /// What and where.
        uses: Vec<Use>,
    },
    /// Other members of its group have drivers of the kernel.
    GroupNotViable {
        /// The IOMMU group.
        group: u32,
        /// These members, with their drivers.
        blockers: Vec<(Address, String)>,
    },
    /// A file may not be opened or written by this user.
    NoPermission {
        /// The file.
        path: String,
    },
    /// Another process has its group.
    Busy {
        /// The group's file.
        path: String,
        /// The processes, where this user may see them.
        holders: Vec<Holder>,
    },
    /// The arena does not fit into what the user may lock in memory.
    Memlock {
        /// Bytes that are to be locked.
        needed: u64,
        /// Bytes that may be.
        limit: u64,
    },
    /// The IOMMU does not check interrupts, so that a device could forge them.
    NoInterruptRemapping,
}

/// An obstacle in the way to one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// The function.
    pub address: Address,
    /// What stands in the way.
    pub obstacle: Obstacle,
}

impl Obstacle {
    /// This obstacle in the way to `address`.
    pub fn at(self, address: Address) -> Blocked {
        Blocked { address, obstacle: self }
    }
}

impl Blocked {
    /// What is wrong, without what to do.
    pub fn problem(&self) -> String {
        let address = self.address;
        match &self.obstacle {
            Obstacle::NoFunction => format!("there is no PCI function {address}"),
            Obstacle::Bridge => {
                format!("{address} is a bridge, which the kernel needs to reach other functions; it cannot be claimed")
            }
            Obstacle::NoIommu => format!("{address} is not behind an active IOMMU, so its transfers could not be confined"),
            Obstacle::NoModule { module, reason: None } => format!("{address}: the kernel module {module} is not loaded"),
            Obstacle::NoModule { module, reason: Some(reason) } => {
                format!("{address}: the kernel module {module} is not loaded, and loading it failed: {reason}")
            }
            Obstacle::NotBound { driver: Some(driver) } => {
                format!("{address} belongs to the kernel's driver {driver}, not to vfio-pci")
            }
            Obstacle::NotBound { driver: None } => format!("{address} is not bound to vfio-pci"),
            Obstacle::InUse { uses } => format!("{address} is in use: {}", list(uses)),
            Obstacle::GroupNotViable { group, blockers } => {
                let blockers = blockers.iter().map(|(address, driver)| format!("{address} has the driver {driver}"));
                format!("{address}: its IOMMU group {group} is not viable: {}", list(blockers))
            }
            Obstacle::NoPermission { path } => format!("{address}: no permission for {path}"),
            Obstacle::Busy { path, holders } if holders.is_empty() => {
                format!("{address}: another process has {path} open (root can see which: sudo ring3 doctor {address})")
            }
            Obstacle::Busy { path, holders } => format!("{address}: {path} is held by {}", list(holders)),
            Obstacle::Memlock { needed, limit } => {
                format!(
                    "{address}: {} KiB of DMA memory are to be locked, but this user may lock {} KiB",
                    needed >> 10,
                    limit >> 10
                )
            }
            Obstacle::NoInterruptRemapping => {
                format!("{address}: the IOMMU does not remap interrupts, so the kernel refuses to hand devices out")
            }
        }
    }

    /// The commands, or the deeds, that mend it; none if nothing does.
    pub fn mend(&self) -> Vec<String> {
        let address = self.address;
        match &self.obstacle {
            Obstacle::NoFunction => vec!["ring3 devices".into()],
            Obstacle::Bridge => vec![],
            Obstacle::NoIommu => vec![
                "enable the IOMMU in the firmware (VT-d, AMD-Vi or SMMU)".into(),
                format!(
                    "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{IOMMU_ON} /' /etc/default/grub && sudo update-grub && sudo reboot"
                ),
            ],
            Obstacle::NoModule { module, .. } => vec![format!("sudo modprobe {module}")],
            Obstacle::NotBound { .. } => vec![format!("sudo ring3 bind {address}")],
            Obstacle::InUse { uses } => uses.iter().map(Use::end).collect(),
            Obstacle::GroupNotViable { blockers, .. } => {
                blockers.iter().map(|(address, _)| format!("sudo ring3 bind {address}")).collect()
            }
            Obstacle::NoPermission { path } if !path.starts_with("/dev") => vec!["run it as root (sudo)".into()],
            Obstacle::NoPermission { path } => vec![format!("sudo chown \"$(id -u)\" {path}")],
            Obstacle::Busy { holders, .. } => holders.iter().map(|holder| format!("kill {}", holder.pid)).collect(),
            Obstacle::Memlock { needed, .. } => {
                vec![
                    format!("sudo prlimit --memlock={needed} --pid $$"),
                    format!("or name a smaller arena: vfio:{address},arena=4M"),
                ]
            }
            Obstacle::NoInterruptRemapping => vec![
                "enable interrupt remapping (x2APIC) in the firmware".into(),
                format!("or, if every device on this machine is trusted: echo 1 | sudo tee {UNSAFE_INTERRUPTS}"),
            ],
        }
    }

    /// The commands that take [`mend`](Self::mend) back.
    pub fn undo(&self) -> Vec<String> {
        let address = self.address;
        match &self.obstacle {
            Obstacle::NoFunction | Obstacle::Bridge | Obstacle::Busy { .. } => vec![],
            Obstacle::NoIommu => {
                vec![format!("sudo sed -i 's/{IOMMU_ON} //' /etc/default/grub && sudo update-grub && sudo reboot")]
            }
            Obstacle::NoModule { module, .. } => vec![format!("sudo modprobe -r {module}")],
            Obstacle::NotBound { .. } => vec![format!("sudo ring3 unbind {address}")],
            Obstacle::InUse { uses } => uses.iter().map(Use::resume).collect(),
            Obstacle::GroupNotViable { blockers, .. } => {
                blockers.iter().map(|(address, _)| format!("sudo ring3 unbind {address}")).collect()
            }
            Obstacle::NoPermission { path } if !path.starts_with("/dev") => vec![],
            Obstacle::NoPermission { path } => vec![format!("sudo chown root {path}")],
            Obstacle::Memlock { limit, .. } => vec![format!("sudo prlimit --memlock={limit} --pid $$")],
            Obstacle::NoInterruptRemapping => vec![format!("echo 0 | sudo tee {UNSAFE_INTERRUPTS}")],
        }
    }
}

/// What switches the IOMMU on where the kernel does not by itself; the other vendors' kernels ignore it.
const IOMMU_ON: &str = "intel_iommu=on";
const UNSAFE_INTERRUPTS: &str = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.problem())?;
        match self.mend().as_slice() {
            [] => Ok(()),
            mend => write!(f, "; to mend it: {}", mend.join("; ")),
        }
    }
}

impl std::error::Error for Blocked {}
