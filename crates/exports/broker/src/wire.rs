//! Entries of the rings.
//!
//! A submission has four words: operation (8 bits), flags (8), number of segments (16) and tag
//! (32); first block; blocks (32) and bytes of the first segment (32); place of the first segment:
//! the number of a region of the client's memory (16), the offset there (48). An entry with several
//! segments has all of them in its place's table instead. A completion has one word: tag (32) and
//! status (32).

use ring3_class::block::{IoError, Operation};
use ring3_class::dma::Span;

/// Words of a submission.
pub const SUBMISSION: usize = 4;
/// Words of a completion.
pub const COMPLETION: usize = 1;
/// Most segments of a request.
pub const MAX_SEGMENTS: usize = 64;

/// A request, as it stands in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// What to do.
    pub operation: Operation,
    /// See [`Request::fua`](ring3_class::block::Request::fua).
    pub fua: bool,
    /// How many segments its data has; none if it has no data.
    pub segments: u16,
    /// The client's name for it.
    pub tag: u32,
    /// First block.
    pub lba: u64,
    /// How many blocks.
    pub blocks: u32,
    /// [Place](place) and bytes of its segment, if it has one.
    pub only: (u64, u32),
}

const OPERATIONS: [Operation; 5] = [
    Operation::Read,
    Operation::Write,
    Operation::Flush,
    Operation::WriteZeroes,
    Operation::Discard,
];

/// The numbers of errors begin with 1: 0 is success.
const ERRORS: [IoError; 10] = [
    IoError::Medium,
    IoError::OutOfRange,
    IoError::NoSpace,
    IoError::ReadOnly,
    IoError::Unsupported,
    IoError::Invalid,
    IoError::Integrity,
    IoError::Transport,
    IoError::Timeout,
    IoError::Gone,
];

impl Submission {
    /// Its words.
    #[inline]
    pub fn encode(&self) -> [u64; SUBMISSION] {
        let operation =
            OPERATIONS.iter().position(|&operation| operation == self.operation).unwrap_or(0)
                as u64;
        let first = operation
            | u64::from(self.fua) << 8
            | u64::from(self.segments) << 16
            | u64::from(self.tag) << 32;
        [first, self.lba, u64::from(self.blocks) | u64::from(self.only.1) << 32, self.only.0]
    }

    /// What words say; `None` if they say nothing that a client of this version writes.
    #[inline]
    pub fn decode([first, lba, lengths, offset]: [u64; SUBMISSION]) -> Option<Self> {
        let operation = *OPERATIONS.get(first as u8 as usize)?;
        let (flags, segments) = ((first >> 8) as u8, (first >> 16) as u16);
        if flags > 1 || usize::from(segments) > MAX_SEGMENTS {
            return None;
        }
        Some(Self {
            operation,
            fua: flags == 1,
            segments,
            tag: (first >> 32) as u32,
            lba,
            blocks: lengths as u32,
            only: (offset, (lengths >> 32) as u32),
        })
    }
}

/// Bits of an offset in a region.
const OFFSET: u32 = 48;

/// The word of a place: an offset in a region of the client's memory.
#[inline]
pub fn place(region: u32, offset: u64) -> u64 {
    u64::from(region) << OFFSET | offset
}

/// The `len` bytes at the place that a word says, if there is such a region.
#[inline]
pub fn span(place: u64, len: u32) -> Span {
    Span { region: (place >> OFFSET) as u32, len, offset: place & ((1 << OFFSET) - 1) }
}

/// The word of a request's end.
#[inline]
pub fn completion(tag: u32, result: Result<(), IoError>) -> [u64; COMPLETION] {
    let status = match result {
        Ok(()) => 0,
        Err(error) => 1 + ERRORS.iter().position(|&known| known == error).unwrap_or(7) as u64,
    };
    [u64::from(tag) | status << 32]
}

/// What the word of an end says. A status that nobody knows is a transport error.
#[inline]
pub fn ended([word]: [u64; COMPLETION]) -> (u32, Result<(), IoError>) {
    let result = match (word >> 32) as usize {
        0 => Ok(()),
        status => Err(ERRORS.get(status - 1).copied().unwrap_or(IoError::Transport)),
    };
    (word as u32, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_say_what_was_encoded(operation in 0usize..5, fua: bool, segments in 0u16..=64, tag: u32, lba: u64, blocks: u32, only: (u64, u32)) {
            let operation = OPERATIONS[operation];
            let submission = Submission { operation, fua, segments, tag, lba, blocks, only };
            prop_assert_eq!(Submission::decode(submission.encode()), Some(submission));
        }

        #[test]
        fn a_word_says_where_in_which_region(region: u16, offset in 0..1u64 << OFFSET, len: u32) {
            let region = u32::from(region);
            prop_assert_eq!(span(place(region, offset), len), Span { region, len, offset });
        }

        #[test]
        fn any_words_are_a_submission_or_none_and_never_one_of_too_many_segments(words: [u64; 4]) {
            let fits = |submission: Submission| usize::from(submission.segments) <= MAX_SEGMENTS;
            prop_assert!(Submission::decode(words).is_none_or(fits));
        }
    }

    #[test]
    fn every_error_arrives_as_itself() {
        for error in ERRORS {
            assert_eq!(ended(completion(7, Err(error))), (7, Err(error)));
        }
        assert_eq!(ended(completion(u32::MAX, Ok(()))), (u32::MAX, Ok(())));
        assert_eq!(ended([99 << 32]).1, Err(IoError::Transport));
    }
}
