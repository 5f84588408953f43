//! Configuration space: which parts a driver must not write.
//!
//! # References
//! - `[PCI]` PCI Local Bus Specification 3.0, chapter 6

mod msix;

use std::ops::Range;

use ring3_spec::{pci, virtio};

pub use msix::Msix;

use crate::Error;

/// COMMAND bits that are the backend's: decoding (a BAR that is off cannot be accessed), bus
/// mastering, and the pin.
pub const OWNED_COMMAND: u16 =
    pci::COMMAND_IO | pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER | pci::COMMAND_INTX_DISABLE;

/// The MSI capability. [PCI 6.8.1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Where it starts.
    pub at: u64,
    /// Vectors that the function can ask for: 1 to 32.
    pub vectors: u16,
    /// Whether the address has 64 bits.
    pub wide: bool,
    /// Whether each vector has a mask bit and a pending bit.
    pub maskable: bool,
}

impl Msi {
    fn new(at: u64, control: u16) -> Self {
        let vectors = 1 << (control >> 1 & 0b111).min(5);
        Self {
            at,
            vectors,
            wide: control & pci::MSI_64 != 0,
            maskable: control & pci::MSI_MASKABLE != 0,
        }
    }

    /// Where the message's data is, 16 bits.
    pub fn data(&self) -> u64 {
        self.at + pci::MSI_ADDRESS + if self.wide { 8 } else { 4 }
    }

    /// Where the mask bits are, 32 of them; the pending bits follow.
    pub fn mask(&self) -> u64 {
        self.data() + 4
    }

    fn range(&self) -> Range<u64> {
        self.at..if self.maskable { self.mask() + 8 } else { self.data() + 2 }
    }
}

/// What a driver must not write, found once by walking the capabilities. Reads are free.
///
/// Every backend asks it; who is to accept such writes all the same, for a driver that was written
/// for a whole machine, puts a virtual configuration space around the device.
pub struct Filter {
    owned: Vec<(Range<u64>, &'static str)>,
    /// MSI, if the function has it.
    pub msi: Option<Msi>,
    /// MSI-X, if the function has it.
    pub msix: Option<Msix>,
}

impl Filter {
    /// Learns the layout from `read`, which reads `width` bytes at an offset.
    pub fn new(read: impl Fn(u64, usize) -> u32) -> Self {
        let bars = pci::BAR0..pci::BAR0 + 4 * u64::from(pci::BAR_COUNT);
        let rom = pci::EXPANSION_ROM..pci::EXPANSION_ROM + 4;
        let mut filter = Self {
            owned: vec![(bars, "a base address register"), (rom, "the expansion ROM's address")],
            msi: None,
            msix: None,
        };
        for (id, at) in capabilities(&read) {
            match id {
                pci::CAP_MSI => {
                    let msi = Msi::new(at, read(at + pci::MSI_CONTROL, 2) as u16);
                    filter.owned.push((msi.range(), "the MSI capability"));
                    filter.msi = Some(msi);
                }
                pci::CAP_MSIX => {
                    filter.owned.push((at..at + 12, "the MSI-X capability"));
                    let table = read(at + pci::MSIX_TABLE, 4);
                    let entries = (read(at + pci::MSIX_CONTROL, 2) as u16 & pci::MSIX_SIZE) + 1;
                    filter.msix = Some(Msix {
                        at,
                        bar: (table & 7) as u8,
                        offset: (table & !7).into(),
                        entries,
                    });
                }
                _ => {}
            }
        }
        filter
    }

    /// The bytes that are the backend's altogether; of [COMMAND](OWNED_COMMAND), some bits are.
    pub fn owned(&self) -> impl Iterator<Item = Range<u64>> {
        self.owned.iter().map(|(range, _)| range.clone())
    }

