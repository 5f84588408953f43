//! The saved state of requests that stay with the device during a hand-over.

use std::time::Instant;

use ring3_device::dma::{Claims, Span};
use ring3_device::{Deadline, Error};
use serde::{Deserialize, Serialize};

use super::{Completion, Data, Info, Operation, Queue, Request};
use crate::Saved;

/// A request in flight, with the names of its bytes in place of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRequest {
    /// What to do.
    pub operation: Operation,
    /// See [`Request::fua`].
    pub fua: bool,
    /// How many blocks.
    pub blocks: u32,
    /// First block.
    pub lba: u64,
    /// The submitter's name for it.
    pub token: u64,
    /// Where its bytes are in the arena.
    pub data: Vec<Span>,
}

impl Request {
    /// What another process needs to go on with it. [`Error::Busy`] if its bytes are not in the
    /// arena, where nobody else would find them.
    pub fn save(&self) -> Result<SavedRequest, Error> {
        let Self { operation, fua, blocks, lba, token, .. } = *self;
        match self.data.spans() {
            Some(data) => Ok(SavedRequest { operation, fua, blocks, lba, token, data }),
            None => Err(Error::Busy(
                "a request is in flight whose bytes are not in the arena: reap it, then \
                 detach again"
                    .into(),
            )),
        }
    }
}

impl Data {
    /// Releases its memory to the process that claims it as [saved](Request::save). The device
    /// goes on using it.
    pub fn release_to_successor(self) {
        match self {
            Self::Buffer(mut buffer) => {
                buffer.release_to_successor();
            }
            Self::Segments(list) => list.release_to_successor(),
            Self::None | Self::Foreign(_) => {}
        }
    }
}

impl SavedRequest {
    /// The request, with its bytes. It is input: [`Error::Invalid`] unless it makes sense for the
    /// disk that `info` describes.
    pub fn claim(&self, claims: &mut Claims, info: &Info) -> Result<Request, Error> {
        let Self { operation, fua, blocks, lba, token, .. } = *self;
        let data = Data::claim(claims, &self.data)?;
        let request = Request { operation, fua, blocks, lba, token, data };
        match info.check(&request) {
            Ok(()) => Ok(request),
            Err(error) => Err(Error::Invalid(format!(
                "the saved request {token:#x} is none of this disk's: {error}"
            ))),
        }
    }
}

/// [Detaches](Queue::detach) `queue` as soon as that is possible, and at `deadline` at the latest
/// gives it up with the reason: the queue goes on then. What ends meanwhile comes to `ended`.
pub fn detach(
    queue: &mut dyn Queue,
    ended: &mut Vec<Completion>,
    deadline: Deadline,
) -> Result<Saved, Error> {
    let mut due = None;
    loop {
        let now = Instant::now();
        match queue.detach() {
            Err(Error::Busy(_)) if !deadline.remaining_at(now).is_zero() => {}
            detached => return detached,
        }
        if due.is_none_or(|due| due <= now) {
            due = queue.tick(now)?;
        }
        match queue.reap_one()? {
            Some(end) => ended.push(end),
            None => drop(queue.wait(deadline.sooner(due))?),
        }
    }
}
