//! The pair of queues that packets go through. [virtio 5.1.6]

use std::slice;
use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::net::{Counters, Limits, Packet, Provided, Queue, QueueSettings, Refused};
use ring3_device::Error;
use ring3_device::wait::Waiter;
use ring3_spec::virtio::net::HEADER;
use ring3_spec::virtio::ring::WRITE;

use super::super::virtqueue::{Piece, Virtqueue};
use super::card::VirtioNetShared;
use super::half::{NONE, PacketRing};
use super::header::{self, HEADROOM};
use super::live::LiveCounters;
use super::wait::Health;

/// Both virtqueues, which the card knows.
pub(super) struct Pair {
    pub(super) receive: Virtqueue,
    pub(super) transmit: Virtqueue,
}

impl Pair {
    /// The one with this number.
    pub(super) fn open(
        self,
        shared: Arc<VirtioNetShared>,
        index: u16,
        settings: &QueueSettings,
    ) -> PacketQueue {
        let (receive, transmit) = (PacketRing::new(self.receive), PacketRing::new(self.transmit));
        let mut queue = PacketQueue {
            limits: Limits::new(&shared.info, settings, transmit.size()),
            settings: *settings,
            waiter: Waiter::new(shared.queue_irq(index), shared.options.poll),
            shared,
            index,
            receive,
            transmit,
            rest: 0,
            sent: NONE,
            wake_on_tx: false,
            counters: Counters::default(),
            returned: 0,
            health: Health::default(),
        };
        queue.want_interrupts(false);
        queue
    }

    /// Gives its memory up for good.
    pub(super) fn abandon(mut self) {
        self.receive.abandon();
        self.transmit.abandon();
    }
}

/// The queue. How it waits is in `wait.rs`.
pub(super) struct PacketQueue {
    pub(super) shared: Arc<VirtioNetShared>,
    /// Its number among the card's pairs.
    pub(super) index: u16,
    pub(super) limits: Limits,
    pub(super) settings: QueueSettings,
    pub(super) waiter: Waiter,
    pub(super) receive: PacketRing,
    pub(super) transmit: PacketRing,
    /// Buffers of the packet that is being received which have not come yet.
    pub(super) rest: u16,
    /// The next piece of a packet that was sent and did not fit into the last batch.
    pub(super) sent: u16,
    pub(super) wake_on_tx: bool,
    pub(super) counters: Counters,
    /// Packets that came back from being sent.
    pub(super) returned: u64,
    pub(super) health: Health,
}

/// What became of a buffer that was used.
enum Received {
    Packet(Packet),
    Dropped,
}

impl PacketQueue {
    /// Where others see its counters.
    #[inline]
    pub(super) fn live(&self) -> &LiveCounters {
        &self.shared.live[usize::from(self.index)]
    }

    /// Maps `packet`, which was checked, for the card to receive into.
    fn map_packet(&mut self, packet: &mut Packet) {
        let len = HEADER + self.limits.rx_room();
        self.receive.map_packets(slice::from_mut(packet), |_, _, at| Piece {
            address: at - u64::from(HEADER),
            len,
            flags: WRITE,
        });
    }

    /// Takes what the card says about a buffer.
    fn received(&mut self, id: u16, len: u32) -> Received {
        let (mut packet, _) = self.receive.vacate(id);
        let first = self.rest == 0;
        if !self.describe(&mut packet, len, first) {
            self.counters.rx_errors += 1;
            self.map_packet(&mut packet);
            return Received::Dropped;
        }
        self.counters.rx_packets += u64::from(first);
        self.counters.rx_bytes += u64::from(packet.len);
        Received::Packet(packet)
    }

    /// Fills in where the bytes of a piece are, and what is known of the packet; false if the
    /// card's words make no sense.
    fn describe(&mut self, packet: &mut Packet, len: u32, first: bool) -> bool {
        let room = HEADER + self.limits.rx_room();
        if !first {
            self.rest -= 1;
            packet.start -= HEADER;
            // The begin of the packet is with the user, so that its end has to come.
            packet.len = len.min(room);
            packet.meta = Default::default();
            packet.meta.set_more(self.rest > 0);
            return true;
        }
        if len <= HEADER || len > room {
            return false;
        }
        let len = len - HEADER;
        let Some((buffers, meta)) = header::read(packet, len, self.shared.merges()) else {
            return false;
        };
        if buffers > self.receive.size() {
            return false;
        }
        self.rest = buffers - 1;
        (packet.len, packet.meta) = (len, meta);
        packet.meta.set_more(buffers > 1);
        buffers > 1 || len <= self.limits.max_frame()
    }

    /// Lends the first packet of `batch`, which asks for something, or has pieces; of how many, or
    /// none if there is no room.
    #[cold]
    fn send_unusual(&mut self, batch: &mut [Packet]) -> Result<usize, Refused> {
        let pieces = self.limits.check(batch)?;
        if self.transmit.room() < pieces {
            return Ok(0);
        }
        let batch = &mut batch[..pieces];
        header::write(&batch[0]);
        self.counters.tx_bytes += batch.iter().map(|piece| u64::from(piece.len)).sum::<u64>();
        self.counters.tx_packets += 1;
        self.transmit.map_packets(batch, |index, packet, at| {
            let before = if index == 0 { HEADER } else { 0 };
            Piece { address: at - u64::from(before), len: packet.len + before, flags: 0 }
        });
        Ok(pieces)
    }

