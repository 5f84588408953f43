//! The watch over the link.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, Waiter, sooner};
use ring3_device::{Deadline, Error};

use super::nic::E1000Shared;
use crate::lifetime::lock;

/// Without an interrupt the link is looked at this often.
const LOOK: Duration = Duration::from_millis(500);
/// With one, lest it be lost.
const LOST: Duration = Duration::from_secs(2);

/// Pending when the link has changed since it was last asked for.
pub(super) struct LinkWatch {
    shared: Arc<E1000Shared>,
    waiter: Waiter,
}

impl LinkWatch {
    pub(super) fn new(shared: &Arc<E1000Shared>) -> Result<Self, Error> {
        if shared.watched.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy(format!(
                "{}: its link is watched already: drop that watch",
                shared.device.name()
            )));
        }
        let shared = shared.clone();
        // From here on dropping it gives the place back.
        let irq = match shared.vectors.of_link() {
            Ok(irq) => irq,
            Err(error) => {
                shared.watched.store(false, Ordering::Release);
                return Err(error);
            }
        };
        let waiter = Waiter::new(irq, Duration::ZERO);
        Ok(Self { shared, waiter })
    }

    fn period(&self) -> Duration {
        if self.waiter.irq().is_some() { LOST } else { LOOK }
    }
}

/// Whether the link is not as it was told.
fn has_changed(shared: &E1000Shared) -> bool {
    // A card that is gone is for `link` to report.
    lock(&shared.card).link().map_or(true, |link| link != *lock(&shared.told))
}

impl Source for LinkWatch {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        has_changed(&self.shared)
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.shared.vectors.reopen_link(lock(&self.shared.card).registers());
        let shared = &self.shared;
        self.waiter.arm(|| has_changed(shared))
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        self.shared.lifetime.check()?;
        Ok(sooner(rearmed, Some(now + self.period())))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        loop {
            let look = Deadline::after(self.period().min(deadline.remaining()));
            self.shared.vectors.reopen_link(lock(&self.shared.card).registers());
            let shared = &self.shared;
            if self.waiter.wait(look, || has_changed(shared))? {
                return Ok(true);
            }
            if deadline.expired() {
                return Ok(false);
            }
        }
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.shared.watched.store(false, Ordering::Release);
    }
}
