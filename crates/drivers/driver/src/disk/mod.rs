//! The engine of disks: what becomes of a request, whatever controller it is given to.
//!
//! # Shape
//! [`DiskQueue`] owns the requests in flight: their slots, time-outs, attempts and ends. A driver
//! gives it the [`Hardware`] of one queue (its rings) and the [`Controller`] that the queues share.
//! The engine is generic over both, so that the way of a request is compiled for each driver.
//!
//! - `queue.rs`: a request from `submit` to `reap`, and waiting.
//! - `recovery.rs`: time-outs, repetitions, and queues that come back after a reset.
//! - `reset.rs`: the steps of a reset of the controller, and who came back.
//! - `saved.rs`: queues that are handed over to another process.
//! - `slots.rs`, `timeouts.rs`: requests in flight, and how long they are waited for.
//! - `write_cache/`: writes that were not flushed, and whether they were lost.
//!
//! # Recovery
//! 1. A request that takes too long is [cancelled](Hardware::cancel) if the device knows how, and
//!    is given a grace period.
//! 2. If that does not end it, the controller is [reset](Controller::reset). Whoever resets it
//!    holds its [lock](Controller::lock) and increments the generation before a register changes.
//! 3. Before any queue repeats a request, the controller is asked whether it is still the same and
//!    whether it has lost its cache.
//! 4. Each queue's own thread compares the generation at its next `reap` or `tick`. `reap` takes
//!    the completions of the old rings. Once there are none, the queue creates its rings again and
//!    repeats what is in flight.
//! 5. If the reset fails, or a queue cannot be made anew three times in a row, the controller is
//!    given up, and all requests end with an error.
//!
//! A request that times out, or that a reset interrupts, is submitted at most [`ATTEMPTS`] times. A
//! request that the device asks to be retried may be submitted more often. Both limits are compared
//! with the same count: after three attempts for any reason, a request does not survive a reset.
//!
//! With the usual time-out of 30 s a request that is never answered takes this way: an abort after
//! 30 to 34 s (`timeouts.rs`); at most 2 s for the answer to that; if the device does not answer, a
//! reset at once, otherwise after another 11 s; all of that three times.
//!
//! To repeat it is safe because a controller that was stopped does no DMA.
//!
//! # Who owns memory
//! A request's memory returns to its owner only when the device cannot write to it any more: by
//! its completion, or by the proof that the controller is stopped. Without that it never returns.

mod queue;
mod recovery;
mod reset;
mod saved;
mod slots;
mod timeouts;
pub(crate) mod write_cache;

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ring3_class::block::{Completion, Info, IoError, Operation, Request};
use ring3_device::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use queue::DiskQueue;
pub(crate) use reset::{Condition, Losses};
pub(crate) use saved::SavedQueue;
pub(crate) use slots::{MAX_SLOTS, Slots};
pub(crate) use timeouts::Timeouts;
use write_cache::{PowerCount, WriteCache};

use crate::lifetime::{ControllerState, StopFailed};

/// Most attempts of a request that times out, or that a reset interrupts.
pub(crate) const ATTEMPTS: u8 = 3;

/// What the queues of a controller share.
pub(crate) trait Controller {
    /// What only the holder of the lock changes.
    type State;

    /// While this is held, nobody resets the controller.
    fn lock(&self) -> MutexGuard<'_, Self::State>;

    fn lifetime(&self) -> &ControllerState;

    /// When it has lost the caches of its disks; `None` if each disk's driver finds that out.
    #[inline]
    fn losses(&self) -> Option<&Losses> {
        None
    }

    /// What messages call it.
    fn name(&self) -> &str;

    /// How long a request may take; of a flush, how long that may take.
    fn timeout(&self, operation: Operation) -> Duration;

    /// How long a queue polls before it sleeps.
    fn poll(&self) -> Duration;

    /// What has become of it since it was started, by its registers. A reset wipes them: what else
    /// they tell has to be noted here.
    fn condition(&self, state: &Self::State) -> Condition;

