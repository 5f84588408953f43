//! The rings of a queue pair.
//!
//! # Shape
//! [`QueuePair`] is what the engine ([`crate::disk`]) needs to know of them: it writes commands,
//! takes completions, and creates and deletes the pair on the controller.
//!
//! # Ordering
//! [`ring3_device::ring`] reads the phase bit before the rest of a completion, and writes commands
//! before the doorbell. Here are only the doorbells: `ring` and `acknowledge`.
//!
//! # Ownership of the memory
//! The device may access the memory from the pair's creation until its deletion, a reset of the
//! controller, or the controller's removal. Only then is the memory returned to the arena; without
//! such a proof it never is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ring3_class::Saved;
use ring3_class::block::{Completion, Data, Info, IoError, Operation, Request};
use ring3_device::dma::{Claims, DmaBuffer};
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::{Bar, Error, Registers};
use ring3_spec::nvme::registers::{completion_doorbell, submission_doorbell};
use ring3_spec::nvme::{
    self, COMPLETION_WORDS, PHASE_BIT, PHASE_WORD, SUBMISSION_WORDS, Submission, Success,
};

use super::admin::Admin;
use super::command::Encoder;
use super::controller::NvmeShared;
use super::init;
use super::namespace::{Namespace, Unit};
use super::pause::Pause;
use super::prp::{Layout, Lists};
use super::quirks::{CHAINED_LISTS, MEDIUM_PRIORITY};
use super::reset::Use;
use super::saved::{QUEUE, SavedPair, SavedRing};
use super::status;
use crate::disk::write_cache::WriteCache;
use crate::disk::{
    Controller, DiskQueue, Hardware, MAX_SLOTS, NotRenewed, Outcome, SavedQueue, Slots,
};
use crate::lifetime::{GENERATION_CLOSED, lock};

/// An abort is answered within this, or the controller is reset.
const ABORT: Duration = Duration::from_secs(2);
/// Commands that fill a page; a shorter ring would save nothing.
const PAGE_OF_COMMANDS: u32 = 64;

/// A submission ring, its completion ring, and what describes data to the device.
pub(super) struct QueuePair {
    bar: Bar,
    submission: SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    completion: CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>,
    submission_doorbell: u64,
    completion_doorbell: u64,
    encoder: Encoder,
    /// Completions are acknowledged when this many are not: the ring has room for them and for all
    /// that is in flight.
    acknowledge_at: u32,
    shared: Arc<NvmeShared>,
    unit: Arc<Unit>,
    /// The queue's number on the controller, from 1 on.
    id: u16,
    /// What the good end of each of its commands says.
    success: Success,
    vector: Option<u16>,
    pause: Pause,
}

impl QueuePair {
    /// Creates a queue pair for up to `depth` requests of `namespace`.
    pub(super) fn open(namespace: &Namespace, depth: u16) -> Result<DiskQueue<Self>, Error> {
        let shared = &namespace.shared;
        namespace.unit.check()?;
        let id = shared.take_queue_id()?;
        let mut queue =
            Self::build(namespace, depth, id).inspect_err(|_| shared.give_queue_id_back(id))?;
        // From here on dropping the queue gives its id back.
        let created = match Self::create_on_device(&mut queue) {
            // Somebody else has reset the controller, or it has crashed; that was found by this
            // command, behind which it was started again.
            Err(Error::Fatal(_)) => Self::create_on_device(&mut queue),
            created => created,
        };
        created.map(|()| queue)
    }

    fn create_on_device(queue: &mut DiskQueue<Self>) -> Result<(), Error> {
        queue.create(|pair, generation| {
            let shared = pair.shared.clone();
            let created = shared.command(|admin| {
                *generation = shared.lifetime.generation();
                pair.create(admin)
            });
            if let Err(Error::Unsupported(_)) = created {
                // The controller has refused this queue. A number that is never the controller's
                // own keeps the queue's drop from deleting what does not exist.
                *generation = GENERATION_CLOSED;
            }
            created
        })
    }

