//! A queue of one drive: what its owner submitted and what the channel has of it.
//!
//! [`submit`](Queue::submit) checks a request and keeps it; [`ring`](Queue::ring) hands the batch
//! to the channel; [`reap`](Queue::reap) moves the channel on and takes what has ended. Each of
//! these takes the channel's lock once at most.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use ring3_class::block::{Completion, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Deadline, Error};

use super::super::command::Encoder;
use super::super::options::Level;
use super::channel::Channel;
use super::controller::IdeShared;
use super::prd;
use crate::lifetime::lock;

/// Most requests that a queue holds.
const MAX_DEPTH: u16 = 1023;

/// The only queue of a drive.
pub(super) struct DriveQueue {
    shared: Arc<IdeShared>,
    place: (u8, u8),
    info: Arc<Info>,
    encoder: Encoder,
    level: Level,
    submitted: VecDeque<Request>,
    in_flight: u16,
    depth: u16,
    waiter: Waiter,
}

impl DriveQueue {
    /// Opens the queue of the drive at `place`, a channel and a drive of it.
    pub(super) fn open(
        shared: Arc<IdeShared>,
        place: (u8, u8),
        info: Arc<Info>,
        depth: u16,
    ) -> Result<Self, Error> {
        let options = &shared.function.options;
        let depth = depth.min(options.max_depth).clamp(1, MAX_DEPTH);
        let waiter = Waiter::new(shared.vectors.of_queue(place.0)?, options.poll);
        let mut channel = shared.channel(place.0).ok_or(Error::Gone)?;
        let name = channel.name_of(place.1);
        let state = channel.state(place.1).ok_or(Error::Gone)?;
        if state.open {
            return Err(Error::Busy(format!(
                "the queue of {name} is open: an IDE drive has one; close it first"
            )));
        }
        (state.open, state.used) = (true, true);
        state.waiting.reserve(depth.into());
        state.done.reserve(depth.into());
        let (encoder, level) = (state.encoder.clone(), state.level());
        drop(channel);
        let submitted = VecDeque::with_capacity(depth.into());
        Ok(Self { shared, place, info, encoder, level, submitted, in_flight: 0, depth, waiter })
    }

    /// Whether the channel has nothing of this queue.
    #[inline]
    fn nothing_runs(&self) -> bool {
        usize::from(self.in_flight) == self.submitted.len()
    }

    /// Why `request` makes no sense here, if it does not.
    fn check(&self, request: &Request) -> Result<(), IoError> {
        self.encoder.encode(request, self.level)?;
        let moves = matches!(request.operation, Operation::Read | Operation::Write);
        let bytes = request.blocks as usize * self.info.block_size as usize;
        if moves && !prd::fits(&request.data, bytes) { Err(IoError::Invalid) } else { Ok(()) }
    }
}

impl Queue for DriveQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.depth
    }

    fn in_flight(&self) -> u16 {
        self.in_flight
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.in_flight >= self.depth {
            return Err(Rejected { error: None, request });
        }
        if let Err(error) = self.check(&request) {
            return Err(Rejected { error: Some(error), request });
        }
        self.in_flight += 1;
        self.submitted.push_back(request);
        Ok(())
    }

    fn ring(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let (drive, submitted) = (self.place.1, &mut self.submitted);
        self.shared.with(self.place, |channel| channel.ring(drive, submitted));
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if self.nothing_runs() {
            return Ok(0);
        }
        let count =
            self.shared.with(self.place, |channel| channel.reap(self.place.1, done)).unwrap_or(0);
        self.in_flight -= count as u16;
        Ok(count)
    }
}

impl Source for DriveQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.shared.is_ready(self.place)
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let (shared, place) = (&self.shared, self.place);
        // A channel that has something of this queue is looked at first, because the look may take
        // an interrupt back.
        if shared.is_ready(place) {
            return Ok(false);
        }
        self.waiter.arm(|| shared.is_ready(place))
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        let next = self
            .shared
            .with(self.place, |channel| channel.watch(self.place.1, now))
            .unwrap_or(Err(Error::Gone))?;
        Ok(sooner(rearmed, next.filter(|_| self.in_flight > 0)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.nothing_runs() && self.waiter.irq().is_none() {
            // Looking would find nothing, however often.
            std::thread::sleep(deadline.remaining());
            return Ok(false);
        }
        let (shared, place) = (&self.shared, self.place);
        self.waiter.wait(deadline, || shared.is_ready(place))
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}

impl Drop for DriveQueue {
    fn drop(&mut self) {
        self.shared.with(self.place, |channel| channel.close(self.place.1));
    }
}

impl IdeShared {
    /// Channel `number`, if it is there.
    #[inline]
    pub(super) fn channel(&self, number: u8) -> Option<MutexGuard<'_, Channel>> {
        self.channels[usize::from(number & 1)].as_ref().map(lock)
    }

    /// Does `what` for the owner of the drive at `place`, holding its channel. Wakes the other
    /// drive's owner if that found an end of the other drive's.
    #[inline]
    fn with<T>(
        &self,
        (channel, drive): (u8, u8),
        what: impl FnOnce(&mut Channel) -> T,
    ) -> Option<T> {
        let mut held = self.channel(channel)?;
        let done = what(&mut held);
        let news = std::mem::take(&mut held.news[usize::from(drive == 0)]);
        drop(held);
        if news {
            self.vectors.wake(channel);
        }
        Some(done)
    }

    #[inline]
    fn is_ready(&self, place: (u8, u8)) -> bool {
        self.with(place, |channel| channel.ready(place.1)).unwrap_or(false)
    }
}
