//! One direction: a virtqueue, and what the card has by its descriptors.

use std::mem;

use ring3_class::net::Packet;
use ring3_device::Error;
use ring3_device::dma::{Claims, DmaBuffer};

use super::super::saved::SavedQueueAddresses;
use super::super::virtqueue::{Doorbell, Piece, Virtqueue};
use super::saved::{SavedPacketRing, SavedSlot};

/// A descriptor that is none.
pub(super) const NONE: u16 = u16::MAX;

/// One virtqueue with the packets that went through it.
///
/// Descriptors are numbered round and round, and almost every card gives them back as it got them:
/// then those that it has are the [`outstanding`](Self::outstanding) ones before the next number,
/// and whole runs of packets go and come back at once. After a card has given one back before its
/// turn, free numbers are kept one by one until it has none.
pub(super) struct PacketRing {
    queue: Virtqueue,
    /// By descriptor; an empty place is free, or already on its way back.
    packets: Vec<Packet>,
    links: Vec<Link>,
    /// The next descriptor's number, unless they are [scattered](Self::scattered).
    next: u16,
    /// Descriptors that the card has, or whose packets have not been returned.
    held: u16,
    /// Of these, pieces behind the first of their packet.
    later: u16,
    /// Free numbers are in `free`.
    scattered: bool,
    free: Vec<u16>,
    /// The virtqueue is of no use any more.
    broken: bool,
}

/// What a descriptor is beside its packet's piece; by default, a packet of one piece.
#[derive(Clone, Copy)]
struct Link {
    /// The descriptor of the packet's next piece.
    next: u16,
    /// It is not the packet's first piece.
    later: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self { next: NONE, later: false }
    }
}

impl PacketRing {
    /// Who polls needs no interrupts, and who sleeps asks for them: to begin with, nobody
    /// [wants](Self::want_interrupts) them.
    pub(super) fn new(queue: Virtqueue) -> Self {
        let size = queue.size();
        let packets = (0..size).map(|_| Packet::default()).collect();
        let (links, free) = (vec![Link::default(); size.into()], Vec::with_capacity(size.into()));
        Self {
            queue,
            packets,
            links,
            next: 0,
            held: 0,
            later: 0,
            scattered: false,
            free,
            broken: false,
        }
    }

