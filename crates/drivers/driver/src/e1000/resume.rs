//! Cards and queues that are left to another process while they run, and taken up there.
//!
//! Neither side of it writes a register but EERD, by which the card's address is read: the card
//! does not notice. What it receives and sends meanwhile lies in the rings and is found by the
//! first look. Under the card's lock nobody resets it. If it is reset before a queue is resumed,
//! its generation says so, and the queue starts anew as every one does.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::net::{Packet, SavedPacket};
use ring3_device::dma::Claims;
use ring3_device::{Device, Error};
use ring3_spec::e1000::DESCRIPTOR_BYTES;

use super::card::Card;
use super::interrupts::Vectors;
use super::nic::{E1000, E1000Shared, variant};
use super::open::buffer_bytes;
use super::queue::CardQueue;
use super::receiver::Receiver;
use super::rings::Rings;
use super::saved::{CARD, QUEUE, SavedCard, SavedQueue, SavedRing, SavedRings, claim_all};
use super::transmitter::{SENT_BIT, SILENT, Transmitter};
use crate::lifetime::{ControllerState, GENERATION_DETACHED, lock};
use crate::throttle::Adaptive;

impl CardQueue {
    /// See [`Queue::detach`](ring3_class::net::Queue::detach).
    pub(super) fn save_and_detach(&mut self) -> Result<Saved, Error> {
        let shared = self.shared.clone();
        let mut card = lock(&shared.card);
        self.check()?;
        if self.is_stale() {
            return Err(Error::Busy("the card was reset: tick, then detach again".into()));
        }
        let saved = Saved::new(QUEUE.0, QUEUE.1, &self.state()?)?;
        // From here on nothing fails.
        if let Some(Some(rings)) = card.rings.get_mut(self.index as usize) {
            rings.detached = true;
        }
        self.rx.ring.words_mut().release_to_successor();
        self.tx.ring.words_mut().release_to_successor();
        let (rx, tx) = (&mut self.rx, &mut self.tx);
        rx.slots
            .iter_mut()
            .chain(&mut tx.slots)
            .map(mem::take)
            .for_each(Packet::release_to_successor);
        rx.parts
            .drain(..)
            .chain(rx.whole.drain(..))
            .chain(tx.back.drain(..))
            .for_each(Packet::release_to_successor);
        // It takes nothing, and has nothing.
        (rx.depth, tx.depth, tx.held, tx.empty, tx.pieces) = (0, 0, 0, 0, 0);
        while rx.ring.withdraw().is_some() || tx.ring.withdraw().is_some() {}
        self.generation = GENERATION_DETACHED;
        Ok(saved)
    }

    fn state(&self) -> Result<SavedQueue, Error> {
        let (rx, tx) = (&self.rx, &self.tx);
        let all = |packets: &mut dyn Iterator<Item = &Packet>| {
            packets.map(Packet::save).collect::<Result<Vec<SavedPacket>, _>>()
        };
        Ok(SavedQueue {
            mac: self.shared.info.mac,
            index: self.index,
            generation: self.generation,
            settings: self.settings,
            receive: SavedRing::of(&rx.ring, &rx.slots, SILENT)?,
            transmit: SavedRing::of(&tx.ring, &tx.slots, SILENT)?,
            parts: all(&mut rx.parts.iter())?,
            whole: all(&mut rx.whole.iter())?,
            skipping: rx.skipping,
            back: all(&mut tx.back.iter())?,
            context: tx.context,
            linkless: tx.linkless,
            wake_on_tx: self.wake_on_tx,
            counters: self.counters,
            before: self.before,
        })
    }

    /// The queues that were detached as `saved`.
    pub(super) fn resume(shared: &Arc<E1000Shared>, saved: &[Saved]) -> Result<Vec<Self>, Error> {
        let states = saved
            .iter()
            .map(|saved| saved.read(QUEUE.0, QUEUE.1))
            .collect::<Result<Vec<SavedQueue>, _>>()?;
        let mut card = lock(&shared.card);
        shared.lifetime.check()?;
        let mut claims = Claims::new(shared.device.dma().arena());
        let queues = states.iter().map(|state| Self::claim(shared, &card, state, &mut claims));
        let mut queues = queues.collect::<Result<Vec<_>, _>>();
        if let Ok(queues) = &mut queues {
            claims.commit();
            for (queue, state) in queues.iter_mut().zip(&states) {
                queue.generation = state.generation;
                if let Some(Some(rings)) = card.rings.get_mut(queue.index as usize) {
                    rings.detached = false;
                }
            }
        }
        queues
    }

