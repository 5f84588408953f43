//! What the host sees of the controller: configuration, registers, and the time that it asked for.
//! [AHCI 3]

use std::time::{Duration, Instant};

use ring3_spec::ahci::port::{self, Command, Interrupts, SataControl};
use ring3_spec::ahci::registers::{self, Capabilities, Capabilities2, Control, Handoff};
use ring3_spec::ahci::{BAR, CLASS, COMMAND_LIST_ALIGN, RECEIVED_ALIGN};
use ring3_spec::register::Reg;

use super::controller::AhciModel;
use super::port::{LINKED, Port};
use crate::{BarLayout, Bus, Identity, Model};

/// VS: 1.3.1. [AHCI 3.1.5]
const VERSION: u32 = 0x0001_0301;
/// Where the first port's registers begin.
const PORTS_AT: u64 = registers::LEN;
const STORM_PAUSE: Duration = Duration::from_micros(100);

impl AhciModel {
    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities(0)
            .with_ports_0based(u32::from(self.shape.ports) - 1)
            .with_slots_0based(u32::from(self.shape.slots) - 1)
            .with_speed(LINKED.speed())
            .with_override_busy(1)
            .with_queued((self.shape.queued && self.switches.is_capable).into())
            .with_wide(self.shape.wide.into())
    }

    fn read_global(&self, offset: u64) -> u32 {
        if at(offset, registers::CAPABILITIES) {
            self.capabilities().0
        } else if at(offset, registers::CONTROL) {
            self.control.0
        } else if at(offset, registers::INTERRUPT_STATUS) {
            self.pending
        } else if at(offset, registers::PORTS) {
            self.switches.implemented
        } else if at(offset, registers::VERSION) {
            VERSION
        } else if at(offset, registers::CAPABILITIES2) {
            Capabilities2(0).with_handoff(self.shape.handoff.into()).0
        } else if at(offset, registers::HANDOFF) {
            self.handoff.0
        } else {
            0
        }
    }

    fn write_global(&mut self, bus: &Bus, offset: u64, value: u32) {
        if at(offset, registers::CONTROL) {
            let asked = Control(value);
            if self.control.reset() != 0 {
                return;
            }
            if asked.reset() != 0 {
                return self.reset_controller(bus);
            }
            let opened = self.control.interrupts() == 0 && asked.interrupts() != 0;
            self.control =
                Control(0).with_enabled(asked.enabled()).with_interrupts(asked.interrupts());
            self.estranged &= asked.enabled() == 0;
            if opened && self.pending != 0 {
                self.signal(bus);
            }
            self.set_level(bus);
        } else if at(offset, registers::INTERRUPT_STATUS) {
            self.acknowledge(bus, value);
        } else if at(offset, registers::CAPABILITIES) {
            self.switches.is_capable |= Capabilities(value).queued() == 1;
        } else if at(offset, registers::PORTS) {
            self.write_ports(value);
        } else if at(offset, registers::HANDOFF) && self.shape.handoff {
            // Firmware gives way at once. [AHCI 10.6.3]
            self.handoff = Handoff(0).with_system(Handoff(value).system());
        }
    }

    fn write_port(&mut self, bus: &Bus, p: usize, offset: u64, value: u32) {
        if self.control.enabled() == 0 {
            if self.estranged && is_routine(offset) {
                return;
            }
            self.record_violation(format!(
                "port {p}: register {offset:#x} written while GHC.AE is clear [AHCI 3.1.2]"
            ));
        }
        let started = self.ports[p].command.start() != 0;
        let wide = self.shape.wide;
        let port = &mut self.ports[p];
        if at(offset, port::command_list(0)) || at(offset, port::command_list_high(0)) {
            place(
                &mut port.list,
                at(offset, port::command_list_high(0)),
                value,
                COMMAND_LIST_ALIGN,
                wide,
            );
            self.must_be(p, !started, "PxCLB written while PxCMD.ST is set [AHCI 3.3.1]");
        } else if at(offset, port::received(0)) || at(offset, port::received_high(0)) {
            let receives = port.command.receive() != 0;
            place(
                &mut port.received,
                at(offset, port::received_high(0)),
                value,
                RECEIVED_ALIGN,
                wide,
            );
            self.must_be(p, !receives, "PxFB written while PxCMD.FRE is set [AHCI 3.3.3]");
        } else if at(offset, port::interrupt_status(0)) {
            port.happened.0 &= !value;
        } else if at(offset, port::interrupt_enable(0)) {
            port.enabled = Interrupts(value);
            self.update(bus);
        } else if at(offset, port::command(0)) {
            self.command(bus, p, Command(value));
        } else if at(offset, port::sata_control(0)) {
            self.control_link(bus, p, SataControl(value));
        } else if at(offset, port::sata_error(0)) {
            port.errors.0 &= !value;
        } else if at(offset, port::active(0)) {
            let issued = port.issue & value;
            if started {
                port.active |= value;
            }
            self.must_be(p, started, "PxSACT written while PxCMD.ST is clear [AHCI 3.3.13]");
            self.must_be(p, issued == 0, "PxSACT set after PxCI [AHCI 5.5.1]");
        } else if at(offset, port::issue(0)) {
            self.issue(bus, p, value);
        }
    }

    fn must_be(&mut self, p: usize, kept: bool, rule: &str) {
        if !kept {
            self.record_violation(format!("port {p}: {rule}"));
        }
    }

    /// PxCMD. [AHCI 3.3.7, 10.3]
    fn command(&mut self, bus: &Bus, p: usize, asked: Command) {
        let port = &mut self.ports[p];
        let (before, busy, linked) = (port.command, port.is_busy(), port.is_linked());
        port.command = before
            .with_spin_up(asked.spin_up())
            .with_start(asked.start())
            .with_receive(asked.receive());
        port.command = port.command.with_running(asked.start()).with_receiving(asked.receive());
        if asked.override_busy() != 0 {
            let status = port.task_file.status().with_busy(0).with_data_request(0);
            let error = port.task_file.error();
            port.set_status(status, error);
        }
        let starts = before.start() == 0 && asked.start() != 0;
        if before.start() != 0 && asked.start() == 0 {
            port.issue = 0;
            port.active = 0;
            port.stopped = false;
            self.held.retain(|job| job.port != p);
        }
        self.must_be(
            p,
            asked.override_busy() == 0 || before.start() == 0,
            "PxCMD.CLO set while ST is set [AHCI 3.3.7]",
        );
        self.must_be(
            p,
            !starts || asked.receive() != 0,
            "PxCMD.ST set while FRE is clear [AHCI 10.3.1]",
        );
        self.must_be(
            p,
            !starts || !busy || asked.override_busy() != 0,
            "PxCMD.ST set while BSY or DRQ is set [AHCI 10.3.1]",
        );
        self.must_be(
            p,
            !starts || linked,
            "PxCMD.ST set without a drive on the link [AHCI 10.3.1]",
        );
        let deaf = before.receive() != 0
            && asked.receive() == 0
            && (before.start() != 0 || asked.start() != 0);
        self.must_be(p, !deaf, "PxCMD.FRE cleared while ST is set [AHCI 10.3.2]");
        if asked.receive() != 0 {
            self.send_signature(bus, p);
        }
    }

    /// PxCI. [AHCI 3.3.14, 5.5.1]
    fn issue(&mut self, bus: &Bus, p: usize, value: u32) {
        self.record.counters.doorbells += 1;
        let beyond = u32::MAX.checked_shl(self.shape.slots.into()).unwrap_or(0) & value;
        let port = &mut self.ports[p];
        if port.command.start() == 0 {
            return self.must_be(p, false, "PxCI written while PxCMD.ST is clear [AHCI 3.3.14]");
        }
        let fresh = value & !port.issue;
        let (others, theirs) = (port.issue | fresh, port.active | port.queued);
        port.issue |= value & !beyond;
        let mixed = fresh != 0 && others & !theirs != 0 && theirs & (others | port.queued) != 0;
        self.must_be(p, beyond == 0, "PxCI names a slot that there is not [AHCI 3.1.1]");
        self.must_be(p, !mixed, "queued and other commands are in flight together [AHCI 5.5.1]");
        self.work(bus, p);
    }

    fn read_dword(&self, offset: u64) -> u32 {
        if offset < PORTS_AT {
            return self.read_global(offset);
        }
        match self.ports.get(((offset - PORTS_AT) / u64::from(port::STRIDE)) as usize) {
            Some(port) => read_port(port, PORTS_AT + (offset - PORTS_AT) % u64::from(port::STRIDE)),
            None => 0,
        }
    }

    fn write_dword(&mut self, bus: &Bus, offset: u64, value: u32) {
        if offset < PORTS_AT {
            return self.write_global(bus, offset, value);
        }
        let (p, register) = (
            (offset - PORTS_AT) / u64::from(port::STRIDE),
            (offset - PORTS_AT) % u64::from(port::STRIDE),
        );
        if (p as usize) < self.ports.len() {
            self.write_port(bus, p as usize, PORTS_AT + register, value);
        }
    }
}

