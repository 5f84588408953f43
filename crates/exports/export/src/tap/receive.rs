//! From the card to the kernel: one call writes a packet, its header in the headroom before it, or
//! several that belong together.

use std::mem;

use ring3_class::dma::Arena;
use ring3_class::net::{Packet, Queue, VLAN_TAG};

use super::coalesce::{CoalesceBatch, CoalescedPacket};
use super::error::QueueError;
use super::header;
use super::layout::{BATCH, Layout};
use super::port::{Port, Written};
use super::stats::Counters;
use super::vhost::Vhost;

/// The EtherType of a tag. [IEEE 802.1Q 9.6]
const TAGGED: [u8; 2] = [0x81, 0x00];

/// The way of what one queue receives.
pub struct Receiver<'a> {
    pub(super) port: Port<'a>,
    pub(super) layout: Layout,
    pub(super) counters: &'a Counters,
    pub(super) batch: Box<[Packet]>,
    pub(super) trains: CoalesceBatch,
    /// Pieces at the start of the batch of a packet that is continued.
    kept: usize,
    /// What comes is the rest of a packet of too many pieces.
    skipping: bool,
    /// Buffers for which the card had no room.
    pub(super) spare: Vec<Packet>,
    /// The kernel has no room for more: what comes stays with the card.
    pub(super) full: bool,
    /// Most bytes of a piece.
    piece: u32,
}

impl<'a> Receiver<'a> {
    /// Gives `queue` as many buffers of `arena` as it holds. It `joins` TCP, or hands each packet
    /// on as it came.
    pub fn new(
        port: Port<'a>,
        queue: &mut dyn Queue,
        (layout, arena): (Layout, &Arena),
        counters: &'a Counters,
        joins: bool,
    ) -> Result<Self, ring3_class::Error> {
        let batch = (0..BATCH).map(|_| Packet::default()).collect();
        let depth = queue.depth().0.into();
        let (trains, spare) = (CoalesceBatch::new(joins), Vec::with_capacity(depth));
        let piece = layout.longest_piece();
        let mut receiver = Self {
            port,
            layout,
            counters,
            batch,
            trains,
            kept: 0,
            skipping: false,
            spare,
            full: false,
            piece,
        };
        for _ in 0..depth {
            receiver.spare.push(layout.receive_buffer(arena)?);
        }
        receiver.provide_spare(queue);
        Ok(receiver)
    }

    /// Moves a batch, by `vhost` if that runs; whether there was something.
    #[inline]
    pub fn poll_batch(
        &mut self,
        queue: &mut dyn Queue,
        mut vhost: Option<&mut Vhost>,
    ) -> Result<bool, QueueError> {
        if let Some(vhost) = &mut vhost {
            self.take_back(vhost)?;
        }
        if !self.spare.is_empty() {
            self.provide_spare(queue);
        }
        if vhost.as_ref().is_some_and(|vhost| vhost.full) {
            return Ok(false);
        }
        let room =
            if vhost.is_some() { BATCH } else { self.port.room(self.piece, self.kept).min(BATCH) };
        self.full = room <= self.kept;
        if self.full {
            return Ok(false);
        }
        let end = self.kept
            + queue.rx_return(&mut self.batch[self.kept..room]).map_err(QueueError::Card)?;
        if end == self.kept {
            return Ok(false);
        }
        let whole = self.batch[..end]
            .iter()
            .rposition(|piece| !piece.meta.more())
            .map_or(0, |last| last + 1);
        let from = self.skip(whole);
        self.trains.plan(&mut self.batch[from..whole]);
        let mut at = 0;
        while let Some(train) = self.trains.after(&mut at) {
            match &mut vhost {
                None => self.deliver(from, train)?,
                Some(vhost) => self.map_packets(from, train, vhost),
            }
        }
        match vhost {
            None => self.port.publish(),
            Some(vhost) => vhost.to_kernel.publish(),
        }
        self.keep(whole, end, queue);
        Ok(true)
    }

    /// Gives the buffers before `at` back to the card, and keeps those from there on up to `end`
    /// for the next batch.
    fn keep(&mut self, mut at: usize, end: usize, queue: &mut dyn Queue) {
        if end - at == BATCH {
            // A packet of more pieces than that is none that a card can have received.
            (at, self.skipping) = (end, true);
        }
        for place in &mut self.batch[..at] {
            place.start = self.layout.start;
        }
        // What vhost-net has is not there.
        let there = self.batch[..at].iter().position(|place| place.buffer.is_none()).unwrap_or(at);
        let taken = queue.rx_provide(&mut self.batch[..there]).count;
        let left = self.batch[taken..at].iter_mut().filter(|place| place.buffer.is_some());
        self.spare.extend(left.map(mem::take));
        self.kept = end - at;
        if at > 0 {
            (0..self.kept).for_each(|piece| self.batch.swap(piece, at + piece));
        }
    }

