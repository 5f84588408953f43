//! How far a ring is, for a process that goes on with it while the device has it.
//!
//! What is in the memory stays there and is the device's business, too; this is the driver's half. Neither side notices the change of hands:
//! nothing is written, and what was pushed and not published is published by the next [`publish`](SubmissionRing::publish).

use serde::{Deserialize, Serialize};

use super::{CompletionRing, SubmissionRing, Words, check_size};
use crate::Error;

/// How far a [`SubmissionRing`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmissionState {
    /// Slots.
    pub size: u32,
    /// The first entry that the device is not known to have taken. All three indices run free.
    pub head: u32,
    /// The next entry to write.
    pub tail: u32,
    /// What the doorbell last said.
    pub committed: u32,
}

/// How far a [`CompletionRing`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionState {
    /// Slots.
    pub size: u32,
    /// The next entry to look at, running free; its lap says which phase is new.
    pub head: u32,
    /// What the doorbell last said.
    pub committed: u32,
}

/// How far a [`DescriptorRing`](super::DescriptorRing) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorState {
    /// Slots.
    pub size: u32,
    /// The oldest entry that is not back. All three indices run free.
    pub head: u32,
    /// The next entry to write.
    pub tail: u32,
    /// What the doorbell last said.
    pub committed: u32,
}

impl<W: Words, const N: usize> SubmissionRing<W, N> {
    /// How far it is.
    pub fn state(&self) -> SubmissionState {
        SubmissionState { size: self.size(), head: self.head(), tail: self.tail, committed: self.committed }
    }

    /// The memory underneath, to leave it to somebody else.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
    }

    /// The ring over `words` that was as `state` says. That is input: [`Error::Invalid`] if no ring can be so.
    pub fn resume(words: W, state: SubmissionState) -> Result<Self, Error> {
        let SubmissionState { size, head, tail, committed } = state;
        check_size(&words, size, N)?;
        let (held, published) = (tail.wrapping_sub(head), committed.wrapping_sub(head));
        if held > size - 1 || published > held {
            return Err(Error::Invalid(format!("no submission ring is like this: {state:?}")));
        }
        Ok(Self { words, mask: size - 1, full: head.wrapping_add(size - 1), tail, committed })
    }
}

impl<W: Words, const N: usize, const WORD: usize, const BIT: u32> CompletionRing<W, N, WORD, BIT> {
    /// How far it is.
    pub fn state(&self) -> CompletionState {
        CompletionState { size: self.size, head: self.head, committed: self.committed }
    }

    /// The memory underneath, to leave it to somebody else.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
    }

    /// The ring over `words` that was as `state` says. That is input: [`Error::Invalid`] if no ring can be so.
    pub fn resume(words: W, state: CompletionState) -> Result<Self, Error> {
        let CompletionState { size, head, committed } = state;
        check_size(&words, size, N)?;
        if head.wrapping_sub(committed) > size {
            return Err(Error::Invalid(format!("no completion ring is like this: {state:?}")));
        }
        Ok(Self { words, size, head, committed })
    }
}
