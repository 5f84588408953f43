//! Port ranges: which ports a BAR means, and reaching them by instructions or by a file.
//!
//! # Shape
//! [`PortRange`] is the arithmetic: what of a BAR is there. [`Ports`] reaches it. `io` has the
//! instructions and the permission for them.
//!
//! # Trust
//! A range comes from the kernel's own list of the function's resources, never from the function,
//! and only its ports are asked for. Who may use ports by instruction can do so with these alone.

mod io;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use ring3_device::{Access, Bar, Error};
use ring3_pci::{Function, Resource};

use io::Port;

/// Where the channels of an IDE function in compatibility mode are, by BAR. The kernel lists these
/// as the function's resources. Of a channel's second range only the third port is its own (the
/// others are a floppy controller's), so the kernel lists that one alone; a driver sees the whole
/// range. [PCI IDE 1.0, 2.1]
const LEGACY: [Range<u64>; 4] = [0x1f0..0x1f8, 0x3f6..0x3f7, 0x170..0x178, 0x376..0x377];
const CONTROL: u64 = 2;
const CONTROL_RANGE: u64 = 4;
/// Base class and sub-class of IDE, and the interface bits that say that a channel is in native
/// mode, by BAR. [PCI IDE 1.0, 5.0]
const IDE: u32 = 0x0101;
const NATIVE: [u32; 4] = [1 << 0, 1 << 0, 1 << 2, 1 << 2];

/// The ports that a BAR means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    /// Ports of the BAR, as its driver sees it.
    pub(crate) len: u64,
    /// Those of them that are the function's.
    there: Range<u64>,
    /// The first that is.
    first: u16,
}

impl PortRange {
    /// The range of BAR `resource` of `function`. Ports below 0x400 are the machine's own, so there
    /// it must be a legacy range, and the function one that has it.
    pub(crate) fn of(function: &Function, resource: &Resource) -> Result<Self, Error> {
        let wrong = || {
            Error::Invalid(format!(
                "BAR {}: {:#x}+{:#x} are no ports",
                resource.index, resource.start, resource.size
            ))
        };
        let end = resource
            .start
            .checked_add(resource.size)
            .filter(|&end| resource.port && resource.size > 0 && end <= 1 << 16);
        end.ok_or_else(wrong)?;
        let first = u16::try_from(resource.start).map_err(|_| wrong())?;
        let legacy = LEGACY.iter().zip(NATIVE).nth(resource.index.into());
        let is_legacy = legacy.is_some_and(|(range, native)| {
            *range == (resource.start..resource.start + resource.size)
                && function.class >> 8 == IDE
                && function.class & native == 0
        });
        if resource.start < 0x400 && !is_legacy {
            return Err(wrong());
        }
        let is_control = is_legacy && resource.size == 1;
        let (len, start) = if is_control { (CONTROL_RANGE, CONTROL) } else { (resource.size, 0) };
        Ok(Self { len, there: start..start + resource.size, first })
    }

    /// How far behind the first port `size` ports at `offset` of the BAR lie, if all of them are
    /// the function's and aligned.
    #[inline]
    fn find(&self, offset: u64, size: usize) -> Option<u16> {
        let end = offset.checked_add(size as u64)?;
        let fits = offset >= self.there.start
            && end <= self.there.end
            && offset.is_multiple_of(size as u64);
        fits.then(|| (offset - self.there.start) as u16)
    }

    /// Fails if the kernel has given one of these ports to somebody else than `function` and
    /// `driver`.
    pub(crate) fn check_owner(&self, function: &Function, driver: &str) -> Result<(), Error> {
        let list = std::fs::read_to_string("/proc/ioports")
            .map_err(|error| Error::os("reading /proc/ioports", error))?;
        check_owner(&list, &self.ports(), &function.address.to_string(), driver)
    }

    /// The ports that are the function's.
    pub(crate) fn ports(&self) -> Range<u32> {
        let first = u32::from(self.first);
        first..first + (self.there.end - self.there.start) as u32
    }
}

/// The ports of one BAR.
pub(crate) struct Ports {
    range: PortRange,
    /// By instruction, where this process may.
    direct: bool,
    /// By file, and where in it the first port is.
    file: File,
    start: u64,
}

impl Ports {
    /// The ports `range`, by instruction if that is wanted and allowed, and else by `file`, whose
    /// byte `start` is the first port.
    pub(crate) fn new(range: PortRange, direct: bool, file: File, start: u64) -> Self {
        let direct = direct && io::allow(&range.ports());
        Self { range, direct, file, start }
    }

    /// Ports of the BAR.
    pub(crate) fn len(&self) -> u64 {
        self.range.len
    }

