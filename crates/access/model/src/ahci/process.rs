//! The way of a command: taken from its slot, met by a fault or not, done, and its end told. [AHCI
//! 5.3, 5.5, 6.2]

use std::time::{Duration, Instant};

use ring3_spec::ahci::fis::FLAG_COMMAND;
use ring3_spec::ahci::port::Interrupts;
use ring3_spec::ahci::{CommandHeader, HEADER_BYTES, HeaderFlags};
use ring3_spec::ata::{ErrorBits, Status, TaskFile};

use super::controller::AhciModel;
use super::memory;
use super::port::{Attached, Health};
use crate::ata::{self, End, Plan, Protocol};
use crate::fault::{Action, Event};
use crate::held::Waiting;
use crate::{Bus, Timing};

/// How long a reordered command waits for another one to overtake it, and one behind a wrong
/// interrupt for its turn.
const PATIENCE: Duration = Duration::from_millis(10);
/// PxCMD.CCS: the slot of the last command that was taken. [AHCI 3.3.7]
const CURRENT_SLOT: u32 = 0x1f << 8;
pub(super) const BUSY: Status = Status(0xd0);
/// DRDY and DSC.
const READY: Status = Status(0x50);

/// A command that was taken from its slot.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) port: usize,
    pub(super) slot: u8,
    pub(super) header: HeaderFlags,
    pub(super) table: u64,
    pub(super) task: TaskFile,
}

impl Job {
    pub(super) fn bit(&self) -> u32 {
        1 << self.slot
    }

    pub(super) fn is_queued(&self) -> bool {
        ata::is_queued(self.task.command)
    }
}

impl AhciModel {
    /// Takes commands of port `p` until there are none, or one keeps the drive busy.
    pub(super) fn work(&mut self, bus: &Bus, p: usize) {
        while !bus.is_removed()
            && let Some(slot) = self.ports[p].next_slot()
        {
            let port = &mut self.ports[p];
            port.last = slot;
            port.command.0 = port.command.0 & !CURRENT_SLOT | u32::from(slot) << 8;
            match self.fetch(bus, p, slot) {
                Ok((_, frame)) if frame.flags() & FLAG_COMMAND == 0 => {
                    self.ports[p].issue &= !(1 << slot);
                    self.soft_reset(bus, p, frame.control() & 1 << 2 != 0);
                }
                Ok((header, frame)) => {
                    let task = memory::task(&frame);
                    let flags = HeaderFlags(header.flags());
                    self.accept(
                        bus,
                        Job { port: p, slot, header: flags, table: header.table(), task },
                    );
                }
                Err(_) => self.lose_memory(bus, p),
            }
        }
    }

    fn accept(&mut self, bus: &Bus, job: Job) {
        let p = job.port;
        if self.ports[p].health != Health::Well {
            // Nobody answers the frame.
            return self.ports[p].set_status(BUSY, ErrorBits(0));
        }
        if let Attached::Other(signature) = self.ports[p].attached {
            // Its signature stands where an address would. [ACS-3 7.12.4]
            let end = End { lba: u64::from(signature.into_raw() >> 8), ..End::aborted() };
            return self.fail(bus, &job, &end);
        }
        if let Some(broken) = self.broken_rule(&job) {
            self.record_violation(format!("port {p}, slot {}: {broken}", job.slot));
            return self.fail_all(bus, &job);
        }
        let event = ata::describe(p, &job.task);
        let is_io = matches!(event, Event::Command { queue, .. } if queue != 0);
        self.record.count_command(is_io);
        let speed = self.ports[p].link.speed();
        let broken = self.shape.drive.fails_at(&job.task, speed).then_some(Action::Fatal);
        let fault =
            self.faults.check(&event).or(broken).or_else(|| self.shape.drive.fault(&job.task));
        if matches!(fault, Some(Action::Busy | Action::BusyUntilReset)) {
            let health = if fault == Some(Action::Busy) { Health::Dead } else { Health::Hung };
            self.ports[p].health = health;
            return self.ports[p].set_status(BUSY, ErrorBits(0));
        }
        if job.is_queued() {
            let end = End { status: READY, error: ErrorBits(0), lba: 0 };
            self.ports[p].issue &= !job.bit();
            self.ports[p].queued |= job.bit();
            self.receive_register(bus, p, &job.task, &end, false);
        } else {
            self.ports[p].set_status(BUSY, ErrorBits(0));
        }
        self.schedule(bus, job, fault, is_io);
    }