    /// The queue that was saved as `state`. It is input.
    fn claim(
        shared: &Arc<E1000Shared>,
        card: &Card,
        state: &SavedQueue,
        claims: &mut Claims,
    ) -> Result<Self, Error> {
        let name = shared.device.name();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the card anew"));
        let rings =
            card.rings.get(state.index as usize).copied().flatten().filter(|rings| rings.detached);
        let Some(rings) = rings.filter(|_| state.mac == shared.info.mac) else {
            return Err(invalid(
                "the saved queue is none of its detached ones, or is resumed already",
            ));
        };
        let (rx_depth, tx_depth) = shared.info.max_depth;
        let settings = state.settings;
        shared.info.check_settings(1, &settings)?;
        if settings.rx_depth > rx_depth
            || settings.tx_depth > tx_depth
            || state.generation >= GENERATION_DETACHED
        {
            return Err(invalid("the saved queue is larger than its queues are"));
        }
        let (rx, tx) = (
            Self::claim_receiver(shared, state, claims)?,
            Self::claim_transmitter(shared, state, claims)?,
        );
        // Without a buffer its slot would have nothing to return.
        let complete = rx.ring.held_slots().all(|slot| rx.slots[slot as usize].buffer.is_some());
        if !complete || rx.outstanding() > settings.rx_depth.into() || tx.held > settings.tx_depth {
            return Err(invalid("the saved queue has more buffers than it can, or fewer"));
        }
        let mut queue = Self::of(shared, state.index, settings, (rx, tx))?;
        let mut buffers = queue.rx.slots.iter().filter(|packet| packet.buffer.is_some());
        let fits = buffers.all(|packet| queue.limits.check_buffer(packet).is_ok());
        queue.wake_on_tx = state.wake_on_tx;
        queue.adaptive = queue.adaptive.as_ref().map(|_| Adaptive::of_unknown());
        if !fits || !rings.is_same(&queue.rings()) {
            return Err(invalid(
                "the saved queue has other rings than the card, or smaller buffers",
            ));
        }
        (queue.counters, queue.before) = (state.counters, state.before);
        queue.rx.hashed = card.is_hashing();
        Ok(queue)
    }

    fn claim_receiver(
        shared: &E1000Shared,
        state: &SavedQueue,
        claims: &mut Claims,
    ) -> Result<Receiver, Error> {
        let family = shared.variant.family;
        let (ring, slots) = state.receive.claim(claims, family.received_bit(), SILENT)?;
        let mut rx =
            Receiver::new(ring, family, state.settings.rx_depth, buffer_bytes(&state.settings)?);
        (rx.slots, rx.skipping) = (slots, state.skipping);
        rx.parts = claim_all(&state.parts, claims)?;
        rx.whole = claim_all(&state.whole, claims)?.into();
        Ok(rx)
    }

    fn claim_transmitter(
        shared: &E1000Shared,
        state: &SavedQueue,
        claims: &mut Claims,
    ) -> Result<Transmitter, Error> {
        let (ring, slots) = state.transmit.claim(claims, SENT_BIT, SILENT)?;
        let mut tx = Transmitter::new(ring, shared.variant.family, state.settings.tx_depth);
        tx.slots = slots;
        tx.back = claim_all(&state.back, claims)?.into();
        // Never more than the descriptors of a ring.
        tx.held = (state.transmit.held.len() + state.back.len()).try_into().unwrap_or(u16::MAX);
        tx.empty = tx.ring.outstanding().saturating_sub(state.transmit.held.len() as u32);
        tx.pieces =
            tx.slots.iter().filter(|packet| packet.buffer.is_some() && packet.meta.more()).count()
                as u32;
        (tx.context, tx.linkless) = (state.context, state.linkless);
        Ok(tx)
    }
}

impl Rings {
    fn is_same(&self, other: &Self) -> bool {
        let of = |rings: &Self| {
            (rings.receive, rings.transmit, rings.buffer_bytes, rings.max_frame, rings.wake_on_tx)
        };
        of(self) == of(other)
    }

