//! A virtqueue of either layout, and its doorbell. [virtio 2.7, 2.8]

use ring3_device::dma::{Arena, DmaBuffer};
use ring3_device::ring::{PackedRing, SplitRing};
use ring3_device::{Bar, Error};
use ring3_spec::virtio::ring::{self, NEXT};

/// Where a queue is notified, and with what.
pub(super) struct Doorbell {
    bar: Bar,
    at: u64,
    queue: u16,
}

impl Doorbell {
    pub(super) fn new((bar, at): (Bar, u64), queue: u16) -> Self {
        Self { bar, at, queue }
    }

    /// [virtio 4.1.5.2]
    #[inline]
    fn ring(&self) {
        self.bar.write16(self.at, self.queue);
    }
}

/// The memory of a virtqueue, and what orders it.
enum Ring {
    Split(SplitRing<DmaBuffer>),
    Packed(PackedRing<DmaBuffer>),
}

/// A virtqueue that the device does not know yet.
pub(super) struct Rings {
    ring: Ring,
    /// Where its descriptors are, the driver's area and the device's.
    pub(super) places: [u64; 3],
}

impl Rings {
    /// Of `size` entries, a power of two.
    pub(super) fn new(arena: &Arena, size: u16, packed: bool) -> Result<Self, Error> {
        let bytes = match packed {
            false => [ring::table_bytes(size), ring::available_bytes(size), ring::used_bytes(size)],
            true => [ring::packed_bytes(size), ring::PACKED_WISH_BYTES, ring::PACKED_WISH_BYTES],
        };
        let alloc = |bytes: usize| arena.alloc(bytes, 16).map(|words| words.tagged("virtqueue"));
        let words = [alloc(bytes[0])?, alloc(bytes[1])?, alloc(bytes[2])?];
        let places = words.each_ref().map(DmaBuffer::iova);
        let [descriptors, driver, device] = words;
        let ring = match packed {
            false => Ring::Split(SplitRing::new(descriptors, driver, device, size)?),
            true => Ring::Packed(PackedRing::new(descriptors, driver, device, size)?),
        };
        Ok(Self { ring, places })
    }
}

/// A piece of memory that a descriptor names.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    /// Descriptor flags: `WRITE`, `INDIRECT`.
    pub(super) flags: u16,
}

/// A virtqueue that the device knows.
///
/// A chain is known by its id, which is the number of its first descriptor where the layout has such numbers: whoever makes chains gives each piece a number below
/// [`size`](Self::size), no two the same among all that the device has.
pub(super) struct Virtqueue {
    ring: Ring,
    doorbell: Doorbell,
}

impl Virtqueue {
    pub(super) fn new(rings: Rings, doorbell: Doorbell) -> Self {
        Self { ring: rings.ring, doorbell }
    }

    /// The same, notified in `bar`, which is the one that it is notified in: a handle that nobody else uses may be mapped where others ask.
    pub(super) fn ring_in(mut self, bar: Bar) -> Self {
        self.doorbell.bar = bar;
        self
    }

    /// Entries: most pieces that the device has at a time.
    pub(super) fn size(&self) -> u16 {
        match &self.ring {
            Ring::Split(ring) => ring.size(),
            Ring::Packed(ring) => ring.size(),
        }
    }

    /// Whether its tables have the layout of packed virtqueues.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.ring, Ring::Packed(_))
    }

    /// Writes the next piece of chain `id`. Its number is `number`, and `next` that of the piece behind it, if there is one.
    #[inline]
    pub(super) fn put(&mut self, id: u16, number: u16, piece: Piece, next: Option<u16>) {
        let flags = if next.is_some() { piece.flags | NEXT } else { piece.flags };
        match &mut self.ring {
            Ring::Split(ring) => {
                ring.describe(number, piece.address, ring::descriptor(piece.len, flags, next.unwrap_or(0)));
            }
            Ring::Packed(ring) => ring.describe(id, piece.address, piece.len, flags),
        }
    }

    /// Chain `id` is complete; the device sees it after [`publish`](Self::publish).
    #[inline]
    pub(super) fn offer(&mut self, id: u16) {
        match &mut self.ring {
            Ring::Split(ring) => ring.offer(id),
            Ring::Packed(ring) => ring.offer(id),
        }
    }

    /// Offers a chain of one piece for each of `items`: see [`SplitRing::offer_run`].
    #[inline(always)]
    pub(super) fn offer_run<T, S>(
        &mut self,
        first: u16,
        flags: u16,
        items: &mut [T],
        slots: &mut [S],
        give: impl FnMut((&mut T, &mut S)) -> Option<(u64, u32)>,
    ) -> usize {
        match &mut self.ring {
            Ring::Split(ring) => ring.offer_run(first, flags, items, slots, give),
            Ring::Packed(ring) => ring.offer_run(first, flags, items, slots, give),
        }
    }

    /// Takes chains of one piece that come back in order: see [`SplitRing::take_run`].
    #[inline(always)]
    pub(super) fn take_run<T, S>(
        &mut self,
        first: u16,
        places: &mut [T],
        slots: &mut [S],
        take: impl FnMut(u32, &mut S, &mut T) -> bool,
    ) -> usize {
        match &mut self.ring {
            Ring::Split(ring) => ring.take_run(first, places, slots, take),
            Ring::Packed(ring) => ring.take_run(first, places, slots, take),
        }
    }

    /// Makes everything offered visible, and tells the device if it wants to be told.
    #[inline]
    pub(super) fn publish(&mut self) {
        let told = match &mut self.ring {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        };
        if told {
            self.doorbell.ring();
        }
    }

    /// Whether the device has used something that was not [taken](Self::take).
    #[inline]
    pub(super) fn pending(&self) -> bool {
        match &self.ring {
            Ring::Split(ring) => ring.pending(),
            Ring::Packed(ring) => ring.pending(),
        }
    }

    /// The chain that the device has used next, and the bytes that it says it has written. Both are input.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<(u32, u32)>, Error> {
        match &mut self.ring {
            Ring::Split(ring) => ring.take(),
            Ring::Packed(ring) => Ok(ring.take().map(|(id, len)| (id.into(), len))),
        }
    }

    /// Asks for interrupts, or does without them. The device may interrupt nevertheless.
    pub(super) fn want_interrupts(&mut self, wanted: bool) {
        match &mut self.ring {
            Ring::Split(ring) => ring.want_interrupts(wanted),
            Ring::Packed(ring) => ring.want_interrupts(wanted),
        }
    }

    /// Gives its memory up for good: the device may still reach it.
    pub(super) fn abandon(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.abandon(),
            Ring::Packed(ring) => ring.abandon(),
        }
    }
}
