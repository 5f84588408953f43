//! A queue of an opened disk: submit, ring, reap.

use std::ffi::c_int;
use std::time::Duration;

use ring3_class::block::{
    Completion, Data, IoError, Lender, Operation, Queue, Rejected, Request, Splitter, execute,
};
use ring3_class::{Deadline, Error};

use super::opened::{OpenedDisk, not_opened};
use super::{
    Disk, DiskRequest, RING3_DISCARD, RING3_FLUSH, RING3_READ, RING3_WRITE, RING3_WRITE_ZEROES,
};
use crate::dma::Held;
use crate::error::{fail, failed, hand_out, take_back};
use crate::waiting::{self, Sleep};

/// A way to a disk that was opened, for one thread at a time; queues share nothing.
pub struct DiskQueue {
    /// Dropped first: it stops the device's transfers.
    queue: Splitter<Box<dyn Queue>>,
    lender: Lender,
    ends: Vec<Completion>,
    block_size: usize,
    sleep: Sleep,
    _device: Held,
}

/// The end of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskCompletion {
    /// The request's.
    pub tag: u64,
    /// 0 if it ended well, or the errno of what has failed: EIO, EINVAL (beyond the end of the
    /// disk), ENOSPC, EROFS, EOPNOTSUPP, EILSEQ, ETIMEDOUT or ENODEV.
    pub error: c_int,
    /// Of a read or write that has failed: nobody could stop the device, which may still use the
    /// request's bytes. Their buffer is for ring3_dma_abandon and not for ring3_dma_release.
    pub lost: bool,
}

/// Most ends that one look at the queue takes.
const BATCH: u16 = 64;

/// Opens a queue of an opened disk that holds `depth` requests, or as many as the device can.
///
/// # Safety
/// `queue` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_open(
    disk: &Disk,
    depth: u16,
    queue: *mut *mut DiskQueue,
) -> c_int {
    let Some(opened) = disk.opened() else { return not_opened() };
    // SAFETY: the caller's.
    unsafe { hand_out(DiskQueue::open(opened, depth), queue) }
}

/// Ends the queue. Requests in flight are stopped first: whether they were done is not known, and
/// their bytes are the program's again, unless a warning says that the device could not be stopped.
///
/// # Safety
/// `queue` was opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_close(queue: *mut DiskQueue) {
    // SAFETY: the caller's.
    unsafe { take_back(queue) };
}

/// Requests that it holds.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_queue_depth(queue: &DiskQueue) -> u16 {
    queue.queue.depth()
}

/// Requests that were submitted and not reaped.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_queue_in_flight(queue: &DiskQueue) -> u16 {
    queue.queue.in_flight()
}

/// Queues the first of `count` requests, as many as there is room for; returns how many. They begin
/// with ring3_disk_queue_ring, may end in any order, and their bytes are the device's until they
/// are reaped. A request that makes no sense ends the call before it; if it is the first, what is
/// wrong is the result: -EFAULT of bytes that are not in a buffer of the disk, -EINVAL, -EROFS,
/// -EOPNOTSUPP.
///
/// # Safety
/// `requests` points to `count` requests, and the buffers that their bytes lie in are not released
/// before these have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_submit(
    queue: &mut DiskQueue,
    requests: *const DiskRequest,
    count: usize,
) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's.
    let requests = unsafe { std::slice::from_raw_parts(requests, count) };
    for (nth, request) in requests.iter().enumerate() {
        let queued = queue.request(request).and_then(|request| queue.submit(request));
        match queued {
            Ok(true) => {}
            Ok(false) => return nth as c_int,
            Err(refusal) if nth == 0 => return refusal.told(request),
            Err(_) => return nth as c_int,
        }
    }
    count as c_int
}

/// Hands everything that was submitted since the last call to the device: one write to a register.
/// Does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_queue_ring(queue: &mut DiskQueue) {
    queue.queue.ring();
}

/// Takes the ends of up to `room` requests, and returns of how many; 0 if there are none. -ENODEV
/// and -EIO say that the driver has given the device up; after other errors the queue goes on.
///
/// # Safety
/// `ends` points to `room` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_reap(
    queue: &mut DiskQueue,
    ends: *mut DiskCompletion,
    room: usize,
) -> c_int {
    let most = room.min(queue.ends.len());
    match queue.queue.reap(&mut queue.ends[..most]) {
        Ok(count) => {
            for (nth, end) in queue.ends.iter_mut().take(count).enumerate() {
                let data = std::mem::take(&mut end.data);
                let completion = DiskCompletion {
                    tag: end.token,
                    error: end.result.map_or_else(IoError::errno, |()| 0),
                    lost: end.result.is_err() && matches!(data, Data::None),
                };
                queue.lender.take_back(data);
                // SAFETY: the caller's; `nth` is below `room`.
                unsafe { ends.add(nth).write(completion) };
            }
            count as c_int
        }
        Err(error) => failed(&error),
    }
}