    /// Stops it: afterwards it writes to no memory.
    fn stop(&self, state: &mut Self::State) -> Result<(), StopFailed>;

    /// Starts it after a [stop](Self::stop), as it was started first.
    fn start(&self, state: &mut Self::State) -> Result<(), Error>;

    /// How often it is started in one reset, if it does not answer as it should.
    const STARTS: u32 = 1;

    /// The volatile caches that are lost with it, with what messages call their disks.
    fn caches(&self) -> Vec<(String, Arc<WriteCache>)> {
        Vec::new()
    }

    /// How often it says that it has lost its power. It is asked only if it said so before.
    fn power_count(&self, _: &mut Self::State) -> Result<PowerCount, Error> {
        Ok(PowerCount::UNKNOWN)
    }

    /// Fails if it is another controller than before. Ends each disk that is another one than
    /// before. By default each queue asks its own disk when it is made anew.
    fn revalidate(&self, _: &mut Self::State) -> Result<(), Error> {
        Ok(())
    }

    /// Resets it if it has not been reset since `generation`, because of `why`, and starts it
    /// again.
    fn reset(&self, generation: u32, why: &str) -> Result<(), Error>
    where
        Self: Sized,
    {
        reset::reset(self, generation, why)
    }

    /// Stops it for good: `what` has failed with `error`.
    fn give_up(&self, state: &mut Self::State, error: &Error, what: &str)
    where
        Self: Sized,
    {
        reset::give_up(self, state, error, what);
    }
}

/// How a request ended that the device has completed.
pub(crate) enum Outcome {
    Done,
    Failed(IoError),
    /// It may succeed if it is submitted once more, after the pause.
    Retry(Duration),
    /// The device has dropped this request because another one failed. It is submitted again, and
    /// this does not count as an attempt.
    TakenBack,
}

/// Why a queue could not be made anew.
pub(crate) enum NotRenewed {
    /// The controller has to be reset once more.
    Failed(Error),
    /// There is no disk that may be used, though it may come back: how requests end, and why.
    NoDisk(IoError, Error),
}

type State<H> = <<H as Hardware>::Controller as Controller>::State;

