//! The ends of requests: from the driver, or without it, to the kernel.

use std::io;

use ring3_class::block::{Completion, IoError};

use super::{UblkQueueServer, UblkSlot};
use crate::serving::{QueueServer, State};
use crate::ublk::scrap::ScratchBuffer;
use crate::ublk::translate;

impl UblkSlot {
    /// Maps the pages of the buffer that a request has filled, once for each.
    ///
    /// The kernel copies what was read out of pages that are mapped even if this process was killed
    /// meanwhile. For a killed process it maps none, and the reader would get an I/O error in place
    /// of what the next server reads. [Linux, ublk_unmap_io, __get_user_pages]
    #[cold]
    fn map_buffer(&mut self) {
        if let Some(buffer) = &self.buffer {
            buffer.map_pages(self.bytes as usize);
            self.mapped = self.bytes;
        }
    }
}

impl UblkQueueServer<'_> {
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
        if let Some(index) = slot.region.take() {
            return self.complete_shared(token as u16, index, result, data);
        }
        if let Some(buffer) = data.into_buffer() {
            slot.buffer = Some(buffer);
        }
        if slot.buffer.is_none() {
            // The driver keeps it, because its device may still write there.
            self.replace(token as usize)?;
            self.class.fail_lost_buffer()?;
        }
        self.finish(token as u16, result)
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
        self.class.request_check();
        match self.class.state() {
            State::Serving | State::Quiescing { .. }
                if self.class.is_retryable_elsewhere(error) =>
            {
                self.retry_list.push((tag, error));
                Ok(())
            }
            State::Serving | State::Quiescing { .. } => self.commit(tag, Err(error)),
            // Whatever the driver calls it: the disk is not there any more.
            State::Refusing { .. } | State::Abandoned { .. } => {
                self.commit(tag, Err(IoError::Transport))
            }
        }
    }

    /// The driver goes on with its device, so the requests that were in doubt have failed.
    pub(super) fn fail_retry_list(&mut self) -> io::Result<()> {
        while let Some((tag, error)) = self.retry_list.pop() {
            self.commit(tag, Err(error))?;
        }
        Ok(())
    }

    /// Tells the kernel how the request of `tag` ended, and lends its buffer for the next.
    #[inline]
    fn commit(&mut self, tag: u16, end: Result<(), IoError>) -> io::Result<()> {
        let slot = &mut self.slots[usize::from(tag)];
        slot.busy = false;
        if slot.bytes > slot.mapped {
            slot.map_buffer();
        }
        self.class.record_end(tag, end, slot.bytes);
        // SAFETY: as in `offer`; the buffer is back in its slot, or `addr` is that of the scratch
        // buffer, which is as long.
        unsafe { self.ring.commit(tag, translate::result(end, slot.bytes), slot.addr) }
    }

    /// Gives a tag whose buffer is lost another place for bytes that nobody will read.
    #[cold]
    pub(super) fn replace(&mut self, tag: usize) -> io::Result<()> {
        if self.slots[tag].buffer.is_none() {
            let len = self.geometry.buffer_bytes();
            let scrap = match self.scrap.take() {
                Some(scrap) => scrap,
                None => ScratchBuffer::new(len)?,
            };
            self.slots[tag].addr = self.scrap.insert(scrap).addr();
        }
        Ok(())
    }
}
