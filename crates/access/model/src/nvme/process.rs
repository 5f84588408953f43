//! The way of a command: taken from its queue, met by a fault or not, done, and its end written
//! down.

use std::time::{Duration, Instant};

use ring3_device::irq::IrqKind;
use ring3_spec::nvme::{Completion, Status, Submission, opcode};

use super::controller::NvmeModel;
use super::quirk::Quirk;
use crate::fault::{Action, Event};
use crate::held::Waiting;
use crate::{Blocked, Bus, Timing};

/// How long a reordered command waits for another one to overtake it.
const REORDER_PATIENCE: Duration = Duration::from_millis(10);
/// Interrupts that a storm sends at a time: more than a driver lets through at once, so that it is
/// a storm on a busy machine, too.
const STORM_BURST: u32 = 8192;

/// How a command ended; `None` if it has not yet (asynchronous event requests).
pub(super) type End = Option<Result<u32, Status>>;

/// A command that was taken from its queue.
pub(super) struct Taken {
    pub(super) queue: u16,
    pub(super) command: Submission,
}

impl NvmeModel {
    /// Takes commands of `queue` until there are none, or no room for their ends.
    #[inline]
    pub(super) fn work(&mut self, bus: &Bus, queue: u16) {
        while !self.is_stopped() && !bus.is_removed() {
            let Some(Some(submission)) = self.submission.get_mut(usize::from(queue)) else {
                return;
            };
            let completion = self.completion.get(usize::from(submission.completion));
            if completion.is_none_or(|queue| queue.as_ref().is_none_or(|queue| queue.is_stuffed()))
            {
                return;
            }
            match submission.fetch(bus) {
                Ok(Some(command)) => self.accept(bus, queue, command),
                Ok(None) => return,
                // A controller that cannot read its queue cannot go on. [NVMe 9.5]
                Err(_) => return self.fail(),
            }
        }
    }

    #[inline]
    fn accept(&mut self, bus: &Bus, queue: u16, command: Submission) {
        let counter = if queue == 0 {
            &mut self.counters.admin_commands
        } else {
            &mut self.counters.commands
        };
        *counter += 1;
        let fault = self.faults.check(&describe(queue, &command));
        if queue != 0 && self.is_peculiar && self.is_kept(bus, (queue, &command), fault) {
            return;
        }
        let wait = |due, after_next| Waiting { what: Taken { queue, command }, due, after_next };
        match (fault, self.shape.timing) {
            (None, Timing::Held) if queue != 0 => self.held.push(wait(None, false)),
            (None, Timing::After(delay)) | (Some(Action::Delay(delay)), _)
                if queue != 0 || fault.is_some() =>
            {
                self.hold_until(bus, wait(Some(Instant::now() + delay), false));
            }
            (Some(Action::Hang), _) => self.held.push(wait(None, false)),
            (Some(Action::Reorder), _) => {
                self.hold_until(bus, wait(Some(Instant::now() + REORDER_PATIENCE), true))
            }
            (Some(Action::Fatal), _) => self.fail(),
            (Some(Action::Remove), _) => bus.remove(),
            (Some(Action::FunctionReset), _) => self.restart_unasked(bus),
            (Some(Action::LosePower), _) => self.lose_power(bus),
            _ => self.run(bus, queue, &command, fault),
        }
    }

    /// Whether an I/O command, which meets `fault`, is done later than usual, or never.
    fn is_kept(
        &mut self,
        bus: &Bus,
        (queue, &command): (u16, &Submission),
        fault: Option<Action>,
    ) -> bool {
        if !self.shape.quirks.is_empty() && self.stumbles(bus, queue, &command) {
            return true;
        }
        let usual = match self.shape.timing {
            Timing::Inline => Duration::ZERO,
            Timing::After(delay) => delay,
            Timing::Held => return false,
        };
        let cost = self.cost(bus, &command);
        if cost.is_zero() || fault.is_some() {
            return false;
        }
        let due = Some(Instant::now() + usual + cost);
        self.hold_until(bus, Waiting { what: Taken { queue, command }, due, after_next: false });
        true
    }

    /// What an I/O command costs beside the usual.
    fn cost(&mut self, bus: &Bus, command: &Submission) -> Duration {
        let wakes = if self.shape.sleeps.is_empty() { Duration::ZERO } else { self.wake_cost(bus) };
        let reads = command.opcode() == opcode::nvm::READ && self.shape.host_memory.preferred > 0;
        wakes + if reads { self.mapping_cost(bus, command) } else { Duration::ZERO }
    }

    /// Whether one of its quirks keeps an I/O command from being done.
    fn stumbles(&mut self, bus: &Bus, queue: u16, command: &Submission) -> bool {
        let more = self.submission[usize::from(queue)]
            .as_ref()
            .is_some_and(|queue| queue.head != queue.tail);
        let crashes = self.shape.has(Quirk::SingleCommand) && more
            || self.features.changes_power_state
            || self.shape.has(Quirk::BrokenDeepestState)
                && self.power.may_enter(self.shape.sleeps.len())
            || self.shape.has(Quirk::BrokenMsi) && bus.interrupts.kind() == Some(IrqKind::Msi);
        if crashes {
            self.fail();
        }
        let hangs = command.opcode() == opcode::nvm::WRITE_ZEROES
            && self.shape.has(Quirk::WriteZeroesHangs);
        if hangs {
            let what = Taken { queue, command: *command };
            self.held.push(Waiting { what, due: None, after_next: false });
        }
        crashes || hangs
    }

