//! Data that the processor moves, one interrupt's worth at a time. [ATA-6 9.5, 9.6]

use std::convert::Infallible;

use super::channel::{BUSY, Job, Phase, READY, REQUEST};
use super::controller::IdeModel;
use crate::Bus;
use crate::ata::Plan;

impl Job {
    /// Bytes of its data that move before the next interrupt.
    fn next(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan: &Plan| plan.block.min(plan.bytes - self.done))
    }

    fn has_more(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| self.done < plan.bytes)
    }
}

impl IdeModel {
    /// The drive has data for the processor.
    pub(super) fn offer(&mut self, bus: &Bus, c: usize) {
        let channel = &mut self.channels[c];
        let Some(job) = &mut channel.job else { return };
        let unit = &mut channel.units[job.unit];
        let (Some(drive), Some(plan)) = (unit.drive(), &job.plan) else { return };
        let mut buffer = vec![0; job.next()];
        let given: Result<(), Infallible> =
            drive.give(plan, job.done, buffer.len(), |at, bytes| {
                buffer[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            });
        let Ok(()) = given;
        (job.phase, job.buffer, job.at) = (Phase::Pio, buffer, 0);
        (unit.status, unit.interrupt) = (REQUEST, true);
        self.muted = job.fault == Some(crate::fault::Action::LoseInterrupt);
        self.update(bus, c);
        self.muted = false;
    }

    /// The drive wants data of the processor. The first time it does not interrupt for it. [ATA-6
    /// 9.6]
    pub(super) fn ask(&mut self, c: usize) {
        let channel = &mut self.channels[c];
        let Some(job) = &mut channel.job else { return };
        (job.phase, job.buffer, job.at) = (Phase::Pio, vec![0; job.next()], 0);
        channel.units[job.unit].status = REQUEST;
    }

    /// The data port is read.
    pub(super) fn read_data(&mut self, bus: &Bus, c: usize, width: usize) -> u64 {
        let Some((job, piece)) = self.pio(c, width, false) else { return u64::MAX };
        let mut word = [0; 8];
        word[..width].copy_from_slice(&job.buffer[piece]);
        job.at += width;
        if job.at == job.buffer.len() {
            job.done += job.at;
            if job.has_more() {
                let unit = job.unit;
                self.set_status(c, unit, BUSY);
                self.offer(bus, c);
            } else {
                self.end(bus, c);
            }
        }
        u64::from_le_bytes(word)
    }

    /// The data port is written.
    pub(super) fn write_data(&mut self, bus: &Bus, c: usize, width: usize, value: u64) {
        let Some((job, piece)) = self.pio(c, width, true) else { return };
        job.buffer[piece].copy_from_slice(&value.to_le_bytes()[..width]);
        job.at += width;
        if job.at == job.buffer.len() {
            self.store(bus, c);
        }
    }

    /// The drive has got one interrupt's worth of data.
    fn store(&mut self, bus: &Bus, c: usize) {
        let channel = &mut self.channels[c];
        let Some(job) = &mut channel.job else { return };
        let unit = &mut channel.units[job.unit];
        let buffer = std::mem::take(&mut job.buffer);
        let (Some(drive), Some(plan)) = (unit.drive(), &mut job.plan) else { return };
        let taken: Result<(), Infallible> =
            drive.take(plan, job.done, buffer.len(), |at, bytes| {
                bytes.copy_from_slice(&buffer[at..at + bytes.len()]);
                Ok(())
            });
        let Ok(()) = taken;
        job.done += buffer.len();
        if job.has_more() {
            unit.interrupt = true;
            self.ask(c);
            self.update(bus, c);
        } else {
            unit.status = READY;
            self.end(bus, c);
        }
    }

    /// The command of the selected drive, if it is at moving data this way, and where the next
    /// `width` bytes of them lie.
    fn pio(
        &mut self,
        c: usize,
        width: usize,
        writes: bool,
    ) -> Option<(&mut Job, std::ops::Range<usize>)> {
        let channel = &self.channels[c];
        let selected = channel.selected();
        let fits = |job: &&Job| {
            let way = job.plan.as_ref().is_some_and(|plan| plan.protocol.writes() == writes);
            job.unit == selected
                && job.phase == Phase::Pio
                && way
                && job.at + width <= job.buffer.len()
        };
        let moves = channel.job.as_ref().filter(fits).is_some();
        if !moves || width == 1 {
            if channel.units[selected].is().is_some() {
                self.record_violation(
                    c,
                    "the data port is accessed while the drive does not ask for it [ATA-6 7.6]",
                );
            }
            return None;
        }
        let job = self.channels[c].job.as_mut()?;
        let at = job.at;
        Some((job, at..at + width))
    }
}
