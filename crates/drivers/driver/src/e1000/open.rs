//! How queues come to be, and end.
//!
//! The card reaches a queue's rings and buffers from the start of its directions until a reset, or
//! until the queue is seen to stand. Only then does the memory go back to the arena; without such a
//! proof it never does.

use std::sync::Arc;

use ring3_class::net::{Limits, Packet, QueueSettings, Throttle};
use ring3_device::Error;
use ring3_device::ring::DescriptorRing;
use ring3_device::wait::Waiter;
use ring3_spec::e1000::{BAR, DESCRIPTOR_BYTES, RING_ALIGN, RING_STEP};

use super::card::Card;
use super::nic::E1000Shared;
use super::queue::CardQueue;
use super::receiver::Receiver;
use super::recovery::HangDetector;
use super::rings::Rings;
use super::transmitter::{SENT_BIT, Transmitter};
use super::variant::Family;
use crate::lifetime::{GENERATION_DETACHED, StopFailed, lock};
use crate::throttle::Adaptive;

/// Sizes of buffers that the card has, largest first. [82574 10.2.5, RCTL.BSIZE]
const BUFFERS: [u32; 7] = [16384, 8192, 4096, 2048, 1024, 512, 256];
/// Descriptors that a transmit ring has beyond two for each packet: for the pieces of large sends.
const SPARE: u32 = 64;

