//! The layer between the user of a disk and its driver. It validates requests, splits them, and
//! makes foreign memory accessible to the device.
//!
//! # Shape
//! A request that the device accepts as it is passes through: a few comparisons at submission, one
//! at completion. A request that is longer than the device accepts becomes *parts* with one
//! completion; so does one whose data is foreign memory. Parts are submitted as the queue has room,
//! so a long request needs no more slots than a short one.
//!
//! # Ordering
//! The parts of a request may complete in any order. The first error is the request's, and no
//! further part is started after it.
//!
//! # Trust
//! Parts own the memory of their request. If a driver abandons memory, because its device cannot be
//! stopped, this layer abandons it, too. A part's token identifies its slot and the use of that
//! slot; a token that is not outstanding is an error and changes nothing.

mod parts;

use std::collections::VecDeque;
use std::time::Instant;

use ring3_device::dma::{Dma, StreamStats, Streams};
use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats};
use ring3_device::{Deadline, Error};
use slab::Slab;

use super::{Completion, Data, Info, IoError, Operation, Queue, Rejected, Request, reap_ready};
use crate::Saved;
use parts::{Cut, Parent, Part};

/// What a splitter has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitterStats {
    /// Requests that passed as they were.
    pub passed: u64,
    /// Requests that were cut or whose data was foreign.
    pub cut: u64,
    /// Parts that were made of these.
    pub parts: u64,
    /// Requests that made no sense.
    pub refused: u64,
}

/// A queue that takes requests of any length.
pub struct Splitter<Q> {
    // Dropped first: what the device may still write is given back only after the driver has
    // stopped it.
    inner: Q,
    info: Info,
    limits: Limits,
    parents: Slab<Parent>,
    parts: Slab<Part>,
    /// Requests with parts that wait for room, oldest first.
    waiting: VecDeque<usize>,
    /// Requests that ended without a completion from below.
    finished: VecDeque<Completion>,
    streams: Option<Streams>,
    uses: u32,
    stats: SplitterStats,
}

/// Most blocks of one request, by operation.
struct Limits {
    transfer: u32,
    foreign: u32,
    write_zeroes: u32,
    discard: u32,
}

impl Limits {
    #[inline]
    fn of(&self, request: &Request) -> u32 {
        match request.operation {
            Operation::Read | Operation::Write if matches!(request.data, Data::Foreign(_)) => {
                self.foreign
            }
            Operation::Read | Operation::Write => self.transfer,
            Operation::WriteZeroes => self.write_zeroes,
            Operation::Discard => self.discard,
            Operation::Flush => u32::MAX,
        }
    }
}

/// The topmost bit of a token: the request is a part of another.
const PART: u64 = 1 << 63;

/// Bytes of the largest part of a request with foreign data, and so of the buffers that it may be
/// copied through.
const MAX_FOREIGN_PART: u32 = 1 << 20;

/// How a [`Splitter`] reaches foreign memory.
#[derive(Clone, Copy, Debug)]
pub struct ForeignAccess {
    /// Mapped or copied.
    pub mode: ring3_device::dma::Mode,
    /// What may stay mapped.
    pub cache: ring3_device::dma::CacheLimits,
    /// Copy buffers to set aside, at least 1; each holds the largest transfer, at most 1 MiB.
    pub copies: usize,
}

impl Default for ForeignAccess {
    fn default() -> Self {
        Self { mode: Default::default(), cache: Default::default(), copies: 2 }
    }
}

impl<Q: Queue> Splitter<Q> {
    /// A splitter over `inner` that refuses foreign memory.
    pub fn new(inner: Q) -> Self {
        let info = inner.info().clone();
        let limits = Limits {
            transfer: info.max_blocks(Operation::Read),
            foreign: (info.max_transfer.min(MAX_FOREIGN_PART) / info.block_size).max(1),
            write_zeroes: info.max_blocks(Operation::WriteZeroes),
            discard: info.max_blocks(Operation::Discard),
        };
        let depth = usize::from(inner.depth());
        Self {
            inner,
            info,
            limits,
            parents: Slab::with_capacity(depth),
            parts: Slab::with_capacity(depth),
            waiting: VecDeque::with_capacity(depth),
            finished: VecDeque::with_capacity(depth),
            streams: None,
            uses: 0,
            stats: SplitterStats::default(),
        }
    }

    /// The same, with a way to memory outside of the arena of `dma`.
    pub fn with_foreign(mut self, dma: &Dma, access: ForeignAccess) -> Result<Self, Error> {
        let info = &self.info;
        let limits = ring3_device::dma::StreamLimits {
            mode: access.mode,
            rules: info.segments,
            cache: access.cache,
            // With one buffer a copied part can always go on, whatever else the arena is used for.
            copies: access.copies.max(1),
            copy_size: (self.limits.foreign * info.block_size) as usize,
        };
        self.streams = Some(Streams::new(dma, limits)?);
        Ok(self)
    }

    /// What it has done so far.
    pub fn stats(&self) -> SplitterStats {
        self.stats
    }

