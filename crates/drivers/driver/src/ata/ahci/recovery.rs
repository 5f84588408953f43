//! Commands that fail or take too long, and ports that must be made ready again. [AHCI 6.2]
//!
//! # Who is to blame
//! A command that is not queued is alone in the device's hands, so a failure is its own. Of queued
//! commands the drive names the one that failed in a log page; the others have done nothing wrong
//! and are repeated. If the page cannot be read, or names nothing that is in flight, each is
//! repeated alone and not queued, which finds the one.

use std::time::{Duration, Instant};

use ring3_class::block::{IoError, Operation};
use ring3_device::Error;
use ring3_spec::ahci::port::Interrupts;

use super::super::Level;
use super::super::status::{self, Verdict};
use super::lists::Failure;
use super::port::is_link_change;
use super::port_reset::PortState;
use super::queue::{PortQueue, bits};
use crate::disk::{ATTEMPTS, NotRenewed, Outcome, Slots};
use crate::lifetime::{GENERATION_CLOSED, lock};

/// Troubles of the link within the period after which commands are not queued any more.
const TROUBLES: u8 = 3;
const PERIOD: Duration = Duration::from_secs(60);
/// Troubles within the period after which the link is slowed down: before the last attempt of a
/// request that meets nothing else.
const TROUBLES_OF_LINK: u8 = 2;
/// Gbit/s of each generation of the link.
const GIGABITS: [&str; 3] = ["1.5", "3", "6"];
/// The driver's own commands end within this, or the drive is reset.
pub(super) const OWN: Duration = Duration::from_secs(5);

/// What a queue remembers of its failures.
#[derive(Default)]
pub(super) struct State {
    pub(super) troubles: u8,
    pub(super) since: Option<Instant>,
    /// Why the drive takes no more requests, and how they end.
    end: Option<(IoError, String)>,
    /// There was no drive when it was last looked for.
    pub(super) missing: bool,
    /// Why the port must be made ready again.
    pub(super) must_reset: Option<String>,
    /// Who is to blame for the reset that is to come, and for the one that is just over.
    pub(super) next: Blame,
    pub(super) last: Blame,
}

/// Whose fault a reset of the port is.
pub(super) struct Blame {
    /// Slots for which it counts as an attempt, and how they end after the last one.
    pub(super) slots: u32,
    pub(super) error: IoError,
    /// The slot that has failed for good, and how it ends once the port was reset.
    pub(super) failed: Option<(u8, IoError)>,
}

impl Default for Blame {
    fn default() -> Self {
        Self { slots: 0, error: IoError::Transport, failed: None }
    }
}

impl Blame {
    /// `slots` are to blame, too, and end with `error`.
    pub(super) fn add(&mut self, slots: u32, error: IoError) {
        self.slots |= slots;
        self.error = error;
    }
}

/// What is wrong with a port.
#[derive(Debug)]
pub(super) enum PortFault {
    /// The drive failed a command.
    Command(Failure),
    /// The link or the memory failed the controller.
    Transfer(Interrupts),
    /// The drive was unplugged, or has started anew by itself.
    Link,
    /// The controller was reset, and not by the driver: why it is taken for that.
    Reset(Error),
    /// All ones.
    Gone,
}

impl PortQueue {
    /// Fails if there is no drive, or none that will take a request.
    pub(super) fn usable(&self) -> Result<(), Error> {
        self.shared.lifetime.check()?;
        match &self.recovery.end {
            Some((_, why)) => {
                let (name, index) = (self.shared.device.name(), self.port.index());
                Err(Error::Fatal(format!("{name} port {index}: {why}; open the controller again")))
            }
            None if self.recovery.missing => Err(Error::Gone),
            None => Ok(()),
        }
    }

    /// What is wrong with the port, if anything is.
    pub(super) fn trouble(&self) -> Option<PortFault> {
        match self.shared.hba.running(self.port.index()) {
            Ok(()) => {}
            Err(Error::Gone) => return Some(PortFault::Gone),
            Err(why) => return Some(PortFault::Reset(why)),
        }
        let Ok(events) = self.port.events() else { return Some(PortFault::Gone) };
        if is_link_change(events) {
            return Some(PortFault::Link);
        }
        if events.0 & (Interrupts::FATAL.0 | Interrupts(0).with_overflow(1).0) == 0 {
            return None;
        }
        let Ok(task_file) = self.port.task_file() else { return Some(PortFault::Gone) };
        if events.task_file_error() == 1 && task_file.status().failed() {
            return Some(PortFault::Command(Failure {
                status: task_file.status(),
                error: task_file.error(),
            }));
        }
        Some(PortFault::Transfer(events))
    }

