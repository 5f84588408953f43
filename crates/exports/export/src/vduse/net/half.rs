//! One direction of a virtio card: a virtqueue that is read and written as a TAP is. [virtio 5.1.6]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ring3_spec::virtio::net;
use ring3_vduse::{Begin, Chain, Device, Error, Fault, Memory, Queue};

use crate::vduse::gate::{QueueHandover, Served};

/// Pieces of a chain at most: 64 KiB in pages, and its header.
const PIECES: usize = 64;
/// Where a received packet's header says how many chains it takes. [virtio 5.1.6]
const BUFFERS: u32 = 10;
/// Bytes of the shortest chain that a driver offers where packets may take several: an Ethernet
/// frame with a tag, and the header. A driver that offers shorter ones loses packets.
const SHORTEST: u32 = 1518 + net::HEADER;

/// A direction, for one thread. What it takes it gives back within a turn, so that the next process
/// begins where the ring says.
pub struct VduseRing {
    device: Arc<Device>,
    gate: Arc<QueueHandover>,
    _served: Served,
    number: u16,
    queue: Option<Queue>,
    /// The last change of the queue that was acknowledged.
    acknowledged: u64,
    /// A received packet may take several chains.
    merges: bool,
    first: Chain,
    next: Chain,
}

impl VduseRing {
    /// Virtqueue `number` of `device`, wherever `gate` says that it is.
    pub fn new(device: Arc<Device>, gate: Arc<QueueHandover>, number: u16) -> Self {
        let mut half = Self {
            device,
            _served: gate.serve(),
            gate,
            number,
            queue: None,
            acknowledged: 0,
            merges: false,
            first: Chain::with_capacity(PIECES),
            next: Chain::with_capacity(PIECES),
        };
        half.apply_queue_change();
        half
    }

    /// Over a queue in this process, for tests.
    #[cfg(test)]
    pub fn over(queue: Queue, merges: bool) -> Self {
        let (device, gate) = (Device::of_nothing().unwrap(), QueueHandover::new().unwrap());
        let mut half = Self::new(Arc::new(device), Arc::new(gate), 0);
        (half.queue, half.merges) = (Some(queue), merges);
        half
    }

    /// What its driver and it share, for tests.
    #[cfg(test)]
    pub fn memory(&self) -> &Memory {
        self.queue.as_ref().unwrap().memory()
    }

    /// Raised when the driver has something new.
    pub fn kicks(&self) -> BorrowedFd<'_> {
        self.gate.kicks()
    }

    /// Raised when the queue has changed: see [`apply_queue_change`](Self::apply_queue_change).
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.gate.changed()
    }

    /// Opens the queue where it is now, or lets go of it.
    pub fn apply_queue_change(&mut self) {
        let (number, opening) = self.gate.change();
        // The other direction's change, or one that was applied at the beginning.
        if number == self.acknowledged {
            return;
        }
        self.acknowledged = number;
        let before = self.queue.take().map(|queue| queue.available());
        if let Some(opening) = opening {
            self.merges = opening.features & net::MRG_RXBUF != 0;
            match Queue::open(
                Memory::new(self.device.clone()),
                &opening.vring,
                opening.features,
                None,
                Begin::Resume,
            ) {
                Ok(queue) => self.queue = Some(queue),
                Err(fault) => self.stop(fault),
            }
        }
        self.gate.acknowledge(number, before);
    }

    /// The driver has written what makes no sense: it is served again after a reset.
    #[cold]
    fn stop(&mut self, fault: Fault) {
        tracing::error!("{}: {}", self.device.name(), Error::Driver { queue: self.number, fault });
        self.queue = None;
    }

    /// How many pieces of packets, each of at most `bytes`, surely find room when they are
    /// [delivered](Self::deliver), however they are put together: `least` if no more than those do,
    /// and the driver kicks when that is over. Any number while there is no queue: nobody waits for
    /// a driver that is not there.
    #[inline]
    pub fn room(&mut self, bytes: u32, least: usize) -> usize {
        self.queue.as_mut().map_or(usize::MAX, |queue| room(queue, self.merges, bytes, least))
    }

    /// Hands a packet to the driver, whose header and bytes are in `pieces`; false if it has no
    /// room for it.
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

    /// Takes a packet of the driver's, header and bytes, into `room`; how many bytes there were, as
    /// far as there was room. `None` if there is none, and the driver kicks for the next.
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
            done += unsafe {
                self.first.read_raw(
                    queue.memory(),
                    done,
                    piece.iov_base.cast(),
                    piece.iov_len as u32,
                )
            };
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

