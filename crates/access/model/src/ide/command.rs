//! The way of a command: written, met by a fault or not, begun, and ended. [ATA-6 9]

use std::time::{Duration, Instant};

use ring3_spec::ata::{Signature, Status, opcode};

use super::channel::{Attached, BUSY, Engine, Health, Job, Phase, REQUEST};
use super::controller::IdeModel;
use crate::ata::{self, End, Protocol};
use crate::fault::{Action, Event};
use crate::held::Waiting;
use crate::{Bus, Timing};

/// How long a command waits behind a wrong interrupt.
const PATIENCE: Duration = Duration::from_millis(10);

impl IdeModel {
    /// The command register is written.
    pub(super) fn command(&mut self, bus: &Bus, c: usize, code: u8) {
        self.record.counters.doorbells += 1;
        let channel = &mut self.channels[c];
        let unit = channel.selected();
        let this = &mut channel.units[unit];
        if this.is().is_none() {
            return;
        }
        this.interrupt = false;
        this.again = false;
        let task = this.task(code, channel.device);
        let health = this.health;
        this.status = BUSY;
        let packet = matches!(this.attached, Attached::Packet);
        self.update(bus, c);
        if health != Health::Well {
            return;
        }
        let fresh = Job {
            unit,
            task,
            plan: None,
            phase: Phase::Working,
            fault: None,
            done: 0,
            buffer: Vec::new(),
            at: 0,
        };
        self.channels[c].job = Some(fresh);
        if packet {
            // Its signature stands where an address would. [ACS-3 7.12.4]
            let end = End { lba: u64::from(Signature::Atapi.into_raw() >> 8), ..End::aborted() };
            return self.finish(bus, c, &end);
        }
        let event = ata::describe(c * 2 + unit, &task);
        let is_io = matches!(event, Event::Command { queue, .. } if queue != 0);
        self.record.count_command(is_io);
        let fault = self.faults.check(&event).or_else(|| self.shape.drive.fault(&task));
        self.schedule(bus, c, fault, is_io);
    }

    fn schedule(&mut self, bus: &Bus, c: usize, fault: Option<Action>, is_io: bool) {
        let Some(job) = &mut self.channels[c].job else { return };
        job.fault = fault;
        let unit = job.unit;
        match (fault, self.shape.timing) {
            (None, Timing::Held) if is_io => self.hold(bus, c, None),
            (None, Timing::After(delay)) if is_io => self.hold(bus, c, Some(delay)),
            (Some(Action::Delay(delay)), _) => self.hold(bus, c, Some(delay)),
            (Some(Action::Hang), _) => self.hold(bus, c, None),
            (Some(Action::WrongInterrupt), _) => {
                self.hold(bus, c, Some(PATIENCE));
                self.pulse(bus, c);
            }
            (Some(Action::Busy), _) => self.hang(c, unit, Health::Dead),
            (Some(Action::BusyUntilReset), _) => self.hang(c, unit, Health::Hung),
            (Some(Action::Remove), _) => bus.remove(),
            (Some(Action::Unplug), _) => self.unplug(bus, c, unit),
            _ => self.begin(bus, c),
        }
    }

    fn hold(&mut self, bus: &Bus, c: usize, delay: Option<Duration>) {
        let due = delay.map(|delay| Instant::now() + delay);
        self.held.push(Waiting { what: c, due, after_next: false });
        if let Some(due) = due {
            bus.wake_at(due);
        }
    }

    fn hang(&mut self, c: usize, unit: usize, health: Health) {
        self.channels[c].job = None;
        self.channels[c].units[unit].health = health;
    }

