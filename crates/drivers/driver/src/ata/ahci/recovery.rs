//! Commands that fail or take too long, and ports that must be made ready again. [AHCI 6.2]
//!
//! # Who is to blame
//! A command that is not queued is alone in the device's hands, so a failure is its own. Of queued
//! commands the drive names the one that failed in a log page; the others have done nothing wrong
//! and are repeated. If the page cannot be read, or names nothing that is in flight, each is
//! repeated alone and not queued, which finds the one.

use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError, Operation};
use ring3_device::Error;
use ring3_spec::ahci::port::Interrupts;

use super::super::Level;
use super::super::status::{self, Verdict};
use super::lists::Failure;
use super::port::is_link_change;
use super::port_reset::PortState;
use super::queue::PortQueue;
use super::slots::bits;
use crate::lifetime::{GENERATION_CLOSED, lock};

/// How often a request is handed to the device before it ends with an error.
const ATTEMPTS: u8 = 3;
/// Troubles of the link within the period after which commands are not queued any more.
const TROUBLES: u8 = 3;
const PERIOD: Duration = Duration::from_secs(60);
/// The driver's own commands end within this, or the drive is reset.
pub(super) const OWN: Duration = Duration::from_secs(5);

/// What a queue remembers of its misfortunes.
#[derive(Default)]
pub(super) struct State {
    pub(super) troubles: u8,
    pub(super) since: Option<Instant>,
    /// Why the drive takes no more requests, and how they end.
    end: Option<(IoError, String)>,
    /// There was no drive when it was last looked for.
    pub(super) missing: bool,
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
    /// Looks whether the port and what is in flight are well, and mends what is not.
    ///
    /// [`Error::Gone`] and [`Error::Fatal`] say that there is no drive, and that it will take no
    /// request until the controller is opened again: at each call, for as long as that is so.
    pub(super) fn watch(&mut self, now: Instant) -> Result<(), Error> {
        let waiting = self.issued != 0 || self.rung > 0;
        if waiting && self.is_down() {
            return self.recreate();
        }
        self.usable()?;
        if self.issued != 0 && self.timeouts.poll_due(now) {
            self.poll_completions()?;
        }
        if !self.timeouts.advance(now) {
            return Ok(());
        }
        let late =
            |&slot: &u8| self.slots.get(slot).is_some_and(|slot| self.timeouts.expired(slot.epoch));
        let overdue = bits(self.issued).filter(late).fold(0, |mask, slot| mask | 1 << slot);
        if overdue == 0 {
            return Ok(());
        }
        let held = self.withdraw();
        self.note_trouble("a command took too long");
        self.recover(held, overdue, IoError::Timeout, "a command took too long")
    }

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

    /// Gets the port to work again and decides what becomes of the commands in flight.
    #[cold]
    pub(super) fn recover_from(&mut self, trouble: PortFault) -> Result<(), Error> {
        match trouble {
            PortFault::Command(failure) => self.failed(failure),
            PortFault::Transfer(events) => {
                self.note_trouble("a transfer failed");
                let held = self.withdraw();
                let why = format!("a transfer failed (PxIS {:#010x})", events.0);
                self.recover(held, held, IoError::Transport, &why)
            }
            PortFault::Link => {
                let held = self.withdraw();
                self.recover(held, held, IoError::Transport, "its link was lost")
            }
            PortFault::Reset(why) => {
                let held = self.withdraw();
                self.recover(held, held, IoError::Transport, &why.to_string())
            }
            PortFault::Gone => {
                let held = self.withdraw();
                self.recover(held, 0, IoError::Gone, "it answers all ones")
            }
        }
    }

    /// Ends or repeats what is in flight after the drive has failed a command. [AHCI 6.2.2]
    #[cold]
    pub(super) fn failed(&mut self, failure: Failure) -> Result<(), Error> {
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
            return self.recover(
                0,
                0,
                IoError::Transport,
                "it reports the failure of a command that it was not given",
            );
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
        drop(order);
        match culprit {
            Ok((slot, failure)) if held.unbounded_shr(slot.into()) & 1 == 1 => {
                self.repeat(held & !(1 << slot), 0, IoError::Transport);
                self.blame(slot, failure);
                self.advance();
                Ok(())
            }
            culprit => self.search(held, failure, culprit.err()),
        }
    }

    /// Finds the command that failed by repeating each of `held` alone.
    fn search(&mut self, held: u32, failure: Failure, why: Option<Error>) -> Result<(), Error> {
        let why = why.map_or_else(
            || "the log names a command that is not in flight".to_owned(),
            |error| error.to_string(),
        );
        if held.is_power_of_two() {
            let slot = held.trailing_zeros() as u8;
            if self.is_revived(&why)? {
                self.blame(slot, failure);
                self.advance();
            }
            return Ok(());
        }
        for slot in bits(held) {
            if let Some(slot) = self.slots.get_mut(slot) {
                slot.alone = true;
            }
        }
        self.recover(held, held, IoError::Transport, &why)
    }

