//! What the host sees of the card: configuration, registers, and the time that it asked for. [82574
//! 9, 10]

use std::time::Instant;

use ring3_spec::e1000::general::{
    self, Control, ControlExtended, ExtendedConfiguration, Mdi, Semaphore,
};
use ring3_spec::e1000::interrupt::{self, Causes};
use ring3_spec::e1000::{self as spec, nvm, receive, statistics, transmit};
use ring3_spec::register::Reg;

use super::controller::E1000Model;
use super::shape::{Nvm, Shape};
use crate::{BarLayout, Bus, Identity, Model, MsixLayout};

const QUEUES: u32 = 2;

impl E1000Model {
    fn read_dword(&mut self, bus: &Bus, offset: u64) -> u32 {
        if at(offset, general::STATUS) {
            self.status().0
        } else if at(offset, interrupt::CAUSE) {
            self.read_causes(bus)
        } else if at(offset, general::SEMAPHORE) {
            self.read_semaphore()
        } else if is_write_only(offset) {
            0
        } else if (statistics::FIRST..statistics::END).contains(&offset) {
            self.read_counter(offset)
        } else {
            self.registers.dword(offset)
        }
    }

    /// Counters are cleared by reading them, those in two dwords by the second. [82574 10.2.7]
    fn read_counter(&mut self, offset: u64) -> u32 {
        let value = self.registers.dword(offset);
        let lows = [statistics::RECEIVED_BYTES_LOW, statistics::SENT_BYTES_LOW];
        if !lows.iter().any(|low| low.offset() == offset) {
            self.registers.set_dword(offset, 0);
        }
        if lows.iter().any(|low| low.offset() + 4 == offset) {
            self.registers.set_dword(offset - 4, 0);
        }
        value
    }

    fn write_dword(&mut self, bus: &Bus, offset: u64, value: u32) {
        if self.is_in_reset() {
            return self.record_violation(format!(
                "register {offset:#x} written while CTRL.RST is set [82574 4.6.2]"
            ));
        }
        if at(offset, general::CONTROL) {
            self.write_control(bus, Control(value));
        } else if at(offset, general::STATUS)
            || (statistics::FIRST..statistics::END).contains(&offset)
        {
        } else if at(offset, general::EXTENDED_CONFIGURATION) {
            let asked = ExtendedConfiguration(value);
            let is_free = self.is_firmware_done();
            let owned = asked.with_software_owns(asked.software_owns() & u32::from(is_free));
            self.registers.set(general::EXTENDED_CONFIGURATION, owned);
        } else if at(offset, general::SEMAPHORE) {
            let asked = Semaphore(value);
            let granted = asked.software() & u32::from(self.is_firmware_done());
            self.registers.set(general::SEMAPHORE, asked.with_software(granted));
        } else if at(offset, general::CONTROL_EXTENDED) {
            let asked = ControlExtended(value);
            self.registers.set(general::CONTROL_EXTENDED, asked.with_nvm_reset(0));
            if asked.nvm_reset() != 0 {
                self.reread_nvm();
            }
        } else if at(offset, general::NVM_READ) {
            self.must_own("the NVM");
            let control = self.registers.get(general::NVM_CONTROL);
            if control.auto_read_done() == 0 {
                self.record_violation(
                    "the NVM is read before EEC.Auto_RD is set [82574 4.6.2]".into(),
                );
            }
            if control.auto_update() != 0 {
                self.record_violation(
                    "the Flash is used while EEC.AUPDEN is set [Linux, \
                     e1000_init_nvm_params_82571]"
                        .into(),
                );
            }
            let at = nvm::Read(value).address() as usize;
            let word = self.nvm.get(at).copied().unwrap_or(u16::MAX);
            if at + 1 == self.nvm.len() && self.shape.nvm == Nvm::Flaky {
                // The next time the checksum is right.
                self.nvm = super::nvm::words(&Shape { nvm: Nvm::Good, ..self.shape.clone() });
            }
            if nvm::Read(value).start() != 0 {
                self.registers.set(
                    general::NVM_READ,
                    nvm::Read(value).with_start(0).with_done(1).with_data(word.into()).0,
                );
            }
        } else if at(offset, general::MDI) {
            self.must_own("the PHY");
            let done = self.phy.access(Mdi(value), self.linked);
            self.registers.set(general::MDI, done);
            self.update_link(bus);
            if done.interrupt() != 0 {
                self.cause(bus, Causes::NONE.with_mdi(1));
            }
        } else if at(offset, general::PACKET_BUFFER) {
            let receive = general::PacketBuffer(value).receive_kib();
            let all = general::PacketBuffer(value).with_transmit_kib(40u32.saturating_sub(receive));
            self.registers.set(general::PACKET_BUFFER, all);
        } else if !self.write_interrupt(bus, offset, value) && !self.write_queue(bus, offset, value)
        {
            self.registers.set_dword(offset, value);
            if at(offset, receive::CONTROL) {
                self.check_receiver(receive::Control(value));
                self.store(bus, false);
            } else if at(offset, transmit::CONTROL) {
                self.check_transmitter(transmit::Control(value));
                (0..QUEUES).for_each(|queue| self.send(bus, queue));
            }
        }
    }