    pub(super) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Pieces that still fit.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.packets.len() - usize::from(self.held)
    }

    /// Pieces that the card has.
    pub(super) fn outstanding(&self) -> u16 {
        self.held
    }

    /// Packets that the card has.
    pub(super) fn packets(&self) -> u64 {
        let firsts = self
            .packets
            .iter()
            .zip(&self.links)
            .filter(|(packet, link)| packet.buffer.is_some() && !link.later);
        firsts.count() as u64
    }

    /// Whether the card has damaged the virtqueue itself, so that nothing more can be taken out of
    /// it.
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

    /// The number after `number`.
    #[inline]
    fn after(&self, number: u16, count: u16) -> u16 {
        // Sizes are powers of two.
        number.wrapping_add(count) & (self.size() - 1)
    }

    /// The number that the card has had longest, unless they are scattered.
    #[inline]
    fn oldest(&self) -> u16 {
        self.after(self.next, self.held.wrapping_neg())
    }

    /// Maps packets of one piece for the card, from the start of `batch` up to the first for which
    /// `map` returns no address and length; `map` moves the buffer to the slot, which is empty.
    /// What does not fit stays, and so does what lies behind the end of a table; all does while
    /// numbers are scattered. Returns how many.
    #[inline(always)]
    pub(super) fn map_run(
        &mut self,
        batch: &mut [Packet],
        flags: u16,
        map: impl FnMut(&mut Packet, &mut Packet) -> Option<(u64, u32)>,
    ) -> usize {
        if self.scattered {
            return 0;
        }
        let room = self.room().min(batch.len());
        let count =
            self.queue.offer_run(self.next, flags, &mut batch[..room], &mut self.packets, map);
        self.next = self.after(self.next, count as u16);
        self.held += count as u16;
        count
    }

    /// Takes packets of one piece that the card has used in order, for as long as `take` takes them
    /// by the bytes that the card says it has written (zero without `LEN`), and the packet; it
    /// moves the buffer to the place. Returns how many.
    #[inline(always)]
    pub(super) fn take_run<const LEN: bool>(
        &mut self,
        batch: &mut [Packet],
        take: impl FnMut(u32, &mut Packet, &mut Packet) -> bool,
    ) -> usize {
        if self.scattered || self.later > 0 {
            return 0;
        }
        // A card may say that it has used more than it has.
        let most = batch.len().min(self.held.into());
        let count = self.queue.take_run::<LEN, _, _>(
            self.oldest(),
            &mut batch[..most],
            &mut self.packets,
            take,
        );
        self.held -= count as u16;
        count
    }

    /// Maps a packet's pieces, for which there is [room](Self::room), for the card; `describe` says
    /// of each, and of its address, what a descriptor says. A packet of which a piece has no
    /// address stays where it is.
    pub(super) fn map_packets(
        &mut self,
        pieces: &mut [Packet],
        describe: impl Fn(usize, &Packet, u64) -> Piece,
    ) {
        if pieces.iter().any(|piece| piece.iova().is_none()) || pieces.len() > self.room() {
            return;
        }
        let (mut number, last) = (self.number(), pieces.len().saturating_sub(1));
        let head = number;
        for (index, place) in pieces.iter_mut().enumerate() {
            let (packet, later) = (mem::take(place), index > 0);
            let next = if index < last { self.number() } else { NONE };
            let (Some(at), Some(slot)) = (packet.iova(), self.packets.get_mut(usize::from(number)))
            else {
                return;
            };
            self.queue.put(
                head,
                number,
                describe(index, &packet, at),
                (index < last).then_some(next),
            );
            *slot = packet;
            self.links[usize::from(number)] = Link { next, later };
            self.later += u16::from(later);
            number = next;
        }
        self.queue.offer(head);
    }

    /// A free number, of which there is one.
    fn number(&mut self) -> u16 {
        self.held += 1;
        if self.scattered {
            return self.free.pop().unwrap_or(NONE);
        }
        let number = self.next;
        self.next = self.after(number, 1);
        number
    }

    /// The next packet that the card says it has used: its first descriptor, and the bytes that it
    /// says it has written.
    pub(super) fn take(&mut self) -> Result<Option<(u16, u32)>, Error> {
        let Some((id, len)) = self.queue.take().inspect_err(|_| self.broken = true)? else {
            return Ok(None);
        };
        let packet = self.packets.get(id as usize).filter(|packet| packet.buffer.is_some());
        if packet.is_none() || self.links[id as usize].later {
            return Err(Error::Protocol(format!(
                "descriptor {id:#x} was used, and the card does not have it"
            )));
        }
        if !self.scattered && id as u16 != self.oldest() {
            self.scatter();
        }
        Ok(Some((id as u16, len)))
    }

    /// Keeps free numbers one by one from now on.
    #[cold]
    fn scatter(&mut self) {
        self.scattered = true;
        self.free.clear();
        self.free.extend(
            (0..self.size()).filter(|&number| self.packets[usize::from(number)].buffer.is_none()),
        );
    }

    /// Takes a piece out, and the descriptor of the next one; its own is free then.
    pub(super) fn vacate(&mut self, number: u16) -> (Packet, u16) {
        let Some(slot) = self.packets.get_mut(usize::from(number)) else {
            return (Packet::default(), NONE);
        };
        let (packet, link) = (mem::take(slot), mem::take(&mut self.links[usize::from(number)]));
        self.held -= 1;
        self.later -= u16::from(link.later);
        if self.scattered {
            self.free.push(number);
            self.scattered = self.held > 0;
        }
        (packet, link.next)
    }

    /// Gives all memory that the card may know of up for good.
    pub(super) fn abandon(&mut self) {
        self.queue.abandon();
        self.packets.drain(..).for_each(Packet::abandon);
    }

    /// Moves all memory out that the card may know of. It takes nothing afterwards, and has
    /// nothing.
    pub(super) fn take_memory(&mut self) -> impl Iterator<Item = DmaBuffer> + use<'_> {
        (self.held, self.later) = (0, 0);
        self.queue
            .take_memory()
            .into_iter()
            .chain(self.packets.drain(..).filter_map(|packet| packet.buffer))
    }

    /// Where the card has its virtqueue.
    pub(super) fn places(&self) -> SavedQueueAddresses {
        self.queue.places()
    }

    /// All of it, for who [claims](Self::claim) it.
    pub(super) fn save(&self) -> Result<SavedPacketRing, Error> {
        let slots = (0..)
            .zip(self.packets.iter().zip(&self.links))
            .filter(|(_, (packet, _))| packet.buffer.is_some());
        let held = slots.map(|(number, (packet, link))| {
            Ok::<_, Error>(SavedSlot {
                number,
                packet: packet.save()?,
                next: link.next,
                later: link.later,
            })
        });
        Ok(SavedPacketRing {
            queue: self.queue.save()?,
            next: self.next,
            scattered: self.scattered,
            broken: self.broken,
            held: held.collect::<Result<_, _>>()?,
        })
    }

    /// Releases the ring and its buffers to the process that claims them as saved. The value is
    /// empty afterwards, and takes no packets.
    pub(super) fn release_to_successor(&mut self) {
        self.queue.release_to_successor();
        self.packets.drain(..).for_each(Packet::release_to_successor);
        (self.held, self.later) = (0, 0);
    }

    /// The one that was saved as `saved`, of a card with `features`, rung by `doorbell`. It is
    /// input. Of how its pieces follow each other, [`has_chains`](Self::has_chains) tells.
    pub(super) fn claim(
        saved: &SavedPacketRing,
        claims: &mut Claims,
        doorbell: Doorbell,
        features: u64,
    ) -> Result<Self, Error> {
        let invalid =
            |what: &str| Error::Invalid(format!("the saved virtqueue {what}: open the card anew"));
        let mut half = Self::new(Virtqueue::resume(&saved.queue, claims, doorbell, features)?);
        let size = half.size();
        if !size.is_power_of_two() || saved.next >= size {
            return Err(invalid("has a next descriptor that is none"));
        }
        for &SavedSlot { number, packet, next, later } in &saved.held {
            let slot =
                half.packets.get_mut(usize::from(number)).filter(|slot| slot.buffer.is_none());
            *slot.ok_or_else(|| invalid("has a descriptor twice or in vain"))? =
                packet.claim(claims)?;
            half.links[usize::from(number)] = Link { next, later };
            half.later += u16::from(later);
        }
        (half.next, half.held, half.broken) = (saved.next, saved.held.len() as u16, saved.broken);
        if saved.scattered {
            half.scatter();
        } else if !(0..half.held).all(|ahead| half.is_held(half.after(half.oldest(), ahead))) {
            return Err(invalid("has descriptors that are not in a row"));
        }
        Ok(half)
    }

    /// Whether every piece follows exactly one other of its packet, or the one before it has been
    /// returned, so that it is `begun`. A piece of two packets, or one that the card still has,
    /// would be returned while it is somebody else's.
    pub(super) fn has_chains(&self, begun: u16) -> bool {
        let is_later = |number: u16| self.is_held(number) && self.links[usize::from(number)].later;
        let mut followed = vec![false; self.links.len()];
        let mut pieces = 0;
        let heads = (0..self.size()).filter(|&number| self.is_held(number) && !is_later(number));
        for next in heads.map(|head| self.links[usize::from(head)].next).chain([begun]) {
            let mut next = next;
            while next != NONE {
                // Nothing is followed twice, so that this ends.
                if !is_later(next) || mem::replace(&mut followed[usize::from(next)], true) {
                    return false;
                }
                (next, pieces) = (self.links[usize::from(next)].next, pieces + 1);
            }
        }
        pieces == self.later
    }

    /// Whether all packets have one piece.
    pub(super) fn is_of_single_pieces(&self) -> bool {
        self.later == 0 && self.links.iter().all(|link| link.next == NONE)
    }

    fn is_held(&self, number: u16) -> bool {
        self.packets.get(usize::from(number)).is_some_and(|packet| packet.buffer.is_some())
    }

    /// The buffers that the card has.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().filter(|packet| packet.buffer.is_some())
    }
}