    /// Ends the command in `slot`, which failed by itself, or repeats it if it may succeed the next
    /// time.
    fn blame(&mut self, slot: u8, failure: Failure) {
        let Failure { status, error } = failure;
        let operation =
            self.slots.get(slot).map_or(Operation::Flush, |slot| slot.request.operation);
        match status::verdict(operation, status, error) {
            Verdict::Damaged => self.note_trouble("data were damaged on the cable (CRC)"),
            Verdict::Faulted => {
                let (name, index) = (self.shared.device.name(), self.port.index());
                tracing::warn!("{name} port {index}: the drive could not do a command (DF)");
            }
            Verdict::Final(error) => return self.ended.push_back((slot, error)),
        }
        self.repeat(1 << slot, 1 << slot, IoError::Transport);
    }

    /// Counts a trouble of the link; after several, commands are not queued any more.
    fn note_trouble(&mut self, what: &str) {
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

    /// Takes everything back from the device, in thought: the slots that it had. What of them is
    /// done is decided already.
    fn withdraw(&mut self) -> u32 {
        self.forget_claims();
        std::mem::take(&mut self.issued)
    }

    /// Makes the port ready again and repeats `held`, or ends everything. `blamed` are counted a
    /// failure, and end with `error` after the last attempt.
    fn recover(&mut self, held: u32, blamed: u32, error: IoError, why: &str) -> Result<(), Error> {
        if self.is_revived(why)? {
            self.repeat(held, blamed, error);
            self.advance();
        }
        Ok(())
    }

    /// Makes the port ready again, or ends everything, and says so.
    fn is_revived(&mut self, why: &str) -> Result<bool, Error> {
        if self.recovery.end.is_none() {
            match self.reset_port(why) {
                Ok(PortState::Ready) => {
                    self.recovery.missing = false;
                    return Ok(true);
                }
                Ok(PortState::Absent) => self.recovery.missing = true,
                Ok(PortState::Unusable(error, why)) => self.retire(error, why.into()),
                Err(_) if self.shared.generation() == GENERATION_CLOSED => {}
                Err(error) => self.retire(IoError::Timeout, error.to_string()),
            }
        }
        let error = match &self.recovery.end {
            _ if self.shared.generation() == GENERATION_CLOSED => self.shared.lifetime.io_error(),
            Some((error, _)) => *error,
            None => IoError::Gone,
        };
        self.end_all(error);
        self.usable().map(|()| false)
    }

    /// The drive is given no more requests.
    fn retire(&mut self, error: IoError, why: String) {
        tracing::error!("{} port {}: {why}", self.shared.device.name(), self.port.index());
        self.port.ready = false;
        self.recovery.end = Some((error, why));
    }

    /// After a reset of the controller, or for a drive that was lost: the same for what is in
    /// flight now.
    pub(super) fn recreate(&mut self) -> Result<(), Error> {
        let held = self.withdraw();
        self.recover(held, 0, IoError::Transport, "it takes no commands")
    }

    /// Puts `slots` in line, first of all, to be handed to the device once more. Those `blamed` for
    /// it have a number of attempts.
    fn repeat(&mut self, slots: u32, blamed: u32, error: IoError) {
        let numbers: Vec<u8> = bits(slots).collect();
        for number in numbers.into_iter().rev() {
            let Some(slot) = self.slots.get_mut(number) else { continue };
            slot.failures = slot.failures.saturating_add((blamed >> number & 1) as u8);
            let (exhausted, alone) = (slot.failures >= ATTEMPTS, slot.alone);
            let level = if alone { Level::Dma } else { self.level };
            let written =
                self.slots.get(number).map(|slot| self.write(number, &slot.request, level));
            match written {
                Some(Ok(Some(queued))) if !exhausted => {
                    self.queued = self.queued & !(1 << number) | u32::from(queued) << number;
                    self.line.push_front(number);
                    self.rung += 1;
                }
                Some(Err(refused)) => self.ended.push_back((number, refused)),
                _ => self.ended.push_back((number, error)),
            }
        }
    }

    /// Ends everything that is in flight, in line, or not rung yet.
    fn end_all(&mut self, error: IoError) {
        self.line.clear();
        (self.rung, self.unrung) = (0, 0);
        let known = self.ended.iter().fold(self.done, |mask, &(slot, _)| mask | 1 << slot);
        self.ended.extend(bits(self.slots.occupied() & !known).map(|slot| (slot, error)));
        self.nothing = 0;
    }

    /// The next request that ended badly; after a reset of the controller, once the port is ready
    /// again.
    pub(super) fn reap_after_trouble(&mut self) -> Result<Option<Completion>, Error> {
        if self.ended.is_empty() && self.is_stale_generation() {
            self.recreate()?;
        }
        while let Some((slot, error)) = self.ended.pop_front() {
            if let Some(mut completion) = self.slots.end(slot, Err(error)) {
                if self.shared.generation() == GENERATION_CLOSED
                    && !self.shared.lifetime.is_quiesced()
                {
                    // The device may still write there, so nobody gets it back.
                    std::mem::forget(std::mem::take(&mut completion.data));
                }
                return Ok(Some(completion));
            }
        }
        Ok(None)
    }
}
