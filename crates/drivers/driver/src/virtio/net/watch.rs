//! Changes of the link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, Waiter};
use ring3_device::{Deadline, Error};

use super::card::VirtioNetShared;

/// Without an interrupt, the link is looked at this often.
const LOOK: Duration = Duration::from_millis(500);

/// Pending while the link is not as it was said to be.
pub(super) struct LinkWatch {
    shared: Arc<VirtioNetShared>,
    waiter: Waiter,
}

impl LinkWatch {
    pub(super) fn new(shared: Arc<VirtioNetShared>) -> Result<Self, Error> {
        if shared.watched.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("the link is watched already: drop the other watch".into()));
        }
        let waiter = Waiter::new(shared.config_irq(), Duration::ZERO);
        Ok(Self { shared, waiter })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.shared.watched.store(false, Ordering::Release);
    }
}

impl Source for LinkWatch {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.shared.link_changed()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        self.waiter.arm(|| shared.link_changed())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let due = self.waiter.tick(now)?;
        Ok(if self.waiter.irq().is_some() { due } else { Some(now + LOOK) })
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let shared = &self.shared;
        self.waiter.wait(deadline, || shared.link_changed())
    }
}
