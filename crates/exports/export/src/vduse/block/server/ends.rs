//! The ends of requests: from the disk, or without it, to the driver.

use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::{Completion, Data, IoError};
use ring3_stats::Phase;

use super::{Mode, VduseQueueServer};
use crate::vduse::block::request::status;

impl VduseQueueServer<'_> {
    #[inline]
    pub(super) fn reap(&mut self) {
        let count = self.class.reap(&mut self.done).unwrap_or_else(|error| {
            tracing::warn!(%error, "the device misbehaved");
            0
        });
        for place in 0..count {
            let Completion { token, result, data } = std::mem::take(&mut self.done[place]);
            self.complete(token, result, data);
        }
    }

    /// Ends the request that `token` names and takes its buffer back.
    #[inline]
    pub(super) fn complete(&mut self, token: u64, end: Result<(), IoError>, data: Data) {
        let slot = usize::try_from(token)
            .ok()
            .and_then(|token| self.slots.get_mut(token))
            .filter(|slot| slot.busy);
        let Some(slot) = slot else {
            return self
                .abandon(format!("the driver ended request {token:#x}, which it did not have"));
        };
        if let Some(buffer) = data.into_buffer() {
            slot.buffer = Some(buffer);
        }
        self.finish(token as u16, end);
    }

    /// Says to the driver how the request of `place` has ended, which takes the next one then.
    #[inline]
    pub(super) fn finish(&mut self, place: u16, end: Result<(), IoError>) {
        let end = end.and_then(|()| self.hand_over(place));
        self.suspicious |= end.is_err();
        let slot = &mut self.slots[usize::from(place)];
        slot.busy = false;
        let bytes = if end.is_ok() { slot.bytes } else { 0 };
        self.recorder.ended(place, end.map_or_else(|error| error.errno() as u16, |()| 0), bytes);
        self.counters.completed(self.started);
        if let Some(queue) = self.queue.as_mut().filter(|_| slot.live) {
            let writable = slot.chain.writable();
            if let Some(last) = writable.checked_sub(1) {
                slot.chain.write(queue.memory(), last, &[status(end)]);
            }
            // All up to the status, which is the last, counts as written. [virtio 2.7.8.2]
            queue.put(slot.chain.head(), writable);
        }
        // A place whose buffer the disk has kept, because its device may still write there, is none
        // any more; but to fail no buffer is needed.
        if slot.buffer.is_some() || self.mode == Mode::Abandoned {
            self.free.push(place);
        } else {
            self.lose();
        }
    }

    /// Copies what was read to the driver. An error if it is not all there: the driver would take
    /// what was there before for it.
    #[inline]
    fn hand_over(&self, place: u16) -> Result<(), IoError> {
        let slot = &self.slots[usize::from(place)];
        let Some(queue) = self.queue.as_ref().filter(|_| slot.live && slot.reads && slot.bytes > 0)
        else {
            return Ok(());
        };
        let read = slot.buffer.as_ref().filter(|buffer| buffer.len() >= slot.bytes as usize);
        // SAFETY: the buffer has so many bytes, as was just seen.
        let copied = read.map(|buffer| unsafe {
            slot.chain.write_raw(queue.memory(), 0, buffer.as_ptr(), slot.bytes)
        });
        if copied == Some(slot.bytes) { Ok(()) } else { Err(IoError::Transport) }
    }

    /// Shows the driver what has ended.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.queue.as_mut().is_some_and(ring3_vduse::Queue::publish) {
            self.device.interrupt(self.number);
            self.counters.calls.add(1);
        }
    }

    /// Lets the driver look after its device. What it cannot mend is the end of the disk; anything
    /// else ends with its requests.
    pub(super) fn look_after(&mut self, now: Instant) {
        self.recorder.phase(Phase::Recovering);
        let ticked = self.registration.tick(&mut self.reactor, self.class, now);
        self.recorder.phase(Phase::Working);
        match ticked {
            Ok(()) => {}
            Err(error @ (Error::Gone | Error::Fatal(_))) => {
                self.gone |= matches!(error, Error::Gone);
                self.fail(format!("the driver cannot recover its device: {error}"));
                self.refuse();
            }
            Err(error) => tracing::warn!(%error, "the device misbehaved"),
        }
    }

    /// Says once why this queue serves no more.
    fn fail(&mut self, reason: String) {
        if !std::mem::replace(&mut self.failed, true) {
            self.report.failed(reason, self.gone);
        }
    }

    /// Fails what the disk does not have yet, and all that comes.
    #[cold]
    pub(super) fn refuse(&mut self) {
        if self.mode == Mode::Serving {
            self.mode = Mode::Refusing;
        }
        while let Some(request) = self.backlog.pop_front() {
            self.complete(request.token, Err(IoError::Transport), request.data);
        }
    }

    #[cold]
    fn lose(&mut self) {
        self.fail("the device still has the memory of a request that has ended".into());
        self.refuse();
    }

    /// Fails all there is and all that comes, without the driver. What it has of buffers stays with
    /// it: its device may write there.
    #[cold]
    pub fn abandon(&mut self, reason: String) {
        self.fail(reason);
        self.mode = Mode::Abandoned;
        self.backlog.clear();
        for place in 0..self.slots.len() {
            if self.slots[place].busy {
                self.finish(place as u16, Err(IoError::Transport));
            }
        }
        self.free.clear();
        self.free.extend(
            (0..self.slots.len() as u16).filter(|&place| !self.slots[usize::from(place)].busy),
        );
    }
}
