//! A thread that wakes a model at a time that it asked for. It exists only once somebody has asked.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

type Wake = Box<dyn Fn(Instant) + Send + Sync>;

#[derive(Default)]
struct State {
    due: Option<Instant>,
    started: bool,
    ended: bool,
}

struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    wake: Wake,
}

/// One alarm. Dropping it ends its thread.
pub(super) struct Timer(Arc<Inner>);

impl Timer {
    /// Calls `wake`, from a thread of its own, whenever a time given to [`wake_at`](Self::wake_at)
    /// has come.
    pub(super) fn new(wake: impl Fn(Instant) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            changed: Condvar::new(),
            wake: Box::new(wake),
        }))
    }

    /// Wakes at `when`, or earlier if an earlier time was asked for and has not come yet.
    pub(super) fn wake_at(&self, when: Instant) {
        Inner::wake_at(&self.0, when);
    }

    /// A way to wake the model that does not keep it.
    pub(super) fn waker(&self) -> Waker {
        Waker(Arc::downgrade(&self.0))
    }
}

/// Wakes a model from outside, as long as it is there.
#[derive(Clone)]
pub(super) struct Waker(Weak<Inner>);

impl Waker {
    /// Wakes it soon, from its own thread.
    pub(super) fn wake(&self) {
        if let Some(inner) = self.0.upgrade() {
            Inner::wake_at(&inner, Instant::now());
        }
    }
}

impl Inner {
    fn wake_at(this: &Arc<Self>, when: Instant) {
        let mut state = this.state();
        if state.due.is_none_or(|due| when < due) {
            state.due = Some(when);
            this.changed.notify_one();
        }
        if !state.started {
            let inner = Arc::clone(this);
            let spawned = std::thread::Builder::new()
                .name("ring3-sim-timer".into())
                .spawn(move || inner.run());
            match spawned {
                Ok(_) => state.started = true,
                Err(error) => {
                    tracing::error!(
                        %error, "no timer thread: delayed work of the model will not be done",
                    )
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.ended {
            let now = Instant::now();
            state = match state.due {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now => {
                    self.changed
                        .wait_timeout(state, due - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                Some(_) => {
                    state.due = None;
                    drop(state);
                    (self.wake)(now);
                    self.state()
                }
            };
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // Not joined: the last handle of a device can be dropped by this very thread.
        self.0.state().ended = true;
        self.0.changed.notify_one();
    }
}
