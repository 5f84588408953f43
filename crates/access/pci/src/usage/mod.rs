//! What the system does with a function: file systems, swap, volumes above its disks, processes
//! that have its devices open, interfaces that are up.
//!
//! # What is sure
//! Whoever uses a disk as a whole (a file system, swap, a volume, a pool) has claimed it, and the
//! kernel lets nobody else claim it then, nor a part of it. So a disk that this process can claim
//! has no such user, in whatever mount namespace, and none comes while it is claimed; see
//! [`Usage::seize`]. What is read from `/proc` and `/sys` gives the user a name, and finds those
//! who do not claim: processes that read or write the device itself, and loop devices.
//!
//! # What is not seen
//! A process that has mapped a device, or registered it with io_uring, and closed its descriptor; a
//! descriptor that is under way in a socket.

mod disks;
mod mounts;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use ring3_spec::text::Printable;
use serde::Serialize;

use crate::process::{has_ended, open_nodes, pids, sees_all};
use crate::{Address, Holder, Host, Obstacle};
use disks::{Device, Devices};
use mounts::Mounts;

/// One use that taking the function away would break. Devices are named without `/dev/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// A file system is mounted.
    Mounted {
        /// The block device.
        disk: String,
        /// Where.
        at: String,
        /// A process that sees it there, if this one does not.
        inside: Option<Holder>,
    },
    /// Memory is paged out to it.
    Swap {
        /// The block device.
        disk: String,
    },
    /// Another block device (device mapper, RAID, loop) is made of it.
    Held {
        /// The block device.
        disk: String,
        /// The one above.
        by: String,
    },
    /// A process has it open.
    Open {
        /// The block or character device.
        device: String,
        /// The process.
        by: Holder,
    },
    /// The kernel says that it is claimed, and nobody can be named.
    Claimed {
        /// The block device.
        disk: String,
    },
    /// A network interface is up.
    Up {
        /// Its name.
        interface: String,
    },
}

/// Whether a running system cannot do without what is mounted there. [FHS 3.0, hier(7)]
fn is_system(at: &str) -> bool {
    matches!(
        at,
        "/" | "/boot"
            | "/boot/efi"
            | "/efi"
            | "/etc"
            | "/nix"
            | "/nix/store"
            | "/sysroot"
            | "/usr"
            | "/var"
    )
}

/// Text of others within a message.
fn shown(text: &str) -> Printable<'_> {
    Printable(text.as_bytes())
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { disk, at, inside: None } => {
                write!(f, "/dev/{disk} is mounted at {}", shown(at))
            }
            Self::Mounted { disk, at, inside: Some(process) } => {
                write!(
                    f,
                    "/dev/{disk} is mounted at {} in the mount namespace of {process}",
                    shown(at)
                )
            }
            Self::Swap { disk } => write!(f, "/dev/{disk} is swap space"),
            Self::Held { disk, by } => write!(f, "/dev/{by} is made of /dev/{disk}"),
            Self::Open { device, by } => write!(f, "/dev/{device} is open in {by}"),
            Self::Claimed { disk } => write!(
                f,
                "/dev/{disk} is claimed by somebody in the kernel (a pool, a journal, or a mount \
                that no process sees any more)"
            ),
            Self::Up { interface } => write!(f, "the interface {} is up", shown(interface)),
        }
    }
}

impl Use {
    /// What ends it.
    pub fn end(&self) -> String {
        match self {
            Self::Mounted { at, .. } if is_system(at) => {
                "leave this function to the kernel: the running system is on it; \
                 ring3 wants a spare one"
                    .into()
            }
            Self::Mounted { at, inside: None, .. } => format!("sudo umount {}", shown(at)),
            Self::Mounted { at, inside: Some(process), .. } => {
                format!("sudo nsenter --target {} --mount umount {}", process.pid, shown(at))
            }
            Self::Swap { disk } => format!("sudo swapoff /dev/{disk}"),
            Self::Held { by, .. } if by.starts_with("loop") => {
                format!("sudo losetup --detach /dev/{by}")
            }
            Self::Held { by, .. } => format!("take /dev/{by} apart (dmsetup, mdadm, lvm)"),
            Self::Open { by, .. } => format!("kill {}", by.pid),
            Self::Claimed { disk } => {
                format!(
                    "find who it is (lsblk --fs /dev/{disk}; zpool status; \
                     findmnt --all) and let it go"
                )
            }
            Self::Up { interface } => format!("sudo ip link set {} down", shown(interface)),
        }
    }

    /// What brings it back; `None` where nothing ends it.
    pub fn resume(&self) -> Option<String> {
        Some(match self {
            Self::Mounted { at, .. } if is_system(at) => return None,
            Self::Mounted { disk, at, .. } => format!("sudo mount /dev/{disk} {}", shown(at)),
            Self::Swap { disk } => format!("sudo swapon /dev/{disk}"),
            Self::Held { by, .. } => format!("put /dev/{by} together again"),
            Self::Open { by, .. } => format!("start {} again", shown(&by.name)),
            Self::Claimed { disk } => format!("give /dev/{disk} back to who had it"),
            Self::Up { interface } => format!("sudo ip link set {} up", shown(interface)),
        })
    }
}

