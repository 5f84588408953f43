//! Numbers of block devices: which ones manifests fix, and which are free for the others.
//!
//! Who asks the kernel for any number gets the lowest that is free, which may be the one that
//! another manifest names: then it would depend on which driver is ready first who gets it. So
//! numbers that manifests name are reserved for their devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_export::ublk::{Error, MAX_ID};

/// Numbers that are tried one after the other, as others take them.
const TRIES: usize = 32;

/// The numbers that manifests name, each with the device that it is for.
#[derive(Clone, Debug, Default)]
pub struct ReservedIds(Arc<Mutex<BTreeMap<String, u32>>>);

impl ReservedIds {
    /// The first disk of `device` has number `id`, or any.
    pub fn set(&self, device: &str, id: Option<u32>) {
        match id {
            Some(id) => drop(self.lock().insert(device.to_owned(), id)),
            None => drop(self.lock().remove(device)),
        }
    }

    /// Numbers for the disk of `device` at `place`, the best first; [`None`] is the kernel's
    /// choice. `is_there` says which are taken.
    pub fn choices(
        &self,
        device: &str,
        place: u16,
        is_there: impl Fn(u32) -> bool,
    ) -> Vec<Option<u32>> {
        let fixed = self.lock();
        let own = fixed.get(device).map(|first| first.saturating_add(place.into()));
        if place == 0 && own.is_some() {
            return vec![own];
        }
        let others: Vec<u32> =
            fixed.iter().filter(|(other, _)| *other != device).map(|(_, id)| *id).collect();
        if others.is_empty() && own.is_none() {
            return vec![None];
        }
        let free = |id: &u32| *id <= MAX_ID && !others.contains(id) && !is_there(*id);
        own.into_iter().chain(0..=MAX_ID).filter(free).take(TRIES).map(Some).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the kernel has a device of this number.
pub fn is_there(id: u32) -> bool {
    Path::new("/dev").join(format!("ublkc{id}")).exists()
}

/// Whether somebody else has the number that was asked for.
pub fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Taken { .. } | Error::Recovering { .. } | Error::Foreign { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_a_manifest_names_is_nobody_elses_whoever_comes_first() {
        let ids = ReservedIds::default();
        assert_eq!(ids.choices("any", 0, |_| false), [None]);
        ids.set("fixed", Some(0));
        assert_eq!(
            ids.choices("fixed", 0, |_| true),
            [Some(0)],
            "its own, also if it is there: then it says by whom"
        );
        let any = ids.choices("any", 0, |id| id == 1);
        assert_eq!((any[0], any.len()), (Some(2), TRIES));
        assert!(!any.contains(&Some(0)));
        ids.set("fixed", None);
        assert_eq!(ids.choices("any", 0, |_| false), [None]);
    }

    #[test]
    fn further_disks_of_a_device_follow_its_first_one_unless_that_is_anothers() {
        let ids = ReservedIds::default();
        ids.set("two", Some(4));
        assert_eq!(ids.choices("two", 1, |_| false)[0], Some(5));
        ids.set("other", Some(5));
        assert_eq!(ids.choices("two", 1, |_| false)[0], Some(0));
        assert_eq!(ids.choices("other", 0, |_| false), [Some(5)]);
    }
}