    /// Notes that the host uses `what` without having asked firmware for it.
    fn must_own(&mut self, what: &str) {
        if self.shape.card.is_82573() {
            let semaphore = self.registers.get(general::SEMAPHORE);
            if semaphore.driver() & semaphore.software() == 0 {
                self.record_violation(format!(
                    "{what} is used while SWSM is not held [Linux, e1000_get_hw_semaphore_82571]"
                ));
            }
        } else if self.registers.get(general::EXTENDED_CONFIGURATION).software_owns() == 0 {
            self.record_violation(format!(
                "{what} is used while EXTCNF_CTRL.MDIO_SW is clear [82574 10.2.2]"
            ));
        }
    }

    fn is_firmware_done(&self) -> bool {
        self.powered_on.elapsed() >= self.shape.firmware
    }

    /// Reading SWSM sets SMBI. [82576 8.16.1]
    fn read_semaphore(&mut self) -> u32 {
        let semaphore = self.registers.get(general::SEMAPHORE);
        self.registers.set(general::SEMAPHORE, semaphore.with_driver(1));
        semaphore.0
    }

    /// What an 82573 wants before it receives. [Linux, e1000_initialize_hw_bits]
    fn check_receiver(&mut self, control: receive::Control) {
        if control.enable() == 0 || !self.shape.card.is_82573() {
            return;
        }
        if self.registers.get(receive::FILTER_CONTROL).no_ipv6_extensions() != 3 {
            self.record_violation(
                "the receiver is enabled while it reads extension headers of IPv6, which hang it"
                    .into(),
            );
        }
        if self.registers.get(general::SEMAPHORE).driver_loaded() == 0 {
            self.record_violation(
                "the receiver is enabled while SWSM.DRV_LOAD tells firmware of no driver".into(),
            );
        }
    }

    /// What each member wants before it sends. [Linux, e1000_initialize_hw_bits]
    fn check_transmitter(&mut self, control: transmit::Control) {
        if control.enable() == 0 {
            return;
        }
        let registers = &self.registers;
        let extended = registers.get(general::CONTROL_EXTENDED);
        let arbitration = registers.get(transmit::arbitration(0));
        let express = registers.get(general::EXPRESS_CONTROL);
        let kin = !self.shape.card.is_82573();
        let wanted = [
            (
                kin && registers.get(general::EXPRESS_CONTROL2).keep_completions() == 0,
                "completions may get lost (GCR2 bit 0)",
            ),
            (kin && express.reserved_one() == 0, "GCR bit 22 is clear"),
            (kin && arbitration.reserved_one() == 0, "TARC0 bit 26 is clear"),
            (arbitration.reserved_zero() != 0, "one of TARC0 bits 27 to 30 is set"),
            (extended.reserved_one() == 0, "CTRL_EXT bit 22 is clear"),
            (extended.reserved_zero() != 0, "CTRL_EXT bit 23 is set"),
        ];
        for (_, what) in wanted.iter().filter(|(is_wrong, _)| *is_wrong) {
            self.record_violation(format!("the transmitter is enabled while {what}"));
        }
        let queues = [0, 1].map(|queue| self.registers.get(transmit::descriptor_control(queue)));
        if queues[0] != queues[1] || queues[0].count() == 0 {
            self.record_violation(
                "the transmitter is enabled while TXDCTL differs between its queues, or its bit \
                 22 is clear [Linux, e1000_configure_tx]"
                    .into(),
            );
        }
    }

    fn write_control(&mut self, bus: &Bus, asked: Control) {
        if asked.reset() != 0 {
            return self.reset_by_host(bus);
        }
        self.registers.set(general::CONTROL, asked);
        self.update_link(bus);
    }

    fn write_interrupt(&mut self, bus: &Bus, offset: u64, value: u32) -> bool {
        let causes = Causes(value);
        if at(offset, interrupt::ACKNOWLEDGE) {
            self.acknowledge(bus, causes);
        } else if at(offset, interrupt::CAUSE_SET) {
            self.cause(bus, causes.with_asserted(0));
        } else if at(offset, interrupt::MASK_SET) {
            self.unmask(bus, causes);
        } else if at(offset, interrupt::MASK_CLEAR) {
            self.mask(bus, causes);
        } else {
            return false;
        }
        true
    }

