//! Writes that sit in a disk's volatile cache, and whether they may have been lost.
//!
//! # The promise
//! A flush that ends well covers all writes of its disk that had ended before it began. If such
//! writes are lost, each queue reports it once: the flush that ends next fails, and with it all
//! flushes of that queue that are under way. Every queue reports it, whether it has written or not,
//! because one user may write through one queue and flush through another. A queue that is opened
//! later reports the losses that at least one open queue has not reported yet, and no older ones.
//!
//! # What is a loss
//! The device has lost its power, by its own [count](PowerCount), or has crashed. If it does not
//! count, every reset that the driver did not make itself counts as a loss.
//!
//! # Over a driver's death
//! What has to be known is in a [`Record`], too, which outlives the driver. The next one
//! [opens](WriteCache::open) the cache by that.
//!
//! # Ordering
//! A write that ends while another thread finds the reset is seen by one of the two: this thread
//! stores `covering`, then loads when the last loss was; the other stores the latter, then loads
//! `covering`. All of that is sequentially consistent; a write pays for a store only if it is the
//! first since the last flush.

mod record;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use ring3_class::block::{IoError, Operation, Request};
use ring3_device::dma::PersistentWords;
use serde::{Deserialize, Serialize};

use crate::lifetime::lock;
use record::SavedCacheState;
pub(crate) use record::{PowerCount, Record};

/// What the queues of a disk with a volatile cache share. Flushes are numbered from 1 on, in the
/// order in which they begin.
#[derive(Default)]
pub(crate) struct WriteCache {
    /// Flushes that were begun.
    begun: AtomicU64,
    /// The number of the flush that must end well before all writes that have ended are on the
    /// medium. It may not have begun.
    covering: AtomicU64,
    /// The latest flush that the device has done.
    flushed: AtomicU64,
    /// How often writes were lost.
    losses: AtomicU64,
    subscribers: Mutex<Subscribers>,
    record: Option<Record>,
}

/// The queues that report losses.
#[derive(Default)]
struct Subscribers {
    /// Each queue's number, and the losses that it has reported.
    queues: Vec<(u64, u64)>,
    next: u64,
    /// The losses that all have reported.
    told: u64,
}

/// A queue's part in the cache.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    number: u64,
    /// The losses that it was told of.
    told: u64,
    /// Its flushes up to this one fail.
    failed: u64,
}

impl WriteCache {
    /// The cache of disk `part` of a device that is called `serial`, and which says that it has
    /// lost its power as often as `now`: as the driver before has left it in `kept`. Where the
    /// device does not count, `has_run_on` says that it was not reset by others since then.
    pub(crate) fn open(
        kept: Option<PersistentWords>,
        (serial, part): (&str, u32),
        now: PowerCount,
        has_run_on: bool,
    ) -> Self {
        let Some(record) = Record::find(kept, serial, part) else { return Self::default() };
        // One that cannot be may have said anything.
        let (left, is_damaged) = record.left().map_or(
            (SavedCacheState { covering: 1, ..SavedCacheState::default() }, true),
            |left| (left, false),
        );
        let cache = Self {
            begun: AtomicU64::new(left.begun()),
            covering: AtomicU64::new(left.covering),
            flushed: AtomicU64::new(left.flushed),
            losses: AtomicU64::new(left.losses),
            subscribers: Mutex::new(Subscribers { told: left.told, ..Subscribers::default() }),
            record: None,
        };
        if is_damaged {
            record.set(left);
        }
        let was_lost = is_damaged || record.power().was_lost(now, has_run_on);
        let cache = Self { record: Some(record), ..cache };
        if was_lost && cache.mark_lost() {
            tracing::error!(
                "{serial} disk {part}: its power was lost, or may have been, while it had no \
                 driver: writes since the last flush may be lost, and \
                 the next flush fails; check what was written last"
            );
        }
        cache.set_power(now);
        cache
    }

    /// Its device says that it has lost its power so often, and what follows from that was done.
    pub(crate) fn set_power(&self, now: PowerCount) {
        self.record.iter().for_each(|record| record.set_power(now));
    }

    /// A queue that reports the losses that not all have reported, and those to come.
    pub(crate) fn listen(&self) -> Listener {
        let told = lock(&self.subscribers).told;
        self.resume_listener(told, 0)
    }

    /// A queue that was told of `told` losses in another process, and whose flushes up to number
    /// `failed` fail.
    pub(crate) fn resume_listener(&self, told: u64, failed: u64) -> Listener {
        let mut subscribers = lock(&self.subscribers);
        subscribers.next += 1;
        let number = subscribers.next;
        subscribers.queues.push((number, told));
        Listener { number, told, failed: failed.min(self.begun.load(SeqCst)) }
    }

    /// The queue is closed.
    pub(crate) fn unsubscribe(&self, listener: &Listener) {
        lock(&self.subscribers).queues.retain(|(number, _)| *number != listener.number);
    }