    /// What a drive does not forgive: the tag, and queued and other commands at the same time.
    /// [SATA 13.6.4, ACS-3 4.16]
    fn broken_rule(&self, job: &Job) -> Option<String> {
        let port = &self.ports[job.port];
        match (job.is_queued(), port.active & job.bit() != 0) {
            (true, false) => Some(
                "a queued command whose bit was not set in PxSACT before PxCI [AHCI 5.5.1]".into(),
            ),
            (false, true) => {
                Some("a command that is not queued has its bit set in PxSACT [AHCI 5.5.1]".into())
            }
            (false, false) if port.queued != 0 => Some(format!(
                "not queued, while the drive has the queued commands {:#x} [SATA 13.6.4]",
                port.queued
            )),
            (true, true) if self.capabilities().queued() == 0 => {
                Some("a queued command, and CAP.SNCQ is clear [AHCI 3.1.1]".into())
            }
            (true, true) if job.task.count >> 3 & 0x1f != u16::from(job.slot) => Some(format!(
                "its tag is {}, and must be the slot's number [AHCI 5.5.1]",
                job.task.count >> 3
            )),
            (true, true) if port.queued & job.bit() != 0 => {
                Some("the drive has a command of that tag already [SATA 13.6.4]".into())
            }
            _ => None,
        }
    }

    fn schedule(&mut self, bus: &Bus, job: Job, fault: Option<Action>, is_io: bool) {
        let wait = |due, after_next| Waiting { what: job, due, after_next };
        match (fault, self.shape.timing) {
            (None, Timing::Held) if is_io => self.held.push(wait(None, false)),
            (None, Timing::After(delay)) if is_io => {
                self.hold_until(bus, wait(Some(Instant::now() + delay), false))
            }
            (Some(Action::Delay(delay)), _) => {
                self.hold_until(bus, wait(Some(Instant::now() + delay), false))
            }
            (Some(Action::Hang), _) => self.held.push(wait(None, false)),
            (Some(Action::Reorder), _) => {
                self.hold_until(bus, wait(Some(Instant::now() + PATIENCE), true))
            }
            (Some(Action::WrongInterrupt), _) => {
                self.hold_until(bus, wait(Some(Instant::now() + PATIENCE), false));
                self.signal(bus);
                bus.set_level(true);
                self.set_level(bus);
            }
            (Some(Action::Remove), _) => bus.remove(),
            (Some(Action::Unplug), _) => self.unplug(bus, job.port),
            (Some(Action::Fatal), _) => {
                self.stop(bus, job.port, Interrupts(0).with_interface_fatal(1))
            }
            _ => self.run(bus, &job, fault),
        }
    }

    fn hold_until(&mut self, bus: &Bus, waiting: Waiting<Job>) {
        if let Some(due) = waiting.due {
            bus.wake_at(due);
        }
        self.held.push(waiting);
    }

    /// Does a command and tells its end; then those that waited for it.
    pub(super) fn run(&mut self, bus: &Bus, job: &Job, fault: Option<Action>) {
        if let Some(Action::StrayDma(iova)) = fault {
            let _ = bus.write(iova, &[0xbd; 64]);
        }
        if let Some((plan, end)) = self.perform(bus, job, fault) {
            self.muted = fault == Some(Action::LoseInterrupt);
            self.finish(bus, job, plan.as_ref(), &end, fault);
            self.muted = false;
        }
        if let Some(late) = self.held.take_after_next(|late| late.port == job.port) {
            self.run(bus, &late, None);
        }
        self.work(bus, job.port);
    }

    /// What the command does; `None` if its end cannot be told, because memory was not reached.
    fn perform(
        &mut self,
        bus: &Bus,
        job: &Job,
        fault: Option<Action>,
    ) -> Option<(Option<Plan>, End)> {
        let mut plan = match self.ports[job.port].drive()?.begin(&job.task, fault) {
            Ok(plan) => plan,
            Err(end) => return Some((None, end)),
        };
        let p = job.port;
        if plan.protocol != Protocol::NonData && (job.header.write() != 0) != plan.protocol.writes()
        {
            self.record_violation(format!(
                "port {p}, slot {}: the header's W bit says the other direction [AHCI 4.2.2]",
                job.slot
            ));
        }
        if job.is_queued() {
            self.receive_dma(bus, p, job.slot, &plan);
        } else if plan.protocol == Protocol::PioOut {
            self.receive_pio(bus, p, &plan, &End { status: BUSY, error: ErrorBits(0), lba: 0 });
        }
        let moved = match self.move_data(bus, job, &mut plan) {
            Ok(moved) if fault != Some(Action::DmaError) => moved,
            _ => {
                self.lose_memory(bus, p);
                return None;
            }
        };
        if moved < plan.bytes {
            let (slot, bytes) = (job.slot, plan.bytes);
            self.record_violation(format!(
                "port {p}, slot {slot}: the regions have {moved} bytes, the command moves {bytes} \
                [AHCI 6.1.5]"
            ));
            self.happen(bus, p, Interrupts(0).with_overflow(1));
        }
        if !job.is_queued() && self.note_moved(bus, job, moved).is_err() {
            self.lose_memory(bus, p);
            return None;
        }
        let end = self.ports[p].drive()?.finish(&job.task, &plan);
        Some((Some(plan), end))
    }

    /// PRDBC. [AHCI 4.2.2]
    fn note_moved(&self, bus: &Bus, job: &Job, moved: usize) -> Result<(), crate::Blocked> {
        let header = self.ports[job.port].list + u64::from(job.slot) * HEADER_BYTES as u64;
        debug_assert_eq!(CommandHeader::SIZE, HEADER_BYTES);
        bus.write(header + 4, &(moved as u32).to_le_bytes())
    }
}
