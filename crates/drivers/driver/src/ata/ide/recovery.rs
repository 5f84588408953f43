//! Commands that take too long or fail, and drives that must be reset.
//!
//! # The proof
//! A request's memory returns to its owner only when the bus master cannot write to it: its
//! transfer has ended, it says that it is not active after it was stopped, the function was reset,
//! or bus mastering is off. Without such a proof it never does.
//!
//! # Who does what
//! [`Channel::watch`] does all that waits for a drive, holding the channel: the other drive's
//! thread waits, too, because the reset is its drive's as well. A reset ends within
//! [`Options::ready_timeout`](super::super::Options::ready_timeout) for each drive.

use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError, Request};
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::ata::Signature;
use ring3_spec::ide::DRIVES;

use super::super::command::Command;
use super::channel::{ATTEMPTS, Channel, ChannelFault, Running};
use super::prd::Table;
use super::transfer::{is_absent, is_over};

/// A bus master that was stopped is inactive within this: it finishes the access to memory that it
/// is at.
const STOPPED: Duration = Duration::from_millis(10);
/// How long a queue that is closed waits for its command's end before it resets the drives.
const LAST_COMMAND: Duration = Duration::from_secs(2);

impl Channel {
    /// Looks whether the drives and the command are well, and mends what is not; when to look next.
    /// An error says that `drive` takes no more commands.
    pub(super) fn watch(&mut self, drive: u8, now: Instant) -> Result<Option<Instant>, Error> {
        self.advance();
        let due = self.timeouts.advance(now);
        if self.trouble.is_none() && self.running.is_some() && self.timeouts.poll_due(now) {
            self.examine();
        }
        if due
            && self.trouble.is_none()
            && self.running.as_ref().is_some_and(|running| self.timeouts.expired(running.epoch))
        {
            self.trouble = Some(ChannelFault::Reset("a command takes too long", IoError::Timeout));
        }
        if self.trouble.is_some() {
            self.recover();
        }
        match self.state(drive).and_then(|state| state.fault) {
            None => Ok(self.timeouts.next(now, true)),
            Some(IoError::Gone) => Err(Error::Gone),
            Some(error) => Err(Error::Fatal(format!(
                "{}: {error}; open the controller again",
                self.name_of(drive)
            ))),
        }
    }

    /// Looks for what no interrupt tells: a function or a drive that is gone, a command that has
    /// ended without an interrupt, a bus master that goes on when its drive has ended. What may be
    /// on its way to something else must be seen twice.
    fn examine(&mut self) {
        if self.function.is_gone() {
            return self.die(IoError::Gone);
        }
        let status = self.ports.alternate();
        let is_dma =
            self.running.as_ref().and_then(|running| running.command).is_some_and(Command::is_dma);
        if !(is_absent(status) || is_dma && is_over(status)) {
            return;
        }
        let Some(running) = &mut self.running else { return };
        if !std::mem::replace(&mut running.suspicious, true) {
            return;
        }
        if is_absent(status) {
            // Nobody else than the drive answers here.
            if status.0 == 0 || self.ports.signature() == Signature::Unknown(u32::MAX) {
                self.trouble =
                    Some(ChannelFault::Reset("the drive does not answer", IoError::Transport));
            }
            return;
        }
        let bus = self.ports.bus_status();
        if !self.polled && bus.active() == 0 && bus.error() == 0 {
            self.count_lost_interrupt();
        }
        let status = self.ports.status();
        if let Some(end) = self.end_of_dma(bus, status) {
            self.finish(end);
        }
    }

    fn count_lost_interrupt(&mut self) {
        if self.stats.lost_interrupts == 0 {
            tracing::warn!(
                "{}: a command of channel {} ended without its interrupt; such ends are found by \
                looking",
                self.function.device.name(),
                self.number
            );
        }
        self.stats.lost_interrupts += 1;
    }

