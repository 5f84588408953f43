//! A range of device addresses and the memory behind it: the only place where a model's accesses
//! touch memory.

use std::sync::atomic::{AtomicU64, Ordering};

use ring3_device::dma::Pages;

/// Memory that is mapped for the device, alive until it is unmapped.
pub(super) struct Window {
    pages: Pages,
    iova: u64,
}

impl Window {
    pub(super) fn new(pages: Pages, iova: u64) -> Self {
        Self { pages, iova }
    }

    pub(super) fn iova(&self) -> u64 {
        self.iova
    }

    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    /// The address of device addresses `iova..iova + len`, if they all lie in this window.
    #[inline]
    fn locate(&self, iova: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(iova.checked_sub(self.iova)?).ok()?;
        if at.checked_add(len)? > self.len() {
            return None;
        }
        // SAFETY: `at` is within the pages.
        Some(unsafe { self.pages.as_ptr().as_ptr().add(at) })
    }

    /// Copies out; false if not all of it lies in this window.
    #[inline]
    pub(super) fn read(&self, iova: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.locate(iova, bytes.len()) else { return false };
        // SAFETY: `locate` proved the range; the destination is a Rust slice and so outside of
        // shared memory.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// Copies in; false if not all of it lies in this window.
    #[inline]
    pub(super) fn write(&self, iova: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.locate(iova, bytes.len()) else { return false };
        // SAFETY: `locate` proved the range; the source is a Rust slice and so outside of shared
        // memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Stores an aligned word after everything that was written before.
    #[inline]
    pub(super) fn store(&self, iova: u64, value: u64) -> bool {
        self.word(iova).map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Loads an aligned word before everything that is read after.
    #[inline]
    pub(super) fn load(&self, iova: u64) -> Option<u64> {
        self.word(iova).map(|word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn word(&self, iova: u64) -> Option<&AtomicU64> {
        let at = self.locate(iova, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return None;
        }
        // SAFETY: eight bytes of the mapping, aligned, alive as long as `self`, accessed by atomics
        // or byte copies only.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }
}