    fn of_saved(saved: &SavedRings) -> Self {
        let SavedRings { index: _, receive, transmit, buffer_bytes, max_frame, wake_on_tx } =
            *saved;
        Self {
            receive,
            transmit,
            buffer_bytes,
            max_frame,
            wake_on_tx,
            started: true,
            detached: true,
        }
    }
}

impl E1000 {
    /// Leaves the card, as it runs, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let mut card = lock(&shared.card);
        shared.lifetime.check()?;
        let open = card.rings.iter().flatten().any(|rings| !rings.detached);
        if open {
            let name = shared.device.name();
            return Err(Error::Busy(format!(
                "{name}: a queue is open: detach it or drop it, then detach the card"
            )));
        }
        card.count_missed();
        let queues = (0..).zip(&card.rings).filter_map(|(index, rings)| {
            let Rings { receive, transmit, buffer_bytes, max_frame, wake_on_tx, .. } = (*rings)?;
            Some(SavedRings { index, receive, transmit, buffer_bytes, max_frame, wake_on_tx })
        });
        let state = SavedCard {
            model: shared.info.model.clone(),
            mac: shared.info.mac,
            nvm: Some(card.nvm).filter(|nvm| *nvm != shared.info.mac),
            options: shared.options.clone(),
            filter: card.filter.clone(),
            vectors: shared.vectors.count(),
            generation: shared.lifetime.generation(),
            spread: card.spread,
            missed: card.missed,
            tallies: shared.tallies.iter().map(|tally| tally.get()).collect(),
            queues: queues.collect(),
        };
        let saved = Saved::new(CARD.0, CARD.1, &state)?;
        shared.lifetime.detach();
        Ok(saved)
    }

    /// Goes on with the card that was detached as `saved`, and which has run since. It polls as
    /// long before it sleeps as `poll` says, or as before. Its NVM is read and nothing else is told
    /// to it. One that was reset meanwhile is found like any that is reset behind its driver's
    /// back.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be of this card.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        let variant = variant(&*device)?;
        let state: SavedCard = saved.read(CARD.0, CARD.1)?;
        let mut card = Card::new(&*device, variant)?;
        let invalid =
            |what: &str| Error::Invalid(format!("{}: {what}: open the card anew", device.name()));
        if state.model != variant.model || card.nvm_address()? != state.nvm.unwrap_or(state.mac) {
            return Err(invalid("the saved state is of another card"));
        }
        for saved in &state.queues {
            let place = card.rings.get_mut(saved.index as usize).filter(|place| place.is_none());
            let place =
                place.ok_or_else(|| invalid("the saved state has a queue twice or in vain"))?;
            *place = Some(Rings::of_saved(saved));
        }
        let runs = card
            .rings
            .iter()
            .zip(0..)
            .all(|(rings, index)| rings.is_none_or(|rings| card.has(index, &rings)));
        if !runs {
            return Err(invalid("the card runs with other rings than the saved ones"));
        }
        (card.filter, card.spread, card.missed) = (state.filter, state.spread, state.missed);
        let options = super::Options { poll: poll.unwrap_or(state.options.poll), ..state.options };
        let vectors = Vectors::enable(&*device, card.registers().bar(), variant, &options)?;
        if vectors.count() != state.vectors {
            return Err(invalid(&format!(
                "it has {} interrupts, and had {}",
                vectors.count(),
                state.vectors
            )));
        }
        let lifetime = ControllerState::resume(device.name(), state.generation)?;
        let nic = Self::with(device, variant, state.mac, (lifetime, card, vectors, options))?;
        nic.shared
            .tallies
            .iter()
            .zip(&state.tallies)
            .for_each(|(tally, counters)| tally.set(counters));
        Ok(nic)
    }
}

impl Card {
    /// Whether the card has these rings for queue `index`, or was reset and has none.
    fn has(&self, index: u32, rings: &Rings) -> bool {
        let ((receive, receive_bytes), (transmit, transmit_bytes)) = self.ring_registers(index);
        let same = |(base, bytes), (saved, size): (u64, u32)| {
            bytes == 0 || (base, bytes) == (saved, size.saturating_mul(DESCRIPTOR_BYTES))
        };
        same((receive, receive_bytes), rings.receive)
            && same((transmit, transmit_bytes), rings.transmit)
    }
}
