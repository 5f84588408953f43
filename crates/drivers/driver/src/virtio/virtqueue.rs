//! A virtqueue of either layout, and its doorbell. [virtio 2.7, 2.8]

use ring3_device::dma::{Arena, Claims, DmaBuffer};
use ring3_device::ring::{PackedRing, SplitRing};
use ring3_device::{Bar, Error};
use ring3_spec::virtio::ring::{self, NEXT};
use ring3_spec::virtio::{EVENT_IDX, RING_PACKED};

use super::saved::{SavedQueueAddresses, SavedRing, SavedVirtqueue};

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

    /// The same in `bar`, which is the one that it is in: a handle that nobody else uses may be
    /// mapped where others ask.
    pub(super) fn ring_in(mut self, bar: Bar) -> Self {
        self.bar = bar;
        self
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
    /// Of `size` entries, a power of two, as agreed upon by `features`.
    pub(super) fn new(arena: &Arena, size: u16, features: u64) -> Result<Self, Error> {
        let (packed, events) = (features & RING_PACKED != 0, features & EVENT_IDX != 0);
        let bytes = match packed {
            false => [ring::table_bytes(size), ring::available_bytes(size), ring::used_bytes(size)],
            true => [ring::packed_bytes(size), ring::PACKED_WISH_BYTES, ring::PACKED_WISH_BYTES],
        };
        let alloc = |bytes: usize| arena.alloc(bytes, 16).map(|words| words.tagged("virtqueue"));
        let words = [alloc(bytes[0])?, alloc(bytes[1])?, alloc(bytes[2])?];
        let places = words.each_ref().map(DmaBuffer::iova);
        let [descriptors, driver, device] = words;
        let ring = match packed {
            false => {
                Ring::Split(SplitRing::new(descriptors, driver, device, size)?.with_events(events))
            }
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
/// A chain is known by its id, which is the number of its first descriptor where the layout has
/// such numbers: whoever makes chains gives each piece a number below [`size`](Self::size), no two
/// the same among all that the device has.
pub(super) struct Virtqueue {
    ring: Ring,
    doorbell: Doorbell,
}

impl Virtqueue {
    pub(super) fn new(rings: Rings, doorbell: Doorbell) -> Self {
        Self { ring: rings.ring, doorbell }
    }

    /// The same, notified in `bar`: see [`Doorbell::ring_in`].
    pub(super) fn ring_in(self, bar: Bar) -> Self {
        Self { doorbell: self.doorbell.ring_in(bar), ..self }
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

    /// Writes the next piece of chain `id`. Its number is `number`, and `next` that of the piece
    /// behind it, if there is one.
    #[inline]
    pub(super) fn put(&mut self, id: u16, number: u16, piece: Piece, next: Option<u16>) {
        let flags = if next.is_some() { piece.flags | NEXT } else { piece.flags };
        match &mut self.ring {
            Ring::Split(ring) => {
                ring.describe(
                    number,
                    piece.address,
                    ring::descriptor(piece.len, flags, next.unwrap_or(0)),
                );
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
        give: impl FnMut(&mut T, &mut S) -> Option<(u64, u32)>,
    ) -> usize {
        match &mut self.ring {
            Ring::Split(ring) => ring.offer_run(first, flags, items, slots, give),
            Ring::Packed(ring) => ring.offer_run(first, flags, items, slots, give),
        }
    }

    /// Takes chains of one piece that come back in order: see [`SplitRing::take_run`].
    #[inline(always)]
    pub(super) fn take_run<const LEN: bool, T, S>(
        &mut self,
        first: u16,
        places: &mut [T],
        slots: &mut [S],
        take: impl FnMut(u32, &mut S, &mut T) -> bool,
    ) -> usize {
        match &mut self.ring {
            Ring::Split(ring) => ring.take_run::<LEN, _, _>(first, places, slots, take),
            Ring::Packed(ring) => ring.take_run::<LEN, _, _>(first, places, slots, take),
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

    /// The chain that the device has used next, and the bytes that it says it has written. Both are
    /// input.
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

    /// Where the device has it.
    pub(super) fn places(&self) -> SavedQueueAddresses {
        let words = match &self.ring {
            Ring::Split(ring) => ring.words(),
            Ring::Packed(ring) => ring.words(),
        };
        SavedQueueAddresses { size: self.size(), places: words.map(DmaBuffer::iova) }
    }

    /// How far it is, for who [resumes](Self::resume) it. All that was offered was
    /// [published](Self::publish): [`Error::Busy`] otherwise.
    pub(super) fn save(&self) -> Result<SavedVirtqueue, Error> {
        let (words, state) = match &self.ring {
            Ring::Split(ring) => (ring.words(), ring.state().map(SavedRing::Split)),
            Ring::Packed(ring) => (ring.words(), ring.state().map(SavedRing::Packed)),
        };
        let state = state.ok_or_else(|| {
            Error::Busy("a virtqueue has more than the device was told: ring, then detach".into())
        })?;
        Ok(SavedVirtqueue { memory: words.map(DmaBuffer::span), state })
    }

    /// Releases its memory to the process that resumes the queue. The value is unusable afterwards.
    pub(super) fn release_to_successor(&mut self) {
        let words = match &mut self.ring {
            Ring::Split(ring) => ring.words_mut(),
            Ring::Packed(ring) => ring.words_mut(),
        };
        words.into_iter().for_each(|words| {
            words.release_to_successor();
        });
    }

    /// Moves its memory out, to which the device may still write. It is of no use afterwards.
    pub(super) fn take_memory(&mut self) -> [DmaBuffer; 3] {
        let words = match &mut self.ring {
            Ring::Split(ring) => ring.words_mut(),
            Ring::Packed(ring) => ring.words_mut(),
        };
        words.map(DmaBuffer::take)
    }

    /// The virtqueue that was saved as `saved`, of a device with `features`, and rung by
    /// `doorbell`. It is input.
    pub(super) fn resume(
        saved: &SavedVirtqueue,
        claims: &mut Claims,
        doorbell: Doorbell,
        features: u64,
    ) -> Result<Self, Error> {
        let (words, events) = (saved.claim(claims)?, features & EVENT_IDX != 0);
        let ring = match (&saved.state, features & RING_PACKED != 0) {
            (SavedRing::Split(state), false) => {
                Ring::Split(SplitRing::resume(words, *state)?.with_events(events))
            }
            (SavedRing::Packed(state), true) => Ring::Packed(PackedRing::resume(words, state)?),
            _ => {
                return Err(Error::Invalid(
                    "a saved virtqueue has another layout than its device: open it anew".into(),
                ));
            }
        };
        Ok(Self { ring, doorbell })
    }

    /// Gives its memory up for good: the device may still reach it.
    pub(super) fn abandon(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.abandon(),
            Ring::Packed(ring) => ring.abandon(),
        }
    }
}
