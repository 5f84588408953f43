//! The bus master of a channel. [BMIDE 3]

use crate::fields;
use crate::register::{Reg, Rw};

/// Ports of one channel's bus master; the secondary's lie behind the primary's. [BMIDE 2.0]
pub const STRIDE: u32 = 8;

/// Command of `channel`. [BMIDE 3.1]
pub const fn command(channel: u8) -> Reg<BusMasterCommand, Rw> {
    Reg::at(channel as u32 * STRIDE)
}

/// Status of `channel`. [BMIDE 3.2]
pub const fn status(channel: u8) -> Reg<BusMasterStatus, Rw> {
    Reg::at(channel as u32 * STRIDE + 2)
}

/// Device address of `channel`'s descriptor table, a multiple of 4. [BMIDE 3.3]
pub const fn table(channel: u8) -> Reg<u32, Rw> {
    Reg::at(channel as u32 * STRIDE + 4)
}

fields! {
    /// Bus master command. [BMIDE 3.1]
    pub struct BusMasterCommand(u8) {
        /// Started; clearing it stops a transfer that is under way, and what was not moved is lost.
        start, with_start: 0..=0;
        /// The bus master writes memory: a read of the disk.
        to_memory, with_to_memory: 3..=3;
    }
}

fields! {
    /// Bus master status. Writing it: error and interrupt are cleared by a one, the drives' bits
    /// are set as written. [BMIDE 3.2]
    pub struct BusMasterStatus(u8) {
        /// A transfer is under way.
        active, with_active: 0..=0;
        /// An access to memory failed.
        error, with_error: 1..=1;
        /// The drive's interrupt came, and all data of the transfer are in memory.
        interrupt, with_interrupt: 2..=2;
        /// Firmware has set drive 0 up for DMA.
        drive0_dma, with_drive0_dma: 5..=5;
        /// Firmware has set drive 1 up for DMA.
        drive1_dma, with_drive1_dma: 6..=6;
        /// Only one of the two channels can transfer at a time.
        simplex, with_simplex: 7..=7;
    }
}

/// No region of a descriptor crosses a multiple of this, and no table does. [BMIDE 1.2]
pub const PRD_BOUNDARY: u64 = 1 << 16;

/// A physical region descriptor: one piece of memory of a transfer, eight bytes in the table.
/// [BMIDE 1.2]
///
/// It cannot be built for a region that the bus master could not reach: above 4 GiB, at an odd
/// address, of odd or no length, or across a multiple of 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prd {
    address: u32,
    /// 0 means 64 KiB.
    count: u16,
    last: bool,
}

impl Prd {
    /// Bytes of a descriptor.
    pub const SIZE: usize = 8;

    /// `bytes` from `iova` on.
    pub const fn new(iova: u64, bytes: u32) -> Option<Self> {
        let even = iova.is_multiple_of(2) && bytes.is_multiple_of(2);
        let inside = bytes > 0 && iova % PRD_BOUNDARY + bytes as u64 <= PRD_BOUNDARY;
        if even && inside && iova <= u32::MAX as u64 {
            Some(Self { address: iova as u32, count: bytes as u16, last: false })
        } else {
            None
        }
    }

    /// The same as the last of its table.
    pub const fn with_last(self) -> Self {
        Self { last: true, ..self }
    }

    /// First device address.
    pub const fn iova(self) -> u64 {
        self.address as u64
    }

    /// Bytes.
    pub const fn bytes(self) -> u32 {
        if self.count == 0 { PRD_BOUNDARY as u32 } else { self.count as u32 }
    }

    /// Whether the table ends here.
    pub const fn is_last(self) -> bool {
        self.last
    }

    /// As the bus master reads it, a little-endian word of 64 bits.
    pub const fn into_raw(self) -> u64 {
        self.address as u64 | (self.count as u64) << 32 | (self.last as u64) << 63
    }

    /// What the bus master makes of a word in the table; the low bit of address and count do not
    /// count.
    pub const fn from_raw(raw: u64) -> Self {
        Self { address: raw as u32 & !1, count: (raw >> 32) as u16 & !1, last: raw >> 63 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_64_kib_has_the_count_zero() {
        let region = Prd::new(0x1_0000, 0x1_0000).unwrap();
        assert_eq!(region.into_raw(), 0x1_0000);
        assert_eq!(region.bytes(), 0x1_0000);
    }

    #[test]
    fn a_region_across_64_kib_cannot_be_built() {
        assert_eq!(Prd::new(0xfffe, 4), None);
        assert!(Prd::new(0xfffe, 2).is_some());
    }

    #[test]
    fn odd_empty_and_distant_regions_cannot_be_built() {
        for (iova, bytes) in [(1, 2), (0, 3), (0, 0), (1 << 32, 2), (0, 0x1_0002)] {
            assert_eq!(Prd::new(iova, bytes), None, "{iova:#x} {bytes:#x}");
        }
    }

    #[test]
    fn a_descriptor_is_read_as_it_is_written() {
        let region = Prd::new(0xdead_0000, 0x2000).unwrap().with_last();
        assert_eq!(Prd::from_raw(region.into_raw()), region);
    }
}