/// Reads a port's register, `offset` being that of port 0.
fn read_port(this: &Port, offset: u64) -> u32 {
    let registers: [(u64, u32); 14] = [
        (port::command_list(0).offset(), this.list as u32),
        (port::command_list_high(0).offset(), (this.list >> 32) as u32),
        (port::received(0).offset(), this.received as u32),
        (port::received_high(0).offset(), (this.received >> 32) as u32),
        (port::interrupt_status(0).offset(), this.interrupts().0),
        (port::interrupt_enable(0).offset(), this.enabled.0),
        (port::command(0).offset(), this.command.0),
        (port::task_file(0).offset(), this.task_file.0),
        (port::signature(0).offset(), this.signature),
        (port::sata_status(0).offset(), this.link.0),
        (port::sata_control(0).offset(), this.link_control.0),
        (port::sata_error(0).offset(), this.errors.0),
        (port::active(0).offset(), this.active),
        (port::issue(0).offset(), this.issue),
    ];
    registers.iter().find(|(at, _)| *at == offset).map_or(0, |(_, value)| *value)
}

/// Whether a host writes the port's register at `offset` without a look at the controller: to start
/// commands and to take interrupts.
fn is_routine(offset: u64) -> bool {
    let (active, issue) = (port::active(0).offset(), port::issue(0).offset());
    [active, issue, port::interrupt_status(0).offset(), port::interrupt_enable(0).offset()]
        .contains(&offset)
}

