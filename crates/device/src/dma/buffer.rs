//! An owned range of an arena.

use std::ptr::NonNull;

use super::ledger::Ledger;
use super::{Arena, Segment, Span, bytes};
use crate::Error;

/// Bytes that the device can reach, owned by one holder, given back to the arena when dropped.
///
/// Who lends it to a device gives the value away and gets it back with the completion, so that nobody reads bytes that are
/// still being written.
///
/// One word long: a request and its completion carry it by value through every layer.
pub struct DmaBuffer(Box<Range>);

struct Range {
    arena: Arena,
    base: NonNull<u8>,
    iova: u64,
    len: usize,
    /// Of these, how many lie in the page where it begins; none if it begins at no multiple of 4.
    in_page: usize,
    /// Bytes at offsets of 32 bits; none if it does not begin as words do.
    reach: usize,
    /// Numbers of words with which a pair of words begins, all within [`reach`](Self::reach).
    pairs: usize,
}

/// Bytes of a pair of words.
const PAIR: u32 = 16;

/// The smallest page of a device.
const PAGE: usize = 4096;

// SAFETY: the buffer is an exclusive range of the arena's memory and is only accessed by atomics.
unsafe impl Send for DmaBuffer {}
// SAFETY: as above; `&self` methods copy by relaxed atomics, so that threads that race, with each other or with the device, tear bytes
// apart at most.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    /// # Safety
    /// The `len` bytes at `base` lie in a region of `arena`, where they have the device address `iova`, and belong to nobody else.
    pub(super) unsafe fn new(arena: Arena, base: NonNull<u8>, iova: u64, len: usize) -> Self {
        let in_page = if iova.is_multiple_of(4) { len.min(PAGE - iova as usize % PAGE) } else { 0 };
        let reach = if base.cast::<u64>().is_aligned() { len.min(u32::MAX as usize) } else { 0 };
        let pairs = (reach / size_of::<u64>()).saturating_sub(1);
        Self(Box::new(Range { arena, base, iova, len, in_page, reach, pairs }))
    }

    /// Its first device address.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.0.iova
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// How many of them lie in the page of 4 KiB where it begins, if that is at a multiple of 4; none otherwise. Such bytes are one piece for
    /// every device.
    #[inline]
    pub fn in_page(&self) -> usize {
        self.0.in_page
    }

    /// Only after [`abandon`](Self::abandon): an arena gives out at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Where it lies in this process, for a kernel interface that takes an address. Never make a reference of it.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Its first `len` bytes as the device sees them; the whole if it is shorter.
    pub fn segment(&self, len: usize) -> Segment {
        Segment { iova: self.iova(), len: len.min(self.len()) as u32 }
    }

    /// The same, with a word for what it is for in what [`Arena::save`] says.
    pub fn tagged(self, tag: &'static str) -> Self {
        self.0.arena.tag(self.iova(), tag);
        self
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Its name in the arena; empty once it is abandoned.
    pub fn span(&self) -> Span {
        self.0.arena.span(self.iova(), self.len()).unwrap_or(Span { region: 0, len: 0, offset: 0 })
    }

    /// Copies `bytes.len()` bytes out, from `offset` on.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let from = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_out(from, bytes) };
        Ok(())
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_in(bytes, to) };
        Ok(())
    }

    /// The `N` words from byte `at` on; `None` where they are not aligned as words are, or not within the buffer.
    #[inline]
    pub fn words_at<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        let from = self.words_within::<N>(at)?;
        // SAFETY: `words_within` proved the range, which is only accessed by raw pointers.
        Some(unsafe { bytes::load_words(from) })
    }

    /// Writes `words` from byte `at` on. False, and nothing is written, where they would not be aligned as words are, or not within the buffer.
    #[inline]
    #[must_use]
    pub fn set_words_at<const N: usize>(&self, at: usize, words: [u64; N]) -> bool {
        let Some(to) = self.words_within::<N>(at) else { return false };
        // SAFETY: `words_within` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::store_words(words, to) };
        true
    }

    #[inline]
    fn words_within<const N: usize>(&self, at: usize) -> Option<*mut u64> {
        let last = self.len().checked_sub(N * size_of::<u64>())?;
        let first = self.as_ptr().wrapping_add(at).cast::<u64>();
        (at <= last && first.is_aligned()).then_some(first)
    }

    /// The two words right before byte `start`; `None` where they are not aligned as words are, or not within the buffer.
    #[inline]
    pub fn pair_before(&self, start: u32) -> Option<[u64; 2]> {
        // What is not aligned, and what begins before the buffer, has a number beyond all words.
        let first = (start as usize).wrapping_sub(PAIR as usize).rotate_right(3);
        if first >= self.0.pairs {
            return None;
        }
        let from = self.as_ptr().cast::<u64>().wrapping_add(first);
        // SAFETY: the pair that begins with this word is within the buffer and aligned, and it is only accessed by raw pointers.
        Some(unsafe { bytes::load_words(from) })
    }

    /// The device address of byte `start`, if `before` bytes before it and `len` from it on are within the buffer; `None` otherwise, and of a buffer that does not begin as words do.
    #[inline]
    pub fn address_within(&self, start: u32, before: u32, len: u32) -> Option<u64> {
        // Where there is less before it, this is beyond all that offsets of 32 bits reach.
        let end = start.wrapping_sub(before) as usize + (before as usize + len as usize);
        (end <= self.0.reach).then(|| self.iova() + u64::from(start))
    }

    /// Writes the two words right before byte `start`, from which on `len` bytes follow, whose device address it returns; `None`, and nothing is written, where the words are not aligned as words are, or
    /// words or bytes are not within the buffer.
    #[inline]
    pub fn set_pair_before(&self, start: u32, len: u32, words: [u64; 2]) -> Option<u64> {
        let first = start.wrapping_sub(PAIR);
        // Where the words begin before the buffer, this is beyond all that offsets of 32 bits reach.
        let end = first as usize + PAIR as usize + len as usize;
        if !first.is_multiple_of(8) || end > self.0.reach {
            return None;
        }
        let to = self.as_ptr().wrapping_add(first as usize).cast::<u64>();
        // SAFETY: both words are within the buffer, as its end is not before theirs, and aligned as its begin is; they are only accessed by raw pointers.
        unsafe { bytes::store_words(words, to) };
        Some(self.iova() + u64::from(start))
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the buffer's own range, which is only accessed by raw pointers.
        unsafe { bytes::fill(self.as_ptr(), byte, self.len()) };
    }

    /// Gives the range up for good: it never returns to the arena, because a device that nobody could stop may still write there.
    /// The buffer is empty afterwards.
    pub fn abandon(&mut self) {
        self.lose();
    }

    /// Has no bytes any more.
    fn lose(&mut self) {
        (self.0.len, self.0.in_page, self.0.reach, self.0.pairs) = (0, 0, 0, 0);
    }

    /// Gives the range up for whoever [claims](Arena::claim) it, here or in the process that adopts the arena: it stays taken, with its bytes,
    /// because the device still has it. The buffer is empty afterwards.
    pub fn leave(&mut self) -> Span {
        let span = self.span();
        if span.len > 0 {
            self.0.arena.change(self.iova(), Ledger::leave);
            self.lose();
        }
        span
    }

    pub(super) fn checked(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(Error::Invalid(format!("bytes {offset}+{len} of a DMA buffer of {}", self.len())));
        }
        // SAFETY: offset is within the buffer.
        Ok(unsafe { self.as_ptr().add(offset) })
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        // An abandoned buffer is empty and gives nothing back.
        self.0.arena.give_back(self.iova(), self.len());
    }
}

