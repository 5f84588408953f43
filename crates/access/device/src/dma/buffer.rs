//! An owned range of an arena.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::ledger::RangeAllocator;
use super::segment::in_page;
use super::{Arena, Segment, Span, bytes};
use crate::Error;

/// Bytes that the device can reach, owned by one holder, given back to the arena when dropped.
///
/// Who lends it to a device gives the value away and gets it back with the completion, so that
/// nobody reads bytes that are still being written.
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
    /// What [`reach`](Self::reach) leaves behind a header.
    within: usize,
    /// Numbers of words with which a pair of words begins, all within [`reach`](Self::reach).
    pairs: usize,
}

/// Bytes of a pair of words.
const PAIR: u32 = 16;
/// Bytes of the header that such a pair ends with: that of a virtio network card's packets.
const HEADER: u32 = 12;

// SAFETY: the buffer is an exclusive range of the arena's memory and is only accessed by atomics.
unsafe impl Send for DmaBuffer {}
// SAFETY: as above; `&self` methods copy by relaxed atomics, so that threads that race, with each
// other or with the device, tear bytes apart at most.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    /// # Safety
    /// The `len` bytes at `base` lie in a region of `arena`, where they have the device address
    /// `iova`, and belong to nobody else.
    pub(super) unsafe fn new(arena: Arena, base: NonNull<u8>, iova: u64, len: usize) -> Self {
        let in_page = in_page(iova, len);
        let reach = if base.cast::<u64>().is_aligned() { len.min(u32::MAX as usize) } else { 0 };
        let (within, pairs) =
            (reach.saturating_sub(HEADER as usize), (reach / size_of::<u64>()).saturating_sub(1));
        Self(Box::new(Range { arena, base, iova, len, in_page, reach, within, pairs }))
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

    /// How many of them lie in the page of 4 KiB where it begins, if that is at a multiple of 4;
    /// none otherwise. Such bytes are one piece for every device.
    #[inline]
    pub fn in_page(&self) -> usize {
        self.0.in_page
    }

    /// Only after [`abandon`](Self::abandon): an arena gives out at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Maps the pages of its first `len` bytes into this process, by a look at each: a device fills
    /// memory that nobody here has touched. Whoever looks first may have to wait for the kernel.
    pub fn map_pages(&self, len: usize) {
        for offset in (0..len.min(self.len())).step_by(rustix::param::page_size()) {
            // Within the buffer, so it cannot fail.
            let _ = self.read(offset, &mut [0]);
        }
    }

    /// Where it lies in this process, for a kernel interface that takes an address. Never make a
    /// reference of it.
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

    /// The `N` words from byte `at` on; `None` where they are not aligned as words are, or not
    /// within the buffer.
    #[inline]
    pub fn words_at<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        let from = self.words_within::<N>(at)?;
        // SAFETY: `words_within` proved the range, which is only accessed by raw pointers.
        Some(unsafe { bytes::load_words(from) })
    }

    /// Writes `words` from byte `at` on. False, and nothing is written, where they would not be
    /// aligned as words are, or not within the buffer.
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

    /// The 16 bytes right before byte `start`; `None` where they are not aligned as words are, or
    /// not within the buffer.
    #[inline]
    pub fn words_before(&self, start: u32) -> Option<WordPair<'_>> {
        // What is not aligned, and what begins before the buffer, has a number beyond all words.
        let first = (start as usize).wrapping_sub(PAIR as usize).rotate_right(3);
        if first >= self.0.pairs {
            return None;
        }
        Some(WordPair { at: self.as_ptr().cast::<u64>().wrapping_add(first), buffer: PhantomData })
    }

    /// The device address of byte `start`, if `before` bytes before it and `len` from it on are
    /// within the buffer; `None` otherwise, and of a buffer that does not begin as words do.
    #[inline]
    pub fn address_within(&self, start: u32, before: u32, len: u32) -> Option<u64> {
        // Where there is less before it, this is beyond all that offsets of 32 bits reach.
        let end = start.wrapping_sub(before) as usize + (before as usize + len as usize);
        (end <= self.0.reach).then(|| self.iova() + u64::from(start))
    }

    /// Writes the two words right before byte `start`, from which on `len` bytes follow. Returns
    /// the device address of the last 12 bytes of the words, a header; `None`, and nothing is
    /// written, where the words are not aligned as words are, or words or bytes are not within the
    /// buffer.
    #[inline]
    pub fn set_header_before(&self, start: u32, len: u32, words: [u64; 2]) -> Option<u64> {
        // As everything is counted from here, each sum is one addition. An aligned place before the
        // pair's end is before the header's end, too.
        let first = start.wrapping_sub(HEADER);
        // Where it begins before the buffer, this is beyond all that offsets of 32 bits reach.
        let behind = first as usize + len as usize;
        if !start.is_multiple_of(8) || behind > self.0.within {
            return None;
        }
        let to = self
            .as_ptr()
            .wrapping_add(first as usize)
            .wrapping_sub((PAIR - HEADER) as usize)
            .cast::<u64>();
        // SAFETY: both words are within the buffer, as its end is not before theirs, and aligned as
        // its begin is; they are only accessed by raw pointers.
        unsafe { bytes::store_words(words, to) };
        Some(self.iova() + u64::from(first))
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the buffer's own range, which is only accessed by raw pointers.
        unsafe { bytes::fill(self.as_ptr(), byte, self.len()) };
    }

    /// Gives the range up for good: it never returns to the arena, because a device that nobody
    /// could stop may still write there. The buffer is empty afterwards.
    pub fn abandon(&mut self) {
        self.lose();
    }

    /// Moves the range into a buffer of its own. This one is empty afterwards.
    pub fn take(&mut self) -> Self {
        let Range { base, iova, len, .. } = *self.0;
        self.lose();
        // SAFETY: this one has given the range up.
        unsafe { Self::new(self.0.arena.clone(), base, iova, len) }
    }

    /// Has no bytes any more.
    fn lose(&mut self) {
        (self.0.len, self.0.in_page, self.0.reach) = (0, 0, 0);
        (self.0.within, self.0.pairs) = (0, 0);
    }

    /// Releases the range to the next owner, in this process or in the one that adopts the arena:
    /// the device still uses it, so that the range stays allocated, with its bytes, until it is
    /// [claimed](Arena::claim). The buffer is empty afterwards.
    pub fn release_to_successor(&mut self) -> Span {
        let span = self.span();
        if span.len > 0 {
            self.0.arena.change(self.iova(), RangeAllocator::release_to_successor);
            self.lose();
        }
        span
    }

    pub(super) fn checked(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(Error::Invalid(format!(
                "bytes {offset}+{len} of a DMA buffer of {}",
                self.len()
            )));
        }
        // SAFETY: offset is within the buffer.
        Ok(unsafe { self.as_ptr().add(offset) })
    }
}

