//! What a recorded device has for a driver that can be repeated: one thread, which nothing reaches
//! but when it asks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ring3_device::irq::{Irq, IrqControl, IrqKind, StormLimit};
use ring3_device::journal::{Journal, Journaled, Wake};
use ring3_device::{Deadline, Error};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::{Record, Session};
use crate::recording::Event;

/// The device's interrupts, which the driver's own thread looks at when it sleeps.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    /// The last sleep has ended with an interrupt: somebody else is heard first, so that neither
    /// keeps the other out.
    interrupted: bool,
}

/// A vector of the device's, and where the driver takes it.
struct Line {
    irq: Arc<Irq>,
    signal: OwnedFd,
}

/// Masking of a vector.
struct Mask(Arc<Irq>);

impl IrqControl for Mask {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.0.mask()
    }
    fn unmask(&self, _: u16) -> Result<(), Error> {
        self.0.unmask()
    }
}

impl Lines {
    /// Takes the place of all before; what the driver has of `irqs`.
    pub(super) fn replace(&mut self, irqs: Vec<Irq>) -> Result<Vec<Irq>, Error> {
        self.lines.clear();
        irqs.into_iter().map(|irq| self.add(irq)).collect()
    }

    fn add(&mut self, irq: Irq) -> Result<Irq, Error> {
        let signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let signal = signal.map_err(|error| Error::os("creating an eventfd", error))?;
        let taken =
            signal.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
        // How fast interrupts come by a clock is nothing that can be repeated.
        let irq = Arc::new(irq.with_storm_limit(StormLimit::NONE));
        let control: Option<Arc<dyn IrqControl>> =
            irq.can_mask().then(|| Arc::new(Mask(Arc::clone(&irq))) as _);
        let (kind, vector): (IrqKind, u16) = (irq.kind(), irq.vector());
        self.lines.push(Line { irq, signal });
        Ok(Irq::new(taken, kind, vector, control).with_storm_limit(StormLimit::NONE))
    }

    /// The vector that has fired, which the driver can take now.
    fn take(&mut self) -> Result<Option<u16>, Error> {
        for Line { irq, signal } in &self.lines {
            if irq.take()? > 0 {
                // A full counter is a signal, too.
                let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
                return Ok(Some(irq.vector()));
            }
        }
        Ok(None)
    }

    /// Sleeps until one fires, `other` is readable or `deadline` is over; whether `other` is.
    fn sleep(&self, other: BorrowedFd<'_>, deadline: Option<Deadline>) -> Result<bool, Error> {
        let timeout = deadline.map(|deadline| deadline.remaining().try_into().unwrap_or_default());
        let lines =
            self.lines.iter().map(|line| PollFd::from_borrowed_fd(line.irq.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> =
            lines.chain([PollFd::from_borrowed_fd(other, PollFlags::IN)]).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(fds.last().is_some_and(|fd| !fd.revents().is_empty())),
            Err(error) => Err(Error::os("waiting for a recorded device", error)),
        }
    }
}

impl Session {
    /// Driver and device have what the other one has written, before `event` is noted. Not if
    /// `event` is for what the driver has written and that is nothing.
    fn sync(&self, event: Event, if_written: bool) -> Result<(), Error> {
        let mut mirror = self.mirror();
        let written = mirror.publish()?;
        if if_written && written.is_empty() {
            return Ok(());
        }
        self.record_all(written, Event::Driver);
        self.fetch(&mut mirror);
        self.tape.record(event);
        Ok(())
    }
}

impl Journal for Record {
    fn begin(&self) -> Journaled {
        self.session.is_journaled.store(true, Ordering::Release);
        self.session.mirror().look_at_shared();
        Journaled::Recorded
    }

    fn share(&self, iova: u64, len: usize) {
        self.session.mirror().share(iova, len);
    }

    fn unshare(&self, iova: u64) {
        self.session.mirror().unshare(iova);
    }

    fn sync(&self) -> Result<(), Error> {
        self.session.sync(Event::Synced, false)
    }

    fn wait(&self, other: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Wake, Error> {
        let deadline = limit.map(Deadline::after);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        self.session.sync(Event::Synced, true)?;
        let mut wanted = std::mem::take(&mut lines.interrupted)
            && lines.sleep(other, Some(Deadline::after(Duration::ZERO)))?;
        loop {
            if wanted {
                return self.session.sync(Event::Woken, false).map(|()| Wake::Other);
            }
            if let Some(vector) = lines.take()? {
                lines.interrupted = true;
                let mut mirror = self.session.mirror();
                self.session.fetch(&mut mirror);
                self.session.tape.record(Event::Interrupt(vector));
                return Ok(Wake::Interrupt(vector));
            }
            if deadline.is_some_and(|deadline| deadline.expired()) {
                return self.session.sync(Event::Elapsed, false).map(|()| Wake::Elapsed);
            }
            wanted = lines.sleep(other, deadline)?;
        }
    }

    fn record(&self, answer: &[u8]) {
        self.session.tape.record(Event::Answer(answer.to_vec()));
    }

    fn answer(&self) -> Result<Vec<u8>, Error> {
        Err(Error::Invalid("what is recorded has no answers yet".into()))
    }
}