impl std::fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaBuffer({:#x}+{:#x})", self.iova(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;

    fn arena() -> Arena {
        Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000)
    }

    #[test]
    fn a_pair_of_words_is_reached_where_it_is_aligned_and_within_the_buffer() {
        let buffer = arena().alloc(64, 64).unwrap();
        buffer.write(16, &[1, 0, 0, 0, 0, 0, 0, 0, 2]).unwrap();
        assert_eq!(buffer.pair_before(32), Some([1, 2]));
        for start in [16, 24, 64] {
            assert!(buffer.pair_before(start).is_some(), "{start}");
        }
        for start in [0, 8, 15, 17, 31, 63, 72, u32::MAX, u32::MAX - 7, 1 << 31] {
            assert_eq!(buffer.pair_before(start), None, "{start}");
        }
    }

    #[test]
    fn a_pair_is_written_only_where_it_and_the_bytes_behind_it_are_within_the_buffer() {
        let buffer = arena().alloc(64, 64).unwrap();
        let set = |start, len| buffer.set_pair_before(start, len, [3, 4]);
        assert_eq!(set(24, 40), Some(buffer.iova() + 24));
        assert_eq!((buffer.pair_before(24), buffer.pair_before(40)), (Some([3, 4]), Some([0, 0])));
        assert_eq!(set(64, 0), Some(buffer.iova() + 64));
        for (start, len) in
            [(24, 41), (0, 8), (15, 1), (8, 1), (17, 1), (72, 0), (16, u32::MAX), (u32::MAX, 1), (u32::MAX - 7, 16)]
        {
            assert_eq!(set(start, len), None, "{start} {len}");
        }
    }

    #[test]
    fn an_address_is_one_of_bytes_that_the_buffer_has() {
        let buffer = arena().alloc(64, 64).unwrap();
        assert_eq!(buffer.address_within(16, 16, 48), Some(buffer.iova() + 16));
        assert_eq!(buffer.address_within(17, 16, 47), Some(buffer.iova() + 17));
        for (start, before, len) in [(15, 16, 1), (16, 16, 49), (64, 0, 1), (u32::MAX, 0, 2), (0, 1, 1), (0, u32::MAX, u32::MAX)]
        {
            assert_eq!(buffer.address_within(start, before, len), None, "{start} {before} {len}");
        }
    }

    #[test]
    fn a_buffer_that_does_not_begin_as_words_do_or_is_lost_has_none() {
        let arena = arena();
        let (_odd, buffer) = (arena.alloc(4, 1).unwrap(), arena.alloc(64, 4).unwrap());
        assert!(!buffer.iova().is_multiple_of(8));
        assert_eq!(
            (buffer.pair_before(20), buffer.set_pair_before(20, 1, [0; 2]), buffer.address_within(16, 16, 1)),
            (None, None, None)
        );
        let mut buffer = arena.alloc(64, 64).unwrap();
        buffer.leave();
        assert_eq!(
            (buffer.pair_before(32), buffer.set_pair_before(32, 1, [0; 2]), buffer.address_within(16, 16, 1)),
            (None, None, None)
        );
    }
}
