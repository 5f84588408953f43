//! What stands between a user and a PCI function, with the command that mends it and the one that
//! undoes the mending.
//!
//! `ring3 doctor` finds these beforehand; opening a device finds the same ones when it fails.
//! `docs/errors.md` explains each.

use std::fmt;

use serde::Serialize;

use crate::{Address, Holder, PassthroughDriver, Use};

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
        /// The way on which it is wanted.
        way: PassthroughDriver,
        /// The one that has it.
        driver: Option<String>,
    },
    /// File systems or interfaces on it are in use.
    InUse {
        /// What and where.
        uses: Vec<Use>,
    },
    /// Whether it is in use cannot be told: not everything can be looked at.
    UseUnknown {
        /// What could not be.
        reasons: Vec<String>,
    },
    /// What the kernel says of it could not be read.
    Unreadable {
        /// What, and why not.
        reason: String,
        /// This process may have no more files open.
        too_many_files: bool,
    },
    /// Other members of its group have drivers of the kernel.
    GroupNotViable {
        /// The IOMMU group.
        group: u32,
        /// These members, with their drivers.
        blockers: Vec<(Address, String)>,
    },
    /// Firmware goes on using memory through a function of its group, which the kernel therefore
    /// hands to nobody.
    ReservedMemory {
        /// The IOMMU group.
        group: u32,
        /// First and last address of each such piece.
        ranges: Vec<(u64, u64)>,
    },
    /// It is a virtual function of a function that has the same passthrough driver, whose user the
    /// kernel would have to trust.
    PhysicalFunction {
        /// The function that it is of.
        physical: Address,
    },
    /// The kernel is locked down, as with Secure Boot: nobody reaches devices past it.
    Lockdown {
        /// How far, as the kernel calls it.
        level: String,
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
    /// Nothing would confine its transfers, and the user has not said that this is meant.
    Unprotected {
        /// Whether the machine has an IOMMU that could.
        iommu: bool,
    },
    /// An IOMMU translates its addresses, so that physical ones would fault.
    Translated {
        /// Its IOMMU group.
        group: u32,
        /// The group's kind of translation, as sysfs has it.
        kind: String,
    },
    /// There are not enough huge pages, or not in one piece.
    NoHugePages {
        /// Pages of 2 MiB that must lie in one piece.
        needed: u64,
        /// The most that do.
        found: u64,
        /// They must lie below this address.
        below: u64,
        /// Pages that are reserved in all.
        total: u64,
    },
    /// The kernel hides physical addresses from this user.
    NoPhysicalAddresses,
}

/// An obstacle in the way to one function, or to all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// The function; `None` if it concerns the machine.
    pub address: Option<Address>,
    /// What stands in the way.
    pub obstacle: Obstacle,
}

impl Obstacle {
    /// This obstacle in the way to `address`, or to every function.
    pub fn at(self, address: impl Into<Option<Address>>) -> Blocked {
        Blocked { address: address.into(), obstacle: self }
    }

    /// Its name, the heading under which `docs/errors.md` explains it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoFunction => "no-function",
            Self::Bridge => "bridge",
            Self::NoIommu => "no-iommu",
            Self::NoModule { .. } => "no-module",
            Self::NotBound { .. } => "not-bound",
            Self::InUse { .. } => "in-use",
            Self::UseUnknown { .. } => "use-unknown",
            Self::Unreadable { .. } => "unreadable",
            Self::GroupNotViable { .. } => "group-not-viable",
            Self::ReservedMemory { .. } => "reserved-memory",
            Self::PhysicalFunction { .. } => "physical-function",
            Self::Lockdown { .. } => "lockdown",
            Self::NoPermission { .. } => "no-permission",
            Self::Busy { .. } => "busy",
            Self::Memlock { .. } => "memlock",
            Self::NoInterruptRemapping => "no-interrupt-remapping",
            Self::Unprotected { .. } => "unprotected",
            Self::Translated { .. } => "translated",
            Self::NoHugePages { .. } => "no-huge-pages",
            Self::NoPhysicalAddresses => "no-physical-addresses",
        }
    }
}

/// What switches Intel's IOMMU on where the kernel does not by itself. Debian's and Ubuntu's
/// kernels do (CONFIG_INTEL_IOMMU_DEFAULT_ON, or its form that leaves integrated graphics out),
/// Fedora's and RHEL's do not. AMD's and Arm's are on whenever the firmware has them on.
const IOMMU_ON: &str = "intel_iommu=on";
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
/// iommufd has the same parameter, for functions that are reached by their own node.
const UNSAFE_INTERRUPTS: &str = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";

impl Blocked {
    fn address(&self) -> String {
        self.address.map_or_else(|| "ADDRESS".into(), |address| address.to_string())
    }

    /// What is wrong, without what to do.
    pub fn problem(&self) -> String {
        let problem = self.obstacle.problem(&self.address());
        self.address.map_or_else(|| problem.clone(), |address| format!("{address}: {problem}"))
    }

