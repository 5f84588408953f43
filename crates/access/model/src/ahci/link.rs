//! Resets, and drives that come and go. [AHCI 10.1, 10.4, SATA 11.2]

use std::time::{Duration, Instant};

use ring3_spec::ahci::fis::{self, RegisterToHost};
use ring3_spec::ahci::port::{Interrupts, SataControl, SataStatus};
use ring3_spec::ata::{ErrorBits, Status};

use super::controller::AhciModel;
use super::port::{DIAG_EXCHANGED, DIAG_LINK, Health, LINKED, NO_SIGNATURE, NOBODY, Port};
use crate::Bus;
use crate::fault::{Action, Event};

/// PxSCTL.DET.
const RESET: u32 = 1;
const OFF: u32 = 4;
/// The link is held in reset at least this long. [AHCI 10.4.2]
const RESET_TIME: Duration = Duration::from_millis(1);
/// The error register behind a reset: the drive's self-test went well. [ACS-3 9.2]
const DIAGNOSTICS_PASSED: ErrorBits = ErrorBits(1);
const BUSY: Status = Status(0x80);

impl Port {
    /// The drive, if there is one, is on the link and will say what it is.
    pub(super) fn connect(&mut self) {
        self.connect_after(Duration::ZERO);
    }

    pub(super) fn connect_after(&mut self, ready: Duration) {
        self.queued = 0;
        self.soft_reset = false;
        self.signature = NO_SIGNATURE;
        if self.is().is_none() || self.blocked.is_some() {
            self.link = self.blocked.filter(|_| self.is().is_some()).unwrap_or(SataStatus(0));
            self.task_file = NOBODY;
            self.greeting = None;
            return;
        }
        // As fast as both ends can, and as the host allows. [AHCI 3.3.11]
        let fastest = LINKED.speed();
        let speed = match self.link_control.speed() {
            0 => fastest,
            limit => limit.min(fastest),
        };
        self.link = LINKED.with_speed(speed);
        self.links += 1;
        self.errors.0 |= DIAG_EXCHANGED | DIAG_LINK;
        self.restart_drive(ready);
    }

    /// The drive is reset: busy until it says its signature.
    fn restart_drive(&mut self, ready: Duration) {
        if let Some(drive) = self.drive() {
            drive.reset();
        }
        if self.health == Health::Hung {
            self.health = Health::Well;
        }
        self.queued = 0;
        self.set_status(BUSY, ErrorBits(0));
        self.greeting = (self.health == Health::Well).then(|| Instant::now() + ready);
    }

    /// The drive is gone.
    pub(super) fn disconnect(&mut self) {
        self.link = SataStatus(0);
        self.errors.0 |= DIAG_LINK;
        self.task_file = NOBODY;
        self.signature = NO_SIGNATURE;
        self.greeting = None;
        self.queued = 0;
    }
}

impl AhciModel {
    /// GHC.HR. [AHCI 10.4.3]
    pub(super) fn reset_controller(&mut self, bus: &Bus) {
        let fault = self.faults.check(&Event::Enable);
        let handoff = self.handoff;
        let places: Vec<_> = self.ports.iter().map(|port| (port.list, port.received)).collect();
        self.restart(bus);
        self.handoff = handoff;
        for (port, (list, received)) in self.ports.iter_mut().zip(places) {
            (port.list, port.received) = (list, received);
            port.connect_after(self.shape.ready);
            if fault == Some(Action::NoDrive) {
                port.disconnect();
            }
        }
        if fault == Some(Action::StuckReady) {
            self.control = self.control.with_reset(1);
        } else if !self.shape.ready.is_zero() {
            let due = Instant::now() + self.shape.ready;
            self.control = self.control.with_reset(1);
            self.reset_due = Some(due);
            bus.wake_at(due);
        }
    }