impl Drop for VduseRing {
    fn drop(&mut self) {
        self.publish();
    }
}

/// See [`VduseRing::room`].
#[inline]
fn room(queue: &mut Queue, merges: bool, bytes: u32, least: usize) -> usize {
    let chains = if merges { (net::HEADER + bytes).div_ceil(SHORTEST) } else { 1 } as usize;
    let wanted = ((least + 1) * chains).min(queue.size().into());
    if usize::from(queue.offered()) < wanted && !queue.want_kicks_for(wanted as u16) {
        return least;
    }
    (usize::from(queue.offered()) / chains).max(least + 1)
}

/// Writes `pieces` into chains of the driver's, as many as they need if packets may be merged.
/// False, and nothing has happened, if there are not so many.
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
                queue.undo_put(taken);
                queue.undo_take(taken);
                return Ok(false);
            }
            (taken, at) = (taken + 1, 0);
        }
    }
    queue.put(if taken == 1 { first.head() } else { next.head() }, at);
    first.write(queue.memory(), BUFFERS, &taken.to_le_bytes());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use ring3_vduse::{Access, Vring, features};

    use super::*;

    const SIZE: u16 = 256;
    const DRIVER: u64 = 0x4000;
    const DEVICE: u64 = 0x8000;

    /// A queue whose driver has offered so many chains, and what kicks are wanted for.
    fn queue(offered: u16) -> (Queue, impl Fn(&Queue) -> u16) {
        let mut memory =
            Memory::of_zeroes(&[(0x1000, 0x1000), (DRIVER, 0x1000), (DEVICE, 0x1000)]).unwrap();
        let index = memory.place(DRIVER + 2, 2, Access::Write).unwrap();
        let event = memory.place(DEVICE + 4 + 8 * u64::from(SIZE), 2, Access::Read).unwrap();
        assert!(memory.write(index, 0, &offered.to_le_bytes()));
        let vring = Vring {
            size: SIZE.into(),
            descriptors: 0x1000,
            driver: DRIVER,
            device: DEVICE,
            ..Vring::default()
        };
        let queue = Queue::open(memory, &vring, features::ALL, None, Begin::Fresh).unwrap();
        let wanted = move |queue: &Queue| {
            let mut bytes = [0; 2];
            assert!(queue.memory().read(event, 0, &mut bytes));
            u16::from_le_bytes(bytes)
        };
        (queue, wanted)
    }

    #[test]
    fn a_frame_of_the_usual_length_takes_one_chain_and_a_longer_piece_as_many_as_it_may_need() {
        let (mut queue, _) = queue(12);
        assert_eq!(room(&mut queue, true, 1518, 0), 12);
        assert_eq!(room(&mut queue, true, 2048, 0), 6);
        assert_eq!(room(&mut queue, false, 2048, 0), 12);
    }

    #[test]
    fn without_room_for_one_more_the_driver_is_asked_to_kick_when_there_is() {
        let (mut empty, wanted) = queue(0);
        assert_eq!(room(&mut empty, true, 1518, 0), 0);
        assert_eq!(wanted(&empty), 0);
        let (mut few, wanted) = queue(5);
        assert_eq!((room(&mut few, true, 2048, 2), wanted(&few)), (2, 5));
        assert_eq!(
            (room(&mut few, true, 2048, 1), wanted(&few)),
            (2, 5),
            "with room there is nothing to ask for"
        );
    }

    #[test]
    fn a_packet_that_no_ring_could_hold_is_not_waited_for() {
        let (mut all, _) = queue(SIZE);
        assert_eq!(room(&mut all, true, 65535, 30), 31);
    }
}
