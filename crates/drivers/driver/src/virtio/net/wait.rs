//! Waiting for packets, and for a card that does not go on.

use std::time::{Duration, Instant};

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, sooner};
use ring3_device::{Deadline, Error};

use super::half::NONE;
use super::queue::PacketQueue;

/// While something is to be sent, the card's status is looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// A card that has sent nothing for this long is asked whether it is still there.
const SENDING: Duration = Duration::from_secs(5);

/// Whether the card still sends.
#[derive(Default)]
pub(super) struct Health {
    /// How many packets were sent when the card was last looked at with something to send, and when
    /// it became so, or was last asked.
    stalled: Option<(u64, Instant)>,
    /// It was said that its wire takes nothing.
    warned: bool,
    /// When the card's status is looked at next.
    look: Option<Instant>,
    /// Why the card was given up.
    lost: Option<String>,
    /// The queue was left to who resumes it.
    detached: bool,
}

impl Health {
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Fails if the card was given up.
    pub(super) fn alive(&self) -> Result<(), Error> {
        match &self.lost {
            None => Ok(()),
            Some(why) if why.is_empty() => Err(Error::Gone),
            Some(why) => Err(Error::Fatal(why.clone())),
        }
    }

    /// The queue is of no use any more, and the card goes on without it.
    pub(super) fn detach(&mut self) {
        (self.detached, self.lost) =
            (true, Some("the queue was left to another process: resume it there".into()));
    }

    pub(super) fn is_detached(&self) -> bool {
        self.detached
    }

    /// Gives the card up because of `error`.
    fn lose(&mut self, name: &str, error: &Error) {
        tracing::error!("{name}: {error}");
        self.lost = Some(match error {
            Error::Gone => String::new(),
            other => other.to_string(),
        });
    }

    /// Whether the card has again sent nothing for long; `returned` packets came back so far, and
    /// `waiting` says whether there are more.
    fn stalls(&mut self, returned: u64, waiting: bool, now: Instant) -> bool {
        let same = self.stalled.filter(|&(before, _)| waiting && before == returned);
        let since = same.map_or(now, |(_, since)| since);
        let stalls = now.saturating_duration_since(since) > SENDING;
        self.stalled = waiting.then_some((returned, if stalls { now } else { since }));
        self.warned &= same.is_some();
        stalls
    }
}

impl PacketQueue {
    fn is_pending(&self) -> bool {
        self.health.is_lost()
            || self.receive.pending()
            || self.wake_on_tx && (self.sent != NONE || self.transmit.pending())
    }

    pub(super) fn want_interrupts(&mut self, wanted: bool) {
        self.receive.want_interrupts(wanted);
        self.transmit.want_interrupts(wanted && self.wake_on_tx);
    }

    /// A card that sends nothing and answers is kept, however long that lasts: its wire takes
    /// nothing, as under flow control, and what is to be sent waits. One that does not answer
    /// commands either is given up.
    fn probe(&mut self) -> Result<(), Error> {
        let name = self.shared.transport.device.name();
        self.shared.answers().inspect_err(|error| self.health.lose(name, error))?;
        if !std::mem::replace(&mut self.health.warned, true) {
            tracing::warn!(
                "{name}: its wire has taken no packet for {SENDING:?}: what is to be sent waits \
                until it does"
            );
        }
        Ok(())
    }

    fn check_health(&mut self, now: Instant) -> Result<(), Error> {
        if self.receive.is_broken() || self.transmit.is_broken() {
            let damaged = Error::Fatal("it has damaged a virtqueue; open the card again".into());
            self.health.lose(self.shared.transport.device.name(), &damaged);
            return Err(damaged);
        }
        if self.health.look.is_some_and(|look| look > now) {
            return Ok(());
        }
        let transport = &self.shared.transport;
        transport.check().inspect_err(|error| self.health.lose(transport.device.name(), error))?;
        self.health.look = Some(now + LOOK);
        Ok(())
    }
}

impl Source for PacketQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.is_pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.want_interrupts(true);
        let pending = self.is_pending();
        self.waiter.arm(|| pending)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.want_interrupts(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.health.alive()?;
        self.check_health(now)?;
        let due = self.waiter.tick(now)?;
        let waiting = self.transmit.outstanding() > 0;
        if self.health.stalls(self.returned, waiting, now) {
            self.probe()?;
        }
        Ok(sooner(due, waiting.then(|| now + LOOK)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let (lost, wake_on_tx, sent) = (self.health.is_lost(), self.wake_on_tx, self.sent != NONE);
        let (receive, transmit) = (&self.receive, &self.transmit);
        let ready = || lost || receive.pending() || wake_on_tx && (sent || transmit.pending());
        let Some(polled) = self.waiter.poll(deadline, ready)? else { return Ok(true) };
        self.want_interrupts(true);
        let (receive, transmit) = (&self.receive, &self.transmit);
        let ready = || lost || receive.pending() || wake_on_tx && (sent || transmit.pending());
        let found = self.waiter.sleep(polled, deadline, ready);
        self.want_interrupts(false);
        found
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
