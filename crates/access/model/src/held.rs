//! Commands that were taken and are not done yet.

use std::time::Instant;

/// A command that waits.
pub(super) struct Waiting<T> {
    pub(super) what: T,
    /// When it is done by itself; `None` if only by hand.
    pub(super) due: Option<Instant>,
    /// It is done right after the next command of its queue.
    pub(super) after_next: bool,
}

/// The commands that wait, in the order in which they were taken.
pub(super) struct Held<T>(Vec<Waiting<T>>);

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Held<T> {
    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        self.0.push(waiting);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The oldest.
    pub(super) fn take_first(&mut self) -> Option<T> {
        self.take(|_| true)
    }

    /// The oldest that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<T> {
        self.take(|waiting| waiting.due.is_some_and(|due| due <= now))
    }

    /// One that waited for another command of its queue to be done.
    #[inline]
    pub(super) fn take_after_next(&mut self, same_queue: impl Fn(&T) -> bool) -> Option<T> {
        if self.0.is_empty() {
            None
        } else {
            self.take(|waiting| waiting.after_next && same_queue(&waiting.what))
        }
    }

    /// The oldest that is `wanted`.
    pub(super) fn take_one(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        self.take(|waiting| wanted(&waiting.what))
    }

    /// Forgets those that are not `wanted`.
    pub(super) fn retain(&mut self, wanted: impl Fn(&T) -> bool) {
        self.0.retain(|waiting| wanted(&waiting.what));
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|waiting| waiting.due).min()
    }

    fn take(&mut self, wanted: impl Fn(&Waiting<T>) -> bool) -> Option<T> {
        self.0.iter().position(wanted).map(|index| self.0.remove(index).what)
    }
}
