//! The controller: what its ports have in common, and its interrupts. [AHCI 3.1, 10.6, 10.7]

use std::time::Instant;

use ring3_spec::ahci::port::Interrupts;
use ring3_spec::ahci::registers::{Control, Handoff};

use super::port::Port;
use super::process::Job;
use super::quirk::{PortSwitches, Quirk};
use super::shape::Shape;
use crate::Bus;
use crate::ata::Record;
use crate::fault::FaultPlan;
use crate::held::Held;

/// An AHCI controller with its drives.
pub struct AhciModel {
    pub(super) shape: Shape,
    pub(super) faults: FaultPlan,
    pub(super) ports: Vec<Port>,
    pub(super) held: Held<Job>,
    pub(super) record: Record,
    pub(super) control: Control,
    /// IS.
    pub(super) pending: u32,
    pub(super) handoff: Handoff,
    /// When GHC.HR clears.
    pub(super) reset_due: Option<Instant>,
    /// Interrupts that a storm has still to send.
    pub(super) storm: u32,
    /// The interrupt of what happens now gets lost.
    pub(super) muted: bool,
    /// It was restarted unasked, and the host has not enabled it again: what runs on does so
    /// without knowing.
    pub(super) estranged: bool,
    /// What faults do to its ports.
    pub(super) switches: PortSwitches,
}

impl AhciModel {
    /// A controller after power-on, with empty media.
    pub fn new(shape: Shape, faults: FaultPlan) -> Self {
        let mut model = Self {
            ports: Port::all(&shape),
            switches: PortSwitches::all(shape.ports),
            handoff: Handoff(0).with_firmware(shape.handoff.into()),
            shape,
            faults,
            held: Held::default(),
            record: Record::default(),
            control: Control(0),
            pending: 0,
            reset_due: None,
            storm: 0,
            muted: false,
            estranged: false,
        };
        (0..model.ports.len()).for_each(|port| model.ports[port].connect());
        model
    }

    pub(super) fn record_violation(&mut self, what: String) {
        self.record.record_violation(what);
    }

    /// Something has happened in port `p`.
    pub(super) fn happen(&mut self, bus: &Bus, p: usize, what: Interrupts) {
        let port = &mut self.ports[p];
        port.happened = Interrupts(port.happened.0 | what.0);
        self.update(bus);
    }

    /// Lets IS follow what the ports have to say; a bit that rises is an interrupt. [AHCI 10.7.1.1]
    pub(super) fn update(&mut self, bus: &Bus) {
        let before = self.pending;
        for (p, port) in self.ports.iter().enumerate() {
            if port.interrupts().0 & port.enabled.0 != 0 {
                self.pending |= 1 << p;
            }
        }
        if self.pending & !before != 0 {
            self.signal(bus);
        }
        self.set_level(bus);
    }

    /// Bits of IS were cleared. Where others stay, there is another message. [AHCI 10.6.2.1]
    pub(super) fn acknowledge(&mut self, bus: &Bus, bits: u32) {
        self.pending &= !bits;
        let left = self.pending;
        self.update(bus);
        if left != 0 && self.pending == left {
            self.signal(bus);
        }
    }

    pub(super) fn signal(&mut self, bus: &Bus) {
        if self.control.interrupts() != 0 {
            self.record.counters.interrupts += 1;
            if !self.muted && !self.has(Quirk::BrokenMsi) {
                bus.raise(0);
            }
        }
    }

    pub(super) fn set_level(&self, bus: &Bus) {
        if !self.muted {
            bus.set_level(self.control.interrupts() != 0 && (self.pending != 0 || self.storm > 0));
        }
    }

    /// As [`restart`](Self::restart), but not by the host.
    pub(super) fn restart_unasked(&mut self, bus: &Bus) {
        self.restart(bus);
        self.estranged = true;
    }

    /// Everything as after power-on, media and what was noted down aside.
    pub(super) fn restart(&mut self, bus: &Bus) {
        self.record.counters.resets += 1;
        self.held.clear();
        self.storm = 0;
        self.control = Control(0);
        self.pending = 0;
        self.reset_due = None;
        self.forget_firmware();
        for (p, port) in self.ports.iter_mut().enumerate() {
            port.forget();
            port.blocked = self.switches.blocked(p);
            (port.list, port.received) = (0, 0);
            if let Some(drive) = port.drive() {
                drive.restart();
            }
            port.connect_after(self.shape.ready);
        }
        self.set_level(bus);
    }
}
