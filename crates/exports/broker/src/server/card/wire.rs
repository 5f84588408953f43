//! The card's side: what goes to the wire, of buffers of the server's and pieces of clients', and
//! what comes from there.

use std::sync::Arc;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::dma::DmaBuffer;
use ring3_class::net::{Meta, Nic, Packet, Queue, QueueSettings};
use ring3_class::wait::Source;
use ring3_reactor::{Reactor, Registration};

use super::super::session_loop::pass_final;

/// Bytes of a packet that are read once, before it is looked at, where the card reads the rest from
/// the client's memory: all headers.
pub const HEAD: usize = 256;
/// Places of a batch.
const BATCH: usize = 64;
/// Batches that are received in one turn.
const BATCHES: usize = 8;
/// Buffers each way, if the card holds as many.
const DEPTH: u16 = 512;
/// Bytes of a buffer to receive into, where a longer packet comes in several.
const ROOM: u32 = 2048;
/// What is put before a packet comes in these.
const LINE: u32 = 64;
/// By which buffers of the server's own are known.
const OWN: u32 = u32::MAX;

/// See the module.
pub struct Wire {
    queue: Box<dyn Queue>,
    pub registration: Registration,
    /// Where packets begin in the server's buffers.
    start: u32,
    /// Bytes of a packet that are copied to one; the rest is the client's.
    pub head: usize,
    max_pieces: u16,
    heads: Vec<Packet>,
    batch: Box<[Packet]>,
    /// Pieces at the start of the batch of a packet that is continued.
    kept: usize,
    /// What comes is the rest of a packet of too many pieces.
    skipping: bool,
    out: Vec<Packet>,
    /// Whose pieces are with the card, by their tokens there.
    flights: Vec<InFlightPiece>,
    free: Vec<u32>,
}

/// A piece of a client's that is with the card.
#[derive(Clone, Copy, Default)]
pub struct InFlightPiece {
    pub seat: usize,
    pub tag: u32,
}

/// A piece of a client's that shall go there: its memory, and where in it.
pub struct QueuedPiece {
    pub flight: InFlightPiece,
    pub memory: DmaBuffer,
    pub start: u32,
    pub len: u32,
}

impl Wire {
    /// Over the one queue of `nic`, for packets of `mtu`, whose pieces lie in clients' memory if
    /// that is `mapped`.
    pub fn open(
        nic: &Arc<dyn Nic>,
        mtu: u32,
        mapped: bool,
        reactor: &mut Reactor,
    ) -> Result<Self, Error> {
        let info = nic.info();
        let frame = (mtu + 18).next_multiple_of(LINE);
        let rx_room = if info.receives_pieces { ROOM } else { frame.max(ROOM) };
        let settings = QueueSettings {
            rx_depth: DEPTH.min(info.max_depth.0),
            tx_depth: DEPTH.min(info.max_depth.1),
            mtu,
            rx_room,
        };
        let none = || Error::Protocol("no queue was opened".into());
        let mut queue = nic.open_queues(1, &settings)?.pop().ok_or_else(none)?;
        let start = info.headroom.next_multiple_of(LINE);
        let buffer = |bytes: u32| {
            nic.dma()
                .arena()
                .alloc((start + bytes) as usize, LINE as usize)
                .map(|buffer| Packet::new(buffer, start))
        };
        let (rx, tx) = queue.depth();
        let mut provided = (0..rx).map(|_| buffer(rx_room)).collect::<Result<Vec<_>, _>>()?;
        if queue.rx_provide(&mut provided).count < provided.len() {
            return Err(Error::Protocol(
                "an empty queue does not take as many buffers as it holds".into(),
            ));
        }
        let head = if mapped { HEAD } else { frame as usize };
        // A tag comes on top.
        let heads = (0..tx)
            .map(|_| buffer((head as u32 + 4).next_multiple_of(LINE)))
            .collect::<Result<_, _>>()?;
        let registration = Registration::new(reactor, &*queue)
            .map_err(|error| Error::os("serving a card", error))?;
        Ok(Self {
            queue,
            registration,
            start,
            head,
            max_pieces: info.max_pieces,
            heads,
            batch: (0..BATCH).map(|_| Packet::default()).collect(),
            kept: 0,
            skipping: false,
            out: Vec::with_capacity(tx.into()),
            flights: vec![InFlightPiece::default(); tx.into()],
            free: (0..tx.into()).rev().collect(),
        })
    }

    /// The card's queue, to wait for.
    pub fn source(&mut self) -> (&Registration, &mut dyn Source) {
        (&self.registration, &mut self.queue)
    }

    /// Whether a packet more can be sent.
    #[inline]
    pub fn has_room(&self) -> bool {
        let (depth, held) =
            (usize::from(self.queue.depth().1), usize::from(self.queue.outstanding().1));
        let least = if self.head == HEAD { self.max_pieces.into() } else { 1 };
        !self.heads.is_empty()
            && depth.saturating_sub(held + self.out.len()) >= least.min(depth)
            && self.free.len() >= least.min(depth)
    }