/// Sets half of an address whose low bits are always zero.
fn place(address: &mut u64, high: bool, value: u32, align: usize, wide: bool) {
    if !high {
        *address = *address & !u64::from(u32::MAX) | u64::from(value) & !(align as u64 - 1);
    } else if wide {
        *address = *address & u64::from(u32::MAX) | u64::from(value) << 32;
    }
}

fn at<T, A>(offset: u64, register: Reg<T, A>) -> bool {
    offset == register.offset()
}

impl Model for AhciModel {
    fn identity(&self) -> Identity {
        let len = PORTS_AT + u64::from(self.shape.ports) * u64::from(port::STRIDE);
        Identity {
            vendor: self.shape.id.0,
            device: self.shape.id.1,
            revision: 2,
            class: CLASS,
            bars: vec![BarLayout {
                index: BAR,
                len: len.next_power_of_two().max(4096),
                ports: false,
            }],
            pins: 1,
            msi: self.shape.msi.into(),
            msix: None,
            express: false,
            dma_bits: if self.shape.wide { 64 } else { 32 },
        }
    }

    fn read(&mut self, _: &Bus, _: u8, offset: u64, width: usize) -> u64 {
        self.record.counters.reads += 1;
        let word = u64::from(self.read_dword(offset & !3));
        let high = if width == 8 { u64::from(self.read_dword((offset & !3) + 4)) << 32 } else { 0 };
        let shifted = (word | high) >> (offset % 4 * 8);
        if width >= 8 { shifted } else { shifted & ((1 << (width * 8)) - 1) }
    }

    fn write(&mut self, bus: &Bus, _: u8, offset: u64, width: usize, value: u64) {
        self.record.counters.writes += 1;
        if width < 4 || !offset.is_multiple_of(4) {
            return self.record_violation(format!(
                "a write of {width} bytes at {offset:#x}: registers are written as whole dwords \
                 [AHCI 3]"
            ));
        }
        self.write_dword(bus, offset, value as u32);
        if width == 8 {
            self.write_dword(bus, offset + 4, (value >> 32) as u32);
        }
    }

    fn config_read(&mut self, _: &Bus, offset: u64, width: usize) -> Option<u32> {
        self.ports_on(offset, width)
    }

    fn config_write(&mut self, bus: &Bus, offset: u64, width: usize, value: u32) -> bool {
        let is_switch = self.ports_on(offset, width).is_some();
        if is_switch {
            self.switch_ports(bus, value as u16);
        }
        is_switch
    }

    fn reset(&mut self, bus: &Bus) {
        self.ports.iter_mut().for_each(|port| {
            port.health = match port.health {
                super::port::Health::Dead => super::port::Health::Dead,
                _ => super::port::Health::Well,
            }
        });
        self.restart(bus);
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        if self.reset_due.is_some_and(|due| due <= now) {
            self.reset_due = None;
            self.control = self.control.with_reset(0);
        }
        (0..self.ports.len()).for_each(|p| self.send_signature(bus, p));
        self.release_due(bus, now);
        self.raise_storm(bus);
        let storm = (self.storm > 0).then(|| now + STORM_PAUSE);
        if let Some(next) =
            [self.reset_due, self.held.next_due(), storm].into_iter().flatten().min()
        {
            bus.wake_at(next);
        }
    }
}