    /// Decides what becomes of the commands that the device has.
    #[cold]
    pub(super) fn resolve(&mut self, fault: PortFault, slots: &Slots) {
        match fault {
            PortFault::Command(failure) => self.failed(failure, slots),
            PortFault::Transfer(events) => {
                self.note_trouble("a transfer failed");
                if events.interface_fatal() == 1 {
                    self.slow_down();
                }
                self.withdraw_all_for_reset(format!("a transfer failed (PxIS {:#010x})", events.0));
            }
            PortFault::Link => self.withdraw_all_for_reset("its link was lost".into()),
            PortFault::Reset(why) => self.withdraw_all_for_reset(why.to_string()),
            PortFault::Gone => {
                self.withdraw();
                self.require_reset("it answers all ones".into());
            }
        }
    }

    /// Withdraws all requests in flight with a transport error each, and requires a reset of the
    /// port, because of `why`.
    fn withdraw_all_for_reset(&mut self, why: String) {
        let held = self.withdraw();
        self.recovery.next.add(held, IoError::Transport);
        self.require_reset(why);
    }

    /// Nothing is given to the device before the port was made ready again, because of `why`.
    pub(super) fn require_reset(&mut self, why: String) {
        self.port.ready = false;
        self.recovery.must_reset.get_or_insert(why);
    }

    /// Ends or repeats what is in flight after the drive has failed a command. [AHCI 6.2.2]
    #[cold]
    fn failed(&mut self, failure: Failure, slots: &Slots) {
        let queued = !self.plain;
        if queued {
            // What has ended before counts. (Of others there is one, and some controllers clear its
            // bit although it failed.)
            let ended = self.issued & !self.port.outstanding(true);
            if self.shared.generation() == self.port.generation && self.port.is_running() {
                self.note_done(ended);
                self.issued &= !ended;
            }
        }
        let held = self.withdraw();
        if held == 0 {
            // A failure of nothing in flight.
            return self
                .require_reset("it reports the failure of a command that it was not given".into());
        }
        let shared = self.shared.clone();
        let order = lock(&shared.order);
        let is_current_generation = shared.generation() == self.port.generation
            && shared.hba.running(self.port.index()).is_ok();
        let restarted = if is_current_generation {
            self.port.restart()
        } else {
            Err(Error::Fatal("the controller was reset".into()))
        };
        let culprit = match restarted {
            Ok(()) if !queued => Ok((held.trailing_zeros() as u8, failure)),
            Ok(()) => self.port.queued_error(OWN),
            Err(error) => Err(error),
        };
        // A drive whose power may have been gone is asked behind a reset of the port.
        let culprit = if self.port.cache.is_disturbed() {
            Err(Error::Fatal("its link was lost".into()))
        } else {
            culprit
        };
        drop(order);
        match culprit {
            Ok((slot, failure)) if held.unbounded_shr(slot.into()) & 1 == 1 => {
                let others = bits(held & !(1 << slot)).map(|slot| (slot, Outcome::TakenBack));
                self.outcomes.extend(others);
                let attempts = slots.get(slot.into()).map_or(0, |held| held.attempts);
                let outcome = match self.judge(slot, failure, slots) {
                    Some(error) => Outcome::Failed(error),
                    None if attempts >= ATTEMPTS => Outcome::Failed(IoError::Transport),
                    None => Outcome::Retry(Duration::ZERO),
                };
                self.outcomes.push_back((slot, outcome));
                self.advance();
            }
            culprit => self.search(held, (failure, culprit.err()), slots),
        }
    }

    /// Finds the command that failed by repeating each of `held` alone.
    fn search(&mut self, held: u32, (failure, why): (Failure, Option<Error>), slots: &Slots) {
        let why = why.map_or_else(
            || "the log names a command that is not in flight".to_owned(),
            |error| error.to_string(),
        );
        self.recovery.next.add(held, IoError::Transport);
        if held.is_power_of_two() {
            let slot = held.trailing_zeros() as u8;
            self.recovery.next.failed = self.judge(slot, failure, slots).map(|error| (slot, error));
        } else {
            self.alone |= held;
        }
        self.require_reset(why);
    }

