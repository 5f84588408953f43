//! One direction of a virtio card: a virtqueue that is read and written as a TAP is. [virtio 5.1.6]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ring3_spec::virtio::net;
use ring3_vduse::{Begin, Chain, Device, Error, Fault, Memory, Queue};

use crate::vduse::gate::Gate;

/// Pieces of a chain at most: 64 KiB in pages, and its header.
const PIECES: usize = 64;
/// Where a received packet's header says how many chains it takes. [virtio 5.1.6]
const BUFFERS: u32 = 10;

/// A direction, for one thread. What it takes it gives back within a turn, so that the next process begins where the ring says.
pub struct Half {
    device: Arc<Device>,
    gate: Arc<Gate>,
    number: u16,
    queue: Option<Queue>,
    /// A received packet may take several chains.
    merges: bool,
    first: Chain,
    next: Chain,
}

impl Half {
    /// Virtqueue `number` of `device`, wherever `gate` says that it is.
    pub fn new(device: Arc<Device>, gate: Arc<Gate>, number: u16) -> Self {
        gate.serve();
        let (first, next) = (Chain::with_capacity(PIECES), Chain::with_capacity(PIECES));
        let mut half = Self { device, gate, number, queue: None, merges: false, first, next };
        half.heed();
        half
    }

    /// Raised when the driver has something new.
    pub fn kicks(&self) -> BorrowedFd<'_> {
        self.gate.kicks()
    }

    /// Raised when there is something to [heed](Self::heed).
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.gate.changed()
    }

    /// Opens the queue where it is now, or lets go of it.
    pub fn heed(&mut self) {
        let (number, opening) = self.gate.word();
        let before = self.queue.take().map(|queue| queue.available());
        if let Some(opening) = opening {
            self.merges = opening.features & net::MRG_RXBUF != 0;
            match Queue::open(Memory::new(self.device.clone()), &opening.vring, opening.features, None, Begin::Resume) {
                Ok(queue) => self.queue = Some(queue),
                Err(fault) => self.stop(fault),
            }
        }
        self.gate.heed(number, before);
    }

    /// The driver has written what makes no sense: it is served again after a reset.
    #[cold]
    fn stop(&mut self, fault: Fault) {
        tracing::error!("{}: {}", self.device.name(), Error::Driver { queue: self.number, fault });
        self.queue = None;
    }

    /// Hands a packet to the driver, whose header and bytes are in `pieces`; false if it has no room for it.
    ///
    /// # Safety
    /// Each piece is memory of so many bytes.
    #[inline]
    pub unsafe fn deliver(&mut self, pieces: &[libc::iovec]) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        // SAFETY: passed on.
        let filled = unsafe { fill(queue, (&mut self.first, &mut self.next), self.merges, pieces) };
        filled.unwrap_or_else(|fault| {
            self.stop(fault);
            false
        })
    }

    /// Takes a packet of the driver's, header and bytes, into `room`; how many bytes there were, as far as there was room. `None` if there is none, and the driver kicks for the next.
    ///
    /// # Safety
    /// Each piece is memory of so many bytes, which nobody else has.
    #[inline]
    pub unsafe fn fetch(&mut self, room: &[libc::iovec]) -> Option<usize> {
        let queue = self.queue.as_mut()?;
        loop {
            match queue.take(&mut self.first) {
                Ok(true) => break,
                Ok(false) if queue.want_kicks() => {}
                Ok(false) => return None,
                Err(fault) => {
                    self.stop(fault);
                    return None;
                }
            }
        }
        let mut done = 0;
        for piece in room {
            // SAFETY: the caller's promise.
            done += unsafe { self.first.read_raw(queue.memory(), done, piece.iov_base.cast(), piece.iov_len as u32) };
        }
        queue.put(self.first.head(), 0);
        Some(done as usize)
    }

    /// Shows the driver what was done.
    #[inline]
    pub fn publish(&mut self) {
        if self.queue.as_mut().is_some_and(Queue::publish) {
            self.device.interrupt(self.number);
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.publish();
        self.gate.end();
    }
}

/// Writes `pieces` into chains of the driver's, as many as they need if packets may be merged. False, and nothing has happened, if there are not so many.
///
/// # Safety
/// Each piece is memory of so many bytes.
#[inline]
unsafe fn fill(
    queue: &mut Queue,
    (first, next): (&mut Chain, &mut Chain),
    merges: bool,
    pieces: &[libc::iovec],
) -> Result<bool, Fault> {
    if !queue.take(first)? {
        return Ok(false);
    }
    let (mut taken, mut at) = (1u16, 0);
    for piece in pieces {
        let mut offset = 0;
        while offset < piece.iov_len {
            let chain = if taken == 1 { &*first } else { &*next };
            // SAFETY: the caller's promise; `offset` is below the piece's length.
            let count = unsafe {
                let from = piece.iov_base.cast::<u8>().add(offset);
                chain.write_raw(queue.memory(), at, from, (piece.iov_len - offset) as u32)
            };
            (at, offset) = (at + count, offset + count as usize);
            if count > 0 {
                continue;
            }
            // This one is full.
            queue.put(chain.head(), at);
            if !merges || !queue.take(next)? {
                queue.unput(taken);
                queue.untake(taken);
                return Ok(false);
            }
            (taken, at) = (taken + 1, 0);
        }
    }
    queue.put(if taken == 1 { first.head() } else { next.head() }, at);
    first.write(queue.memory(), BUFFERS, &taken.to_le_bytes());
    Ok(true)
}
