//! The queue of a remote card: buffers and packets into two rings, what was received and what was
//! sent out of two others.

use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ring3_class::dma::DmaBuffer;
use ring3_class::irq::Irq;
use ring3_class::net::{Counters, Info, Limits, Packet, Provided, Queue, QueueSettings, Refused};
use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};
use ring3_device::ring::{Consumer, Producer};

use super::bell::{self, NotifiedQueue, ServerNotifier};
use super::connection::Connection;
use super::slots::{Slots, fill};
use crate::frame::{self, BUFFER, PIECE, Piece, RECEIVED, SENT};
use crate::memory;

/// A card has one queue.
const NUMBER: u16 = 0;

/// See the module.
pub struct RemotePort {
    bell: ServerNotifier,
    limits: Limits,
    /// The arena's addresses.
    reach: Range<u64>,
    buffers: Producer<DmaBuffer, BUFFER>,
    received: Consumer<DmaBuffer, RECEIVED>,
    pieces: Producer<DmaBuffer, PIECE>,
    sent: Consumer<DmaBuffer, SENT>,
    rx: Slots<Packet>,
    tx: Slots<Packet>,
    wake_on_tx: bool,
    counters: Counters,
    /// What was found wrong behind packets that were to be returned first.
    fault: Option<Error>,
}

impl RemotePort {
    /// With the depths that the server has granted, and its descriptors: memory, eventfd, pipe.
    pub fn new(
        connection: Arc<Connection>,
        settings: QueueSettings,
        [file, kick, woken]: [OwnedFd; 3],
        info: &Info,
        reach: Range<u64>,
    ) -> Result<Self, Error> {
        let QueueSettings { rx_depth, tx_depth, .. } = settings;
        let parts = memory::port(rx_depth, tx_depth);
        memory::check(&file, parts.bytes())?;
        let [buffers, received, pieces, sent] = parts.map(file.as_fd())?;
        Ok(Self {
            bell: ServerNotifier::new(connection, kick, woken),
            limits: Limits::new(info, &settings, tx_depth),
            reach,
            buffers: Producer::new(buffers, rx_depth)?,
            received: Consumer::new(received, rx_depth)?,
            pieces: Producer::new(pieces, tx_depth)?,
            sent: Consumer::new(sent, tx_depth)?,
            rx: Slots::new(rx_depth),
            tx: Slots::new(tx_depth),
            wake_on_tx: false,
            counters: Counters::default(),
            fault: None,
        })
    }

    /// Where the `len` bytes of `packet` from its start on lie in the memory; `None` of memory that
    /// is not the arena's.
    #[inline]
    fn offset(&self, packet: &Packet, len: u32) -> Option<u64> {
        let iova = packet.iova()?;
        let inside = self.reach.contains(&iova) && u64::from(len) <= self.reach.end - iova;
        inside.then(|| iova - self.reach.start)
    }

    /// What a packet that has gone, of which this piece was the last unless there is `more`, counts
    /// for.
    fn count_sent(&mut self, len: u32, more: bool, lost: bool) {
        let last = u64::from(!more);
        if lost {
            self.counters.tx_lost += last;
        } else {
            self.counters.tx_packets += last;
            self.counters.tx_bytes += u64::from(len);
        }
    }

    /// What a batch has come to. Nothing comes from a server that has parted.
    fn found(&mut self, (count, fault): (usize, Option<Error>)) -> Result<usize, Error> {
        self.fault = fault.or(self.fault.take());
        if count > 0 {
            return Ok(count);
        }
        match self.fault.take() {
            Some(fault) => Err(fault),
            None if self.bell.lost => Err(self.bell.disconnect_reason()),
            None => Ok(0),
        }
    }

    /// The next that was received, if there is one.
    #[inline]
    fn next_received(&mut self, place: &mut Packet) -> Result<bool, Error> {
        let Some(entry) = self.received.pop()? else { return Ok(false) };
        let piece = Piece::read_received(entry).filter(|piece| piece.len <= self.limits.rx_room());
        let piece = piece
            .ok_or_else(|| Error::Protocol("the server tells of a packet that cannot be".into()))?;
        let mut packet = mem::take(self.rx.end(piece.tag)?);
        (packet.len, packet.meta) = (piece.len, piece.meta);
        self.counters.rx_packets += u64::from(!piece.meta.more());
        self.counters.rx_bytes += u64::from(piece.len);
        *place = packet;
        Ok(true)
    }