/// The whole disks that the kernel has made of the function at `address`, as they are called below
/// `/dev`.
pub fn disks(host: &Host, address: Address) -> Vec<String> {
    let devices = Devices::below(host, address, &mut Vec::new());
    let whole = devices.disks().filter(|device| !device.is_partition);
    let mut names: Vec<_> = whole.map(|disk| disk.name.clone()).collect();
    names.sort();
    names
}

/// What uses a function, as far as it can be seen, and claims that keep others from beginning to.
#[derive(Debug, Default)]
pub struct Usage {
    /// The uses, sorted.
    pub uses: Vec<Use>,
    /// Why there may be more.
    pub unseen: Vec<String>,
    claims: Vec<OwnedFd>,
}

impl Usage {
    /// Probes the function at `address`. Its disks are claimed during the probe only.
    pub fn probe(host: &Host, address: Address) -> Self {
        Self { claims: Vec::new(), ..Self::seize(host, address) }
    }

    /// Probes the function at `address`, and holds a claim on those of its disks that were free,
    /// until it is dropped.
    pub fn seize(host: &Host, address: Address) -> Self {
        let (mut usage, mut found) = (Self::default(), BTreeSet::new());
        let devices = Devices::below(host, address, &mut usage.unseen);
        // First the claims: what is not found after them does not begin behind our back.
        let claimed = usage.claim_all(host, &devices);
        if !devices.0.is_empty() {
            let others = usage.other_processes(host);
            let mounts = Mounts::read(host, &others, &mut usage.unseen);
            disks::add_uses(host, &mounts, &devices, &mut found);
            usage.add_openers(host, &others, &devices, &mut found);
        }
        for (whole, disk) in claimed {
            if !found.iter().any(|found| found.explains_claim(&whole, &devices)) {
                found.insert(Use::Claimed { disk });
            }
        }
        found.extend(disks::interfaces_up(host, address));
        usage.uses = found.into_iter().collect();
        usage
    }

    /// The obstacle that this is, if it is one.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match (self.uses.is_empty(), self.unseen.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Obstacle::UseUnknown { reasons: self.unseen.clone() }),
            (false, _) => Some(Obstacle::InUse { uses: self.uses.clone() }),
        }
    }

    /// Claims each disk. Returns those that others have: the disk, and what of it they have as far
    /// as that can be told.
    fn claim_all(&mut self, host: &Host, devices: &Devices) -> Vec<(String, String)> {
        let mut claimed = Vec::new();
        for disk in devices.disks().filter(|disk| !disk.is_partition) {
            match claim(host, disk) {
                // With the whole disk, all its partitions are claimed.
                Ok(claim) => self.claims.push(claim),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let parts: Vec<_> =
                        devices.partitions(disk).filter(|part| is_claimed(host, part)).collect();
                    let parts = if parts.is_empty() { vec![disk] } else { parts };
                    claimed.extend(parts.iter().map(|part| (disk.name.clone(), part.name.clone())));
                }
                Err(error) => self.unseen.push(format!("claiming /dev/{}: {error}", disk.name)),
            }
        }
        claimed
    }

    /// All processes but this one.
    fn other_processes(&mut self, host: &Host) -> Vec<u32> {
        if !sees_all(host) {
            self.unseen.push("this is a container, which sees its own processes alone".into());
        }
        let mut pids = pids(host).unwrap_or_else(|error| {
            self.unseen.push(format!("listing processes: {error}"));
            Vec::new()
        });
        pids.retain(|&pid| pid != std::process::id());
        pids
    }

    /// The processes among `others` that have one of `devices` open.
    fn add_openers(
        &mut self,
        host: &Host,
        others: &[u32],
        devices: &Devices,
        found: &mut BTreeSet<Use>,
    ) {
        let mut hidden = 0;
        for &pid in others {
            match open_nodes(host, pid) {
                Ok(nodes) => {
                    let open = devices.0.iter().filter(|device| nodes.contains(&device.node));
                    found.extend(open.map(|device| Use::Open {
                        device: device.name.clone(),
                        by: Holder::of(host, pid),
                    }));
                }
                Err(error) if has_ended(&error) => {}
                Err(_) => hidden += 1,
            }
        }
        if hidden > 0 {
            self.unseen.push(format!("the open files of {hidden} processes may not be read"));
        }
    }
}

impl Use {
    /// Whether whoever uses a disk so may be the one who has claimed `disk` or a part of it.
    fn explains_claim(&self, disk: &str, devices: &Devices) -> bool {
        match self {
            Self::Mounted { disk: used, .. }
            | Self::Swap { disk: used }
            | Self::Held { disk: used, .. }
            | Self::Open { device: used, .. } => devices.whole_of(used) == Some(disk),
            Self::Claimed { .. } | Self::Up { .. } => false,
        }
    }
}

/// Claims a disk by its file, which must be that of the disk.
fn claim(host: &Host, disk: &Device) -> io::Result<OwnedFd> {
    let path = host.path(&format!("dev/{}", disk.name));
    match host.kernel().node(&path)? {
        Some(node) if node == disk.node => host.kernel().claim(&path),
        _ => Err(io::Error::other("the file is not this disk's")),
    }
}

fn is_claimed(host: &Host, part: &Device) -> bool {
    claim(host, part).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}
