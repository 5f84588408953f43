//! A thread that closes descriptors of strangers.
//!
//! # Why
//! `close` may wait: for the peer of a TCP socket with SO_LINGER as long as its owner has said, for
//! the server of a FUSE file until that answers. A thread that serves many clients, or watches a
//! driver, waits for none of them: what a stranger has sent, and is not memory, goes here.
//!
//! # Bound
//! One thread, which ends when it has nothing to do, and [`MOST`] entries.
//! [`DeferredCloser::is_full`] is for who accepts connections: no client more while it is so.
//! Beyond that there is at most one entry for each connection that is open already.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::channel;

/// Entries that wait, the one that is being closed included.
pub const MOST: usize = 16;

/// See the module. Clones share the thread.
#[derive(Clone, Default)]
pub struct DeferredCloser(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Entry>,
    /// The thread is there, with an entry in its hands or about to take one.
    running: bool,
    /// Raised when there is room again.
    room: Option<Arc<OwnedFd>>,
}

/// A connection, and what was taken out of it before it was known for what it is.
struct Entry {
    socket: Arc<OwnedFd>,
    fds: Vec<OwnedFd>,
}

impl DeferredCloser {
    /// Sets the eventfd that is raised each time an entry was closed.
    pub fn set_room_event(&self, room: Arc<OwnedFd>) {
        self.lock().room = Some(room);
    }

    /// Whether it has as many entries as it takes.
    pub fn is_full(&self) -> bool {
        let mut state = self.lock();
        self.start(&mut state);
        state.len() >= MOST
    }

    /// Closes `fds`, and what waits in `socket`, to which nothing more can be sent. Others may have
    /// the socket, too: they close it without a wait afterwards.
    pub(crate) fn close(&self, socket: Arc<OwnedFd>, fds: Vec<OwnedFd>) {
        let entry = Entry { socket, fds };
        let mut state = self.lock();
        state.waiting.push_back(entry);
        self.start(&mut state);
    }

    /// Starts the thread if there is something to do. Where it cannot be started, entries wait for
    /// the next attempt.
    fn start(&self, state: &mut State) {
        if !state.running && !state.waiting.is_empty() {
            let its = self.clone();
            state.running =
                thread::Builder::new().name("closer".into()).spawn(move || its.work()).is_ok();
        }
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let next = state.waiting.pop_front();
            state.running = next.is_some();
            // There is one fewer than before.
            if let Some(room) = &state.room {
                let _ = rustix::io::write(room, &1u64.to_ne_bytes());
            }
            drop(state);
            let Some(Entry { socket, fds }) = next else { return };
            drop(fds);
            channel::discard(socket.as_fd());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.running)
    }
}
