//! Register writes that were recorded and not yet delivered, so that a benchmark can count the
//! driver without the model.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SLOTS: usize = 4096;
/// Slots that stay free, so that this many threads may claim one at the same time.
const SPARE: usize = 64;
/// Set in every record, so that a slot that is claimed but not yet written can be told apart.
const WRITTEN: u64 = 1 << 63;
/// Offsets that a record holds.
const OFFSETS: u64 = 1 << 28;

/// A 32-bit write: BAR, offset, value.
pub(super) type Write = (u8, u64, u32);

/// A queue of writes: many writers, and one reader that the model's lock excludes from others.
pub(super) struct Posted {
    on: AtomicBool,
    head: AtomicUsize,
    tail: AtomicUsize,
    slots: [AtomicU64; SLOTS],
}

impl Posted {
    pub(super) fn new() -> Self {
        let slots = [const { AtomicU64::new(0) }; SLOTS];
        Self {
            on: AtomicBool::new(false),
            slots,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    pub(super) fn set(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records a write; false if recording is off, or there is no room, or the offset is beyond
    /// what a record holds.
    ///
    /// A benchmark counts this as the driver's, so it is as short as can be: about 20 instructions.
    #[inline]
    pub(super) fn record(&self, (bar, offset, value): Write) -> bool {
        if !self.on.load(Ordering::Relaxed) || offset >= OFFSETS {
            return false;
        }
        let used =
            self.tail.load(Ordering::Relaxed).wrapping_sub(self.head.load(Ordering::Acquire));
        if used >= SLOTS - SPARE {
            return false;
        }
        let tail = self.tail.fetch_add(1, Ordering::Relaxed);
        let record = WRITTEN | u64::from(bar) << 60 | offset << 32 | u64::from(value);
        self.slots[tail % SLOTS].store(record, Ordering::Release);
        true
    }

    /// Takes the oldest write. Only one caller at a time.
    #[inline]
    pub(super) fn take(&self) -> Option<Write> {
        let head = self.head.load(Ordering::Relaxed);
        if head == self.tail.load(Ordering::Acquire) {
            return None;
        }
        let slot = &self.slots[head % SLOTS];
        let record = loop {
            match slot.swap(0, Ordering::Acquire) {
                // Claimed, and its writer is one store away.
                0 => std::thread::yield_now(),
                record => break record,
            }
        };
        self.head.store(head.wrapping_add(1), Ordering::Release);
        Some(((record >> 60 & 7) as u8, record >> 32 & (OFFSETS - 1), record as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_out_in_the_order_in_which_they_went_in() {
        let posted = Posted::new();
        assert!(!posted.record((0, 0, 0)));
        posted.set(true);
        assert!(posted.record((5, 0x1008, u32::MAX)));
        assert!(posted.record((0, 0, 0)));
        assert_eq!(posted.take(), Some((5, 0x1008, u32::MAX)));
        assert_eq!(posted.take(), Some((0, 0, 0)));
        assert_eq!(posted.take(), None);
    }

    #[test]
    fn a_full_record_refuses_and_has_room_again_after_a_take() {
        let posted = Posted::new();
        posted.set(true);
        assert!((0..(SLOTS - SPARE) as u32).all(|i| posted.record((0, 0, i))));
        assert!(!posted.record((0, 0, 0)));
        assert_eq!(posted.take(), Some((0, 0, 0)));
        assert!(posted.record((0, 0, 0)));
    }
}
