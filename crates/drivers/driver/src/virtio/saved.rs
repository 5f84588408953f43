//! What virtqueues leave behind, as it is written down.
//!
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has left. All of it is input to whoever reads it.

use ring3_device::Error;
use ring3_device::dma::{Claims, Span};
use ring3_device::ring::{PackedState, SplitState};
use serde::{Deserialize, Serialize};

/// A virtqueue that the device goes on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedVirtqueue {
    /// Its memory: descriptors, the driver's area, the device's.
    pub(super) memory: [Span; 3],
    pub(super) state: SavedRing,
}

/// How far its ring is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SavedRing {
    Split(SplitState),
    Packed(PackedState),
}

/// What a device has been told of a virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedQueueAddresses {
    pub(super) size: u16,
    /// Device addresses: descriptors, the driver's area, the device's.
    pub(super) places: [u64; 3],
}

impl SavedVirtqueue {
    /// Its memory, in the order of [`memory`](Self::memory).
    pub(super) fn claim(
        &self,
        claims: &mut Claims,
    ) -> Result<[ring3_device::dma::DmaBuffer; 3], Error> {
        let [descriptors, driver, device] = self.memory;
        Ok([claims.claim(descriptors)?, claims.claim(driver)?, claims.claim(device)?])
    }
}
