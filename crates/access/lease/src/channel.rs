//! One end of a lease: whole messages, with the descriptors beside them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_get_seals, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_passcred, set_socket_timeout, socket_domain, socket_type,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::DeferredCloser;

/// Most bytes of a message.
pub const MAX_LEN: usize = 64 << 10;
/// Most descriptors of a message; the kernel takes 253. [unix(7)]
pub const MAX_FDS: usize = 192;

/// A connected socket that keeps the boundaries of messages.
///
/// # Strangers
/// Of somebody who is not trusted ([`Channel::of_stranger`]) at most one descriptor is taken with a
/// message ([`Channel::receive_untrusted`]), and only if it is memory: to close anything else may
/// wait. Several are never taken out of the socket. What was sent and not taken is closed by a
/// [`DeferredCloser`], with the socket.
pub struct Channel {
    socket: Arc<OwnedFd>,
    /// Where a message arrives.
    packet: Mutex<Box<[u8]>>,
    stranger: Option<UntrustedPeer>,
}

/// What a channel has beside, whose other end is not trusted.
struct UntrustedPeer {
    closer: DeferredCloser,
    /// What was looked at and is no memory.
    refused: Mutex<Vec<OwnedFd>>,
}

impl Channel {
    /// Two ends, neither of which is inherited unless somebody passes it on.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// Messages over `socket`: one is taken by the other end within `limit`. A wait for one lasts
    /// at most as long if it is `timed`, and else until it comes.
    pub fn new(socket: OwnedFd, limit: Duration, timed: bool) -> io::Result<Self> {
        prepare(socket.as_fd(), limit, timed)?;
        Ok(Self {
            socket: socket.into(),
            packet: Mutex::new(vec![0; MAX_LEN].into()),
            stranger: None,
        })
    }

    /// As [`new`](Self::new), with a time limit for both, whose other end is not trusted.
    pub fn of_stranger(
        socket: OwnedFd,
        limit: Duration,
        closer: &DeferredCloser,
    ) -> io::Result<Self> {
        let stranger = UntrustedPeer { closer: closer.clone(), refused: Mutex::default() };
        let prepared = prepare(socket.as_fd(), limit, true);
        // Of one that is not prepared, the end is that of any other.
        let channel = Self {
            socket: socket.into(),
            packet: Mutex::new(vec![0; MAX_LEN].into()),
            stranger: Some(stranger),
        };
        prepared.map(|()| channel)
    }

    /// Sends `message` with `fds` beside it.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let fits = bytes.len() <= MAX_LEN && fds.len() <= MAX_FDS;
        if !fits || (!fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds))) {
            let what = format!(
                "a message of {} bytes with {} descriptors is too large for a lease",
                bytes.len(),
                fds.len()
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next message; `None` when the other end is closed. After an error, nothing that
    /// comes later makes sense.
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut packet = self.packet();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let Some(packet) = self.take(&mut packet, &mut space, RecvFlags::empty())? else {
            return Ok(None);
        };
        if packet.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(too_large());
        }
        Ok(Some((serde_json::from_slice(packet.bytes)?, packet.fds)))
    }

    /// As [`receive`](Self::receive), from an untrusted peer: with one descriptor at most, of
    /// memory (a file that has seals). Anything else is an error, and the caller has to disconnect
    /// the peer.
    pub fn receive_untrusted<M: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(M, Option<OwnedFd>)>> {
        let mut bytes = self.packet();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        // Looked at first: what stays in the socket has another owner, so that nothing of it is
        // closed here for good.
        let Some(seen) = self.take(&mut bytes, &mut space, RecvFlags::PEEK)? else {
            // An empty message looks the same, and is none.
            return Ok(None);
        };
        let (flags, memory) = (seen.flags, seen.fds.iter().all(|fd| fcntl_get_seals(fd).is_ok()));
        if !memory {
            self.refuse(seen.fds);
            return Err(invalid("a descriptor that is no memory"));
        }
        // Where there is room for one, there may be for two.
        if flags.contains(ReturnFlags::CTRUNC) || seen.fds.len() > 1 {
            return Err(invalid("several descriptors, where there is at most one"));
        }
        // To close memory waits for nobody.
        drop(seen.fds);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let Some(mut taken) = self.take(&mut bytes, &mut space, RecvFlags::DONTWAIT)? else {
            return Ok(None);
        };
        if flags.union(taken.flags).intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(too_large());
        }
        Ok(Some((serde_json::from_slice(taken.bytes)?, taken.fds.pop())))
    }

    fn refuse(&self, fds: Vec<OwnedFd>) {
        if let Some(stranger) = &self.stranger {
            stranger.refused().extend(fds);
        }
    }

    fn take<'a>(
        &self,
        bytes: &'a mut [u8],
        space: &mut [MaybeUninit<u8>],
        flags: RecvFlags,
    ) -> io::Result<Option<Packet<'a>>> {
        let mut beside = RecvAncillaryBuffer::new(space);
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(bytes)],
                &mut beside,
                flags | RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        // Taken in any case, so that those of a bad message are closed.
        let mut fds = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let is_end =
            received.bytes == 0 && fds.is_empty() && !received.flags.contains(ReturnFlags::CTRUNC);
        Ok((!is_end).then(|| Packet {
            bytes: &bytes[..received.bytes],
            fds,
            flags: received.flags,
        }))
    }

    fn packet(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.packet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the lease, for whoever waits for a message at either end, too.
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn prepare(socket: BorrowedFd<'_>, limit: Duration, timed: bool) -> io::Result<()> {
    if (socket_domain(socket)?, socket_type(socket)?)
        != (AddressFamily::UNIX, SocketType::SEQPACKET)
    {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no end of a lease"));
    }
    // By flags and not by ioctl, which a driver's process in its sandbox does not have.
    fcntl_setfl(socket, fcntl_getfl(socket)? - OFlags::NONBLOCK)?;
    set_socket_timeout(socket, Timeout::Send, Some(limit))?;
    Ok(set_socket_timeout(socket, Timeout::Recv, timed.then_some(limit))?)
}

/// What has arrived.
struct Packet<'a> {
    bytes: &'a [u8],
    fds: Vec<OwnedFd>,
    flags: ReturnFlags,
}

