//! One direction: a virtqueue, and what the card has by its descriptors.

use std::mem;

use ring3_class::net::Packet;
use ring3_device::Error;

use super::super::virtqueue::{Piece, Virtqueue};

/// A descriptor that is none.
pub(super) const NONE: u16 = u16::MAX;

/// One virtqueue with the packets that went through it.
pub(super) struct Half {
    queue: Virtqueue,
    /// By descriptor; an empty place is free, or already on its way back.
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// The virtqueue is of no use any more.
    broken: bool,
}

struct Slot {
    packet: Packet,
    /// The descriptor of the packet's next piece.
    next: u16,
    /// The packet begins here, and the card has it.
    head: bool,
}

impl Half {
    pub(super) fn new(mut queue: Virtqueue) -> Self {
        // Who polls needs no interrupts, and who sleeps asks for them.
        queue.want_interrupts(false);
        let size = queue.size();
        let slots = (0..size).map(|_| Slot { packet: Packet::default(), next: NONE, head: false }).collect();
        Self { queue, slots, free: (0..size).rev().collect(), broken: false }
    }

    pub(super) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Pieces that still fit.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Pieces that the card has.
    pub(super) fn held(&self) -> u16 {
        // Never more than the ring has.
        (self.slots.len() - self.free.len()) as u16
    }

    /// Packets that the card has.
    pub(super) fn packets(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.head).count() as u64
    }

    /// Whether the card has damaged the virtqueue itself, so that nothing more can be taken out of it.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn pending(&self) -> bool {
        self.queue.pending()
    }

    pub(super) fn want_interrupts(&mut self, wanted: bool) {
        self.queue.want_interrupts(wanted);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.queue.publish();
    }

    /// Lends a packet's pieces, for which there is [room](Self::room), to the card; `describe` says of each, and of its address, what a descriptor says. A packet of
    /// which a piece has no address stays where it is.
    #[inline]
    pub(super) fn lend(&mut self, pieces: &mut [Packet], describe: impl Fn(usize, &Packet, u64) -> Piece) {
        if pieces.iter().any(|piece| piece.iova().is_none()) {
            return;
        }
        let Some(head) = self.free.pop() else { return };
        let (mut number, last) = (head, pieces.len().saturating_sub(1));
        for (index, place) in pieces.iter_mut().enumerate() {
            let (packet, next) = (mem::take(place), if index < last { self.free.pop() } else { None });
            let (Some(at), Some(slot)) = (packet.iova(), self.slots.get_mut(usize::from(number))) else { return };
            self.queue.put(head, number, describe(index, &packet, at), next);
            *slot = Slot { packet, next: next.unwrap_or(NONE), head: index == 0 };
            number = next.unwrap_or(NONE);
        }
        self.queue.offer(head);
    }

    /// The next packet that the card says it has used: its first descriptor, and the bytes that it says it has written.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<(u16, u32)>, Error> {
        let Some((id, len)) = self.queue.take().inspect_err(|_| self.broken = true)? else { return Ok(None) };
        match self.slots.get_mut(id as usize) {
            Some(slot) if slot.head => {
                slot.head = false;
                Ok(Some((id as u16, len)))
            }
            _ => Err(Error::Protocol(format!("descriptor {id:#x} was used, and the card does not have it"))),
        }
    }

    /// Takes a piece out, and the descriptor of the next one; its own is free then.
    #[inline]
    pub(super) fn vacate(&mut self, number: u16) -> (Packet, u16) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return (Packet::default(), NONE) };
        self.free.push(number);
        (mem::take(&mut slot.packet), mem::replace(&mut slot.next, NONE))
    }

    /// Gives all memory that the card may know of up for good.
    pub(super) fn abandon(&mut self) {
        self.queue.abandon();
        self.slots.drain(..).for_each(|slot| slot.packet.abandon());
    }
}
