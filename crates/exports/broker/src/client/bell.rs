//! What a queue wakes the server by, and is woken by.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{Budget, DEFAULT_POLL, Source, poll_for};
use ring3_class::{Deadline, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::Connection;
use crate::protocol::{Answer, ClientRequest};

/// How often the server is looked after while something is waited for.
pub const LOOK: Duration = Duration::from_secs(1);

/// See the module.
pub struct ServerNotifier {
    connection: Arc<Connection>,
    kick: OwnedFd,
    irq: Irq,
    budget: Budget,
    /// The server has parted: what is in flight ends here.
    pub lost: bool,
}

impl ServerNotifier {
    /// Of the server's eventfd and the pipe that it writes to.
    pub fn new(connection: Arc<Connection>, kick: OwnedFd, woken: OwnedFd) -> Self {
        Self {
            connection,
            kick,
            irq: Irq::new(woken, IrqKind::MsiX, 0, None),
            budget: Budget::new(DEFAULT_POLL),
            lost: false,
        }
    }

    /// What the server wakes this side by.
    pub fn irq(&self) -> &Irq {
        &self.irq
    }

    /// Wakes the server.
    pub fn ring(&self) {
        // It can only fail when the count is at its maximum, and then the server is awake.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Looks whether the server is there; why not, the first time.
    pub fn poll(&mut self) -> Result<(), Error> {
        if self.lost || !self.connection.is_lost() {
            return Ok(());
        }
        self.lost = true;
        Err(self.connection.disconnect_reason())
    }

    /// Why the server has parted.
    pub fn disconnect_reason(&self) -> Error {
        self.connection.disconnect_reason()
    }

    /// Has the server close queue `number`; whether nothing of it is with a device any more.
    pub fn close(&self, number: u16) -> bool {
        let closed = |answer| matches!(answer, (Answer::Closed { queue }, _) if queue == number);
        !self.lost && self.connection.ask(&ClientRequest::Close { queue: number }).is_ok_and(closed)
    }

    /// Sleeps until the server has something to say, or for `left`.
    fn sleep(&mut self, left: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(left).ok();
        let mut fds = [
            PollFd::new(&self.irq, PollFlags::IN),
            PollFd::new(self.connection.socket(), PollFlags::RDHUP),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::os("waiting for the server", error)),
        }
        self.lost |= !fds[1].revents().is_empty();
        self.irq.take().map(drop)
    }
}

/// A queue that has one.
pub trait NotifiedQueue: Source {
    /// It.
    fn bell(&mut self) -> &mut ServerNotifier;
    /// Whether something may come soon, so that looking for it pays.
    fn busy(&self) -> bool;
    /// Asks the server to say when there is something to take, or not to.
    fn want(&mut self, wanted: bool);
}

/// [`Source::arm`] of such a queue.
pub fn arm(queue: &mut impl NotifiedQueue) -> Result<bool, Error> {
    queue.want(true);
    Ok(!queue.pending())
}

/// [`Source::disarm`] of such a queue.
pub fn disarm(queue: &mut impl NotifiedQueue) -> Result<(), Error> {
    queue.want(false);
    queue.bell().irq.take().map(drop)
}

/// [`Source::tick`] of such a queue.
pub fn tick(queue: &mut impl NotifiedQueue, now: Instant) -> Result<Option<Instant>, Error> {
    if !queue.busy() {
        return Ok(None);
    }
    queue.bell().poll()?;
    Ok(Some(now + LOOK))
}

/// [`Source::wait`] of such a queue.
pub fn wait(queue: &mut impl NotifiedQueue, deadline: Deadline) -> Result<bool, Error> {
    if queue.pending() {
        return Ok(true);
    }
    let start = Instant::now();
    let limit = queue.bell().budget.poll_for().min(deadline.remaining_at(start));
    if !limit.is_zero() && queue.busy() {
        let (found, end) = poll_for(start, limit, &mut || queue.pending());
        if found {
            queue.bell().budget.observe(end - start, true);
            return Ok(true);
        }
    }
    loop {
        if !arm(queue)? {
            break;
        }
        queue.bell().sleep(deadline.remaining())?;
        if queue.pending() || deadline.expired() {
            break;
        }
        if queue.bell().lost {
            // Nothing will come any more.
            std::thread::sleep(deadline.remaining());
            break;
        }
    }
    queue.want(false);
    queue.bell().budget.observe(start.elapsed(), false);
    Ok(queue.pending())
}
