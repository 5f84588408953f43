//! The command block and the control block of a channel. [ATA-6 7]

use std::time::{Duration, Instant};

use ring3_spec::ide::{DeviceControl, command, control};

use super::channel::{FLOATING, Phase};
use super::controller::IdeModel;
use crate::Bus;
use crate::held::Waiting;

const ERROR: u64 = command::ERROR.offset();
const COUNT: u64 = command::COUNT.offset();
const LBA_LOW: u64 = command::LBA_LOW.offset();
const LBA_HIGH: u64 = command::LBA_HIGH.offset();
const DEVICE: u64 = command::DEVICE.offset();
const STATUS: u64 = command::STATUS.offset();
/// How long a repeated interrupt waits.
const AGAIN: Duration = Duration::from_millis(1);

impl IdeModel {
    pub(super) fn read_command(&mut self, bus: &Bus, c: usize, offset: u64, width: usize) -> u64 {
        if offset == command::DATA_IN.offset() {
            return self.read_data(bus, c, width);
        }
        if width != 1 {
            self.record_violation(
                c,
                "a register of the command block is read with more than 8 bits [ATA-6 7.2]",
            );
            return u64::MAX;
        }
        if offset == STATUS {
            let status = self.status(c);
            self.take_interrupt(bus, c);
            return status.into();
        }
        let channel = &self.channels[c];
        let Some(unit) = self.answering(c) else { return FLOATING.into() };
        let unit = &channel.units[unit];
        let high = channel.control.high_order() != 0;
        u64::from(match offset {
            ERROR => unit.error.0,
            COUNT => unit.count.read(high),
            LBA_LOW..=LBA_HIGH => unit.lba[(offset - LBA_LOW) as usize].read(high),
            _ => channel.device,
        })
    }

    /// The drive that answers for the selected one: the master does for a slave that is not there,
    /// but for its status. [ATA-6 9.16.1]
    fn answering(&self, c: usize) -> Option<usize> {
        let channel = &self.channels[c];
        let selected = channel.selected();
        match (channel.units[selected].is(), channel.units[0].is()) {
            (Some(_), _) => Some(selected),
            (None, Some(_)) => Some(0),
            (None, None) => None,
        }
    }

    fn status(&self, c: usize) -> u8 {
        let channel = &self.channels[c];
        match (channel.units[channel.selected()].is(), channel.units[0].is()) {
            (Some(_), _) => channel.units[channel.selected()].status.0,
            (None, Some(_)) => 0,
            (None, None) => FLOATING,
        }
    }

    /// Status was read: the drive takes its interrupt back. [ATA-6 7.15.5]
    fn take_interrupt(&mut self, bus: &Bus, c: usize) {
        let channel = &mut self.channels[c];
        let unit = channel.selected();
        let unit = &mut channel.units[unit];
        unit.interrupt = false;
        let again = std::mem::take(&mut unit.again);
        self.update(bus, c);
        if again {
            let due = Instant::now() + AGAIN;
            self.repeats.push(Waiting { what: c, due: Some(due), after_next: false });
            bus.wake_at(due);
        }
    }

    pub(super) fn write_command(
        &mut self,
        bus: &Bus,
        c: usize,
        offset: u64,
        width: usize,
        value: u64,
    ) {
        if offset == command::DATA_OUT.offset() {
            return self.write_data(bus, c, width, value);
        }
        if width != 1 {
            return self.record_violation(
                c,
                "a register of the command block is written with more than 8 bits [ATA-6 7.2]",
            );
        }
        let value = value as u8;
        let channel = &mut self.channels[c];
        channel.control = channel.control.with_high_order(0);
        if channel.units.iter().any(|unit| unit.is_occupied()) {
            let waits = channel
                .job
                .as_ref()
                .is_some_and(|job| job.phase == Phase::Dma && job.fault.is_none());
            if waits && channel.master_command.start() == 0 {
                self.record_violation(
                    c,
                    "a DMA command was given, and the bus master was not started [BMIDE 3.1]",
                );
            }
            return self.record_violation(
                c,
                "a register of the command block is written while BSY or DRQ is set [ATA-6 7.2]",
            );
        }
        match offset {
            ERROR => channel.units.iter_mut().for_each(|unit| unit.features.write(value)),
            COUNT => channel.units.iter_mut().for_each(|unit| unit.count.write(value)),
            LBA_LOW..=LBA_HIGH => {
                channel
                    .units
                    .iter_mut()
                    .for_each(|unit| unit.lba[(offset - LBA_LOW) as usize].write(value));
            }
            DEVICE => {
                channel.device = value;
                self.update(bus, c);
            }
            _ => self.command(bus, c, value),
        }
    }

    pub(super) fn read_control(&mut self, c: usize, offset: u64, width: usize) -> u64 {
        if offset != control::ALTERNATE_STATUS.offset() || width != 1 {
            self.record_violation(
                c,
                "a port of the control block that is not the controller's is read [PCI-IDE 2.4]",
            );
            return u64::MAX;
        }
        self.status(c).into()
    }

    pub(super) fn write_control(
        &mut self,
        bus: &Bus,
        c: usize,
        offset: u64,
        width: usize,
        value: u8,
    ) {
        if offset != control::DEVICE_CONTROL.offset() || width != 1 {
            return self.record_violation(
                c,
                "a port of the control block that is not the controller's is written [PCI-IDE 2.4]",
            );
        }
        let asked = DeviceControl(value);
        let before = std::mem::replace(&mut self.channels[c].control, asked);
        match (before.software_reset(), asked.software_reset()) {
            (0, 1) => self.begin_reset(c),
            (1, 0) => self.end_reset(bus, c),
            _ => {}
        }
        self.update(bus, c);
    }
}
