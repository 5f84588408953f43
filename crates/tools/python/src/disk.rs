//! Disks.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use ring3::disk::opened::{
    DiskOptions, ring3_disk_alloc, ring3_disk_describe, ring3_disk_max_queues, ring3_disk_name,
    ring3_disk_open, ring3_disk_register,
};
use ring3::disk::requests::{
    DiskCompletion, ring3_disk_queue_arm, ring3_disk_queue_depth, ring3_disk_queue_execute,
    ring3_disk_queue_fd, ring3_disk_queue_in_flight, ring3_disk_queue_open, ring3_disk_queue_reap,
    ring3_disk_queue_ring, ring3_disk_queue_submit, ring3_disk_queue_wait,
};
use ring3::disk::{
    DiskRequest, RING3_DISCARD, RING3_FLUSH, RING3_READ, RING3_WRITE, RING3_WRITE_ZEROES,
};

use crate::memory::Buffer;
use crate::outcome::{Exclusive, c_text, milliseconds, opened, result, text, wait_for};

/// What a disk is and can.
#[pyclass(frozen, get_all, module = "ring3")]
pub struct DiskInfo {
    model: String,
    serial: String,
    firmware: String,
    blocks: u64,
    block_size: u32,
    max_transfer: u32,
    optimal_io: u32,
    max_write_zeroes_blocks: u32,
    max_discard_blocks: u32,
    discard_granularity: u32,
    volatile_cache: bool,
    fua: bool,
    read_only: bool,
    rotates: bool,
}

#[pymethods]
impl DiskInfo {
    fn __repr__(&self) -> String {
        let Self { model, serial, blocks, block_size, .. } = self;
        format!("<ring3.DiskInfo {model} {serial}: {blocks} blocks of {block_size} bytes>")
    }
}

/// A disk that ring3 drives in this process.
#[pyclass(module = "ring3")]
pub struct Disk {
    handle: Option<Exclusive<ring3::disk::Disk>>,
    #[pyo3(get)]
    name: String,
}

#[pymethods]
impl Disk {
    #[new]
    #[pyo3(signature = (
        uri, *, arena=0, queues=1, part=None, polled=false, unprotected=false
    ))]
    fn new(
        py: Python<'_>,
        uri: &str,
        arena: u64,
        queues: u16,
        part: Option<u32>,
        polled: bool,
        unprotected: bool,
    ) -> PyResult<Self> {
        let options = DiskOptions {
            arena,
            part: part.unwrap_or_default(),
            queues,
            choose: part.is_some(),
            polled,
            unprotected,
        };
        let uri = c_text(uri)?;
        let mut handle = py.detach(|| {
            let mut disk = null_mut();
            // SAFETY: a text, options and a place.
            let number = unsafe { ring3_disk_open(uri.as_ptr(), &options, &mut disk) };
            opened(number, disk)
        })?;
        let name = text(ring3_disk_name(handle.get()));
        Ok(Self { handle: Some(handle), name })
    }

    /// What it is and can.
    #[getter]
    fn info(&mut self) -> PyResult<DiskInfo> {
        let mut info = std::mem::MaybeUninit::uninit();
        // SAFETY: a place; what is not written is not read.
        let info = unsafe {
            result(ring3_disk_describe(self.open()?, info.as_mut_ptr()))?;
            info.assume_init()
        };
        Ok(DiskInfo {
            model: text(info.model),
            serial: text(info.serial),
            firmware: text(info.firmware),
            blocks: info.blocks,
            block_size: info.block_size,
            max_transfer: info.max_transfer,
            optimal_io: info.optimal_io,
            max_write_zeroes_blocks: info.max_write_zeroes_blocks,
            max_discard_blocks: info.max_discard_blocks,
            discard_granularity: info.discard_granularity,
            volatile_cache: info.volatile_cache,
            fua: info.fua,
            read_only: info.read_only,
            rotates: info.rotates,
        })
    }

    /// Queues that can be open at the same time.
    #[getter]
    fn max_queues(&mut self) -> PyResult<u16> {
        Ok(ring3_disk_max_queues(self.open()?))
    }

    /// Zeroed memory that the disk's device reaches.
    fn alloc(&mut self, len: usize) -> PyResult<Buffer> {
        let mut buffer = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_disk_alloc(self.open()?, len, &mut buffer) };
        Ok(Buffer::of(opened(number, buffer)?))
    }

    /// Whole pages of a file in memory (memfd), for the disk's device: shared with whoever has it.
    #[pyo3(signature = (fd, len, offset=0))]
    fn register(&mut self, fd: c_int, len: usize, offset: u64) -> PyResult<Buffer> {
        let mut buffer = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_disk_register(self.open()?, fd, offset, len, &mut buffer) };
        Ok(Buffer::of(opened(number, buffer)?))
    }

    /// Opens a queue, for one thread at a time.
    #[pyo3(signature = (depth=32))]
    fn queue(&mut self, depth: u16) -> PyResult<DiskQueue> {
        let mut queue = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_disk_queue_open(self.open()?, depth, &mut queue) };
        let mut handle = opened(number, queue)?;
        let (depth, block_size) =
            (ring3_disk_queue_depth(handle.get()), self.info()?.block_size as usize);
        let pending = (0..depth).map(|_| None).collect();
        let free = (0..depth).rev().collect();
        Ok(DiskQueue { handle: Some(handle), pending, free, block_size })
    }

    /// Gives the disk up; its device when its queues and buffers are gone, too.
    fn close(&mut self) {
        self.handle = None;
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<ring3.Disk {}>", self.name)
    }
}