    /// Begins the command of a channel: its data, or its end.
    pub(super) fn begin(&mut self, bus: &Bus, c: usize) {
        let Some(mut job) = self.channels[c].job.take() else { return };
        if let Some(Action::StrayDma(iova)) = job.fault {
            let _ = bus.write(iova, &[0xbd; 64]);
        }
        let Some(drive) = self.channels[c].units[job.unit].drive() else { return };
        let plan = match drive.begin(&job.task, job.fault) {
            Ok(plan) => plan,
            Err(end) => {
                self.channels[c].job = Some(job);
                return self.finish(bus, c, &end);
            }
        };
        let (protocol, unit) = (plan.protocol, job.unit);
        let sets_mode = job.task.command == opcode::SET_FEATURES;
        job.plan = Some(plan);
        self.channels[c].job = Some(job);
        match protocol {
            Protocol::NonData => {
                if sets_mode {
                    self.check_mode(c, unit, false);
                }
                self.end(bus, c);
            }
            Protocol::PioIn => self.offer(bus, c),
            Protocol::PioOut => self.ask(c),
            Protocol::DmaIn | Protocol::DmaOut => self.await_master(bus, c, unit),
        }
    }

    /// The drive wants its data moved by the bus master.
    fn await_master(&mut self, bus: &Bus, c: usize, unit: usize) {
        self.check_mode(c, unit, true);
        self.set_status(c, unit, REQUEST);
        if let Some(job) = &mut self.channels[c].job {
            job.phase = Phase::Dma;
        }
        match self.channels[c].engine {
            Engine::Armed => self.transfer(bus, c),
            Engine::Spent => {
                self.record_violation(
                    c,
                    "a DMA command, and the bus master was not stopped since the last [BMIDE 3.1]",
                );
            }
            Engine::Stopped => {}
        }
    }

    /// Whether chip and drive agree about the transfer mode: always the limits, at a transfer also
    /// what was set.
    fn check_mode(&mut self, c: usize, unit: usize, transfers: bool) {
        let Some(drive) = self.channels[c].units[unit].drive() else { return };
        let (mode, wide) = (drive.ultra_dma(), drive.has_wide_cable());
        let too_fast = self.mode_is_too_fast(mode, wide);
        if let Some(wrong) =
            too_fast.or_else(|| if transfers { self.mode_is_not_told(c, unit, mode) } else { None })
        {
            self.record_violation(
                c,
                &format!("drive {unit}: {wrong} [ATA-6 6.2, PIIX4 4.1.10, CMD646 4]"),
            );
        }
    }

    pub(super) fn set_status(&mut self, c: usize, unit: usize, status: Status) {
        self.channels[c].units[unit].status = status;
    }

    /// All data have moved: the drive says how it went.
    pub(super) fn end(&mut self, bus: &Bus, c: usize) {
        let channel = &mut self.channels[c];
        let Some(job) = channel.job.take() else { return };
        let end = match (channel.units[job.unit].drive(), &job.plan) {
            (Some(drive), Some(plan)) => drive.finish(&job.task, plan),
            _ => return,
        };
        channel.job = Some(job);
        self.finish(bus, c, &end);
    }

    /// Writes down how the command ended, as the fault wants it.
    pub(super) fn finish(&mut self, bus: &Bus, c: usize, end: &End) {
        let channel = &mut self.channels[c];
        let Some(job) = channel.job.take() else { return };
        let unit = &mut channel.units[job.unit];
        if job.fault == Some(Action::Drop) {
            unit.status = BUSY;
            return;
        }
        unit.status = end.status;
        unit.error = end.error;
        unit.set_lba(end.lba);
        if !job.task.ext {
            channel.device = channel.device & 0xf0 | (end.lba >> 24) as u8 & 0xf;
        }
        // Data that the processor has read are their own end. [ATA-6 9.5]
        unit.interrupt =
            end.failed() || job.plan.as_ref().is_none_or(|plan| plan.protocol != Protocol::PioIn);
        unit.again = job.fault == Some(Action::Duplicate);
        self.muted = job.fault == Some(Action::LoseInterrupt);
        self.update(bus, c);
        self.muted = false;
        match job.fault {
            Some(Action::Storm(count)) => {
                self.storm = Some((c, count));
                bus.wake_at(Instant::now());
            }
            Some(Action::Stuck) => {
                let channel = &mut self.channels[c];
                channel.master_status = channel
                    .master_status
                    .with_active(channel.master_command.start())
                    .with_interrupt(0);
            }
            _ => {}
        }
    }
}
