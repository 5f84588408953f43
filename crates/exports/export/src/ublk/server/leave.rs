//! A queue that is left to another server, while its disk is used.
//!
//! What the kernel has handed over and this thread has not ended, the kernel hands to the next
//! server. So nothing is begun any more; what the device has is waited for and ended, or it would
//! be done twice.

use std::io;
use std::time::{Duration, Instant};

use super::{Mode, UblkQueueServer};

impl UblkQueueServer<'_> {
    /// Begins nothing any more. Until `until`, what the driver has may take to end.
    pub(super) fn leave(&mut self, until: Instant) -> io::Result<()> {
        if self.mode == Mode::Serving {
            self.mode = Mode::Leaving;
            self.patience = Some(self.ring.reactor.set_timer(until));
            // Their buffers go with them: whoever comes next has its own.
            self.backlog.clear();
        }
        Ok(())
    }

    /// The error of a device that does not end its requests.
    pub(super) fn quiesce_timeout_error(&self) -> io::Error {
        io::Error::other(format!(
            "{} requests did not end in time for the queue to be left to another process",
            self.in_flight()
        ))
    }

    /// Tells the kernel what has ended last.
    pub(super) fn send_last(&mut self) -> io::Result<()> {
        loop {
            self.ring.push_gathered()?;
            self.ring.reactor.step(Some(Duration::ZERO))?;
            if !self.ring.reactor.has_unsent() {
                return Ok(());
            }
            self.take_events()?;
        }
    }
}