/// The rings of one queue. The engine calls [`ring`](Self::ring) and all that reads completions
/// only while the device knows the queue, or after it was stopped.
pub(crate) trait Hardware: Send {
    type Controller: Controller + Send + Sync;
    /// What is saved of it when the queue is handed over.
    type Saved: Serialize + DeserializeOwned;
    /// What a saved queue is called, and the version of its form.
    const FORMAT: (&'static str, u32);

    fn controller(&self) -> &Arc<Self::Controller>;

    fn info(&self) -> &Info;

    /// The disk's volatile cache, if it has one.
    fn cache(&self) -> Option<&WriteCache>;

    /// Whether a disk that has ended may return. If so, every tick fails while it is away; if not,
    /// only the first one does.
    const MAY_COME_BACK: bool = false;

    /// Fails if the disk is not used any more, although its controller is.
    fn check_disk(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Why requests of this `operation` are refused now, whatever they are about.
    fn refusal(&self, _: Operation) -> Option<IoError> {
        None
    }

    /// Writes the command of `request` into the ring as `id`, if it is one of the common kind: a
    /// read or write that is in order and needs nothing else. It calls nothing.
    fn place_common(&mut self, slot: u16, id: u16, request: &Request) -> bool;

    /// Writes the command of `request` into the ring as `id`. The ring has room for whatever has a
    /// slot. False if the device need not be asked: then the request ends well.
    fn place(&mut self, slot: u16, id: u16, request: &Request) -> Result<bool, IoError>;

    /// Publishes what was placed, with one doorbell.
    fn ring(&mut self);

    /// Whether there is a completion.
    fn pending(&self) -> bool;

    /// Takes completions of reads that ended well into `done`, up to the first of anything else;
    /// returns how many. It calls nothing.
    fn take_reads(&mut self, slots: &mut Slots, done: &mut [Completion]) -> usize;

    /// Takes completions of requests that ended well, up to a flush or the first that is out of
    /// the ordinary: how many, and whether the cache [may hold](WriteCache::holds) what one of
    /// them has written.
    fn take_good(&mut self, slots: &mut Slots, done: &mut [Completion]) -> (usize, bool);

    /// Takes the next completion: the slot of its request, and how that ended. An error if it is
    /// for nothing in flight: the queue stays usable.
    fn take(&mut self, slots: &Slots) -> Result<Option<(u16, Outcome)>, Error>;

    /// Whether the device must soon be told which completions were taken.
    fn must_acknowledge(&self) -> bool {
        false
    }

    /// Notes that the device has read all commands but those `in_flight`, and tells it which
    /// completions were taken if it knows this queue.
    fn acknowledge(&mut self, _in_flight: u16, _is_known: bool) {}

    /// Asks the device for interrupts, or does without them.
    fn want_interrupts(&mut self, _wanted: bool) {}

    /// Whether the interrupt is let through now.
    fn set_armed(&mut self, _armed: bool) {}

    /// The owner is about to sleep on the interrupt's descriptor, unless it is not `safe`.
    fn note_sleep(&mut self, _safe: bool) {}

    /// Why the queue must be created again; `None` if it need not be.
    fn damage(&self) -> Option<&str> {
        None
    }

    /// Fails unless the controller runs. Looks for completions that came without an interrupt.
    fn check(&mut self) -> Result<(), Error>;

    /// Whether the device has what is in `slot`, so that its time runs.
    fn has_started(&self, _slot: u16) -> bool {
        true
    }

    /// The slots whose requests the device was given since the last call, a bit for each, if that
    /// is later than when they were placed.
    fn take_started(&mut self) -> u32 {
        0
    }

    /// Asks the device to end what it has as `id`, whose `request` takes too long. False if it
    /// cannot, or does not answer.
    fn cancel(&mut self, _id: u16, _request: &Request) -> bool {
        false
    }

    /// The reset that follows is for the request in `slot`, which takes too long.
    fn blame(&mut self, _slot: u16) {}

    /// Resets what the queue needs of the controller, which was not reset since `generation`.
    fn reset(&mut self, generation: u32, why: &str) -> Result<(), Error> {
        self.controller().reset(generation, why)
    }

    /// Makes the rings anew after a reset, empty, and has the device know them; the generation in
    /// which it does. The controller is in `generation` while `state` is held.
    fn renew(
        &mut self,
        state: MutexGuard<'_, State<Self>>,
        generation: u32,
    ) -> Result<u32, NotRenewed>
    where
        Self: Sized;

    /// What becomes of the request in `slot`, which has had `attempts`, after a reset: whether its
    /// repetition counts as an attempt, or how it ends.
    fn fate(&self, _slot: u16, attempts: u8) -> Result<bool, IoError> {
        if attempts < ATTEMPTS { Ok(true) } else { Err(IoError::Timeout) }
    }

    /// Refuses every [common](Self::place_common) request from now on: the disk has ended.
    fn refuse_all(&mut self) {}

    /// Takes the rings back from the device, which was given them in `generation`. `is_idle` says
    /// that nothing is in flight. An error if the device may still use them.
    fn close(&mut self, generation: u32, is_idle: bool) -> Result<(), Error>;

    /// Gives all memory that the device may reach up for good.
    fn abandon(&mut self);

    /// The queue is dropped. Another one may have its number, and also its rings of `generation`
    /// if those are `clean`.
    fn release(&mut self, generation: u32, clean: bool);

    /// How far the rings are.
    fn save(&mut self, in_flight: u16) -> Result<Self::Saved, Error>;

    /// Releases its memory, unchanged, to the process that resumes the queue.
    fn release_to_successor(&mut self, state: &mut State<Self>)
    where
        Self: Sized;
}
