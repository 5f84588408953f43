//! How the queue comes to be, and ends.
//!
//! The card reaches the queue's rings and buffers from the start of its directions until a reset. Only then does the memory go back to the
//! arena; without such a proof it never does.

use std::collections::VecDeque;
use std::sync::Arc;

use ring3_class::net::{Limits, Packet, QueueSettings};
use ring3_device::Error;
use ring3_device::ring::DescriptorRing;
use ring3_device::wait::Waiter;
use ring3_spec::e1000::{DESCRIPTOR_BYTES, RING_ALIGN, RING_STEP, STANDARD_FRAME, receive, transmit};

use super::card::Rings;
use super::nic::Shared;
use super::queue::{CardQueue, Receiver, Transmitter};
use super::recovery::Watch;
use crate::lifetime::{Unstopped, lock};

/// Sizes of buffers that the card has, largest first. [82574 10.2.5, RCTL.BSIZE]
const BUFFERS: [u32; 7] = [16384, 8192, 4096, 2048, 1024, 512, 256];
/// Descriptors that a transmit ring has beyond two for each packet: for the pieces of large sends.
const SPARE: u32 = 64;

impl CardQueue {
    /// Opens the queue and starts both directions.
    pub(super) fn open(shared: &Arc<Shared>, settings: &QueueSettings) -> Result<Self, Error> {
        let (rx, tx) = shared.info.max_depth;
        let settings = QueueSettings { rx_depth: settings.rx_depth.min(rx), tx_depth: settings.tx_depth.min(tx), ..*settings };
        let buffer_bytes = BUFFERS.into_iter().find(|bytes| *bytes <= settings.rx_room).ok_or_else(|| {
            Error::Invalid(format!("buffers of {} bytes: the card's smallest are of {}", settings.rx_room, BUFFERS[6]))
        })?;
        let mut card = lock(&shared.card);
        if card.rings.is_some() {
            return Err(Error::Busy(format!("{}: its queue is open: drop it first", shared.device.name())));
        }
        let limits = Limits::new(&shared.info, &settings, settings.tx_depth);
        let arena = shared.device.dma().arena();
        let memory = |size: u32, tag| -> Result<_, Error> {
            Ok(arena.alloc((size * DESCRIPTOR_BYTES) as usize, RING_ALIGN.max(4096))?.tagged(tag))
        };
        let (receive, transmit) = (ring_size(settings.rx_depth.into()), ring_size(2 * u32::from(settings.tx_depth) + SPARE));
        let receive = DescriptorRing::new(memory(receive, "e1000 receive ring")?, receive)?;
        let transmit = DescriptorRing::new(memory(transmit, "e1000 transmit ring")?, transmit)?;
        let rings = Rings {
            receive: (receive.words().iova(), receive.size()),
            transmit: (transmit.words().iova(), transmit.size()),
            buffer_bytes,
            long_packets: limits.max_frame() as usize > STANDARD_FRAME,
            wake_on_tx: false,
        };
        let waiter = Waiter::new(shared.vectors.of_queue()?, shared.options.poll);
        let mut queue = Self {
            bar: card.registers().bar().clone(),
            receive_tail: receive::tail(0).offset(),
            transmit_tail: transmit::tail(0).offset(),
            rx: Receiver::new(receive, settings.rx_depth, buffer_bytes),
            tx: Transmitter::new(transmit, settings.tx_depth),
            limits,
            counters: Default::default(),
            before: shared.tally.get(),
            wake_on_tx: false,
            watch: Watch::default(),
            waiter,
            shared: shared.clone(),
        };
        queue.rx.ring.reset();
        queue.tx.ring.reset();
        // A function that had to be reset has lost it.
        shared.device.set_bus_master(true)?;
        card.rings = Some(rings);
        card.start(&shared.vectors, &shared.options);
        Ok(queue)
    }
}

/// Slots of a ring that holds `entries`: a power of two, and what RDLEN and TDLEN can say.
fn ring_size(entries: u32) -> u32 {
    (entries + 1).next_power_of_two().max(RING_STEP)
}

impl Drop for CardQueue {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let mut card = lock(&shared.card);
        card.rings = None;
        if shared.lifetime.check().is_err() {
            if !shared.lifetime.is_quiesced() {
                self.abandon();
            }
            return;
        }
        card.count_missed();
        match card.stop(&*shared.device) {
            Ok(()) => card.start(&shared.vectors, &shared.options),
            Err(Unstopped { error, quiesced }) => {
                shared.lifetime.fail(&error, "it cannot be stopped", quiesced);
                if !quiesced {
                    self.abandon();
                }
            }
        }
    }
}

impl CardQueue {
    /// Gives all memory that the card may know of up for good.
    fn abandon(&mut self) {
        tracing::error!("{}: the memory of its queue is given up: the card may still write to it", self.shared.device.name());
        self.rx.ring.abandon();
        self.tx.ring.abandon();
        let packets = self.rx.slots.iter_mut().chain(&mut self.tx.slots).map(std::mem::take);
        packets.for_each(Packet::abandon);
    }
}

impl Receiver {
    fn new(ring: super::queue::ReceiveRing, depth: u16, buffer_bytes: u32) -> Self {
        let slots = (0..ring.size()).map(|_| Packet::default()).collect();
        Self { ring, slots, depth, buffer_bytes, parts: Vec::new(), skipping: false, whole: VecDeque::new() }
    }
}

impl Transmitter {
    fn new(ring: super::queue::TransmitRing, depth: u16) -> Self {
        let slots = (0..ring.size()).map(|_| Packet::default()).collect();
        Self { ring, slots, depth, held: 0, back: VecDeque::new(), context: None, linkless: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_powers_of_two_with_a_slot_to_spare() {
        assert_eq!([1, 7, 8, 255, 256, 1024].map(ring_size), [8, 8, 16, 256, 512, 2048]);
    }
}