impl UntrustedPeer {
    fn refused(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(stranger) = &self.stranger {
            part(self.socket.clone(), stranger);
        }
    }
}

/// Ends a stranger's connection. Whoever closes `socket` then does so without a wait.
fn part(socket: Arc<OwnedFd>, stranger: &UntrustedPeer) {
    // What is sent from now on is an error at the other end, and does not come here.
    let _ = shutdown(&socket, Shutdown::Both);
    let refused = std::mem::take(&mut *stranger.refused());
    if !refused.is_empty() || is_waiting(socket.as_fd(), RecvFlags::PEEK) {
        stranger.closer.close(socket, refused);
    }
}

/// Takes all messages that wait in a socket that is shut down, and closes what they have beside
/// them. This may wait.
pub(crate) fn discard(socket: BorrowedFd<'_>) {
    while is_waiting(socket, RecvFlags::empty()) {}
}

/// Whether a message waits, which is taken unless `flags` say that it is looked at.
fn is_waiting(socket: BorrowedFd<'_>, flags: RecvFlags) -> bool {
    // With its sender's identity beside it, an empty message differs from the end.
    if set_socket_passcred(socket, true).is_err() {
        return false;
    }
    loop {
        // Without room for what is beside it: the kernel closes that, and says so.
        let mut nothing = RecvAncillaryBuffer::new(&mut []);
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut [0])],
            &mut nothing,
            flags | RecvFlags::DONTWAIT,
        ) {
            Ok(received) => return received.flags.contains(ReturnFlags::CTRUNC),
            // A reset is said once.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(_) => return false,
        }
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

