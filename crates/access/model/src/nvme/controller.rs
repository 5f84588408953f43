//! The controller: its registers, its life from enable to shutdown, and its doorbells. [NVMe 3.1,
//! 3.5, 3.6]

use std::time::{Duration, Instant};

use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::identify::csi;
use ring3_spec::nvme::log;
use ring3_spec::nvme::registers::{self, Aqa, Cc, Csts};
use ring3_spec::nvme::{COMPLETION_SHIFT, SUBMISSION_SHIFT};

use super::events::Events;
use super::features::Features;
use super::host_memory::Mapping;
use super::logs::Logs;
use super::namespace::Namespace;
use super::power::Power;
use super::process::Taken;
use super::queue::{CompletionQueue, SubmissionQueue};
use super::quirk::Quirk;
use super::shape::Shape;
use crate::Bus;
use crate::fault::{Action, Event, FaultPlan};
use crate::held::Held;
use crate::violations::Violations;

pub(super) const PAGE: u64 = 4096;
/// CAP.MPSMAX: pages of up to 64 KiB.
pub(super) const PAGE_MAX_SHIFT: u32 = 4;

/// How long CSTS cannot be read with [`Quirk::SlowReady`].
const SILENCE: Duration = Duration::from_secs(2);

/// An NVMe controller with its namespaces.
pub struct NvmeModel {
    pub(super) shape: Shape,
    pub(super) faults: FaultPlan,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) submission: Vec<Option<SubmissionQueue>>,
    pub(super) completion: Vec<Option<CompletionQueue>>,
    pub(super) held: Held<Taken>,
    pub(super) events: Events,
    pub(super) features: Features,
    pub(super) logs: Logs,
    pub(super) counters: Counters,
    pub(super) cc: Cc,
    pub(super) csts: Csts,
    pub(super) aqa: Aqa,
    pub(super) asq: u64,
    pub(super) acq: u64,
    pub(super) interrupt_mask: u32,
    /// When CSTS.RDY follows CC.EN.
    pub(super) ready_due: Option<Instant>,
    /// When CC.EN was cleared the last time.
    pub(super) cleared: Option<Instant>,
    /// It was reset by somebody else, and the host has not written CC since: what it does meanwhile
    /// it cannot know better.
    pub(super) estranged: bool,
    /// Rules that the host broke.
    pub(super) violations: Violations,
    /// What it is called since it is another one.
    pub(super) serial: Option<String>,
    /// Namespaces that have changed, for log page 04h.
    pub(super) changed: Vec<u32>,
    /// The mapping of blocks, and the memory of the host that it is in.
    pub(super) mapping: Mapping,
    /// Its power state.
    pub(super) power: Power,
    /// Commands of I/O queues may cost more than [`Shape::timing`] says, or not be done.
    pub(super) is_peculiar: bool,
    /// Interrupts that a storm has still to send, and where.
    pub(super) storm: Option<(u16, u32)>,
}

/// What the host did, for tests of a driver's economy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes to tail doorbells of I/O submission queues.
    pub submission_doorbells: u64,
    /// Writes to head doorbells of I/O completion queues.
    pub completion_doorbells: u64,
    /// Commands that were taken from I/O queues.
    pub commands: u64,
    /// Commands that were taken from the admin queue.
    pub admin_commands: u64,
    /// How often it was enabled.
    pub enables: u64,
    /// Interrupts that were sent or would have been if they were not masked.
    pub interrupts: u64,
}

impl NvmeModel {
    /// A controller after power-on, with empty media.
    pub fn new(shape: Shape, faults: FaultPlan) -> Self {
        let queues = usize::from(shape.queues) + 1;
        let mut model = Self {
            namespaces: shape
                .namespaces
                .iter()
                .map(|&namespace| Namespace::new(namespace, shape.cache))
                .collect(),
            features: Features::new(&shape),
            is_peculiar: shape.is_peculiar(),
            shape,
            faults,
            submission: Vec::new(),
            completion: Vec::new(),
            held: Held::default(),
            events: Events::default(),
            logs: Logs::default(),
            counters: Counters::default(),
            cc: Cc(0),
            csts: Csts(0),
            aqa: Aqa(0),
            asq: 0,
            acq: 0,
            interrupt_mask: 0,
            ready_due: None,
            cleared: None,
            estranged: false,
            violations: Violations::default(),
            serial: None,
            changed: Vec::new(),
            mapping: Mapping::default(),
            power: Power::default(),
            storm: None,
        };
        model.submission.resize_with(queues, || None);
        model.completion.resize_with(queues, || None);
        model
    }

    /// CC.MPS in bytes.
    pub(super) fn page(&self) -> u64 {
        PAGE << self.cc.page_size()
    }

    /// Whether it takes no commands now: it has failed, or activates new firmware.
    pub(super) fn is_stopped(&self) -> bool {
        self.csts.0 & (Csts(0).with_fatal(1).0 | Csts(0).with_paused(1).0) != 0
    }

