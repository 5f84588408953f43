//! The devices that a function is to its users: everything below it that has a file in `/dev`.

use std::collections::BTreeSet;
use std::fs;

use super::Use;
use super::mounts::Mounts;
use crate::{Address, Host, Node};

/// A device below the function.
pub(super) struct Device {
    /// Its file below `/dev`.
    pub(super) name: String,
    pub(super) node: Node,
    pub(super) is_partition: bool,
    /// Its directory in sysfs.
    directory: String,
}

/// All devices below a function, of whatever class: disks and partitions, but also their generic
/// and their controller's character devices, by which a process can write to a disk without opening
/// it.
pub(super) struct Devices(pub(super) Vec<Device>);

impl Devices {
    /// Reads them; what keeps them from being read goes to `unseen`.
    pub(super) fn below(host: &Host, address: Address, unseen: &mut Vec<String>) -> Self {
        let mut devices = Vec::new();
        for (kind, block) in [("block", true), ("char", false)] {
            let directory = format!("sys/dev/{kind}");
            let numbers = host.list(&directory).unwrap_or_else(|error| {
                unseen.push(format!("/{directory}: {error}"));
                Vec::new()
            });
            let read = |number: String| {
                Device::read(host, address, &format!("{directory}/{number}"), &number, block)
            };
            devices.extend(numbers.into_iter().filter_map(read));
        }
        Self(devices)
    }

    pub(super) fn disks(&self) -> impl Iterator<Item = &Device> {
        self.0.iter().filter(|device| device.node.block)
    }

    pub(super) fn partitions(&self, disk: &Device) -> impl Iterator<Item = &Device> {
        self.disks().filter(|part| {
            part.is_partition && part.directory.starts_with(&format!("{}/", disk.directory))
        })
    }

    /// The disk that `name` is, or is a part of.
    pub(super) fn whole_of(&self, name: &str) -> Option<&str> {
        let device = self.disks().find(|device| device.name == name)?;
        let whole = |disk: &&Device| {
            !disk.is_partition && self.partitions(disk).any(|part| part.name == name)
        };
        Some(if device.is_partition { &self.disks().find(whole)?.name } else { &device.name })
    }
}

impl Device {
    fn read(host: &Host, address: Address, link: &str, number: &str, block: bool) -> Option<Self> {
        if !hangs_below(host, link, &address.to_string()) {
            return None;
        }
        let directory = fs::canonicalize(host.path(link)).ok()?.to_str()?.to_owned();
        // Names in sysfs have `!` where those in /dev have `/`, and some devices lie in folders
        // there.
        let event = host.text(&format!("{directory}/uevent")).unwrap_or_default();
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME=").map(str::to_owned));
        let name = name.or_else(|| Some(directory.rsplit('/').next()?.replace('!', "/")))?;
        let is_partition = host.path(&format!("{directory}/partition")).exists();
        let (major, minor) = number.split_once(':')?;
        let node = Node { block, number: (major.parse().ok()?, minor.parse().ok()?) };
        Some(Self { name, node, is_partition, directory })
    }
}

/// The interfaces of the function that are up.
pub(super) fn interfaces_up(host: &Host, address: Address) -> Vec<Use> {
    let names = host.names("sys/class/net").into_iter();
    let below = names
        .filter(|name| hangs_below(host, &format!("sys/class/net/{name}"), &address.to_string()));
    let is_up = |interface: &String| {
        let flags = host.text(&format!("sys/class/net/{interface}/flags")).unwrap_or_default();
        // IFF_UP. [Linux, uapi/linux/if.h]
        u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 != 0)
    };
    below.filter(is_up).map(|interface| Use::Up { interface }).collect()
}

fn hangs_below(host: &Host, link: &str, address: &str) -> bool {
    let Ok(path) = fs::canonicalize(host.path(link)) else { return false };
    if path.iter().any(|part| part == address) {
        return true;
    }
    // A disk that several NVMe controllers can share hangs below none of them, but its subsystem
    // links to each.
    let Some(subsystem) = path
        .ancestors()
        .find(|above| above.parent().is_some_and(|top| top.ends_with("nvme-subsystem")))
    else {
        return false;
    };
    let links = fs::read_dir(subsystem)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_symlink());
    links
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .any(|path| path.iter().any(|part| part == address))
}

