//! One direction: a split virtqueue, and the packets that the kernel has by its descriptors.
//! [virtio 2.7]

use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_class::dma::{Arena, DmaBuffer};
use ring3_class::net::Packet;
use ring3_class::{Error, ring::SplitRing};
use ring3_spec::virtio::ring::{self, NEXT};

use super::super::eventfd::{event, ring as signal};

/// Entries.
pub const SIZE: u16 = 256;
/// A descriptor that is none.
pub const NONE: u16 = u16::MAX;

struct VhostSlot {
    packet: Packet,
    /// The descriptor of the next piece.
    next: u16,
    /// A chain begins here, and the kernel has it.
    head: bool,
}

/// A virtqueue that this process drives.
pub struct Ring {
    queue: SplitRing<DmaBuffer>,
    /// By descriptor; an empty place is free, or on its way back.
    slots: Box<[VhostSlot]>,
    free: Vec<u16>,
    /// What the kernel waits on.
    kick: OwnedFd,
    /// Where this process has the descriptors, the ring of what is available, and that of what was
    /// used.
    places: [u64; 3],
}

impl Ring {
    /// Its memory is `arena`'s.
    pub fn new(arena: &Arena) -> Result<Self, Error> {
        let alloc = |bytes: usize| arena.alloc(bytes, 64).map(|words| words.tagged("vhost"));
        let words = [
            alloc(ring::table_bytes(SIZE))?,
            alloc(ring::available_bytes(SIZE))?,
            alloc(ring::used_bytes(SIZE))?,
        ];
        words.iter().for_each(|words| words.fill(0));
        let places = words.each_ref().map(|words| words.as_ptr() as u64);
        let [descriptors, available, used] = words;
        let mut queue = SplitRing::new(descriptors, available, used, SIZE)?;
        // Who polls needs no signals, and who sleeps asks for them.
        queue.want_interrupts(false);
        let slots = (0..SIZE)
            .map(|_| VhostSlot { packet: Packet::default(), next: NONE, head: false })
            .collect();
        let kick =
            event().map_err(|error| Error::os("a descriptor to signal the kernel", error))?;
        Ok(Self { queue, slots, free: (0..SIZE).rev().collect(), kick, places })
    }

    pub fn size(&self) -> u16 {
        SIZE
    }

    pub fn places(&self) -> [u64; 3] {
        self.places
    }

    pub fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Pieces that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Pieces that the kernel uses, or that were not [vacated](Self::vacate).
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Maps packets of `batch` as one chain, for all of which there is [room](Self::room): for
    /// each its place in the batch, and how many of its first bytes the kernel does not see, or how
    /// many before them it does. They are seen after [`publish`](Self::publish).
    #[inline]
    pub fn map_packets(
        &mut self,
        batch: &mut [Packet],
        pieces: impl Iterator<Item = (usize, i32)>,
        flags: u16,
    ) {
        let mut pieces = pieces.peekable();
        if pieces.peek().is_none() {
            return;
        }
        let Some(head) = self.free.pop() else { return };
        let mut number = head;
        while let Some((place, skip)) = pieces.next() {
            let packet = mem::take(&mut batch[place]);
            let address = packet.iova().unwrap_or(0).wrapping_add_signed(skip.into());
            let len = packet.len.wrapping_add_signed(-skip);
            let next = if pieces.peek().is_some() { self.free.pop() } else { None };
            let (flags, follows) = next.map_or((flags, NONE), |next| (flags | NEXT, next));
            self.queue.describe(number, address, ring::descriptor(len, flags, next.unwrap_or(0)));
            self.slots[usize::from(number)] =
                VhostSlot { packet, next: follows, head: number == head };
            let Some(next) = next else { break };
            number = next;
        }
        self.queue.offer(head);
    }

    /// Makes everything lent visible, and wakes the kernel if it sleeps.
    #[inline]
    pub fn publish(&mut self) {
        if self.queue.publish() {
            signal(&self.kick);
        }
    }

    /// Whether the kernel has given something back.
    #[inline]
    pub fn pending(&self) -> bool {
        self.queue.pending()
    }

    pub fn want_signals(&mut self, wanted: bool) {
        self.queue.want_interrupts(wanted);
    }

    /// The next chain that the kernel gives back: its first descriptor, and the bytes that were
    /// written.
    #[inline]
    pub fn take(&mut self) -> Result<Option<(u16, u32)>, Error> {
        let Some((id, len)) = self.queue.take()? else { return Ok(None) };
        match self.slots.get_mut(id as usize) {
            Some(slot) if slot.head => {
                slot.head = false;
                Ok(Some((id as u16, len)))
            }
            _ => Err(Error::Fatal(format!(
                "vhost-net gives descriptor {id:#x} back, which it does not have"
            ))),
        }
    }

