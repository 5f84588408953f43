//! One PCI function.

use std::io;

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::{Address, Host, Obstacle, PassthroughDriver, holders, uio_file};

/// The file of iommufd, which translates for functions that are opened by their own file. It is of
/// all users of the machine, without the leading `/`.
pub const IOMMUFD: &str = "dev/iommu";

/// A PCI function as sysfs describes it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Function {
    /// Where it sits.
    pub address: Address,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Base class, sub-class and interface, 24 bits.
    pub class: u32,
    /// The kernel driver that has it.
    pub driver: Option<String>,
    /// The only driver that may have it, if one was chosen.
    pub driver_override: Option<String>,
    /// Its IOMMU group; `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// The node of memory that it is nearest to, on machines with several.
    pub numa_node: Option<u32>,
    /// Its base address registers, at most six.
    pub bars: Vec<Resource>,
    /// How the kernel can reset it, best first; empty if it cannot.
    pub reset_methods: Vec<String>,
}

/// What a base address register decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resource {
    /// Which register, 0 to 5.
    pub index: u8,
    /// The first address, of memory or of ports.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Ports rather than memory.
    pub port: bool,
}

/// `IORESOURCE_IO` of Linux: the range is one of ports.
const RESOURCE_IO: u64 = 0x100;

impl Function {
    /// Reads the function at `address`: [`Obstacle::NoFunction`] if there is none,
    /// [`Obstacle::Unreadable`] if that cannot be told.
    pub fn read(host: &Host, address: Address) -> Result<Self, Obstacle> {
        let directory = format!("sys/bus/pci/devices/{address}");
        let text = |name: &str| host.text(&format!("{directory}/{name}"));
        let number = |name: &str| required_number(host, &format!("{directory}/{name}"));
        Ok(Self {
            address,
            vendor: number("vendor")? as u16,
            device: number("device")? as u16,
            class: number("class")?,
            driver: host.link(&format!("{directory}/driver")),
            driver_override: text("driver_override")
                .filter(|name| !name.is_empty() && name != "(null)"),
            iommu_group: host
                .link(&format!("{directory}/iommu_group"))
                .and_then(|group| group.parse().ok()),
            // -1 where there is one node, or nobody knows.
            numa_node: text("numa_node").and_then(|node| node.parse().ok()),
            bars: parse_resources(&text("resource").unwrap_or_default()),
            reset_methods: text("reset_method")
                .unwrap_or_default()
                .split_whitespace()
                .map(Into::into)
                .collect(),
        })
    }

    /// All functions of the machine that can be read, by address.
    pub fn all(host: &Host) -> Vec<Self> {
        let addresses =
            host.names("sys/bus/pci/devices").into_iter().filter_map(|name| name.parse().ok());
        addresses.filter_map(|address| Self::read(host, address).ok()).collect()
    }

    /// Vendor and device in words, where the PCI ID database has them.
    pub fn name(&self) -> String {
        name_of(self.vendor, self.device)
    }

    /// The class in words, such as "Non-Volatile memory controller".
    pub fn class_name(&self) -> String {
        let (base, sub) = ((self.class >> 16) as u8, (self.class >> 8) as u8);
        match pci_ids::Subclass::from_cid_sid(base, sub) {
            Some(subclass) => subclass.name().into(),
            None => format!("class {base:02x}{sub:02x}"),
        }
    }

    /// Whether an IOMMU confines it, or will once it has a driver: behind Arm's SMMU a function
    /// that never had one has no group. [Linux, `of_iommu_configure`, `iort_iommu_configure_id`]
    pub fn is_confined(&self, host: &Host) -> bool {
        let smmus = || host.names("sys/class/iommu");
        self.iommu_group.is_some()
            || self.driver.is_none() && smmus().iter().any(|name| name.starts_with("smmu"))
    }

    /// The files by which a process can have it, without the leading `/`: of its group and, where
    /// the kernel has such, its own.
    pub fn files(&self, host: &Host) -> Vec<String> {
        match self.way() {
            Some(PassthroughDriver::Vfio) => {
                let group = self.iommu_group.map(|group| format!("dev/vfio/{group}"));
                group.into_iter().chain(self.node(host)).collect()
            }
            Some(PassthroughDriver::Uio) => {
                uio_file(host, self.address).map(|file| format!("dev/{file}")).into_iter().collect()
            }
            None => Vec::new(),
        }
    }

