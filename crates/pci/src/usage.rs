//! What the system does with a function: file systems, swap, volumes above its disks, interfaces that are up.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use serde::Serialize;

use crate::{Address, Host};

/// One use that taking the function away would break.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// A file system is mounted.
    Mounted {
        /// The block device.
        disk: String,
        /// Where.
        at: String,
    },
    /// Memory is paged out to it.
    Swap {
        /// The block device.
        disk: String,
    },
    /// Another block device (device mapper, RAID) is made of it.
    Held {
        /// The block device.
        disk: String,
        /// The one above.
        by: String,
    },
    /// A network interface is up.
    Up {
        /// Its name.
        interface: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { disk, at } => write!(f, "/dev/{disk} is mounted at {at}"),
            Self::Swap { disk } => write!(f, "/dev/{disk} is swap space"),
            Self::Held { disk, by } => write!(f, "/dev/{by} is made of /dev/{disk}"),
            Self::Up { interface } => write!(f, "the interface {interface} is up"),
        }
    }
}

impl Use {
    /// What ends it.
    pub fn end(&self) -> String {
        match self {
            Self::Mounted { at, .. } => format!("sudo umount {at}"),
            Self::Swap { disk } => format!("sudo swapoff /dev/{disk}"),
            Self::Held { by, .. } => format!("take /dev/{by} apart (dmsetup, mdadm, lvm)"),
            Self::Up { interface } => format!("sudo ip link set {interface} down"),
        }
    }

    /// What brings it back.
    pub fn resume(&self) -> String {
        match self {
            Self::Mounted { disk, at } => format!("sudo mount /dev/{disk} {at}"),
            Self::Swap { disk } => format!("sudo swapon /dev/{disk}"),
            Self::Held { by, .. } => format!("put /dev/{by} together again"),
            Self::Up { interface } => format!("sudo ip link set {interface} up"),
        }
    }
}

/// The uses of the function at `address`, sorted.
pub fn uses(host: &Host, address: Address) -> Vec<Use> {
    let mounts = Mounts::read(host);
    let mut found = BTreeSet::new();
    for disk in below(host, "block", address) {
        disk_uses(host, &mounts, &disk, &mut found);
    }
    for interface in below(host, "net", address) {
        let flags = host.text(&format!("sys/class/net/{interface}/flags")).unwrap_or_default();
        // IFF_UP. [Linux, uapi/linux/if.h]
        if u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 != 0) {
            found.insert(Use::Up { interface });
        }
    }
    found.into_iter().collect()
}

/// The members of `/sys/class/CLASS` that hang below the function.
pub fn below(host: &Host, class: &str, address: Address) -> Vec<String> {
    let mut names = host.names(&format!("sys/class/{class}"));
    names.retain(|name| hangs_below(host, &format!("sys/class/{class}/{name}"), &address.to_string()));
    names
}

fn hangs_below(host: &Host, link: &str, address: &str) -> bool {
    let Ok(path) = fs::canonicalize(host.path(link)) else { return false };
    if path.iter().any(|part| part == address) {
        return true;
    }
    // A disk that several NVMe controllers can share hangs below none of them, but its subsystem links to each.
    let Some(subsystem) = path.ancestors().find(|above| above.parent().is_some_and(|top| top.ends_with("nvme-subsystem"))) else {
        return false;
    };
    let links = fs::read_dir(subsystem).into_iter().flatten().flatten().filter(|entry| entry.path().is_symlink());
    links.filter_map(|entry| fs::canonicalize(entry.path()).ok()).any(|path| path.iter().any(|part| part == address))
}

/// Adds the uses of a block device, and of those made of it, to `found`.
fn disk_uses(host: &Host, mounts: &Mounts, disk: &str, found: &mut BTreeSet<Use>) {
    let number = host.text(&format!("sys/class/block/{disk}/dev")).unwrap_or_default();
    found.extend(mounts.of(disk, &number).map(|at| Use::Mounted { disk: disk.into(), at }));
    if mounts.swap.contains(&format!("/dev/{disk}")) {
        found.insert(Use::Swap { disk: disk.into() });
    }
    for by in host.names(&format!("sys/class/block/{disk}/holders")) {
        // Each pair is looked at once, so that holders that hold each other end.
        if found.insert(Use::Held { disk: disk.into(), by: by.clone() }) {
            disk_uses(host, mounts, &by, found);
        }
    }
}

/// What is mounted and what is swap.
struct Mounts {
    /// Device number, source and mount point.
    mounted: Vec<(String, String, String)>,
    swap: Vec<String>,
}

impl Mounts {
    fn read(host: &Host) -> Self {
        // Fields: id, parent, major:minor, root, mount point, options, optional ones, "-", type, source. [proc(5)]
        let parse = |line: &str| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(2);
            let (number, point) = (place.next()?.to_owned(), unescape(place.nth(1)?));
            Some((number, unescape(kind.split(' ').nth(1)?), point))
        };
        let mounts = ["self", "1"].map(|process| host.text(&format!("proc/{process}/mountinfo")).unwrap_or_default());
        let swap = host.text("proc/swaps").unwrap_or_default();
        Self {
            mounted: mounts.iter().flat_map(|text| text.lines()).filter_map(parse).collect(),
            swap: swap.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescape).collect(),
        }
    }

    /// Where a disk is mounted. Some file systems (btrfs) show a number of their own, but name the disk as their source.
    fn of(&self, disk: &str, number: &str) -> impl Iterator<Item = String> {
        let source = format!("/dev/{disk}");
        let matches = move |mount: &&(String, String, String)| mount.0 == number || mount.1 == source;
        self.mounted.iter().filter(matches).map(|mount| mount.2.clone())
    }
}

/// Undoes the octal escapes of spaces and the like in the kernel's lists.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
