//! The ends of requests: from the disk, or without it, to the driver.

use std::io;

use ring3_class::block::{Completion, IoError};

use super::VduseQueueServer;
use crate::serving::{QueueServer, State};
use crate::vduse::block::request::status;

impl VduseQueueServer<'_> {
    /// Ends the request that the completion's token names and takes its buffer back.
    #[inline]
    pub(super) fn end(&mut self, completion: Completion) -> io::Result<()> {
        let Completion { token, result, data } = completion;
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
        self.finish(token as u16, result)
    }

    /// Says to the driver how the request of `place` has ended, which takes the next one then.
    #[inline]
    pub(super) fn finish(&mut self, place: u16, end: Result<(), IoError>) -> io::Result<()> {
        let end = end.and_then(|()| self.hand_over(place));
        if end.is_err() {
            self.class.request_check();
        }
        let slot = &mut self.slots[usize::from(place)];
        slot.busy = false;
        self.class.record_end(place, end, slot.bytes);
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
        if slot.buffer.is_some() || matches!(self.class.state(), State::Abandoned { .. }) {
            self.free.push(place);
            Ok(())
        } else {
            self.class.fail_lost_buffer()?;
            self.fail_backlog()
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
            self.class.counters.calls.add(1);
        }
    }
}
