//! The state in which the fence of the holder found the device, stored in a [persistent
//! word](crate::dma::PersistentWords) of its arena.

use crate::dma::PersistentWords;

/// The word.
const FOUND: usize = 0;

/// What the holder saw before it stopped the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: there was no fence since the last driver has looked.
    Unknown,
    /// It ran as its driver had left it: nobody has reset it, and its power has not failed since
    /// then.
    Running,
    /// It did not, or nobody knows how to tell.
    Disturbed,
}

impl Found {
    /// What was written down for the driver of a device with these words, if it has any.
    pub fn read(kept: Option<&PersistentWords>) -> Self {
        match kept.map_or(0, |kept| kept.load(FOUND)) {
            0 => Self::Unknown,
            1 => Self::Running,
            _ => Self::Disturbed,
        }
    }

    /// Records it for the next driver. `Disturbed` stays until a driver has read it: a driver reads
    /// it after it has started the device, and one that dies in between leaves a running device.
    pub fn record(self, kept: &PersistentWords) {
        if Self::read(Some(kept)) == Self::Disturbed {
            return;
        }
        kept.store(FOUND, self as u64);
    }

    /// The driver has looked, and written down what follows.
    pub fn forget(kept: &PersistentWords) {
        kept.store(FOUND, Self::Unknown as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::{Arena, Region};

    #[test]
    fn a_device_that_was_disturbed_stays_so_until_a_driver_has_looked() {
        let kept = Arena::with_persistent_words(Region::new(1 << 16).unwrap(), 0)
            .persistent_words()
            .unwrap();
        let found = || Found::read(Some(&kept));
        Found::Running.record(&kept);
        assert_eq!(found(), Found::Running);
        Found::Disturbed.record(&kept);
        Found::Running.record(&kept);
        assert_eq!(found(), Found::Disturbed);
        Found::forget(&kept);
        assert_eq!(found(), Found::Unknown);
        kept.store(FOUND, u64::MAX);
        assert_eq!(found(), Found::Disturbed);
    }
}
