//! The far end of a card's cable: a datagram socket of QEMU's, of which each datagram is a frame,
//! and a thread that serves it.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;

/// How often a thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// A cable whose far end is served by a thread of its own, until it is dropped.
pub struct Wire {
    ours: PathBuf,
    theirs: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// A cable with the sockets `name.peer`, ours, and `name.card`, the card's, which need not be
    /// there yet, in `folder`. `serve` runs until its end is over.
    pub fn new(
        folder: &Path,
        name: &str,
        serve: impl FnOnce(&End) + Send + 'static,
    ) -> Result<Self, Error> {
        let [ours, theirs] = ["peer", "card"].map(|end| folder.join(format!("{name}.{end}")));
        let failed = |error| Error::os(format!("making the cable's end {}", ours.display()), error);
        let socket = UnixDatagram::bind(&ours).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let end =
            End { socket, card: theirs.clone(), asker: RefCell::new(None), stop: stop.clone() };
        let thread =
            thread::Builder::new().name(name.into()).spawn(move || serve(&end)).map_err(failed)?;
        Ok(Self { ours, theirs, stop, thread: Some(thread) })
    }

    /// Where this end is.
    pub fn ours(&self) -> &Path {
        &self.ours
    }

    /// Where the card shall be.
    pub fn theirs(&self) -> &Path {
        &self.theirs
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic: it does not index what it was sent.
            let _ = thread.join();
        }
    }
}

/// The far end, for the thread that serves it.
pub struct End {
    socket: UnixDatagram,
    card: PathBuf,
    /// Who has sent the last frame: the card, or somebody on this side.
    asker: RefCell<Option<SocketAddr>>,
    stop: Arc<AtomicBool>,
}

impl End {
    /// The bytes of the next frame, if one has come.
    pub fn receive(&self, frame: &mut [u8]) -> Option<usize> {
        loop {
            match self.socket.recv_from(frame) {
                Ok((bytes, from)) => {
                    self.asker.replace(Some(from));
                    return Some(bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Sends a frame: false if it was not taken. A card that is not there, and one whose queue is
    /// full, take nothing.
    pub fn send(&self, frame: &[u8]) -> bool {
        self.socket.send_to(frame, &self.card).is_ok()
    }

    /// Sends a frame to whoever the last one was from.
    pub fn reply(&self, frame: &[u8]) -> bool {
        self.asker
            .borrow()
            .as_ref()
            .is_some_and(|asker| self.socket.send_to_addr(frame, asker).is_ok())
    }

    /// Whether the thread shall end.
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Until something comes, for at most `limit`, or until somebody shall look whether it is over.
    pub fn wait(&self, limit: Duration) {
        // Interrupted or not, the next turn looks.
        let _ = poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            Timespec::try_from(limit.min(LOOK)).ok().as_ref(),
        );
    }
}