    /// The commands, or the deeds, that mend it; none if nothing does.
    pub fn remedy(&self) -> Vec<String> {
        let address = self.address();
        match &self.obstacle {
            Obstacle::NoFunction => vec!["name one that ring3 devices lists".into()],
            Obstacle::Bridge => vec![],
            Obstacle::NoIommu => vec![
                "enable the IOMMU in the firmware (VT-d, AMD-Vi, SMMU)".into(),
                format!(
                    "on Fedora and RHEL: sudo grubby --update-kernel=ALL --args={IOMMU_ON} && sudo \
                    reboot"
                ),
                format!(
                    "elsewhere, if /proc/cmdline has intel_iommu=off: {IOMMU_ON} in its place in \
                    the boot loader's settings (GRUB: /etc/default/grub; systemd-boot: \
                    /etc/kernel/cmdline)"
                ),
            ],
            Obstacle::NoModule { module, .. } => vec![format!("sudo modprobe {module}")],
            Obstacle::NotBound { way, .. } => vec![format!("sudo {}", way.bind_command(&address))],
            Obstacle::InUse { uses } => uses.iter().map(Use::end).collect(),
            Obstacle::UseUnknown { .. } => {
                vec!["run it as root (sudo), and not in a container".into()]
            }
            Obstacle::Unreadable { too_many_files: true, .. } => vec!["ulimit -n 4096".into()],
            Obstacle::Unreadable { .. } => vec!["run it as root (sudo)".into()],
            Obstacle::GroupNotViable { blockers, .. } => each(blockers, "bind"),
            Obstacle::ReservedMemory { .. } => vec![
                "switch off in the firmware what shares this memory (remote management, USB \
                 emulation), or use another slot"
                    .into(),
            ],
            Obstacle::PhysicalFunction { physical } => {
                vec![format!("sudo ring3 unbind {physical}")]
            }
            Obstacle::Lockdown { .. } => vec![
                format!("sudo ring3 bind {address} and name it vfio:{address}"),
                "or switch Secure Boot off in the firmware".into(),
            ],
            Obstacle::NoPermission { path } if !path.starts_with("/dev") => {
                vec!["run it as root (sudo)".into()]
            }
            Obstacle::NoPermission { path } => vec![format!("sudo chown \"$(id -u)\" {path}")],
            Obstacle::Busy { holders, .. } => {
                holders.iter().map(|holder| format!("kill {}", holder.pid)).collect()
            }
            Obstacle::Memlock { needed, .. } => vec![
                format!("sudo prlimit --memlock={needed} --pid $$"),
                format!("or name a smaller arena: vfio:{address},arena=4M"),
            ],
            Obstacle::NoInterruptRemapping => vec![
                "enable interrupt remapping (x2APIC) in the firmware".into(),
                format!(
                    "or, if every device of this machine is trusted: echo 1 | sudo tee \
                    {UNSAFE_INTERRUPTS}"
                ),
                "and, where iommufd translates: the same of /sys/module/iommufd".into(),
            ],
            Obstacle::Unprotected { iommu } => {
                let accept = "say --unprotected if that is accepted";
                match iommu {
                    true => vec![
                        format!("sudo ring3 bind {address} and name it vfio:{address}"),
                        format!("or {accept}"),
                    ],
                    false => vec![accept.into()],
                }
            }
            Obstacle::Translated { .. } => {
                vec![format!("sudo ring3 bind {address} and name it vfio:{address}")]
            }
            Obstacle::NoHugePages { needed, total, .. } => {
                // Those that are there already may lie in pieces.
                let wanted = total + needed;
                vec![
                    format!("echo {wanted} | sudo tee {HUGE_PAGES}"),
                    format!(
                        "or, if memory is in pieces already, at boot: hugepages={wanted} on the \
                        kernel's command line"
                    ),
                    format!("or name a smaller arena: uio:{address},arena=2M"),
                ]
            }
            Obstacle::NoPhysicalAddresses => vec!["run it as root (sudo)".into()],
        }
    }

    /// What takes [`remedy`](Self::remedy) back.
    pub fn undo(&self) -> Vec<String> {
        let address = self.address();
        match &self.obstacle {
            Obstacle::NoFunction
            | Obstacle::Bridge
            | Obstacle::Busy { .. }
            | Obstacle::NoPhysicalAddresses => vec![],
            Obstacle::UseUnknown { .. }
            | Obstacle::Unreadable { .. }
            | Obstacle::ReservedMemory { .. } => vec![],
            Obstacle::PhysicalFunction { physical } => vec![format!("sudo ring3 bind {physical}")],
            Obstacle::Lockdown { .. } => {
                vec![format!("sudo {}", PassthroughDriver::Uio.bind_command(&address))]
            }
            Obstacle::NoIommu => {
                vec![format!(
                    "on Fedora and RHEL: sudo grubby --update-kernel=ALL --remove-args={IOMMU_ON} \
                    && sudo reboot"
                )]
            }
            Obstacle::NoModule { module, .. } => vec![format!("sudo modprobe -r {module}")],
            Obstacle::NotBound { .. } => vec![format!("sudo ring3 unbind {address}")],
            Obstacle::InUse { uses } => uses.iter().filter_map(Use::resume).collect(),
            Obstacle::GroupNotViable { blockers, .. } => each(blockers, "unbind"),
            Obstacle::NoPermission { path } if !path.starts_with("/dev") => vec![],
            Obstacle::NoPermission { path } => vec![format!("sudo chown root {path}")],
            Obstacle::Memlock { limit, .. } => {
                vec![format!("sudo prlimit --memlock={limit} --pid $$")]
            }
            Obstacle::NoInterruptRemapping => {
                vec![format!("echo 0 | sudo tee {UNSAFE_INTERRUPTS}")]
            }
            Obstacle::Unprotected { .. } => vec![],
            Obstacle::Translated { .. } => {
                vec![format!("sudo {}", PassthroughDriver::Uio.bind_command(&address))]
            }
            Obstacle::NoHugePages { total, .. } => {
                vec![format!("echo {total} | sudo tee {HUGE_PAGES}")]
            }
        }
    }
}

