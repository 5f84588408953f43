//! Cards and queues that are left to another process while they go, and taken up there.
//!
//! The card stays as it is (DRIVER_OK) and does not notice: what it receives and sends meanwhile
//! lies in the virtqueues, whose positions are in their memory or are saved, and is found by the
//! first look. Beside the selectors of features and queues no register is written. A card that was
//! reset before its queue is resumed is found by the queue's first tick, as any that is reset
//! behind its driver's back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::net::{Limits, Queue};
use ring3_device::dma::Claims;
use ring3_device::wait::Waiter;
use ring3_device::{Device, Error};
use ring3_spec::virtio::net;

use super::super::saved::SavedQueueAddresses;
use super::super::transport::Transport;
use super::super::vectors::vectors;
use super::card::{Card, MAX_DEPTH, Negotiated, Options, State, VirtioNetShared};
use super::control::Control;
use super::describe::{
    card_pairs, describe, has_control, max_pieces, max_queues, receive, transmit,
};
use super::half::PacketRing;
use super::pairs::{MAX_PAIRS, Pairs};
use super::queue::PacketQueue;
use super::saved::{CARD, QUEUE, SavedCard, SavedPacketRing, SavedQueue, SavedRunning};
use super::wait::Health;
use crate::lifetime::lock;

impl PacketQueue {
    /// See [`Queue::detach`].
    pub(super) fn save_and_detach(&mut self) -> Result<Saved, Error> {
        self.health.alive()?;
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        let saved = Saved::new(QUEUE.0, QUEUE.1, &self.state()?)?;
        // From here on nothing fails.
        state.pairs.detach(self.index);
        self.receive.release_to_successor();
        self.transmit.release_to_successor();
        self.health.detach();
        Ok(saved)
    }

    fn state(&self) -> Result<SavedQueue, Error> {
        let mut receive = self.receive.save()?;
        // Of a buffer to receive into, the length means nothing.
        receive.held.iter_mut().for_each(|slot| slot.packet.len = 0);
        Ok(SavedQueue {
            mac: self.shared.mac,
            settings: self.settings,
            receive,
            transmit: self.transmit.save()?,
            rest: self.rest,
            sent: self.sent,
            wake_on_tx: self.wake_on_tx,
            counters: self.counters,
            returned: self.returned,
        })
    }

    /// The queue of pair `index` that was detached as `saved`, and which the card has at `places`.
    /// Until what was claimed is committed, nothing has changed.
    fn claim(
        shared: &VirtioNetShared,
        index: u16,
        places: [SavedQueueAddresses; 2],
        saved: SavedQueue,
        claims: &mut Claims,
    ) -> Result<Claimed, Error> {
        let name = shared.transport.device.name();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the card anew"));
        if saved.mac != shared.mac {
            return Err(invalid("the saved queue is of another card"));
        }
        let mut claim = |half: &SavedPacketRing, queue| {
            let doorbell = shared.transport.doorbell(queue)?.ring_in(shared.transport.doorbells()?);
            PacketRing::claim(half, claims, doorbell, shared.features)
        };
        let (receive, transmit) =
            (claim(&saved.receive, receive(index))?, claim(&saved.transmit, transmit(index))?);
        if [receive.places(), transmit.places()] != places {
            return Err(invalid("the saved queue has other virtqueues than the card"));
        }
        let limits = Limits::new(&shared.info, &saved.settings, transmit.size());
        let fits = receive.buffers().all(|packet| limits.check_buffer(packet).is_ok());
        // A buffer to receive into is one by itself.
        if !receive.is_of_single_pieces() || !transmit.has_chains(saved.sent) {
            return Err(invalid(
                "the saved queue has packets whose pieces do not follow each other",
            ));
        }
        let (rx, tx) = shared.info.max_depth;
        if !fits || saved.rest > receive.size() || receive.size() > rx || transmit.size() > tx {
            return Err(invalid("the saved queue has packets that cannot be, or smaller buffers"));
        }
        shared.info.check_settings(1, &saved.settings)?;
        Ok(Claimed { saved, limits, receive, transmit })
    }

    /// The queue of pair `index` that was claimed.
    fn resume(shared: &Arc<VirtioNetShared>, index: u16, claimed: Claimed) -> Self {
        let Claimed { saved, limits, receive, transmit } = claimed;
        let mut queue = Self {
            limits,
            waiter: Waiter::new(shared.queue_irq(index), shared.options.poll),
            settings: saved.settings,
            shared: shared.clone(),
            index,
            receive,
            transmit,
            rest: saved.rest,
            sent: saved.sent,
            wake_on_tx: saved.wake_on_tx,
            counters: saved.counters,
            returned: saved.returned,
            health: Health::default(),
        };
        queue.live().set(&queue.counters);
        queue.want_interrupts(false);
        queue
    }
}

/// A queue that can be resumed.
struct Claimed {
    saved: SavedQueue,
    limits: Limits,
    receive: PacketRing,
    transmit: PacketRing,
}

impl Card {
    /// Leaves the card, as it goes, to [`resume`](Self::resume). Its queues were all detached or
    /// all dropped before.
    pub fn detach(&self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        shared.check()?;
        let mut state = lock(&shared.state);
        let name = shared.transport.device.name();
        if state.pairs.any_open() {
            return Err(Error::Busy(format!(
                "{name}: its queues are open: detach or drop them, then detach the card"
            )));
        }
        if state.pairs.any_ended() {
            return Err(Error::Unsupported(format!(
                "{name}: a queue was dropped and others were not: open the card anew"
            )));
        }
        if state.lost {
            return Err(Error::Fatal(format!("{name}: it could not be stopped; open it again")));
        }
        let mut going = state.going.clone();
        if let (Some(going), Some(control)) = (&mut going, &state.control) {
            going.control = Some(control.save()?);
        }
        let saved = SavedCard {
            mac: shared.mac,
            features: shared.features,
            options: shared.options,
            filter: state.filter.clone(),
            vectors: shared.vectors.as_ref().map_or(0, |vectors| vectors.len() as u16),
            max_depth: shared.info.max_depth,
            counters: state.counters,
            going,
        };
        let saved = Saved::new(CARD.0, CARD.1, &saved)?;
        if let Some(mut control) = state.control.take() {
            control.release_to_successor();
        }
        shared.left.store(true, Ordering::Release);
        Ok(saved)
    }

