//! A queue of a remote disk: requests into one ring, their ends out of the other.

use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Data, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_class::dma::DmaBuffer;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{Budget, DEFAULT_POLL, Source, poll_for};
use ring3_class::{Deadline, Error};
use ring3_device::ring::{Consumer, Producer, Words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use crate::memory::{self, Layout};
use crate::protocol::Ask;
use crate::wire::{COMPLETION, MAX_SEGMENTS, SUBMISSION, Submission, ended};

/// How often the server is looked after while requests are in flight.
const LOOK: Duration = Duration::from_secs(1);

/// A request's place: its generation is half of the tag, so that an end which came twice is found.
#[derive(Default)]
struct Slot {
    generation: u16,
    busy: bool,
    token: u64,
    data: Data,
}

/// See the module.
pub struct RemoteQueue {
    connection: Arc<Connection>,
    number: u16,
    info: Info,
    /// The arena's addresses.
    reach: Range<u64>,
    submissions: Producer<DmaBuffer, SUBMISSION>,
    completions: Consumer<DmaBuffer, COMPLETION>,
    tables: DmaBuffer,
    kick: OwnedFd,
    irq: Irq,
    slots: Vec<Slot>,
    free: Vec<u16>,
    budget: Budget,
    /// The server has parted: what is in flight ends here.
    lost: bool,
}

impl RemoteQueue {
    /// Queue `number` of `depth` requests, with its descriptors: memory, eventfd, pipe.
    pub fn new(
        connection: Arc<Connection>,
        (number, depth): (u16, u16),
        [file, kick, woken]: [OwnedFd; 3],
        info: Info,
        reach: Range<u64>,
    ) -> Result<Self, Error> {
        let layout = Layout::new(depth);
        memory::check(&file, layout.bytes())?;
        let parts = layout.map(file.as_fd())?;
        Ok(Self {
            connection,
            number,
            info,
            reach,
            submissions: Producer::new(parts.submissions, depth)?,
            completions: Consumer::new(parts.completions, depth)?,
            tables: parts.tables,
            kick,
            irq: Irq::new(woken, IrqKind::MsiX, 0, None),
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            budget: Budget::new(DEFAULT_POLL),
            lost: false,
        })
    }

    /// Writes where the data of a request at the next place lies; how many segments, and the only one. An error for memory that is not the arena's.
    fn name(&self, request: &Request) -> Result<(u16, (u64, u32)), IoError> {
        if !matches!(request.operation, Operation::Read | Operation::Write) {
            return Ok((0, (0, 0)));
        }
        let bytes = request.blocks as usize * self.info.block_size as usize;
        let (mut count, mut first) = (0, (0, 0));
        for segment in request.data.segments(bytes) {
            let inside = self.reach.contains(&segment.iova) && u64::from(segment.len) <= self.reach.end - segment.iova;
            if !inside || count == MAX_SEGMENTS {
                return Err(IoError::Invalid);
            }
            let offset = segment.iova - self.reach.start;
            let word = (self.submissions.place() * MAX_SEGMENTS + count) * 2;
            if count == 0 {
                first = (offset, segment.len);
            } else if count == 1 {
                self.tables.store_entry(word - 2, &[first.0, first.1.into()]);
            }
            if count > 0 {
                self.tables.store_entry(word, &[offset, segment.len.into()]);
            }
            count += 1;
        }
        Ok((count as u16, first))
    }

    /// The end that an entry tells of. One that is of nothing in flight is an error, and changes nothing.
    fn end(&mut self, entry: [u64; COMPLETION], place: &mut Completion) -> Result<(), Error> {
        let (tag, result) = ended(entry);
        let found = self.slots.get_mut(usize::from(tag as u16)).filter(|slot| slot.busy && slot.generation == (tag >> 16) as u16);
        let slot = found.ok_or_else(|| Error::Protocol(format!("the server ends request {tag:#x}, which is not in flight")))?;
        slot.busy = false;
        slot.generation = slot.generation.wrapping_add(1);
        place.become_end_of(slot.token, result, &mut slot.data);
        self.free.push(tag as u16);
        Ok(())
    }

    /// Ends what the server has not. Its device may still write to the memory, which is given up.
    fn end_lost(&mut self, done: &mut [Completion]) -> usize {
        let mut count = 0;
        for (index, slot) in self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.busy).take(done.len()) {
            slot.busy = false;
            mem::forget(mem::take(&mut slot.data));
            done[count].become_end_of(slot.token, Err(IoError::Gone), &mut Data::None);
            self.free.push(index as u16);
            count += 1;
        }
        count
    }

    /// Looks whether the server is there; why not, the first time.
    fn look(&mut self) -> Result<(), Error> {
        if self.lost || !self.connection.is_lost() {
            return Ok(());
        }
        self.lost = true;
        Err(self.connection.last_word())
    }

    /// Sleeps until the server has something to say, or for `left`.
    fn sleep(&mut self, left: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [PollFd::new(&self.irq, PollFlags::IN), PollFd::new(self.connection.socket(), PollFlags::RDHUP)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::os("waiting for a request", error)),
        }
        self.lost |= !fds[1].revents().is_empty();
        self.irq.take().map(drop)
    }
}

