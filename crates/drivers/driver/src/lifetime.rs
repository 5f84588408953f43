//! The life of a controller that several queues share: the generation that a reset begins, and the
//! fault that ended it.
//!
//! # Generations
//! Whoever resets the controller counts the generation up before a register changes. Each queue's
//! own thread sees that the generation is not its queue's any more, takes back what had ended
//! before, makes its queue anew and repeats the rest. [`GENERATION_CLOSED`] comes after the last
//! one.
//!
//! # Quiesced
//! Memory returns to its owner only when the device cannot write to it any more; whoever ends the
//! life says whether that was proved.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_class::block::IoError;
use ring3_device::{Device, Error, probes};
use ring3_spec::pci;

/// The generation after the last.
pub(crate) const GENERATION_CLOSED: u32 = u32::MAX;
/// The generation of a queue that was detached: no controller is ever in it.
pub(crate) const GENERATION_DETACHED: u32 = GENERATION_CLOSED - 1;

/// Shared by a controller and its queues.
pub(crate) struct ControllerState {
    /// What messages call the device.
    name: String,
    generation: AtomicU32,
    end: Mutex<Option<End>>,
}

/// How it ended.
struct End {
    error: IoError,
    why: String,
    /// The device cannot write to memory any more.
    quiesced: bool,
}

/// A device that could not be stopped, neither by its registers nor by a reset of its function.
#[derive(Debug)]
pub(crate) struct StopFailed {
    /// Why not.
    pub(crate) error: Error,
    /// It cannot write to memory any more nevertheless: it is gone, or its bus mastering is off.
    pub(crate) quiesced: bool,
}

/// Stops a device that did not obey its registers, which is `error`: takes its bus mastering away
/// and resets the function. When this succeeds, nothing that was started before can write to
/// memory. Bus mastering may be off afterwards.
pub(crate) fn stop_function(device: &dyn Device, error: Error) -> Result<(), StopFailed> {
    tracing::warn!("{}: {error}; resetting the function", device.name());
    let silenced = device.set_bus_master(false);
    // Reading back pushes the write out, and what the device had sent before it comes first.
    device.config_read(pci::COMMAND, 2);
    device.reset().map_err(|_| StopFailed {
        quiesced: silenced.is_ok() || matches!(error, Error::Gone),
        error,
    })
}

/// A thread that panicked leaves what the lock guards as consistent as a device that stopped
/// answering does: recovery is the same.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControllerState {
    /// The first generation, 0, of the device that messages call `name`.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), generation: AtomicU32::new(0), end: Mutex::new(None) }
    }

    /// The life that goes on in `generation`, which was saved; [`Error::Invalid`] if there is none
    /// such.
    pub(crate) fn resume(name: &str, generation: u32) -> Result<Self, Error> {
        if generation >= GENERATION_DETACHED {
            return Err(Error::Invalid(format!(
                "{name}: the saved state has generation {generation}, which is none"
            )));
        }
        Ok(Self { generation: AtomicU32::new(generation), ..Self::new(name) })
    }

    /// The present generation.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Begins the generation after `generation`, because of `why`; seen by all before a register
    /// changes.
    pub(crate) fn begin_reset(&self, generation: u32, why: &str) -> u32 {
        probes::reset(&self.name, why);
        tracing::warn!("{}: resetting the controller: {why}", self.name);
        let next = generation.wrapping_add(1) % GENERATION_DETACHED;
        self.generation.store(next, Ordering::SeqCst);
        next
    }

    /// Fails if the controller will never take a command again.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &*lock(&self.end) {
            None => Ok(()),
            Some(End { error: IoError::Gone, .. }) => Err(Error::Gone),
            Some(end) => Err(Error::Fatal(format!("{}: {}; open it again", self.name, end.why))),
        }
    }

    /// How requests end once it is over.
    pub(crate) fn io_error(&self) -> IoError {
        lock(&self.end).as_ref().map_or(IoError::Gone, |end| end.error)
    }

    /// Whether it is over and the device cannot write to memory any more.
    pub(crate) fn is_quiesced(&self) -> bool {
        lock(&self.end).as_ref().is_some_and(|end| end.quiesced)
    }

    /// Ends it: `what` has failed with `error`.
    pub(crate) fn fail(&self, error: &Error, what: &str, quiesced: bool) {
        tracing::error!("{}: {what}: {error}", self.name);
        let io_error =
            if matches!(error, Error::Gone) { IoError::Gone } else { IoError::Transport };
        self.finish(End { error: io_error, why: format!("{what}: {error}"), quiesced });
    }

    /// Ends it for this process: the device goes on, and knows all of its memory.
    pub(crate) fn detach(&self) {
        self.finish(End {
            error: IoError::Transport,
            why: "it was detached, for whoever resumes it".into(),
            quiesced: false,
        });
    }

    /// Ends it in good order: no queue takes a command from now on. Returns the last generation;
    /// [`shut_down`](Self::shut_down) follows.
    pub(crate) fn close(&self) -> u32 {
        self.generation.swap(GENERATION_CLOSED, Ordering::SeqCst)
    }

    /// Ends it in good order; `stopped` is how the stop of the device went.
    pub(crate) fn shut_down(&self, stopped: &Result<(), StopFailed>) {
        let quiesced = stopped.as_ref().err().is_none_or(|unstopped| unstopped.quiesced);
        self.finish(End { error: IoError::Gone, why: "it was shut down".into(), quiesced });
    }

    fn finish(&self, end: End) {
        *lock(&self.end) = Some(end);
        self.generation.store(GENERATION_CLOSED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unstopped(quiesced: bool) -> Result<(), StopFailed> {
        Err(StopFailed { error: Error::Fatal("it does not stop".into()), quiesced })
    }

    #[test]
    fn a_reset_begins_the_next_generation_and_never_one_that_means_an_end() {
        let lifetime = ControllerState::new("it");
        assert_eq!((lifetime.begin_reset(0, "a test"), lifetime.generation()), (1, 1));
        assert_eq!(lifetime.begin_reset(GENERATION_DETACHED - 1, "a test"), 0);
        assert!(lifetime.check().is_ok() && !lifetime.is_quiesced());
    }

    #[test]
    fn a_fault_is_said_by_name_and_ends_requests_as_transport_errors() {
        let lifetime = ControllerState::new("it");
        lifetime.fail(&Error::Fatal("no answer".into()), "it cannot be stopped", false);
        let error = lifetime.check().unwrap_err().to_string();
        assert!(
            error.contains("it: it cannot be stopped") && error.contains("no answer"),
            "{error}"
        );
        assert_eq!(
            (lifetime.io_error(), lifetime.generation(), lifetime.is_quiesced()),
            (IoError::Transport, GENERATION_CLOSED, false)
        );
    }

    #[test]
    fn a_device_that_is_gone_ends_requests_as_gone() {
        let lifetime = ControllerState::new("it");
        lifetime.fail(&Error::Gone, "it does not answer", true);
        assert!(
            matches!(lifetime.check(), Err(Error::Gone)) && lifetime.io_error() == IoError::Gone
        );
    }

    #[test]
    fn a_shutdown_without_a_proof_that_the_device_has_stopped_gives_no_memory_back() {
        for (stopped, quiesced) in
            [(Ok(()), true), (unstopped(true), true), (unstopped(false), false)]
        {
            let lifetime = ControllerState::new("it");
            assert_eq!(lifetime.close(), 0);
            lifetime.shut_down(&stopped);
            assert_eq!(
                (lifetime.is_quiesced(), lifetime.generation()),
                (quiesced, GENERATION_CLOSED)
            );
        }
    }
}