    /// A flush is about to be handed to the device; returns its number.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.begun.fetch_add(1, SeqCst) + 1
    }

    /// Whether there was a flush of that number: the end of one that was never begun would hide
    /// every later loss.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        (1..=self.begun.load(SeqCst)).contains(&number)
    }

    /// The device has done `request` of the queue `listener`, which is flush number `flush` if it
    /// is one; `lost_since` says whether the cache was lost since that was handed to it.
    pub(crate) fn complete(
        &self,
        request: &Request,
        (listener, flush): (&mut Listener, u64),
        lost_since: impl FnOnce() -> bool,
    ) -> Result<(), IoError> {
        match request.operation {
            Operation::Flush => return self.end_flush(listener, flush),
            _ if Self::holds(request) => self.wrote(lost_since),
            _ => {}
        }
        Ok(())
    }

    /// Whether it may hold what `request` has written.
    pub(crate) fn holds(request: &Request) -> bool {
        matches!(request.operation, Operation::Write | Operation::WriteZeroes) && !request.fua
    }

    /// It may hold what the device has written; `lost_since` says whether it was lost since that
    /// was handed over.
    pub(crate) fn wrote(&self, lost_since: impl FnOnce() -> bool) {
        let next = self.begun.load(SeqCst) + 1;
        if self.covering.load(SeqCst) < next {
            self.covering.fetch_max(next, SeqCst);
            self.record.iter().for_each(|record| record.set_covering(next));
        }
        if lost_since() {
            self.mark_lost();
        }
    }

    /// Whether the device has writes that no flush has covered.
    pub(crate) fn is_dirty(&self) -> bool {
        self.covering.load(SeqCst) > self.flushed.load(SeqCst)
    }

    /// Whether there are losses that `listener` was not told of.
    pub(crate) fn has_unreported_loss(&self, listener: &Listener) -> bool {
        self.losses.load(SeqCst) != listener.told
    }

    /// What the cache held is lost; true if that were writes that no flush had covered.
    pub(crate) fn mark_lost(&self) -> bool {
        let lost = self.is_dirty();
        if lost {
            let losses = self.losses.fetch_add(1, SeqCst) + 1;
            self.record.iter().for_each(|record| record.mark_lost(losses));
        }
        lost
    }

    /// All that was written is on the medium: the device was shut down in good order.
    pub(crate) fn mark_flushed(&self) {
        self.flushed_by(self.begin_flush());
    }

    fn flushed_by(&self, number: u64) {
        self.flushed.fetch_max(number, SeqCst);
        self.record.iter().for_each(|record| record.flush(number));
    }

    pub(crate) fn end_flush(&self, listener: &mut Listener, number: u64) -> Result<(), IoError> {
        let losses = self.losses.load(SeqCst);
        if losses != listener.told {
            // None of those that are under way may say that all is well.
            listener.failed = self.begun.load(SeqCst);
            listener.told = losses;
            self.mark_reported(listener);
        }
        self.flushed_by(number);
        if number <= listener.failed { Err(IoError::Transport) } else { Ok(()) }
    }

    /// A queue was told.
    fn mark_reported(&self, listener: &Listener) {
        let mut subscribers = lock(&self.subscribers);
        subscribers
            .queues
            .iter_mut()
            .filter(|(number, _)| *number == listener.number)
            .for_each(|(_, told)| *told = listener.told);
        subscribers.told =
            subscribers.queues.iter().map(|(_, told)| *told).min().unwrap_or(subscribers.told);
        self.record.iter().for_each(|record| record.mark_reported(subscribers.told));
    }
}

/// A [`WriteCache`] as it is written down. Fields are only ever added, each with a default.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedCache {
    begun: u64,
    covering: u64,
    flushed: u64,
    /// There are losses that not all were told of, for a driver that knows of no numbers.
    lost: bool,
    failed: u64,
    #[serde(default)]
    losses: u64,
    #[serde(default)]
    told: u64,
}

impl SavedCache {
    pub(crate) fn of(cache: &WriteCache) -> Self {
        let (losses, told) = (cache.losses.load(SeqCst), lock(&cache.subscribers).told);
        Self {
            begun: cache.begun.load(SeqCst),
            covering: cache.covering.load(SeqCst),
            flushed: cache.flushed.load(SeqCst),
            lost: losses != told,
            failed: 0,
            losses,
            told,
        }
    }

    /// Whether a cache can be so. Flushes are numbered, and a state in which a number comes before
    /// its flush, or which has no room for more of them, would have a loss go untold.
    pub(crate) fn is_possible(&self) -> bool {
        let Self { begun, covering, flushed, failed, losses, told, .. } = *self;
        let numbers =
            begun < u64::MAX / 2 && flushed <= begun && failed <= begun && covering <= begun + 1;
        numbers && losses < u64::MAX / 2 && told <= losses
    }

    /// The cache of a [possible](Self::is_possible) state, with the `record` that it has. What that
    /// says goes on from there: the state may be from before the death of a driver.
    pub(crate) fn resume(&self, record: Option<Record>) -> WriteCache {
        let since = record.as_ref().and_then(Record::left).unwrap_or_default();
        let left = SavedCacheState {
            covering: self.covering.max(since.covering),
            flushed: self.flushed.max(since.flushed),
            losses: self.losses.max(self.lost.into()).max(since.losses),
            told: self.told.max(since.told),
        };
        record.iter().for_each(|record| record.set(left));
        WriteCache {
            begun: AtomicU64::new(self.begun.max(left.begun())),
            covering: AtomicU64::new(left.covering),
            flushed: AtomicU64::new(left.flushed),
            losses: AtomicU64::new(left.losses),
            subscribers: Mutex::new(Subscribers { told: left.told, ..Subscribers::default() }),
            record,
        }
    }
}

/// A [`Listener`] as it is written down. Fields are only ever added, each with a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedListener {
    told: u64,
    failed: u64,
}

impl SavedListener {
    pub(crate) fn of(listener: &Listener) -> Self {
        Self { told: listener.told, failed: listener.failed }
    }

    pub(crate) fn resume(self, cache: &WriteCache) -> Listener {
        cache.resume_listener(self.told, self.failed)
    }
}

#[cfg(test)]
mod tests;
