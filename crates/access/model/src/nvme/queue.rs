//! Queues as the controller sees them. [NVMe 3.3.1]

use std::collections::VecDeque;

use ring3_spec::nvme::{Completion, SUBMISSION_WORDS, Submission};

use crate::{Blocked, Bus};

/// A submission queue.
pub(super) struct SubmissionQueue {
    pub(super) base: u64,
    pub(super) size: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The completion queue.
    pub(super) completion: u16,
}

impl SubmissionQueue {
    pub(super) fn new(base: u64, size: u32, completion: u16) -> Self {
        Self { base, size, head: 0, tail: 0, completion }
    }

    /// Takes the next command, or `None` if there is none.
    #[inline]
    pub(super) fn fetch(&mut self, bus: &Bus) -> Result<Option<Submission>, Blocked> {
        if self.head == self.tail {
            return Ok(None);
        }
        let mut bytes = [0; SUBMISSION_WORDS * 8];
        bus.read(self.base + u64::from(self.head) * bytes.len() as u64, &mut bytes)?;
        self.head = if self.head + 1 == self.size { 0 } else { self.head + 1 };
        let mut words = [0; SUBMISSION_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Some(Submission(words)))
    }
}

/// A completion queue.
pub(super) struct CompletionQueue {
    base: u64,
    pub(super) size: u32,
    head: u32,
    tail: u32,
    phase: bool,
    /// Where its interrupts go, if it has any.
    pub(super) vector: Option<u16>,
    /// Entries that found it full.
    waiting: VecDeque<Completion>,
}

impl CompletionQueue {
    pub(super) fn new(base: u64, size: u32, vector: Option<u16>) -> Self {
        Self { base, size, head: 0, tail: 0, phase: true, vector, waiting: VecDeque::new() }
    }

    /// Whether the host has something to take.
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether entries wait for room: then no further commands are taken.
    pub(super) fn is_stuffed(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Writes an entry, now or when there is room; true if it was written.
    #[inline]
    pub(super) fn post(
        &mut self,
        bus: &Bus,
        entry: Completion,
        flip_phase: bool,
    ) -> Result<bool, Blocked> {
        let next = if self.tail + 1 == self.size { 0 } else { self.tail + 1 };
        if next == self.head {
            self.waiting.push_back(entry);
            return Ok(false);
        }
        let words = entry.with_phase(self.phase != flip_phase).0;
        let at = self.base + u64::from(self.tail) * 16;
        // The word with the phase goes last and after everything else.
        bus.store(at, words[0])?;
        bus.store(at + 8, words[1])?;
        self.tail = next;
        self.phase ^= next == 0;
        Ok(true)
    }

    /// The host has taken everything before `head`; false if it cannot have.
    pub(super) fn taken(&mut self, head: u32) -> bool {
        let taken = (head + self.size - self.head) % self.size;
        let held = (self.tail + self.size - self.head) % self.size;
        if taken > held {
            return false;
        }
        self.head = head;
        true
    }

    /// Writes entries that waited; true if there were any.
    pub(super) fn catch_up(&mut self, bus: &Bus) -> Result<bool, Blocked> {
        let mut any = false;
        while let Some(entry) = self.waiting.pop_front() {
            if !self.post(bus, entry, false)? {
                // It went to the back: it must be first again.
                self.waiting.rotate_right(1);
                break;
            }
            any = true;
        }
        Ok(any)
    }
}
