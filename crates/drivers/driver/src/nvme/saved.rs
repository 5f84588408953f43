//! The saved state of a controller and its queues, as it is serialised.
//!
//! Fields are only ever added, each with a default, so that a later version reads the state of an
//! earlier one. All of it is untrusted input for its reader.

use ring3_class::Saved;
use ring3_class::block::Info;
use ring3_device::dma::{Claims, DmaBuffer, Span};
use ring3_device::ring::{CompletionRing, CompletionState, SubmissionRing, SubmissionState};
use ring3_device::{Error, Registers};
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::identify;
use ring3_spec::nvme::{COMPLETION_WORDS, PHASE_BIT, PHASE_WORD, SUBMISSION_WORDS};
use serde::{Deserialize, Serialize};

use super::admin::{Admin, ENTRIES, EVENT_IDS, MAX_EVENT_REQUESTS};
use super::checkpoint::Checkpoint;
use super::host_memory::{Lent, SavedHostMemory};
use super::identity::ControllerFeatures;
use super::namespace::UniqueId;
use super::options::Options;
use super::protection::Protection;
use crate::disk::write_cache::PowerCount;
pub(super) use crate::disk::write_cache::SavedCache;

/// What a controller's state is called, and the version of its form.
pub(super) const CONTROLLER: (&str, u32) = ("nvme controller", 1);
/// The version of a controller that has memory of the host: who does not know of that would give it
/// to others while the controller writes there.
const WITH_HOST_MEMORY: u32 = 2;
/// The version of a controller that has namespaces with protection information: who does not know
/// of that would neither have it made nor checked.
const WITH_PROTECTION: u32 = 3;
/// The same of a queue.
pub(super) const QUEUE: (&str, u32) = ("nvme queue", 1);

/// A controller, but for the registers, which say the rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedController {
    /// CAP, by which another controller is told apart.
    pub(super) cap: u64,
    pub(super) options: Options,
    pub(super) traits: ControllerFeatures,
    /// Interrupts that are enabled.
    pub(super) vectors: u16,
    pub(super) generation: u32,
    pub(super) cache_lost: u32,
    /// How often it says that it has lost its power.
    #[serde(default)]
    pub(super) power: PowerCount,
    pub(super) admin: SavedAdmin,
    /// I/O queues that the device has, by id.
    pub(super) queues: Vec<u16>,
    pub(super) namespaces: Vec<SavedNamespace>,
    /// Namespaces that cannot be used, and why.
    pub(super) refused: Vec<(u32, String)>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedNamespace {
    pub(super) id: u32,
    pub(super) info: Info,
    pub(super) cache: SavedCache,
    #[serde(default)]
    pub(super) unique: UniqueId,
    /// Who does not know of it is told by the version of the controller's state.
    #[serde(default, skip_serializing_if = "Protection::is_none")]
    pub(super) protection: Protection,
}

/// See [`Admin`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedAdmin {
    pub(super) submission: SavedRing<SubmissionState>,
    pub(super) completion: SavedRing<CompletionState>,
    pub(super) page: Span,
    pub(super) next_id: u16,
    pub(super) armed: u16,
    pub(super) event_requests: u16,
    pub(super) events: Vec<u32>,
    pub(super) strays: u64,
    /// Where the queue's progress is, if the process that saved it kept it.
    #[serde(default)]
    pub(super) checkpoint: Option<Span>,
    /// The memory that the controller has for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_memory: Option<SavedHostMemory>,
}

/// A ring and its memory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRing<S> {
    pub(super) memory: Span,
    pub(super) state: S,
}

/// The rings of a queue pair.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedPair {
    pub(super) namespace: u32,
    pub(super) id: u16,
    pub(super) submission: SavedRing<SubmissionState>,
    pub(super) completion: SavedRing<CompletionState>,
    pub(super) lists: Span,
}

/// The rings of a pair.
type Commands = SubmissionRing<DmaBuffer, SUBMISSION_WORDS>;
type Ends = CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>;

impl<S> SavedRing<S> {
    pub(super) fn new(words: &DmaBuffer, state: S) -> Self {
        Self { memory: words.span(), state }
    }
}

impl SavedController {
    /// As it is handed on.
    pub(super) fn to_saved(&self) -> Result<Saved, Error> {
        let version = if self.namespaces.iter().any(|namespace| !namespace.protection.is_none()) {
            WITH_PROTECTION
        } else if self.admin.host_memory.is_some() {
            WITH_HOST_MEMORY
        } else {
            CONTROLLER.1
        };
        Saved::new(CONTROLLER.0, version, self)
    }

