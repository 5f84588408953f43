//! Software resets, and drives that come and go. [ATA-6 9.2]

use std::time::{Duration, Instant};

use ring3_spec::ata::{ErrorBits, Signature, Status};

use super::channel::{BUSY, Engine, Health, Phase, READY, Twice, Unit};
use super::controller::IdeModel;
use crate::Bus;
use crate::fault::{Action, Event};

/// SRST stays set at least this long. [ATA-6 9.2]
const RESET_TIME: Duration = Duration::from_micros(5);

impl Unit {
    /// Shows the drive's signature and the result of its self-test. [ATA-6 9.12]
    pub(super) fn send_signature(&mut self) {
        self.greeting = None;
        let Some(signature) = self.is() else { return };
        if self.health != Health::Well {
            self.status = BUSY;
            return;
        }
        self.status = if signature == Signature::Ata { READY } else { Status(0) };
        self.error = ErrorBits(1);
        let [count, low, mid, high] = signature.into_raw().to_le_bytes();
        self.count = Twice(count, 0);
        self.lba = [Twice(low, 0), Twice(mid, 0), Twice(high, 0)];
    }

    /// The drive is busy, and says what it is when the time has come.
    pub(super) fn send_signature_after(&mut self, ready: Duration) {
        self.status = BUSY;
        self.greeting = Some(Instant::now() + ready);
    }

    /// A reset begins: the drive forgets what it was at.
    fn begin_reset(&mut self) {
        self.missing = false;
        self.status = BUSY;
        (self.interrupt, self.again) = (false, false);
        self.greeting = None;
        if self.health == Health::Hung {
            self.health = Health::Well;
        }
        if let Some(drive) = self.drive() {
            drive.reset();
        }
    }
}

impl IdeModel {
    /// SRST is set.
    pub(super) fn begin_reset(&mut self, c: usize) {
        let channel = &mut self.channels[c];
        channel.reset_since = Some(Instant::now());
        let waits =
            channel.job.take().is_some_and(|job| job.phase == Phase::Dma && job.fault.is_none());
        channel.units.iter_mut().for_each(Unit::begin_reset);
        channel.device = 0;
        let never_started =
            waits && channel.engine == Engine::Stopped && channel.master_status.error() == 0;
        self.held.retain(|held| *held != c);
        if never_started {
            self.record_violation(
                c,
                "a DMA command was given, and the bus master was not started [BMIDE 3.1]",
            );
        }
    }

    /// SRST is cleared.
    pub(super) fn end_reset(&mut self, bus: &Bus, c: usize) {
        let since = self.channels[c].reset_since.take();
        if since.is_some_and(|since| since.elapsed() < RESET_TIME) {
            self.record_violation(c, "SRST was set for less than 5 microseconds [ATA-6 9.2]");
        }
        let fault = self.faults.check(&Event::Enable);
        for unit in &mut self.channels[c].units {
            match fault {
                Some(Action::NoDrive) => unit.missing = true,
                Some(Action::Busy) => unit.health = Health::Dead,
                Some(Action::StuckReady) => unit.health = Health::Hung,
                _ => {}
            }
            unit.send_signature_after(self.shape.ready);
        }
        self.send_signature(bus, c);
    }

    /// Shows the signatures of drives that were reset, once their delay is over.
    pub(super) fn send_signature(&mut self, bus: &Bus, c: usize) {
        let now = Instant::now();
        for unit in &mut self.channels[c].units {
            match unit.greeting {
                Some(due) if due <= now => unit.send_signature(),
                Some(due) => bus.wake_at(due),
                None => {}
            }
        }
    }

    pub(super) fn unplug(&mut self, bus: &Bus, c: usize, unit: usize) {
        let channel = &mut self.channels[c];
        if channel.job.as_ref().is_some_and(|job| job.unit == unit) {
            channel.job = None;
            self.held.retain(|held| *held != c);
        }
        let unit = &mut self.channels[c].units[unit];
        if let Some(drive) = unit.drive() {
            // Its power goes with its place.
            drive.lose_power();
        }
        (unit.plugged, unit.interrupt, unit.again) = (false, false, false);
        self.update(bus, c);
    }

    pub(super) fn plug(&mut self, c: usize, unit: usize) {
        let unit = &mut self.channels[c].units[unit];
        unit.plugged = true;
        if let Some(drive) = unit.drive() {
            drive.restart();
        }
        unit.send_signature();
    }
}
