//! What the controller reads of the host's memory: headers, tables and regions; and the data. [AHCI
//! 4.2]

use ring3_spec::ahci::fis::{REGISTER_DWORDS, RegisterToDevice};
use ring3_spec::ahci::{
    COMMAND_ALIGN, CommandHeader, HEADER_BYTES, HeaderFlags, REGION_BYTES, Region, TABLE_FRAME,
    TABLE_REGIONS,
};
use ring3_spec::ata::TaskFile;

use super::controller::AhciModel;
use super::process::Job;
use crate::ata::{Plan, is_ext};
use crate::{Blocked, Bus};

impl AhciModel {
    /// Reads the header of a slot and the frame in its table.
    pub(super) fn fetch(
        &mut self,
        bus: &Bus,
        p: usize,
        slot: u8,
    ) -> Result<(CommandHeader, RegisterToDevice), Blocked> {
        let mut header = CommandHeader::zeroed();
        bus.read(self.ports[p].list + u64::from(slot) * HEADER_BYTES as u64, &mut header.0)?;
        if !self.shape.wide {
            header.set_table(header.table() & u64::from(u32::MAX));
        }
        if !header.table().is_multiple_of(COMMAND_ALIGN as u64) {
            self.record_violation(format!(
                "port {p}, slot {slot}: the command table at {:#x} is not at a multiple of 128 \
                [AHCI 4.2.2]",
                header.table()
            ));
            header.set_table(header.table() & !(COMMAND_ALIGN as u64 - 1));
        }
        let dwords = HeaderFlags(header.flags()).frame_dwords();
        if dwords != REGISTER_DWORDS {
            self.record_violation(format!(
                "port {p}, slot {slot}: CFL is {dwords}, a register frame has 5 dwords [AHCI 4.2.2]"
            ));
        }
        let mut frame = RegisterToDevice::zeroed();
        bus.read(header.table() + TABLE_FRAME as u64, &mut frame.0)?;
        Ok((header, frame))
    }

    /// Moves the data of a command between the drive and the regions of its table; returns how many
    /// bytes there was memory for.
    pub(super) fn move_data(
        &mut self,
        bus: &Bus,
        job: &Job,
        plan: &mut Plan,
    ) -> Result<usize, Blocked> {
        let mut done = 0;
        for index in 0..u64::from(job.header.regions()) {
            if done == plan.bytes {
                break;
            }
            let region = self.region(bus, job, index)?;
            let (iova, piece) = (region.iova(), (region.bytes() as usize).min(plan.bytes - done));
            let Some(drive) = self.ports[job.port].drive() else { break };
            if plan.protocol.writes() {
                drive.take(plan, done, piece, |at, bytes| {
                    bus.read(iova.wrapping_add(at as u64), bytes)
                })?;
            } else {
                drive.give(plan, done, piece, |at, bytes| {
                    bus.write(iova.wrapping_add(at as u64), bytes)
                })?;
            }
            done += piece;
        }
        Ok(done)
    }

    fn region(&mut self, bus: &Bus, job: &Job, index: u64) -> Result<Region, Blocked> {
        let mut bytes = [0; REGION_BYTES];
        bus.read(
            job.table.wrapping_add(TABLE_REGIONS as u64 + index * REGION_BYTES as u64),
            &mut bytes,
        )?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let mut raw = [word(0), word(8)];
        if !self.shape.wide {
            raw[0] &= u64::from(u32::MAX);
        }
        if raw[0] & 1 != 0 || raw[1] >> 32 & 1 == 0 {
            let (port, slot) = (job.port, job.slot);
            self.record_violation(format!(
                "port {port}, slot {slot}: region {index} is at an odd address or of odd length \
                [AHCI 4.2.3.3]"
            ));
        }
        Ok(Region::from_raw(raw))
    }
}

/// The command in a frame.
pub(super) fn task(frame: &RegisterToDevice) -> TaskFile {
    let ext = is_ext(frame.command());
    let features = u16::from_le_bytes([frame.features(), frame.features_high()]);
    TaskFile {
        command: frame.command(),
        features: if ext { features } else { features & 0xff },
        count: if ext { frame.count() } else { frame.count() & 0xff },
        lba: if ext { frame.lba48() } else { frame.lba28() },
        device: frame.device(),
        ext,
    }
}
