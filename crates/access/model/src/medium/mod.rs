//! What a simulated disk keeps: blocks, and a volatile cache over them.

mod cache;
mod store;

pub(super) use store::Store;

use cache::Cache;

/// The blocks of a disk.
pub struct Medium {
    bytes: u64,
    block_shift: u32,
    store: Store,
    cache: Option<Cache>,
}

impl Medium {
    /// `bytes` of zeroes in blocks of `1 << block_shift` bytes, with a volatile write cache or
    /// without.
    pub(super) fn new(bytes: u64, block_shift: u32, cache: bool) -> Self {
        Self {
            bytes,
            block_shift,
            store: Store::new(bytes),
            cache: cache.then(|| Cache::new(1 << block_shift)),
        }
    }

    /// Has `bytes` from now on, the first of them as they are.
    pub(super) fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.store.resize(bytes);
    }

    pub(super) fn blocks(&self) -> u64 {
        self.bytes >> self.block_shift
    }

    /// Whether `blocks` from `lba` on are all there.
    pub(super) fn contains(&self, lba: u64, blocks: u64) -> bool {
        lba.checked_add(blocks).is_some_and(|end| end <= self.blocks())
    }

    /// Gives the `len` bytes at byte `at` to `sink`, piece by piece, until it fails.
    pub(super) fn read<E>(
        &self,
        at: u64,
        len: usize,
        sink: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.store.read(at, len, sink)
    }

    /// Lets `source` fill the `len` bytes at byte `at`, piece by piece, until it fails. Between
    /// [`begin`](Self::begin) and [`settle`](Self::settle) of their blocks.
    pub(super) fn write<E>(
        &mut self,
        at: u64,
        len: usize,
        source: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.store.write(at, len, source)
    }

    /// Makes blocks read as zeroes; durably, or as soon as the cache is flushed.
    pub(super) fn zero(&mut self, lba: u64, blocks: u64, durable: bool) {
        self.begin(lba, blocks);
        self.store.zero(lba << self.block_shift, blocks << self.block_shift);
        self.settle(lba, blocks, durable);
    }

    /// These blocks are about to be written.
    pub(super) fn begin(&mut self, lba: u64, blocks: u64) {
        if let Some(cache) = &mut self.cache {
            cache.before_write(&self.store, lba, blocks);
        }
    }

    /// These blocks are written: durably, or in the cache only.
    pub(super) fn settle(&mut self, lba: u64, blocks: u64, durable: bool) {
        if let Some(cache) = &mut self.cache
            && durable
        {
            cache.written_through(lba, blocks);
        }
    }

    /// Everything is durable now.
    pub(super) fn flush(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.flush();
        }
    }

    /// What was not durable is lost.
    pub(super) fn lose_power(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.lose(&mut self.store);
        }
    }

    /// The medium behind the driver's back; false beyond its end.
    pub(super) fn peek(&self, at: u64, bytes: &mut [u8]) -> bool {
        let inside = self.holds(at, bytes.len());
        if inside {
            self.store.copy_out(at, bytes);
        }
        inside
    }

    /// As [`peek`](Self::peek), for writing.
    pub(super) fn poke(&mut self, at: u64, bytes: &[u8]) -> bool {
        let inside = self.holds(at, bytes.len());
        if inside {
            self.store.copy_in(at, bytes);
        }
        inside
    }

    fn holds(&self, at: u64, len: usize) -> bool {
        at.checked_add(len as u64).is_some_and(|end| end <= self.bytes)
    }
}
