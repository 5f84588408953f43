//! The pair of queues that packets go through. [virtio 5.1.6]

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::net::{Counters, Info, Limits, Packet, Provided, Queue, QueueSettings};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::Irq;
use ring3_device::ring::SplitRing;
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Deadline, Error};
use ring3_spec::virtio::net::HEADER;
use ring3_spec::virtio::ring::{NEXT, WRITE, descriptor};

use super::super::transport::Doorbell;
use super::card::Shared;
use super::header;

/// While something is to be sent, the card's status is looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// A packet that is not sent in this time is not sent at all.
const SENDING: Duration = Duration::from_secs(5);
/// A descriptor that is none.
const NONE: u16 = u16::MAX;

/// Both rings, and where they are notified.
pub(super) struct Pair {
    pub(super) receive: (SplitRing<DmaBuffer>, Doorbell),
    pub(super) transmit: (SplitRing<DmaBuffer>, Doorbell),
}

impl Pair {
    pub(super) fn open(self, shared: Arc<Shared>, info: &Info, settings: &QueueSettings) -> PacketQueue {
        let (mut receive, mut transmit) = (Half::new(self.receive), Half::new(self.transmit));
        // Who polls needs no interrupts, and who sleeps asks for them.
        receive.ring.want_interrupts(false);
        transmit.ring.want_interrupts(false);
        let irq = shared.vectors.as_ref().map(|[_, queues]| queues.clone());
        PacketQueue {
            limits: Limits::new(info, settings, transmit.ring.size()),
            waiter: Waiter::new(irq, shared.options.poll),
            shared,
            receive,
            transmit,
            rest: 0,
            sent: NONE,
            wake_on_tx: false,
            counters: Counters::default(),
            returned: 0,
            stalled: None,
            look: None,
            lost: None,
        }
    }

    /// Gives its memory up for good.
    pub(super) fn abandon(mut self) {
        self.receive.0.abandon();
        self.transmit.0.abandon();
    }
}

/// One ring, and what the card has by its descriptors.
struct Half {
    ring: SplitRing<DmaBuffer>,
    doorbell: Doorbell,
    /// By descriptor; an empty place is free, or already on its way back.
    slots: Vec<Slot>,
    free: Vec<u16>,
}

#[derive(Default)]
struct Slot {
    packet: Packet,
    /// The descriptor of the packet's next piece.
    next: u16,
    /// The packet begins here, and the card has it.
    head: bool,
}

impl Half {
    fn new((ring, doorbell): (SplitRing<DmaBuffer>, Doorbell)) -> Self {
        let size = ring.size();
        let slots = (0..size).map(|_| Slot { next: NONE, ..Slot::default() }).collect();
        Self { ring, doorbell, slots, free: (0..size).rev().collect() }
    }

    fn held(&self) -> u16 {
        // Never more than the ring has.
        (self.slots.len() - self.free.len()) as u16
    }

    #[inline]
    fn publish(&mut self) {
        if self.ring.publish() {
            self.doorbell.ring();
        }
    }

    /// The slot of a chain that the card says it has used.
    #[inline]
    fn used(&mut self, id: u32) -> Result<u16, Error> {
        match self.slots.get_mut(id as usize) {
            Some(slot) if slot.head => {
                slot.head = false;
                Ok(id as u16)
            }
            _ => Err(Error::Protocol(format!("descriptor {id:#x} was used, and the card does not have it"))),
        }
    }

    /// Takes a slot's packet out; its descriptor is free then.
    #[inline]
    fn vacate(&mut self, id: u16) -> (Packet, u16) {
        let slot = &mut self.slots[usize::from(id)];
        self.free.push(id);
        (mem::take(&mut slot.packet), mem::replace(&mut slot.next, NONE))
    }

    fn abandon(&mut self) {
        self.ring.abandon();
        self.slots.drain(..).for_each(|slot| slot.packet.abandon());
    }
}

/// The queue.
pub(super) struct PacketQueue {
    shared: Arc<Shared>,
    limits: Limits,
    waiter: Waiter,
    receive: Half,
    transmit: Half,
    /// Buffers of the packet that is being received which have not come yet.
    rest: u16,
    /// The next piece of a packet that was sent and did not fit into the last batch.
    sent: u16,
    wake_on_tx: bool,
    counters: Counters,
    /// Packets that came back from being sent.
    returned: u64,
    /// What that was when the card was last looked at with something to send, and when it became so.
    stalled: Option<(u64, Instant)>,
    /// When the card's status is looked at next.
    look: Option<Instant>,
    /// Why the card was given up.
    lost: Option<String>,
}

