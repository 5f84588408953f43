//! A queue pair: the way of a request to the device and back.
//!
//! # Shape
//! [`submit`](Queue::submit) checks a request, describes its bytes, gives it a slot and writes its command into the submission ring.
//! [`ring`](Queue::ring) publishes the batch with one doorbell. [`reap`](Queue::reap) takes completions out of the completion ring and
//! finds their requests by id.
//!
//! # Trust
//! A completion counts only if its id names a request in flight, generation included. All else is [`Error::Protocol`], the queue
//! stays usable, and the request that should have been meant ends by its time-out.
//!
//! # Waiting
//! See [`Waiter`]. Completions are acknowledged when the ring is found empty and at the next doorbell: never later than a sleep.

use std::sync::Arc;
use std::time::Instant;

use ring3_class::block::{Completion, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::Irq;
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::wait::Waiter;
use ring3_device::{Bar, Deadline, Device, Error};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::{self, COMPLETION_WORDS, DsmRange, SUBMISSION_WORDS, Submission};

use super::controller::Shared;
use super::patience::Patience;
use super::prp::Lists;
use super::reset::DEAD;
use super::slots::Slots;

/// Requests in flight through one pair of rings. Its memory and its end are in `lifecycle.rs`, its misfortunes in `recovery.rs`.
pub(super) struct QueuePair<D: Device> {
    pub(super) bar: D::Bar,
    pub(super) submission: SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    pub(super) completion: CompletionRing<DmaBuffer, COMPLETION_WORDS>,
    pub(super) submission_doorbell: u64,
    pub(super) completion_doorbell: u64,
    pub(super) slots: Slots,
    pub(super) lists: Lists,
    pub(super) namespace: u32,
    pub(super) limits: Limits,
    /// The controller's generation in which this queue was created.
    pub(super) generation: u32,
    /// The last submission head that the device reported and that was not believed yet.
    pub(super) reported_head: Option<u16>,
    /// Requests that have ended without a completion.
    pub(super) ended: Vec<(u16, IoError)>,
    pub(super) patience: Patience,
    pub(super) waiter: Waiter,
    pub(super) shared: Arc<Shared<D>>,
    pub(super) info: Arc<Info>,
    /// The queue's number on the controller, from 1 on.
    pub(super) id: u16,
    pub(super) vector: Option<u16>,
}

/// What of [`Info`] every request is checked against.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) blocks: u64,
    pub(super) block_shift: u32,
    pub(super) max_blocks: u32,
    pub(super) max_write_zeroes: u32,
    pub(super) max_discard: u32,
    pub(super) read_only: bool,
}

impl Limits {
    pub(super) fn of(info: &Info) -> Self {
        Self {
            blocks: info.blocks,
            block_shift: info.block_size.trailing_zeros(),
            max_blocks: info.max_transfer / info.block_size.max(1),
            max_write_zeroes: info.max_write_zeroes_blocks,
            max_discard: info.discard.map_or(0, |discard| discard.max_blocks),
            read_only: info.read_only,
        }
    }

    /// Whether `request` has between 1 and `most` blocks, all on the disk.
    #[inline]
    fn check(&self, request: &Request, most: u32) -> Result<(), IoError> {
        // One comparison for both ends: no blocks wrap around to the most of all.
        if request.blocks.wrapping_sub(1) >= most {
            return Err(if most == 0 { IoError::Unsupported } else { IoError::Invalid });
        }
        match request.lba.checked_add(request.blocks.into()) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }
}

impl<D: Device> QueuePair<D> {
    /// The command for `request` in `slot`, without its id.
    #[inline]
    pub(super) fn encode(&self, slot: u16, request: &Request) -> Result<Submission, IoError> {
        let opcode = match request.operation {
            Operation::Read => nvm::READ,
            Operation::Write if !self.limits.read_only => nvm::WRITE,
            _ => return self.encode_other(slot, request),
        };
        self.limits.check(request, self.limits.max_blocks)?;
        let bytes = (request.blocks as usize) << self.limits.block_shift;
        let Some((prp1, prp2)) = self.lists.describe(slot.into(), &request.data, bytes) else { return Err(IoError::Invalid) };
        let fua = request.fua && opcode == nvm::WRITE;
        Ok(Submission::transfer(opcode, self.namespace, request.lba, request.blocks, fua).with_data(prp1, prp2))
    }