impl Queue for RemoteQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.slots.len() as u16
    }

    fn in_flight(&self) -> u16 {
        (self.slots.len() - self.free.len()) as u16
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.lost {
            return Err(Rejected { error: Some(IoError::Gone), request });
        }
        let Some(&index) = self.free.last() else { return Err(Rejected { error: None, request }) };
        // As many as are free here are free there, unless the server miscounts.
        if !self.submissions.room().is_ok_and(|room| room > 0) {
            return Err(Rejected { error: Some(IoError::Transport), request });
        }
        let named = self.info.check_uncut(&request).and_then(|()| self.name(&request));
        let (segments, only) = match named {
            Ok(named) => named,
            Err(error) => return Err(Rejected { error: Some(error), request }),
        };
        let Request { operation, fua, blocks, lba, token, data } = request;
        let slot = &mut self.slots[usize::from(index)];
        let tag = u32::from(index) | u32::from(slot.generation) << 16;
        self.submissions.push(&Submission { operation, fua, segments, tag, lba, blocks, only }.encode());
        (slot.busy, slot.token, slot.data) = (true, token, data);
        self.free.pop();
        Ok(())
    }

    fn ring(&mut self) {
        if self.submissions.publish() {
            // It can only fail when the count is at its maximum, and then the server is awake.
            let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let mut count = 0;
        while count < done.len()
            && let Some(entry) = self.completions.pop()?
        {
            self.end(entry, &mut done[count])?;
            count += 1;
        }
        self.completions.release();
        if count == 0 && self.lost {
            count = self.end_lost(done);
        }
        Ok(count)
    }
}

impl Source for RemoteQueue {
    fn irq(&self) -> Option<&Irq> {
        Some(&self.irq)
    }

    #[inline]
    fn pending(&self) -> bool {
        self.completions.pending() || self.lost && self.in_flight() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.completions.want(true);
        Ok(!self.pending())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.completions.want(false);
        self.irq.take().map(drop)
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        self.look()?;
        Ok(Some(now + LOOK))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let start = Instant::now();
        let limit = self.budget.poll_for().min(deadline.remaining_at(start));
        if !limit.is_zero() && self.in_flight() > 0 {
            let (found, end) = poll_for(start, limit, &mut || self.pending());
            if found {
                self.budget.observe(end - start, true);
                return Ok(true);
            }
        }
        loop {
            if !self.arm()? {
                break;
            }
            self.sleep(deadline.remaining())?;
            if self.pending() || deadline.expired() {
                break;
            }
            if self.lost {
                // Nothing will come any more.
                std::thread::sleep(deadline.remaining());
                break;
            }
        }
        self.completions.want(false);
        self.budget.observe(start.elapsed(), false);
        Ok(self.pending())
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        let closed = !self.lost && self.connection.ask(&Ask::Close { queue: self.number }).is_ok();
        if !closed {
            // The device may still write there.
            self.slots.iter_mut().filter(|slot| slot.busy).for_each(|slot| mem::forget(mem::take(&mut slot.data)));
        }
    }
}