/// What became of a buffer that was used.
enum Received {
    Packet(Packet),
    Dropped,
}

impl PacketQueue {
    /// Lends `packet`, which was checked, to the card.
    #[inline]
    fn lend(&mut self, id: u16, packet: Packet) {
        let Some(at) = packet.iova() else { return };
        let len = HEADER + self.limits.rx_room();
        self.receive.ring.describe(id, at - u64::from(HEADER), descriptor(len, WRITE, 0));
        self.receive.ring.offer(id);
        self.receive.slots[usize::from(id)] = Slot { packet, next: NONE, head: true };
    }

    /// Takes what the card says about a buffer.
    #[inline]
    fn received(&mut self, id: u32, len: u32) -> Result<Received, Error> {
        let id = self.receive.used(id)?;
        let (mut packet, _) = self.receive.vacate(id);
        let first = self.rest == 0;
        if !self.describe(&mut packet, len, first) {
            self.counters.rx_errors += 1;
            self.receive.free.pop();
            self.lend(id, packet);
            return Ok(Received::Dropped);
        }
        self.counters.rx_packets += u64::from(first);
        self.counters.rx_bytes += u64::from(packet.len);
        Ok(Received::Packet(packet))
    }

    /// Fills in where the bytes of a piece are, and what is known of the packet; false if the card's words make no sense.
    #[inline]
    fn describe(&mut self, packet: &mut Packet, len: u32, first: bool) -> bool {
        let room = HEADER + self.limits.rx_room();
        if !first {
            self.rest -= 1;
            packet.start -= HEADER;
            // The begin of the packet is with the user, so that its end has to come.
            packet.len = len.min(room);
            packet.meta = Default::default();
            packet.meta.more = self.rest > 0;
            return true;
        }
        if len <= HEADER || len > room {
            return false;
        }
        let len = len - HEADER;
        let Some((buffers, meta)) = header::read(packet, len) else { return false };
        if buffers > self.receive.ring.size() {
            return false;
        }
        self.rest = buffers - 1;
        (packet.len, packet.meta) = (len, meta);
        packet.meta.more = buffers > 1;
        buffers > 1 || len <= self.limits.max_frame()
    }

    fn alive(&self) -> Result<(), Error> {
        match &self.lost {
            None => Ok(()),
            Some(why) if why.is_empty() => Err(Error::Gone),
            Some(why) => Err(Error::Fatal(why.clone())),
        }
    }

    fn is_pending(&self) -> bool {
        self.lost.is_some()
            || self.receive.ring.pending()
            || self.wake_on_tx && (self.sent != NONE || self.transmit.ring.pending())
    }

    fn want_interrupts(&mut self, wanted: bool) {
        self.receive.ring.want_interrupts(wanted);
        self.transmit.ring.want_interrupts(wanted && self.wake_on_tx);
    }

    /// Lends the pieces of a packet, of which there are descriptors enough.
    #[inline]
    fn transmit(&mut self, pieces: &mut [Packet]) {
        header::write(&pieces[0]);
        let half = &mut self.transmit;
        let mut next = NONE;
        let last = pieces.len() - 1;
        for (index, place) in pieces.iter_mut().enumerate().rev() {
            // Both are there: the limits have seen the buffer, and the caller the room.
            let (Some(iova), Some(id)) = (place.iova(), half.free.pop()) else { return };
            let packet = mem::take(place);
            let before = if index == 0 { HEADER } else { 0 };
            let at = iova - u64::from(before);
            let (flags, link) = if index < last { (NEXT, next) } else { (0, 0) };
            half.ring.describe(id, at, descriptor(packet.len + before, flags, link));
            self.counters.tx_bytes += u64::from(packet.len);
            half.slots[usize::from(id)] = Slot { packet, next, head: index == 0 };
            next = id;
        }
        half.ring.offer(next);
    }

    fn check(&mut self) -> Result<(), Error> {
        self.shared.transport.check().inspect_err(|error| {
            tracing::error!("{}: {error}", self.shared.transport.device.name());
            self.lost = Some(match error {
                Error::Gone => String::new(),
                other => other.to_string(),
            });
        })
    }
}

impl Queue for PacketQueue {
    fn depth(&self) -> (u16, u16) {
        (self.receive.ring.size(), self.transmit.ring.size())
    }

