//! Which drives a channel has.
//!
//! # Trust
//! An absent drive can look like a present one: a bus without drives floats, and a master answers
//! for a slave that is not there with its own registers [ATA-6 9.16.1]. A drive is one that shows a
//! signature after a reset and then says who it is.

use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::ata::{Identify, SECTOR, Signature, TaskFile, device, opcode};
use ring3_spec::ide::DRIVES;

use super::super::cache::Cache;
use super::super::identity::{Identity, packet_drive};
use super::super::options::Level;
use super::super::quirks::BROKEN_LOG_DIRECTORY;
use super::channel::Channel;
use super::mode::Mode;
use super::settings::{Answer, Settings};
use super::state::DriveState;
use crate::disk::write_cache::{PowerCount, WriteCache};

/// How long software reset is held: at least 5 microseconds. [ATA-6 9.2]
const HOLD: Duration = Duration::from_micros(10);
/// How long the drives may take before their status means anything. [ATA-6 9.2]
const REST: Duration = Duration::from_millis(2);

impl Channel {
    /// Resets the drives. Their status means something when this returns. [ATA-6 9.2, 9.3]
    pub(super) fn reset_drives(&mut self) {
        self.idle = false;
        // The reset selects the master by itself; but QEMU (10.0) never ends the reset of a slave
        // that is selected and not there, as a firmware leaves it. A busy drive takes no selection,
        // and is there.
        let status = self.ports.alternate();
        if status.busy() == 0 && status.data_request() == 0 {
            self.ports.forget();
            self.ports.select(0);
        }
        self.ports.set_reset(true);
        std::thread::sleep(HOLD);
        self.ports.set_reset(false);
        std::thread::sleep(REST);
    }

    /// Waits until `drive` has come back from a reset; false if nobody is there.
    pub(super) fn await_drive(&mut self, drive: u8, deadline: Deadline) -> Result<bool, Error> {
        // The reset has selected the master.
        self.ports.select(drive);
        self.ports.await_selection();
        if self.ports.alternate().is_floating() {
            // A drive that is busy can say the same; one that is there does not go on saying it.
            let lands = poll_until(Deadline::after(REST), "a bus that floats", || {
                Ok((!self.ports.alternate().is_floating()).then_some(()))
            });
            if lands.is_err() {
                return Ok(false);
            }
        }
        let ready = || Some(self.ports.alternate()).filter(|status| status.busy() == 0);
        poll_until(deadline, "a drive to be ready after a reset (BSY)", || Ok(ready()))
            .map(|status| !status.is_floating())
    }

    /// Finds the drives and sets them up. What is there and cannot be used is returned, by drive,
    /// with the reason.
    pub(super) fn probe(&mut self) -> Vec<(u8, Error)> {
        self.ports.stop();
        self.ports.set_interrupts(false);
        let (signatures, mut refused) = self.signatures();
        let mut found = [const { None }; DRIVES as usize];
        for (drive, signature) in (0..DRIVES).zip(signatures) {
            match signature.map_or(Ok(None), |signature| self.identify(drive, signature)) {
                Ok(data) => found[usize::from(drive)] = data,
                Err(error) => {
                    refused.push((drive, error));
                    self.start_over();
                }
            }
        }
        for (drive, data) in (0..DRIVES).zip(found) {
            if let Some(data) = data
                && let Err(error) = self.adopt(drive, &data)
            {
                refused.push((drive, error));
                self.start_over();
                // What the master was told before is lost.
                self.reset_drives_with_retry(false);
            }
        }
        self.size_block();
        refused
    }

    /// Resets the drives; the signature of each that comes back, and why one does not.
    fn signatures(&mut self) -> ([Option<Signature>; DRIVES as usize], Vec<(u8, Error)>) {
        self.reset_drives();
        let deadline = Deadline::after(self.function.options.ready_timeout);
        let (mut signatures, mut refused) = ([None; DRIVES as usize], Vec::new());
        for drive in 0..DRIVES {
            match self.await_drive(drive, deadline) {
                Ok(true) => signatures[usize::from(drive)] = Some(self.ports.signature()),
                Ok(false) => {}
                Err(error) => refused.push((drive, error)),
            }
        }
        if signatures[0].is_some() && !refused.is_empty() {
            // A slave that is busy for ever does not let go of the bus once it was selected.
            self.start_over();
        }
        (signatures, refused)
    }