    /// Its own file beside that of its group, without the leading `/`, where it is bound to
    /// vfio-pci and the kernel has such. It is opened with [`IOMMUFD`].
    pub fn node(&self, host: &Host) -> Option<String> {
        let folder = format!("sys/bus/pci/devices/{}/vfio-dev", self.address);
        let name = host.names(&folder).into_iter().next()?;
        // Without nodes it has the name, and no number of a file.
        host.path(&format!("{folder}/{name}/dev"))
            .exists()
            .then(|| format!("dev/vfio/devices/{name}"))
    }

    /// Its own file, if that is the way to it: this process may open it and [`IOMMUFD`], or there
    /// is no file of its group.
    pub fn usable_node(&self, host: &Host) -> Option<String> {
        let may_open = |file: &str| access(host.path(file), Access::READ_OK | Access::WRITE_OK);
        let node = self.node(host)?;
        let group = self.iommu_group.map(|group| host.path(&format!("dev/vfio/{group}")));
        let is_alone = !group.is_some_and(|group| group.exists());
        (is_alone || may_open(&node).is_ok() && may_open(IOMMUFD).is_ok()).then_some(node)
    }

    /// The first of its files that somebody has open, with the processes that do.
    pub fn user(&self, host: &Host) -> Option<Obstacle> {
        self.files(host).into_iter().find_map(|file| {
            let holders = holders(host, &file);
            (!holders.is_empty()).then(|| Obstacle::Busy { path: format!("/{file}"), holders })
        })
    }

    /// The way to a process that it is on, if it is bound to such a driver.
    pub fn way(&self) -> Option<PassthroughDriver> {
        PassthroughDriver::of(self.driver.as_deref()?)
    }

    /// Whether it forwards to another bus: such a function belongs to the kernel. [PCI, appendix D:
    /// base class 6]
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }
}

/// Vendor and device in words, where the PCI ID database has them.
pub fn name_of(vendor_id: u16, device_id: u16) -> String {
    let vendor = pci_ids::Vendors::iter().find(|vendor| vendor.id() == vendor_id);
    let device = vendor.and_then(|vendor| vendor.devices().find(|device| device.id() == device_id));
    match (vendor, device) {
        (Some(vendor), Some(device)) => format!("{} {}", vendor.name(), device.name()),
        (Some(vendor), None) => format!("{} {device_id:04x}", vendor.name()),
        _ => format!("{vendor_id:04x}:{device_id:04x}"),
    }
}

/// A hexadecimal attribute that every function has.
fn required_number(host: &Host, path: &str) -> Result<u32, Obstacle> {
    let unreadable = |reason, too_many_files| Obstacle::Unreadable {
        reason: format!("/{path}: {reason}"),
        too_many_files,
    };
    let text = std::fs::read_to_string(host.path(path)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Obstacle::NoFunction,
        _ => unreadable(error.to_string(), is_out_of_files(&error)),
    })?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16)
        .map_err(|_| unreadable("it is no number".into(), false))
}

/// Whether this process, or the system, may have no more files open.
fn is_out_of_files(error: &io::Error) -> bool {
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Reads the `resource` attribute: a line per range with first and last address and flags. The
/// first six are the BARs.
fn parse_resources(text: &str) -> Vec<Resource> {
    let word = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let parse = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(word);
        let (start, end, flags) = (words.next()??, words.next()??, words.next()??);
        let size = end.checked_sub(start)?.checked_add(1)?;
        (flags != 0).then_some(Resource {
            index: index as u8,
            start,
            size,
            port: flags & RESOURCE_IO != 0,
        })
    };
    text.lines().take(6).enumerate().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_read_with_size_and_kind_and_empty_ones_left_out() {
        let text = "0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n\
                    0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                    0x000000000000c000 0x000000000000c03f 0x0000000000040101\n";
        assert_eq!(
            parse_resources(text),
            [
                Resource { index: 0, start: 0xfe00_0000, size: 0x4000, port: false },
                Resource { index: 2, start: 0xc000, size: 0x40, port: true }
            ]
        );
    }

    #[test]
    fn a_resource_file_that_makes_no_sense_has_no_bars() {
        assert_eq!(parse_resources("0x10 0x0 0x200\nwhat is this\n0x0\n"), []);
    }
}
