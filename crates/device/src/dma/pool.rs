//! Buffers of one size, taken and given back without a lock.

use super::{Arena, DmaBuffer};
use crate::Error;

/// A stack of buffers of one size that belongs to one thread. What is dropped instead of given back returns to the arena.
pub struct Pool {
    free: Vec<DmaBuffer>,
    size: usize,
    capacity: usize,
}

impl Pool {
    /// `count` zeroed buffers of `size` bytes at device addresses that are multiples of `align`.
    pub fn new(arena: &Arena, count: usize, size: usize, align: usize) -> Result<Self, Error> {
        let free = (0..count).map(|_| arena.alloc(size, align)).collect::<Result<_, _>>()?;
        Ok(Self { free, size, capacity: count })
    }

    /// Bytes of each buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Buffers that can be taken now.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a buffer; it holds what its last user left.
    #[inline]
    pub fn take(&mut self) -> Option<DmaBuffer> {
        self.free.pop()
    }

    /// Gives a buffer back. One that is not of this size, or one too many, goes back to its arena.
    #[inline]
    pub fn give(&mut self, buffer: DmaBuffer) {
        if buffer.len() == self.size && self.free.len() < self.capacity {
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Memory;
    use super::*;

    #[test]
    fn a_pool_gives_out_as_many_buffers_as_it_has() {
        let arena = Arena::new(Memory::new(1 << 16).unwrap(), 0x10_0000);
        let mut pool = Pool::new(&arena, 2, 4096, 4096).unwrap();
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none() && first.iova() != second.iova());
        pool.give(first);
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn a_buffer_of_another_size_goes_back_to_its_arena() {
        let arena = Arena::new(Memory::new(1 << 16).unwrap(), 0x10_0000);
        let mut pool = Pool::new(&arena, 1, 4096, 4096).unwrap();
        let before = arena.free_bytes();
        pool.give(arena.alloc(512, 1).unwrap());
        assert_eq!((pool.free(), arena.free_bytes()), (1, before));
    }
}