impl CardQueue {
    /// Opens `count` queues and starts both directions of each.
    pub(super) fn open(
        shared: &Arc<E1000Shared>,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Self>, Error> {
        let mut card = lock(&shared.card);
        shared.lifetime.check()?;
        if let Some(rings) = card.rings.iter().flatten().next() {
            let name = shared.device.name();
            return Err(Error::Busy(match rings.detached {
                true => format!("{name}: its queue was detached: resume it"),
                false => format!("{name}: its queues are open: drop them first"),
            }));
        }
        let mut queues = (0..count.into())
            .map(|index| Self::new(shared, index, settings))
            .collect::<Result<Vec<_>, _>>()?;
        // A function that had to be reset has lost it.
        shared.device.set_bus_master(true)?;
        card.spread = count.into();
        card.program_spread();
        for queue in &mut queues {
            queue.generation = shared.lifetime.generation();
            queue.rx.hashed = card.is_hashing();
            card.rings[queue.index as usize] = Some(queue.rings());
        }
        let started =
            queues.iter().try_for_each(|queue| card.start_queue(queue.index, &shared.vectors));
        drop(card);
        if let Err(error) = started {
            queues.clear();
            return Err(error);
        }
        Ok(queues)
    }

    /// Queue `index`, of which the card knows nothing.
    fn new(shared: &Arc<E1000Shared>, index: u32, settings: &QueueSettings) -> Result<Self, Error> {
        let (rx, tx) = shared.info.max_depth;
        let settings = QueueSettings {
            rx_depth: settings.rx_depth.min(rx),
            tx_depth: settings.tx_depth.min(tx),
            ..*settings
        };
        let buffer_bytes = buffer_bytes(&settings)?;
        let arena = shared.device.dma().arena();
        let memory = |size: u32, tag| -> Result<_, Error> {
            Ok(arena.alloc((size * DESCRIPTOR_BYTES) as usize, RING_ALIGN.max(4096))?.tagged(tag))
        };
        let family = shared.variant.family;
        let (receive, transmit) = (
            ring_size(settings.rx_depth.into()),
            ring_size(2 * u32::from(settings.tx_depth) + SPARE),
        );
        let mut receive = DescriptorRing::new(
            memory(receive, "e1000 receive ring")?,
            receive,
            family.received_bit(),
        )?;
        let mut transmit =
            DescriptorRing::new(memory(transmit, "e1000 transmit ring")?, transmit, SENT_BIT)?;
        receive.reset();
        transmit.reset();
        let rx = Receiver::new(receive, family, settings.rx_depth, buffer_bytes);
        let tx = Transmitter::new(transmit, family, settings.tx_depth);
        Self::of(shared, index, settings, (rx, tx))
    }

    /// Queue `index` with these directions. The card does not know it, and is told nothing when it
    /// is dropped, before its generation is the card's.
    pub(super) fn of(
        shared: &Arc<E1000Shared>,
        index: u32,
        settings: QueueSettings,
        (rx, tx): (Receiver, Transmitter),
    ) -> Result<Self, Error> {
        let family = shared.variant.family;
        let waiter = Waiter::new(shared.vectors.of_queue(index)?, shared.options.poll);
        Ok(Self {
            bar: shared.device.bar(BAR)?,
            index,
            generation: GENERATION_DETACHED,
            receive_tail: family.receive_tail(index),
            transmit_tail: family.transmit_tail(index),
            rx,
            tx,
            settings,
            limits: Limits::new(&shared.info, &settings, settings.tx_depth),
            counters: Default::default(),
            before: shared.tallies.get(index as usize).map(|tally| tally.get()).unwrap_or_default(),
            wake_on_tx: false,
            watch: HangDetector::default(),
            waiter,
            adaptive: adaptive(shared, index),
            shared: shared.clone(),
        })
    }

    /// Where the card finds its rings.
    pub(super) fn rings(&self) -> Rings {
        let (receive, transmit) = (&self.rx.ring, &self.tx.ring);
        Rings {
            receive: (receive.words().iova(), receive.size()),
            transmit: (transmit.words().iova(), transmit.size()),
            buffer_bytes: self.rx.buffer_bytes,
            max_frame: self.limits.max_frame(),
            wake_on_tx: self.wake_on_tx,
            started: false,
            detached: false,
        }
    }
}

/// What chooses the throttle of queue `index`: of queues that share one, the first does.
pub(super) fn adaptive(shared: &E1000Shared, index: u32) -> Option<Adaptive> {
    (shared.options.throttle == Throttle::Adaptive && index < shared.vectors.throttles())
        .then(Adaptive::default)
}

/// Bytes that the card takes a buffer to be.
pub(super) fn buffer_bytes(settings: &QueueSettings) -> Result<u32, Error> {
    let fits = BUFFERS.into_iter().find(|bytes| *bytes <= settings.rx_room);
    fits.ok_or_else(|| {
        Error::Invalid(format!(
            "buffers of {} bytes: the card's smallest are of {}",
            settings.rx_room, BUFFERS[6]
        ))
    })
}

/// Slots of a ring that holds `entries`: a power of two, and what RDLEN and TDLEN can say.
fn ring_size(entries: u32) -> u32 {
    (entries + 1).next_power_of_two().max(RING_STEP)
}

impl Drop for CardQueue {
    fn drop(&mut self) {
        if self.generation == GENERATION_DETACHED {
            return;
        }
        let shared = self.shared.clone();
        let mut card = lock(&shared.card);
        if shared.lifetime.check().is_err() {
            card.rings[self.index as usize] = None;
            if !shared.lifetime.is_quiesced() {
                self.abandon();
            }
            return;
        }
        if !self.stop_alone(&mut card) {
            self.stop_with_card(&mut card);
        }
    }
}

impl CardQueue {
    /// Stops it without a reset, where the card can; whether that was possible.
    fn stop_alone(&self, card: &mut Card) -> bool {
        if self.is_stale() || card.variant.family != Family::I82576 {
            return false;
        }
        let stopped = card.stop_queue(self.index, &self.shared.vectors);
        stopped
            .inspect_err(|error| {
                tracing::warn!("{}: {error}; resetting the card", self.shared.device.name())
            })
            .is_ok()
    }

    /// Stops it by a reset of the card; others start anew.
    fn stop_with_card(&mut self, card: &mut Card) {
        let shared = &self.shared;
        card.rings[self.index as usize] = None;
        if self.is_stale() {
            // The card was reset since, and has never heard of its memory again.
            return;
        }
        if card.rings.iter().flatten().count() > 0 {
            shared.lifetime.begin_reset(self.generation, "one of its queues does not stop");
        }
        card.count_missed();
        match card.stop(&*shared.device) {
            Ok(()) => card.start(&shared.vectors, &shared.options),
            Err(StopFailed { error, quiesced }) => {
                shared.lifetime.fail(&error, "it cannot be stopped", quiesced);
                if !quiesced {
                    self.abandon();
                }
            }
        }
    }

    /// Gives all memory that the card may know of up for good.
    fn abandon(&mut self) {
        tracing::error!(
            "{}: the memory of its queue is given up: the card may still write to it",
            self.shared.device.name()
        );
        self.rx.ring.abandon();
        self.tx.ring.abandon();
        let packets = self.rx.slots.iter_mut().chain(&mut self.tx.slots).map(std::mem::take);
        packets.for_each(Packet::abandon);
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