    /// The next that was sent or lost, if there is one.
    #[inline]
    fn next_sent(&mut self, place: &mut Packet) -> Result<bool, Error> {
        let Some(entry) = self.sent.pop()? else { return Ok(false) };
        let (tag, lost) = frame::read_sent(entry);
        let packet = mem::take(self.tx.end(tag)?);
        self.count_sent(packet.len, packet.meta.more(), lost);
        *place = packet;
        Ok(true)
    }

    /// Whether a ring to the server has room for so many entries. As many as are free here are free
    /// there, unless the server miscounts, which the next return tells.
    #[inline]
    fn fits(&mut self, room: Result<u32, Error>, entries: usize) -> bool {
        match room {
            Ok(room) => room as usize >= entries,
            Err(error) => {
                self.fault.get_or_insert(error);
                false
            }
        }
    }
}

impl Queue for RemotePort {
    fn depth(&self) -> (u16, u16) {
        (self.rx.depth(), self.tx.depth())
    }

    fn outstanding(&self) -> (u16, u16) {
        (self.rx.in_flight(), self.tx.in_flight())
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let (mut count, mut refused) = (0, None);
        while count < batch.len() {
            let packet = &mut batch[count];
            refused = self.limits.check_buffer(packet).err();
            let offset = self.offset(packet, self.limits.rx_room());
            if refused.is_none() && offset.is_none() {
                refused = Some(Refused::OutOfBuffer);
            }
            let (None, Some(offset)) = (refused, offset) else { break };
            let room = self.buffers.room();
            if self.bell.lost || !self.fits(room, 1) {
                break;
            }
            let Some((tag, place)) = self.rx.take() else { break };
            *place = mem::take(packet);
            self.buffers.push(&frame::buffer(tag, self.limits.rx_room(), offset));
            count += 1;
        }
        if self.buffers.publish() {
            self.bell.ring();
        }
        Provided { count, refused }
    }

    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let filled = fill(batch, |place| self.next_received(place));
        self.received.release();
        self.found(filled)
    }

    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        while provided.count < batch.len() && !self.bell.lost {
            let rest = &mut batch[provided.count..];
            let pieces = match self.limits.check(rest) {
                Ok(pieces) => pieces,
                Err(refused) => {
                    provided.refused = Some(refused);
                    break;
                }
            };
            let room = self.pieces.room();
            if usize::from(self.tx.room()) < pieces || !self.fits(room, pieces) {
                break;
            }
            if rest[..pieces].iter().any(|piece| self.offset(piece, piece.len).is_none()) {
                provided.refused = Some(Refused::OutOfBuffer);
                break;
            }
            for packet in &mut rest[..pieces] {
                let offset = self.offset(packet, packet.len);
                let (Some((tag, place)), Some(offset)) = (self.tx.take(), offset) else { break };
                self.pieces
                    .push(&Piece { tag, len: packet.len, meta: packet.meta, offset }.encode());
                *place = mem::take(packet);
            }
            provided.count += pieces;
        }
        if self.pieces.publish() {
            self.bell.ring();
        }
        provided
    }

    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let filled = fill(batch, |place| self.next_sent(place));
        self.sent.release();
        self.found(filled)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
    }
}

impl Source for RemotePort {
    fn irq(&self) -> Option<&Irq> {
        Some(self.bell.irq())
    }

    #[inline]
    fn pending(&self) -> bool {
        // What is wrong, and that nothing will come any more, is told by the next return.
        self.received.pending()
            || self.wake_on_tx && self.sent.pending()
            || self.fault.is_some()
            || self.bell.lost
    }

    fn arm(&mut self) -> Result<bool, Error> {
        bell::arm(self)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        bell::disarm(self)
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        bell::tick(self, now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        bell::wait(self, deadline)
    }
}

impl NotifiedQueue for RemotePort {
    fn bell(&mut self) -> &mut ServerNotifier {
        &mut self.bell
    }

    fn busy(&self) -> bool {
        self.rx.in_flight() > 0 || self.tx.in_flight() > 0
    }

    fn want(&mut self, wanted: bool) {
        self.received.want(wanted);
        self.sent.want(wanted && self.wake_on_tx);
    }
}

impl Drop for RemotePort {
    fn drop(&mut self) {
        if !self.bell.close(NUMBER) {
            // The card may still read there, and the server write.
            while let Some(packet) = self.tx.end_any() {
                mem::take(packet).abandon();
            }
            while let Some(packet) = self.rx.end_any() {
                mem::take(packet).abandon();
            }
        }
    }
}
