//! The queue of one client, as the server has it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring3_class::Error;
use ring3_class::dma::{Arena, DmaBuffer};
use ring3_class::net::Meta;
use ring3_device::ring::{Consumer, Producer};
use ring3_reactor::Reactor;

use super::super::memory::{ClientNotifier, Memory};
use super::packet::ForwardedPacket;
use crate::frame::{self, BUFFER, PIECE, Piece, RECEIVED, SENT};
use crate::memory;

/// See the module.
pub struct Port {
    memory: Arc<Memory>,
    pub bell: ClientNotifier,
    buffers: Consumer<DmaBuffer, BUFFER>,
    received: Producer<DmaBuffer, RECEIVED>,
    pieces: Consumer<DmaBuffer, PIECE>,
    sent: Producer<DmaBuffer, SENT>,
    /// Buffers that were taken out of their ring: tag, room, offset.
    stock: VecDeque<(u32, u32, u64)>,
    /// The next packet to send, which was taken out of its ring and waits for its turn.
    next: Vec<Piece>,
    /// All of the memory, once for each piece that can be with the card, if that reaches it.
    views: Vec<DmaBuffer>,
    max_pieces: usize,
    /// Most bytes of a frame that it receives.
    pub max_frame: usize,
    /// Pieces with the card.
    pub in_flight: u16,
    /// It takes nothing more, and is gone when nothing of it is in flight.
    pub closing: bool,
}

impl Port {
    /// Of `rx_depth` and `tx_depth` buffers, powers of two, in `memory`; with the descriptors that
    /// are the client's: memory, eventfd, pipe.
    pub fn new(
        (rx_depth, tx_depth): (u16, u16),
        (max_pieces, max_frame): (u16, u32),
        memory: Arc<Memory>,
        reactor: &mut Reactor,
    ) -> Result<(Self, [OwnedFd; 3]), Error> {
        let parts = memory::port(rx_depth, tx_depth);
        let file = memory::make(parts.bytes())?;
        let [buffers, received, pieces, sent] = parts.map(file.as_fd())?;
        let all = || {
            Arena::new(memory.foreign.region().clone(), memory.arena.iova())
                .alloc_uninitialised(memory.foreign.len())
        };
        let views = if memory.mapped {
            (0..tx_depth).map(|_| all()).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let (bell, [kick, woken]) = ClientNotifier::new(reactor)?;
        let port = Self {
            buffers: Consumer::new(buffers, rx_depth)?,
            received: Producer::new(received, rx_depth)?,
            pieces: Consumer::new(pieces, tx_depth)?,
            sent: Producer::new(sent, tx_depth)?,
            memory,
            bell,
            stock: VecDeque::with_capacity(rx_depth.into()),
            next: Vec::with_capacity(max_pieces.into()),
            views,
            max_pieces: max_pieces.into(),
            max_frame: max_frame as usize,
            in_flight: 0,
            closing: false,
        };
        Ok((port, [file, kick, woken]))
    }

    /// Whether there is something to send.
    #[inline]
    pub fn pending(&self) -> bool {
        !self.closing && (!self.next.is_empty() || self.pieces.pending())
    }

    /// Asks the client to say when there is something to send, or not to.
    pub fn want(&mut self, wanted: bool) {
        self.pieces.want(wanted);
    }

    /// The next packet to send, which stays here: frames that it makes, and bytes of them all. An
    /// error is the client's: it broke the protocol.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(u64, u64)>, Error> {
        if self.next.is_empty() && !self.closing {
            self.fetch()?;
        }
        let bytes = self.next.iter().map(|piece| u64::from(piece.len)).sum();
        // What is cut in a way that makes no sense is lost as one packet.
        let cut = |piece: &Piece| {
            piece.meta.segmentation().and_then(|cut| cut.frames(bytes)).unwrap_or((1, bytes))
        };
        Ok(self.next.first().map(cut))
    }