    /// PxSCTL is written. [AHCI 3.3.11]
    pub(super) fn control_link(&mut self, bus: &Bus, p: usize, control: SataControl) {
        let port = &mut self.ports[p];
        let before = std::mem::replace(&mut port.link_control, control).detection();
        let mut broken = None;
        if before != control.detection() && port.command.start() != 0 {
            broken = Some("PxSCTL.DET changed while PxCMD.ST is set [AHCI 3.3.11]");
        }
        match (before, control.detection()) {
            (_, RESET | OFF) => {
                self.record.counters.resets += 1;
                port.link = SataStatus(if control.detection() == OFF { OFF } else { 0 });
                port.task_file = NOBODY;
                port.greeting = None;
                port.reset_since.get_or_insert_with(Instant::now);
                self.held.retain(|job| job.port != p);
            }
            (RESET | OFF, 0) => {
                let since = port.reset_since.take();
                if before == RESET && since.is_some_and(|since| since.elapsed() < RESET_TIME) {
                    broken = Some("PxSCTL.DET was 1 for less than a millisecond [AHCI 10.4.2]");
                }
                self.come_up(bus, p);
            }
            _ => {}
        }
        if let Some(broken) = broken {
            self.record_violation(format!("port {p}: {broken}"));
        }
    }

    fn come_up(&mut self, bus: &Bus, p: usize) {
        let fault = self.faults.check(&Event::Enable);
        let ready = self.shape.ready;
        let port = &mut self.ports[p];
        port.connect_after(ready);
        match fault {
            Some(Action::NoDrive) => port.disconnect(),
            Some(Action::Busy) => (port.health, port.greeting) = (Health::Dead, None),
            Some(Action::StuckReady) => (port.health, port.greeting) = (Health::Hung, None),
            _ => {}
        }
        self.send_signature(bus, p);
        self.update(bus);
    }

    /// A frame that changes the drive's control register: a software reset begins, or ends. [AHCI
    /// 10.4.1]
    pub(super) fn soft_reset(&mut self, bus: &Bus, p: usize, on: bool) {
        let ready = self.shape.ready;
        let port = &mut self.ports[p];
        let ends = std::mem::replace(&mut port.soft_reset, on) && !on;
        if !ends {
            return;
        }
        self.held.retain(|job| job.port != p);
        let fault = self.faults.check(&Event::Enable);
        let port = &mut self.ports[p];
        port.restart_drive(ready);
        match fault {
            Some(Action::Busy) => (port.health, port.greeting) = (Health::Dead, None),
            Some(Action::StuckReady) => (port.health, port.greeting) = (Health::Hung, None),
            _ => {}
        }
        self.send_signature(bus, p);
    }

    /// Sends the signature of a drive that was reset, once its delay is over and the port receives.
    /// [AHCI 3.3.9, 10.1.2]
    pub(super) fn send_signature(&mut self, bus: &Bus, p: usize) {
        let port = &mut self.ports[p];
        let (Some(due), Some(signature)) = (port.greeting, port.is()) else { return };
        if due > Instant::now() {
            return bus.wake_at(due);
        }
        if port.command.receive() == 0 {
            return;
        }
        port.greeting = None;
        port.signature = signature.into_raw();
        let status =
            if signature == ring3_spec::ata::Signature::Ata { Status(0x50) } else { Status(0) };
        port.set_status(status, DIAGNOSTICS_PASSED);
        let [count, low, mid, high] = signature.into_raw().to_le_bytes();
        let mut frame = RegisterToHost::zeroed();
        frame.set_kind(fis::REGISTER_TO_HOST).set_status(status.0).set_error(DIAGNOSTICS_PASSED.0);
        frame.set_lba_device(u32::from_le_bytes([low, mid, high, 0])).set_count(count.into());
        self.receive(bus, p, fis::RECEIVED_REGISTER, &frame.0, Interrupts(0));
    }

    /// The drive of port `p` is pulled out.
    pub(super) fn unplug(&mut self, bus: &Bus, p: usize) {
        self.held.retain(|job| job.port != p);
        if let Some(drive) = self.ports[p].drive() {
            // Its power goes with its place.
            drive.lose_power();
        }
        self.ports[p].plugged = false;
        self.ports[p].disconnect();
        self.update(bus);
    }

    /// It is plugged in again.
    pub(super) fn plug(&mut self, bus: &Bus, p: usize) {
        let port = &mut self.ports[p];
        port.plugged = true;
        if let Some(drive) = port.drive() {
            drive.restart();
        }
        port.connect();
        self.send_signature(bus, p);
        self.update(bus);
    }
}
