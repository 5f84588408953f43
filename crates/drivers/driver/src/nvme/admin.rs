//! Queue 0: commands to the controller itself, one at a time. [NVMe 3.3.1, 5]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ring3_device::dma::{Arena, DmaBuffer};
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::{Deadline, Error, Registers, poll_until};
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::registers::{self, Cap};
use ring3_spec::nvme::{
    self, COMPLETION_WORDS, Completion, PHASE_BIT, PHASE_WORD, SUBMISSION_WORDS, Status, Submission,
};

use super::checkpoint::{Checkpoint, Progress};
use super::host_memory::Lent;
use super::init;
use super::pause::Pause;

/// Entries of both admin rings.
pub(super) const ENTRIES: u32 = 32;
/// Ids from here on belong to asynchronous event requests.
pub(super) const EVENT_IDS: u16 = 0xf000;
/// Most asynchronous event requests that we keep armed.
pub(super) const MAX_EVENT_REQUESTS: u16 = 4;
/// Most events that are kept for who asks for them; older ones are dropped.
const MAX_EVENTS: usize = 64;

/// The admin queue pair. Whoever holds it may also reset the controller and create or delete
/// queues.
pub(super) struct Admin {
    pub(super) registers: Registers,
    pub(super) submission: SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    pub(super) completion: CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>,
    pub(super) stride: u32,
    pub(super) timeout: Duration,
    /// How long commands may wait for the activation of firmware; zero if nobody has said.
    pub(super) firmware_activation: Duration,
    /// Where identify structures and log pages come in.
    pub(super) page: DmaBuffer,
    pub(super) next_id: u16,
    /// Event requests in the device's hands, one bit each.
    pub(super) armed: u16,
    pub(super) event_requests: u16,
    pub(super) events: VecDeque<AsyncEvent>,
    /// Completions for nothing in flight.
    pub(super) strays: u64,
    /// Another process has the controller, and its entries are not ours to take.
    pub(super) detached: bool,
    pub(super) checkpoint: Checkpoint,
    /// A dead process may have taken events and not read their logs, without which the like of them
    /// do not come again.
    pub(super) unread: bool,
    /// Memory that the controller has for itself.
    pub(super) host_memory: Option<Lent>,
}

impl Admin {
    /// Rings in the arena, at memory pages of the controller. The device does not know them before
    /// the registers say so.
    pub(super) fn new(
        registers: Registers,
        arena: &Arena,
        cap: Cap,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let page = init::page_size(cap) as usize;
        let submission = arena
            .alloc(ENTRIES as usize * SUBMISSION_WORDS * 8, page)?
            .tagged("nvme admin commands");
        let completion = arena
            .alloc(ENTRIES as usize * COMPLETION_WORDS * 8, page)?
            .tagged("nvme admin completions");
        Ok(Self {
            registers,
            submission: SubmissionRing::new(submission, ENTRIES)?,
            completion: CompletionRing::new(completion, ENTRIES)?,
            stride: cap.stride(),
            timeout,
            firmware_activation: Duration::ZERO,
            page: arena.alloc(nvme::identify::SIZE, page)?.tagged("nvme admin data"),
            next_id: 0,
            armed: 0,
            event_requests: 0,
            events: VecDeque::new(),
            strays: 0,
            detached: false,
            checkpoint: Checkpoint::new(arena)?,
            unread: false,
            host_memory: None,
        })
    }

