//! The ends of requests: from the driver, or without it, to the kernel.

use std::io;

use ring3_class::block::{Completion, Data, IoError};

use super::{Mode, UblkQueueServer};
use crate::ublk::translate;

impl UblkQueueServer<'_> {
    #[inline]
    pub(super) fn reap(&mut self) -> io::Result<()> {
        let count = self.class.reap(&mut self.done).unwrap_or_else(|error| {
            tracing::warn!(%error, "the device misbehaved");
            0
        });
        for place in 0..count {
            let Completion { token, result, data } = std::mem::take(&mut self.done[place]);
            self.complete(token, result, data)?;
        }
        Ok(())
    }

    /// Ends the request that `token` names and takes its buffer back.
    #[inline]
    pub(super) fn complete(
        &mut self,
        token: u64,
        end: Result<(), IoError>,
        data: Data,
    ) -> io::Result<()> {
        let slot = usize::try_from(token)
            .ok()
            .and_then(|token| self.slots.get_mut(token))
            .filter(|slot| slot.busy);
        let Some(slot) = slot else {
            return self
                .abandon(format!("the driver ended request {token:#x}, which it did not have"));
        };
        if let Some(index) = slot.region.take() {
            return self.complete_shared(token as u16, index, end, data);
        }
        if let Some(buffer) = data.into_buffer() {
            slot.buffer = Some(buffer);
        }
        if slot.buffer.is_none() {
            self.lose(token as usize)?;
        }
        self.finish(token as u16, end)
    }

    #[inline]
    pub(super) fn finish(&mut self, tag: u16, end: Result<(), IoError>) -> io::Result<()> {
        match end {
            Ok(()) => self.commit(tag, Ok(())),
            Err(error) => self.finish_failed(tag, error),
        }
    }

    #[cold]
    fn finish_failed(&mut self, tag: u16, error: IoError) -> io::Result<()> {
        self.suspicious = true;
        match self.mode {
            Mode::Serving | Mode::Leaving if self.is_retryable_elsewhere(error) => {
                self.doubtful.push((tag, error));
                Ok(())
            }
            Mode::Serving | Mode::Leaving => self.commit(tag, Err(error)),
            // Whatever the driver calls it: the disk is not there any more.
            Mode::Refusing | Mode::Abandoned => self.commit(tag, Err(IoError::Transport)),
        }
    }

    /// Tells the kernel how the request of `tag` ended, and lends its buffer for the next.
    #[inline]
    pub(super) fn commit(&mut self, tag: u16, end: Result<(), IoError>) -> io::Result<()> {
        let slot = &mut self.slots[usize::from(tag)];
        slot.busy = false;
        let (bytes, errno) = match end {
            Ok(()) => (slot.bytes, 0),
            Err(error) => (0, error.errno() as u16),
        };
        self.recorder.ended(tag, errno, bytes);
        self.counters.completed(self.started);
        // SAFETY: as in `offer`; the buffer is back in its slot, or `addr` is that of the scrap,
        // which is as long.
        unsafe { self.ring.commit(tag, translate::result(end, slot.bytes), slot.addr) }
    }
}
