//! The description of a disk.

use ring3_device::dma::SegmentRules;

/// A disk's description.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Info {
    /// Maker's name for it.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Most bytes that one request may move; the [`Splitter`](super) cuts longer ones.
    pub max_transfer: u32,
    /// Which lists of segments one request may have; others are copied through the arena.
    pub segments: SegmentRules,
    /// Bytes of a write that costs no read-modify-write inside of the device; at least
    /// `block_size`.
    pub optimal_io: u32,
    /// Bytes whose multiples a request is best kept from crossing: one that does is slower than two
    /// that do not. A power of two, or 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub boundary: u32,
    /// Whether writes may sit in a cache that loses them with the power, so that flush and FUA mean
    /// something.
    pub volatile_cache: bool,
    /// Whether the device writes through for a single request.
    pub fua: bool,
    /// Most blocks of one write-zeroes request; 0 if the device cannot.
    pub max_write_zeroes_blocks: u32,
    /// Discard, if the device can.
    pub discard: Option<Discard>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether its medium turns, so that the order of requests matters.
    pub rotates: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Limits of discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Discard {
    /// Most blocks of one request.
    pub max_blocks: u32,
    /// Bytes of the smallest unit that is really freed.
    pub granularity: u32,
}

impl Info {
    /// Bytes.
    pub fn capacity(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}