    /// Takes a piece out, and the descriptor of the next one or [`NONE`]; its own is free then.
    #[inline]
    pub fn vacate(&mut self, number: u16) -> (Packet, u16) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else {
            return (Packet::default(), NONE);
        };
        self.free.push(number);
        (mem::take(&mut slot.packet), mem::replace(&mut slot.next, NONE))
    }

    /// Takes all out, whatever the kernel has given back: it has ended, and uses none of them.
    pub fn reclaim(&mut self) -> impl Iterator<Item = Packet> {
        self.slots
            .iter_mut()
            .map(|slot| mem::take(&mut slot.packet))
            .filter(|packet| packet.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()))
    }

    /// Gives all memory that the kernel may know of up for good.
    pub fn abandon(&mut self) {
        self.queue.abandon();
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.packet.buffer.as_mut())
            .for_each(DmaBuffer::abandon);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring3_class::dma::Region;

    use super::*;

    fn arena() -> Arena {
        Arena::new(Region::new(1 << 20).unwrap(), 0x10000)
    }

    fn packets(arena: &Arena, count: usize) -> Vec<Packet> {
        (0..count)
            .map(|token| Packet {
                token: token as u32,
                ..Packet::new(arena.alloc(256, 64).unwrap(), 64)
            })
            .collect()
    }

    /// What the kernel does: writes into the ring of what was used.
    fn give_back(ring: &Ring, index: u16, id: u32, len: u32) {
        let used = ring.places()[2] as *mut u8;
        let at = 4 + 8 * usize::from(index % SIZE);
        // SAFETY: the ring has its memory as long as it is there, and nobody refers to it.
        unsafe {
            used.add(at).cast::<u32>().write_volatile(id);
            used.add(at + 4).cast::<u32>().write_volatile(len);
            used.add(2).cast::<u16>().write_volatile(index.wrapping_add(1));
        }
    }

    #[test]
    fn pieces_of_a_chain_come_back_in_order_and_their_descriptors_are_free_again() {
        let arena = arena();
        let mut ring = Ring::new(&arena).unwrap();
        for lap in 0..1000u16 {
            let mut batch = packets(&arena, 3);
            ring.map_packets(&mut batch, (0..3).map(|at| (at, 0)), 0);
            assert!(batch.iter().all(|place| place.buffer.is_none()) && ring.outstanding() == 3);
            ring.publish();
            let head = {
                let available = ring.places()[1] as *const u16;
                // SAFETY: as above.
                unsafe { available.add(2 + usize::from(lap % SIZE)).read_volatile() }
            };
            give_back(&ring, lap, head.into(), 0);
            let (mut number, _) = ring.take().unwrap().unwrap();
            for token in 0..3 {
                let (packet, next) = ring.vacate(number);
                assert_eq!(packet.token, token);
                number = next;
            }
            assert_eq!((number, ring.outstanding()), (NONE, 0));
        }
    }

    #[test]
    fn a_kernel_that_sleeps_is_woken_once_for_a_batch() {
        let arena = arena();
        let mut ring = Ring::new(&arena).unwrap();
        let mut batch = packets(&arena, 2);
        (0..2).for_each(|at| ring.map_packets(&mut batch, std::iter::once((at, 0)), 0));
        ring.publish();
        let mut count = [0; 8];
        rustix::io::read(ring.kick(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }

    #[test]
    fn a_descriptor_that_the_kernel_does_not_have_is_an_error() {
        let arena = arena();
        let mut ring = Ring::new(&arena).unwrap();
        let mut batch = packets(&arena, 3);
        (0..3).for_each(|at| ring.map_packets(&mut batch, std::iter::once((at, 0)), 0));
        ring.publish();
        for (index, id) in [(0, 7), (1, 300), (2, u32::MAX)] {
            give_back(&ring, index, id, 0);
            assert!(matches!(ring.take(), Err(Error::Fatal(_))), "{id}");
        }
    }

    #[test]
    fn what_the_kernel_has_not_given_back_is_reclaimed_once_it_has_ended() {
        let arena = arena();
        let free = arena.free_bytes();
        let mut ring = Ring::new(&arena).unwrap();
        let mut batch = packets(&arena, 5);
        ring.map_packets(&mut batch, (0..5).map(|at| (at, 0)), 0);
        assert_eq!(ring.reclaim().count(), 5);
        drop((ring, batch));
        assert_eq!(arena.free_bytes(), free);
    }

    proptest! {
        #[test]
        fn whatever_the_kernel_writes_no_packet_comes_twice(used in prop::collection::vec((0u32..300, any::<u32>()), 1..60)) {
            let arena = arena();
            let mut ring = Ring::new(&arena).unwrap();
            let mut batch = packets(&arena, 40);
            (0..20).for_each(|chain| {
                ring.map_packets(&mut batch, [(2 * chain, 0), (2 * chain + 1, 12)].into_iter(), 0)
            });
            ring.publish();
            let mut seen = Vec::new();
            for (index, &(id, len)) in used.iter().enumerate() {
                give_back(&ring, index as u16, id, len);
                if let Ok(Some((mut number, _))) = ring.take() {
                    while number != NONE {
                        let (packet, next) = ring.vacate(number);
                        prop_assert!(packet.buffer.is_some() && !seen.contains(&packet.token));
                        seen.push(packet.token);
                        number = next;
                    }
                }
            }
            prop_assert_eq!(ring.outstanding() + seen.len(), 40);
        }
    }
}
