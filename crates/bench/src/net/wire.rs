//! The peer on a cable of QEMU's: each frame is a datagram of a UNIX socket.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::net::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Peer;
use crate::Error;

/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);
/// Frames that are taken before what is due is done.
const BATCH: usize = 64;
/// More than the longest frame that a card sends to a peer.
const LONGEST: usize = 65_600;

/// A peer in a thread of its own, until it is dropped.
pub struct Wire {
    ours: PathBuf,
    theirs: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// The end of a cable with the sockets `name.peer`, ours, and `name.card`, the card's, which need not be there yet, in `folder`.
    pub fn new(folder: &Path, name: &str, mac: Mac) -> Result<Self, Error> {
        let [ours, theirs] = ["peer", "card"].map(|end| folder.join(format!("{name}.{end}")));
        let failed = |error| Error::os(format!("making the cable's end {}", ours.display()), error);
        let socket = UnixDatagram::bind(&ours).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (order, to) = (stop.clone(), theirs.clone());
        let thread =
            thread::Builder::new().name("peer".into()).spawn(move || serve(&socket, &to, mac, &order)).map_err(failed)?;
        Ok(Self { ours, theirs, stop, thread: Some(thread) })
    }

    /// Where the peer is.
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

fn serve(socket: &UnixDatagram, to: &Path, mac: Mac, stop: &AtomicBool) {
    let mut peer = Peer::new(mac);
    let mut frame = vec![0; LONGEST];
    // A card that is not there, and one whose queue is full, take nothing.
    let mut send = |frame: &[u8]| socket.send_to(frame, to).is_ok();
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            match socket.recv(&mut frame) {
                Ok(length) => peer.take(&frame[..length], Instant::now(), &mut send),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
        let next = peer.tick(Instant::now(), &mut send);
        let left = next.map_or(LOOK, |next| next.saturating_duration_since(Instant::now())).min(LOOK);
        // Interrupted or not, the next turn looks.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::frame::{Host, parse, turn_around, udp};
    use super::super::talk::{Ask, PEER_TALK, Tally, USER_TALK};
    use super::*;

    #[test]
    fn a_card_that_appears_later_is_served_and_its_echo_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let there = Host { mac: Mac([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 9, 0, 2) };
        let here = Host { mac: Mac([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 9, 0, 1) };
        let wire = Wire::new(folder.path(), "c", there.mac).unwrap();
        let card = UnixDatagram::bind(wire.theirs()).unwrap();
        card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let ask = |ask: Ask| {
            card.send_to(&udp((here, USER_TALK), (there, PEER_TALK), &serde_json::to_vec(&ask).unwrap()), wire.ours()).unwrap();
        };
        let mut frame = [0; 2000];
        let mut receive = || {
            let length = card.recv(&mut frame).unwrap();
            frame[..length].to_vec()
        };
        ask(Ask::Begin(3, "udp-64-echo-qd1".parse().unwrap()));
        assert_eq!(parse(&receive()).unwrap().to.1, USER_TALK);
        for _ in 0..5 {
            let mut packet = receive();
            turn_around(packet.first_chunk_mut().unwrap());
            card.send_to(&packet, wire.ours()).unwrap();
        }
        receive();
        ask(Ask::Stop(3));
        let tally: Tally = serde_json::from_slice(parse(&receive()).unwrap().payload).unwrap();
        assert_eq!((tally.id, tally.sent, tally.received), (3, 6, 5));
        assert!(tally.p50_us > 0.0, "{tally:?}");
    }
}
