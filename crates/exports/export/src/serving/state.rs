//! What becomes of a queue's requests, and what changes that.
//!
//! | from | by | to |
//! |---|---|---|
//! | serving | [`refuse`](State::refuse): a forced removal | refusing |
//! | serving, refusing | [`quiesce`](State::quiesce): another server follows, or none | quiescing |
//! | serving, refusing | [`fail`](State::fail) | refusing, with the failure |
//! | quiescing | [`fail`](State::fail) | quiescing, with the failure |
//! | any | [`abandon`](State::abandon) | abandoned |
//!
//! Nothing leads back: a queue that is to serve again gets a new server.

use ring3_reactor::Timer;

/// How the driver of a queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot recover its device, or has broken the contract of a class queue.
    Fatal,
    /// The device is gone.
    Gone,
}

/// What becomes of requests if the driver fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They fail.
    Refuse,
    /// They are kept for another process, to which the kernel gives them again.
    Keep,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests go to the driver.
    Serving,
    /// Nothing is begun any more, and the thread ends when the driver has nothing in flight. It is
    /// an error if that is not so at `deadline`.
    Quiescing { deadline: Timer, failure: Option<Failure> },
    /// New requests fail; what the driver has is waited for. Without a failure, the disk is taken
    /// from its users.
    Refusing { failure: Option<Failure> },
    /// All requests fail, and the driver is not called any more.
    Abandoned { failure: Failure },
}

impl State {
    /// The disk is taken from its users.
    pub fn refuse(&mut self) {
        if *self == Self::Serving {
            *self = Self::Refusing { failure: None };
        }
    }

    /// The thread is to end, for which the driver has until the timer that `start` starts.
    pub fn quiesce(&mut self, start: impl FnOnce() -> Timer) {
        let failure = match *self {
            Self::Serving => None,
            Self::Refusing { failure } => failure,
            Self::Quiescing { .. } | Self::Abandoned { .. } => return,
        };
        *self = Self::Quiescing { deadline: start(), failure };
    }

    /// The driver has failed. True the first time. A device that is gone stays so, whatever fails
    /// after that.
    pub fn fail(&mut self, failure: Failure) -> bool {
        let before = self.failure();
        let worst = before.filter(|&before| before == Failure::Gone).unwrap_or(failure);
        match self {
            Self::Serving => *self = Self::Refusing { failure: Some(worst) },
            Self::Refusing { failure } | Self::Quiescing { failure, .. } => *failure = Some(worst),
            Self::Abandoned { failure } => *failure = worst,
        }
        before.is_none()
    }

    /// The driver must not be called any more.
    pub fn abandon(&mut self) {
        *self = Self::Abandoned { failure: self.failure().unwrap_or(Failure::Fatal) };
    }

    /// How the driver has ended, if it has.
    pub fn failure(&self) -> Option<Failure> {
        match *self {
            Self::Serving => None,
            Self::Refusing { failure } | Self::Quiescing { failure, .. } => failure,
            Self::Abandoned { failure } => Some(failure),
        }
    }

    /// Whether `timer` is the deadline of quiescing.
    pub fn is_deadline(&self, timer: Timer) -> bool {
        matches!(self, Self::Quiescing { deadline, .. } if *deadline == timer)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ring3_reactor::Reactor;

    use super::*;

    fn timer() -> Timer {
        Reactor::new(0, Duration::ZERO).unwrap().set_timer(Instant::now())
    }

    #[test]
    fn a_forced_removal_changes_only_a_queue_that_serves() {
        let mut state = State::Serving;
        state.refuse();
        assert_eq!(state, State::Refusing { failure: None });
        let deadline = timer();
        let quiescing = State::Quiescing { deadline, failure: None };
        for before in [quiescing, State::Abandoned { failure: Failure::Gone }] {
            let mut state = before;
            state.refuse();
            assert_eq!(state, before);
        }
    }

    #[test]
    fn a_failure_is_new_once_and_ends_what_serves() {
        let mut state = State::Serving;
        assert!(state.fail(Failure::Fatal));
        assert_eq!(state, State::Refusing { failure: Some(Failure::Fatal) });
        assert!(!state.fail(Failure::Gone));
        assert_eq!(state.failure(), Some(Failure::Gone));
    }

    #[test]
    fn a_device_that_is_gone_stays_gone() {
        let mut state = State::Refusing { failure: Some(Failure::Gone) };
        state.fail(Failure::Fatal);
        state.abandon();
        assert_eq!(state, State::Abandoned { failure: Failure::Gone });
    }

    #[test]
    fn a_queue_that_quiesces_goes_on_quiescing_when_its_driver_fails() {
        let deadline = timer();
        let mut state = State::Serving;
        state.quiesce(|| deadline);
        state.fail(Failure::Fatal);
        assert_eq!(state, State::Quiescing { deadline, failure: Some(Failure::Fatal) });
        assert!(state.is_deadline(deadline));
    }

    #[test]
    fn a_second_order_to_quiesce_does_not_move_the_deadline() {
        let deadline = timer();
        let mut state = State::Refusing { failure: Some(Failure::Fatal) };
        state.quiesce(|| deadline);
        let before = state;
        state.quiesce(|| panic!("it starts another timer"));
        assert_eq!(state, before);
        assert_eq!(state.failure(), Some(Failure::Fatal));
    }

    #[test]
    fn an_abandoned_queue_has_no_deadline() {
        let mut state = State::Abandoned { failure: Failure::Fatal };
        state.quiesce(|| panic!("it starts a timer"));
        assert_eq!(state, State::Abandoned { failure: Failure::Fatal });
    }
}