    /// How the command in `slot` ends, which failed by itself; `None` if it may succeed the next
    /// time.
    fn judge(
        &mut self,
        slot: u8,
        Failure { status, error }: Failure,
        slots: &Slots,
    ) -> Option<IoError> {
        let operation =
            slots.get(slot.into()).map_or(Operation::Flush, |slot| slot.request.operation);
        match status::verdict(operation, status, error) {
            Verdict::Damaged => self.note_trouble("data were damaged on the cable (CRC)"),
            Verdict::Faulted => {
                let (name, index) = (self.shared.device.name(), self.port.index());
                tracing::warn!("{name} port {index}: the drive could not do a command (DF)");
            }
            Verdict::Final(error) => return Some(error),
        }
        None
    }

    /// Counts a trouble of the link; after several, commands are not queued any more.
    pub(super) fn note_trouble(&mut self, what: &str) {
        let now = Instant::now();
        let state = &mut self.recovery;
        if state.since.is_none_or(|since| now.saturating_duration_since(since) > PERIOD) {
            (state.since, state.troubles) = (Some(now), 0);
        }
        state.troubles = state.troubles.saturating_add(1);
        let (name, index) = (self.shared.device.name(), self.port.index());
        tracing::warn!("{name} port {index}: {what}");
        if state.troubles >= TROUBLES
            && self.level == Level::Queued
            && let Some(lower) = self.level.lower()
        {
            self.level = lower;
            tracing::warn!(
                "{name} port {index}: {TROUBLES} such troubles: commands are not queued any more"
            );
        }
    }

    /// Has the link come back slower from the reset that follows, if it has failed more than once
    /// within the period: a bad cable, or a port that is not up to it. [Linux, ata_eh_speed_down]
    fn slow_down(&mut self) {
        let speed = self.port.link_speed().unwrap_or(0);
        if self.recovery.troubles < TROUBLES_OF_LINK || speed <= 1 {
            return;
        }
        self.port.limit_speed(speed - 1);
        let (name, index) = (self.shared.device.name(), self.port.index());
        tracing::warn!(
            "{name} port {index}: its link fails at {} Gbit/s, and has half of it from now on: \
             look at the cable",
            GIGABITS[speed.min(3) as usize - 1]
        );
    }

    /// Takes everything back from the device, in thought: the slots that it had. What of them is
    /// done is decided already.
    fn withdraw(&mut self) -> u32 {
        self.forget_claims();
        std::mem::take(&mut self.issued)
    }

    /// Makes the port ready again; the generation in which it is. What was with the device, or in
    /// line for it, is with nobody.
    pub(super) fn revive(&mut self) -> Result<u32, NotRenewed> {
        let why = self.recovery.must_reset.take();
        self.withdraw();
        self.line.clear();
        (self.rung, self.unrung, self.started) = (0, 0, 0);
        self.recovery.last = std::mem::take(&mut self.recovery.next);
        if self.recovery.end.is_none() {
            match self.reset_port(why.as_deref().unwrap_or("it takes no commands")) {
                Ok(PortState::Ready) => {
                    self.recovery.missing = false;
                    return Ok(self.port.generation);
                }
                Ok(PortState::Absent) => self.recovery.missing = true,
                Ok(PortState::Unusable(error, why)) => self.retire(error, why.into()),
                Err(_) if self.shared.generation() == GENERATION_CLOSED => {}
                Err(error) => self.retire(IoError::Timeout, error.to_string()),
            }
        }
        self.alone = 0;
        let not_ready = || Error::Fatal("the port was not made ready".into());
        let unusable = self.usable().err().unwrap_or_else(not_ready);
        Err(match &self.recovery.end {
            _ if self.shared.generation() == GENERATION_CLOSED => NotRenewed::Failed(unusable),
            Some((error, _)) => NotRenewed::NoDisk(*error, unusable),
            None => NotRenewed::NoDisk(IoError::Gone, unusable),
        })
    }

    /// The drive is given no more requests.
    fn retire(&mut self, error: IoError, why: String) {
        tracing::error!("{} port {}: {why}", self.shared.device.name(), self.port.index());
        self.port.ready = false;
        self.recovery.end = Some((error, why));
    }
}
