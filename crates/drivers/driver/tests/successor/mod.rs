//! The device as the next process has it: the same function, with the arena that the first one has
//! left.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::dma::{Arena, Dma, SavedArena};
use ring3_device::{Decorator, Device, Error};

/// A view of a device.
pub struct Successor {
    inner: Arc<dyn Device>,
    dma: Dma,
}

impl Successor {
    /// The view of whoever comes after `device`'s driver, which has let go of it.
    pub fn of(device: &Arc<dyn Device>) -> Arc<dyn Device> {
        Self::with(device, &device.dma().arena().save())
    }

    /// The same, with an arena of which that is taken which was `saved`.
    pub fn with(device: &Arc<dyn Device>, saved: &SavedArena) -> Arc<dyn Device> {
        let (arena, iommu) = (device.dma().arena(), device.dma().iommu());
        let saved: SavedArena = through_json(saved);
        let regions = arena.regions().map(|placed| placed.region.clone()).collect();
        let dma = Dma::new(Arena::adopt(regions, &saved).unwrap(), iommu.clone());
        Arc::new(Self { inner: device.clone(), dma })
    }
}

impl Decorator for Successor {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
}

/// What another process reads.
pub fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

/// `saved` with its state changed as `change` does it.
pub fn altered(saved: &Saved, change: impl FnOnce(&mut serde_json::Value)) -> Saved {
    let mut saved = saved.clone();
    change(&mut saved.state);
    saved
}

/// A check that `resume` refuses `saved` after a change, and takes no memory of `device` then.
pub fn refuses<'a, T>(
    device: &'a dyn Device,
    saved: &'a Saved,
    resume: impl Fn(&Saved) -> Result<T, Error> + 'a,
) -> impl Fn(&str, &dyn Fn(&mut serde_json::Value)) + 'a {
    let unclaimed = device.dma().arena().unclaimed();
    move |what, change| {
        let resumed = resume(&altered(saved, change));
        let error = resumed.err().unwrap_or_else(|| panic!("{what} was taken"));
        assert!(matches!(error, Error::Invalid(_)), "{what}: {error}");
        assert_eq!(device.dma().arena().unclaimed(), unclaimed, "{what}");
    }
}
