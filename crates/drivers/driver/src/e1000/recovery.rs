//! A card that makes no progress, is gone, or was reset by somebody else.

use std::mem;
use std::time::{Duration, Instant};

use ring3_class::net::Packet;
use ring3_device::Error;

use super::card::Card;
use super::open::adaptive;
use super::queue::CardQueue;
use crate::lifetime::{GENERATION_DETACHED, StopFailed, lock};

/// A card with packets to send is looked at this often.
const BUSY: Duration = Duration::from_millis(50);
/// The same of one without.
const IDLE: Duration = Duration::from_secs(2);
/// A receiver may be this far ahead of its write-backs for so long.
const AHEAD: Duration = Duration::from_secs(1);

/// What was seen at the last look.
#[derive(Default)]
pub(super) struct HangDetector {
    next: Option<Instant>,
    /// The oldest descriptor to be sent, and since when it is that.
    sending: Option<(u32, Instant)>,
    /// The oldest descriptor of reception, which the card has left behind without a word, and since
    /// when.
    receiving: Option<(u32, Instant)>,
}

impl CardQueue {
    /// Checks whether the card hangs, if a check is due, and recovers it if so; returns the time of
    /// the next check.
    pub(super) fn check_hang(&mut self, now: Instant) -> Result<Instant, Error> {
        self.check()?;
        if self.is_stale() {
            self.reinitialise_after_reset()?;
        }
        let busy = self.tx.ring.outstanding() > 0;
        let within = now + if busy { BUSY } else { IDLE };
        if let Some(next) = self.watch.next.filter(|next| now < *next) {
            let next = next.min(within);
            self.watch.next = Some(next);
            return Ok(next);
        }
        self.watch.next = Some(within);
        let status = lock(&self.shared.card).running();
        match status {
            Ok(status) if status.link() == 0 => {
                self.watch.sending = None;
                if busy {
                    self.recover("there is no link, and there are packets to send")?;
                }
                self.tx.linkless = true;
            }
            Ok(_) => self.check_progress(now)?,
            Err(Error::Gone) => {
                self.shared.lifetime.fail(&Error::Gone, "it answers all ones", true);
                return Err(Error::Gone);
            }
            Err(why) => self.recover(&why.to_string())?,
        }
        Ok(within)
    }

    fn check_progress(&mut self, now: Instant) -> Result<(), Error> {
        let sending =
            (self.tx.ring.outstanding() > 0 && !self.tx.ready()).then(|| self.tx.ring.oldest());
        if stands(&mut self.watch.sending, sending, now, self.shared.options.hang) {
            return self.recover("its transmitter makes no progress");
        }
        let oldest = self.rx.ring.oldest();
        let head = lock(&self.shared.card).receive_head(self.index);
        let ahead = self.rx.ring.outstanding() > 0 && head != oldest && !self.rx.ring.ready();
        if stands(&mut self.watch.receiving, ahead.then_some(oldest), now, AHEAD) {
            return self.recover("its receiver has left a descriptor behind");
        }
        Ok(())
    }

    /// Resets the card and starts it again, unless another queue has done so. Buffers for reception
    /// go to it anew, what was to be sent comes back.
    #[cold]
    fn recover(&mut self, why: &str) -> Result<(), Error> {
        let shared = self.shared.clone();
        let mut card = lock(&shared.card);
        shared.lifetime.check()?;
        if !self.is_stale() {
            shared.lifetime.begin_reset(self.generation, why);
            card.count_missed();
            if let Err(StopFailed { error, quiesced }) = card.stop(&*shared.device) {
                shared.lifetime.fail(&error, "it cannot be stopped", quiesced);
                return Err(error);
            }
            shared.device.set_bus_master(true)?;
            card.start(&shared.vectors, &shared.options);
        }
        self.restart(&mut card)
    }

    /// Reinitialises the queue after another queue has reset the card.
    #[cold]
    pub(super) fn reinitialise_after_reset(&mut self) -> Result<(), Error> {
        let shared = self.shared.clone();
        let mut card = lock(&shared.card);
        shared.lifetime.check()?;
        self.restart(&mut card)
    }

    /// Starts the queue on a card that was reset.
    fn restart(&mut self, card: &mut Card) -> Result<(), Error> {
        let shared = &self.shared;
        self.generation = shared.lifetime.generation();
        if let Err(error) = card.start_queue(self.index, &shared.vectors) {
            let quiesced = matches!(error, Error::Gone);
            shared.lifetime.fail(&error, "its queue cannot be started", quiesced);
            return Err(error);
        }
        self.watch = HangDetector { next: self.watch.next, ..HangDetector::default() };
        // The reset has ended the throttle.
        self.adaptive = adaptive(shared, self.index);
        self.take_sends_back();
        for buffer in &mut self.take_buffers_back() {
            self.rx.push(buffer);
        }
        self.publish_received();
        self.publish_counters();
        Ok(())
    }

    /// Fails if the card was given up, or the queue was detached.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.generation {
            GENERATION_DETACHED => {
                Err(Error::Fatal("the queue was detached: resume it, and use that one".into()))
            }
            _ => self.shared.lifetime.check(),
        }
    }

    /// What was to be sent: some of it may have been.
    fn take_sends_back(&mut self) {
        let tx = &mut self.tx;
        while tx.ring.outstanding() > 0 {
            let was_sent = tx.ready();
            let Some(slot) = tx.ring.withdraw() else { break };
            let packet = mem::take(&mut tx.slots[slot as usize]);
            if packet.buffer.is_none() {
                tx.empty = tx.empty.saturating_sub(1);
                continue;
            }
            let whole = u64::from(!packet.meta.more());
            if was_sent {
                self.counters.tx_packets += whole;
                self.counters.tx_bytes += u64::from(packet.len);
            } else {
                self.counters.tx_lost += whole;
            }
            tx.back.push_back(packet);
        }
        tx.ring.reset();
        (tx.empty, tx.pieces, tx.context) = (0, 0, None);
    }

    fn take_buffers_back(&mut self) -> Vec<Packet> {
        let rx = &mut self.rx;
        let mut buffers = mem::take(&mut rx.parts);
        while let Some(slot) = rx.ring.withdraw() {
            buffers.push(mem::take(&mut rx.slots[slot as usize]));
        }
        rx.ring.reset();
        rx.skipping = false;
        buffers
    }
}

/// Whether `what` has been the same for `limit`, by what is remembered of it.
fn stands(
    remembered: &mut Option<(u32, Instant)>,
    what: Option<u32>,
    now: Instant,
    limit: Duration,
) -> bool {
    let since = match (*remembered, what) {
        (Some((before, since)), Some(what)) if before == what => since,
        _ => now,
    };
    *remembered = what.map(|what| (what, since));
    what.is_some() && now.saturating_duration_since(since) >= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_or_is_nothing_does_not_stand() {
        let (start, limit) = (Instant::now(), Duration::from_secs(1));
        let mut remembered = None;
        let mut at = |what, seconds| {
            stands(&mut remembered, what, start + Duration::from_millis(seconds), limit)
        };
        assert!(!at(Some(1), 0) && !at(Some(1), 900) && at(Some(1), 1000));
        assert!(!at(Some(2), 2000) && !at(None, 3500) && !at(Some(2), 4000));
    }
}
