//! Both rings of a queue with the worker that serves them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::dma::Arena;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{Source, Waiter};

use super::super::Error;
use super::super::control::event;
use super::device::Device;
use super::ring::Ring;

/// The worker's numbers of the rings, named from the driver's side: what it receives, what it sends.
const RECEIVE: u32 = 0;
const SEND: u32 = 1;

/// vhost-net on one queue of a TAP, until this is dropped.
pub struct Vhost {
    device: Device,
    /// Buffers, into which the worker copies what the kernel sends.
    pub from_kernel: Ring,
    /// Packets that the kernel is to receive.
    pub to_kernel: Ring,
    /// There is no room in `to_kernel`: that some was made is something to wake up for.
    pub full: bool,
    waiter: Waiter,
}

impl Vhost {
    /// Fails if this machine has none, or none for this process; starts none.
    pub fn check() -> Result<(), Error> {
        Device::open().map(drop)
    }

    /// Starts it on a queue's descriptor. `read` and `write` there would take packets away from it.
    pub fn start(tap: BorrowedFd<'_>, arena: &Arena) -> Result<Self, Error> {
        let device = Device::open()?;
        device.own(arena)?;
        let ring = || Ring::new(arena).map_err(|error| Error::os("memory for vhost-net", std::io::Error::other(error)));
        let (from_kernel, to_kernel) = (ring()?, ring()?);
        let failed = |error| Error::os("a descriptor for vhost-net", error);
        let call = event().map_err(failed)?;
        device.set_ring(RECEIVE, &from_kernel, call.as_fd())?;
        device.set_ring(SEND, &to_kernel, call.as_fd())?;
        let irq = Arc::new(Irq::new(call, IrqKind::Msi, 0, None));
        let waiter = Waiter::new(Some(irq), Duration::ZERO);
        let vhost = Self { device, from_kernel, to_kernel, full: false, waiter };
        vhost.device.set_backend(RECEIVE, Some(tap))?;
        vhost.device.set_backend(SEND, Some(tap))?;
        Ok(vhost)
    }

    /// Ends the worker: what it has not given back can be [reclaimed](Ring::reclaim) then.
    pub fn end(&mut self) {
        let ended = self.device.set_backend(SEND, None).and(self.device.set_backend(RECEIVE, None));
        if let Err(error) = ended {
            tracing::warn!(%error, "vhost-net cannot be stopped: its memory is given up");
            self.from_kernel.abandon();
            self.to_kernel.abandon();
        }
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
