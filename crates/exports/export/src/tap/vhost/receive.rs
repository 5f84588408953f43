//! From the card to the kernel: packets are lent to the worker, which copies them.

use ring3_class::dma::Arena;
use ring3_class::net::{Packet, Queue};

use super::super::coalesce::CoalescedPacket;
use super::super::error::QueueError;
use super::super::header;
use super::super::layout::BATCH;
use super::super::receive::{Receiver, prepare};
use super::engine::Vhost;
use super::ring::NONE;

impl Receiver<'_> {
    /// Has buffers for what vhost-net is going to have, which runs from now on.
    pub fn begin_vhost(&mut self, arena: &Arena) -> Result<(), ring3_class::Error> {
        self.spare.append(&mut self.layout.more_receive_buffers(arena)?);
        Ok(())
    }

    /// Takes everything back from vhost-net, which has ended: packets that the kernel has not taken
    /// are lost.
    pub fn end_vhost(&mut self, queue: &mut dyn Queue, vhost: &mut Vhost) {
        let start = self.layout.start;
        self.spare.extend(vhost.to_kernel.reclaim().map(|packet| Packet { start, ..packet }));
        self.provide_spare(queue);
        self.spare.clear();
    }

    /// Takes buffers back whose packets the kernel has.
    #[inline]
    pub fn take_back(&mut self, vhost: &mut Vhost) -> Result<(), QueueError> {
        let ring = &mut vhost.to_kernel;
        while let Some((mut number, _)) = ring.take().map_err(QueueError::Vhost)? {
            while number != NONE {
                let (mut packet, next) = ring.vacate(number);
                packet.start = self.layout.start;
                self.spare.push(packet);
                number = next;
            }
        }
        // The card keeps what vhost-net cannot have yet.
        vhost.full = ring.room() < BATCH;
        Ok(())
    }

    /// Maps the packets of `train` for vhost-net, which has room for a whole batch.
    #[inline]
    pub fn map_packets(&mut self, from: usize, train: CoalescedPacket, vhost: &mut Vhost) {
        let packets = u64::from(train.packets);
        let pieces = self.trains.pieces(train).map(|(piece, skip)| (from + piece, skip));
        let head = pieces
            .clone()
            .next()
            .map(|(head, _)| head)
            .filter(|&head| prepare(&mut self.batch[head]).is_some());
        let mut bytes = 0;
        let sound = pieces.clone().all(|(piece, skip)| {
            let piece = &self.batch[piece];
            bytes += u64::from(piece.len.saturating_sub(skip));
            piece.buffer.is_some() && piece.len <= piece.room() && skip <= piece.len
        });
        let Some(head) = head.filter(|_| sound) else {
            return self.counters.rx_dropped.add(packets);
        };
        let skip = |piece: usize, skip: u32| {
            if piece == head { -(header::BYTES as i32) } else { skip as i32 }
        };
        vhost.to_kernel.map_packets(
            &mut self.batch,
            pieces.map(|(piece, bytes)| (piece, skip(piece, bytes))),
            0,
        );
        self.counters.rx_packets.add(packets);
        self.counters.rx_joined.add(packets - 1);
        self.counters.rx_bytes.add(bytes);
    }
}
