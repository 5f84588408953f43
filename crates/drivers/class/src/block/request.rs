//! A request and its completion.

use std::mem;

use super::{Data, IoError};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Blocks from the disk into the data.
    Read,
    /// Blocks from the data onto the disk.
    Write,
    /// Make all completed writes durable. No blocks, no data.
    Flush,
    /// Make the blocks read as zeroes. No data.
    WriteZeroes,
    /// The blocks' content is not needed any more. No data.
    Discard,
}

/// One request. `lba` and `blocks` count logical blocks of the disk.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Write: durable before it completes. Ignored where writes always are;
    /// [`IoError::Unsupported`] on a disk with a volatile cache that says it cannot
    /// ([`Info::fua`](super::Info::fua)): write, then flush.
    pub fua: bool,
    /// How many blocks.
    pub blocks: u32,
    /// First block.
    pub lba: u64,
    /// The submitter's name for it, returned with the completion. The topmost bit is reserved for
    /// layers that cut requests up.
    pub token: u64,
    /// Where the bytes are; lent until the completion.
    pub data: Data,
}

impl Request {
    /// Reads `blocks` from `lba` into `data`.
    #[inline]
    pub fn read(token: u64, lba: u64, blocks: u32, data: impl Into<Data>) -> Self {
        Self { operation: Operation::Read, fua: false, blocks, lba, token, data: data.into() }
    }

    /// Writes `blocks` from `data` to `lba`.
    #[inline]
    pub fn write(token: u64, lba: u64, blocks: u32, data: impl Into<Data>) -> Self {
        Self { operation: Operation::Write, fua: false, blocks, lba, token, data: data.into() }
    }

    /// Makes all completed writes durable.
    pub fn flush(token: u64) -> Self {
        Self { operation: Operation::Flush, fua: false, blocks: 0, lba: 0, token, data: Data::None }
    }

    /// Makes `blocks` from `lba` read as zeroes.
    pub fn write_zeroes(token: u64, lba: u64, blocks: u32) -> Self {
        Self { operation: Operation::WriteZeroes, fua: false, blocks, lba, token, data: Data::None }
    }

    /// Gives the content of `blocks` from `lba` up.
    pub fn discard(token: u64, lba: u64, blocks: u32) -> Self {
        Self { operation: Operation::Discard, fua: false, blocks, lba, token, data: Data::None }
    }

    /// The same, durable before it completes.
    pub fn with_fua(mut self) -> Self {
        self.fua = true;
        self
    }
}

/// The end of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// How it ended.
    pub result: Result<(), IoError>,
    /// The data, given back. [`Data::None`] for data that was lent means that nobody could stop the
    /// device, which may still write there: the memory is given up for good.
    pub data: Data,
}

impl Completion {
    /// Becomes the end of the request with `token`, and takes `data`. In almost every place that a
    /// queue is given there is nothing to drop, and nothing is called.
    #[inline]
    pub fn into_completion_of(&mut self, token: u64, result: Result<(), IoError>, data: &mut Data) {
        if !matches!(self.data, Data::None) {
            self.data = Data::None;
        }
        (self.token, self.result) = (token, result);
        // Nothing is there to be dropped.
        mem::forget(mem::replace(&mut self.data, mem::take(data)));
    }
}

/// A place for one: the end of nothing.
impl Default for Completion {
    fn default() -> Self {
        Self { token: 0, result: Ok(()), data: Data::None }
    }
}

/// A request that was not queued, given back with the reason.
#[derive(Debug)]
pub struct Rejected {
    /// Why; `None` means that the queue is full: reap, then submit again.
    pub error: Option<IoError>,
    /// The request, whole.
    pub request: Request,
}
