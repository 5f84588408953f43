//! The begin of requests: from the driver to the disk.

use std::io;

use ring3_class::block::{Data, IoError, Request};
use ring3_vduse::{Error, Fault};

use super::VduseQueueServer;
use crate::serving::{QueueServer, State};
use crate::vduse::block::request::{ChainRequest, HEADER, decode, moves_in};

impl VduseQueueServer<'_> {
    /// Takes what the driver has offered, as long as there is a place for it.
    #[inline]
    pub(super) fn take_chains(&mut self) -> io::Result<()> {
        while let (Some(queue), Some(&place), None) =
            (&mut self.queue, self.free.last(), self.fault)
        {
            let slot = &mut self.slots[usize::from(place)];
            let taken = match self.again.pop() {
                Some(head) => queue.retake(head, &mut slot.chain).map(|()| true),
                None => queue.take(&mut slot.chain),
            };
            match taken {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    self.free.pop();
                    (slot.busy, slot.live) = (true, true);
                    self.begin(place)?;
                }
                Err(fault) => self.stop(fault),
            }
        }
        Ok(())
    }

    /// The driver has written what makes no sense: nothing of it is looked at any more.
    #[cold]
    pub(super) fn stop(&mut self, fault: Fault) {
        let error = Error::Driver { queue: self.number, fault };
        tracing::error!("{}: {error}", self.device.name());
        self.fault = Some(fault);
    }

    /// Begins what the chain of `place` asks for.
    #[inline]
    fn begin(&mut self, place: u16) -> io::Result<()> {
        let slot = &mut self.slots[usize::from(place)];
        (slot.bytes, slot.reads) = (0, false);
        let Some(queue) = &self.queue else { return Ok(()) };
        let asked = match self.class.state() {
            State::Serving => decode(&slot.chain, queue.memory(), &self.geometry),
            // While it quiesces no driver has the device any more.
            State::Quiescing { .. } | State::Refusing { .. } | State::Abandoned { .. } => {
                Err(IoError::Transport)
            }
        };
        let decoded = match asked {
            Ok(ChainRequest::Request(decoded)) => decoded,
            Ok(ChainRequest::Name) => {
                slot.chain.write(
                    queue.memory(),
                    0,
                    &self.name[..self.name.len().min(slot.chain.writable() as usize - 1)],
                );
                self.class.record_rejected(place);
                return self.finish(place, Ok(()));
            }
            Err(error) => {
                self.class.record_rejected(place);
                return self.finish(place, Err(error));
            }
        };
        (slot.bytes, slot.reads) = (decoded.bytes, moves_in(decoded.operation));
        if !slot.reads && decoded.bytes > 0 {
            let room = slot.buffer.as_ref().filter(|buffer| buffer.len() >= decoded.bytes as usize);
            // SAFETY: the buffer has so many bytes, as was just seen, and nobody else has it.
            let copied = room.map(|buffer| unsafe {
                slot.chain.read_raw(queue.memory(), HEADER, buffer.as_ptr(), decoded.bytes)
            });
            if copied != Some(decoded.bytes) {
                // What is in the buffer is another request's.
                self.class.record_start(place, &decoded);
                return self.finish(place, Err(IoError::Transport));
            }
        }
        self.class.record_start(place, &decoded);
        let data = if decoded.bytes > 0 {
            slot.buffer.take().map_or(Data::None, Data::Buffer)
        } else {
            Data::None
        };
        let (operation, fua, blocks, lba) =
            (decoded.operation, decoded.fua, decoded.blocks, decoded.lba);
        self.submit(Request { operation, fua, blocks, lba, token: place.into(), data })
    }
}