    /// Reads a word at `offset`; all ones where there is no port of the function, or if the
    /// function is gone.
    fn read<T: Port>(&self, offset: u64) -> T {
        let Some(at) = self.range.find(offset, size_of::<T>()) else { return T::ALL_ONES };
        if self.direct
            && let Some(value) = T::input(&self.range.ports(), self.range.first + at)
        {
            return value;
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<T>()];
        match self.file.read_at(bytes, self.start + u64::from(at)) {
            Ok(read) if read == size_of::<T>() => T::from_le(bytes),
            _ => T::ALL_ONES,
        }
    }

    /// Writes a word at `offset`; nothing where there is no port of the function.
    fn write<T: Port>(&self, offset: u64, value: T) {
        let Some(at) = self.range.find(offset, size_of::<T>()) else { return };
        if !(self.direct && value.output(&self.range.ports(), self.range.first + at)) {
            // A device that is gone loses writes; there is nobody to tell.
            let _ =
                self.file.write_at(&value.to_le()[..size_of::<T>()], self.start + u64::from(at));
        }
    }

    /// Reads words from the one port at `offset` until `bytes` is full; a rest of less than a word
    /// is left alone.
    fn read_string<T: Port>(&self, offset: u64, bytes: &mut [u8]) {
        let direct = |at| T::input_string(&self.range.ports(), self.range.first + at, bytes);
        if !(self.direct && self.range.find(offset, size_of::<T>()).is_some_and(direct)) {
            for word in bytes.chunks_exact_mut(size_of::<T>()) {
                word.copy_from_slice(&self.read::<T>(offset).to_le()[..size_of::<T>()]);
            }
        }
    }

    /// Writes the words in `bytes` to the one port at `offset`, without a rest of less than a word.
    fn write_string<T: Port>(&self, offset: u64, bytes: &[u8]) {
        let direct = |at| T::output_string(&self.range.ports(), self.range.first + at, bytes);
        if !(self.direct && self.range.find(offset, size_of::<T>()).is_some_and(direct)) {
            bytes
                .chunks_exact(size_of::<T>())
                .for_each(|word| self.write(offset, T::from_le(word)));
        }
    }
}

/// The BAR that `ports` are; it keeps the `claim` of their function.
pub(crate) fn bar(ports: Ports, claim: impl Send + Sync + 'static) -> Bar {
    Bar::new(Arc::new(Claimed { ports, _claim: claim }))
}

/// Ports of a function that is claimed.
struct Claimed<C> {
    // Before the claim: it may hold a copy of the device's descriptor, which is closed before the
    // group's.
    ports: Ports,
    _claim: C,
}

impl<C: Send + Sync + 'static> Access for Claimed<C> {
    fn len(&self) -> u64 {
        self.ports.len()
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        match width {
            1 => self.ports.read::<u8>(offset).into(),
            2 => self.ports.read::<u16>(offset).into(),
            4 => self.ports.read::<u32>(offset).into(),
            _ => self.read_halves(offset),
        }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        match width {
            1 => self.ports.write(offset, value as u8),
            2 => self.ports.write(offset, value as u16),
            4 => self.ports.write(offset, value as u32),
            _ => self.write_halves(offset, value),
        }
    }

    fn read_string(&self, offset: u64, width: usize, bytes: &mut [u8]) {
        match width {
            2 => self.ports.read_string::<u16>(offset, bytes),
            _ => self.ports.read_string::<u32>(offset, bytes),
        }
    }

    fn write_string(&self, offset: u64, width: usize, bytes: &[u8]) {
        match width {
            2 => self.ports.write_string::<u16>(offset, bytes),
            _ => self.ports.write_string::<u32>(offset, bytes),
        }
    }
}