    pub(super) fn provide_spare(&mut self, queue: &mut dyn Queue) {
        loop {
            let from = self.spare.len().saturating_sub(BATCH);
            let taken = queue.rx_provide(&mut self.spare[from..]).count;
            self.spare.drain(from..from + taken);
            if taken < BATCH {
                return;
            }
        }
    }

    /// Where the first packet begins that is not the rest of one that is skipped, of those that end
    /// before `whole`.
    fn skip(&mut self, whole: usize) -> usize {
        if !self.skipping || whole == 0 {
            return 0;
        }
        self.skipping = false;
        self.counters.rx_dropped.add(1);
        self.batch[..whole]
            .iter()
            .position(|piece| !piece.meta.more())
            .map_or(whole, |last| last + 1)
    }

    /// Hands the packets of `train` to the kernel, whose pieces are counted from `from` on.
    #[inline]
    fn deliver(&mut self, from: usize, train: CoalescedPacket) -> Result<(), QueueError> {
        let packets = u64::from(train.packets);
        match self.write(from, train) {
            Written::Taken(bytes) => {
                self.counters.rx_packets.add(packets);
                self.counters.rx_joined.add(packets - 1);
                self.counters.rx_bytes.add(bytes as u64);
            }
            Written::Dropped => self.counters.rx_dropped.add(packets),
            Written::Deleted => return Err(QueueError::Deleted),
        }
        Ok(())
    }

    fn write(&mut self, from: usize, train: CoalescedPacket) -> Written {
        let mut pieces = self.trains.pieces(train).map(|(piece, skip)| (from + piece, skip));
        let Some((head, _)) = pieces.next() else { return Written::Dropped };
        let first = &mut self.batch[head];
        let Some((at, buffer)) = prepare(first).zip(first.buffer.as_ref()) else {
            return Written::Dropped;
        };
        // SAFETY: `at` lies before the packet, which is in the buffer, as its room is not less than
        // its length.
        let base = unsafe { buffer.as_ptr().add(at as usize) };
        let whole =
            libc::iovec { iov_base: base.cast(), iov_len: header::BYTES + first.len as usize };
        let mut rest = pieces.peekable();
        if rest.peek().is_none() {
            // SAFETY: the kernel reads header and packet, which lie in the buffer one behind the
            // other.
            return unsafe { self.port.write(&[whole]) };
        }
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        vectors[0] = whole;
        let mut count = 1;
        for (vector, (piece, skip)) in vectors[1..].iter_mut().zip(rest) {
            let Some(bytes) = bytes(&self.batch[piece], skip) else { return Written::Dropped };
            (*vector, count) = (bytes, count + 1);
        }
        // SAFETY: each vector is bytes of a buffer that outlives the call; `count` of them were
        // filled in.
        unsafe { self.port.write(&vectors[..count]) }
    }
}

/// Writes the header before a packet; where it begins, or `None` if it has no place, or the buffer
/// does not have the packet.
#[inline]
pub(super) fn prepare(first: &mut Packet) -> Option<u32> {
    if first.meta.vlan().is_some() && !insert_tag(first) {
        return None;
    }
    let at = first.start.checked_sub(header::BYTES as u32).filter(|_| first.len <= first.room())?;
    first.buffer.as_ref()?.write(at as usize, &header::encode(&first.meta)).ok()?;
    Some(at)
}

/// The bytes of a piece without the first `skip`; `None` if its buffer does not have them.
#[inline]
fn bytes(piece: &Packet, skip: u32) -> Option<libc::iovec> {
    let buffer = piece.buffer.as_ref().filter(|_| piece.len <= piece.room())?;
    let len = piece.len.checked_sub(skip)?;
    // SAFETY: the piece lies in its buffer, as its room is not less than its length, and `skip` is
    // not more than that.
    let base = unsafe { buffer.as_ptr().add((piece.start + skip) as usize) };
    Some(libc::iovec { iov_base: base.cast(), iov_len: len as usize })
}