    fn build(namespace: &Namespace, depth: u16, id: u16) -> Result<DiskQueue<Self>, Error> {
        let shared = &namespace.shared;
        let Dimensions { depth, submission, completion } =
            Dimensions::new(depth.min(shared.options.max_depth), shared.cap.max_queue_entries());
        let arena = shared.device.dma().arena();
        let page = init::page_size(shared.cap);
        let words = |entries: u32, words: usize, name| {
            arena.alloc(entries as usize * words * 8, page as usize).map(|ring| ring.tagged(name))
        };
        let commands = words(submission, SUBMISSION_WORDS, "nvme commands")?;
        let ends = words(completion, COMPLETION_WORDS, "nvme completions")?;
        let lists = Lists::new(arena, depth.into(), Self::layout(namespace))?;
        let rings =
            (SubmissionRing::new(commands, submission)?, CompletionRing::new(ends, completion)?);
        let generation = shared.lifetime.generation();
        let (irq, pair) = Self::of(namespace, (id, depth), rings, lists)?;
        Ok(DiskQueue::new(pair, irq, (depth, generation)))
    }

    fn layout(Namespace { shared, unit }: &Namespace) -> Layout {
        Layout {
            max_transfer: unit.info.max_transfer,
            page: init::page_size(shared.cap),
            chained: shared.quirks().has(CHAINED_LISTS),
        }
    }

    /// Pair `id` for `depth` requests, made of its rings and lists.
    fn of(
        namespace: &Namespace,
        (id, depth): (u16, u16),
        (submission, completion): Rings,
        lists: Lists,
    ) -> Result<(Option<Arc<ring3_device::irq::Irq>>, Self), Error> {
        let Namespace { shared, unit } = namespace.clone();
        let (irq, vector) = shared.vectors.of_queue(id)?;
        let stride = shared.cap.stride();
        let pair = Self {
            bar: shared.device.bar(0)?,
            acknowledge_at: (completion.size() - 1).saturating_sub(depth.into()).max(1),
            submission,
            completion,
            submission_doorbell: submission_doorbell(id, stride).offset(),
            completion_doorbell: completion_doorbell(id, stride).offset(),
            encoder: Encoder::new(unit.id, &unit.info, lists, shared.traits.sgl)
                .protected(unit.protection),
            shared,
            unit,
            id,
            success: Success::of(id),
            vector,
            pause: Pause::default(),
        };
        Ok((irq, pair))
    }

    /// The queue of `namespace` that was detached as `saved`.
    pub(super) fn resume(namespace: &Namespace, saved: &Saved) -> Result<DiskQueue<Self>, Error> {
        let saved: SavedQueue<SavedPair> = saved.read(QUEUE.0, QUEUE.1)?;
        let (shared, info) = (&namespace.shared, &namespace.unit.info);
        shared.lifetime.check()?;
        let (id, is_same) = (
            saved.rings.id,
            (saved.rings.namespace, &saved.serial) == (namespace.id(), &info.serial),
        );
        // One that has grown meanwhile has all that the queue is about.
        if !is_same || saved.blocks > info.blocks {
            let (namespace, serial) = (saved.rings.namespace, &saved.serial);
            return Err(Error::Invalid(format!(
                "the saved queue is of namespace {namespace} of {serial}: resume it there"
            )));
        }
        if !shared.change_use(id, Use::Detached, Use::Open) {
            let name = shared.device.name();
            return Err(Error::Invalid(format!(
                "{name} has no queue {id} that was detached, or it is resumed already"
            )));
        }
        Self::rebuild(namespace, &saved).inspect_err(|_| {
            shared.change_use(id, Use::Open, Use::Detached);
        })
    }

    fn rebuild(
        namespace: &Namespace,
        saved: &SavedQueue<SavedPair>,
    ) -> Result<DiskQueue<Self>, Error> {
        let (shared, depth) = (&namespace.shared, saved.slots);
        let mut claims = Claims::new(shared.device.dma().arena());
        let submission = saved.rings.submission.claim(&mut claims)?;
        let completion = saved.rings.completion.claim(&mut claims)?;
        if u32::from(depth) >= submission.size().min(completion.size()) {
            return Err(Error::Invalid(format!(
                "a saved queue of {depth} requests in rings of {} entries",
                submission.size()
            )));
        }
        let lists =
            Lists::resume(claims.claim(saved.rings.lists)?, depth.into(), Self::layout(namespace))?;
        let (irq, pair) =
            Self::of(namespace, (saved.rings.id, depth), (submission, completion), lists)?;
        DiskQueue::resume(saved, pair, irq, claims)
    }

