//! How a queue pair comes to be, comes back after a reset, and ends.
//!
//! The device reaches a queue's memory from its creation until its deletion, a reset of the
//! controller, or its removal. Only then does the memory go back to the arena; without such a proof
//! it never does.

use ring3_class::block::IoError;
use ring3_device::Error;
use ring3_device::dma::DmaBuffer;
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::wait::Waiter;
use ring3_spec::nvme::registers::{completion_doorbell, submission_doorbell};
use ring3_spec::nvme::{
    COMPLETION_WORDS, PHASE_BIT, PHASE_WORD, SUBMISSION_WORDS, Submission, Success,
};

use super::admin::Admin;
use super::command::Encoder;
use super::init;
use super::namespace::Namespace;
use super::prp::Lists;
use super::queue::QueuePair;
use super::slots::{MAX_SLOTS, Slots};
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED, lock};
use crate::timeouts::Timeouts;
use crate::write_cache::Listener;

impl QueuePair {
    /// Creates a queue pair for up to `depth` requests of `namespace`.
    pub(super) fn open(namespace: &Namespace, depth: u16) -> Result<Self, Error> {
        let shared = namespace.shared.clone();
        namespace.unit.check()?;
        let id = shared.take_queue_id()?;
        let result = Self::build(namespace, depth, id);
        let mut queue = match result {
            Ok(queue) => queue,
            Err(error) => {
                shared.give_queue_id_back(id);
                return Err(error);
            }
        };
        // From here on dropping the queue gives its id back.
        let created = shared.command(|admin| {
            queue.generation = queue.shared.generation();
            queue.create(admin)
        });
        if let Err(Error::Unsupported(_)) = created {
            // Refused: the controller knows nothing of it.
            queue.generation = GENERATION_CLOSED;
        }
        created.map(|()| queue)
    }

    fn build(namespace: &Namespace, depth: u16, id: u16) -> Result<Self, Error> {
        let Namespace { shared, unit } = namespace;
        let Dimensions { depth, submission, completion } =
            Dimensions::new(depth.min(shared.options.max_depth), shared.cap.max_queue_entries());
        let arena = shared.device.dma().arena();
        let page = init::page_size(shared.cap);
        let commands = arena
            .alloc(submission as usize * SUBMISSION_WORDS * 8, page as usize)?
            .tagged("nvme commands");
        let ends = arena
            .alloc(completion as usize * COMPLETION_WORDS * 8, page as usize)?
            .tagged("nvme completions");
        let lists = Lists::new(arena, depth.into(), unit.info.max_transfer, page)?;
        let parts = Parts {
            submission: SubmissionRing::new(commands, submission)?,
            completion: CompletionRing::new(ends, completion)?,
            lists,
            slots: Slots::new(depth),
            ended: Vec::with_capacity(depth.into()),
            timeouts: Timeouts::new(shared.options.timeout),
            generation: shared.generation(),
            listener: unit.cache.as_ref().map(|cache| cache.listen()).unwrap_or_default(),
        };
        Self::of(namespace, id, parts)
    }

    /// Queue `id`, made of `parts`. From here on dropping it deletes it.
    pub(super) fn of(namespace: &Namespace, id: u16, parts: Parts) -> Result<Self, Error> {
        let Namespace { shared, unit } = namespace.clone();
        let Parts { submission, completion, lists, slots, ended, timeouts, generation, listener } =
            parts;
        let (irq, vector) = shared.vectors.of_queue(id)?;
        let stride = shared.cap.stride();
        Ok(Self {
            bar: shared.device.bar(0)?,
            acknowledge_at: (completion.size() - 1).saturating_sub(slots.count().into()).max(1),
            submission,
            completion,
            submission_doorbell: submission_doorbell(id, stride).offset(),
            completion_doorbell: completion_doorbell(id, stride).offset(),
            slots,
            delayed: Vec::new(),
            encoder: Encoder::new(unit.id, &unit.info, lists, shared.traits.sgl),
            generation,
            ended,
            timeouts,
            waiter: Waiter::new(irq, shared.options.poll),
            shared,
            cache: unit.cache.clone(),
            unit,
            listener,
            id,
            success: Success::of(id),
            vector,
            failure_reported: false,
        })
    }

    /// Tells the controller about the queue: completion queue first. [NVMe 5.2.1, 5.2.2]
    pub(super) fn create(&mut self, admin: &mut Admin) -> Result<(), Error> {
        let (ring, base) = (&self.completion, self.completion.words().iova());
        admin.demand(
            "an I/O completion queue",
            Submission::create_cq(self.id, ring.size(), base, self.vector),
        )?;
        let (ring, base) = (&self.submission, self.submission.words().iova());
        let created = admin.demand(
            "an I/O submission queue",
            Submission::create_sq(self.id, ring.size(), base, self.id),
        );
        if let Err(Error::Unsupported(_)) = created {
            admin
                .demand("deletion of a completion queue", Submission::delete_cq(self.id))
                .map_err(|_| Error::Fatal("half a queue is left".into()))?;
        }
        created.map(drop)
    }

    /// Deletes the queue; the device owns nothing of it afterwards. [NVMe 5.2.4, 5.2.3]
    fn delete(&self) -> Result<(), Error> {
        let mut admin = lock(&self.shared.admin);
        self.shared.lifetime.check()?;
        // A reset since then has deleted it already.
        if self.shared.generation() != self.generation {
            return Ok(());
        }
        admin.demand("deletion of a submission queue", Submission::delete_sq(self.id))?;
        admin.demand("deletion of a completion queue", Submission::delete_cq(self.id)).map(drop)
    }
}

/// What a queue pair is made of.
pub(super) struct Parts {
    pub(super) submission: SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    pub(super) completion: CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>,
    pub(super) lists: Lists,
    pub(super) slots: Slots,
    /// Requests that have ended without a completion.
    pub(super) ended: Vec<(u16, IoError)>,
    pub(super) timeouts: Timeouts,
    pub(super) generation: u32,
    pub(super) listener: Listener,
}

/// Commands that fill a page; a shorter ring would save nothing.
const PAGE_OF_COMMANDS: u32 = 64;

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

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.generation == GENERATION_DETACHED {
            return;
        }
        let deleted = self.delete().or_else(|error| {
            // Whatever the reason, a controller that is stopped owns nothing.
            self.shared
                .reset(self.generation, &format!("queue {} could not be deleted: {error}", self.id))
        });
        if deleted.is_err() && !self.shared.lifetime.is_quiesced() {
            tracing::error!(
                "{}: the memory of queue {} is given up: the device may still write to it",
                self.shared.device.name(),
                self.id
            );
            self.abandon();
        }
        self.shared.give_queue_id_back(self.id);
        self.cache.iter().for_each(|cache| cache.dismiss(&self.listener));
    }
}

impl QueuePair {
    /// Gives all memory that the device may know of up for good.
    fn abandon(&mut self) {
        self.submission.abandon();
        self.completion.abandon();
        self.encoder.lists().memory().abandon();
        for slot in 0..self.slots.count() {
            std::mem::forget(self.slots.vacate(slot).map(|slot| slot.complete(Ok(()))));
        }
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