/// Fails if somebody else than the function, its bus and `driver` has one of `ports` in `text`, the
/// kernel's list of ports.
fn check_owner(text: &str, ports: &Range<u32>, function: &str, driver: &str) -> Result<(), Error> {
    let overlap = |line: &&str| {
        let range = line.trim_start().split(" : ").next().and_then(|range| range.split_once('-'));
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        range
            .and_then(|(first, last)| {
                Some(number(first)? < ports.end && number(last)? >= ports.start)
            })
            .unwrap_or(false)
    };
    let owner = |line: &str| {
        line.split_once(" : ").map(|(_, owner)| owner.trim().to_owned()).unwrap_or_default()
    };
    let ours = |owner: &String| {
        owner.starts_with("PCI ") || owner == function || owner.starts_with(driver)
    };
    match text.lines().filter(overlap).map(owner).find(|owner| !ours(owner)) {
        None => Ok(()),
        Some(owner) => Err(Error::Busy(format!(
            "ports {:#x} to {:#x} belong to {owner} (/proc/ioports)",
            ports.start,
            ports.end - 1
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resource(index: u8, start: u64, size: u64) -> Resource {
        Resource { index, start, size, port: true }
    }

    /// An IDE function with this programming interface.
    fn ide(interface: u8) -> Function {
        Function {
            address: ring3_pci::Address { domain: 0, bus: 0, device: 1, function: 1 },
            vendor: 0x8086,
            device: 0x7010,
            class: IDE << 8 | u32::from(interface),
            driver: None,
            driver_override: None,
            iommu_group: None,
            numa_node: None,
            bars: Vec::new(),
            reset_methods: Vec::new(),
        }
    }

    fn range(index: u8, start: u64, size: u64) -> Result<PortRange, Error> {
        PortRange::of(&ide(0x80), &resource(index, start, size))
    }

    #[test]
    fn a_legacy_control_block_is_seen_whole_and_has_one_port() {
        let range = range(1, 0x3f6, 1).unwrap();
        assert_eq!((range.len, range.ports()), (4, 0x3f6..0x3f7));
        assert_eq!(
            (range.find(2, 1), range.find(0, 1), range.find(3, 1), range.find(2, 2)),
            (Some(0), None, None, None)
        );
    }

    #[test]
    fn a_native_control_block_has_all_its_ports() {
        let range = range(1, 0xc100, 4).unwrap();
        assert_eq!(
            (range.find(2, 1), range.find(0, 4), range.find(2, 4)),
            (Some(2), Some(0), None)
        );
    }

    #[test]
    fn what_is_no_range_of_ports_is_refused() {
        for (start, size) in [(0xfffc, 8), (0x1_0000, 8), (u64::MAX, 2), (0x1f0, 0)] {
            assert!(range(0, start, size).is_err(), "{start:#x}+{size}");
        }
        assert!(
            PortRange::of(&ide(0x80), &Resource { port: false, ..resource(0, 0x1f0, 8) }).is_err()
        );
    }

    #[test]
    fn the_machines_own_ports_are_refused_except_those_of_a_channel_in_compatibility_mode() {
        assert!(
            range(0, 0x60, 8).is_err()
                && range(2, 0x1f0, 8).is_err()
                && range(0, 0x1f0, 7).is_err()
        );
        assert!(
            range(0, 0x1f0, 8).is_ok() && range(2, 0x170, 8).is_ok() && range(3, 0x376, 1).is_ok()
        );
        // The primary channel is in native mode, the secondary is not.
        assert!(PortRange::of(&ide(0x81), &resource(0, 0x1f0, 8)).is_err());
        assert!(PortRange::of(&ide(0x81), &resource(2, 0x170, 8)).is_ok());
        assert!(
            PortRange::of(&Function { class: 0x010802, ..ide(0) }, &resource(0, 0x1f0, 8)).is_err()
        );
    }

    #[test]
    fn ports_of_another_driver_are_refused_by_its_name() {
        let list = "0000-0cf7 : PCI Bus 0000:00\n  0170-0177 : 0000:00:01.1\n    0170-0177 : \
                    ata_piix\n  01f0-01f7 : 0000:00:01.1\n";
        let check = |ports| check_owner(list, &ports, "0000:00:01.1", "vfio");
        assert!(check(0x1f0..0x1f8).is_ok());
        assert!(check(0x170..0x178).unwrap_err().to_string().contains("ata_piix"));
    }

    #[test]
    fn a_file_stands_for_ports_that_may_not_be_used_by_instruction() {
        let file =
            File::from(rustix::fs::memfd_create("ports", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(8).unwrap();
        let ports = Ports::new(range(0, 0x1f0, 8).unwrap(), false, file, 0);
        ports.write(6, 0xa0u8);
        assert_eq!(
            (ports.read::<u8>(6), ports.read::<u16>(6), ports.read::<u32>(6)),
            (0xa0, 0x00a0, u32::MAX)
        );
    }

    #[test]
    fn a_string_of_words_comes_from_one_port_and_leaves_a_rest_alone() {
        let file =
            File::from(rustix::fs::memfd_create("ports", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_at(&[1, 2, 3, 4, 5, 6, 7, 8], 0).unwrap();
        let ports = Ports::new(range(0, 0x1f0, 8).unwrap(), false, file, 0);
        let mut bytes = [0; 5];
        ports.read_string::<u16>(2, &mut bytes);
        assert_eq!(bytes, [3, 4, 3, 4, 0]);
        ports.write_string::<u16>(2, &[9, 9, 5, 6, 7]);
        assert_eq!(ports.read::<u16>(2), 0x0605);
    }

    proptest! {
        #[test]
        fn no_offset_reaches_a_port_that_is_not_the_functions(
            start in 0u64..0x1_0000, size in 1u64..64, offset in any::<u64>(),
        ) {
            if let Ok(range) = range(0, start, size) {
                for width in [1, 2, 4] {
                    for offset in [offset, offset % 80] {
                        if let Some(at) = range.find(offset, width) {
                            let first = u32::from(range.first) + u32::from(at);
                            prop_assert!(
                                range.ports().contains(&first)
                                    && range.ports().contains(&(first + width as u32 - 1))
                            );
                        }
                    }
                }
            }
        }
    }
}
