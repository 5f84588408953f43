//! The bus masters: their registers, and the way through a descriptor table. [BMIDE 1.2, 3]

use ring3_spec::ide::bus_master::{self, STRIDE};
use ring3_spec::ide::{BusMasterCommand, BusMasterStatus, PRD_BOUNDARY, Prd, cmd64x};

use super::channel::{Engine, Phase};
use super::controller::{IdeModel, is_cmd};
use super::shape::Table;
use crate::fault::Action;
use crate::{Blocked, Bus};

/// Descriptors of the longest table: it does not cross a multiple of 64 KiB.
const MOST: u64 = PRD_BOUNDARY / Prd::SIZE as u64;

/// How the way through a table ended.
enum Walk {
    /// All data have moved; whether that was all that the table had.
    Done { exhausted: bool },
    /// The table ended before the data.
    Short,
}

impl IdeModel {
    /// A byte of both bus masters' ports.
    pub(super) fn read_master(&self, offset: u64) -> u8 {
        let c = (offset / u64::from(STRIDE)) as usize & 1;
        let channel = &self.channels[c];
        let latched = self.channels.each_ref().map(|channel| channel.latched.into());
        match offset % u64::from(STRIDE) {
            0 => channel.master_command.0,
            2 => channel.master_status.with_simplex(self.shape.simplex.into()).0,
            4..8 if self.shape.table == Table::Unreadable => 0,
            at @ 4..8 => channel.table.to_le_bytes()[at as usize - 4],
            1 if is_cmd(self) && c == 0 => {
                self.mode.with_primary_interrupt(latched[0]).with_secondary_interrupt(latched[1]).0
            }
            3 if is_cmd(self) => self.config[cmd64x::ultra_dma(c as u8) as usize],
            _ => 0,
        }
    }

    pub(super) fn write_master(&mut self, bus: &Bus, offset: u64, value: u8) {
        let c = (offset / u64::from(STRIDE)) as usize & 1;
        match offset % u64::from(STRIDE) {
            0 => self.control_master(bus, c, BusMasterCommand(value)),
            2 => {
                let asked = BusMasterStatus(value);
                let status = self.channels[c].master_status;
                let status = if asked.error() != 0 { status.with_error(0) } else { status };
                let status = if asked.interrupt() != 0 { status.with_interrupt(0) } else { status };
                self.channels[c].master_status =
                    status.with_drive0_dma(asked.drive0_dma()).with_drive1_dma(asked.drive1_dma());
            }
            at @ 4..8 => {
                let mut bytes = self.channels[c].table.to_le_bytes();
                bytes[at as usize - 4] = value;
                self.set_table(c, u32::from_le_bytes(bytes));
            }
            1 if is_cmd(self) && c == 0 => {
                let asked = cmd64x::Mode(value);
                self.channels[0].latched &= asked.primary_interrupt() == 0;
                self.channels[1].latched &= asked.secondary_interrupt() == 0;
                self.mode = asked.with_primary_interrupt(0).with_secondary_interrupt(0);
                self.show(bus, 0);
            }
            3 if is_cmd(self) => self.config[cmd64x::ultra_dma(c as u8) as usize] = value,
            _ => {}
        }
    }

    pub(super) fn is_table(&self, offset: u64) -> bool {
        offset == bus_master::table(0).offset() || offset == bus_master::table(1).offset()
    }

    pub(super) fn write_table(&mut self, offset: u64, value: u32) {
        self.set_table(usize::from(offset >= u64::from(STRIDE)), value);
    }

    fn set_table(&mut self, c: usize, value: u32) {
        self.channels[c].table = value & !3;
        if self.channels[c].master_status.active() != 0 {
            self.record_violation(
                c,
                "the bus master's table is changed while it is active [BMIDE 3.3]",
            );
        }
        if value & 3 != 0 {
            self.record_violation(
                c,
                "the bus master's table is not at a multiple of 4 [BMIDE 3.3]",
            );
        }
    }

