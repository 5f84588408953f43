//! Waiting for a queue.

use std::time::Instant;

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, sooner};
use ring3_device::{Deadline, Error};

use super::queue::CardQueue;
use super::receiver::Receiver;
use super::transmitter::Transmitter;

/// Whether there is something to take.
#[inline]
fn is_pending(rx: &Receiver, tx: &Transmitter, wake_on_tx: bool) -> bool {
    rx.ring.ready() || !rx.whole.is_empty() || wake_on_tx && (tx.ready() || !tx.back.is_empty())
}

impl Source for CardQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    #[inline]
    fn pending(&self) -> bool {
        is_pending(&self.rx, &self.tx, self.wake_on_tx) || self.is_stale()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        let (rx, tx, wake) = (&self.rx, &self.tx, self.wake_on_tx);
        self.waiter.arm(|| is_pending(rx, tx, wake))
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        let look = self.look(now)?;
        Ok(sooner(rearmed, Some(look)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let (rx, tx, wake) = (&self.rx, &self.tx, self.wake_on_tx);
        self.waiter.wait(deadline, || is_pending(rx, tx, wake))
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