impl Disk {
    fn open(&mut self) -> PyResult<&mut ring3::disk::Disk> {
        let closed = || PyValueError::new_err("the disk is closed");
        Ok(self.handle.as_mut().ok_or_else(closed)?.get())
    }
}

/// A way to a disk, for one thread at a time: requests in batches, or one at a time.
#[pyclass(module = "ring3")]
pub struct DiskQueue {
    /// Dropped first: afterwards the device uses no buffer any more.
    handle: Option<Exclusive<ring3::disk::requests::DiskQueue>>,
    /// By tag: the caller's token of each request in flight, and its buffer.
    pending: Vec<Option<Pending>>,
    free: Vec<u16>,
    block_size: usize,
}

struct Pending {
    token: Py<PyAny>,
    buffer: Option<Py<Buffer>>,
}

/// Ends that are taken at once.
const BATCH: usize = 64;

#[pymethods]
impl DiskQueue {
    /// Requests that it holds.
    #[getter]
    fn depth(&mut self) -> PyResult<u16> {
        Ok(ring3_disk_queue_depth(self.open()?))
    }

    /// Requests that were submitted and not reaped.
    #[getter]
    fn in_flight(&mut self) -> PyResult<u16> {
        Ok(ring3_disk_queue_in_flight(self.open()?))
    }

    /// Queues a request: "read", "write", "flush", "discard" or "write_zeroes"; reap gives `token`
    /// back at its end. False if the queue is full. It begins with ring.
    #[pyo3(signature = (
        operation, lba=0, buffer=None, *, offset=0, blocks=None, fua=false, token=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "all but the first have defaults, by name")]
    fn submit(
        &mut self,
        py: Python<'_>,
        operation: &str,
        lba: u64,
        buffer: Option<Py<Buffer>>,
        offset: usize,
        blocks: Option<u32>,
        fua: bool,
        token: Option<Py<PyAny>>,
    ) -> PyResult<bool> {
        let bytes = buffer.as_ref().map(|buffer| buffer.get());
        let request = self.request(operation, lba, bytes, (offset, blocks), fua)?;
        let Some(tag) = self.free.pop() else { return Ok(false) };
        let request = DiskRequest { tag: tag.into(), ..request };
        // SAFETY: one request, whose buffer is held until it has ended.
        let queued = unsafe { ring3_disk_queue_submit(self.open()?, &request, 1) };
        if queued == 1 {
            let token = token.unwrap_or_else(|| py.None());
            self.pending[usize::from(tag)] = Some(Pending { token, buffer });
            return Ok(true);
        }
        self.free.push(tag);
        result(queued).map(|_| false)
    }

    /// Hands what was submitted to the device.
    fn ring(&mut self) -> PyResult<()> {
        ring3_disk_queue_ring(self.open()?);
        Ok(())
    }

    /// What has ended: tokens, each with None or an OSError.
    fn reap(&mut self) -> PyResult<Vec<(Py<PyAny>, Option<PyErr>)>> {
        let mut ends = [DiskCompletion::default(); BATCH];
        // SAFETY: so many places.
        let count = unsafe { ring3_disk_queue_reap(self.open()?, ends.as_mut_ptr(), BATCH) };
        let mut done = Vec::with_capacity(result(count)? as usize);
        for end in &ends[..count as usize] {
            let pending = self.pending.get_mut(end.tag as usize).and_then(Option::take);
            let Some(Pending { token, buffer }) = pending else { continue };
            self.free.push(end.tag as u16);
            if end.lost {
                // The device may still write there: the memory is never given back.
                std::mem::forget(buffer);
            }
            done.push((token, failure(end.error)));
        }
        Ok(done)
    }

    /// Waits until there is something to reap, at most `timeout` seconds: False at their end.
    #[pyo3(signature = (timeout=None))]
    fn wait(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let queue = self.handle.as_mut().ok_or_else(closed)?;
        wait_for(py, timeout, |ms| Ok(result(ring3_disk_queue_wait(queue.get(), ms))? == 1))
    }

    /// The descriptor for an event loop; OSError of a queue that is polled.
    fn fileno(&mut self) -> PyResult<c_int> {
        result(ring3_disk_queue_fd(self.open()?))
    }

    /// Before a sleep on the descriptor: None if there is something to reap, otherwise how many
    /// seconds the sleep may last; -1 without an end.
    fn arm(&mut self) -> PyResult<Option<f64>> {
        let mut timeout = 0;
        // SAFETY: a number.
        let armed = unsafe { ring3_disk_queue_arm(self.open()?, &mut timeout) };
        let seconds = if timeout < 0 { -1.0 } else { f64::from(timeout) / 1000.0 };
        Ok((result(armed)? == 1).then_some(seconds))
    }

    /// Reads into a buffer and waits for it.
    #[pyo3(signature = (lba, buffer, *, offset=0, blocks=None, timeout=60.0))]
    fn read(
        &mut self,
        py: Python<'_>,
        lba: u64,
        buffer: &Bound<'_, Buffer>,
        offset: usize,
        blocks: Option<u32>,
        timeout: f64,
    ) -> PyResult<()> {
        let request = self.request("read", lba, Some(buffer.get()), (offset, blocks), false)?;
        self.execute(py, request, timeout)
    }

    /// Writes a buffer and waits for it.
    #[pyo3(signature = (lba, buffer, *, offset=0, blocks=None, fua=false, timeout=60.0))]
    #[expect(clippy::too_many_arguments, reason = "all but the first two have defaults, by name")]
    fn write(
        &mut self,
        py: Python<'_>,
        lba: u64,
        buffer: &Bound<'_, Buffer>,
        offset: usize,
        blocks: Option<u32>,
        fua: bool,
        timeout: f64,
    ) -> PyResult<()> {
        let request = self.request("write", lba, Some(buffer.get()), (offset, blocks), fua)?;
        self.execute(py, request, timeout)
    }

    /// Makes what was written durable.
    #[pyo3(signature = (*, timeout=60.0))]
    fn flush(&mut self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let request = self.request("flush", 0, None, (0, None), false)?;
        self.execute(py, request, timeout)
    }

    /// Stops what is in flight and ends the queue.
    fn close(&mut self) {
        self.handle = None;
        self.pending.clear();
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the queue is closed")
}

