//! Copies of bytes that a device, another process or another thread may write concurrently.
//!
//! # Ordering
//! Each access is a relaxed atomic of a byte or of an aligned word. So a race is not undefined
//! behaviour: it yields old bytes or new ones, and the compiler reads none of them twice. The
//! [rings](crate::ring) order the accesses by their meaning.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Bytes before the first aligned word at `at`, and whole words behind them, of `len` bytes.
#[inline]
fn split(at: *const u8, len: usize) -> (usize, usize) {
    let before = at.align_offset(WORD).min(len);
    (before, (len - before) / WORD)
}

/// Copies `to.len()` shared bytes out.
///
/// # Safety
/// `from` is good for reads of that many bytes, which live and are accessed by nobody but by raw
/// pointers.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    let (before, words) = split(from, to.len());
    let (head, rest) = to.split_at_mut(before);
    let (middle, tail) = rest.as_chunks_mut::<WORD>();
    for (i, byte) in head.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the range.
        *byte = unsafe { load_byte(from.add(i)) };
    }
    debug_assert_eq!(middle.len(), words);
    for (i, chunk) in middle.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the range; the word is aligned by `split`.
        *chunk = unsafe {
            AtomicU64::from_ptr(from.add(before + i * WORD).cast_mut().cast()).load(Relaxed)
        }
        .to_ne_bytes();
    }
    for (i, byte) in tail.iter_mut().enumerate() {
        // SAFETY: the caller vouches for the range.
        *byte = unsafe { load_byte(from.add(before + words * WORD + i)) };
    }
}

/// Copies `from` in.
///
/// # Safety
/// `to` is good for writes of that many bytes, which live and are accessed by nobody but by raw
/// pointers.
#[inline]
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let (before, words) = split(to, from.len());
    let (head, rest) = from.split_at(before);
    let (middle, tail) = rest.as_chunks::<WORD>();
    for (i, &byte) in head.iter().enumerate() {
        // SAFETY: the caller vouches for the range.
        unsafe { store_byte(to.add(i), byte) };
    }
    for (i, chunk) in middle.iter().enumerate() {
        // SAFETY: the caller vouches for the range; the word is aligned by `split`.
        unsafe { AtomicU64::from_ptr(to.add(before + i * WORD).cast()) }
            .store(u64::from_ne_bytes(*chunk), Relaxed);
    }
    for (i, &byte) in tail.iter().enumerate() {
        // SAFETY: the caller vouches for the range.
        unsafe { store_byte(to.add(before + words * WORD + i), byte) };
    }
}

/// Reads `N` shared words.
///
/// # Safety
/// As of [`copy_out`], for `N` aligned words.
#[inline]
pub(super) unsafe fn load_words<const N: usize>(from: *mut u64) -> [u64; N] {
    std::array::from_fn(|index| {
        // SAFETY: the caller vouches for the words.
        unsafe { AtomicU64::from_ptr(from.wrapping_add(index)) }.load(Relaxed)
    })
}

/// Writes `N` shared words.
///
/// # Safety
/// As of [`copy_in`], for `N` aligned words.
#[inline]
pub(super) unsafe fn store_words<const N: usize>(words: [u64; N], to: *mut u64) {
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the caller vouches for the words.
        unsafe { AtomicU64::from_ptr(to.wrapping_add(index)) }.store(word, Relaxed);
    }
}

/// Copies `len` shared bytes to other shared bytes. What overlaps arrives mixed up.
///
/// # Safety
/// As [`copy_out`] for `from`, as [`copy_in`] for `to`.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // Through a piece of our own: the two may be aligned differently.
    let mut piece = [0; 512];
    for at in (0..len).step_by(piece.len()) {
        let piece = &mut piece[..(len - at).min(512)];
        // SAFETY: the caller vouches for the range.
        unsafe { copy_out(from.add(at), piece) };
        // SAFETY: the caller vouches for the range.
        unsafe { copy_in(piece, to.add(at)) };
    }
}

/// Sets `len` bytes.
///
/// # Safety
/// As [`copy_in`].
pub(super) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    let (before, words) = split(to, len);
    for i in (0..before).chain(before + words * WORD..len) {
        // SAFETY: the caller vouches for the range.
        unsafe { store_byte(to.add(i), byte) };
    }
    for i in 0..words {
        // SAFETY: the caller vouches for the range; the word is aligned by `split`.
        unsafe { AtomicU64::from_ptr(to.add(before + i * WORD).cast()) }
            .store(u64::from_ne_bytes([byte; WORD]), Relaxed);
    }
}

/// Reads half of a shared word.
///
/// # Safety
/// As of [`copy_out`], for four aligned bytes.
#[inline]
pub(super) unsafe fn load_half(from: *mut u32) -> u32 {
    // SAFETY: the caller vouches for the bytes.
    unsafe { AtomicU32::from_ptr(from) }.load(Relaxed)
}

/// Reads a quarter of a shared word.
///
/// # Safety
/// As of [`copy_out`], for two aligned bytes.
#[inline]
pub(super) unsafe fn load_quarter(from: *mut u16) -> u16 {
    // SAFETY: the caller vouches for the bytes.
    unsafe { AtomicU16::from_ptr(from) }.load(Relaxed)
}

/// # Safety
/// `at` is good for a read.
#[inline]
unsafe fn load_byte(at: *const u8) -> u8 {
    // SAFETY: the caller vouches for the byte, which is only accessed by raw pointers.
    unsafe { AtomicU8::from_ptr(at.cast_mut()) }.load(Relaxed)
}

/// # Safety
/// `at` is good for a write.
#[inline]
unsafe fn store_byte(at: *mut u8, byte: u8) {
    // SAFETY: the caller vouches for the byte, which is only accessed by raw pointers.
    unsafe { AtomicU8::from_ptr(at) }.store(byte, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_arrive_whole_wherever_they_begin(
            from in 0usize..9, to in 0usize..9, len in 0usize..1200,
        ) {
            let source: Vec<u8> = (0..from + len).map(|i| (i * 7 + 1) as u8).collect();
            let mut target = vec![0xee_u8; to + len + 8];
            // SAFETY: both ranges lie within their vectors, which nobody else touches.
            unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
            prop_assert_eq!(&target[to..to + len], &source[from..]);
            prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xee));
            // SAFETY: as above.
            unsafe { fill(target.as_mut_ptr().add(to), 0x11, len) };
            prop_assert!(target[to..to + len].iter().all(|&byte| byte == 0x11));
            prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xee));
        }
    }

    /// Only a tool that knows the memory model sees the difference to a plain copy, which is
    /// undefined behaviour here: `RUSTFLAGS=-Zsanitizer=thread` on a nightly compiler reports a
    /// data race for it.
    #[test]
    fn words_that_two_threads_write_at_the_same_time_are_never_torn() {
        let memory = crate::dma::Foreign::new(4096).unwrap();
        let write = |byte: u8| {
            let memory = memory.clone();
            move || (0..2000).for_each(|_| memory.write(0, &[byte; 64]).unwrap())
        };
        std::thread::scope(|scope| {
            scope.spawn(write(0x11));
            scope.spawn(write(0x22));
            for _ in 0..2000 {
                let mut bytes = [0; 64];
                memory.read(0, &mut bytes).unwrap();
                for word in bytes.as_chunks::<WORD>().0 {
                    assert!(word.iter().all(|&byte| byte == word[0]), "{bytes:x?}");
                }
            }
        });
    }
}
