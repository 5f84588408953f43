//! Waiting for a queue.

use std::time::Instant;

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, sooner};
use ring3_device::{Deadline, Error};

use super::super::virtqueue::Virtqueue;
use super::queue::RequestQueue;
use crate::lifetime::GENERATION_CLOSED;

impl RequestQueue {
    /// The generation in which there is nothing to mend: for a queue with nothing in flight, a
    /// device's end is no news.
    fn expected(&self) -> u32 {
        if self.slots.in_flight() == 0 && self.shared.generation() == GENERATION_CLOSED {
            GENERATION_CLOSED
        } else {
            self.generation
        }
    }

    fn want_interrupts(&mut self, wanted: bool) {
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.want_interrupts(wanted);
        }
    }

    /// Whether there is something beside what the device has used.
    fn has_own(&self) -> bool {
        !self.ended.is_empty() || self.trouble.is_some()
    }
}

impl Source for RequestQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    #[inline]
    fn pending(&self) -> bool {
        self.has_own()
            || self.virtqueue.as_ref().is_some_and(Virtqueue::pending)
            || self.shared.generation() != self.expected()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.want_interrupts(true);
        if self.pending() {
            return Ok(false);
        }
        let (generation, shared, virtqueue) =
            (self.expected(), &self.shared, self.virtqueue.as_ref());
        self.waiter
            .arm(|| virtqueue.is_some_and(Virtqueue::pending) || shared.generation() != generation)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.want_interrupts(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        self.watch(now)?;
        Ok(sooner(rearmed, self.timeouts.next(now, self.slots.in_flight() > 0)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let (generation, shared, virtqueue) =
            (self.expected(), &self.shared, self.virtqueue.as_ref());
        let ready =
            || virtqueue.is_some_and(Virtqueue::pending) || shared.generation() != generation;
        let Some(polled) = self.waiter.poll(deadline, ready)? else { return Ok(true) };
        self.want_interrupts(true);
        let (shared, virtqueue) = (&self.shared, self.virtqueue.as_ref());
        let ready =
            || virtqueue.is_some_and(Virtqueue::pending) || shared.generation() != generation;
        let found = self.waiter.sleep(polled, deadline, ready);
        self.want_interrupts(false);
        found
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