    /// Tells the controller about the queue: completion queue first. [NVMe 5.2.1, 5.2.2]
    fn create(&mut self, admin: &mut Admin) -> Result<(), Error> {
        let (ring, base) = (&self.completion, self.completion.words().iova());
        admin.demand(
            "an I/O completion queue",
            Submission::create_cq(self.id, ring.size(), base, self.vector),
        )?;
        let (ring, base) = (&self.submission, self.submission.words().iova());
        let mut command = Submission::create_sq(self.id, ring.size(), base, self.id);
        if self.shared.quirks().has(MEDIUM_PRIORITY) {
            command = command.with_medium_priority();
        }
        let created = admin.demand("an I/O submission queue", command);
        if let Err(Error::Unsupported(_)) = created {
            admin
                .demand("deletion of a completion queue", Submission::delete_cq(self.id))
                .map_err(|_| Error::Fatal("half a queue is left".into()))?;
        }
        created.map(drop)
    }

    /// Deletes the queue; the device owns nothing of it afterwards. [NVMe 5.2.4, 5.2.3]
    fn delete(&self, generation: u32) -> Result<(), Error> {
        let mut admin = lock(&self.shared.admin);
        self.shared.lifetime.check()?;
        // A reset since then has deleted it already.
        if self.shared.lifetime.generation() != generation {
            return Ok(());
        }
        admin.demand("deletion of a submission queue", Submission::delete_sq(self.id))?;
        admin.demand("deletion of a completion queue", Submission::delete_cq(self.id)).map(drop)
    }

    /// Whether requests of this `operation` are not sent, because the controller was seen to hang
    /// at one.
    fn is_given_up(&self, operation: Operation) -> bool {
        operation == Operation::WriteZeroes && self.shared.zeroes_hang.load(Ordering::Relaxed)
    }

    /// How the request in `slot` ended, which the device completed with `status`.
    #[cold]
    fn failed(&self, slots: &Slots, slot: u16, status: ring3_spec::nvme::Status) -> Outcome {
        let Some(held) = slots.get(slot) else { return Outcome::Failed(IoError::Transport) };
        let (operation, attempts) = (held.request.operation, held.attempts);
        if attempts < status::attempts(operation, status) {
            let shared = &self.shared;
            let (delays, most) = (shared.traits.retry_delays, shared.options.timeout);
            return Outcome::Retry(status::pause(status, attempts, delays, most));
        }
        if status::is_kept_from(status) && !self.shared.kept_from.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "{} namespace {}: {status}: requests end with errors until whoever has begun that \
                ends it",
                self.shared.device.name(),
                self.unit.id
            );
        }
        Outcome::Failed(match self.is_given_up(operation) {
            true => IoError::Unsupported,
            false => status::io_error(status),
        })
    }

    #[cold]
    fn stray(&self, entry: nvme::Completion) -> Error {
        Error::Protocol(format!(
            "queue {} has a completion for nothing in flight (queue {}, id {:#06x}, {})",
            self.id,
            entry.queue(),
            entry.id(),
            entry.status()
        ))
    }
}