    /// Lends buffers one by one, behind those that were.
    #[cold]
    fn provide_singly(&mut self, batch: &mut [Packet], provided: &mut Provided) {
        for packet in &mut batch[provided.count..] {
            if self.receive.room() == 0 {
                return;
            }
            provided.refused = self.limits.check_buffer(packet).err();
            if provided.refused.is_some() {
                return;
            }
            self.map_packet(packet);
            provided.count += 1;
        }
    }

    /// Takes what was received one by one: pieces, what is known of a packet, and what makes no
    /// sense.
    #[cold]
    fn return_parts(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let (mut count, mut dropped) = (0, false);
        let mut ended = Ok(());
        while count < batch.len() {
            match self.receive.take() {
                Ok(None) => break,
                Ok(Some((id, len))) => match self.received(id, len) {
                    Received::Packet(packet) => {
                        batch[count] = packet;
                        count += 1;
                    }
                    Received::Dropped => dropped = true,
                },
                // What was taken before it is returned; the error is the next call's, if it is
                // still there.
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
        self.live().set(&self.counters);
        if count > 0 { Ok(count) } else { ended.map(|()| 0) }
    }

    /// Takes what was sent one by one: packets in pieces, and those that come back out of order.
    #[cold]
    fn return_pieces(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let mut count = 0;
        while count < batch.len() {
            if self.sent == NONE {
                match self.transmit.take() {
                    Ok(None) => break,
                    Ok(Some((id, _))) => self.sent = id,
                    Err(_) if count > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            let (mut packet, next) = self.transmit.vacate(self.sent);
            packet.meta.forget();
            batch[count] = packet;
            self.returned += u64::from(next == NONE);
            (self.sent, count) = (next, count + 1);
        }
        Ok(count)
    }
}

impl Queue for PacketQueue {
    fn depth(&self) -> (u16, u16) {
        (self.receive.size(), self.transmit.size())
    }

    fn outstanding(&self) -> (u16, u16) {
        (self.receive.outstanding(), self.transmit.outstanding())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        let room = self.limits.rx_room();
        while provided.count < batch.len() {
            let count =
                self.receive.map_run(&mut batch[provided.count..], WRITE, |packet, slot| {
                    let address =
                        packet.buffer.as_ref()?.address_within(packet.start, HEADROOM, room)?;
                    slot.swap_place(packet);
                    Some((address - u64::from(HEADER), room + HEADER))
                });
            provided.count += count;
            if count == 0 {
                self.provide_singly(batch, &mut provided);
                break;
            }
        }
        self.receive.publish();
        provided
    }

    #[inline]
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        self.health.alive()?;
        if self.rest > 0 {
            return self.return_parts(batch);
        }
        let longest = self.limits.max_frame().min(self.limits.rx_room());
        let (mut bytes, merges) = (0, self.shared.merges());
        let count = self.receive.take_run::<true>(batch, |len, packet, place| {
            let Some(flags) = header::read_plain(packet, merges) else { return false };
            // One comparison for both ends.
            if len.wrapping_sub(HEADER + 1) >= longest || place.buffer.is_some() {
                return false;
            }
            place.swap_place(packet);
            place.len = len - HEADER;
            place.meta.forget_but_valid(flags);
            bytes += u64::from(len - HEADER);
            true
        });
        if count == 0 {
            return self.return_parts(batch);
        }
        self.counters.rx_packets += count as u64;
        self.counters.rx_bytes += bytes;
        self.live().set_received(&self.counters);
        Ok(count)
    }

    #[inline]
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        let longest = self.limits.max_frame();
        loop {
            let mut bytes = 0;
            let sent = self.transmit.map_run(&mut batch[provided.count..], 0, |packet, slot| {
                let len = Limits::plain_len_within(packet, longest)?;
                // It asks for nothing, so that its header is zero. One that does not begin as words
                // do is unusual.
                let address =
                    packet.buffer.as_ref()?.set_header_before(packet.start, len, [0; 2])?;
                slot.swap_buffer(packet);
                bytes += u64::from(len);
                Some((address, len + HEADER))
            });
            self.counters.tx_packets += sent as u64;
            self.counters.tx_bytes += bytes;
            provided.count += sent;
            let rest = &mut batch[provided.count..];
            if rest.is_empty() {
                break;
            }
            if sent > 0 {
                // From the start of a table on.
                continue;
            }
            match self.send_unusual(rest) {
                Ok(0) => break,
                Ok(pieces) => provided.count += pieces,
                Err(refused) => {
                    provided.refused = Some(refused);
                    break;
                }
            }
        }
        self.transmit.publish();
        self.live().set_sent(&self.counters);
        provided
    }

    #[inline]
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        self.health.alive()?;
        if self.sent != NONE {
            return self.return_pieces(batch);
        }
        let count = self.transmit.take_run::<false>(batch, |_, packet, place| {
            if place.buffer.is_some() {
                return false;
            }
            place.swap_buffer(packet);
            place.meta.forget();
            true
        });
        if count == 0 {
            return self.return_pieces(batch);
        }
        self.returned += count as u64;
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.save_and_detach()
    }
}

impl Drop for PacketQueue {
    fn drop(&mut self) {
        if self.health.is_detached() {
            return;
        }
        self.counters.tx_lost += self.transmit.packets();
        self.shared.close(self.index, self.counters, [&mut self.receive, &mut self.transmit]);
    }
}
