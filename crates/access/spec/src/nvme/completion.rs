//! The completion queue entry. [NVMe 4.2.1]

use super::{COMPLETION_WORDS, Status};

/// Which word of the entry holds the phase tag. [NVMe 4.2.4]
pub const PHASE_WORD: usize = 1;
/// Which bit of that word it is.
pub const PHASE_BIT: u32 = 48;

/// The end of one command, as two little-endian 64-bit words. [NVMe 4.2.1]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Completion(pub [u64; COMPLETION_WORDS]);

const _: () = assert!(size_of::<Completion>() == 16);

/// What the end of a command says that succeeded, made once for a submission queue.
#[derive(Clone, Copy, Debug)]
pub struct Success(u64);

impl Success {
    /// What of the word with the phase it says: queue and status.
    pub const MASK: u64 = 0x7ff << 49 | 0xffff << 16;

    /// That of submission queue `queue`.
    pub const fn of(queue: u16) -> Self {
        Self((queue as u64) << 16)
    }

    /// What is in these bits.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl Completion {
    /// The end of command `id` of submission queue `queue`, phase 0, result 0; `head` is how far
    /// that queue was read.
    pub const fn new(queue: u16, head: u16, id: u16, status: Status) -> Self {
        Self([
            0,
            head as u64
                | (queue as u64) << 16
                | (id as u64) << 32
                | (status.0 as u64 & 0x7fff) << 49,
        ])
    }

    /// What `word`, the one with the phase, says of an entry; the result, which lies in the other,
    /// is zero.
    #[inline]
    pub const fn of_phase_word(word: u64) -> Self {
        Self([0, word])
    }

    /// The same with the command specific result in dword 0.
    pub const fn with_result(mut self, result: u32) -> Self {
        self.0[0] = (self.0[0] & !(u32::MAX as u64)) | result as u64;
        self
    }

    /// The same with phase tag `phase`.
    pub const fn with_phase(mut self, phase: bool) -> Self {
        self.0[PHASE_WORD] = (self.0[PHASE_WORD] & !(1 << PHASE_BIT)) | (phase as u64) << PHASE_BIT;
        self
    }

    /// Command specific result, dword 0.
    #[inline]
    pub const fn result(&self) -> u32 {
        self.0[0] as u32
    }

    /// SQHD: the submission queue's head when the entry was made.
    #[inline]
    pub const fn head(&self) -> u16 {
        self.0[1] as u16
    }

    /// SQID: the submission queue.
    #[inline]
    pub const fn queue(&self) -> u16 {
        (self.0[1] >> 16) as u16
    }

    /// CID: the command.
    #[inline]
    pub const fn id(&self) -> u16 {
        (self.0[1] >> 32) as u16
    }

    /// Phase tag.
    #[inline]
    pub const fn phase(&self) -> bool {
        self.0[PHASE_WORD] >> PHASE_BIT & 1 == 1
    }

    /// Whether it says so: queue and status in one comparison, as every request makes it.
    #[inline]
    pub const fn is(&self, success: Success) -> bool {
        self.0[1] & Success::MASK == success.0
    }

    /// How it ended.
    #[inline]
    pub const fn status(&self) -> Status {
        Status((self.0[1] >> 49) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_back_as_it_was_built() {
        let status = Status::UNRECOVERED_READ.with_do_not_retry();
        let entry =
            Completion::new(2, 0xfffe, 0xabcd, status).with_result(0x1234_5678).with_phase(true);
        assert_eq!(
            (entry.queue(), entry.head(), entry.id(), entry.status()),
            (2, 0xfffe, 0xabcd, status)
        );
        assert_eq!((entry.result(), entry.phase()), (0x1234_5678, true));
    }

    #[test]
    fn the_good_end_of_a_command_is_that_of_its_own_queue_whatever_flags_it_has() {
        let end = |status| Completion::new(2, 0xffff, 0xffff, status).with_phase(true);
        let (two, three) = (Success::of(2), Success::of(3));
        assert!(
            end(Status::SUCCESS.with_do_not_retry()).is(two) && !end(Status::SUCCESS).is(three)
        );
        assert!(!end(Status::INVALID_OPCODE).is(two) && !end(Status::WRITE_FAULT).is(two));
    }

    #[test]
    fn the_phase_does_not_touch_its_neighbours() {
        let entry = Completion::new(0xffff, 0xffff, 0xffff, Status(0x7fff)).with_phase(false);
        assert_eq!(entry.0[1], !(1 << 48));
    }
}
