//! The saved state of an arena: its allocated ranges, for the process that resumes it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::arena::Placed;
use super::{Arena, MAX_REGIONS, Region};
use crate::Error;

/// The version that [`Arena::save`] writes. Fields are only ever added, each with a default.
const VERSION: u32 = 1;

/// The state of an arena's allocator, without the bytes: these are in the regions, whose
/// descriptors go beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedArena {
    /// Of this form.
    pub version: u32,
    /// In the order of their numbers.
    pub regions: Vec<SavedRegion>,
    /// The last page of the first one is [kept](super::PersistentWords).
    #[serde(default)]
    pub kept: bool,
}

/// A region of an arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRegion {
    /// The device address of its first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// The part of it that is given out begins here.
    pub start: u64,
    /// And ends here.
    pub end: u64,
    /// What is taken, ascending.
    pub taken: Vec<SavedRange>,
}

/// A range that a buffer had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRange {
    /// From the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What for, as [`DmaBuffer::tagged`](super::DmaBuffer::tagged) said.
    pub tag: String,
}

impl SavedArena {
    /// Nothing is taken of `regions`, each a device address and bytes.
    pub fn fresh(regions: impl Iterator<Item = (u64, u64)>) -> Self {
        let region = |(iova, len)| SavedRegion { iova, len, start: 0, end: len, taken: Vec::new() };
        Self { version: VERSION, regions: regions.map(region).collect(), kept: false }
    }
}

impl Arena {
    /// Which ranges are taken, and what for. Buffers that come or go afterwards are not in it, so
    /// their owners stop first.
    pub fn save(&self) -> SavedArena {
        let ledgers = self.ledgers();
        let region = |(placed, ledger): (&Placed, &super::ledger::RangeAllocator)| SavedRegion {
            iova: placed.iova,
            len: placed.region.len() as u64,
            start: ledger.usable.start,
            end: ledger.usable.end,
            taken: ledger.saved(),
        };
        SavedArena {
            version: VERSION,
            regions: self.regions().zip(ledgers.iter()).map(region).collect(),
            kept: self.has_persistent_words(),
        }
    }

    /// The arena that was `saved`, over the same regions in the same order, which the device has
    /// where it had them. What was taken is taken: [`claim`](Self::claim) gives each range once,
    /// [`release`](Self::release) frees what is left.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be the state of an arena over these
    /// regions.
    pub fn adopt(regions: Vec<Arc<Region>>, saved: &SavedArena) -> Result<Self, Error> {
        if saved.version != VERSION {
            return Err(refused(format!(
                "its version is {}, and {VERSION} is known",
                saved.version
            )));
        }
        if regions.len() != saved.regions.len() || regions.len() > MAX_REGIONS {
            return Err(refused(format!(
                "it has {} regions, and {} were given",
                saved.regions.len(),
                regions.len()
            )));
        }
        let arena = Self::empty();
        for (region, saved) in regions.into_iter().zip(&saved.regions) {
            check(&arena, &region, saved)?;
            let placed = Placed { region, iova: saved.iova };
            // Both ends are at most the region's length.
            if arena.add(placed, saved.start as usize, saved.end as usize).is_none() {
                return Err(refused("it has too many regions".into()));
            }
        }
        if saved.kept {
            arena.keep();
        }
        for (ledger, saved) in arena.ledgers().iter_mut().zip(&saved.regions) {
            let twice = saved.taken.iter().find(|range| !ledger.restore(range));
            if let Some(SavedRange { offset, len, .. }) = twice {
                return Err(refused(format!(
                    "{offset:#x}+{len:#x} is outside of its region or taken twice"
                )));
            }
        }
        Ok(arena)
    }
}

/// Fails unless `saved` can be about `region`, beside the regions that `arena` has already.
fn check(arena: &Arena, region: &Region, saved: &SavedRegion) -> Result<(), Error> {
    let SavedRegion { iova, len, start, end, ref taken } = *saved;
    if len != region.len() as u64 || start > end || end > len {
        return Err(refused(format!(
            "{start:#x} to {end:#x} of {len:#x} bytes is no part of a region of {:#x}",
            region.len()
        )));
    }
    let last = iova.checked_add(len);
    if last.is_none_or(|last| arena.regions().any(|other| iova < other.end() && other.iova < last))
    {
        return Err(refused(format!(
            "the device addresses {iova:#x}+{len:#x} are no range, or another region's, too"
        )));
    }
    match taken.iter().find(|range| range.len > u64::from(u32::MAX)) {
        Some(range) => Err(refused(format!("no buffer has {} bytes", range.len))),
        None => Ok(()),
    }
}

fn refused(why: String) -> Error {
    Error::Invalid(format!("the saved state of an arena is not used: {why}"))
}

#[cfg(test)]
mod tests;