    /// Does what takes waiting.
    fn recover(&mut self) {
        match self.trouble.take() {
            Some(ChannelFault::Slower) if self.slow_down() => {
                self.repeat();
                if self.trouble.is_some() {
                    self.recover();
                }
            }
            Some(ChannelFault::Reset(why, error)) => self.reset(why, error),
            Some(ChannelFault::Slower) => {
                self.reset("a drive does not take a slower transfer mode", IoError::Transport)
            }
            None => {}
        }
    }

    /// Sets the running command's drive to the next slower mode; false if it does not answer.
    fn slow_down(&mut self) -> bool {
        let Some(drive) = self.running.as_ref().map(|running| running.drive) else { return true };
        let Some(state) = self.state(drive) else { return true };
        let Some(slower) = state.mode.slower(state.identity.multiword_dma) else { return true };
        let before = state.mode;
        state.set_mode(slower);
        self.stats.slowdowns += 1;
        tracing::warn!(
            "{}: data are damaged on the cable in {before}: it is set to {slower}",
            self.name_of(drive)
        );
        if let Some(running) = &mut self.running {
            running.attempts = 0;
        }
        self.apply_mode(drive).and_then(|()| self.remember_settings(drive)).is_ok()
    }

    /// Stops the transfer and the drives, sets them up anew, and gives the running command to its
    /// drive once more.
    fn reset(&mut self, why: &str, error: IoError) {
        self.stats.resets += 1;
        tracing::warn!(
            "{}: resetting the drives of channel {}: {why}",
            self.function.device.name(),
            self.number
        );
        if !self.quiesce() {
            return self.surrender();
        }
        if self.function.is_gone() {
            return self.die(IoError::Gone);
        }
        // A reset of the function may reset the drives by their wire, which takes their transfer
        // modes as a loss of power does.
        let hard = self.generation != self.function.lifetime.generation();
        self.generation = self.function.lifetime.generation();
        if let Err(error) = self.function.chip.enable(&*self.function.device, self.number) {
            tracing::warn!(
                "{}: switching channel {} on: {error}",
                self.function.device.name(),
                self.number
            );
        }
        if let Some(address) = self.table.as_ref().and_then(Table::address) {
            self.ports.set_witness(address);
        }
        self.reset_drives_with_retry(hard);
        if !self.polled {
            self.use_interrupts();
        }
        self.resume(error);
    }

    /// Stops the bus master; false if a transfer may still be under way.
    fn quiesce(&mut self) -> bool {
        if !self.ports.has_bus_master() {
            return true;
        }
        self.ports.stop();
        let inactive = || (self.ports.bus_status().active() == 0).then_some(());
        let stopped =
            poll_until(Deadline::after(STOPPED), "a bus master to stop", || Ok(inactive())).is_ok();
        // A function that is gone answers all ones, and reaches nothing.
        let stopped = stopped || self.function.is_gone() || self.function.force_stop();
        self.ports.clear(self.ports.bus_status());
        stopped
    }

    /// Resets the drives and sets them up. One that does not come back twice is dead; the other
    /// must be reset once more then, because a busy drive that is selected does not let go of the
    /// bus. After a `hard` reset it is no news that drives have lost their settings; only their own
    /// count says what became of their power.
    pub(super) fn reset_drives_with_retry(&mut self, hard: bool) {
        let mut failures = [0; DRIVES as usize];
        loop {
            self.reset_drives();
            let deadline = Deadline::after(self.function.options.ready_timeout);
            let mut all_well = true;
            for (drive, failures) in (0..DRIVES).zip(&mut failures) {
                let Err(error) = self.revive(drive, deadline, hard) else { continue };
                (all_well, *failures) = (false, *failures + 1);
                tracing::error!(
                    "{}: it does not come back from a reset: {error}",
                    self.name_of(drive)
                );
                let end =
                    if matches!(error, Error::Gone) { IoError::Gone } else { IoError::Timeout };
                if let Some(state) = self.state(drive)
                    && (end == IoError::Gone || *failures == 2)
                {
                    state.fault = Some(end);
                    state.end_waiting(end);
                    self.news[usize::from(drive)] = true;
                }
                if self.ports.alternate().busy() == 1 {
                    // The other one cannot be selected before the next reset.
                    break;
                }
            }
            if all_well || self.states.iter().flatten().all(|state| state.fault.is_some()) {
                return;
            }
        }
    }