    /// It begins to activate new firmware, or has done so.
    pub(super) fn pause(&mut self, bus: &Bus, paused: bool) {
        if paused {
            let (kind, info) = (AsyncEvent::NOTICE, AsyncEvent::FIRMWARE_ACTIVATION);
            self.post_event(bus, AsyncEvent::new(kind, info, log::FIRMWARE_SLOTS));
        }
        self.csts = self.csts.with_paused(paused.into());
        (0..self.submission.len()).for_each(|queue| self.work(bus, queue as u16));
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.csts.fatal() != 0
    }

    /// Stops everything and says so. [NVMe 9.5]
    pub(super) fn fail(&mut self) {
        self.csts = self.csts.with_fatal(1);
        self.held.clear();
    }

    pub(super) fn configure(&mut self, bus: &Bus, cc: Cc) {
        let old = std::mem::replace(&mut self.cc, cc);
        self.estranged = false;
        if old.enable() != cc.enable() {
            self.counters.enables += u64::from(cc.enable());
            if self.faults.check(&Event::Enable) == Some(Action::StuckReady) {
                // As if the bit had not been written, though it reads back as it was.
                return;
            }
            if cc.enable() == 0 {
                self.cleared = Some(Instant::now());
                if self.ready_due.is_some() {
                    self.violations.add(
                        "CC.EN was cleared while the controller starts, before CSTS.RDY is 1 [NVMe \
                         3.1.4.5]"
                            .into(),
                    );
                }
                self.stop(bus);
            }
            if self.shape.ready.is_zero() {
                self.follow_enable();
            } else {
                let due = Instant::now() + self.shape.ready;
                self.ready_due = Some(due);
                bus.wake_at(due);
            }
        }
        if old.shutdown() != cc.shutdown() && cc.shutdown() != Cc::SHN_NONE {
            // Shutdown notification: what is in the cache goes to the medium. [NVMe 3.6.1]
            self.namespaces.iter_mut().for_each(Namespace::flush);
            self.csts = self.csts.with_shutdown(Csts::SHUTDOWN_DONE);
        }
    }

    /// Whether CSTS cannot be read yet, because CC.EN was cleared a moment ago.
    pub(super) fn is_silent(&self) -> bool {
        self.shape.has(Quirk::SlowReady)
            && self.cleared.is_some_and(|cleared| cleared.elapsed() < SILENCE)
    }

    pub(super) fn follow_enable(&mut self) {
        self.ready_due = None;
        self.events = Events::default();
        if self.cc.enable() == 0 {
            self.csts = Csts(0);
        } else if self.start() {
            self.csts = self.csts.with_ready(1).with_shutdown(Csts::SHUTDOWN_NONE);
        } else {
            self.fail();
        }
    }

    /// Takes the admin queue over; false if the configuration makes no sense. [NVMe 3.5.1]
    fn start(&mut self) -> bool {
        let (cc, page) = (self.cc, self.page());
        let sizes = [self.aqa.submission_0based() + 1, self.aqa.completion_0based() + 1];
        let valid = (cc.command_set() == Cc::CSS_NVM
            || cc.command_set() == Cc::CSS_ALL && self.has_command_sets())
            && (self.shape.mpsmin..=PAGE_MAX_SHIFT).contains(&cc.page_size())
            && cc.arbitration() == 0
            && sizes.iter().all(|&size| size >= 2)
            && self.asq.is_multiple_of(page)
            && self.acq.is_multiple_of(page);
        if valid {
            self.submission[0] = Some(SubmissionQueue::new(self.asq, sizes[0], 0));
            self.completion[0] = Some(CompletionQueue::new(self.acq, sizes[1], Some(0)));
        }
        valid
    }

    /// Whether CC says the sizes of I/O queue entries that exist. [NVMe 3.1.4.5]
    pub(super) fn entry_sizes_are_set(&self) -> bool {
        self.cc.submission_entry() == SUBMISSION_SHIFT
            && self.cc.completion_entry() == COMPLETION_SHIFT
    }

    /// Controller reset: queues, commands and settings are forgotten, the admin queue's place is
    /// kept. [NVMe 3.7.2]
    fn stop(&mut self, bus: &Bus) {
        self.submission.iter_mut().for_each(|queue| *queue = None);
        self.completion.iter_mut().for_each(|queue| *queue = None);
        self.held.clear();
        self.events = Events::default();
        self.features = Features::new(&self.shape);
        self.mapping.stop();
        self.power.stop();
        self.interrupt_mask = 0;
        self.storm = None;
        self.update_pin(bus);
    }

    /// Everything as after power-on, counters of the host's doings and the medium aside.
    pub(super) fn restart(&mut self, bus: &Bus) {
        self.stop(bus);
        (self.cc, self.csts, self.aqa, self.asq, self.acq) = (Cc(0), Csts(0), Aqa(0), 0, 0);
        self.ready_due = None;
    }

