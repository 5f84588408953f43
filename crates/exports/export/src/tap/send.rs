//! From the kernel to the card: one call reads a packet into a buffer of the card's, its header
//! into the headroom before it.

use std::{mem, slice};

use ring3_class::dma::Arena;
use ring3_class::net::{Meta, Packet, Queue};

use super::error::QueueError;
use super::header;
use super::layout::{BATCH, LONG_TOKEN, Layout, RING_TOKEN};
use super::port::{Port, Read};
use super::stats::Counters;
use super::vhost::VhostInFlight;

/// The way of what one queue sends.
pub struct Sender<'a> {
    pub(super) port: Port<'a>,
    pub(super) layout: Layout,
    pub(super) counters: &'a Counters,
    /// Buffers for packets.
    small: Vec<Packet>,
    /// For what goes beyond those.
    long: Vec<Packet>,
    /// Packets that were read and that the card has not taken.
    pub(super) read: Vec<Packet>,
    /// Those of vhost-net.
    pub(super) ringing: VhostInFlight,
    /// Where buffers come back.
    back: Box<[Packet]>,
    /// There may be packets to read.
    pub readable: bool,
    /// Buffers that come back are waited for.
    blocked: bool,
}

impl<'a> Sender<'a> {
    /// Takes its buffers of `arena`.
    pub fn new(
        port: Port<'a>,
        (layout, arena): (Layout, &Arena),
        counters: &'a Counters,
    ) -> Result<Self, ring3_class::Error> {
        let (small, long) = layout.send_buffers(arena)?;
        let back = (0..BATCH).map(|_| Packet::default()).collect();
        // What was there before somebody watched is not announced.
        let (read, ringing) = (Vec::with_capacity(2 * BATCH), VhostInFlight::default());
        Ok(Self {
            port,
            layout,
            counters,
            small,
            long,
            read,
            ringing,
            back,
            readable: true,
            blocked: false,
        })
    }

    /// Moves a batch; whether there was something.
    #[inline]
    pub fn poll_batch(&mut self, queue: &mut dyn Queue) -> Result<bool, QueueError> {
        if !self.readable && !self.blocked {
            return Ok(false);
        }
        let mut moved = self.take_back(queue)?;
        if self.read.is_empty() {
            moved |= self.read_batch()?;
            self.port.publish();
        }
        let waiting = self.read.len();
        self.provide(queue);
        moved |= self.read.len() < waiting;
        self.block(queue, !self.read.is_empty() || (self.readable && !self.has_room()));
        Ok(moved)
    }

    /// Has the card wake the thread by buffers that come back, or not.
    #[inline]
    pub(super) fn block(&mut self, queue: &mut dyn Queue, blocked: bool) {
        if blocked != mem::replace(&mut self.blocked, blocked) {
            queue.wake_on_tx(blocked);
        }
    }

    /// Whether packets wait for the card.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether a packet of any length has a place.
    #[inline]
    fn has_room(&self) -> bool {
        !self.small.is_empty() && (self.layout.long.is_none() || !self.long.is_empty())
    }

    /// Takes buffers back whose packets were sent; whether there were some.
    #[inline]
    pub fn take_back(&mut self, queue: &mut dyn Queue) -> Result<bool, QueueError> {
        let mut any = false;
        loop {
            let count = queue.tx_return(&mut self.back).map_err(QueueError::Card)?;
            for place in 0..count {
                let packet = mem::take(&mut self.back[place]);
                self.put_back(packet);
            }
            any |= count > 0;
            if count < BATCH {
                return Ok(any);
            }
        }
    }

    /// A buffer waits for its next packet.
    #[inline]
    pub(super) fn put_back(&mut self, mut packet: Packet) {
        packet.start = self.layout.start;
        match packet.token {
            LONG_TOKEN => self.long.push(packet),
            RING_TOKEN => self.ringing.put_back(packet),
            _ => self.small.push(packet),
        }
    }

    #[inline]
    fn read_batch(&mut self) -> Result<bool, QueueError> {
        while self.readable && self.read.len() < BATCH && self.has_room() {
            match self.read_one() {
                Read::Bytes(bytes) => self.accept(bytes),
                Read::Nothing => self.readable = false,
                Read::Deleted => return Err(QueueError::Deleted),
            }
        }
        Ok(!self.read.is_empty())
    }

    /// Reads a packet into the last small buffer, and what goes beyond it into the last long one.
    #[inline]
    fn read_one(&mut self) -> Read {
        let before = header::BYTES;
        let Some(base) = self
            .small
            .last()
            .and_then(|packet| packet.buffer.as_ref())
            .map(|buffer| buffer.as_ptr())
        else {
            return Read::Nothing;
        };
        // SAFETY: packets begin behind their headroom, which has room for the header.
        let base = unsafe { base.add(self.layout.start as usize - before) };
        let first =
            libc::iovec { iov_base: base.cast(), iov_len: before + self.layout.small as usize };
        let Some(long) = self.long.last().and_then(|packet| packet.buffer.as_ref()) else {
            // SAFETY: the buffer has so many bytes from there on, and nobody else has it.
            return unsafe { self.port.read(&[first]) };
        };
        let start = self.layout.start as usize;
        // SAFETY: as above.
        let rest = unsafe { long.as_ptr().add(start) };
        let vectors = [first, libc::iovec { iov_base: rest.cast(), iov_len: long.len() - start }];
        // SAFETY: both are bytes of buffers that nobody else has.
        unsafe { self.port.read(&vectors) }
    }

    /// Makes a packet of the bytes that were read.
    #[inline]
    fn accept(&mut self, bytes: usize) {
        let Some(mut first) = self.small.pop() else { return };
        let len = bytes.saturating_sub(header::BYTES).min(u32::MAX as usize) as u32;
        let Some(meta) =
            header::of(&first, self.layout.start).filter(|_| len <= self.layout.longest())
        else {
            self.counters.tx_dropped.add(1);
            self.small.push(first);
            return;
        };
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(len.into());
        first.len = len.min(self.layout.small);
        let rest = len - first.len;
        if rest == 0 {
            first.meta = header::finish(slice::from_ref(&first), meta);
            self.read.push(first);
            return;
        }
        let Some(mut second) = self.long.pop() else { return self.small.push(first) };
        (second.len, second.meta) = (rest, Meta::default());
        let mut pieces = [first, second];
        pieces[0].meta = header::finish(&pieces, meta).with_more(true);
        self.read.extend(pieces);
    }

    /// Hands the card what was read. What the card refuses is lost, and counted.
    #[inline]
    pub(super) fn provide(&mut self, queue: &mut dyn Queue) {
        while !self.read.is_empty() {
            let provided = queue.tx_provide(&mut self.read);
            self.read.drain(..provided.count);
            let Some(refused) = provided.refused else { return };
            self.drop_first(refused);
        }
    }

    #[cold]
    fn drop_first(&mut self, refused: ring3_class::net::Refused) {
        let pieces = self
            .read
            .iter()
            .position(|piece| !piece.meta.more())
            .map_or(self.read.len(), |last| last + 1);
        tracing::debug!(%refused, "a packet of the kernel's is not sent");
        let dropped: Vec<_> = self.read.drain(..pieces).collect();
        dropped.into_iter().for_each(|piece| self.put_back(piece));
        self.counters.tx_dropped.add(1);
    }
}