    fn hold_until(&mut self, bus: &Bus, waiting: Waiting<Taken>) {
        if let Some(due) = waiting.due {
            bus.wake_at(due);
        }
        self.held.push(waiting);
    }

    /// Does a command and writes its end down.
    pub(super) fn run(
        &mut self,
        bus: &Bus,
        queue: u16,
        command: &Submission,
        fault: Option<Action>,
    ) {
        if let Some(Action::StrayDma(iova)) = fault {
            let _ = bus.write(iova, &[0xbd; 64]);
        }
        let end = match fault {
            Some(Action::Status(status)) => Some(Err(Status(status))),
            _ if queue == 0 => self.admin(bus, command, fault == Some(Action::EndlessList)),
            _ => Some(self.io(bus, command, fault == Some(Action::Corrupt))),
        };
        if let Some(end) = end {
            self.finish(bus, queue, command, end, fault);
        }
        if let Some(late) = self.held.take_after_next(|late| late.queue == queue) {
            self.run(bus, late.queue, &late.command, None);
        }
    }

    /// Writes the end of a command down, as the fault wants it.
    pub(super) fn finish(
        &mut self,
        bus: &Bus,
        queue: u16,
        command: &Submission,
        end: Result<u32, Status>,
        fault: Option<Action>,
    ) {
        let Some(Some(submission)) = self.submission.get(usize::from(queue)) else { return };
        let (head, target) = (submission.head as u16, submission.completion);
        let (status, result) = match end {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (self.features.told(status), 0),
        };
        if !status.is_success() {
            self.logs.note_error(queue, command, status);
        }
        let entry = |id| Completion::new(queue, head, id, status).with_result(result);
        let id = command.id();
        match fault {
            Some(Action::Drop) => {}
            Some(Action::WrongId(bits)) => self.post(bus, target, entry(id ^ bits), fault),
            Some(Action::Invent(bits)) => {
                self.post(bus, target, entry(id ^ bits), None);
                self.post(bus, target, entry(id), None);
            }
            Some(Action::Duplicate) => {
                self.post(bus, target, entry(id), None);
                self.post(bus, target, entry(id), None);
            }
            _ => self.post(bus, target, entry(id), fault),
        }
    }

    /// Writes an entry and sends the interrupt.
    #[inline]
    fn post(&mut self, bus: &Bus, target: u16, entry: Completion, fault: Option<Action>) {
        let Some(Some(queue)) = self.completion.get_mut(usize::from(target)) else { return };
        let vector = queue.vector;
        let written = queue.post(bus, entry, fault == Some(Action::WrongPhase));
        match fault {
            Some(Action::LoseInterrupt) => {}
            Some(Action::Storm(count)) => {
                self.announce(bus, vector, written);
                self.storm = vector.map(|vector| (vector, count));
                bus.wake_at(Instant::now());
            }
            _ => self.announce(bus, vector, written),
        }
    }

    #[inline]
    fn announce(&mut self, bus: &Bus, vector: Option<u16>, written: Result<bool, Blocked>) {
        match (written, vector) {
            // A controller that cannot write its queue cannot go on. [NVMe 9.5]
            (Err(_), _) => self.fail(),
            (Ok(true), Some(vector)) => {
                self.counters.interrupts += 1;
                if self.is_open(vector) {
                    bus.raise(vector);
                    bus.set_level(true);
                }
            }
            (Ok(_), _) => {}
        }
    }

    /// The host has taken entries of completion queue `target`: what waited for room goes on.
    pub(super) fn make_room(&mut self, bus: &Bus, target: u16) {
        let Some(Some(queue)) = self.completion.get_mut(usize::from(target)) else { return };
        if queue.is_stuffed() {
            let (vector, written) = (queue.vector, queue.catch_up(bus));
            self.announce(bus, vector, written);
            for index in 0..self.submission.len() {
                if self.submission[index].as_ref().is_some_and(|queue| queue.completion == target) {
                    self.work(bus, index as u16);
                }
            }
        }
        if self.storm.is_none() {
            self.update_pin(bus);
        }
    }

    /// Does the commands whose time has come.
    pub(super) fn release_due(&mut self, bus: &Bus, now: Instant) {
        while let Some(waiting) = self.held.take_due(now) {
            self.run(bus, waiting.queue, &waiting.command, None);
        }
    }

    /// Sends the next interrupts of a storm.
    pub(super) fn raise_storm(&mut self, bus: &Bus) {
        let Some((vector, left)) = self.storm else { return };
        for _ in 0..left.min(STORM_BURST) {
            bus.raise(vector);
        }
        self.storm =
            left.checked_sub(STORM_BURST).filter(|left| *left > 0).map(|left| (vector, left));
        if self.storm.is_some() { bus.set_level(true) } else { self.update_pin(bus) }
    }
}

/// What the fault hooks see of a command.
fn describe(queue: u16, command: &Submission) -> Event {
    let opcode = command.opcode();
    let has_blocks = queue != 0
        && matches!(opcode, opcode::nvm::READ | opcode::nvm::WRITE | opcode::nvm::WRITE_ZEROES);
    Event::Command {
        queue,
        opcode,
        blocks: has_blocks.then(|| (command.lba(), command.blocks().into())),
    }
}
