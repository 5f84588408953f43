//! A ring of descriptors as the card sees it: a place, a length, head and tail. [82574 7.1.6,
//! 7.2.4]

use ring3_spec::e1000::{DESCRIPTOR_BYTES, RING_ALIGN, receive, transmit};
use ring3_spec::register::{Reg, Rw};

use super::store::Store;

/// The registers of a ring.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    low: Reg<u32, Rw>,
    high: Reg<u32, Rw>,
    bytes: Reg<u32, Rw>,
    head: Reg<u32, Rw>,
    tail: Reg<u32, Rw>,
}

/// A ring as its registers describe it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    base: u64,
    /// Descriptors in it.
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Ring {
    pub(super) const fn receive(queue: u32) -> Self {
        use receive::{head, ring_bytes, ring_high, ring_low, tail};
        Self {
            low: ring_low(queue),
            high: ring_high(queue),
            bytes: ring_bytes(queue),
            head: head(queue),
            tail: tail(queue),
        }
    }

    pub(super) const fn transmit(queue: u32) -> Self {
        use transmit::{head, ring_bytes, ring_high, ring_low, tail};
        Self {
            low: ring_low(queue),
            high: ring_high(queue),
            bytes: ring_bytes(queue),
            head: head(queue),
            tail: tail(queue),
        }
    }

    /// `None` if the registers describe none: no length, or head or tail beyond it.
    pub(super) fn place(&self, registers: &Store) -> Option<Place> {
        let base = u64::from(registers.get(self.high)) << 32 | u64::from(registers.get(self.low));
        let (head, tail) = (registers.get(self.head), registers.get(self.tail));
        let size = registers.get(self.bytes) / DESCRIPTOR_BYTES;
        let is_ring = head < size && tail < size && base.is_multiple_of(RING_ALIGN as u64);
        is_ring.then_some(Place { base, size, head, tail })
    }

    /// The head goes on by one.
    pub(super) fn advance(&self, registers: &mut Store, place: Place) {
        registers.set(self.head, (place.head + 1) % place.size);
    }
}

impl Place {
    /// Descriptors that are the card's.
    pub(super) fn available(&self) -> u32 {
        (self.tail + self.size - self.head) % self.size
    }

    /// Where the descriptor at the head lies.
    pub(super) fn iova(&self) -> u64 {
        self.base + u64::from(self.head * DESCRIPTOR_BYTES)
    }
}