    /// The controller's registers.
    pub(super) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Device addresses of the submission and the completion ring.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.submission.words().iova(), self.completion.words().iova())
    }

    /// Keeps the checkpoint from now on.
    pub(super) fn keep_checkpoint(&mut self) {
        let progress = self.progress();
        self.checkpoint.open(progress);
    }

    fn progress(&self) -> Progress {
        let (submission, completion) = (self.submission.state(), self.completion.state());
        Progress {
            tail: submission.tail % ENTRIES,
            head: completion.head % (2 * ENTRIES),
            next_id: self.next_id,
            armed: self.armed,
        }
    }

    /// Empties both rings. The controller is disabled, so it owns nothing.
    pub(super) fn reset(&mut self) {
        self.submission.reset();
        self.completion.reset();
        self.armed = 0;
    }

    /// Sends `command` and waits for its end: its result, or the status with which the device
    /// refused it. Time in which the controller activates new firmware does not count.
    pub(super) fn execute(&mut self, command: Submission) -> Result<Result<u32, Status>, Error> {
        self.execute_for(command, self.timeout, true)
    }

    /// The same with a time-out of its own, in which all time counts.
    pub(super) fn execute_within(
        &mut self,
        command: Submission,
        timeout: Duration,
    ) -> Result<Result<u32, Status>, Error> {
        self.execute_for(command, timeout, false)
    }

    fn execute_for(
        &mut self,
        command: Submission,
        timeout: Duration,
        waits_for_firmware: bool,
    ) -> Result<Result<u32, Status>, Error> {
        let id = self.next_id;
        self.next_id = (id + 1) % EVENT_IDS;
        // Until its end is taken. After an error the controller is reset.
        self.checkpoint.erase();
        self.send(command.with_id(id))?;
        let mut pause = Pause::default();
        let end = loop {
            let end = poll_until(Deadline::after(timeout), "an admin command", || {
                if let Some(entry) = self.take(Some(id)) {
                    return Ok(Some(entry));
                }
                let status = init::running_status(&self.registers)?;
                pause.note(status.paused() == 1, Instant::now(), timeout);
                Ok(None)
            });
            let excuses = || pause.excuses(Instant::now(), self.firmware_activation, timeout);
            if !matches!(end, Err(Error::Timeout { .. })) || !waits_for_firmware || !excuses() {
                break end?;
            }
        };
        self.checkpoint.store(self.progress());
        self.acknowledge()?;
        Ok(if end.status().is_success() { Ok(end.result()) } else { Err(end.status()) })
    }

    /// Sends `command`; a refusal is an error that says `what` was refused.
    pub(super) fn demand(&mut self, what: &str, command: Submission) -> Result<u32, Error> {
        self.execute(command)?.map_err(|status| {
            Error::Unsupported(format!("the controller refused {what}: {status}"))
        })
    }

    /// Sends `command`, which returns the first `N` bytes of a page.
    pub(super) fn fetch<const N: usize>(
        &mut self,
        what: &str,
        command: Submission,
    ) -> Result<[u8; N], Error> {
        self.page.fill(0);
        self.demand(what, command.with_data(self.page.iova(), 0))?;
        let mut bytes = [0; N];
        self.page.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Sends `command` with a page that begins with `bytes` and is zero otherwise: its result, or
    /// the status with which the device refused it.
    pub(super) fn send_page(
        &mut self,
        bytes: &[u8],
        command: Submission,
    ) -> Result<Result<u32, Status>, Error> {
        self.page.fill(0);
        self.page.write(0, bytes)?;
        self.execute(command.with_data(self.page.iova(), 0))
    }

    /// Keeps up to `limit` asynchronous event requests with the controller from now on. [NVMe
    /// 5.1.2]
    pub(super) fn arm_events(&mut self, limit: u16) -> Result<(), Error> {
        self.event_requests = limit.min(MAX_EVENT_REQUESTS);
        for number in 0..self.event_requests {
            if self.armed & 1 << number == 0 {
                self.armed |= 1 << number;
                self.request_event(EVENT_IDS + number)?;
            }
        }
        Ok(())
    }

    /// Takes what has come without being asked for, and arms the event requests that it used up.
    pub(super) fn service(&mut self) -> Result<(), Error> {
        if self.detached {
            return Ok(());
        }
        if self.completion.ready() {
            // No id is waited for, so everything is an event or a stray.
            while self.take(None).is_some() {}
            self.checkpoint.store(self.progress());
            self.acknowledge()?;
        }
        self.arm_events(self.event_requests)
    }

    /// The oldest event that was not asked for yet.
    pub(super) fn next_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Gives the memory up, because the device may still write to it.
    pub(super) fn abandon(&mut self) {
        self.submission.abandon();
        self.completion.abandon();
        self.page.abandon();
        self.checkpoint.abandon();
        self.host_memory.iter_mut().for_each(Lent::abandon);
    }

    fn request_event(&mut self, id: u16) -> Result<(), Error> {
        self.push(Submission::async_event().with_id(id))?;
        self.checkpoint.store(self.progress());
        self.ring()
    }

    fn send(&mut self, command: Submission) -> Result<(), Error> {
        self.push(command)?;
        self.ring()
    }

    fn push(&mut self, command: Submission) -> Result<(), Error> {
        if self.submission.push(&command.0) {
            return Ok(());
        }
        Err(Error::Protocol("the controller does not take admin commands from its queue".into()))
    }

    fn ring(&mut self) -> Result<(), Error> {
        if let Some(tail) = self.submission.publish() {
            self.registers.write(registers::submission_doorbell(0, self.stride), tail);
        }
        Ok(())
    }

    /// Takes entries until the one with id `wanted`; events and strays on the way go where they
    /// belong.
    fn take(&mut self, wanted: Option<u16>) -> Option<Completion> {
        while let Some(entry) = self.completion.pop().map(Completion) {
            if self.submission.retire(entry.head().into()).is_err() || entry.queue() != 0 {
                self.stray(entry);
            } else if Some(entry.id()) == wanted {
                return Some(entry);
            } else {
                self.note_event(entry);
            }
        }
        None
    }

    fn note_event(&mut self, entry: Completion) {
        let number = entry.id().wrapping_sub(EVENT_IDS);
        if number >= MAX_EVENT_REQUESTS || self.armed & 1 << number == 0 {
            return self.stray(entry);
        }
        self.armed &= !(1 << number);
        if !entry.status().is_success() {
            // Refused: the controller takes fewer than it said. Asking again would go on for ever.
            self.event_requests = self.event_requests.min(number);
            return;
        }
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(AsyncEvent(entry.result()));
    }

    fn stray(&mut self, entry: Completion) {
        self.strays += 1;
        tracing::warn!(
            "admin completion for nothing in flight: id {:#06x}, {}",
            entry.id(),
            entry.status()
        );
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        if let Some(head) = self.completion.publish() {
            self.registers.write(registers::completion_doorbell(0, self.stride), head);
        }
        Ok(())
    }
}
