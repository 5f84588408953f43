//! Both rings of a queue with the worker that serves them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::dma::Arena;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{Source, Waiter};

use super::super::Error;
use super::super::eventfd::event;
use super::device::Device;
use super::ring::Ring;
use super::workers::Workers;

/// The worker's numbers of the rings, named from the driver's side: what it receives, what it
/// sends.
const RECEIVE: u32 = 0;
const SEND: u32 = 1;

/// vhost-net on one queue of a TAP, until this is dropped.
pub struct Vhost {
    /// Taken as long as this is there.
    device: Option<Device>,
    workers: Workers,
    /// Buffers, into which the worker copies what the kernel sends.
    pub from_kernel: Ring,
    /// Packets that the kernel is to receive.
    pub to_kernel: Ring,
    /// There is no room in `to_kernel`: that some was made is something to wake up for.
    pub full: bool,
    waiter: Waiter,
}

impl Vhost {
    /// Starts one of `workers` on a queue's descriptor. `read` and `write` there would take packets
    /// away from it.
    pub fn start(tap: BorrowedFd<'_>, arena: &Arena, workers: &Workers) -> Result<Self, Error> {
        let mut device = workers.take()?;
        device.own(arena)?;
        let ring = || {
            Ring::new(arena)
                .map_err(|error| Error::os("memory for vhost-net", std::io::Error::other(error)))
        };
        let (from_kernel, to_kernel) = (ring()?, ring()?);
        let failed = |error| Error::os("a descriptor for vhost-net", error);
        let call = event().map_err(failed)?;
        device.set_ring(RECEIVE, &from_kernel, call.as_fd())?;
        device.set_ring(SEND, &to_kernel, call.as_fd())?;
        let irq = Arc::new(Irq::new(call, IrqKind::Msi, 0, None));
        let waiter = Waiter::new(Some(irq), Duration::ZERO);
        let vhost = Self {
            device: Some(device),
            workers: workers.clone(),
            from_kernel,
            to_kernel,
            full: false,
            waiter,
        };
        vhost.set_backends(Some(tap))?;
        Ok(vhost)
    }

    /// Ends the worker: what it has not given back can be [reclaimed](Ring::reclaim) then.
    pub fn end(&mut self) {
        match self.set_backends(None) {
            Ok(()) => {
                self.device.take().into_iter().for_each(|device| self.workers.give_back(device))
            }
            Err(error) => {
                tracing::warn!(%error, "vhost-net cannot be stopped: its memory is given up");
                self.from_kernel.abandon();
                self.to_kernel.abandon();
            }
        }
    }

    fn set_backends(&self, tap: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let Some(device) = &self.device else { return Ok(()) };
        let received = device.set_backend(RECEIVE, tap);
        if tap.is_some() {
            received?;
            return device.set_backend(SEND, tap);
        }
        // Each is to end, whether the other does or not.
        device.set_backend(SEND, None).and(received)
    }

    fn want_signals(&mut self, wanted: bool) {
        self.from_kernel.want_signals(wanted);
        self.to_kernel.want_signals(wanted && self.full);
    }
}

impl Source for Vhost {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.from_kernel.pending() || self.full && self.to_kernel.pending()
    }

    fn arm(&mut self) -> Result<bool, ring3_class::Error> {
        self.want_signals(true);
        let pending = self.pending();
        self.waiter.arm(|| pending)
    }

    fn disarm(&mut self) -> Result<(), ring3_class::Error> {
        self.want_signals(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, ring3_class::Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, ring3_class::Error> {
        self.want_signals(true);
        let ready = || self.from_kernel.pending() || self.full && self.to_kernel.pending();
        let found = self.waiter.wait(deadline, ready);
        self.want_signals(false);
        found
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        self.end();
    }
}
