//! The registration cache: the foreign memory that is mapped, with least-recently-used eviction.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::super::foreign::Handle;
use super::super::{Dma, Foreign, Mapping};

/// What may stay mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Bytes; memory in flight is not given up, so that it can be more for a while.
    pub bytes: usize,
    /// Mappings.
    pub entries: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { bytes: 256 << 20, entries: 128 }
    }
}

/// What the cache has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) evictions: u64,
    pub(super) bytes: usize,
}

struct Entry {
    mapping: Arc<Mapping>,
    /// Dead when nobody but the mapping holds the memory.
    users: Weak<Handle>,
    used: u64,
}

pub(super) struct Cache {
    limits: CacheLimits,
    entries: HashMap<u64, Entry>,
    /// Counts lookups: the age of an entry.
    clock: u64,
    counters: Counters,
}

impl Cache {
    pub(super) fn new(limits: CacheLimits) -> Self {
        Self { limits, entries: HashMap::new(), clock: 0, counters: Counters::default() }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// The mapping of `memory`, made now if there is none; `None` if it cannot be mapped.
    pub(super) fn get(&mut self, dma: &Dma, memory: &Foreign) -> Option<Arc<Mapping>> {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&memory.id()) {
            entry.used = self.clock;
            self.counters.hits += 1;
            return Some(entry.mapping.clone());
        }
        self.counters.misses += 1;
        self.purge(false);
        self.make_room(memory.len());
        let map = || memory.region().pages().and_then(|pages| dma.map(pages));
        let mapping = match map() {
            Ok(mapping) => mapping,
            // The limit on locked memory may be lower than ours: give everything up that can be,
            // then try once more.
            Err(crate::Error::Os { .. }) if !self.entries.is_empty() => {
                self.purge(true);
                map().ok()?
            }
            Err(_) => return None,
        };
        let mapping = Arc::new(mapping);
        self.counters.bytes += mapping.len();
        self.entries.insert(
            memory.id(),
            Entry { mapping: mapping.clone(), users: memory.users(), used: self.clock },
        );
        Some(mapping)
    }

    /// Gives up mappings whose memory has no user, or all with `everything`; not those in flight.
    pub(super) fn purge(&mut self, everything: bool) {
        let counters = &mut self.counters;
        self.entries.retain(|_, entry| {
            let keep = Arc::strong_count(&entry.mapping) > 1
                || !(everything || entry.users.strong_count() == 0);
            if !keep {
                counters.evictions += 1;
                counters.bytes -= entry.mapping.len();
            }
            keep
        });
    }

    /// Gives the least recently used up until `len` more bytes fit, as far as they are not in
    /// flight.
    fn make_room(&mut self, len: usize) {
        while self.entries.len() >= self.limits.entries
            || self.counters.bytes.saturating_add(len) > self.limits.bytes
        {
            let idle =
                self.entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.mapping) == 1);
            let Some((&id, _)) = idle.min_by_key(|(_, entry)| entry.used) else { return };
            if let Some(entry) = self.entries.remove(&id) {
                self.counters.evictions += 1;
                self.counters.bytes -= entry.mapping.len();
            }
        }
    }
}