    /// Waits for `drive` after a reset and sets it up, unless it is dead.
    fn revive(&mut self, drive: u8, deadline: Deadline, hard: bool) -> Result<(), Error> {
        if self.state(drive).is_none_or(|state| state.fault.is_some()) {
            return Ok(());
        }
        if !self.await_drive(drive, deadline)? || is_absent(self.ports.alternate()) {
            return Err(Error::Gone);
        }
        let undisturbed = hard || !self.has_lost_mode(drive)?;
        self.look_for_loss(drive, undisturbed)?;
        self.apply_settings(drive)
    }

    /// Whether `drive`, with writes in its cache, has lost its Ultra DMA mode, which it keeps in a
    /// reset of the drives and loses with its power. Of other modes the standard does not say that
    /// they stay, so that nothing can be told of them. [ATA-6 Ultra DMA feature set]
    fn has_lost_mode(&mut self, drive: u8) -> Result<bool, Error> {
        let Some(state) = self.state(drive) else { return Ok(false) };
        match state.settings {
            Some(before) if !state.cache.is_clean() && before.has_ultra_dma() => {
                Ok(!self.read_settings(drive)?.has_ultra_dma())
            }
            _ => Ok(false),
        }
    }

    /// Goes on after a reset.
    fn resume(&mut self, error: IoError) {
        if let Some(Running { drive, attempts, .. }) = self.running {
            match self.state(drive).and_then(|state| state.fault) {
                Some(dead) => self.end(Err(dead)),
                None if attempts >= ATTEMPTS => self.end(Err(error)),
                None => return self.repeat(),
            }
        }
        self.start_next();
    }

    /// Ends everything: nothing answers here any more, and nothing is moved.
    fn die(&mut self, error: IoError) {
        self.news = [true; DRIVES as usize];
        tracing::error!("{}: channel {}: {error}", self.function.device.name(), self.number);
        self.trouble = None;
        self.end(Err(error));
        for state in self.states.iter_mut().flatten() {
            state.fault = Some(error);
            state.end_waiting(error);
        }
    }

    /// Gives up: the device may still write to the running request's memory, which nobody gets
    /// back.
    fn surrender(&mut self) {
        tracing::error!(
            "{}: a transfer of channel {} cannot be stopped: its memory is given up",
            self.function.device.name(),
            self.number
        );
        if let Some(mut table) = self.table.take() {
            table.abandon();
        }
        if let Some(Running { drive, request: Request { token, data, .. }, .. }) =
            self.running.take()
        {
            std::mem::forget(data);
            if let Some(state) = self.state(drive) {
                state.done.push_back(Completion {
                    token,
                    result: Err(IoError::Transport),
                    data: Default::default(),
                });
            }
        }
        self.die(IoError::Transport);
    }

    /// Ends what `drive` has in flight, because nobody will reap it. When this returns nothing of
    /// it is in the device's hands.
    pub(super) fn close(&mut self, drive: u8) {
        if let Some(state) = self.state(drive) {
            state.waiting.clear();
        }
        let deadline = Deadline::after(LAST_COMMAND.min(self.function.options.timeout));
        let is_running =
            |channel: &Self| channel.running.as_ref().is_some_and(|running| running.drive == drive);
        let _ = poll_until(deadline, "the last command of a queue", || {
            self.advance();
            Ok((!is_running(self) || self.trouble.is_some()).then_some(()))
        });
        if is_running(self) {
            self.no_more_attempts();
            self.trouble = Some(ChannelFault::Reset(
                "a queue was closed with a command in flight",
                IoError::Transport,
            ));
            self.recover();
        }
        if let Some(state) = self.state(drive) {
            state.done.clear();
            state.open = false;
        }
    }
}
