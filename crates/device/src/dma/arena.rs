//! The memory of one device, mapped once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::extents::Extents;
use super::{DmaBuffer, Memory};
use crate::Error;

/// Memory that the device reaches at all times: device address = `iova` + offset. Cloning makes another handle.
///
/// Allocation takes a lock and is for start-up; what a request needs is allocated before the first request.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Arc<Memory>,
    iova: u64,
    /// Free ranges of device addresses.
    free: Mutex<Extents>,
}

impl Arena {
    /// The arena over `memory`, which the backend has mapped (or is about to map) at `iova`.
    pub fn new(memory: impl Into<Arc<Memory>>, iova: u64) -> Self {
        let memory = memory.into();
        let len = memory.len();
        Self::with_range(memory, iova, 0, len)
    }

    /// As [`new`](Arena::new), but only `memory[start..end]` is given out. `iova` is still that of offset 0.
    pub fn with_range(memory: impl Into<Arc<Memory>>, iova: u64, start: usize, end: usize) -> Self {
        let memory = memory.into();
        let end = end.min(memory.len());
        let free = Mutex::new(Extents::new(iova + start as u64, end.saturating_sub(start) as u64));
        Self { inner: Arc::new(Inner { memory, iova, free }) }
    }

    /// The memory underneath, for who must share it.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.inner.memory
    }

    /// The device address of offset 0.
    pub fn iova(&self) -> u64 {
        self.inner.iova
    }

    /// A zeroed buffer of `len` bytes (at least 1) whose device address is a multiple of `align`, a power of two.
    pub fn alloc(&self, len: usize, align: usize) -> Result<DmaBuffer, Error> {
        if len == 0 || !align.is_power_of_two() {
            return Err(Error::Invalid(format!("DMA buffer of {len} bytes aligned to {align}")));
        }
        let offset = self.carve(len, align)?;
        let buffer = DmaBuffer::new(self.clone(), offset, len);
        buffer.fill(0);
        Ok(buffer)
    }

    /// A buffer of `len` bytes that starts on a page, as queues and data that a PRP describes must.
    pub fn alloc_pages(&self, len: usize) -> Result<DmaBuffer, Error> {
        self.alloc(len, 4096)
    }

    /// Bytes that are free now, in all ranges together.
    pub fn free_bytes(&self) -> usize {
        self.free().total() as usize
    }

    fn carve(&self, len: usize, align: usize) -> Result<usize, Error> {
        let mut free = self.free();
        match free.carve(len as u64, align as u64) {
            Some(iova) => Ok((iova - self.inner.iova) as usize),
            None => Err(Error::NoMemory { wanted: len, free: free.total() as usize, total: self.inner.memory.len() }),
        }
    }

    /// Takes a range back and joins it with its neighbours.
    pub(super) fn give_back(&self, iova: u64, len: usize) {
        self.free().give_back(iova, len as u64);
    }

    fn free(&self) -> MutexGuard<'_, Extents> {
        // The set is consistent between any two statements that can panic, so a poisoned lock is still good.
        self.inner.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(len: usize) -> Arena {
        Arena::new(Memory::new(len).unwrap(), 0x10_0000)
    }

    #[test]
    fn device_addresses_are_aligned_even_if_the_arena_is_not() {
        let arena = Arena::new(Memory::new(1 << 16).unwrap(), 0x1000);
        assert_eq!(arena.alloc(100, 1 << 14).unwrap().iova() % (1 << 14), 0);
    }

    #[test]
    fn an_arena_that_is_full_says_how_much_was_wanted() {
        let arena = arena(4096);
        let total = arena.memory().len();
        assert!(matches!(arena.alloc(total + 1, 1), Err(Error::NoMemory { wanted, .. }) if wanted == total + 1));
    }

    #[test]
    fn a_new_buffer_is_zeroed_even_if_its_range_was_used_before() {
        let arena = arena(4096);
        let buffer = arena.alloc(4096, 1).unwrap();
        buffer.fill(0xff);
        drop(buffer);
        let mut bytes = [1; 4096];
        arena.alloc(4096, 1).unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }

    #[test]
    fn an_abandoned_buffer_does_not_come_back() {
        let arena = arena(1 << 14);
        let before = arena.free_bytes();
        let mut buffer = arena.alloc(4096, 1).unwrap();
        buffer.abandon();
        assert!(buffer.read(0, &mut [0]).is_err());
        drop(buffer);
        assert_eq!(arena.free_bytes(), before - 4096);
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_everything_comes_back(sizes in prop::collection::vec((1usize..9000, 0u32..13), 1..40), order in any::<u64>()) {
            let arena = arena(1 << 20);
            let before = arena.free_bytes();
            let mut held = Vec::new();
            for (i, &(len, align)) in sizes.iter().enumerate() {
                if let Ok(buffer) = arena.alloc(len, 1 << align) {
                    held.push(buffer);
                }
                if order >> (i % 64) & 1 == 1 && !held.is_empty() {
                    held.swap_remove(i % held.len());
                }
                let mut ranges: Vec<_> = held.iter().map(|b| (b.iova(), b.iova() + b.len() as u64)).collect();
                ranges.sort();
                prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
            }
            held.clear();
            prop_assert_eq!(arena.free_bytes(), before);
            prop_assert_eq!(arena.free().count(), 1);
        }
    }
}
