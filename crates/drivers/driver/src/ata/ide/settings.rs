//! What a drive is told before its first command and after each reset: transfer modes, and the
//! block of READ MULTIPLE.

use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::ata::{ErrorBits, Identify, SECTOR, Status, TaskFile, device, opcode};
use ring3_spec::ide::DRIVES;

use super::super::command::{Command, STANDBY};
use super::super::statistics;
use super::channel::Channel;
use super::mode::{Mode, pio_code};
use super::transfer::is_absent;
use crate::disk::write_cache::PowerCount;

/// A drive answers a command that sets something within this. The standard gives no limit; they
/// take microseconds.
const SETTING: Duration = Duration::from_secs(5);

/// How a drive answered a command that is waited for.
pub(super) enum Answer {
    /// It did it.
    Done,
    /// It did not.
    Refused(Status, ErrorBits),
    /// Nobody is there: no status bit is set, or all are.
    Absent,
}

/// What a drive was set to, as it says itself: the block of READ MULTIPLE and the transfer modes
/// that are selected. A reset of the drives may take it away, a loss of their power does. [ACS-3
/// 7.12.6: words 59, 63 and 88]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    multiple: u16,
    multiword_dma: u16,
    ultra_dma: u16,
}

impl Settings {
    pub(super) fn of(data: &Identify) -> Self {
        let selected = |word: u16| word >> 8;
        Self {
            multiple: data.multiple() & 0x1ff,
            multiword_dma: selected(data.multiword_dma()),
            ultra_dma: selected(data.ultra_dma()),
        }
    }

    /// Whether an Ultra DMA mode is selected.
    pub(super) fn has_ultra_dma(self) -> bool {
        self.ultra_dma != 0
    }
}

impl Channel {
    /// Gives `drive` a command and waits for its end by looking, `limit` at most; with `data`,
    /// takes one block of it.
    pub(super) fn execute(
        &mut self,
        drive: u8,
        task: &TaskFile,
        data: Option<&mut [u8; SECTOR]>,
        limit: Duration,
    ) -> Result<Answer, Error> {
        self.idle = false;
        let deadline = Deadline::after(limit);
        self.ports.select(drive);
        self.ports.await_selection();
        // A packet drive has no status bit set until it has had a command.
        let idle = |status: Status| status.busy() == 0 && status.data_request() == 0;
        poll_until(deadline, "a drive to be idle", || {
            Ok(idle(self.ports.alternate()).then_some(()))
        })?;
        self.ports.start(drive, task);
        self.ports.await_selection();
        let ended = || Some(self.ports.alternate()).filter(|status| status.busy() == 0);
        poll_until(deadline, "the end of a command", || Ok(ended()))?;
        let status = self.ports.status();
        self.acknowledge();
        if is_absent(status) {
            return Ok(Answer::Absent);
        }
        if status.failed() {
            let error = self.ports.error();
            self.ports.forget();
            return Ok(Answer::Refused(status, error));
        }
        match (data, status.data_request()) {
            (Some(data), 1) => {
                self.ports.read_data(data);
                self.ports.await_selection();
                poll_until(deadline, "a drive to be idle after its data", || {
                    Ok(idle(self.ports.alternate()).then_some(()))
                })?;
            }
            (None, 0) => {}
            (Some(_), _) => {
                return Err(Error::Protocol(format!(
                    "no data came of command {:#04x}",
                    task.command
                )));
            }
            (None, _) => {
                return Err(Error::Protocol(format!("command {:#04x} wants data", task.command)));
            }
        }
        Ok(Answer::Done)
    }

    /// Sets `drive`, and the chip for it, to its mode; to a slower one where it refuses.
    pub(super) fn apply_settings(&mut self, drive: u8) -> Result<(), Error> {
        let timings = self.function.chip.timings();
        let Some(state) = self.state(drive) else { return Ok(()) };
        let (pio, multiple) = (state.pio, state.identity.multiple);
        if timings.pio {
            // A drive without a mode to choose refuses, and has its only one.
            self.set_feature(drive, pio_code(pio))?;
        }
        self.apply_mode(drive)?;
        if multiple > 0 {
            let task = TaskFile {
                command: opcode::SET_MULTIPLE,
                count: multiple.into(),
                device: device::LBA,
                ..TaskFile::default()
            };
            let refused =
                !matches!(self.execute(drive, &task, None, self.promptness())?, Answer::Done);
            if refused && let Some(state) = self.state(drive) {
                state.identity.multiple = 0;
            }
        }
        let max_transfer = self.function.options.max_transfer;
        if let Some(state) = self.state(drive) {
            state.set_encoder(max_transfer);
        }
        self.remember_settings(drive)
    }

    /// How long a drive may take for a command that sets or tells something.
    fn promptness(&self) -> Duration {
        SETTING.min(self.function.options.timeout)
    }

    /// Notes what `drive` says that it is set to.
    pub(super) fn remember_settings(&mut self, drive: u8) -> Result<(), Error> {
        let settings = self.read_settings(drive)?;
        if let Some(state) = self.state(drive) {
            state.settings = Some(settings);
        }
        Ok(())
    }

    /// What `drive` says that it is set to.
    pub(super) fn read_settings(&mut self, drive: u8) -> Result<Settings, Error> {
        let task =
            TaskFile { command: opcode::IDENTIFY, device: device::LBA, ..TaskFile::default() };
        let mut bytes = [0; SECTOR];
        match self.execute(drive, &task, Some(&mut bytes), self.promptness())? {
            Answer::Done => {}
            Answer::Refused(..) => {
                return Err(Error::Protocol("it does not say who it is any more".into()));
            }
            Answer::Absent => return Err(Error::Gone),
        }
        let data = Identify::from_bytes(&bytes)
            .ok_or_else(|| Error::Protocol("its identify data are too short".into()))?;
        Ok(Settings::of(&data))
    }