    /// What was handed on.
    pub(super) fn of_saved(saved: &Saved) -> Result<Self, Error> {
        saved.read_one_of(CONTROLLER.0, CONTROLLER.1..=WITH_PROTECTION)
    }
}

impl SavedRing<SubmissionState> {
    pub(super) fn claim(&self, claims: &mut Claims) -> Result<Commands, Error> {
        SubmissionRing::resume(claims.claim(self.memory)?, self.state)
    }
}

impl SavedRing<CompletionState> {
    pub(super) fn claim(&self, claims: &mut Claims) -> Result<Ends, Error> {
        CompletionRing::resume(claims.claim(self.memory)?, self.state)
    }
}

impl SavedAdmin {
    pub(super) fn of(admin: &Admin) -> Self {
        Self {
            submission: SavedRing::new(admin.submission.words(), admin.submission.state()),
            completion: SavedRing::new(admin.completion.words(), admin.completion.state()),
            page: admin.page.span(),
            next_id: admin.next_id,
            armed: admin.armed,
            event_requests: admin.event_requests,
            events: admin.events.iter().map(|event| event.0).collect(),
            strays: admin.strays,
            checkpoint: Some(admin.checkpoint.span()),
            host_memory: admin.host_memory.as_ref().map(Lent::saved),
        }
    }
}

impl Admin {
    /// Releases its memory to the next process; it stays allocated.
    pub(super) fn release_to_successor(&mut self) {
        self.submission.words_mut().release_to_successor();
        self.completion.words_mut().release_to_successor();
        self.page.release_to_successor();
        self.checkpoint.release_to_successor();
        self.host_memory.iter_mut().for_each(Lent::release_to_successor);
        self.detached = true;
    }

    /// The queue of the controller that was saved as `state`; it takes nothing before it is told
    /// that it is not detached any more.
    pub(super) fn resume(
        registers: Registers,
        claims: &mut Claims,
        state: &SavedController,
        stride: u32,
    ) -> Result<Self, Error> {
        let SavedAdmin {
            submission,
            completion,
            page,
            next_id,
            armed,
            event_requests,
            events,
            strays,
            checkpoint,
            host_memory,
        } = &state.admin;
        let page = claims.claim(*page)?;
        let checkpoint = match checkpoint {
            Some(span) => Checkpoint::over(claims.claim(*span)?),
            None => Checkpoint::new(claims.arena())?,
        };
        let host_memory = host_memory
            .as_ref()
            .map(|saved| saved.claim(claims, state.traits.page.into()))
            .transpose()?;
        let admin = Self {
            registers,
            submission: submission.claim(claims)?,
            completion: completion.claim(claims)?,
            stride,
            timeout: state.options.timeout,
            firmware_activation: state.traits.firmware_activation,
            page,
            next_id: *next_id,
            armed: *armed,
            event_requests: *event_requests,
            events: events.iter().map(|&event| AsyncEvent(event)).collect(),
            strays: *strays,
            detached: true,
            checkpoint,
            unread: false,
            host_memory,
        };
        let sizes = (admin.submission.size(), admin.completion.size(), admin.page.len());
        if sizes != (ENTRIES, ENTRIES, identify::SIZE)
            || *event_requests > MAX_EVENT_REQUESTS
            || *next_id >= EVENT_IDS
        {
            return Err(Error::Invalid(
                "the saved state of the admin queue is none of this driver's; open the device anew"
                    .into(),
            ));
        }
        Ok(admin)
    }
}

#[cfg(test)]
mod tests {
    use ring3_class::Saved;
    use ring3_class::block::Operation;

    use super::*;
    use crate::disk::SavedQueue;

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let read = |text| serde_json::from_str::<Saved>(text).unwrap();
        let controller = read(include_str!("../../tests/saved/nvme_controller.json"));
        let controller: SavedController = controller.read(CONTROLLER.0, CONTROLLER.1).unwrap();
        assert_eq!(
            (controller.admin.armed, controller.queues, controller.vectors),
            (0b1111, vec![1], 5)
        );
        let queue: SavedQueue<SavedPair> =
            read(include_str!("../../tests/saved/nvme_queue.json")).read(QUEUE.0, QUEUE.1).unwrap();
        assert_eq!(
            (queue.next, queue.held[0].request.operation, queue.rings.submission.state.tail),
            (1, Operation::Read, 1)
        );
    }
}
