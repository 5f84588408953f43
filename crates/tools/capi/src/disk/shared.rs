//! What lies between a disk's queue and the program that drives it.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use ring3_class::block::Operation;

use super::lane::Lane;
use super::lent::Lent;

/// What the program and the queue say to each other.
pub(super) struct DiskShared {
    /// Requests for the program: see [`Wanted`].
    pub(super) wanted: Lane<4>,
    /// Ends of its: tag and errno.
    pub(super) ended: Lane<2>,
    /// The queue is open, or was dropped with requests in the program's hands: no end of one is
    /// taken for that of a later one.
    pub(super) opened: AtomicBool,
    /// If ring3d has the disk: its threads sleep, where the server takes turns with the program.
    pub(super) lent: OnceLock<Lent>,
}

impl DiskShared {
    /// Of a disk that takes `depth` requests at once.
    pub(super) fn new(depth: u16) -> Self {
        let (wanted, ended) = (Lane::new(depth.into()), Lane::new(depth.into()));
        Self { wanted, ended, opened: AtomicBool::new(false), lent: OnceLock::new() }
    }
}

/// A request as the program gets it.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) tag: u64,
    pub(super) operation: Operation,
    pub(super) fua: bool,
    pub(super) blocks: u32,
    pub(super) lba: u64,
    /// Where its bytes lie in this process; 0 if there are none.
    pub(super) address: u64,
}

const OPERATIONS: [Operation; 5] = [
    Operation::Read,
    Operation::Write,
    Operation::Flush,
    Operation::WriteZeroes,
    Operation::Discard,
];
const FUA: u64 = 1 << 8;

impl Wanted {
    pub(super) fn encode(self) -> [u64; 4] {
        let operation = OPERATIONS
            .iter()
            .position(|&operation| operation == self.operation)
            .unwrap_or_default() as u64;
        let flags = if self.fua { FUA } else { 0 };
        [self.tag, operation | flags | u64::from(self.blocks) << 32, self.lba, self.address]
    }

    pub(super) fn decode([tag, word, lba, address]: [u64; 4]) -> Option<Self> {
        let operation = *OPERATIONS.get(word as usize & 0xff)?;
        Some(Self {
            tag,
            operation,
            fua: word & FUA != 0,
            blocks: (word >> 32) as u32,
            lba,
            address,
        })
    }
}