    /// Queues a packet of `head` and then `tails` for the next [`publish`](Self::publish); only
    /// while there is room.
    pub fn send(&mut self, head: &[u8], meta: Meta, tails: impl Iterator<Item = QueuedPiece>) {
        let Some(mut first) = self.heads.pop() else { return };
        if first.fill(head).is_err() {
            self.heads.push(first);
            return;
        }
        (first.meta, first.token) = (meta, OWN);
        self.out.push(first);
        for QueuedPiece { flight, memory, start, len } in tails {
            let Some(token) = self.free.pop() else { continue };
            self.flights[token as usize] = flight;
            if let Some(last) = self.out.last_mut() {
                last.meta.set_more(true);
            }
            self.out.push(Packet { token, len, ..Packet::new(memory, start) });
        }
    }

    /// Hands what was queued to the card. What it refuses comes back as if it had been sent.
    pub fn publish(&mut self, mut back: impl FnMut(InFlightPiece, DmaBuffer)) {
        while !self.out.is_empty() {
            let provided = self.queue.tx_provide(&mut self.out);
            self.out.drain(..provided.count);
            let Some(refused) = provided.refused else { break };
            let pieces = self
                .out
                .iter()
                .position(|piece| !piece.meta.more())
                .map_or(self.out.len(), |last| last + 1);
            tracing::debug!("a packet is lost that the card does not take: {refused}");
            for piece in self.out.drain(..pieces) {
                take_back(piece, self.start, &mut self.heads, &mut self.free, |token, memory| {
                    back(self.flights[token as usize], memory)
                });
            }
        }
    }

    /// Takes what was sent; pieces of clients' go to `back`.
    pub fn returned(
        &mut self,
        mut back: impl FnMut(InFlightPiece, DmaBuffer),
    ) -> Result<(), Error> {
        let mut batch: [Packet; BATCH] = std::array::from_fn(|_| Packet::default());
        while self.queue.outstanding().1 > 0 {
            let count = match self.queue.tx_return(&mut batch) {
                Ok(count) => count,
                Err(error) => return pass_final(error),
            };
            for packet in batch[..count].iter_mut().map(std::mem::take) {
                take_back(packet, self.start, &mut self.heads, &mut self.free, |token, memory| {
                    back(self.flights[token as usize], memory)
                });
            }
            if count < batch.len() {
                break;
            }
        }
        Ok(())
    }

    /// Whether pieces of clients' are with the card, or it is full: then what was sent is waited
    /// for.
    pub fn wake_on_sent(&mut self) {
        let wake = self.free.len() < self.flights.len() || !self.out.is_empty() || !self.has_room();
        self.queue.wake_on_tx(wake);
    }

    /// Gives what has come to `take`, packet by packet; what is left for the next turn is
    /// [pending](Source::pending).
    pub fn receive(&mut self, mut take: impl FnMut(&[Packet])) -> Result<(), Error> {
        for _ in 0..BATCHES {
            let end = match self.queue.rx_return(&mut self.batch[self.kept..]) {
                Ok(count) => self.kept + count,
                Err(error) => return pass_final(error),
            };
            if end == self.kept {
                return Ok(());
            }
            let mut from = 0;
            while let Some(last) = self.batch[from..end].iter().position(|piece| !piece.meta.more())
            {
                if !std::mem::take(&mut self.skipping) {
                    take(&self.batch[from..=from + last]);
                }
                from += last + 1;
            }
            if from == 0 && end == BATCH {
                // A packet of more pieces than that is none that a card can have received.
                (from, self.skipping) = (end, true);
            }
            self.batch[..from].iter_mut().for_each(|packet| packet.start = self.start);
            if self.queue.rx_provide(&mut self.batch[..from]).count < from {
                return Err(Error::Protocol("the card does not take its buffers again".into()));
            }
            self.kept = end - from;
            (0..self.kept).for_each(|piece| self.batch.swap(piece, from + piece));
        }
        Ok(())
    }

    /// Lets the driver see to what takes too long.
    pub fn tick(&mut self, reactor: &mut Reactor, now: Instant) -> Result<(), Error> {
        self.registration.tick(reactor, &mut self.queue, now).or_else(pass_final)
    }
}

/// Sorts a buffer that is not with the card any more: one of the server's, or a client's, which
/// goes to `back`.
fn take_back(
    packet: Packet,
    start: u32,
    heads: &mut Vec<Packet>,
    free: &mut Vec<u32>,
    back: impl FnOnce(u32, DmaBuffer),
) {
    match (packet.token, packet.buffer) {
        (OWN, buffer) => heads.push(Packet { buffer, start, ..Packet::default() }),
        (token, Some(memory)) => {
            free.push(token);
            back(token, memory);
        }
        _ => {}
    }
}