    /// Goes on with the card that was detached as `saved`, and which has gone since. It polls as
    /// long before it sleeps as `poll` says, or as before.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be of this card.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        let saved: SavedCard = saved.read(CARD.0, CARD.1)?;
        let transport = Transport::find(device, net::CONFIG_LEN, saved.options.layout)?;
        let name = transport.device.name().to_owned();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the card anew"));
        if saved.features & net::MAC == 0 || !transport.offers(saved.features) {
            return Err(invalid("the saved state has features that the card does not have"));
        }
        let goes = !transport.is_reset();
        if goes && transport.negotiated_features() != saved.features {
            return Err(invalid("the card has agreed to other features than the saved ones"));
        }
        let (mut info, card_pairs) =
            (describe(&transport, saved.features)?, card_pairs(&transport, saved.features)?);
        // Some cards say the address that was set last, until they are reset.
        if goes && saved.features & net::CTRL_MAC_ADDR != 0 && info.mac == saved.filter.address {
            info.mac = saved.mac;
        }
        let is_depth = |depth: u16| depth.is_power_of_two() && (2..=MAX_DEPTH).contains(&depth);
        let (rx, tx) = saved.max_depth;
        if info.mac != saved.mac || !is_depth(rx) || !is_depth(tx) {
            return Err(invalid("the saved state is of another card"));
        }
        // What a queue's register says is how many it has now, and not how many it can have.
        (info.max_depth, info.max_pieces) = (saved.max_depth, max_pieces(tx));
        let has_pair = |(index, [rx, tx]): (u16, [SavedQueueAddresses; 2])| {
            transport.has_queue(receive(index), &rx) && transport.has_queue(transmit(index), &tx)
        };
        let has = |going: &SavedRunning| (0..).zip(going.pairs()).all(has_pair);
        let controlled = has_control(saved.features);
        let open_pairs = saved.going.as_ref().map_or(0, |going| 1 + going.more.len());
        if saved
            .going
            .as_ref()
            .is_some_and(|going| goes && !has(going) || going.control.is_some() != controlled)
        {
            return Err(invalid("the card goes with other virtqueues than the saved ones"));
        }
        let vectors = vectors(
            &*transport.device,
            saved.options.interrupts,
            2,
            1 + card_pairs.min(MAX_PAIRS),
        )?;
        let count = vectors.as_ref().map_or(0, Vec::len);
        if count != usize::from(saved.vectors) {
            return Err(invalid(&format!("it has {count} interrupts, and had {}", saved.vectors)));
        }
        info.max_queues = max_queues(card_pairs, vectors.as_deref());
        if open_pairs > usize::from(info.max_queues) {
            return Err(invalid("the card goes with more pairs of queues than it has"));
        }
        let mut claims = Claims::new(transport.device.dma().arena());
        let control = saved.going.as_ref().and_then(|going| going.control.as_ref());
        let resumed = |control| {
            Control::resume(
                control,
                &mut claims,
                transport.doorbell(2 * card_pairs)?,
                saved.features,
            )
        };
        let control = control.map(resumed).transpose()?;
        if control
            .as_ref()
            .is_some_and(|control| goes && !transport.has_queue(2 * card_pairs, &control.places()))
        {
            return Err(invalid("the card goes with another control queue than the saved one"));
        }
        claims.commit();
        let options = Options { poll: poll.unwrap_or(saved.options.poll), ..saved.options };
        let (pairs, agreed) =
            (Pairs::left(open_pairs), Negotiated { features: saved.features, card_pairs });
        let SavedCard { filter, counters, going, .. } = saved;
        let state = State { filter, control, pairs, going, counters, lost: false };
        Ok(Self {
            shared: Arc::new(VirtioNetShared::of(transport, options, vectors, info, agreed, state)),
        })
    }

    /// See [`Nic::resume_queues`](ring3_class::net::Nic::resume_queues).
    pub(super) fn resume_all(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.shared.check()?;
        let shared = &self.shared;
        let name = shared.transport.device.name();
        let mut state = lock(&shared.state);
        let going = state.going.as_ref().filter(|_| state.pairs.are_detached(saved.len()));
        let Some(places) = going.map(|going| going.pairs().collect::<Vec<_>>()) else {
            let what = "the saved queues are none that it has detached, or not all of them, or are \
                        resumed already";
            return Err(Error::Invalid(format!("{name}: {what}: open the card anew")));
        };
        let mut claims = Claims::new(shared.transport.device.dma().arena());
        let claim = |((index, places), saved): ((u16, [SavedQueueAddresses; 2]), &Saved)| {
            PacketQueue::claim(shared, index, places, saved.read(QUEUE.0, QUEUE.1)?, &mut claims)
        };
        let claimed = (0..).zip(places).zip(saved).map(claim).collect::<Result<Vec<_>, Error>>()?;
        claims.commit();
        state.pairs.open(claimed.len());
        drop(state);
        let resume = |(index, claimed)| {
            Box::new(PacketQueue::resume(shared, index, claimed)) as Box<dyn Queue>
        };
        Ok((0..).zip(claimed).map(resume).collect())
    }
}
