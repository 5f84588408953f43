//! A queue of a remote disk: requests into one ring, their ends out of the other.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ring3_class::block::{Completion, Data, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_class::dma::{Arena, DmaBuffer};
use ring3_class::irq::Irq;
use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};
use ring3_device::ring::{Consumer, Producer, Words};

use super::bell::{self, NotifiedQueue, ServerNotifier};
use super::connection::Connection;
use super::slots::{Slots, fill};
use crate::memory::{self, Layout};
use crate::wire::{COMPLETION, MAX_SEGMENTS, SUBMISSION, Submission, ended, place};

/// A request's place.
#[derive(Default)]
struct SentRequest {
    token: u64,
    data: Data,
}

/// See the module.
pub struct RemoteQueue {
    bell: ServerNotifier,
    number: u16,
    info: Info,
    /// What the server shares.
    arena: Arena,
    submissions: Producer<DmaBuffer, SUBMISSION>,
    completions: Consumer<DmaBuffer, COMPLETION>,
    tables: DmaBuffer,
    slots: Slots<SentRequest>,
    /// What was found wrong behind ends that were to be told first.
    fault: Option<Error>,
}

impl RemoteQueue {
    /// Queue `number` of `depth` requests, with its descriptors: memory, eventfd, pipe.
    pub fn new(
        connection: Arc<Connection>,
        (number, depth): (u16, u16),
        [file, kick, woken]: [OwnedFd; 3],
        info: Info,
        arena: Arena,
    ) -> Result<Self, Error> {
        let layout = Layout::new(depth);
        memory::check(&file, layout.bytes())?;
        let parts = layout.map(file.as_fd())?;
        Ok(Self {
            bell: ServerNotifier::new(connection, kick, woken),
            number,
            info,
            arena,
            submissions: Producer::new(parts.submissions, depth)?,
            completions: Consumer::new(parts.completions, depth)?,
            tables: parts.tables,
            slots: Slots::new(depth),
            fault: None,
        })
    }

    /// Writes where the data of a request at the next place lies; how many segments, and the only
    /// one. An error for memory that is not the arena's.
    fn name(&self, request: &Request) -> Result<(u16, (u64, u32)), IoError> {
        if !matches!(request.operation, Operation::Read | Operation::Write) {
            return Ok((0, (0, 0)));
        }
        let bytes = request.blocks as usize * self.info.block_size as usize;
        let (mut count, mut first) = (0, (0, 0));
        for segment in request.data.segments(bytes) {
            let span = self
                .arena
                .span(segment.iova, segment.len as usize)
                .filter(|_| count < MAX_SEGMENTS);
            let span = span.ok_or(IoError::Invalid)?;
            let place = place(span.region, span.offset);
            let word = (self.submissions.place() * MAX_SEGMENTS + count) * 2;
            if count == 0 {
                first = (place, segment.len);
            } else if count == 1 {
                self.tables.store_entry(word - 2, &[first.0, first.1.into()]);
            }
            if count > 0 {
                self.tables.store_entry(word, &[place, segment.len.into()]);
            }
            count += 1;
        }
        Ok((count as u16, first))
    }

    /// The next end, if there is one. One that is of nothing in flight is an error, and changes
    /// nothing.
    #[inline]
    fn next_end(&mut self, place: &mut Completion) -> Result<bool, Error> {
        let Some(entry) = self.completions.pop()? else { return Ok(false) };
        let (tag, result) = ended(entry);
        let held = self.slots.end(tag)?;
        place.into_completion_of(held.token, result, &mut held.data);
        Ok(true)
    }

    /// Ends what the server has not. Its device may still write to the memory, which is given up.
    fn end_lost(&mut self, done: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < done.len()
            && let Some(held) = self.slots.end_any()
        {
            mem::forget(mem::take(&mut held.data));
            done[count].into_completion_of(held.token, Err(IoError::Gone), &mut Data::None);
            count += 1;
        }
        count
    }
}

impl Queue for RemoteQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.slots.depth()
    }

    fn in_flight(&self) -> u16 {
        self.slots.in_flight()
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.bell.lost {
            return Err(Rejected { error: Some(IoError::Gone), request });
        }
        if self.slots.room() == 0 {
            return Err(Rejected { error: None, request });
        }
        // As many as are free here are free there, unless the server miscounts.
        if !self.submissions.room().is_ok_and(|room| room > 0) {
            return Err(Rejected { error: Some(IoError::Transport), request });
        }
        let named = self.info.check_uncut(&request).and_then(|()| self.name(&request));
        let (segments, only) = match named {
            Ok(named) => named,
            Err(error) => return Err(Rejected { error: Some(error), request }),
        };
        let Some((tag, held)) = self.slots.take() else {
            return Err(Rejected { error: None, request });
        };
        let Request { operation, fua, blocks, lba, token, data } = request;
        (held.token, held.data) = (token, data);
        self.submissions
            .push(&Submission { operation, fua, segments, tag, lba, blocks, only }.encode());
        Ok(())
    }

    fn ring(&mut self) {
        if self.submissions.publish() {
            self.bell.ring();
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let (mut count, fault) = fill(done, |place| self.next_end(place));
        self.completions.release();
        self.fault = fault;
        if count == 0
            && let Some(fault) = self.fault.take()
        {
            return Err(fault);
        }
        if count == 0 && self.bell.lost {
            count = self.end_lost(done);
        }
        Ok(count)
    }
}

impl Source for RemoteQueue {
    fn irq(&self) -> Option<&Irq> {
        Some(self.bell.irq())
    }

    #[inline]
    fn pending(&self) -> bool {
        self.completions.pending() || self.fault.is_some() || self.bell.lost && self.in_flight() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        bell::arm(self)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        bell::disarm(self)
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        bell::tick(self, now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        bell::wait(self, deadline)
    }
}

impl NotifiedQueue for RemoteQueue {
    fn bell(&mut self) -> &mut ServerNotifier {
        &mut self.bell
    }

    fn busy(&self) -> bool {
        self.in_flight() > 0
    }

    fn want(&mut self, wanted: bool) {
        self.completions.want(wanted);
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        if !self.bell.close(self.number) {
            // The device may still write there.
            while let Some(held) = self.slots.end_any() {
                mem::forget(mem::take(&mut held.data));
            }
        }
    }
}