/// Two aligned words of a buffer, which are read where they are needed: each look is one load, and
/// may find other bytes than the last.
#[derive(Clone, Copy)]
pub struct WordPair<'a> {
    at: *mut u64,
    buffer: PhantomData<&'a DmaBuffer>,
}

impl WordPair<'_> {
    /// Bytes `4 * N` to `4 * N + 3`, as they lie in memory.
    #[inline]
    pub fn u32_at<const N: usize>(self) -> u32 {
        const { assert!(N < 4, "a pair has four halves of words") };
        // SAFETY: both words are within the buffer and aligned, as `words_before` has seen, and
        // they are only accessed by raw pointers.
        unsafe { bytes::load_half(self.at.cast::<u32>().wrapping_add(N)) }
    }

    /// Bytes `2 * N` and `2 * N + 1`, as they lie in memory.
    #[inline]
    pub fn u16_at<const N: usize>(self) -> u16 {
        const { assert!(N < 8, "a pair has eight quarters of words") };
        // SAFETY: as above.
        unsafe { bytes::load_quarter(self.at.cast::<u16>().wrapping_add(N)) }
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

    /// The halves of the words before byte `start`.
    fn read(buffer: &DmaBuffer, start: u32) -> Option<[u32; 4]> {
        let pair = buffer.words_before(start)?;
        Some([pair.u32_at::<0>(), pair.u32_at::<1>(), pair.u32_at::<2>(), pair.u32_at::<3>()])
    }

    #[test]
    fn a_pair_of_words_is_reached_where_it_is_aligned_and_within_the_buffer() {
        let buffer = arena().alloc(64, 64).unwrap();
        buffer.write(16, &[1, 0, 0, 0, 0, 0, 0, 0, 2]).unwrap();
        assert_eq!(read(&buffer, 32), Some([1, 0, 2, 0]));
        buffer.write(30, &[3, 4]).unwrap();
        assert_eq!(buffer.words_before(32).unwrap().u16_at::<7>(), u16::from_ne_bytes([3, 4]));
        for start in [16, 24, 64] {
            assert!(buffer.words_before(start).is_some(), "{start}");
        }
        for start in [0, 8, 15, 17, 31, 63, 72, u32::MAX, u32::MAX - 7, 1 << 31] {
            assert_eq!(read(&buffer, start), None, "{start}");
        }
    }

    #[test]
    fn a_pair_is_written_only_where_it_and_the_bytes_behind_it_are_within_the_buffer() {
        let buffer = arena().alloc(64, 64).unwrap();
        let set = |start, len| buffer.set_header_before(start, len, [3, 4]);
        assert_eq!(set(24, 40), Some(buffer.iova() + 12));
        assert_eq!((read(&buffer, 24), read(&buffer, 40)), (Some([3, 0, 4, 0]), Some([0; 4])));
        assert_eq!(set(64, 0), Some(buffer.iova() + 52));
        for (start, len) in [
            (24, 41),
            (0, 8),
            (15, 1),
            (8, 1),
            (17, 1),
            (72, 0),
            (16, u32::MAX),
            (u32::MAX, 1),
            (u32::MAX - 7, 16),
        ] {
            assert_eq!(set(start, len), None, "{start} {len}");
        }
    }

    #[test]
    fn a_range_that_is_taken_out_is_given_back_once_by_its_new_owner() {
        let arena = arena();
        let mut before = arena.alloc(1 << 16, 64).unwrap();
        before.write(0, &[7]).unwrap();
        let after = before.take();
        assert!(before.is_empty() && before.write(0, &[8]).is_err());
        drop(before);
        assert!(arena.alloc(64, 64).is_err());
        let mut byte = [0];
        after.read(0, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        drop(after);
        assert!(arena.alloc(1 << 16, 64).is_ok());
    }

    #[test]
    fn an_address_is_one_of_bytes_that_the_buffer_has() {
        let buffer = arena().alloc(64, 64).unwrap();
        assert_eq!(buffer.address_within(16, 16, 48), Some(buffer.iova() + 16));
        assert_eq!(buffer.address_within(17, 16, 47), Some(buffer.iova() + 17));
        for (start, before, len) in [
            (15, 16, 1),
            (16, 16, 49),
            (64, 0, 1),
            (u32::MAX, 0, 2),
            (0, 1, 1),
            (0, u32::MAX, u32::MAX),
        ] {
            assert_eq!(buffer.address_within(start, before, len), None, "{start} {before} {len}");
        }
    }

    #[test]
    fn a_buffer_that_does_not_begin_as_words_do_or_is_lost_has_none() {
        let arena = arena();
        let (_odd, buffer) = (arena.alloc(4, 1).unwrap(), arena.alloc(64, 4).unwrap());
        assert!(!buffer.iova().is_multiple_of(8));
        assert_eq!(
            (
                read(&buffer, 20),
                buffer.set_header_before(20, 1, [0; 2]),
                buffer.address_within(16, 16, 1)
            ),
            (None, None, None)
        );
        let mut buffer = arena.alloc(64, 64).unwrap();
        buffer.release_to_successor();
        assert_eq!(
            (
                read(&buffer, 32),
                buffer.set_header_before(32, 1, [0; 2]),
                buffer.address_within(16, 16, 1)
            ),
            (None, None, None)
        );
    }
}