impl Hardware for QueuePair {
    type Controller = NvmeShared;
    type Saved = SavedPair;
    const FORMAT: (&'static str, u32) = QUEUE;

    #[inline]
    fn controller(&self) -> &Arc<NvmeShared> {
        &self.shared
    }

    fn info(&self) -> &Info {
        &self.unit.info
    }

    #[inline]
    fn cache(&self) -> Option<&WriteCache> {
        self.unit.cache.as_deref()
    }

    fn check_disk(&self) -> Result<(), Error> {
        self.unit.check()
    }

    /// "Not supported" lets whoever wants zeroes write them. To repeat the command would cost the
    /// time-out each time, and others would follow.
    fn refusal(&self, operation: Operation) -> Option<IoError> {
        if self.unit.is_over() {
            return Some(IoError::Gone);
        }
        self.is_given_up(operation).then_some(IoError::Unsupported)
    }

    #[inline(always)]
    fn place_common(&mut self, _: u16, id: u16, request: &Request) -> bool {
        let command = self.encoder.page_transfer(id, request);
        command.is_some_and(|command| {
            place(&mut self.submission, command);
            true
        })
    }

    fn place(&mut self, slot: u16, id: u16, request: &Request) -> Result<bool, IoError> {
        let command = self.encoder.encode(slot, request)?;
        if self.encoder.is_protected() {
            place_protected(&mut self.submission, command.with_id(id));
        } else {
            place(&mut self.submission, command.with_id(id));
        }
        Ok(true)
    }

    #[inline]
    fn ring(&mut self) {
        if let Some(tail) = self.submission.publish() {
            self.bar.write32(self.submission_doorbell, tail);
        }
    }

    #[inline]
    fn pending(&self) -> bool {
        self.completion.ready()
    }

    #[inline]
    fn take_reads(&mut self, slots: &mut Slots, done: &mut [Completion]) -> usize {
        let mut by_id = slots.by_id();
        let count =
            self.completion.pop_into(done, Success::MASK, self.success.bits(), |word, place| {
                let slot = by_id.get_mut(nvme::Completion::of_phase_word(word).id());
                let Some(slot) = slot.filter(|slot| slot.request.operation == Operation::Read)
                else {
                    return false;
                };
                if !matches!(place.data, Data::None) {
                    return false;
                }
                slot.free();
                place.into_completion_of(slot.request.token, Ok(()), &mut slot.request.data);
                true
            });
        slots.freed(count);
        count
    }

    #[inline(never)]
    fn take_good(&mut self, slots: &mut Slots, done: &mut [Completion]) -> (usize, bool) {
        let (mut by_id, mut wrote) = (slots.by_id(), false);
        let count =
            self.completion.pop_into(done, Success::MASK, self.success.bits(), |word, place| {
                let slot = by_id.get_mut(nvme::Completion::of_phase_word(word).id());
                let Some(slot) = slot.filter(|slot| slot.request.operation != Operation::Flush)
                else {
                    return false;
                };
                wrote |= WriteCache::holds(&slot.request);
                slot.free();
                place.into_completion_of(slot.request.token, Ok(()), &mut slot.request.data);
                true
            });
        slots.freed(count);
        (count, wrote)
    }

    fn take(&mut self, slots: &Slots) -> Result<Option<(u16, Outcome)>, Error> {
        let Some(entry) = self.completion.pop().map(nvme::Completion) else { return Ok(None) };
        let slot = slots.find(entry.id()).filter(|_| entry.queue() == self.id);
        let slot = slot.ok_or_else(|| self.stray(entry))?;
        let status = entry.status();
        let outcome =
            if status.is_success() { Outcome::Done } else { self.failed(slots, slot, status) };
        Ok(Some((slot, outcome)))
    }

    #[inline]
    fn must_acknowledge(&self) -> bool {
        self.completion.unpublished() >= self.acknowledge_at
    }

    #[inline(never)]
    fn acknowledge(&mut self, in_flight: u16, is_known: bool) {
        // `place` does not look at it, but whoever saves the ring does.
        self.submission.retire_all_but(in_flight.into());
        if is_known && let Some(head) = self.completion.publish() {
            self.bar.write32(self.completion_doorbell, head);
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        let status = init::running_status(&Registers::new(self.bar.clone(), 0)?)?;
        self.pause.note(status.paused() == 1, Instant::now(), self.shared.options.timeout);
        Ok(())
    }

    /// Nothing is late of what waits for a controller that activates new firmware.
    fn has_started(&self, _: u16) -> bool {
        let (limit, timeout) =
            (self.shared.traits.firmware_activation, self.shared.options.timeout);
        !self.pause.excuses(Instant::now(), limit, timeout)
    }

    /// Sends an Abort command. [NVMe 5.1.1]
    fn cancel(&mut self, id: u16, request: &Request) -> bool {
        let (shared, name) = (&self.shared, self.shared.device.name());
        if request.operation == Operation::WriteZeroes
            && !shared.zeroes_hang.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                "{name}: the controller hangs at a write zeroes: it gets no more; users write \
                zeroes themselves"
            );
        }
        tracing::warn!("{name}: queue {}: a request takes too long, aborting it", self.id);
        let timeout = ABORT.min(shared.options.timeout);
        lock(&shared.admin).execute_within(Submission::abort(self.id, id), timeout).is_ok()
    }

    fn renew(
        &mut self,
        mut admin: MutexGuard<'_, Admin>,
        generation: u32,
    ) -> Result<u32, NotRenewed> {
        self.submission.reset();
        self.completion.reset();
        self.create(&mut admin).map(|()| generation).map_err(NotRenewed::Failed)
    }

    fn refuse_all(&mut self) {
        self.encoder.close();
    }

