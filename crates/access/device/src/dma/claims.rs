//! Claims of several ranges at once: all of them, or none.

use super::ledger::RangeAllocator;
use super::{Arena, DmaBuffer, Span};
use crate::Error;

/// What somebody claims who may fail on the way, while the device may still write there.
///
/// Until [`commit`](Self::commit) says that it has succeeded, a buffer that is dropped leaves its
/// range as it was: taken, and to be claimed.
pub struct Claims {
    arena: Arena,
    spans: Vec<Span>,
}

impl Claims {
    /// Nothing of `arena` so far.
    pub fn new(arena: &Arena) -> Self {
        Self { arena: arena.clone(), spans: Vec::new() }
    }

    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// As [`Arena::claim`].
    pub fn claim(&mut self, span: Span) -> Result<DmaBuffer, Error> {
        let buffer = self.arena.claim_tentative(span)?;
        self.spans.push(span);
        Ok(buffer)
    }

    /// The buffers own their ranges from now on.
    pub fn commit(self) {
        let mut ledgers = self.arena.ledgers();
        for span in &self.spans {
            // `claim` has found the region.
            if let Some(ledger) = ledgers.get_mut(span.region as usize) {
                RangeAllocator::commit(ledger, span.offset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;

    fn arena() -> Arena {
        Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000)
    }

    #[test]
    fn a_released_buffer_stays_allocated_and_is_claimed_with_its_bytes() {
        let arena = arena();
        let mut buffer = arena.alloc(4096, 1).unwrap().tagged("ring");
        buffer.write(9, b"x").unwrap();
        let span = buffer.release_to_successor();
        assert!(buffer.is_empty() && buffer.read(0, &mut [0]).is_err());
        drop(buffer);
        assert_eq!(arena.unclaimed(), [(span, "ring".to_owned())]);
        let (claimed, mut byte) = (arena.claim(span).unwrap(), [0]);
        claimed.read(9, &mut byte).unwrap();
        assert_eq!((byte, arena.unclaimed()), (*b"x", Vec::new()));
        drop(claimed);
        assert_eq!(arena.free_bytes(), arena.len());
    }

    #[test]
    fn a_buffer_of_which_parts_were_released_stays_allocated_when_it_is_dropped() {
        let arena = arena();
        let (buffer, other) = (arena.alloc(4096, 1).unwrap(), arena.alloc(512, 1).unwrap());
        let span = buffer.span();
        buffer.list(512, 512).release_to_successor();
        drop((buffer, other));
        assert_eq!((arena.unclaimed().len(), arena.free_bytes()), (1, arena.len() - 4096));
        assert_eq!(arena.claim(span).unwrap().span(), span);
    }

    #[test]
    fn claims_that_fail_leave_everything_to_be_claimed_again() {
        let arena = arena();
        let spans = [4096, 512].map(|len| arena.alloc(len, 1).unwrap().release_to_successor());
        let mut claims = Claims::new(&arena);
        let first = claims.claim(spans[0]).unwrap();
        assert!(claims.claim(spans[0]).is_err());
        drop(claims);
        assert_eq!(arena.unclaimed().len(), 1);
        drop(first);
        assert_eq!(arena.unclaimed().len(), 2);
    }

    #[test]
    fn claims_that_succeed_own_their_ranges() {
        let arena = arena();
        let spans = [4096, 512].map(|len| arena.alloc(len, 1).unwrap().release_to_successor());
        let mut claims = Claims::new(&arena);
        let buffers = spans.map(|span| claims.claim(span).unwrap());
        claims.commit();
        assert!(arena.unclaimed().is_empty());
        drop(buffers);
        assert_eq!(arena.free_bytes(), arena.len());
    }
}