/// Adds the uses of all disks among `devices`, and of what is made of them, to `found`.
pub(super) fn add_uses(host: &Host, mounts: &Mounts, devices: &Devices, found: &mut BTreeSet<Use>) {
    let mut search = Search { host, mounts, loops: loops(host), found };
    for disk in devices.disks() {
        let (major, minor) = disk.node.number;
        search.visit(&disk.name, &disk.directory, &format!("{major}:{minor}"));
    }
}

struct Search<'a> {
    host: &'a Host,
    mounts: &'a Mounts,
    /// Loop devices over block devices: the device below, and the loop.
    loops: Vec<(Node, String)>,
    found: &'a mut BTreeSet<Use>,
}

impl Search<'_> {
    /// Looks at the block device `disk` with its directory in sysfs and its number, and at all that
    /// is made of it.
    fn visit(&mut self, disk: &str, directory: &str, number: &str) {
        let host = self.host;
        self.found.extend(self.mounts.of(disk, number).into_iter().map(|mount| mount.of(disk)));
        self.found.extend(self.members_of(disk, directory));
        if self.mounts.swap.contains(&format!("/dev/{disk}")) {
            self.found.insert(Use::Swap { disk: disk.into() });
        }
        let mut above = host.names(&format!("{directory}/holders"));
        above.extend(
            self.loops
                .iter()
                .filter(|(node, _)| is_number(node, number))
                .map(|(_, name)| name.clone()),
        );
        for by in above {
            // Each pair is looked at once, so that holders that hold each other end.
            if self.found.insert(Use::Held { disk: disk.into(), by: by.clone() }) {
                self.visit_whole(&by);
            }
        }
    }

    /// Looks at a block device above, and at its partitions.
    fn visit_whole(&mut self, name: &str) {
        let directory = format!("sys/class/block/{name}");
        let number =
            |directory: &str| self.host.text(&format!("{directory}/dev")).unwrap_or_default();
        let parts = self.host.names(&directory).into_iter().filter(|part| part.starts_with(name));
        let parts: Vec<_> = parts.map(|part| (format!("{directory}/{part}"), part)).collect();
        let all = parts.into_iter().chain([(directory.clone(), name.to_owned())]);
        for (directory, name, number) in
            all.map(|(path, name)| (path.clone(), name, number(&path))).collect::<Vec<_>>()
        {
            self.visit(&name, &directory, &number);
        }
    }

    /// Where the btrfs is mounted that `disk` is a member of: only one of its disks is named as the
    /// source of a mount.
    fn members_of(&self, disk: &str, directory: &str) -> Vec<Use> {
        let name = directory.rsplit('/').next().unwrap_or(disk);
        let systems = self.host.names("sys/fs/btrfs").into_iter();
        let members =
            systems.map(|system| self.host.names(&format!("sys/fs/btrfs/{system}/devices")));
        let others =
            members.filter(|members| members.iter().any(|member| member == name)).flatten();
        others
            .flat_map(|member| self.mounts.of(&member.replace('!', "/"), ""))
            .map(|mount| mount.of(disk))
            .collect()
    }
}

/// Loop devices over block devices, by the kernel's word if this user may ask, else by the path
/// that sysfs has.
fn loops(host: &Host) -> Vec<(Node, String)> {
    let below = |name: &str| {
        let path = host.text(&format!("sys/class/block/{name}/loop/backing_file"))?;
        let told = host.kernel().under_loop(&host.path(&format!("dev/{name}")));
        told.unwrap_or_else(|_| {
            host.kernel().node(&host.path(path.trim_start_matches('/'))).ok().flatten()
        })
    };
    let names = host.names("sys/class/block").into_iter().filter(|name| name.starts_with("loop"));
    names.filter_map(|name| Some((below(&name)?, name))).collect()
}

fn is_number(node: &Node, number: &str) -> bool {
    node.block && format!("{}:{}", node.number.0, node.number.1) == number
}
