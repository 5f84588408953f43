//! Commands that were taken and are not done yet.

use std::time::Instant;

use ring3_spec::nvme::Submission;

/// A command that waits.
pub(super) struct Waiting {
    pub(super) queue: u16,
    pub(super) command: Submission,
    /// When it is done by itself; `None` if only by hand.
    pub(super) due: Option<Instant>,
    /// It is done right after the next command of its queue.
    pub(super) after_next: bool,
}

/// The commands that wait, in the order in which they were taken.
#[derive(Default)]
pub(super) struct Held(Vec<Waiting>);

impl Held {
    pub(super) fn push(&mut self, waiting: Waiting) {
        self.0.push(waiting);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The oldest.
    pub(super) fn take_first(&mut self) -> Option<Waiting> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// The oldest that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Waiting> {
        self.take(|waiting| waiting.due.is_some_and(|due| due <= now))
    }

    /// One of `queue` that waited for another command of that queue to be done.
    #[inline]
    pub(super) fn take_after_next(&mut self, queue: u16) -> Option<Waiting> {
        if self.0.is_empty() { None } else { self.take(|waiting| waiting.queue == queue && waiting.after_next) }
    }

    /// Command `id` of `queue`.
    pub(super) fn take_command(&mut self, queue: u16, id: u16) -> Option<Waiting> {
        self.take(|waiting| waiting.queue == queue && waiting.command.id() == id)
    }

    /// Any of `queue`.
    pub(super) fn take_of_queue(&mut self, queue: u16) -> Option<Waiting> {
        self.take(|waiting| waiting.queue == queue)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|waiting| waiting.due).min()
    }

    fn take(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        self.0.iter().position(wanted).map(|index| self.0.remove(index))
    }
}
