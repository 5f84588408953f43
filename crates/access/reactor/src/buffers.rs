//! Buffers from which the kernel takes one for each piece of what it has to say.
//! [io_uring_register_buf_ring(3)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A ring of them, and behind it their memory. Unmapped when it is dropped: not before the io_uring
/// that it is registered with is closed.
pub struct Buffers {
    base: NonNull<BufRingEntry>,
    /// Of the whole mapping.
    len: usize,
    /// Where the first buffer begins.
    data: usize,
    count: u16,
    bytes: u32,
    tail: u16,
}

// SAFETY: memory of its own, which belongs to no thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `count` (a power of two, at most 32768) of `bytes` each, all of them the kernel's.
    pub fn new(count: u16, bytes: u32) -> io::Result<Self> {
        assert!(count.is_power_of_two(), "{count} buffers: the kernel takes powers of two");
        let data = (usize::from(count) * size_of::<BufRingEntry>())
            .next_multiple_of(rustix::param::page_size());
        let len = data + usize::from(count) * bytes as usize;
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let mut buffers = Self { base, len, data, count, bytes, tail: 0 };
        (0..count).for_each(|id| buffers.give(id));
        Ok(buffers)
    }

    /// What to register: where the ring is, and its entries.
    pub fn ring(&self) -> (u64, u16) {
        (self.base.as_ptr() as u64, self.count)
    }

    /// The first `len` bytes of buffer `id`, which the kernel has filled and not been given back;
    /// fewer if it is not as long, and none if there is no such buffer.
    pub fn filled(&self, id: u16, len: u32) -> &[u8] {
        let len = if id < self.count { len.min(self.bytes) } else { 0 };
        let offset = self.data + usize::from(id) * self.bytes as usize;
        // SAFETY: inside the mapping, by the two bounds above; the kernel writes nothing there
        // before `give`, which needs this value for itself alone.
        unsafe {
            std::slice::from_raw_parts(
                if len == 0 {
                    self.base.as_ptr().cast()
                } else {
                    self.base.as_ptr().cast::<u8>().add(offset)
                },
                len as usize,
            )
        }
    }

    /// Gives buffer `id` to the kernel.
    pub fn give(&mut self, id: u16) {
        if id >= self.count {
            return;
        }
        let place = usize::from(self.tail & (self.count - 1));
        let addr =
            self.base.as_ptr() as u64 + self.data as u64 + u64::from(id) * u64::from(self.bytes);
        // SAFETY: one of `count` entries. The kernel reads none of those that it has taken, and has
        // not been shown this one.
        let entry = unsafe { &mut *self.base.as_ptr().add(place) };
        entry.set_addr(addr);
        entry.set_len(self.bytes);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, at a place of its own that is aligned and only
        // ever written so.
        let tail =
            unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.base.as_ptr()).cast_mut()) };
        // Whoever sees the tail sees the entry.
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and readers hold this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_not_there_has_no_bytes_and_is_not_given() {
        let mut buffers = Buffers::new(4, 64).unwrap();
        assert_eq!(
            (buffers.filled(3, 64).len(), buffers.filled(3, 65).len(), buffers.filled(4, 1).len()),
            (64, 64, 0)
        );
        buffers.give(4);
        assert_eq!(buffers.tail, 4);
    }

    #[test]
    fn buffers_lie_behind_the_ring_and_one_behind_the_other() {
        let buffers = Buffers::new(8, 100).unwrap();
        let (ring, entries) = buffers.ring();
        let places: Vec<_> =
            (0..8).map(|id| buffers.filled(id, 100).as_ptr() as u64 - ring).collect();
        assert_eq!((entries, places[1] - places[0]), (8, 100));
        assert!(places[0] >= 8 * 16 && places[7] + 100 <= buffers.len as u64);
    }
}
