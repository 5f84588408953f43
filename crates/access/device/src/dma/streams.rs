//! Transfers to and from foreign memory: mapped where that is possible, copied through the arena
//! where it is not.
//!
//! # Shape
//! [`Streams`] belongs to one queue and so to one thread; it takes no locks. A registration cache
//! retains mappings from one request to the next, because mapping costs two system calls and more
//! than a copy of many kilobytes. Memory that the device cannot reach directly is copied through
//! buffers that were allocated at the start: it is misaligned, more fragmented than the device
//! allows, shares pages with other data, or will not be mappable later.
//!
//! # Trust
//! A mapping owns the bytes that it maps, so the device never reaches memory that was freed. A
//! mapping in use is never evicted.

mod cache;

use cache::Cache;
pub use cache::CacheLimits;

use super::{Dma, DmaBuffer, Foreign, SegmentList, SegmentRules};
use crate::Error;

/// A range of foreign memory.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The memory.
    pub memory: Foreign,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl From<Foreign> for Piece {
    fn from(memory: Foreign) -> Self {
        let len = memory.len();
        Self { memory, offset: 0, len }
    }
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads them.
    ToDevice,
    /// The device writes them.
    FromDevice,
}

/// What to move: bytes `skip..skip + len` of `pieces`, taken one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Where the bytes are.
    pub pieces: &'a [Piece],
    /// Bytes at the start that are not moved.
    pub skip: usize,
    /// Bytes to move.
    pub len: usize,
    /// Which way.
    pub direction: Direction,
}

impl<'a> Transfer<'a> {
    /// The pieces cut to the transfer; their lengths add up to `len` if the pieces hold that many.
    fn parts(self) -> impl Iterator<Item = (&'a Foreign, usize, usize)> {
        let (mut skip, mut left) = (self.skip, self.len);
        self.pieces.iter().filter_map(move |piece| {
            let gone = skip.min(piece.len);
            let len = (piece.len - gone).min(left);
            (skip, left) = (skip - gone, left - len);
            (len > 0).then(|| (&piece.memory, piece.offset.saturating_add(gone), len))
        })
    }

    /// Fails if the pieces are too short, or one reaches beyond its memory.
    fn check(self) -> Result<(), Error> {
        let mut total = 0;
        for (memory, offset, len) in self.parts() {
            memory.region().at(offset, len)?;
            total += len;
        }
        if total != self.len || self.len == 0 || self.len > u32::MAX as usize {
            return Err(Error::Invalid(format!(
                "a transfer of {} bytes from pieces of {total}",
                self.len
            )));
        }
        Ok(())
    }
}

/// How foreign memory reaches the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Mapped where possible, copied where not.
    #[default]
    ZeroCopy,
    /// Always copied: the device reaches nothing but its arena.
    Copy,
}

/// What a [`Streams`] may use.
#[derive(Clone, Copy, Debug)]
pub struct StreamLimits {
    /// How foreign memory reaches the device.
    pub mode: Mode,
    /// What the device can take in one transfer.
    pub rules: SegmentRules,
    /// What may stay mapped.
    pub cache: CacheLimits,
    /// How many copy buffers to set aside, as long as the arena has room. With one or more, a
    /// transfer of up to `copy_size` bytes can always go on.
    pub copies: usize,
    /// Bytes of each copy buffer.
    pub copy_size: usize,
}

/// What streams have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StreamStats {
    /// Pieces whose memory was mapped already.
    pub hits: u64,
    /// Pieces whose memory had to be mapped, or could not be.
    pub misses: u64,
    /// Mappings given up to make room, or because nobody used their memory any more.
    pub evictions: u64,
    /// Bytes mapped now.
    pub mapped_bytes: u64,
    /// Transfers without a copy.
    pub mapped: u64,
    /// Segments of these: more than transfers where memory was fragmented.
    pub segments: u64,
    /// Transfers that were copied.
    pub copied: u64,
    /// Of these, the ones that were mapped, but not as the device takes them: misaligned, or in too
    /// many segments.
    pub misfits: u64,
    /// Of these, the ones whose memory cannot be mapped: it shares its pages with others, or the
    /// backend maps nothing later.
    pub unmappable: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
}

/// A transfer in the device's hands: lend its segments, then call [`Streams::end`].
#[derive(Debug)]
pub enum Stream {
    /// The device reaches the memory itself, which the list keeps mapped; the cache does not evict
    /// it meanwhile.
    Mapped(SegmentList),
    /// The bytes are copied through this buffer, from its start.
    Copied(DmaBuffer),
}

