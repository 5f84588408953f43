//! The volatile write cache, told backwards: what the medium held before writes that are not
//! durable yet.

use std::collections::HashMap;

use super::Store;

/// Bytes of the cache. When it is full all of it is written back, as a device may do at any time.
const SIZE: usize = 16 << 20;

pub(super) struct Cache {
    block: usize,
    /// Where in `bytes` the old content of a block is.
    saved: HashMap<u64, usize>,
    bytes: Vec<u8>,
}

impl Cache {
    pub(super) fn new(block: usize) -> Self {
        Self { block, saved: HashMap::new(), bytes: Vec::new() }
    }

    /// Remembers what `blocks` from `lba` on hold now, before they are written.
    pub(super) fn before_write(&mut self, store: &Store, lba: u64, blocks: u64) {
        let most = (SIZE / self.block) as u64;
        if blocks > most || (self.bytes.len() / self.block) as u64 + blocks > most {
            self.flush();
        }
        if blocks > most {
            return;
        }
        for lba in lba..lba + blocks {
            if let std::collections::hash_map::Entry::Vacant(entry) = self.saved.entry(lba) {
                let at = self.bytes.len();
                self.bytes.resize(at + self.block, 0);
                store.copy_out(lba * self.block as u64, &mut self.bytes[at..]);
                entry.insert(at);
            }
        }
    }

    /// These blocks are durable now.
    pub(super) fn written_through(&mut self, lba: u64, blocks: u64) {
        for lba in lba..lba + blocks {
            self.saved.remove(&lba);
        }
    }

    /// Everything is durable now.
    pub(super) fn flush(&mut self) {
        self.saved.clear();
        self.bytes.clear();
    }

    /// The power is gone, and with it what was not durable.
    pub(super) fn lose(&mut self, store: &mut Store) {
        for (lba, at) in self.saved.drain() {
            store.copy_in(lba * self.block as u64, &self.bytes[at..at + self.block]);
        }
        self.bytes.clear();
    }
}
