//! The command list of a port and the tables behind it. [AHCI 4.2]

use crate::fields;
use crate::layout;

/// Command slots that a port can have.
pub const SLOTS: u8 = 32;
/// Bytes of a command header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of a command list. [AHCI 4.2.2]
pub const COMMAND_LIST_BYTES: usize = 1024;
/// A command list is at a multiple of this.
pub const COMMAND_LIST_ALIGN: usize = 1024;
/// Bytes of the received frames. [AHCI 4.2.1]
pub const RECEIVED_BYTES: usize = 256;
/// The received frames are at a multiple of this.
pub const RECEIVED_ALIGN: usize = 256;
/// A command table is at a multiple of this. [AHCI 4.2.3]
pub const COMMAND_ALIGN: usize = 128;
/// Where in a command table the command's frame is.
pub const TABLE_FRAME: usize = 0x00;
/// Where in a command table its regions begin.
pub const TABLE_REGIONS: usize = 0x80;
/// Bytes of a region.
pub const REGION_BYTES: usize = 16;
/// Most bytes of one region: 4 MiB. [AHCI 4.2.3.3]
pub const MAX_REGION_BYTES: u32 = 1 << 22;

fields! {
    /// The first dword of a command header. [AHCI 4.2.2]
    pub struct HeaderFlags(u32) {
        /// CFL: dwords of the command's frame, 2 to 16.
        frame_dwords, with_frame_dwords: 4..=0;
        /// A: ATAPI.
        atapi, with_atapi: 5..=5;
        /// W: memory is read, the disk is written.
        write, with_write: 6..=6;
        /// P: the regions may be fetched ahead. Not for queued commands.
        prefetch, with_prefetch: 7..=7;
        /// R: the frame is a part of a software reset.
        reset, with_reset: 8..=8;
        /// C: BSY is cleared when the frame has been accepted.
        clear_busy, with_clear_busy: 10..=10;
        /// PRDTL: regions of its table.
        regions, with_regions: 31..=16;
    }
}

layout! {
    /// A command header, 32 bytes. [AHCI 4.2.2]
    pub struct CommandHeader[32] {
        /// [`HeaderFlags`].
        flags, set_flags: u32 @ 0;
        /// PRDBC: bytes moved, written by the controller. Of no use for queued commands.
        moved, set_moved: u32 @ 4;
        /// CTBA: device address of the command table.
        table, set_table: u64 @ 8;
    }
}

/// One piece of memory of a transfer. [AHCI 4.2.3.3]
///
/// It cannot be built for a piece at an odd address, of odd or no length, or above 4 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    iova: u64,
    bytes_0based: u32,
}

impl Region {
    /// `bytes` from `iova` on.
    pub const fn new(iova: u64, bytes: u32) -> Option<Self> {
        if iova.is_multiple_of(2)
            && bytes.is_multiple_of(2)
            && bytes > 0
            && bytes <= MAX_REGION_BYTES
        {
            Some(Self { iova, bytes_0based: bytes - 1 })
        } else {
            None
        }
    }

    /// First device address.
    pub const fn iova(self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub const fn bytes(self) -> u32 {
        self.bytes_0based + 1
    }

    /// As the controller reads it: two little-endian words of 64 bits.
    pub const fn into_raw(self) -> [u64; 2] {
        [self.iova, (self.bytes_0based as u64) << 32]
    }

    /// What the controller makes of two words.
    pub const fn from_raw(raw: [u64; 2]) -> Self {
        Self { iova: raw[0] & !1, bytes_0based: (raw[1] >> 32) as u32 & (MAX_REGION_BYTES - 1) | 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_read_as_it_is_written() {
        let region = Region::new(0x12_3456_7890, 4 << 20).unwrap();
        assert_eq!(region.into_raw()[1], 0x3f_ffff << 32);
        assert_eq!(Region::from_raw(region.into_raw()), region);
    }

    #[test]
    fn odd_empty_and_long_regions_cannot_be_built() {
        for (iova, bytes) in [(1, 2), (0, 1), (0, 0), (0, (4 << 20) + 2)] {
            assert_eq!(Region::new(iova, bytes), None, "{iova:#x} {bytes:#x}");
        }
    }
}