    fn fetch(&mut self) -> Result<(), Error> {
        let broken = |what: &str| Err(Error::Protocol(what.into()));
        while let Some(words) = self.pieces.pop()? {
            // The client gives room before it asks for more, so it stands to reason here.
            if self.sent.room()? as usize <= usize::from(self.in_flight) + self.next.len() {
                return broken("more packets are in flight than its queue holds");
            }
            let Some(piece) = Piece::decode(words) else {
                return broken("what it sends is no packet");
            };
            if !self.has(piece.offset, piece.len) {
                return broken("a packet names bytes that are not in its memory");
            }
            self.next.push(piece);
            if !piece.meta.more() {
                self.pieces.release();
                return Ok(());
            }
            if self.next.len() >= self.max_pieces {
                return broken("a packet has more pieces than it may");
            }
        }
        if self.next.is_empty() { Ok(()) } else { broken("the last piece of a packet is missing") }
    }

    fn has(&self, offset: u64, len: u32) -> bool {
        len > 0
            && offset
                .checked_add(len.into())
                .is_some_and(|end| end <= self.memory.foreign.len() as u64)
    }

    /// Takes what was peeked at out of here, with the memory that it lies in.
    /// [`put_back`](Self::put_back) wants the list again.
    pub fn take(&mut self) -> (Vec<Piece>, Arc<Memory>) {
        (std::mem::take(&mut self.next), self.memory.clone())
    }

    /// Takes the list back, whose room is used again.
    pub fn put_back(&mut self, mut pieces: Vec<Piece>) {
        pieces.clear();
        self.next = pieces;
    }

    /// All of the memory, for one piece that goes to the card.
    pub fn view(&mut self) -> Option<DmaBuffer> {
        let view = self.views.pop()?;
        self.in_flight += 1;
        Some(view)
    }

    /// Takes what was peeked at back as a whole: its turn comes again.
    pub fn put_off(&mut self, pieces: Vec<Piece>) {
        self.next = pieces;
    }

    /// A piece has come back from the card.
    pub fn returned(&mut self, view: DmaBuffer, tag: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.views.push(view);
        self.end(tag, false);
    }

    /// Tells the client that a piece was sent, or lost, at the next [`flush`](Self::flush).
    #[inline]
    pub fn end(&mut self, tag: u32, lost: bool) {
        self.sent.push(&frame::sent(tag, lost));
    }

    /// Copies a packet to the client's buffers; false if there are too few. An error is the
    /// client's: it broke the protocol.
    pub fn receive(&mut self, packet: &ForwardedPacket<'_>) -> Result<bool, Error> {
        if self.closing {
            return Ok(false);
        }
        let (mut room, mut count) = (0, 0);
        while room < packet.len {
            if count == self.stock.len() && !self.provide()? {
                return Ok(false);
            }
            room += self.stock[count].1 as usize;
            count += 1;
        }
        let mut at = 0;
        for (tag, room, offset) in self.stock.drain(..count) {
            let len = (room as usize).min(packet.len - at);
            let to = &self.memory.foreign;
            if !packet.copy(at, len, |skip, bytes| to.write(offset as usize + skip, bytes).is_ok())
            {
                return Err(Error::Protocol("a packet cannot be copied to its memory".into()));
            }
            let first = if at == 0 { packet.meta } else { Meta::default() };
            at += len;
            let meta = first.with_more(at < packet.len).with_vlan(None).with_hash(None);
            self.received.push(&Piece { tag, len: len as u32, meta, offset: 0 }.received());
        }
        Ok(true)
    }

    /// Takes one more buffer out of its ring; false if there is none.
    fn provide(&mut self) -> Result<bool, Error> {
        let Some(words) = self.buffers.pop()? else { return Ok(false) };
        if self.received.room()? as usize <= self.stock.len() {
            return Err(Error::Protocol("it provides more buffers than its queue holds".into()));
        }
        let (tag, room, offset) = frame::read_buffer(words);
        if !self.has(offset, room) {
            return Err(Error::Protocol("a buffer names bytes that are not in its memory".into()));
        }
        self.buffers.release();
        self.stock.push_back((tag, room, offset));
        Ok(true)
    }

    /// Forgets what was not begun, for the end.
    pub fn close(&mut self) {
        self.closing = true;
        self.next.clear();
    }

    /// Shows the client what has ended, and wakes it if it wants that.
    #[inline]
    pub fn flush(&mut self) {
        let (received, sent) = (self.received.publish(), self.sent.publish());
        if received || sent {
            self.bell.ring();
        }
    }
}
