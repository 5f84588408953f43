//! The controller: what its channels have in common, and its interrupts. [PCI-IDE 2.0, BMIDE 2.0]

use std::time::{Duration, Instant};

use ring3_spec::ide::cmd64x::Mode;
use ring3_spec::ide::{self, BUS_MASTER_BAR, CHANNELS, command, control};

use super::channel::{Attached, Channel};
use super::chip::{CONFIG, Chip};
use super::shape::Shape;
use crate::ata::Record;
use crate::fault::FaultPlan;
use crate::held::Held;
use crate::{BarLayout, Bus, Identity, Model};

const STORM_PAUSE: Duration = Duration::from_micros(100);
const STORM_BURST: u32 = 64;
/// Ports of both channels' bus masters.
const MASTER_PORTS: u64 = 16;

/// An IDE controller with its drives.
pub struct IdeModel {
    pub(super) shape: Shape,
    pub(super) faults: FaultPlan,
    pub(super) channels: [Channel; CHANNELS as usize],
    /// Channels whose command waits.
    pub(super) held: Held<usize>,
    /// Channels whose interrupt comes once more.
    pub(super) repeats: Held<usize>,
    pub(super) record: Record,
    /// The chip's own registers in configuration space.
    pub(super) config: [u8; CONFIG],
    /// MRDMODE's bits that can be written.
    pub(super) mode: Mode,
    /// Interrupts that a storm has still to send, and of which channel.
    pub(super) storm: Option<(usize, u32)>,
    /// The interrupt of what happens now gets lost.
    pub(super) muted: bool,
}

impl IdeModel {
    /// A controller after power-on, with empty media.
    pub fn new(shape: Shape, faults: FaultPlan) -> Self {
        let mut model = Self {
            channels: Channel::all(&shape),
            config: shape.chip.config(),
            shape,
            faults,
            held: Held::default(),
            repeats: Held::default(),
            record: Record::default(),
            mode: Mode(0),
            storm: None,
            muted: false,
        };
        model
            .channels
            .iter_mut()
            .flat_map(|channel| &mut channel.units)
            .for_each(|unit| unit.send_signature());
        model
    }

    pub(super) fn record_violation(&mut self, channel: usize, what: &str) {
        self.record.record_violation(format!("channel {channel}: {what}"));
    }

    /// Lets the interrupt of a channel follow its selected drive; one that rises is noted by the
    /// bus master. [BMIDE 3.2]
    pub(super) fn update(&mut self, bus: &Bus, c: usize) {
        let channel = &mut self.channels[c];
        let line =
            channel.units[channel.selected()].interrupt && channel.control.interrupts_off() == 0;
        let rose = !std::mem::replace(&mut channel.line, line) && line;
        if rose {
            channel.latched = true;
            channel.master_status = channel.master_status.with_interrupt(1);
            self.record.counters.interrupts += 1;
        }
        self.show(bus, c);
    }

    /// Shows interrupts at the pins: an ISA interrupt of each channel, or one pin for both.
    pub(super) fn show(&self, bus: &Bus, c: usize) {
        if self.muted {
            return;
        }
        let storms = |c: usize| self.storm.is_some_and(|(channel, _)| channel == c);
        if self.shape.chip.is_native() {
            let blocked = [self.mode.primary_blocked(), self.mode.secondary_blocked()];
            bus.set_level((0..2).any(|c| (self.channels[c].line || storms(c)) && blocked[c] == 0));
        } else {
            bus.set_pin(c as u8, self.channels[c].line);
        }
    }

    /// The channel's interrupt comes for no reason, once more.
    pub(super) fn pulse(&self, bus: &Bus, c: usize) {
        if self.shape.chip.is_native() {
            bus.set_level(true);
        } else {
            bus.set_pin(c as u8, false);
            bus.set_pin(c as u8, true);
        }
        self.show(bus, c);
    }

    fn raise_storm(&mut self, bus: &Bus) {
        let Some((c, left)) = self.storm else { return };
        (0..left.min(STORM_BURST)).for_each(|_| self.pulse(bus, c));
        self.storm = left.checked_sub(STORM_BURST).filter(|left| *left > 0).map(|left| (c, left));
        self.show(bus, c);
    }

