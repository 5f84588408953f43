//! Where the kernel's workers come from: opened when they are needed, or before a process gave up
//! the right to open anything.
//!
//! # Shape
//! One that was opened before is given back when its queue goes by calls again, and taken for the
//! next time: it is the process's for good ([`Device::own`]).

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::{Engine, Error};
use super::device::Device;

/// Workers for queues. Its copies are the same ones.
#[derive(Clone, Default)]
pub struct Workers(Option<Arc<Mutex<Vec<Device>>>>);

impl Workers {
    /// Opens `count`, and no more from then on; and the engine that is had by them where `wanted`
    /// is. Where vhost-net is not and need not be, that is calls.
    pub fn opened(count: u16, wanted: Engine) -> Result<(Self, Engine), Error> {
        let most = if wanted == Engine::Tap { 0 } else { count };
        match ((0..most).map(|_| Device::open()).collect::<Result<_, _>>(), wanted) {
            (Err(error), Engine::Auto) => {
                tracing::info!(%error, "packets go by read and write at any load");
                Ok((Self::of(Vec::new()), Engine::Tap))
            }
            (opened, wanted) => Ok((Self::of(opened?), wanted)),
        }
    }

    /// Fails if this machine has none, or none for this process; keeps none.
    pub fn check() -> Result<(), Error> {
        Device::open().map(drop)
    }

    fn of(devices: Vec<Device>) -> Self {
        Self(Some(Arc::new(Mutex::new(devices))))
    }

    /// The descriptors of those that nobody has taken.
    pub fn fds(&self) -> Vec<RawFd> {
        let devices =
            self.0.iter().map(|devices| devices.lock().unwrap_or_else(PoisonError::into_inner));
        devices
            .flat_map(|devices| devices.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>())
            .collect()
    }

    pub(super) fn take(&self) -> Result<Device, Error> {
        let Some(devices) = &self.0 else { return Device::open() };
        devices.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or(Error::NoWorker)
    }

    /// Of one that serves no ring. Where others can be opened, it ends.
    pub(super) fn give_back(&self, device: Device) {
        if let Some(devices) = &self.0 {
            devices.lock().unwrap_or_else(PoisonError::into_inner).push(device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_calls_opens_nothing_and_has_no_worker() {
        let (workers, engine) = Workers::opened(4, Engine::Tap).unwrap();
        assert!(engine == Engine::Tap && workers.fds().is_empty());
        assert!(matches!(workers.take(), Err(Error::NoWorker)));
    }

    #[test]
    fn where_there_is_no_vhost_net_auto_is_calls_and_vhost_an_error() {
        match Device::open() {
            Ok(_) => assert_eq!(Workers::opened(2, Engine::Auto).unwrap().0.fds().len(), 2),
            Err(_) => {
                assert_eq!(Workers::opened(2, Engine::Auto).unwrap().1, Engine::Tap);
                assert!(Workers::opened(2, Engine::Vhost).is_err());
            }
        }
    }
}
