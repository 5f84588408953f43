//! One queue of one client, as the server has it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring3_class::Error;
use ring3_class::block::{Completion, Data, IoError, Operation, Request};
use ring3_class::dma::{DmaBuffer, Piece, Span};
use ring3_device::ring::{Consumer, Producer, Words};
use ring3_reactor::Reactor;

use super::access::DiskGrant;
use super::memory::{ClientNotifier, Memory};
use super::unflushed::PendingFlushError;
use crate::memory::{self, Layout};
use crate::wire::{COMPLETION, MAX_SEGMENTS, SUBMISSION, Submission, completion, span};

/// A request that was taken out of the ring and waits for its turn.
pub struct QueuedRequest {
    pub tag: u32,
    /// Bytes that it moves.
    pub bytes: u64,
    pub request: Request,
    /// Why it does not go to the disk.
    pub refusal: Option<IoError>,
}

/// See the module.
pub struct ClientQueue {
    submissions: Consumer<DmaBuffer, SUBMISSION>,
    completions: Producer<DmaBuffer, COMPLETION>,
    tables: DmaBuffer,
    held: Option<QueuedRequest>,
    memory: Arc<Memory>,
    /// A list of segments for each request that can be in flight, where the device reaches the
    /// memory.
    lists: Vec<Data>,
    pub bell: ClientNotifier,
    /// Requests in the disk's hands.
    pub in_flight: u16,
    /// It takes nothing more, and is gone when nothing of it is in flight.
    pub closing: bool,
    pub debt: PendingFlushError,
}

impl ClientQueue {
    /// Of `depth` requests, a power of two; with the descriptors that are the client's: memory,
    /// eventfd, pipe.
    pub fn new(
        depth: u16,
        memory: Arc<Memory>,
        reactor: &mut Reactor,
    ) -> Result<(Self, [OwnedFd; 3]), Error> {
        let layout = Layout::new(depth);
        let file = memory::make(layout.bytes())?;
        let parts = layout.map(file.as_fd())?;
        let list =
            || memory.arena.list(&[]).map(|list| Data::from(list.with_owner(memory.clone())));
        let lists =
            if memory.mapped { (0..depth).filter_map(|_| list()).collect() } else { Vec::new() };
        let (bell, [kick, woken]) = ClientNotifier::new(reactor)?;
        let queue = Self {
            submissions: Consumer::new(parts.submissions, depth)?,
            completions: Producer::new(parts.completions, depth)?,
            tables: parts.tables,
            held: None,
            lists,
            memory,
            bell,
            in_flight: 0,
            closing: false,
            debt: PendingFlushError::default(),
        };
        Ok((queue, [file, kick, woken]))
    }

    /// Whether there is something to take.
    #[inline]
    pub fn pending(&self) -> bool {
        !self.closing && (self.held.is_some() || self.submissions.pending())
    }

    /// Asks the client to say when there is something, or not to.
    pub fn want(&mut self, wanted: bool) {
        self.submissions.want(wanted);
    }

    /// The next request, which stays here. An error is the client's: it broke the protocol.
    pub fn peek(&mut self, grant: &DiskGrant) -> Result<Option<&QueuedRequest>, Error> {
        if self.held.is_none() && !self.closing {
            self.held = self.fetch(grant)?;
        }
        Ok(self.held.as_ref())
    }

    /// Takes what was peeked at.
    pub fn take(&mut self) -> Option<QueuedRequest> {
        self.held.take()
    }

    /// Forgets what was not begun, for the end.
    pub fn close(&mut self) {
        (self.closing, self.held) = (true, None);
    }

    fn fetch(&mut self, grant: &DiskGrant) -> Result<Option<QueuedRequest>, Error> {
        let place = self.submissions.place();
        let Some(words) = self.submissions.pop()? else { return Ok(None) };
        // The client gives room before it asks for more, so it stands to reason here.
        if self.completions.room()? <= u32::from(self.in_flight) {
            return Err(Error::Protocol("more requests are in flight than its queue holds".into()));
        }
        let submission = Submission::decode(words)
            .ok_or_else(|| Error::Protocol(format!("no request is {words:x?}")))?;
        let data = self.data(&submission, place)?;
        self.submissions.release();
        Ok(Some(held(submission, data, grant)))
    }

    /// The bytes that `submission`, which stood at `place`, names: the client's own, or the client
    /// has broken the protocol.
    fn data(&mut self, submission: &Submission, place: usize) -> Result<Data, Error> {
        let count = usize::from(submission.segments);
        let mut spans = [Span { region: 0, len: 0, offset: 0 }; MAX_SEGMENTS];
        match count {
            0 => return Ok(Data::None),
            1 => spans[0] = span(submission.only.0, submission.only.1),
            _ => {
                for (index, named) in spans[..count].iter_mut().enumerate() {
                    let word = (place * MAX_SEGMENTS + index) * 2;
                    *named = span(self.tables.load(word), self.tables.load(word + 1) as u32);
                }
            }
        }
        let (spans, memory) = (&spans[..count], &self.memory);
        let stray = || Error::Protocol("a request names bytes that are not in its memory".into());
        if memory.mapped {
            // There is one for each that the ring has room for.
            let Some(Data::Segments(mut list)) = self.lists.pop() else { return Err(stray()) };
            return if list.aim(spans) { Ok(Data::Segments(list)) } else { Err(stray()) };
        }
        let piece = |span: &Span| Piece {
            memory: memory.foreign.clone(),
            offset: span.offset as usize,
            len: span.len as usize,
        };
        match spans.iter().all(|&span| memory.arena.segment(span).is_some()) {
            true => Ok(Data::Foreign(spans.iter().map(piece).collect())),
            false => Err(stray()),
        }
    }

    /// Tells the client how the request with `tag` ended, at the next [`flush`](Self::flush), and
    /// takes its data back.
    pub fn complete(&mut self, tag: u32, result: Result<(), IoError>, data: Data) {
        if matches!(data, Data::Segments(_)) {
            self.lists.push(data);
        }
        self.completions.push(&completion(tag, result));
    }

    /// The same of a request that was with the disk.
    pub fn end(&mut self, tag: u32, end: Completion) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.complete(tag, end.result, end.data);
    }

    /// Shows the client what has ended, and wakes it if it wants that.
    #[inline]
    pub fn flush(&mut self) {
        if self.completions.publish() {
            self.bell.ring();
        }
    }
}

/// The request as the disk gets it, or why not.
fn held(submission: Submission, data: Data, grant: &DiskGrant) -> QueuedRequest {
    let Submission { operation, fua, blocks, lba, tag, .. } = submission;
    let mut request = Request { operation, fua, blocks, lba, token: 0, data };
    let checked = match &request.data {
        Data::Segments(list) if !grant.info.segments.allow(list) => Err(IoError::Invalid),
        // What is copied need not suit the device.
        Data::Foreign(_) if blocks > grant.info.max_blocks(operation) => Err(IoError::Invalid),
        Data::Foreign(_) => grant.info.check(&request),
        _ => grant.info.check_uncut(&request),
    };
    // What wraps was refused.
    request.lba = lba.wrapping_add(grant.first);
    // What is refused moves nothing, whatever it says: nobody waits until it could be afforded.
    let moves = checked.is_ok() && matches!(operation, Operation::Read | Operation::Write);
    let bytes = if moves { u64::from(blocks) * u64::from(grant.info.block_size) } else { 0 };
    QueuedRequest { tag, bytes, request, refusal: checked.err() }
}
