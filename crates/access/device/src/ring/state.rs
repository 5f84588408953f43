//! The saved state of a ring, for a process that resumes it while the device uses it.
//!
//! The contents of the memory stay there and are shared with the device; this is the driver's
//! private part. The device does not notice the hand-over: nothing is written, and entries that
//! were pushed and not published are published by the next [`publish`](SubmissionRing::publish).

use serde::{Deserialize, Serialize};

use super::packed::Place;
use super::{CompletionRing, PackedRing, SplitRing, SubmissionRing, Words, check_size};
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

/// How far a [`SplitRing`] is that has published all that it offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitState {
    /// Entries.
    pub size: u16,
    /// Entries offered so far, running free.
    pub offered: u16,
    /// The next entry of the device's to look at, running free.
    pub seen: u16,
    /// The first word of the ring of what is available: flags, index, two entries.
    pub first: u64,
}

/// How far a [`PackedRing`] is that has published all that it offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedState {
    /// Descriptors.
    pub size: u16,
    /// Where the next descriptor goes, and the wrap counter of its lap.
    pub next: (u16, bool),
    /// Where the next one comes back, and the wrap counter of its lap.
    pub seen: (u16, bool),
    /// By id, how many descriptors its chain has, where that is not one.
    pub chains: Vec<(u16, u16)>,
}

impl<W: Words, const N: usize> SubmissionRing<W, N> {
    /// How far it is.
    pub fn state(&self) -> SubmissionState {
        SubmissionState {
            size: self.size(),
            head: self.head(),
            tail: self.tail,
            committed: self.committed,
        }
    }

    /// The memory underneath, to leave it to somebody else.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
    }

    /// The ring over `words` that was as `state` says. That is input: [`Error::Invalid`] if no ring
    /// can be so.
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

    /// The ring over `words` that was as `state` says. That is input: [`Error::Invalid`] if no ring
    /// can be so.
    pub fn resume(words: W, state: CompletionState) -> Result<Self, Error> {
        let CompletionState { size, head, committed } = state;
        check_size(&words, size, N)?;
        if head.wrapping_sub(committed) > size {
            return Err(Error::Invalid(format!("no completion ring is like this: {state:?}")));
        }
        Ok(Self { words, size, head, committed })
    }
}

impl<W: Words> SplitRing<W> {
    /// How far it is; `None` while something was offered and not published.
    pub fn state(&self) -> Option<SplitState> {
        let published = (self.first >> 16) as u16 == self.offered;
        let Self { first, offered, seen, .. } = *self;
        published.then(|| SplitState { size: self.size(), offered, seen, first })
    }

    /// The memory underneath: descriptors, what is available, what was used.
    pub fn words(&self) -> [&W; 3] {
        [&self.table, &self.available, &self.used]
    }

    /// The same, to leave it to somebody else.
    pub fn words_mut(&mut self) -> [&mut W; 3] {
        [&mut self.table, &mut self.available, &mut self.used]
    }

    /// The ring over these words that was as `state` says. That is input: [`Error::Invalid`] if no
    /// ring can be so.
    pub fn resume([table, available, used]: [W; 3], state: SplitState) -> Result<Self, Error> {
        let SplitState { size, offered, seen, first } = state;
        // The word is stored as a whole, over the ring's first entries: what differs would be
        // another request to the device.
        let ring = Self::new(table, available, used, size)?;
        let same = ring.available.load(0) == first;
        if offered.wrapping_sub(seen) > size || (first >> 16) as u16 != offered || !same {
            return Err(Error::Invalid(format!("no split virtqueue is like this: {state:?}")));
        }
        Ok(Self { first, offered, seen, ..ring })
    }
}

impl<W: Words> PackedRing<W> {
    /// How far it is; `None` while something was offered and not published.
    pub fn state(&self) -> Option<PackedState> {
        if self.withheld.is_some() || self.begun > 0 {
            return None;
        }
        let chains = (0..)
            .zip(&self.chains)
            .filter(|(_, count)| **count > 1)
            .map(|(id, count)| (id, *count))
            .collect();
        let of = |place: Place| (place.at, place.wrap);
        Some(PackedState { size: self.size, next: of(self.next), seen: of(self.seen), chains })
    }

    /// The memory underneath: descriptors, the driver's wish, the device's.
    pub fn words(&self) -> [&W; 3] {
        [&self.ring, &self.driver, &self.device]
    }

    /// The same, to leave it to somebody else.
    pub fn words_mut(&mut self) -> [&mut W; 3] {
        [&mut self.ring, &mut self.driver, &mut self.device]
    }