    /// Resets the drives because one of them did not end its command; the other is well when it
    /// answers the next one.
    fn start_over(&mut self) {
        self.reset_drives();
        if let Err(error) =
            self.await_drive(0, Deadline::after(self.function.options.ready_timeout))
        {
            tracing::debug!("{}: {error}", self.name_of(0));
        }
    }

    /// What `drive` says about itself; `None` if there is no drive.
    fn identify(&mut self, drive: u8, signature: Signature) -> Result<Option<Identify>, Error> {
        let command = match signature {
            Signature::Atapi => opcode::IDENTIFY_PACKET,
            Signature::Ata => opcode::IDENTIFY,
            // Not a signature of anything; a drive that has not finished its own reset can still be
            // told who it is.
            _ if self.ports.alternate().ready() == 1 => opcode::IDENTIFY,
            _ => return Ok(None),
        };
        let task = TaskFile { command, device: device::LBA, ..TaskFile::default() };
        let mut bytes = [0; SECTOR];
        let answer = self.execute(drive, &task, Some(&mut bytes), self.function.options.timeout)?;
        match answer {
            Answer::Done => Ok(Identify::from_bytes(&bytes)),
            Answer::Absent => Ok(None),
            // A packet drive refuses to be a disk, and shows its signature then. [ACS-3 7.12.3]
            Answer::Refused(..)
                if command == opcode::IDENTIFY && self.ports.signature() == Signature::Atapi =>
            {
                self.identify(drive, Signature::Atapi)
            }
            // It answers, so it is there; only old ones do not say more.
            Answer::Refused(..) if command == opcode::IDENTIFY_PACKET => Err(packet_drive()),
            Answer::Refused(..) if signature != Signature::Ata => Ok(None),
            Answer::Refused(status, error) => Err(Error::Unsupported(format!(
                "it does not say who it is: status {:#04x}, error {:#04x}",
                status.0, error.0
            ))),
        }
    }

    /// How often `drive`, which describes itself by `data`, was powered on. One that does not
    /// answer is reset, and is one that does not say.
    fn power_count(&mut self, drive: u8, data: &Identify) -> Result<PowerCount, Error> {
        let error = match self.first_power_count(drive, data) {
            Ok(power) => return Ok(power),
            Err(error) => error,
        };
        tracing::warn!(
            "{}: {error}; resetting the drive, which is not asked again",
            self.name_of(drive)
        );
        // What the master was told before is lost, and is told again.
        self.reset_drives_with_retry(false);
        let deadline = Deadline::after(self.function.options.ready_timeout);
        if !self.await_drive(drive, deadline)? {
            return Err(Error::Gone);
        }
        Ok(PowerCount::UNKNOWN)
    }

    /// Makes the drive that `data` describes one of the channel's.
    fn adopt(&mut self, drive: u8, data: &Identify) -> Result<(), Error> {
        let identity = Identity::behind(&*self.function.device, data, &self.function.options)?;
        if drive == 1 && self.states[0].as_ref().is_some_and(|master| master.is(&identity)) {
            tracing::debug!("{}: the master answers for it", self.name_of(drive));
            return Ok(());
        }
        let function = &self.function;
        let dma = self.table.is_some() && function.has_dma() && function.options.level > Level::Pio;
        let mode = if dma { Mode::best(&identity, function.chip.timings()) } else { Mode::Pio };
        let power = if identity.cache && !identity.quirks.has(BROKEN_LOG_DIRECTORY) {
            self.power_count(drive, data)?
        } else {
            PowerCount::UNKNOWN
        };
        let function = &self.function;
        let mut state = DriveState::new(data, identity, mode);
        if state.identity.cache {
            let kept = function.device.dma().arena().persistent_words();
            let whose = (
                state.identity.serial.as_str(),
                u32::from(self.number) * u32::from(DRIVES) + u32::from(drive),
            );
            // It was reset by its registers, which leaves it in an Ultra DMA mode that it had.
            // [ATA-6 Ultra DMA feature set]
            let has_run_on = Settings::of(data).has_ultra_dma();
            state.cache = Cache::new(WriteCache::open(kept, whose, power, has_run_on), power);
        }
        self.states[usize::from(drive & 1)] = Some(Box::new(state));
        if let Err(error) = self.apply_settings(drive) {
            self.states[usize::from(drive & 1)] = None;
            return Err(error);
        }
        if let Some(state) = self.state(drive) {
            let (name, mode) = (state.identity.model.clone(), state.mode);
            tracing::info!("{}: {name}, {mode}", self.name_of(drive));
        }
        Ok(())
    }
}
