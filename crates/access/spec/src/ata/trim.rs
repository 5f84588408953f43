//! What DATA SET MANAGEMENT says to TRIM. [ACS-3 7.5.3]

/// A range of logical blocks, eight bytes; a count of zero is an empty entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimRange {
    /// First block, 48 bits.
    pub lba: u64,
    /// Blocks, 0 to [`MAX_BLOCKS`](Self::MAX_BLOCKS).
    pub blocks: u16,
}

impl TrimRange {
    /// Most blocks of one range.
    pub const MAX_BLOCKS: u32 = 65535;
    /// Ranges in one unit of 512 bytes.
    pub const PER_SECTOR: usize = super::SECTOR / 8;

    /// As the drive reads it.
    pub const fn to_bytes(self) -> [u8; 8] {
        (self.lba & ((1 << 48) - 1) | (self.blocks as u64) << 48).to_le_bytes()
    }

    /// As the drive reads it.
    pub const fn from_bytes(bytes: [u8; 8]) -> Self {
        let raw = u64::from_le_bytes(bytes);
        Self { lba: raw & ((1 << 48) - 1), blocks: (raw >> 48) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_as_it_is_written() {
        let range = TrimRange { lba: 0x1234_5678_9abc, blocks: 0xfedc };
        assert_eq!(range.to_bytes(), [0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0xdc, 0xfe]);
        assert_eq!(TrimRange::from_bytes(range.to_bytes()), range);
    }
}