    /// The ring over these words that was as `state` says. That is input: [`Error::Invalid`] if no
    /// ring can be so.
    pub fn resume([ring, driver, device]: [W; 3], state: &PackedState) -> Result<Self, Error> {
        let size = state.size;
        let mut ring = Self::new(ring, driver, device, size)?;
        let invalid = || Error::Invalid(format!("no packed virtqueue is like this: {state:?}"));
        let place =
            |(at, wrap): (u16, bool)| (at < size).then_some(Place { at, wrap }).ok_or_else(invalid);
        (ring.next, ring.seen) = (place(state.next)?, place(state.seen)?);
        let (next, seen) = (ring.next, ring.seen);
        let held = match next.wrap == seen.wrap {
            true => next.at.checked_sub(seen.at),
            // Not further than the same place in the next lap.
            false => (size - seen.at).checked_add(next.at).filter(|held| *held <= size),
        };
        ring.held = held.ok_or_else(invalid)?;
        for &(id, count) in &state.chains {
            let fits = count <= ring.held;
            *ring.chains.get_mut(usize::from(id)).filter(|_| fits).ok_or_else(invalid)? = count;
        }
        Ok(ring)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dma::{Arena, DmaBuffer, Region};

    fn words() -> [DmaBuffer; 3] {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        [(); 3].map(|()| arena.alloc(256, 16).unwrap())
    }

    #[test]
    fn a_split_ring_that_cannot_have_been_is_refused() {
        let first = 5 << 48 | 4 << 32 | 3 << 16;
        let state = SplitState { size: 8, offered: 3, seen: 0xffff, first };
        let offered = || {
            let [table, available, used] = words();
            available.store(0, first);
            [table, available, used]
        };
        assert_eq!(SplitRing::resume(offered(), state).unwrap().state(), Some(state));
        for state in [
            SplitState { seen: 0xfff0, ..state },
            SplitState { seen: 4, ..state },
            SplitState { first: first & !0xffff_0000 | 2 << 16, ..state },
            // The device would be offered something else than it was.
            SplitState { first: first | 2 << 48, ..state },
            SplitState { size: 6, ..state },
            SplitState { size: 32, ..state },
        ] {
            assert!(
                matches!(SplitRing::resume(offered(), state), Err(Error::Invalid(_))),
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_packed_ring_that_cannot_have_been_is_refused() {
        let state =
            PackedState { size: 8, next: (2, false), seen: (5, true), chains: vec![(1, 3)] };
        let ring = PackedRing::resume(words(), &state).unwrap();
        assert_eq!((ring.state(), ring.held), (Some(state.clone()), 5));
        for state in [
            PackedState { next: (8, false), ..state.clone() },
            PackedState { next: (6, false), ..state.clone() },
            PackedState { next: (4, true), ..state.clone() },
            PackedState { chains: vec![(8, 1)], ..state.clone() },
            PackedState { chains: vec![(1, 6)], ..state.clone() },
            PackedState { size: 0, ..state.clone() },
            PackedState { size: 17, ..state.clone() },
        ] {
            assert!(
                matches!(PackedRing::resume(words(), &state), Err(Error::Invalid(_))),
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_virtqueue_goes_on_over_the_same_memory_where_it_was() {
        let mut split =
            SplitRing::resume(words(), SplitState { size: 4, offered: 0, seen: 0, first: 0 })
                .unwrap();
        split.offer(2);
        assert_eq!(split.state(), None);
        split.publish();
        let state = split.state().unwrap();
        let SplitRing { table, available, used, .. } = split;
        // The device has used it meanwhile.
        used.write(2, &[1, 0, 2, 0, 0, 0, 7, 0, 0, 0]).unwrap();
        let mut split = SplitRing::resume([table, available, used], state).unwrap();
        assert_eq!((split.take().unwrap(), split.take().unwrap()), (Some((2, 7)), None));
        let start = PackedState { size: 4, next: (3, true), seen: (3, true), chains: vec![] };
        let mut packed = PackedRing::resume(words(), &start).unwrap();
        (0..2).for_each(|_| packed.describe(1, 0x1000, 4, 0));
        packed.offer(1);
        assert_eq!(packed.state(), None);
        packed.publish();
        let state = packed.state().unwrap();
        assert_eq!((state.next, &state.chains[..]), ((1, false), &[(1, 2)][..]));
        let PackedRing { ring, driver, device, .. } = packed;
        ring.store(7, 9 | 1 << 32 | (1 << 7 | 1 << 15) << 48);
        let mut packed = PackedRing::resume([ring, driver, device], &state).unwrap();
        assert_eq!(
            (packed.take(), packed.take(), packed.state().unwrap().seen),
            (Some((1, 9)), None, (1, false))
        );
    }
}