    /// How often `drive`, which describes itself by `data`, was powered on. After an error it may
    /// still be at it.
    pub(super) fn first_power_count(
        &mut self,
        drive: u8,
        data: &Identify,
    ) -> Result<PowerCount, Error> {
        statistics::first_power_count(data, |command| self.read_log(drive, &command))
    }

    /// Asks `drive` how often it was powered on, if it counts that, and notes what it has lost.
    /// Where it does not count, its power was there if it is `undisturbed`. After an error it is
    /// not asked again.
    pub(super) fn look_for_loss(&mut self, drive: u8, undisturbed: bool) -> Result<(), Error> {
        let asked = if self.state(drive).is_some_and(|state| state.cache.counts_power()) {
            statistics::power_count(|command| self.read_log(drive, &command))
        } else {
            Ok(PowerCount::UNKNOWN)
        };
        let now = *asked.as_ref().unwrap_or(&PowerCount::UNKNOWN);
        if self.state(drive).is_some_and(|state| state.cache.compare(now, undisturbed)) {
            tracing::error!(
                "{}: its power was gone: writes since the last flush are lost, and the next flush \
                fails; check what was written last",
                self.name_of(drive)
            );
        }
        asked.map(drop)
    }

    /// The page of a log that `command` reads; `None` if `drive` refuses.
    fn read_log(&mut self, drive: u8, command: &Command) -> Result<Option<[u8; SECTOR]>, Error> {
        let mut page = [0; SECTOR];
        match self.execute(drive, &command.task, Some(&mut page), self.promptness())? {
            Answer::Done => Ok(Some(page)),
            Answer::Refused(..) => Ok(None),
            Answer::Absent => Err(Error::Gone),
        }
    }

    /// Makes the cache of each drive that was used durable and parks it, whose power may go then.
    /// Nothing is in flight. A drive that does not answer is not there for the next one either; it
    /// is left alone.
    pub(super) fn park(&mut self) {
        for drive in 0..DRIVES {
            let Some(state) = self.state(drive).filter(|state| state.used && state.fault.is_none())
            else {
                continue;
            };
            let flush = state.encoder.flush();
            if self.running.is_some()
                || self.trouble.is_some()
                || self.is_reset_under_us()
                || self.function.is_gone()
            {
                return;
            }
            if let Err(error) = self.park_drive(drive, flush) {
                tracing::error!("{}: not flushed and parked: {error}", self.name_of(drive));
            }
        }
    }

    fn park_drive(&mut self, drive: u8, flush: Option<Command>) -> Result<(), Error> {
        let (timeout, flush_timeout) =
            (self.function.options.timeout, self.function.options.flush_timeout);
        if let Some(flush) = flush {
            match self.execute(drive, &flush.task, None, flush_timeout)? {
                Answer::Done
                    if self.state(drive).is_some_and(|state| !state.cache.is_clean())
                        && self.confirm_flush(drive)?.is_err() =>
                {
                    let text = "it may have lost its power, with writes that were not flushed: \
                                check what was written last";
                    return Err(Error::Fatal(text.into()));
                }
                Answer::Done => {}
                Answer::Absent => return Err(Error::Gone),
                Answer::Refused(status, error) => {
                    return Err(Error::Protocol(format!(
                        "FLUSH CACHE failed with status {:#04x}, error {:#04x}",
                        status.0, error.0
                    )));
                }
            }
        }
        // One that refuses has nothing to park.
        self.execute(drive, &STANDBY.task, None, timeout).map(drop)
    }

    /// Sets `drive` and the chip to the drive's mode, or to the fastest slower one that it takes.
    pub(super) fn apply_mode(&mut self, drive: u8) -> Result<(), Error> {
        loop {
            let Some(state) = self.state(drive) else { return Ok(()) };
            let (mode, pio, multiword) = (state.mode, state.pio, state.identity.multiword_dma);
            let accepted = mode.code().map_or(Ok(true), |code| self.set_feature(drive, code))?;
            if accepted {
                return self.program(drive, mode, pio);
            }
            let slower = mode.slower(multiword).unwrap_or(Mode::Pio);
            tracing::info!("{}: it refuses {mode}; trying {slower}", self.name_of(drive));
            if let Some(state) = self.state(drive) {
                state.set_mode(slower);
            }
        }
    }

    fn program(&mut self, drive: u8, mode: Mode, pio: u8) -> Result<(), Error> {
        let function = &self.function;
        let _alone = function.changing();
        let programmed = function.chip.program(&*function.device, (self.number, drive), mode, pio);
        programmed.or_else(|error| match error {
            Error::Gone => Err(error),
            // Firmware has set the chip up for the drive's best mode, as far as anyone knows.
            _ => {
                tracing::warn!(
                    "{}: the timing registers cannot be written, firmware's timing stays: {error}",
                    self.name_of(drive)
                );
                Ok(())
            }
        })
    }

    /// Whether `drive` accepts a transfer mode. [ACS-3 7.45.3]
    fn set_feature(&mut self, drive: u8, code: u16) -> Result<bool, Error> {
        let task = TaskFile {
            command: opcode::SET_FEATURES,
            features: opcode::FEATURE_TRANSFER_MODE.into(),
            count: code,
            device: device::LBA,
            ..TaskFile::default()
        };
        match self.execute(drive, &task, None, self.promptness())? {
            Answer::Done => Ok(true),
            Answer::Refused(..) => Ok(false),
            Answer::Absent => Err(Error::Gone),
        }
    }
}