    /// Everything as after power-on, media and what was noted down aside.
    pub(super) fn restart(&mut self, bus: &Bus) {
        self.held.clear();
        self.repeats.clear();
        self.storm = None;
        self.mode = Mode(0);
        self.config = self.shape.chip.config();
        for c in 0..self.channels.len() {
            self.channels[c].forget();
            for unit in &mut self.channels[c].units {
                if let Attached::Disk(drive) = &mut unit.attached {
                    drive.restart();
                }
                unit.send_signature_after(self.shape.ready);
            }
            self.send_signature(bus, c);
            self.update(bus, c);
        }
    }

    /// The place of drive `index`: its channel, and which of two it is.
    pub(super) fn place(index: usize) -> (usize, usize) {
        (index / 2, index % 2)
    }
}

impl Model for IdeModel {
    fn identity(&self) -> Identity {
        let chip = self.shape.chip;
        let (vendor, device, revision) = chip.ids();
        let ports = |index, len| BarLayout { index, len, ports: true };
        let mut bars = vec![ports(BUS_MASTER_BAR, MASTER_PORTS)];
        for channel in 0..CHANNELS {
            bars.push(ports(ide::command_bar(channel), command::LEN));
            bars.push(ports(ide::control_bar(channel), control::LEN));
        }
        let pins = if chip.is_native() { 1 } else { 2 };
        Identity {
            vendor,
            device,
            revision,
            class: chip.class(),
            bars,
            pins,
            msi: 0,
            msix: None,
            express: false,
            dma_bits: 32,
        }
    }

    fn read(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize) -> u64 {
        self.record.counters.reads += 1;
        let bytes = |read: &dyn Fn(u64) -> u8| {
            (0..width as u64).rev().fold(0, |word, at| word << 8 | u64::from(read(offset + at)))
        };
        match bar {
            BUS_MASTER_BAR => bytes(&|at| self.read_master(at)),
            _ if !self.is_decoded(usize::from(bar / 2)) => u64::MAX,
            _ if bar.is_multiple_of(2) => {
                self.read_command(bus, usize::from(bar / 2), offset, width)
            }
            _ => self.read_control(usize::from(bar / 2), offset, width),
        }
    }

    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64) {
        self.record.counters.writes += 1;
        let bytes = value.to_le_bytes().into_iter().take(width);
        match bar {
            BUS_MASTER_BAR if self.is_table(offset) && width == 4 => {
                self.write_table(offset, value as u32)
            }
            BUS_MASTER_BAR => {
                bytes.zip(offset..).for_each(|(byte, at)| self.write_master(bus, at, byte))
            }
            _ if !self.is_decoded(usize::from(bar / 2)) => {}
            _ if bar.is_multiple_of(2) => {
                self.write_command(bus, usize::from(bar / 2), offset, width, value)
            }
            _ => self.write_control(bus, usize::from(bar / 2), offset, width, value as u8),
        }
    }

    fn reset(&mut self, bus: &Bus) {
        self.restart(bus);
    }

    fn config_read(&mut self, _: &Bus, offset: u64, width: usize) -> Option<u32> {
        let at = offset as usize;
        self.read_own(at)?;
        Some(
            (at..at + width)
                .rev()
                .fold(0, |word, at| word << 8 | u32::from(self.read_own(at).unwrap_or(0))),
        )
    }

    fn config_write(&mut self, bus: &Bus, offset: u64, width: usize, value: u32) -> bool {
        let own = self.read_own(offset as usize).is_some();
        if own {
            let bytes = value.to_le_bytes().into_iter().take(width);
            bytes.zip(offset as usize..).for_each(|(byte, at)| self.write_own(bus, at, byte));
            (0..self.channels.len()).for_each(|c| self.show(bus, c));
        }
        own
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        for c in 0..self.channels.len() {
            self.send_signature(bus, c);
        }
        while let Some(c) = self.held.take_due(now) {
            self.begin(bus, c);
        }
        while let Some(c) = self.repeats.take_due(now) {
            self.pulse(bus, c);
        }
        self.raise_storm(bus);
        let storm = self.storm.map(|_| now + STORM_PAUSE);
        if let Some(next) =
            [self.held.next_due(), self.repeats.next_due(), storm].into_iter().flatten().min()
        {
            bus.wake_at(next);
        }
    }
}

/// Whether the chip has CMD's registers.
pub(super) fn is_cmd(model: &IdeModel) -> bool {
    model.shape.chip == Chip::Cmd646
}
