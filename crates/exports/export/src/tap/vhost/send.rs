//! From the kernel to the card: the worker copies packets into buffers of the card's.

use std::mem;

use ring3_class::dma::Arena;
use ring3_class::net::{Meta, Packet, Queue};

use super::super::error::QueueError;
use super::super::header;
use super::super::layout::BATCH;
use super::super::send::Sender;
use super::engine::Vhost;
use super::in_flight::VhostInFlight;
use super::ring::{Ring, SIZE};
use ring3_spec::virtio::ring::WRITE;

/// Where a header says how many buffers its packet takes. [virtio 5.1.6]
const BUFFERS: u32 = 10;

impl Sender<'_> {
    /// Has buffers for vhost-net, which runs from now on.
    pub fn begin_vhost(&mut self, arena: &Arena) -> Result<(), ring3_class::Error> {
        self.ringing = VhostInFlight {
            free: self.layout.ring_buffers(arena)?,
            begun: Vec::with_capacity(BATCH),
            awaited: 0,
            on: true,
        };
        Ok(())
    }

    /// Takes what vhost-net, which has ended, has brought; everything else of it is given up.
    pub fn end_vhost(&mut self, vhost: &mut Vhost) -> Result<(), QueueError> {
        let collected = self.collect(&mut vhost.from_kernel, usize::MAX);
        vhost.from_kernel.reclaim().for_each(drop);
        self.ringing = VhostInFlight::default();
        // What was there before somebody watched is not announced.
        self.readable = true;
        collected
    }

    /// Moves a batch; whether there was something.
    #[inline]
    pub fn poll_vhost(
        &mut self,
        queue: &mut dyn Queue,
        vhost: &mut Vhost,
    ) -> Result<bool, QueueError> {
        let mut moved = self.take_back(queue)?;
        self.map_free_buffers(&mut vhost.from_kernel);
        if self.read.is_empty() {
            self.collect(&mut vhost.from_kernel, BATCH)?;
        }
        let waiting = self.read.len();
        self.provide(queue);
        moved |= self.read.len() < waiting;
        // What was sent has to come back before the worker has nothing left to write into.
        self.block(
            queue,
            !self.read.is_empty() || vhost.from_kernel.outstanding() < usize::from(SIZE) / 2,
        );
        Ok(moved)
    }

    /// Maps the free buffers for the kernel to write into.
    #[inline]
    fn map_free_buffers(&mut self, ring: &mut Ring) {
        let before = header::BYTES as i32;
        let free = &mut self.ringing.free;
        while ring.room() > 0
            && let Some(last) = free.len().checked_sub(1)
        {
            free[last].len = self.layout.ring;
            ring.map_packets(free, std::iter::once((last, -before)), WRITE);
            free.truncate(last);
        }
        ring.publish();
    }

    /// Takes packets out of the ring, until `most` pieces are there.
    #[inline]
    fn collect(&mut self, ring: &mut Ring, most: usize) -> Result<(), QueueError> {
        while self.read.len() < most
            && let Some((number, bytes)) = ring.take().map_err(QueueError::Vhost)?
        {
            let (piece, _) = ring.vacate(number);
            self.put_piece(piece, bytes);
        }
        Ok(())
    }

    /// A piece into which the worker has written `bytes`: the first of a packet has the header,
    /// which says how many there are.
    #[inline]
    fn put_piece(&mut self, mut piece: Packet, bytes: u32) {
        let (before, ring) = (header::BYTES as u32, self.layout.ring);
        let at = piece.start - before;
        if self.ringing.begun.is_empty() {
            let mut count = [0; 2];
            let read = piece
                .buffer
                .as_ref()
                .map(|buffer| buffer.read((at + BUFFERS) as usize, &mut count));
            self.ringing.awaited =
                if matches!(read, Some(Ok(()))) { u16::from_le_bytes(count).into() } else { 0 };
            piece.len = bytes.saturating_sub(before).min(ring);
        } else {
            (piece.start, piece.len) = (at, bytes.min(ring + before));
        }
        piece.meta = Meta::default();
        self.ringing.begun.push(piece);
        if self.ringing.begun.len() >= self.ringing.awaited || self.ringing.awaited > BATCH {
            self.put_packet();
        }
    }

    /// All pieces of a packet are there.
    #[inline]
    fn put_packet(&mut self) {
        let pieces = &mut self.ringing.begun;
        let len: u32 = pieces.iter().map(|piece| piece.len).sum();
        let whole = pieces.len() == self.ringing.awaited && len <= self.layout.longest();
        let meta =
            pieces.first().filter(|_| whole).and_then(|first| header::of(first, self.layout.start));
        self.counters.tx_packets.add(1);
        self.counters.tx_bytes.add(len.into());
        let Some(meta) = meta else {
            self.counters.tx_dropped.add(1);
            return mem::take(pieces).into_iter().for_each(|piece| self.put_back(piece));
        };
        let (last, meta) = (pieces.len() - 1, header::finish(pieces, meta));
        for (index, piece) in pieces.iter_mut().enumerate() {
            piece.meta = if index == 0 { meta } else { Meta::default() };
            piece.meta.set_more(index < last);
        }
        self.read.append(pieces);
    }
}