/// Puts the tag that the card has taken out back into the bytes: the kernel is told of tags in no
/// other way. False if there is no room.
#[cold]
fn insert_tag(packet: &mut Packet) -> bool {
    let (Some(tag), Some(start)) = (packet.meta.vlan(), packet.start.checked_sub(VLAN_TAG)) else {
        return false;
    };
    let mut addresses = [0; 12];
    if packet.len < 12 || packet.read(0, &mut addresses).is_err() {
        return false;
    }
    let mut bytes = [0; 16];
    bytes[..12].copy_from_slice(&addresses);
    bytes[12..14].copy_from_slice(&TAGGED);
    bytes[14..].copy_from_slice(&tag.to_be_bytes());
    packet.start = start;
    packet.len += VLAN_TAG;
    packet.write(0, &bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use ring3_class::net::{Cable, Nic};
    use ring3_vduse::{Access, Begin, Memory, Place, Vring, features};

    use super::*;
    use crate::tap::arena_bytes;
    use crate::vduse::VduseRing;

    const SIZE: u16 = 8;
    const TABLE: u64 = 0x1000;
    const DRIVER: u64 = 0x2000;
    const DEVICE: u64 = 0x3000;
    const DATA: u64 = 0x10_0000;
    const CHAIN: u32 = 1536;

    /// A virtqueue whose driver has chains of one piece each, and where it says how many it has
    /// offered.
    fn half() -> (VduseRing, Place) {
        let regions = [(TABLE, 0x1000), (DRIVER, 0x1000), (DEVICE, 0x1000), (DATA, 0x1_0000)];
        let mut memory = Memory::of_zeroes(&regions).unwrap();
        let mut write = |iova: u64, bytes: &[u8]| {
            let place = memory.place(iova, bytes.len() as u32, Access::Write).unwrap();
            assert!(memory.write(place, 0, bytes));
        };
        for number in 0..SIZE {
            let address = DATA + u64::from(number) * 4096;
            let word = u128::from(address) | u128::from(CHAIN) << 64 | 2 << 96;
            write(TABLE + 16 * u64::from(number), &word.to_le_bytes());
            write(DRIVER + 4 + 2 * u64::from(number), &number.to_le_bytes());
        }
        let index = memory.place(DRIVER + 2, 2, Access::Write).unwrap();
        let vring = Vring {
            size: SIZE.into(),
            descriptors: TABLE,
            driver: DRIVER,
            device: DEVICE,
            ..Vring::default()
        };
        let queue =
            ring3_vduse::Queue::open(memory, &vring, features::ALL, None, Begin::Fresh).unwrap();
        (VduseRing::over(queue, true), index)
    }

    #[test]
    fn what_a_virtqueue_has_no_room_for_stays_with_the_card() {
        let (_cable, one, other) = Cable::new(arena_bytes(1)).unwrap();
        let layout = Layout::new(one.info(), 1500);
        let (mut far, mut near) = (
            other.open_queues(1, &layout.settings).unwrap(),
            one.open_queues(1, &layout.settings).unwrap(),
        );
        let (far, near) = (&mut *far[0], &mut *near[0]);
        let (half, index) = half();
        let offer = |receiver: &Receiver<'_>, all: u16| {
            let Port::Virtio(half) = &receiver.port else { panic!("it is a virtqueue") };
            assert!(half.memory().write(index, 0, &all.to_le_bytes()));
        };
        let counters = Counters::default();
        let mut receiver = Receiver::new(
            Port::Virtio(Box::new(half)),
            near,
            (layout, one.dma().arena()),
            &counters,
            false,
        )
        .unwrap();
        let mut frames: Vec<_> =
            (0..5).map(|_| layout.receive_buffer(other.dma().arena()).unwrap()).collect();
        let bytes =
            [&one.info().mac.0[..], &other.info().mac.0, &[0x88, 0xb5], &[7; 1500]].concat();
        frames.iter_mut().for_each(|frame| frame.fill(&bytes).unwrap());
        assert_eq!(far.tx_provide(&mut frames).count, 5);
        let counted = |counters: &Counters| (counters.rx_packets.get(), counters.rx_dropped.get());

        assert!(!receiver.poll_batch(near, None).unwrap() && receiver.full);
        offer(&receiver, 2);
        assert!(receiver.poll_batch(near, None).unwrap());
        assert!(!receiver.poll_batch(near, None).unwrap() && receiver.full);
        assert_eq!(counted(&counters), (2, 0));
        offer(&receiver, SIZE);
        while receiver.poll_batch(near, None).unwrap() {}
        assert_eq!((counted(&counters), receiver.full), ((5, 0), false));
    }
}
