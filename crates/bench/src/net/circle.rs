//! Packets that go round: as many as a window has are under way, and one that comes back is sent again.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::net::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;

/// Packets under way: most of the descriptors of a receiving card.
const WINDOW: u32 = 192;
/// So many are sent one after the other.
const BURST: u32 = 32;
/// A window of which nothing has come back for so long is lost, or was never received.
const STALL: Duration = Duration::from_millis(200);
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(20);
/// Packets that are taken before somebody looks what is due.
const BATCH: u32 = 64;
/// Bytes of a packet without its check sequence.
const BYTES: usize = 60;
/// For local experiments. [IEEE 802 9.2.3]
const KIND: [u8; 2] = [0x88, 0xb5];

/// The far end of a card's cable, a datagram socket of QEMU's, in a thread of its own until it is dropped.
pub struct Circle {
    ours: PathBuf,
    theirs: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Circle {
    /// With the sockets `peer`, ours, and `card`, the card's, which need not be there yet, in `folder`; packets are for `to`.
    pub fn new(folder: &Path, to: Mac) -> Result<Self, Error> {
        let [ours, theirs] = ["peer", "card"].map(|end| folder.join(end));
        let failed = |error| Error::os(format!("making the cable's end {}", ours.display()), error);
        let socket = UnixDatagram::bind(&ours).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let mut frame = vec![0; BYTES];
        frame[..6].copy_from_slice(&to.0);
        frame[6..14].copy_from_slice(&[2, 0, 0, 9, 0, 1, KIND[0], KIND[1]]);
        let stop = Arc::new(AtomicBool::new(false));
        let (order, card) = (stop.clone(), theirs.clone());
        let serve = move || serve(&socket, &card, &frame, &order);
        let thread = thread::Builder::new().name("circle".into()).spawn(serve).map_err(failed)?;
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

impl Drop for Circle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic: it does not index what it was sent.
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UnixDatagram, card: &Path, frame: &[u8], stop: &AtomicBool) {
    let (mut credit, mut heard, mut came) = (WINDOW, Instant::now(), vec![0; 2048]);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            match socket.recv(&mut came) {
                Ok(length) if came[..length].get(12..14) == Some(&KIND) => (credit, heard) = (credit + 1, Instant::now()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // What a guest's kernel sends by itself, and a card that is not there.
                _ => {}
            }
        }
        if heard.elapsed() >= STALL {
            (credit, heard) = (WINDOW, Instant::now());
        }
        // In bursts, as a busy cable has them. A card that is not there, and one whose queue is full, take nothing.
        if credit < BURST {
            wait(socket);
            continue;
        }
        while credit > 0 && socket.send_to(frame, card).is_ok() {
            credit -= 1;
        }
        wait(socket);
    }
}

/// Until something comes, or somebody shall look what is due.
fn wait(socket: &UnixDatagram) {
    // Interrupted or not, the next turn looks.
    let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Timespec::try_from(LOOK).ok().as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_under_way_and_each_that_comes_back_is_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let circle = Circle::new(folder.path(), Mac([2; 6])).unwrap();
        let card = UnixDatagram::bind(circle.theirs()).unwrap();
        card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut frame = [0; 100];
        for _ in 0..1000 {
            let length = card.recv(&mut frame).unwrap();
            assert_eq!((length, &frame[..6], &frame[12..14]), (BYTES, &[2; 6][..], &KIND[..]));
            card.send_to(&frame[..length], circle.ours()).unwrap();
        }
    }
}