    /// The queue below.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    #[cold]
    fn refuse(&mut self, error: IoError, request: Request) -> Result<(), Rejected> {
        self.stats.refused += 1;
        Err(Rejected { error: Some(error), request })
    }

    /// Cuts what the driver has refused as it is, if that makes sense.
    #[cold]
    fn submit_refused(&mut self, Rejected { error, request }: Rejected) -> Result<(), Rejected> {
        if let Err(error) = self.info.check(&request) {
            return self.refuse(error, request);
        }
        let cut =
            request.blocks > self.limits.of(&request) || matches!(request.data, Data::Foreign(_));
        // Or the parts of others fill the queue, where its user has put less into it than it holds.
        if cut || (error.is_none() && !self.parts.is_empty()) {
            self.cut(request)
        } else {
            Err(Rejected { error, request })
        }
    }

    #[cold]
    fn cut(&mut self, request: Request) -> Result<(), Rejected> {
        let foreign = matches!(request.data, Data::Foreign(_));
        if foreign && self.streams.is_none() {
            return self.refuse(IoError::Invalid, request);
        }
        let limit = self.limits.of(&request);
        if self.parents.len() == usize::from(self.inner.depth()) {
            return Err(Rejected { error: None, request });
        }
        let index = self.parents.insert(Parent::new(request, limit));
        let cut = self.advance(index);
        // Without a part in the device's hands, the request goes on only when others end.
        let goes_on = cut == Cut::NoRoom && self.inner.in_flight() > 0;
        if let Some(parent) = self.parents.get(index)
            && parent.in_device == 0
            && !goes_on
            && let Some(parent) = self.parents.try_remove(index)
        {
            return Err(Rejected { error: parent.result.err(), request: parent.into_request() });
        }
        if cut == Cut::NoRoom {
            self.waiting.push_back(index);
        }
        self.stats.cut += 1;
        Ok(())
    }

    /// Takes ends while some requests are cut.
    #[cold]
    fn reap_cut(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        while self.finished.is_empty() {
            let count = self.inner.reap(done)?;
            let mut error = None;
            for end in done.iter_mut().take(count).map(std::mem::take) {
                if end.token & PART == 0 {
                    self.finished.push_back(end);
                    continue;
                }
                match self.part_done(end) {
                    Ok(whole) => self.finished.extend(whole),
                    Err(stray) => error = Some(stray),
                }
            }
            if let Some(error) = error {
                return Err(error);
            }
            if count == 0 {
                break;
            }
            self.resume();
        }
        Ok(reap_ready(done, &mut self.finished))
    }

    /// Submits parts that have waited for room, and rings for them.
    #[cold]
    fn resume(&mut self) {
        let mut started = false;
        while let Some(&index) = self.waiting.front() {
            let before = self.stats.parts;
            let cut = self.advance(index);
            started |= self.stats.parts > before;
            if cut == Cut::NoRoom {
                break;
            }
            self.waiting.pop_front();
            if let Some(completion) = self.finish(index) {
                self.finished.push_back(completion);
            }
        }
        if started {
            self.inner.ring();
        }
    }
}

impl<Q: Queue> Queue for Splitter<Q> {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.inner.depth()
    }

    fn in_flight(&self) -> u16 {
        let requests =
            usize::from(self.inner.in_flight()) + self.parents.len() + self.finished.len();
        requests.saturating_sub(self.parts.len()).min(u16::MAX.into()) as u16
    }

    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if request.token & PART != 0 {
            return self.refuse(IoError::Invalid, request);
        }
        // Every driver refuses what it cannot do as it is.
        match self.inner.submit(request) {
            Ok(()) => {
                self.stats.passed += 1;
                Ok(())
            }
            Err(rejected) => self.submit_refused(rejected),
        }
    }

    #[inline]
    fn ring(&mut self) {
        self.inner.ring();
    }

    #[inline]
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        // Almost always nothing is cut, and the driver's ends are the user's.
        if self.parts.is_empty() && self.waiting.is_empty() && self.finished.is_empty() {
            return self.inner.reap(done);
        }
        self.reap_cut(done)
    }

    /// What was cut or copied ends first.
    fn detach(&mut self) -> Result<Saved, Error> {
        if !self.parents.is_empty() || !self.finished.is_empty() {
            return Err(Error::Busy(
                "requests are in flight that were cut or copied: reap them, then detach again"
                    .into(),
            ));
        }
        self.inner.detach()
    }

    fn stream_stats(&self) -> StreamStats {
        self.streams.as_ref().map(Streams::stats).unwrap_or_default()
    }
}

impl<Q: Queue> Source for Splitter<Q> {
    fn irq(&self) -> Option<&Irq> {
        self.inner.irq()
    }

    fn pending(&self) -> bool {
        !self.finished.is_empty() || self.inner.pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        Ok(self.finished.is_empty() && self.inner.arm()?)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.inner.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.inner.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if !self.finished.is_empty() {
            return Ok(true);
        }
        self.inner.wait(deadline)
    }

    fn wait_stats(&self) -> WaitStats {
        self.inner.wait_stats()
    }
}

#[cfg(test)]
mod tests;