impl Obstacle {
    /// What is wrong with the function at `address`, which stands before these words.
    fn problem(&self, address: &str) -> String {
        match self {
            Self::NoFunction => "there is no such PCI function".into(),
            Self::Bridge => "it is a bridge, which the kernel needs to reach other functions; \
                             it cannot be claimed"
                .into(),
            Self::NoIommu => "there is no active IOMMU that would confine its transfers".into(),
            Self::NoModule { module, reason: None } => {
                format!("the kernel module {module} is not loaded")
            }
            Self::NoModule { module, reason: Some(reason) } => {
                format!("the kernel module {module} is not loaded, and loading it failed: {reason}")
            }
            Self::NotBound { way, driver: Some(driver) } => {
                format!("it belongs to the kernel's driver {driver}, not to {way}")
            }
            Self::NotBound { way, driver: None } => format!("it is not bound to {way}"),
            Self::InUse { uses } => format!("it is in use: {}", list(uses)),
            Self::UseUnknown { reasons } => {
                format!("whether it is in use cannot be told: {}", list(reasons))
            }
            Self::Unreadable { reason, .. } => {
                format!("what the kernel says of it cannot be read: {reason}")
            }
            Self::GroupNotViable { group, blockers } => {
                let blockers = blockers
                    .iter()
                    .map(|(address, driver)| format!("{address} has the driver {driver}"));
                format!("its IOMMU group {group} is not viable: {}", list(blockers))
            }
            Self::ReservedMemory { group, ranges } => {
                let ranges = ranges.iter().map(|(first, last)| format!("{first:#x}-{last:#x}"));
                format!(
                    "firmware uses memory through its IOMMU group {group} ({}), so that the kernel \
                     hands it to no process",
                    list(ranges)
                )
            }
            Self::PhysicalFunction { physical } => format!(
                "it is a virtual function of {physical}, which has the driver vfio-pci, too: \
                 the kernel asks for a token then, which ring3 does not have"
            ),
            Self::Lockdown { level } => format!(
                "the kernel is locked down ({level}), as with Secure Boot: no process reaches a \
                 device without an IOMMU"
            ),
            Self::NoPermission { path } => format!("no permission for {path}"),
            Self::Busy { path, holders } if holders.is_empty() => {
                format!(
                    "another process has {path} open (root can see which: sudo \
                     ring3 doctor {address})"
                )
            }
            Self::Busy { path, holders } => format!("{path} is held by {}", list(holders)),
            Self::Memlock { needed, limit } => {
                format!(
                    "{} KiB of DMA memory are to be locked, but this user may lock {} KiB",
                    needed >> 10,
                    limit >> 10
                )
            }
            Self::NoInterruptRemapping => {
                "the IOMMU does not remap interrupts, so the kernel hands no device out".into()
            }
            Self::Unprotected { .. } => {
                "nothing confines its transfers on this way: a bug in the driver can overwrite any \
                 memory of the machine"
                    .into()
            }
            Self::Translated { group, kind } => {
                format!(
                    "an IOMMU translates its addresses (group {group}, {kind}), so that physical \
                     ones would fault"
                )
            }
            Self::NoHugePages { needed, found, below: u64::MAX, total } => {
                format!(
                    "{needed} huge pages of 2 MiB are needed in one piece, and there are {found} \
                     (of {total} reserved)"
                )
            }
            Self::NoHugePages { needed, found, below, total } => format!(
                "{needed} huge pages of 2 MiB are needed in one piece below {below:#x}, and there \
                are {found} (of {total} reserved)"
            ),
            Self::NoPhysicalAddresses => {
                "the kernel hides physical addresses from this user (pagemap needs the capability \
                 CAP_SYS_ADMIN)"
                    .into()
            }
        }
    }
}

fn each(members: &[(Address, String)], verb: &str) -> Vec<String> {
    members.iter().map(|(address, _)| format!("sudo ring3 {verb} {address}")).collect()
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.problem())?;
        match self.remedy().as_slice() {
            [] => Ok(()),
            mend => write!(f, "; to mend it: {}", mend.join("; ")),
        }
    }
}

impl std::error::Error for Blocked {}