    /// Whether `width` bytes of `value` may be written at `offset`; `command` is what COMMAND holds
    /// now.
    pub fn check(&self, offset: u64, width: usize, value: u32, command: u16) -> Result<(), Error> {
        let Some(end) = offset.checked_add(width as u64) else {
            return Err(Error::Invalid(format!(
                "{width} bytes at {offset:#x} of configuration space: it ends before"
            )));
        };
        let write = offset..end;
        let overlaps = |range: &Range<u64>| write.start < range.end && range.start < write.end;
        if let Some((_, what)) = self.owned.iter().find(|(range, _)| overlaps(range)) {
            return Err(Error::Invalid(format!(
                "configuration space at {offset:#x} is {what}, which belongs to the backend"
            )));
        }
        for byte in 0..2 {
            let at = pci::COMMAND + byte;
            if write.contains(&at) {
                let new = (value >> (8 * (at - offset))) as u8;
                let (old, owned) =
                    ((command >> (8 * byte)) as u8, (OWNED_COMMAND >> (8 * byte)) as u8);
                if (new ^ old) & owned != 0 {
                    return Err(Error::Invalid(
                        "COMMAND's decoding, bus master and interrupt bits belong to the backend; \
                        use set_bus_master and irqs"
                            .into(),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Id and offset of each capability. [PCI 6.7]
pub fn capabilities(read: impl Fn(u64, usize) -> u32) -> Vec<(u8, u64)> {
    let mut found: Vec<(u8, u64)> = Vec::new();
    if read(pci::STATUS, 2) as u16 & pci::STATUS_CAPABILITIES == 0 {
        return found;
    }
    let mut next = u64::from(read(pci::CAPABILITIES, 1)) & 0xfc;
    // They lie behind the header and take 4 bytes at least; one seen before means a loop, all ones
    // a device that is gone.
    while (0x40..=0xfc).contains(&next)
        && found.len() < 48
        && !found.iter().any(|&(_, offset)| offset == next)
    {
        let header = read(next, 2) as u16;
        if header == u16::MAX {
            break;
        }
        found.push((header as u8, next));
        next = u64::from(header >> 8) & 0xfc;
    }
    found
}

/// Offset of the capability that says where the structure of a type is of a virtio device. The
/// first of a type whose BAR means something is the one to use. [virtio 4.1.4.1]
pub fn virtio_structure(read: impl Fn(u64, usize) -> u32, kind: u8) -> Option<u64> {
    let mut own =
        capabilities(&read).into_iter().filter(|(id, _)| *id == pci::CAP_VENDOR).map(|(_, at)| at);
    let is_it = |at: &u64| {
        read(at + virtio::CAP_TYPE, 1) == u32::from(kind)
            && read(at + virtio::CAP_BAR, 1) < u32::from(pci::BAR_COUNT)
    };
    own.find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A function with MSI at 0x40 and MSI-X at 0x60.
    fn space() -> [u8; 256] {
        let mut space = [0; 256];
        space[0x06] = 0x10;
        space[0x34] = 0x40;
        space[0x40..0x44].copy_from_slice(&[0x05, 0x60, 0x80, 0x00]);
        space[0x60..0x68].copy_from_slice(&[0x11, 0x00, 0x3f, 0x00, 0x04, 0x20, 0x00, 0x00]);
        space
    }

    fn read(space: &[u8], offset: u64, width: usize) -> u32 {
        (0..width).fold(0, |value, i| {
            value | u32::from(*space.get(offset as usize + i).unwrap_or(&0xff)) << (8 * i)
        })
    }

    fn filter(space: &[u8]) -> Filter {
        Filter::new(|offset, width| read(space, offset, width))
    }

    #[test]
    fn a_write_beyond_the_end_of_all_numbers_is_refused() {
        for (offset, width) in [(u64::MAX, 4), (u64::MAX - 1, 2), (0x10, usize::MAX)] {
            assert!(filter(&space()).check(offset, width, 0, 0).is_err(), "{offset:#x}+{width}");
        }
    }

    #[test]
    fn the_msix_table_is_found() {
        assert_eq!(
            filter(&space()).msix,
            Some(Msix { at: 0x60, bar: 4, offset: 0x2000, entries: 64 })
        );
    }

    #[test]
    fn bars_msi_and_msix_are_refused_even_if_only_touched() {
        let filter = filter(&space());
        for (offset, width) in
            [(0x10, 4), (0x27, 1), (0x0e, 4), (0x30, 4), (0x40, 1), (0x4d, 1), (0x3e, 4), (0x62, 2)]
        {
            assert!(filter.check(offset, width, 0, 0).is_err(), "{offset:#x}");
        }
    }

    #[test]
    fn what_belongs_to_nobody_else_is_written() {
        let filter = filter(&space());
        for (offset, width) in
            [(0x0c, 1), (0x0d, 1), (0x3c, 1), (0x4e, 2), (0x5c, 4), (0x70, 4), (0x100, 4)]
        {
            assert!(filter.check(offset, width, u32::MAX, 0).is_ok(), "{offset:#x}");
        }
    }

    #[test]
    fn bus_mastering_is_not_switched_by_a_write_to_command() {
        assert!(filter(&space()).check(pci::COMMAND, 2, 0x0006, 0x0002).is_err());
        assert!(filter(&space()).check(pci::COMMAND, 1, 0x00, 0x0002).is_err());
    }

    #[test]
    fn other_bits_of_command_are_written() {
        let parity = 1 << 6;
        assert!(filter(&space()).check(pci::COMMAND, 2, 0x0002 | parity, 0x0002).is_ok());
        assert!(filter(&space()).check(pci::COMMAND, 4, 0x0002 | parity, 0x0002).is_ok());
    }

    proptest! {
        #[test]
        fn no_configuration_space_can_make_the_walk_fail(
            space in prop::collection::vec(any::<u8>(), 256), at in 0u64..4096,
        ) {
            let filter = filter(&space);
            let _ = filter.check(at, 4, 0, 0);
            prop_assert!(filter.check(pci::BAR0, 4, 0, 0).is_err());
        }
    }
}
