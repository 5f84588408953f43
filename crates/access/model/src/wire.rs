//! The other end of the wire: a test, a mirror, or another model of this process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Bus;
use super::timer::Waker;

/// Frames that a test can leave untaken, and that a cable holds each way.
const KEPT: usize = 4096;

/// What is at the other end of the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireShape {
    /// A test: it takes what was sent, and injects what is received.
    Test,
    /// A mirror: what is sent comes back with its addresses exchanged.
    Mirror,
    /// The other model of this process that names this cable.
    Cable(String),
}

/// What a user calls the other end.
pub(super) fn shape(text: &str) -> Option<WireShape> {
    match text.split_once('/') {
        None if text == "test" => Some(WireShape::Test),
        None if text == "mirror" => Some(WireShape::Mirror),
        Some(("cable", name)) if !name.is_empty() => Some(WireShape::Cable(name.into())),
        _ => None,
    }
}

/// One card's end of a wire.
pub(super) enum Wire {
    /// What was sent, for a test to take; the oldest are forgotten.
    Test(VecDeque<Vec<u8>>),
    /// What was sent, on its way back.
    Mirror(VecDeque<Vec<u8>>),
    /// A cable to another card.
    Cable(End),
}

/// One end of a cable.
pub(super) struct End {
    cable: Arc<Cable>,
    /// 0 or 1; `None` if both ends were taken.
    side: Option<usize>,
    /// Something was sent since the other end was told.
    sent: bool,
}

struct Cable([Mutex<Side>; 2]);

/// What a cable knows of the card at one of its ends.
#[derive(Default)]
struct Side {
    taken: bool,
    /// It offers a link.
    offers: bool,
    /// Frames on their way to it.
    coming: VecDeque<Vec<u8>>,
    waker: Option<Waker>,
}

impl Cable {
    /// The cable of that name, as long as somebody holds an end.
    fn named(name: &str) -> Arc<Self> {
        static CABLES: Mutex<BTreeMap<String, Weak<Cable>>> = Mutex::new(BTreeMap::new());
        let mut cables = CABLES.lock().unwrap_or_else(PoisonError::into_inner);
        cables.retain(|_, cable| cable.strong_count() > 0);
        if let Some(cable) = cables.get(name).and_then(Weak::upgrade) {
            return cable;
        }
        let cable = Arc::new(Self(Default::default()));
        cables.insert(name.into(), Arc::downgrade(&cable));
        cable
    }

    fn side(&self, side: usize) -> MutexGuard<'_, Side> {
        self.0[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_side(&self) -> Option<usize> {
        (0..2).find(|side| !std::mem::replace(&mut self.side(*side).taken, true))
    }

    fn wake(&self, side: usize) {
        let waker = self.side(side).waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Wire {
    pub(super) fn new(shape: &WireShape) -> Self {
        match shape {
            WireShape::Test => Self::Test(VecDeque::new()),
            WireShape::Mirror => Self::Mirror(VecDeque::new()),
            WireShape::Cable(name) => {
                let cable = Cable::named(name);
                Self::Cable(End { side: cable.take_side(), cable, sent: false })
            }
        }
    }

    /// From now on the card is told when something comes.
    pub(super) fn attach(&mut self, bus: &Bus) {
        if let Self::Cable(End { cable, side: Some(side), .. }) = self {
            let mut own = cable.side(*side);
            if own.waker.is_none() {
                own.waker = Some(bus.waker());
            }
        }
    }

    /// Says whether this end offers a link.
    pub(super) fn offer(&mut self, offers: bool) {
        if let Self::Cable(End { cable, side: Some(side), .. }) = self {
            let before = std::mem::replace(&mut cable.side(*side).offers, offers);
            if before != offers {
                cable.wake(1 - *side);
            }
        }
    }

    /// Whether the other end offers a link.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Self::Cable(End { cable, side: Some(side), .. }) => cable.side(1 - *side).offers,
            Self::Cable(_) => false,
            Self::Test(_) | Self::Mirror(_) => true,
        }
    }

    /// Whether the wire takes another frame: a cable is as fast as who reads it.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Cable(End { cable, side: Some(side), .. }) => {
                cable.side(1 - *side).coming.len() < KEPT
            }
            _ => true,
        }
    }

    pub(super) fn send(&mut self, mut frame: Vec<u8>) {
        match self {
            Self::Test(sent) => {
                if sent.len() == KEPT {
                    sent.pop_front();
                }
                sent.push_back(frame);
            }
            Self::Mirror(coming) => {
                let (to, from) = frame[..12].split_at_mut(6);
                to.swap_with_slice(from);
                coming.push_back(frame);
            }
            Self::Cable(end) => {
                if let Some(side) = end.side {
                    end.cable.side(1 - side).coming.push_back(frame);
                    end.sent = true;
                }
            }
        }
    }

    /// All that was sent is there: the other end is told.
    pub(super) fn flush(&mut self) {
        if let Self::Cable(End { cable, side: Some(side), sent }) = self
            && std::mem::take(sent)
        {
            cable.wake(1 - *side);
        }
    }

    /// What a test takes.
    pub(super) fn take_sent(&mut self) -> Vec<Vec<u8>> {
        match self {
            Self::Test(sent) => sent.drain(..).collect(),
            _ => Vec::new(),
        }
    }

    /// The next frame that comes back from a mirror.
    pub(super) fn take_mirrored(&mut self) -> Option<Vec<u8>> {
        match self {
            Self::Mirror(coming) => coming.pop_front(),
            _ => None,
        }
    }

    /// What has come through a cable. Who waited for room there goes on.
    pub(super) fn take_coming(&mut self) -> Vec<Vec<u8>> {
        let Self::Cable(End { cable, side: Some(side), .. }) = self else { return Vec::new() };
        let frames: Vec<_> = cable.side(*side).coming.drain(..).collect();
        if frames.len() >= KEPT {
            cable.wake(1 - *side);
        }
        frames
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(side) = self.side {
            *self.cable.side(side) = Side::default();
            self.cable.wake(1 - side);
        }
    }
}