    /// A reset that the host did not ask this controller for: of the function, of its bus, of the
    /// power.
    pub(super) fn restart_unasked(&mut self, bus: &Bus) {
        self.restart(bus);
        self.estranged = true;
    }

    /// The power goes and comes back: what was only in the cache is lost.
    pub(super) fn lose_power(&mut self, bus: &Bus) {
        let orderly = self.csts.shutdown() == Csts::SHUTDOWN_DONE;
        self.logs.power_cycle(orderly);
        self.namespaces.iter_mut().for_each(Namespace::lose_power);
        self.mapping.lose_power();
        self.restart_unasked(bus);
    }

    /// CAP.CSS: whether there are command sets besides NVM, to be had with CC.CSS = 110b. [NVMe
    /// 3.1.4.1]
    pub(super) fn has_command_sets(&self) -> bool {
        self.shape.namespaces.iter().any(|namespace| namespace.command_set != csi::NVM)
    }

    /// A write at or above the doorbells. [NVMe-PCIe 3.1.2]
    #[inline]
    pub(super) fn doorbell(&mut self, bus: &Bus, offset: u64, value: u32) {
        if self.csts.ready() == 0 && !self.estranged {
            self.violations.add(format!(
                "a write to the doorbell at {offset:#x} while CSTS.RDY is 0 [NVMe 3.5.1]"
            ));
        }
        if self.csts.ready() == 0 || self.is_fatal() {
            return;
        }
        let index = (offset - u64::from(registers::DOORBELLS)) >> (2 + self.shape.stride);
        let queue = (index / 2) as u16;
        if index.is_multiple_of(2) {
            self.ring(bus, queue, value)
        } else {
            self.take(bus, queue, value)
        }
    }

    fn ring(&mut self, bus: &Bus, queue: u16, tail: u32) {
        let Some(Some(submission)) = self.submission.get_mut(usize::from(queue)) else {
            return self.refuse_doorbell(
                bus,
                AsyncEvent::INVALID_DOORBELL,
                ("submission", queue, tail),
            );
        };
        if tail >= submission.size {
            return self.refuse_doorbell(
                bus,
                AsyncEvent::INVALID_DOORBELL_VALUE,
                ("submission", queue, tail),
            );
        }
        submission.tail = tail;
        self.counters.submission_doorbells += u64::from(queue != 0);
        self.work(bus, queue);
    }

    fn take(&mut self, bus: &Bus, queue: u16, head: u32) {
        let Some(Some(completion)) = self.completion.get_mut(usize::from(queue)) else {
            return self.refuse_doorbell(
                bus,
                AsyncEvent::INVALID_DOORBELL,
                ("completion", queue, head),
            );
        };
        if head >= completion.size || !completion.taken(head) {
            return self.refuse_doorbell(
                bus,
                AsyncEvent::INVALID_DOORBELL_VALUE,
                ("completion", queue, head),
            );
        }
        self.counters.completion_doorbells += u64::from(queue != 0);
        self.make_room(bus, queue);
    }

    #[cold]
    fn refuse_doorbell(&mut self, bus: &Bus, why: u32, (kind, queue, value): (&str, u16, u32)) {
        let what = if why == AsyncEvent::INVALID_DOORBELL {
            "which does not exist"
        } else {
            "which cannot be"
        };
        self.violations.add(format!(
            "{value} was written to the doorbell of {kind} queue {queue}, {what} [NVMe 5.1.2.1]"
        ));
        self.post_event(bus, AsyncEvent::new(AsyncEvent::ERROR, why, log::ERRORS));
    }

    /// What the pin shows: some queue with interrupts has an entry that the host has not taken.
    /// [NVMe-PCIe 3.5.1]
    pub(super) fn update_pin(&self, bus: &Bus) {
        let waiting = |queue: &CompletionQueue| {
            !queue.is_empty() && queue.vector.is_some_and(|vector| self.is_open(vector))
        };
        bus.set_level(self.completion.iter().flatten().any(waiting));
    }

    /// Whether INTMS lets the vector through.
    pub(super) fn is_open(&self, vector: u16) -> bool {
        vector >= 32 || self.interrupt_mask >> vector & 1 == 0
    }

    pub(super) fn set_interrupt_mask(&mut self, bus: &Bus, mask: u32) {
        let opened = self.interrupt_mask & !mask;
        self.interrupt_mask = mask;
        let waiting = self.completion.iter().flatten().filter(|queue| !queue.is_empty());
        for vector in waiting
            .filter_map(|queue| queue.vector)
            .filter(|vector| *vector < 32 && opened >> vector & 1 == 1)
        {
            bus.raise(vector);
        }
        self.update_pin(bus);
    }
}