    fn close(&mut self, generation: u32, _: bool) -> Result<(), Error> {
        self.delete(generation).or_else(|error| {
            // This resets all queues of the controller. Without it, the controller would still own
            // the memory of this one.
            let why = format!("queue {} could not be deleted: {error}", self.id);
            self.shared.reset(generation, &why)
        })
    }

    fn abandon(&mut self) {
        self.submission.abandon();
        self.completion.abandon();
        self.encoder.lists().memory().abandon();
    }

    fn release(&mut self, _: u32, _: bool) {
        self.shared.give_queue_id_back(self.id);
    }

    fn save(&mut self, in_flight: u16) -> Result<SavedPair, Error> {
        self.submission.retire_all_but(in_flight.into());
        Ok(SavedPair {
            namespace: self.unit.id,
            id: self.id,
            submission: SavedRing::new(self.submission.words(), self.submission.state()),
            completion: SavedRing::new(self.completion.words(), self.completion.state()),
            lists: self.encoder.lists().memory().span(),
        })
    }

    fn release_to_successor(&mut self, _: &mut Admin) {
        self.submission.words_mut().release_to_successor();
        self.completion.words_mut().release_to_successor();
        self.encoder.lists().memory().release_to_successor();
        self.shared.change_use(self.id, Use::Open, Use::Detached);
    }
}

type Rings = (
    SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>,
);

/// Writes a command into the ring, which has room for whatever has a slot: the device has read what
/// it has completed, and all commands before, so at most what is in flight is unread. Where it says
/// that it reads (SQHD) need not be believed.
#[inline(always)]
fn place(ring: &mut SubmissionRing<DmaBuffer, SUBMISSION_WORDS>, command: Submission) {
    let Submission(
        [first, dwords_2_3, metadata, prp1, prp2, dwords_10_11, dwords_12_13, dwords_14_15],
    ) = command;
    debug_assert_eq!(
        [dwords_2_3, metadata, dwords_14_15],
        [0; 3],
        "no command here has any of these, so they stay zero in the ring"
    );
    ring.place([(3, prp1), (4, prp2), (5, dwords_10_11), (6, dwords_12_13), (0, first)]);
}

/// The same of a queue whose commands may have a reference tag: all of them go this way, so that
/// none finds that of another in the ring.
fn place_protected(ring: &mut SubmissionRing<DmaBuffer, SUBMISSION_WORDS>, command: Submission) {
    let Submission([first, _, _, prp1, prp2, dwords_10_11, dwords_12_13, dwords_14_15]) = command;
    let words = [(3, prp1), (4, prp2), (5, dwords_10_11), (6, dwords_12_13), (7, dwords_14_15)];
    let [a, b, c, d, e] = words;
    ring.place([a, b, c, d, e, (0, first)]);
}

/// How many requests a queue holds, and the entries of its rings: powers of two.
#[derive(Debug, PartialEq, Eq)]
struct Dimensions {
    depth: u16,
    /// One entry more than requests at least, because a full ring looks like an empty one.
    submission: u32,
    /// Twice that if the controller has such long queues, so that completions need not be
    /// acknowledged at once.
    completion: u32,
}

impl Dimensions {
    fn new(depth: u16, max_entries: u32) -> Self {
        let wanted = u32::from(depth.clamp(1, MAX_SLOTS)) + 1;
        let largest = 1 << max_entries.max(2).ilog2();
        let submission = wanted.next_power_of_two().max(PAGE_OF_COMMANDS).min(largest);
        let depth = wanted.min(submission) - 1;
        Self { depth: depth as u16, submission, completion: (2 * submission).min(largest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dimensions(depth: u16, submission: u32, completion: u32) -> Dimensions {
        Dimensions { depth, submission, completion }
    }

    #[test]
    fn rings_have_one_entry_more_than_requests_at_least() {
        assert_eq!(Dimensions::new(32, 2048), dimensions(32, 64, 128));
        assert_eq!(Dimensions::new(64, 2048), dimensions(64, 128, 256));
        assert_eq!(Dimensions::new(1, 2048), dimensions(1, 64, 128));
        assert_eq!(Dimensions::new(u16::MAX, 65536), dimensions(MAX_SLOTS, 1024, 2048));
    }

    #[test]
    fn a_device_with_short_queues_holds_fewer_requests() {
        assert_eq!(Dimensions::new(32, 9), dimensions(7, 8, 8));
        assert_eq!(Dimensions::new(32, 2), dimensions(1, 2, 2));
    }
}