/// The way of one queue to foreign memory.
pub struct Streams {
    dma: Dma,
    limits: StreamLimits,
    cache: Cache,
    /// Buffers of `copy_size` bytes that no stream uses.
    copies: Vec<DmaBuffer>,
    stats: StreamStats,
}

impl Streams {
    /// Sets the copy buffers aside. [`Error::NoMemory`] if the arena has no room for the first.
    pub fn new(dma: &Dma, limits: StreamLimits) -> Result<Self, Error> {
        let mut copies = Vec::with_capacity(limits.copies);
        while copies.len() < limits.copies {
            match dma.arena().alloc_pages(limits.copy_size.max(1)) {
                Ok(buffer) => copies.push(buffer),
                // The others only save transfers from waiting for this one.
                Err(Error::NoMemory { .. }) if !copies.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            dma: dma.clone(),
            limits,
            cache: Cache::new(limits.cache),
            copies,
            stats: StreamStats::default(),
        })
    }

    /// Prepares `transfer` for the device; copies the bytes in if they go there by copy.
    /// [`Error::NoMemory`] means that all copy buffers are taken and the arena is full: end another
    /// stream first.
    pub fn begin(&mut self, transfer: Transfer<'_>) -> Result<Stream, Error> {
        transfer.check()?;
        if self.limits.mode == Mode::ZeroCopy
            && let Some(stream) = self.map(transfer)
        {
            return Ok(stream);
        }
        let set_aside =
            if transfer.len <= self.limits.copy_size { self.copies.pop() } else { None };
        let buffer = match set_aside {
            Some(buffer) => buffer,
            None => self.dma.arena().alloc_pages(transfer.len)?,
        };
        if transfer.direction == Direction::ToDevice {
            copy(transfer, |at, memory, offset, len| memory.copy_to(offset, &buffer, at, len))?;
        }
        (self.stats.copied, self.stats.copied_bytes) =
            (self.stats.copied + 1, self.stats.copied_bytes + transfer.len as u64);
        Ok(Stream::Copied(buffer))
    }

    /// The device is done with `stream`, which `begin` made of the same `transfer`: copies the
    /// bytes out if it has `filled` them.
    pub fn end(
        &mut self,
        stream: Stream,
        transfer: Transfer<'_>,
        filled: bool,
    ) -> Result<(), Error> {
        let Stream::Copied(buffer) = stream else { return Ok(()) };
        let result = if filled && transfer.direction == Direction::FromDevice {
            copy(transfer, |at, memory, offset, len| memory.copy_from(offset, &buffer, at, len))
        } else {
            Ok(())
        };
        // One that was made for a longer transfer, or beside those that were set aside, goes back
        // to the arena.
        if buffer.len() == self.limits.copy_size.max(1) && self.copies.len() < self.limits.copies {
            self.copies.push(buffer);
        }
        result
    }

    /// Unmaps what nobody uses any more, and all of it with `everything`, mappings in flight
    /// excepted.
    pub fn purge(&mut self, everything: bool) {
        self.cache.purge(everything);
    }

    /// What streams have done so far.
    pub fn stats(&self) -> StreamStats {
        let cache = self.cache.counters();
        StreamStats {
            hits: cache.hits,
            misses: cache.misses,
            evictions: cache.evictions,
            mapped_bytes: cache.bytes as u64,
            ..self.stats
        }
    }

    /// The transfer in the device's addresses, or `None` if it must be copied; counts which, and
    /// why.
    fn map(&mut self, transfer: Transfer<'_>) -> Option<Stream> {
        let mut list = SegmentList::default();
        for (memory, offset, len) in transfer.parts() {
            // What was lent to the device is its for good.
            if let Some(iova) = self.dma.arena().address(memory.region()) {
                list.push_mapped(iova + offset as u64, len as u32, memory.region().clone());
                continue;
            }
            let Some(mapping) = self.cache.get(&self.dma, memory) else {
                self.stats.unmappable += 1;
                return None;
            };
            list.push_mapped(mapping.iova() + offset as u64, len as u32, mapping);
        }
        if !self.limits.rules.allow(&list) {
            self.stats.misfits += 1;
            return None;
        }
        (self.stats.mapped, self.stats.segments) =
            (self.stats.mapped + 1, self.stats.segments + list.len() as u64);
        Some(Stream::Mapped(list))
    }
}

/// Runs `step` on each part of the transfer: position in the buffer, memory, offset in it, bytes.
fn copy(
    transfer: Transfer<'_>,
    mut step: impl FnMut(usize, &Foreign, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut at = 0;
    for (memory, offset, len) in transfer.parts() {
        step(at, memory, offset, len)?;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