    /// Commands that move no data of the caller's.
    #[cold]
    fn encode_other(&self, slot: u16, request: &Request) -> Result<Submission, IoError> {
        let limits = &self.limits;
        if limits.read_only && request.operation != Operation::Flush {
            return Err(IoError::ReadOnly);
        }
        match request.operation {
            Operation::Flush => Ok(Submission::flush(self.namespace)),
            Operation::WriteZeroes => {
                limits.check(request, limits.max_write_zeroes)?;
                // Freed blocks need not read as zeroes on every device, so that is not permitted.
                Ok(Submission::write_zeroes(self.namespace, request.lba, request.blocks, request.fua, false))
            }
            Operation::Discard => {
                limits.check(request, limits.max_discard)?;
                let range = DsmRange { lba: request.lba, blocks: request.blocks };
                let address = self.lists.store(slot.into(), range.to_words());
                Ok(Submission::deallocate(self.namespace, 1).with_data(address, 0))
            }
            Operation::Read | Operation::Write => Err(IoError::Invalid),
        }
    }

    /// Takes completions until one ends a request.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Completion>, Error> {
        while let Some(entry) = self.completion.pop().map(nvme::Completion) {
            let Some(slot) = self.slots.find(entry.id()).filter(|_| entry.queue() == self.id) else {
                return Err(self.stray(entry));
            };
            self.reported_head = Some(entry.head());
            if !entry.status().is_success() {
                if let Some(completion) = self.failed(slot, entry.status()) {
                    return Ok(Some(completion));
                }
                continue;
            }
            if let Some((token, data)) = self.slots.vacate(slot) {
                return Ok(Some(Completion { token, result: Ok(()), data }));
            }
        }
        Ok(None)
    }

    /// Tells the device which completions were taken, and believes it which commands it has read.
    #[inline]
    pub(super) fn acknowledge(&mut self) -> Result<(), Error> {
        if let Some(head) = self.completion.publish() {
            self.bar.write32(self.completion_doorbell, head);
        }
        match self.reported_head.take() {
            Some(head) => self.submission.retire(head.into()),
            None => Ok(()),
        }
    }

    /// Whether [`reap`](Queue::reap) has something to do: a completion, a reset, or requests that ended by themselves.
    #[inline]
    fn pending(&self) -> bool {
        self.completion.ready() || self.shared.generation() != self.expected() || !self.ended.is_empty()
    }

    /// The generation in which there is nothing to mend: for a queue with nothing in flight, a controller's end is no news.
    fn expected(&self) -> u32 {
        if self.slots.in_flight() == 0 && self.shared.generation() == DEAD { DEAD } else { self.generation }
    }

    #[cold]
    fn stray(&self, entry: nvme::Completion) -> Error {
        Error::Protocol(format!(
            "queue {} has a completion for nothing in flight (queue {}, id {:#06x}, {})",
            self.id,
            entry.queue(),
            entry.id(),
            entry.status()
        ))
    }
}

#[cold]
fn rejected(request: Request, error: Option<IoError>) -> Result<(), Rejected> {
    Err(Rejected { error, request })
}

impl<D: Device> Queue for QueuePair<D> {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.slots.count()
    }

    fn in_flight(&self) -> u16 {
        self.slots.in_flight()
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let Some(slot) = self.slots.vacant() else { return rejected(request, None) };
        if self.submission.space() == 0 && (self.acknowledge().is_err() || self.submission.space() == 0) {
            return rejected(request, None);
        }
        let command = match self.encode(slot, &request) {
            Ok(command) => command,
            Err(error) => return rejected(request, Some(error)),
        };
        if let Some(id) = self.slots.fill(request, self.patience.epoch()) {
            self.submission.push(&command.with_id(id).0);
        }
        Ok(())
    }

    fn ring(&mut self) {
        if self.shared.generation() != self.generation {
            // The device does not know this queue any more; the next `reap` or `tick` repeats what was submitted.
            return;
        }
        if let Some(tail) = self.submission.publish() {
            self.bar.write32(self.submission_doorbell, tail);
        }
        if let Some(head) = self.completion.publish() {
            self.bar.write32(self.completion_doorbell, head);
        }
    }

    fn reap(&mut self) -> Result<Option<Completion>, Error> {
        if self.shared.generation() != self.generation || !self.ended.is_empty() {
            return self.reap_after_trouble();
        }
        match self.take()? {
            Some(completion) => Ok(Some(completion)),
            None => self.acknowledge().map(|()| None),
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.waiter.tick()?;
        self.watch(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        self.acknowledge()?;
        let (completion, shared, generation) = (&self.completion, &self.shared, self.expected());
        self.waiter.wait(deadline, || completion.ready() || shared.generation() != generation)
    }

    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        self.acknowledge()?;
        let (completion, shared, generation) = (&self.completion, &self.shared, self.expected());
        self.waiter.arm(|| completion.ready() || shared.generation() != generation)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }
}
