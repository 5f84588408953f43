//! What a disk and its queues leave behind, as it is written down.
//!
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has left. All of it is input to whoever reads it.

use ring3_class::block::Info;
use ring3_device::dma::Span;
use serde::{Deserialize, Serialize};

use super::super::saved::{SavedQueueAddresses, SavedVirtqueue};
use super::disk::Options;
use super::identity::Shape;
use crate::disk::write_cache::SavedCache;

/// What a disk's state is called, and the version of its form.
pub(super) const DISK: (&str, u32) = ("virtio-blk disk", 1);
/// The same of a queue.
pub(super) const QUEUE: (&str, u32) = ("virtio-blk queue", 1);

/// A disk, but for its registers, which say the rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedDisk {
    /// What was agreed upon.
    pub(super) features: u64,
    pub(super) options: Options,
    /// What it is, by which another disk is told apart.
    pub(super) info: Info,
    pub(super) shape: Shape,
    /// Interrupts that are enabled.
    pub(super) vectors: u16,
    pub(super) generation: u32,
    pub(super) cache_lost: u32,
    pub(super) cache: Option<SavedCache>,
    pub(super) seats: Vec<SavedVirtqueueSlot>,
}

/// A virtqueue's place.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedVirtqueueSlot {
    pub(super) places: SavedQueueAddresses,
    /// `None` if its owner has it, or has left it; of one that was left before a reset, what that
    /// has made.
    pub(super) queue: Option<SavedVirtqueue>,
    /// Its owner has left it. States of the first days say so by the lack of a `queue`.
    #[serde(default)]
    pub(super) detached: Option<bool>,
}

/// The virtqueue of a queue.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedBlkQueue {
    pub(super) number: u16,
    pub(super) queue: SavedVirtqueue,
    /// What the device reads and writes for requests, beside their data.
    pub(super) requests: Span,
}

#[cfg(test)]
mod tests {
    use ring3_class::Saved;
    use ring3_class::block::Operation;

    use super::super::super::saved::SavedRing;
    use super::*;
    use crate::disk::SavedQueue;

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let read = |text| serde_json::from_str::<Saved>(text).unwrap();
        let disks = [
            include_str!("../../../tests/saved/virtio_blk_disk_split.json"),
            include_str!("../../../tests/saved/virtio_blk_disk_packed.json"),
        ];
        for disk in disks {
            let disk: SavedDisk = read(disk).read(DISK.0, DISK.1).unwrap();
            assert!(
                disk.seats
                    .iter()
                    .map(|seat| (seat.queue.is_some(), seat.detached))
                    .eq([false, true, true, true].map(|has| (has, None)))
            );
            assert_eq!((disk.vectors, disk.shape.entries, disk.info.blocks), (5, 256, 131072));
        }
        let queues = [
            include_str!("../../../tests/saved/virtio_blk_queue_split.json"),
            include_str!("../../../tests/saved/virtio_blk_queue_packed.json"),
        ];
        for (queue, is_packed) in queues.into_iter().zip([false, true]) {
            let queue: SavedQueue<SavedBlkQueue> = read(queue).read(QUEUE.0, QUEUE.1).unwrap();
            assert_eq!(
                (queue.slots, queue.held.len(), queue.held[0].request.operation),
                (8, 3, Operation::Write)
            );
            assert_eq!(matches!(queue.rings.queue.state, SavedRing::Packed(_)), is_packed);
        }
    }
}
