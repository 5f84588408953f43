//! Which pairs of queues are open, and the memory of those that ended before others.
//!
//! A card stops as a whole. So a queue that ends while others go on leaves its memory here, to
//! which the card may write until the last of them ends.

use ring3_device::dma::DmaBuffer;

use super::half::PacketRing;

/// Most pairs of queues.
pub(super) const MAX_PAIRS: u16 = 8;

/// What became of a pair that was opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PairState {
    Open,
    /// It was left to who resumes it.
    Detached,
    Ended,
}

/// All pairs that were opened together; none while the card does not go.
#[derive(Default)]
pub(super) struct Pairs {
    stages: Vec<PairState>,
    parked: Vec<DmaBuffer>,
}

impl Pairs {
    /// `count` of them are open.
    pub(super) fn open(&mut self, count: usize) {
        self.stages = vec![PairState::Open; count];
    }

    /// `count` of them were left by another process.
    pub(super) fn left(count: usize) -> Self {
        Self { stages: vec![PairState::Detached; count], parked: Vec::new() }
    }

    pub(super) fn any_open(&self) -> bool {
        self.stages.contains(&PairState::Open)
    }

    pub(super) fn any_detached(&self) -> bool {
        self.stages.contains(&PairState::Detached)
    }

    /// Whether all of them were detached, `count` together.
    pub(super) fn are_detached(&self, count: usize) -> bool {
        count > 0
            && self.stages.len() == count
            && self.stages.iter().all(|stage| *stage == PairState::Detached)
    }

    /// Whether one has ended, and others go on.
    pub(super) fn any_ended(&self) -> bool {
        self.stages.contains(&PairState::Ended)
    }

    pub(super) fn detach(&mut self, index: u16) {
        self.set(index, PairState::Detached);
    }

    /// Pair `index` ends; whether it is the last.
    pub(super) fn end(&mut self, index: u16) -> bool {
        self.set(index, PairState::Ended);
        self.stages.iter().all(|stage| *stage == PairState::Ended)
    }

    fn set(&mut self, index: u16, stage: PairState) {
        if let Some(place) = self.stages.get_mut(usize::from(index)) {
            *place = stage;
        }
    }

    /// Keeps what the card may still write to.
    pub(super) fn park(&mut self, half: &mut PacketRing) {
        self.parked.extend(half.take_memory());
    }

    /// The card has stopped, or was given up. What was kept goes back if it was `quiesced`, and
    /// never otherwise.
    pub(super) fn stop(&mut self, quiesced: bool) {
        if !quiesced {
            self.parked.iter_mut().for_each(DmaBuffer::abandon);
        }
        *self = Self::default();
    }
}