fn too_large() -> io::Error {
    invalid("a message that is too large")
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::{MemfdFlags, fstat, memfd_create};
    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::{Answer, MOST_CLOSING, Request, VERSION};

    const SOON: Duration = Duration::from_millis(20);

    fn pair() -> (Channel, Channel) {
        let (one, other) = Channel::pair().unwrap();
        (Channel::new(one, SOON, true).unwrap(), Channel::new(other, SOON, true).unwrap())
    }

    fn raw(channel: &Channel, bytes: &[u8]) {
        rustix::net::send(channel, bytes, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn a_message_arrives_with_its_descriptors_and_the_end_is_told() {
        let (one, other) = pair();
        one.send(&Request::Hello { version: VERSION }, &[one.as_fd(), one.as_fd()]).unwrap();
        let (request, fds) = other.receive::<Request>().unwrap().unwrap();
        assert_eq!((request, fds.len()), (Request::Hello { version: VERSION }, 2));
        drop((one, fds));
        assert!(other.receive::<Request>().unwrap().is_none());
    }

    #[test]
    fn what_is_too_large_is_refused_at_both_ends() {
        let (one, other) = pair();
        assert!(one.send(&" ".repeat(MAX_LEN), &[]).is_err());
        assert!(one.send(&Request::Reset, &vec![one.as_fd(); MAX_FDS + 1]).is_err());
        raw(&one, &vec![b' '; MAX_LEN + 1]);
        assert_eq!(other.receive::<Request>().unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn silence_and_a_full_socket_end_in_time() {
        let (one, other) = pair();
        assert_eq!(one.receive::<Answer>().unwrap_err().kind(), ErrorKind::WouldBlock);
        let full = (0..100_000).find_map(|_| one.send(&Request::Reset, &[]).err()).unwrap();
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        drop(other);
    }

    /// A TCP socket over loopback that nobody reads, whose close waits as long as its other end is
    /// there.
    fn lingering() -> (OwnedFd, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        set_socket_linger(&stream, Some(LINGER)).unwrap();
        (stream.into(), listener)
    }

    /// A stranger's end, and ours.
    fn strangers(closer: &DeferredCloser) -> (Channel, Channel) {
        let (one, other) = Channel::pair().unwrap();
        let ours = Channel::of_stranger(one, SOON, closer).unwrap();
        (Channel::new(other, SOON, true).unwrap(), ours)
    }

    /// Longer than anything takes on a busy machine.
    const LINGER: Duration = Duration::from_secs(20);

    /// How long it takes to receive from an untrusted peer that has sent `count` lingering sockets
    /// as the message
    /// `sent`, and to part with it.
    fn parted(sent: &[u8], count: usize) -> Duration {
        let closer = DeferredCloser::default();
        let (theirs, ours) = strangers(&closer);
        let (fd, _unread) = lingering();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let fds = vec![fd.as_fd(); count];
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&theirs, &[IoSlice::new(sent)], &mut beside, SendFlags::NOSIGNAL).unwrap();
        drop(fds);
        drop(fd);
        let since = Instant::now();
        assert!(ours.receive_untrusted::<Request>().is_err() || sent.is_empty());
        drop(ours);
        since.elapsed()
    }

    #[test]
    fn who_parts_with_a_stranger_waits_for_no_descriptor_that_it_has_sent() {
        for count in [1, 2, 253] {
            let took = parted(b"\"reset\"", count);
            assert!(took < LINGER, "{count}: {took:?}");
        }
    }

    #[test]
    fn a_descriptor_beside_no_bytes_or_behind_an_empty_message_is_waited_for_by_nobody() {
        let took = parted(b"", 1);
        assert!(took < LINGER, "{took:?}");
        let closer = DeferredCloser::default();
        let (theirs, ours) = strangers(&closer);
        let (fd, _unread) = lingering();
        raw(&theirs, &[]);
        theirs.send(&Request::Reset, &[fd.as_fd()]).unwrap();
        drop(fd);
        let since = Instant::now();
        assert!(ours.receive_untrusted::<Request>().unwrap().is_none());
        drop((ours, theirs));
        assert!(since.elapsed() < LINGER, "{:?}", since.elapsed());
    }

    #[test]
    fn of_a_stranger_memory_is_taken_one_with_each_message() {
        let closer = DeferredCloser::default();
        let (theirs, ours) = strangers(&closer);
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        theirs.send(&Request::Reset, &[memory.as_fd()]).unwrap();
        theirs.send(&Request::Reset, &[]).unwrap();
        let (_, fd) = ours.receive_untrusted::<Request>().unwrap().unwrap();
        assert_eq!(fstat(fd.unwrap()).unwrap().st_ino, fstat(&memory).unwrap().st_ino);
        assert!(ours.receive_untrusted::<Request>().unwrap().unwrap().1.is_none());
        theirs.send(&Request::Reset, &[memory.as_fd(), memory.as_fd()]).unwrap();
        assert!(ours.receive_untrusted::<Request>().unwrap_err().to_string().contains("several"));
        drop(theirs);
    }

    #[test]
    fn a_closer_that_waits_is_full_at_its_bound_and_has_room_again_afterwards() {
        let closer = DeferredCloser::default();
        let room = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        closer.set_room_event(room.clone());
        let mut unread = Vec::new();
        for entry in 0..MOST_CLOSING {
            assert!(!closer.is_full(), "{entry}");
            let (theirs, ours) = strangers(&closer);
            let (fd, listener) = lingering();
            theirs.send(&Request::Reset, &[fd.as_fd()]).unwrap();
            unread.push(listener);
            drop((fd, ours));
        }
        assert!(closer.is_full());
        // Nobody is there any more for whom a close would wait.
        unread.clear();
        rustix::io::read(&*room, &mut [0; 8]).unwrap();
        let since = Instant::now();
        while closer.is_full() {
            assert!(since.elapsed() < Duration::from_secs(20));
            std::thread::sleep(SOON);
        }
    }

    #[test]
    fn what_comes_to_a_closer_that_is_full_is_closed_behind_the_rest() {
        let closer = DeferredCloser::default();
        let (reader, writer) = std::io::pipe().unwrap();
        let (slow, unread) = lingering();
        let fds = std::iter::once(slow)
            .chain((0..2 * MOST_CLOSING).map(|_| writer.try_clone().unwrap().into()));
        for fd in fds {
            let (theirs, ours) = strangers(&closer);
            theirs.send(&Request::Reset, &[fd.as_fd()]).unwrap();
            drop((fd, ours));
        }
        drop((writer, unread));
        // Its end, when nobody has the other one any more.
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&limit)).unwrap(), 1);
    }

    #[test]
    fn a_socket_without_messages_is_no_lease() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert!(Channel::new(stream.into(), SOON, true).is_err());
        assert!(
            Channel::new(std::fs::File::open("/dev/null").unwrap().into(), SOON, true).is_err()
        );
    }

    proptest! {
        #[test]
        fn no_packet_is_worse_than_an_error(
            bytes in prop::collection::vec(any::<u8>(), 1..200), text in "\\PC{1,80}",
        ) {
            let (one, other) = pair();
            for packet in [&bytes[..], text.as_bytes()] {
                raw(&one, packet);
                prop_assert!(other.receive::<Request>().is_err());
                raw(&one, packet);
                prop_assert!(other.receive::<Answer>().is_err());
            }
        }
    }
}
