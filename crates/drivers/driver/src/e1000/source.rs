//! Waiting for a queue.

use std::time::Instant;

use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, sooner};
use ring3_device::{Deadline, Error};

use super::queue::CardQueue;
use super::receiver::Receiver;
use super::transmitter::Transmitter;
use crate::lifetime::lock;

/// Whether there is something to take.
#[inline]
fn is_pending(rx: &Receiver, tx: &Transmitter, wake_on_tx: bool) -> bool {
    rx.ring.ready() || !rx.whole.is_empty() || wake_on_tx && (tx.ready() || !tx.back.is_empty())
}

impl CardQueue {
    /// Before a sleep: chooses the throttle anew, if enough of them have been seen.
    #[inline]
    fn adapt(&mut self) {
        if let Some(adaptive) = &mut self.adaptive
            && adaptive.sleeps()
            && let Some(interval) =
                adaptive.sample(self.counters.rx_packets + self.counters.tx_packets, Instant::now())
        {
            self.shared.vectors.throttle(lock(&self.shared.card).registers(), self.index, interval);
        }
    }
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
        let sleeps = self.waiter.arm(|| is_pending(rx, tx, wake))?;
        if sleeps {
            self.adapt();
        }
        Ok(sleeps)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        let look = self.check_hang(now)?;
        Ok(sooner(rearmed, Some(look)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let (rx, tx, wake) = (&self.rx, &self.tx, self.wake_on_tx);
        let Some(polled) = self.waiter.poll(deadline, || is_pending(rx, tx, wake))? else {
            return Ok(true);
        };
        self.adapt();
        let (rx, tx) = (&self.rx, &self.tx);
        self.waiter.sleep(polled, deadline, || is_pending(rx, tx, wake))
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
