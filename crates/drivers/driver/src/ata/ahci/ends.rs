//! Learning what has ended.
//!
//! # Looking
//! Memory is the hint that something ended, PxSACT or PxCI the truth, read once for all that has
//! ended since; see `lists.rs`. A frame may be in memory just before the register follows, so tags
//! that a frame names are looked for a few times more.
//!
//! # Waiting
//! A port signals once until it is acknowledged, so an owner that polls does not acknowledge at
//! all. An owner that sleeps must not sleep on a signal that it has swallowed: it acknowledges
//! before it reads the register, never only after, and whatever ends between the two is seen by
//! that read. The one case without a second read is the commonest: the only request in flight has
//! ended. Then it acknowledges before it starts the next. An interrupt without a frame is followed
//! by a look at the port's errors.

use ring3_device::order::take_back;

use super::queue::PortQueue;
use super::recovery::PortFault;
use crate::disk::Outcome;

/// How often tags that a frame has named are looked for in the register.
const LOOKS: u8 = 8;

impl PortQueue {
    /// Learns what has ended, and what is wrong.
    pub(super) fn poll_completions(&mut self) {
        self.served = self.interrupts_taken();
        let frames = self.port.lists.take_frames(self.plain);
        if let Some(failure) = frames.failure {
            self.fault = Some(PortFault::Command(failure));
            return;
        }
        let named =
            (frames.ended & self.issued) | if self.plain && frames.any { self.issued } else { 0 };
        let expected = named | self.claimed;
        let only = self.armed && expected == self.issued && self.issued.is_power_of_two();
        let mut outstanding = self.acknowledge_and_read(self.armed && !only);
        if only && outstanding & self.issued != 0 {
            outstanding = self.acknowledge_and_read(true);
        }
        self.signalled |= only;
        // Registers are believed while somebody else's reset cannot have changed them.
        if self.shared.generation() != self.port.generation {
            return;
        }
        let ended = self.issued & !outstanding;
        if expected == 0 && !self.is_confirmed(ended) {
            return;
        }
        // A reset by somebody else clears the register, too: what no frame has named ended only if
        // the port still runs.
        if ended & !expected != 0 && !self.port.is_running() {
            return;
        }
        if self.flushes(ended) && self.port.has_lost_link() {
            // The drive that has flushed may not have had what was written.
            self.fault = Some(PortFault::Link);
            return;
        }
        take_back();
        self.issued &= outstanding;
        self.note_done(ended);
        self.look_again_for(expected & self.issued);
        if self.issued == 0 && self.rung > 0 {
            self.advance();
        }
    }

    /// Notes what has ended well.
    #[inline]
    pub(super) fn note_done(&mut self, ended: u32) {
        self.alone &= !ended;
        if ended & self.cached != 0 {
            self.port.cache.wrote();
        } else if self.flushes(ended)
            && let Err(lost) = self.port.cache.flushed()
        {
            return self.outcomes.push_back((ended.trailing_zeros() as u8, Outcome::Failed(lost)));
        }
        self.done |= ended;
    }

    /// Whether what `ended` is a flush. It is not queued, so that it was alone in the device's
    /// hands.
    #[inline]
    fn flushes(&self, ended: u32) -> bool {
        self.plain && ended & self.flushes != 0
    }

    /// Before the first write since a flush: a link that was lost by then has cost nothing, and is
    /// made ready again by the next tick. Found after the write, it would have cost that. `unrung`
    /// is to be issued with all that is in line.
    #[inline]
    pub(super) fn look_before_writing(&mut self, unrung: u32) {
        if !self.port.cache.is_clean() {
            return;
        }
        let next = self.line.iter().fold(unrung, |mask, &slot| mask | 1 << slot);
        if self.cached & next != 0 && self.port.has_lost_link() {
            self.port.ready = false;
        }
    }

    /// Reads which commands have not ended, after acknowledging if asked to.
    #[inline]
    fn acknowledge_and_read(&mut self, acknowledge: bool) -> u32 {
        if acknowledge {
            self.gate.acknowledge();
            self.signalled = false;
        }
        self.port.outstanding(!self.plain)
    }

    /// Notes which tags were named and have not ended.
    #[inline]
    fn look_again_for(&mut self, slots: u32) {
        if slots == 0 {
            (self.claimed, self.looks) = (0, 0);
            return;
        }
        self.looks = if self.claimed == 0 { LOOKS } else { self.looks - 1 };
        self.claimed = if self.looks > 0 { slots } else { 0 };
    }

    /// Whether commands that `ended` without a frame really have; notes if the port is in trouble.
    #[cold]
    fn is_confirmed(&mut self, ended: u32) -> bool {
        self.fault = self.trouble();
        self.fault.is_none()
            && ended != 0
            && self.port.is_running()
            && self.shared.generation() == self.port.generation
    }

    /// Stops looking for tags that frames have named: they are not in flight any more.
    pub(super) fn forget_claims(&mut self) {
        (self.claimed, self.looks) = (0, 0);
    }
}