    /// Rings: their places are set while their direction is off, and tails lie within. [82574
    /// 10.2.5, 10.2.6]
    fn write_queue(&mut self, bus: &Bus, offset: u64, value: u32) -> bool {
        for queue in 0..QUEUES {
            if at(offset, receive::tail(queue)) {
                self.counters.receive_doorbells += 1;
                self.set_tail(offset, value, self.registers.get(receive::ring_bytes(queue)));
                self.store(bus, false);
                return true;
            }
            if at(offset, transmit::tail(queue)) {
                self.counters.transmit_doorbells += 1;
                self.set_tail(offset, value, self.registers.get(transmit::ring_bytes(queue)));
                self.kick(bus, queue);
                return true;
            }
            let receives = self.registers.get(receive::CONTROL).enable() != 0
                && (receive::ring_low(queue).offset()..=receive::head(queue).offset())
                    .contains(&offset);
            let sends = self.registers.get(transmit::CONTROL).enable() != 0
                && (transmit::ring_low(queue).offset()..=transmit::head(queue).offset())
                    .contains(&offset);
            if receives || sends {
                self.record_violation(format!(
                    "register {offset:#x} of a ring written while its direction is enabled [82574 \
                     4.6.5]"
                ));
            }
            if at(offset, receive::ring_bytes(queue)) || at(offset, transmit::ring_bytes(queue)) {
                self.registers.set_dword(offset, value & !127);
                if value & 127 != 0 {
                    self.record_violation(format!(
                        "a ring of {value} bytes: it must be a multiple of 128 [82574 10.2.5]"
                    ));
                }
                return true;
            }
        }
        false
    }

    fn set_tail(&mut self, offset: u64, tail: u32, bytes: u32) {
        self.registers.set_dword(offset, tail);
        if tail >= (bytes / spec::DESCRIPTOR_BYTES).max(1) {
            self.record_violation(format!(
                "{tail} was written to the tail at {offset:#x}, beyond its ring [82574 10.2.5]"
            ));
        }
    }
}

/// ICS and IMC read as zero.
fn is_write_only(offset: u64) -> bool {
    at(offset, interrupt::CAUSE_SET) || at(offset, interrupt::MASK_CLEAR)
}

fn at<T, A>(offset: u64, register: Reg<T, A>) -> bool {
    offset == register.offset()
}

impl Model for E1000Model {
    fn doorbell_bar(&self) -> Option<u8> {
        Some(spec::BAR)
    }

    fn identity(&self) -> Identity {
        let vectors = self.shape.vectors;
        let mut bars = vec![BarLayout { index: spec::BAR, len: spec::BAR_BYTES, ports: false }];
        if vectors > 0 {
            bars.push(BarLayout { index: spec::MSIX_BAR, len: spec::MSIX_BAR_BYTES, ports: false });
        }
        let msix = MsixLayout { vectors, bar: spec::MSIX_BAR, table: 0, pba: spec::MSIX_PBA };
        Identity {
            vendor: spec::VENDOR,
            device: self.shape.card.device(),
            revision: 0,
            class: spec::CLASS,
            bars,
            pins: 1,
            msi: 1,
            msix: (vectors > 0).then_some(msix),
            express: true,
            dma_bits: 64,
        }
    }

    fn read(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize) -> u64 {
        if bar != spec::BAR {
            return 0;
        }
        self.counters.reads += 1;
        let word = u64::from(self.read_dword(bus, offset & !3));
        let high =
            if width == 8 { u64::from(self.read_dword(bus, (offset & !3) + 4)) << 32 } else { 0 };
        let shifted = (word | high) >> (offset % 4 * 8);
        if width >= 8 { shifted } else { shifted & ((1 << (width * 8)) - 1) }
    }

    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64) {
        if bar != spec::BAR {
            return;
        }
        self.counters.writes += 1;
        self.wire.attach(bus);
        if width < 4 || !offset.is_multiple_of(4) {
            return self.record_violation(format!(
                "a write of {width} bytes at {offset:#x}: registers are written as whole dwords \
                [82574 10.1]"
            ));
        }
        self.write_dword(bus, offset, value as u32);
        if width == 8 {
            self.write_dword(bus, offset + 4, (value >> 32) as u32);
        }
    }

    fn reset(&mut self, bus: &Bus) {
        self.restart(bus);
        self.update_link(bus);
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        if self.reset_due.is_some_and(|due| due <= now) {
            self.end_reset();
        }
        if self.link_back.is_some_and(|due| due <= now) {
            self.link_back = None;
        }
        self.update_link(bus);
        for frame in self.wire.take_coming() {
            self.arrive(bus, frame);
        }
        while let Some(late) = self.held.take_due(now) {
            self.do_late(bus, late);
        }
        (0..QUEUES).for_each(|queue| self.send(bus, queue));
        self.raise_storm(bus);
        let interrupt = self.release_interrupts(bus, now);
        let storm = self.storm.map(|_| now);
        if let Some(next) = [self.reset_due, self.link_back, self.held.next_due(), interrupt, storm]
            .into_iter()
            .flatten()
            .min()
        {
            bus.wake_at(next);
        }
    }
}