/// The exception for an errno of a request.
fn failure(errno: c_int) -> Option<PyErr> {
    let text = || std::io::Error::from_raw_os_error(errno).to_string();
    (errno != 0).then(|| PyOSError::new_err((errno, text())))
}

impl DiskQueue {
    fn open(&mut self) -> PyResult<&mut ring3::disk::requests::DiskQueue> {
        Ok(self.handle.as_mut().ok_or_else(closed)?.get())
    }

    fn request(
        &self,
        operation: &str,
        lba: u64,
        buffer: Option<&Buffer>,
        (offset, blocks): (usize, Option<u32>),
        fua: bool,
    ) -> PyResult<DiskRequest> {
        let operation = match operation {
            "read" => RING3_READ,
            "write" => RING3_WRITE,
            "flush" => RING3_FLUSH,
            "discard" => RING3_DISCARD,
            "write_zeroes" => RING3_WRITE_ZEROES,
            other => {
                let text =
                    format!("{other:?} is no operation: read, write, flush, discard, write_zeroes");
                return Err(PyValueError::new_err(text));
            }
        };
        let moves = matches!(operation, RING3_READ | RING3_WRITE);
        let whole = || buffer.map_or(0, |buffer| buffer.rest(offset) / self.block_size) as u32;
        let blocks = blocks.unwrap_or_else(whole);
        let data = match buffer {
            Some(buffer) if moves => buffer.at(offset, blocks as usize * self.block_size)?,
            None if moves => {
                return Err(PyValueError::new_err("a read or write needs a buffer"));
            }
            _ => null_mut(),
        };
        Ok(DiskRequest { tag: 0, lba, data, blocks, operation, fua })
    }

    fn execute(&mut self, py: Python<'_>, request: DiskRequest, timeout: f64) -> PyResult<()> {
        let patience = milliseconds(timeout)?;
        if self.free.len() < self.pending.len() {
            return Err(PyBlockingIOError::new_err("other requests are in flight: reap them"));
        }
        let DiskRequest { lba, blocks, operation, fua, data, .. } = request;
        let data = data as usize;
        let queue = self.handle.as_mut().ok_or_else(closed)?;
        let number = py.detach(|| {
            let data = data as *mut c_void;
            let request = DiskRequest { tag: 0, lba, data, blocks, operation, fua };
            // SAFETY: the caller holds the buffer until this returns.
            let number = unsafe { ring3_disk_queue_execute(queue.get(), &request, patience) };
            // The text is this thread's.
            result(number)
        });
        if patience_is_over(py, &number) {
            // The device may still have the buffer, which is the caller's again after this.
            self.close();
        }
        number.map(drop)
    }
}

/// Whether a request may be in flight still.
fn patience_is_over(py: Python<'_>, number: &PyResult<c_int>) -> bool {
    number.as_ref().is_err_and(|error| error.is_instance_of::<PyTimeoutError>(py))
}
