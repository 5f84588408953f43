//! The parts of a request that is too long for the device or whose data is foreign.

use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::{Direction, Piece, Stream, Streams, Transfer};

use super::super::{Completion, Data, IoError, Operation, Queue, Rejected, Request};
use super::{PART, Splitter};

/// A request that is done in parts.
pub(super) struct Parent {
    /// Without its data.
    request: Request,
    /// The data; every part that the driver has holds it, too. So memory that a driver gives up,
    /// because its device may still write there, returns to nobody.
    data: Arc<Data>,
    /// Blocks of its largest part.
    limit: u32,
    /// Blocks that parts were made of.
    started: u32,
    /// Parts that the driver has.
    pub(super) in_device: u16,
    /// The first error.
    pub(super) result: Result<(), IoError>,
}

impl Parent {
    pub(super) fn new(mut request: Request, limit: u32) -> Self {
        let data = Arc::new(std::mem::take(&mut request.data));
        Self { request, data, limit, started: 0, in_device: 0, result: Ok(()) }
    }

    /// The request, with its data if no part has kept that.
    pub(super) fn into_request(self) -> Request {
        Request { data: Arc::try_unwrap(self.data).unwrap_or_default(), ..self.request }
    }

    fn all_started(&self) -> bool {
        self.result.is_err() || self.started == self.request.blocks
    }
}

/// A part that the driver has.
pub(super) struct Part {
    parent: usize,
    /// Tells this use of the slot from others.
    token: u64,
    /// First byte within the request.
    skip: usize,
    /// Bytes.
    len: usize,
}

/// How far a request was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// No further part will be made.
    Done,
    /// The queue or the memory is full.
    NoRoom,
}

impl<Q: Queue> Splitter<Q> {
    /// Submits parts of request `index` until all are with the driver, one fails, or there is no
    /// room.
    pub(super) fn advance(&mut self, index: usize) -> Cut {
        while let Some(parent) = self.parents.get_mut(index) {
            if parent.all_started() {
                break;
            }
            if self.parts.len() == usize::from(self.inner.depth()) {
                return Cut::NoRoom;
            }
            let blocks = parent.limit.min(parent.request.blocks - parent.started);
            let block_size = self.info.block_size as usize;
            let (skip, len) = (parent.started as usize * block_size, blocks as usize * block_size);
            let data = match parent.map_part(skip, len, self.streams.as_mut()) {
                Ok(data) => data,
                Err(Error::NoMemory { .. }) => return Cut::NoRoom,
                Err(_) => {
                    parent.result = Err(IoError::Invalid);
                    break;
                }
            };
            self.uses = self.uses.wrapping_add(1);
            let part = Part { parent: index, token: 0, skip, len };
            let slot = self.parts.insert(part);
            let token = PART | u64::from(self.uses) << 16 | slot as u64;
            let request = Request {
                lba: parent.request.lba + u64::from(parent.started),
                operation: parent.request.operation,
                fua: parent.request.fua,
                blocks,
                token,
                data,
            };
            if let Err(rejected) = self.inner.submit(request) {
                return self.take_back(index, slot, rejected);
            }
            if let Some(part) = self.parts.get_mut(slot) {
                part.token = token;
            }
            parent.started += blocks;
            parent.in_device += 1;
            self.stats.parts += 1;
        }
        Cut::Done
    }

    /// The driver did not take the part in `slot`.
    fn take_back(&mut self, index: usize, slot: usize, rejected: Rejected) -> Cut {
        if let (Some(part), Some(parent)) =
            (self.parts.try_remove(slot), self.parents.get_mut(index))
        {
            // A part that was never started has filled nothing, so that this cannot fail.
            let _ = parent.settle(&part, rejected.request.data, false, self.streams.as_mut());
            match rejected.error {
                None => return Cut::NoRoom,
                Some(error) => parent.result = Err(error),
            }
        }
        Cut::Done
    }

    /// Takes the end of a part; the whole request's end if it was the last one.
    #[cold]
    pub(super) fn part_done(
        &mut self,
        completion: Completion,
    ) -> Result<Option<Completion>, Error> {
        let slot = usize::from(completion.token as u16);
        if self.parts.get(slot).is_none_or(|part| part.token != completion.token) {
            return Err(Error::Protocol(format!(
                "part {:#x} of a request ended, but is not outstanding",
                completion.token
            )));
        }
        let Some(part) = self.parts.try_remove(slot) else { return Ok(None) };
        let Some(parent) = self.parents.get_mut(part.parent) else { return Ok(None) };
        let filled = completion.result.is_ok();
        let settled = parent.settle(&part, completion.data, filled, self.streams.as_mut());
        parent.in_device -= 1;
        if parent.result.is_ok() {
            parent.result = completion.result.and(settled.map_err(|_| IoError::Invalid));
        }
        Ok(self.finish(part.parent))
    }

    /// The end of request `index`, if nothing of it is left.
    pub(super) fn finish(&mut self, index: usize) -> Option<Completion> {
        let parent = self.parents.get(index)?;
        if parent.in_device > 0 || !parent.all_started() {
            return None;
        }
        self.waiting.retain(|&waiting| waiting != index);
        let parent = self.parents.try_remove(index)?;
        let (result, Request { token, data, .. }) = (parent.result, parent.into_request());
        Some(Completion { token, result, data })
    }
}

impl Parent {
    /// Bytes `skip..skip + len` of the data in a form that a driver takes.
    fn map_part(
        &self,
        skip: usize,
        len: usize,
        streams: Option<&mut Streams>,
    ) -> Result<Data, Error> {
        if !matches!(self.request.operation, Operation::Read | Operation::Write) {
            return Ok(Data::None);
        }
        let Data::Foreign(pieces) = &*self.data else {
            return Ok(self.data.part(skip, len));
        };
        let streams = streams.ok_or_else(|| Error::Unsupported("foreign memory".into()))?;
        Ok(match streams.begin(self.transfer(pieces, skip, len))? {
            Stream::Mapped(list) => list.with_owner(self.data.clone()).into(),
            Stream::Copied(buffer) => Data::Buffer(buffer),
        })
    }

    /// Takes back what [`map_part`](Self::map_part) gave; copies it to where it belongs if the
    /// device has
    /// `filled` it.
    fn settle(
        &self,
        part: &Part,
        data: Data,
        filled: bool,
        streams: Option<&mut Streams>,
    ) -> Result<(), Error> {
        match (&*self.data, data, streams) {
            (Data::Foreign(pieces), Data::Buffer(buffer), Some(streams)) => streams.end(
                Stream::Copied(buffer),
                self.transfer(pieces, part.skip, part.len),
                filled,
            ),
            _ => Ok(()),
        }
    }

    fn transfer<'a>(&self, pieces: &'a [Piece], skip: usize, len: usize) -> Transfer<'a> {
        let read = self.request.operation == Operation::Read;
        let direction = if read { Direction::FromDevice } else { Direction::ToDevice };
        Transfer { pieces, skip, len, direction }
    }
}