    fn held(&self) -> (u16, u16) {
        (self.receive.held(), self.transmit.held())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided { count: batch.len(), refused: None };
        for (count, packet) in batch.iter_mut().enumerate() {
            if let Err(refused) = self.limits.check_buffer(packet) {
                provided = Provided { count, refused: Some(refused) };
                break;
            }
            let Some(id) = self.receive.free.pop() else {
                provided = Provided { count, refused: None };
                break;
            };
            self.lend(id, mem::take(packet));
        }
        self.receive.publish();
        provided
    }

    #[inline]
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        self.alive()?;
        let (mut count, mut dropped) = (0, false);
        let mut ended = Ok(());
        while count < batch.len() {
            let received = match self.receive.ring.take() {
                Ok(None) => break,
                Ok(Some((id, len))) => self.received(id, len),
                Err(error) => Err(error),
            };
            match received {
                Ok(Received::Packet(packet)) => {
                    batch[count] = packet;
                    count += 1;
                }
                Ok(Received::Dropped) => dropped = true,
                // What was taken before it is returned; the error is the next call's, if it is still there.
                Err(error) => {
                    self.counters.rx_errors += 1;
                    ended = Err(error);
                    break;
                }
            }
        }
        if dropped {
            self.receive.publish();
        }
        self.shared.live.set(&self.counters);
        if count > 0 { Ok(count) } else { ended.map(|()| 0) }
    }

    #[inline]
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        while provided.count < batch.len() {
            let pieces = match self.limits.check(&batch[provided.count..]) {
                Ok(pieces) => pieces,
                Err(refused) => {
                    provided.refused = Some(refused);
                    break;
                }
            };
            if self.transmit.free.len() < pieces {
                break;
            }
            self.transmit(&mut batch[provided.count..provided.count + pieces]);
            self.counters.tx_packets += 1;
            provided.count += pieces;
        }
        self.transmit.publish();
        self.shared.live.set(&self.counters);
        provided
    }

    #[inline]
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        self.alive()?;
        let mut count = 0;
        while count < batch.len() {
            if self.sent == NONE {
                let used = match self.transmit.ring.take() {
                    Ok(None) => break,
                    Ok(Some((id, _))) => self.transmit.used(id),
                    Err(error) => Err(error),
                };
                match used {
                    Ok(id) => self.sent = id,
                    Err(_) if count > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            let (packet, next) = self.transmit.vacate(self.sent);
            batch[count] = packet;
            self.returned += u64::from(next == NONE);
            (self.sent, count) = (next, count + 1);
        }
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
    }
}

impl Drop for PacketQueue {
    fn drop(&mut self) {
        self.counters.tx_lost += self.transmit.slots.iter().filter(|slot| slot.head).count() as u64;
        self.shared.live.set(&Counters::default());
        if !self.shared.close(self.counters) {
            self.receive.abandon();
            self.transmit.abandon();
        }
    }
}

impl Source for PacketQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.is_pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.want_interrupts(true);
        let pending = self.is_pending();
        self.waiter.arm(|| pending)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.want_interrupts(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.alive()?;
        if self.look.is_none_or(|look| look <= now) {
            self.check()?;
            self.look = Some(now + LOOK);
        }
        let due = self.waiter.tick(now)?;
        let waiting = self.transmit.held() > 0;
        let same = self.stalled.filter(|&(returned, _)| waiting && returned == self.returned);
        self.stalled = same.or(waiting.then_some((self.returned, now)));
        if let Some((_, since)) = self.stalled
            && now.saturating_duration_since(since) > SENDING
        {
            let why = format!("a packet was not sent in {SENDING:?}; open the card again");
            tracing::error!("{}: {why}", self.shared.transport.device.name());
            self.lost = Some(why.clone());
            return Err(Error::Fatal(why));
        }
        Ok(sooner(due, waiting.then(|| now + LOOK)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let (lost, wake_on_tx, sent) = (self.lost.is_some(), self.wake_on_tx, self.sent != NONE);
        let (receive, transmit) = (&self.receive.ring, &self.transmit.ring);
        let ready = || lost || receive.pending() || wake_on_tx && (sent || transmit.pending());
        let Some(polled) = self.waiter.poll(deadline, ready)? else { return Ok(true) };
        self.want_interrupts(true);
        let (receive, transmit) = (&self.receive.ring, &self.transmit.ring);
        let ready = || lost || receive.pending() || wake_on_tx && (sent || transmit.pending());
        let found = self.waiter.sleep(polled, deadline, ready);
        self.want_interrupts(false);
        found
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