    fn control_master(&mut self, bus: &Bus, c: usize, asked: BusMasterCommand) {
        let channel = &mut self.channels[c];
        let before =
            std::mem::replace(&mut channel.master_command, BusMasterCommand(asked.0 & 0x09));
        if before.start() != 0 && asked.start() != 0 && before.to_memory() != asked.to_memory() {
            self.record_violation(
                c,
                "the bus master's direction is changed while it is started [BMIDE 3.1]",
            );
        }
        if self.shape.simplex && asked.start() != 0 && self.channels[1 - c].engine == Engine::Armed
        {
            self.record_violation(
                c,
                "both bus masters of a simplex function are started [BMIDE 3.2]",
            );
        }
        let channel = &mut self.channels[c];
        match (before.start(), asked.start()) {
            (0, 1) => {
                channel.engine = Engine::Armed;
                channel.master_status = channel.master_status.with_active(1);
                if channel.job.as_ref().is_some_and(|job| job.phase == Phase::Dma) {
                    self.transfer(bus, c);
                }
            }
            (1, 0) => {
                channel.engine = Engine::Stopped;
                channel.master_status = channel.master_status.with_active(0);
            }
            _ => {}
        }
    }

    /// Drive and bus master are both ready: the data move.
    pub(super) fn transfer(&mut self, bus: &Bus, c: usize) {
        let to_memory = self.channels[c].master_command.to_memory() != 0;
        let Some(job) = &self.channels[c].job else { return };
        if job.plan.as_ref().is_some_and(|plan| plan.protocol.writes() == to_memory) {
            return self.record_violation(
                c,
                "the bus master's direction is not the command's [BMIDE 3.1]",
            );
        }
        let fails = job.fault == Some(Action::DmaError);
        let walk = if fails { Err(Blocked::Unmapped) } else { self.walk(bus, c) };
        let channel = &mut self.channels[c];
        channel.engine = Engine::Spent;
        match walk {
            Ok(Walk::Done { exhausted }) => {
                if exhausted {
                    channel.master_status = channel.master_status.with_active(0);
                }
                self.end(bus, c);
            }
            Ok(Walk::Short) => {
                channel.master_status = channel.master_status.with_active(0);
                self.record_violation(
                    c,
                    "the bus master's table ends before the command's data [BMIDE 3.2]",
                );
            }
            // The drive still waits for the rest. [BMIDE 3.2]
            Err(_) => channel.master_status = channel.master_status.with_active(0).with_error(1),
        }
    }

    fn walk(&mut self, bus: &Bus, c: usize) -> Result<Walk, Blocked> {
        let table = u64::from(self.channels[c].table);
        for index in 0..MOST {
            let at = table + index * Prd::SIZE as u64;
            if (at + Prd::SIZE as u64 - 1) / PRD_BOUNDARY != table / PRD_BOUNDARY {
                self.record_violation(
                    c,
                    "the bus master's table crosses a multiple of 64 KiB [BMIDE 1.2]",
                );
            }
            let mut word = [0; Prd::SIZE];
            bus.read(at, &mut word)?;
            let region = Prd::from_raw(u64::from_le_bytes(word));
            if region.iova() % PRD_BOUNDARY + u64::from(region.bytes()) > PRD_BOUNDARY {
                self.record_violation(
                    c,
                    "a region of the bus master's table crosses a multiple of 64 KiB [BMIDE 1.2]",
                );
            }
            let channel = &mut self.channels[c];
            let Some(job) = &mut channel.job else { return Ok(Walk::Short) };
            let (Some(drive), Some(plan)) = (channel.units[job.unit].drive(), &mut job.plan) else {
                return Ok(Walk::Short);
            };
            let piece = (region.bytes() as usize).min(plan.bytes - job.done);
            // The address counter has 16 bits; the rest of the address stays. [BMIDE 1.2]
            let inside = (PRD_BOUNDARY - region.iova() % PRD_BOUNDARY) as usize;
            let place = |at: usize| {
                (region.iova() & !(PRD_BOUNDARY - 1)) | ((region.iova() + at as u64) % PRD_BOUNDARY)
            };
            for (from, len) in [(0, piece.min(inside)), (inside, piece.saturating_sub(inside))] {
                if plan.protocol.writes() {
                    drive
                        .take(plan, job.done, len, |at, bytes| bus.read(place(from + at), bytes))?;
                } else {
                    drive.give(plan, job.done, len, |at, bytes| {
                        bus.write(place(from + at), bytes)
                    })?;
                }
                job.done += len;
            }
            if job.done == plan.bytes {
                if self.shape.table == Table::Moves {
                    channel.table = at as u32 + Prd::SIZE as u32;
                }
                return Ok(Walk::Done {
                    exhausted: region.is_last() && piece == region.bytes() as usize,
                });
            }
            if region.is_last() {
                return Ok(Walk::Short);
            }
        }
        Ok(Walk::Short)
    }
}
