//! Requests that are not served any more: the disk is taken away, or its driver has failed.

use std::io;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::IoError;
use ring3_stats::Phase;

use super::{Mode, OnFailure, UblkQueueServer};
use crate::ublk::scrap::ScratchBuffer;

impl UblkQueueServer<'_> {
    /// Lets the driver look after its device. What it cannot mend is the end of the disk; anything
    /// else ends with its requests.
    pub(super) fn look_after(&mut self, now: Instant) -> io::Result<()> {
        self.recorder.phase(Phase::Recovering);
        let ticked = self.registration.tick(&mut self.ring.reactor, self.class, now);
        self.recorder.phase(Phase::Working);
        match ticked {
            Ok(()) => Ok(()),
            Err(error @ (Error::Gone | Error::Fatal(_))) => {
                self.gone |= matches!(error, Error::Gone);
                self.fail(format!("the driver cannot recover its device: {error}"))?;
                self.refuse()
            }
            Err(error) => {
                tracing::warn!(%error, "the device misbehaved");
                Ok(())
            }
        }
    }

    /// Whether the driver or its device has failed for good.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether the device is gone.
    pub fn has_lost_device(&self) -> bool {
        self.gone
    }

    /// Says once why this queue serves no more; or ends it with that, if another server is to come.
    pub(super) fn fail(&mut self, reason: String) -> io::Result<()> {
        let said = std::mem::replace(&mut self.failed, true);
        match self.on_failure {
            OnFailure::Keep => return Err(io::Error::other(reason)),
            OnFailure::Refuse if said => {}
            OnFailure::Refuse => self.report.failed(reason, self.gone),
        }
        Ok(())
    }

    /// Whether `error` may say less of the disk than of its driver, which is about to give its
    /// device up.
    pub(super) fn is_retryable_elsewhere(&self, error: IoError) -> bool {
        self.on_failure == OnFailure::Keep
            && matches!(error, IoError::Transport | IoError::Timeout | IoError::Gone)
    }

    /// The driver goes on with its device, so the requests that were in doubt have failed.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        while let Some((tag, error)) = self.doubtful.pop() {
            self.commit(tag, Err(error))?;
        }
        Ok(())
    }

    /// Fails what the driver does not have yet, and all that comes.
    #[cold]
    pub(super) fn refuse(&mut self) -> io::Result<()> {
        if self.mode == Mode::Serving {
            self.mode = Mode::Refusing;
        }
        while let Some(request) = self.backlog.pop_front() {
            self.complete(request.token, Err(IoError::Transport), request.data)?;
        }
        Ok(())
    }

    /// Fails all there is and all that comes, without the driver. What it has of buffers stays with
    /// it: its device may write there.
    #[cold]
    pub fn abandon(&mut self, reason: String) -> io::Result<()> {
        self.fail(reason)?;
        self.mode = Mode::Abandoned;
        self.backlog.clear();
        for tag in 0..self.slots.len() {
            if self.slots[tag].busy {
                self.cut_off(tag)?;
                self.replace(tag)?;
                self.finish(tag as u16, Err(IoError::Transport))?;
            }
        }
        Ok(())
    }

    /// Gives a tag whose buffer is lost another place for bytes that nobody will read.
    #[cold]
    fn replace(&mut self, tag: usize) -> io::Result<()> {
        if self.slots[tag].buffer.is_none() {
            let len = self.geometry.buffer_bytes();
            let scrap = match self.scrap.take() {
                Some(scrap) => scrap,
                None => ScratchBuffer::new(len)?,
            };
            self.slots[tag].addr = self.scrap.insert(scrap).addr();
        }
        Ok(())
    }

    /// The driver ended a request and kept its buffer, because its device may still write there: it
    /// has given the device up.
    #[cold]
    pub(super) fn lose(&mut self, tag: usize) -> io::Result<()> {
        self.replace(tag)?;
        self.fail("the device still has the memory of a request that has ended".into())?;
        self.mode = Mode::Refusing;
        self.suspicious = true;
        Ok(())
    }
}