/// Waits until there is something to reap, `timeout_ms` at most, by polling and then by interrupt:
/// 1, or 0 at the end of that time. Finds requests that have taken too long.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_queue_wait(queue: &mut DiskQueue, timeout_ms: u32) -> c_int {
    waiting::wait(&mut queue.queue, timeout_ms)
}

/// Does one request and waits for its end, `timeout_ms` at most: 0, or the errno of its end,
/// negative. -EBUSY while others are in flight. After -ETIMEDOUT the queue is of no use but to be
/// closed.
///
/// # Safety
/// The buffer that its bytes lie in is not released before it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_execute(
    queue: &mut DiskQueue,
    request: &DiskRequest,
    timeout_ms: u32,
) -> c_int {
    let deadline = Deadline::after(Duration::from_millis(timeout_ms.into()));
    let made = match queue.request(request) {
        Ok(made) => made,
        Err(refusal) => return refusal.told(request),
    };
    match execute(&mut queue.queue, made, deadline) {
        Ok(Completion { result, data, .. }) => {
            queue.lender.take_back(data);
            result.map_or_else(|error| Refusal::Io(error).told(request), |()| 0)
        }
        Err(error) => failed(&error),
    }
}

/// A descriptor for poll and epoll, readable when there may be something to reap, if
/// ring3_disk_queue_arm was called before the sleep; -ENOENT of a queue that is polled. It is the
/// queue's: do not close or read it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_queue_fd(queue: &DiskQueue) -> c_int {
    waiting::descriptor(&queue.queue)
}

/// Prepares a sleep in the program's own loop, after it has reaped: 1 if it may sleep on the
/// descriptor, `timeout_ms` at most (-1: without an end), and then reaps and calls this again; 0 if
/// it must not, because there is something to reap, or because a queue without an interrupt has
/// requests in flight. Finds requests that have taken too long.
///
/// # Safety
/// `timeout_ms` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_queue_arm(
    queue: &mut DiskQueue,
    timeout_ms: *mut c_int,
) -> c_int {
    let expected = queue.queue.in_flight() > 0;
    // SAFETY: the caller's.
    unsafe { queue.sleep.arm(&mut queue.queue, expected, timeout_ms) }
}

/// Why a request was not queued.
enum Refusal {
    /// It names no bytes that the device reaches.
    Nowhere,
    /// It asks for something that there is not.
    Unknown,
    /// The disk's class or driver.
    Io(IoError),
}

impl Refusal {
    #[cold]
    fn told(&self, request: &DiskRequest) -> c_int {
        let DiskRequest { lba, blocks, operation, data, .. } = request;
        let named = format!("{blocks} blocks from block {lba} on");
        match self {
            Self::Nowhere => fail(
                libc::EFAULT,
                format!("{named}: {data:?} is not in a buffer of the disk, or does not fit there"),
            ),
            Self::Unknown => fail(libc::EINVAL, format!("{operation} is no operation of a disk")),
            Self::Io(error) => fail(error.errno(), format!("{named}: {error}")),
        }
    }
}

impl DiskQueue {
    fn open(opened: &OpenedDisk, depth: u16) -> Result<Self, Error> {
        let queue = Splitter::new(opened.disk.open_queue(depth.max(1))?);
        let depth = queue.depth();
        Ok(Self {
            lender: Lender::new(opened.disk.dma(), depth),
            ends: (0..depth.min(BATCH)).map(|_| Completion::default()).collect(),
            block_size: opened.disk.info().block_size as usize,
            sleep: Sleep::default(),
            queue,
            _device: opened.device.clone(),
        })
    }

    /// The request as the class has it.
    #[inline]
    fn request(&mut self, request: &DiskRequest) -> Result<Request, Refusal> {
        let operation = match request.operation {
            RING3_READ => Operation::Read,
            RING3_WRITE => Operation::Write,
            RING3_FLUSH => Operation::Flush,
            RING3_WRITE_ZEROES => Operation::WriteZeroes,
            RING3_DISCARD => Operation::Discard,
            _ => return Err(Refusal::Unknown),
        };
        let data = match operation {
            Operation::Read | Operation::Write => {
                let len = (request.blocks as usize).checked_mul(self.block_size);
                let lent = len.and_then(|len| self.lender.lend(request.data as usize, len));
                lent.ok_or(Refusal::Nowhere)?
            }
            _ => Data::None,
        };
        let DiskRequest { tag, lba, blocks, fua, .. } = *request;
        Ok(Request { operation, fua, blocks, lba, token: tag, data })
    }

    /// False if the queue is full.
    #[inline]
    fn submit(&mut self, request: Request) -> Result<bool, Refusal> {
        match self.queue.submit(request) {
            Ok(()) => Ok(true),
            Err(Rejected { error, request }) => {
                self.lender.take_back(request.data);
                error.map_or(Ok(false), |error| Err(Refusal::Io(error)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
