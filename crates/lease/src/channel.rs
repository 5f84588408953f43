//! One end of a lease: whole messages, with the descriptors beside them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes of a message.
pub const MAX_LEN: usize = 64 << 10;
/// Most descriptors of a message; the kernel takes 253. [unix(7)]
pub const MAX_FDS: usize = 192;

/// A connected socket that keeps the boundaries of messages.
pub struct Channel {
    socket: OwnedFd,
    /// Where a message arrives.
    packet: Mutex<Box<[u8]>>,
}

impl Channel {
    /// Two ends, neither of which is inherited unless somebody passes it on.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// Messages over `socket`: one is taken by the other end within `limit`. A wait for one lasts at most as long if it is `timed`, and else until it comes.
    pub fn new(socket: OwnedFd, limit: Duration, timed: bool) -> io::Result<Self> {
        if (socket_domain(&socket)?, socket_type(&socket)?) != (AddressFamily::UNIX, SocketType::SEQPACKET) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no end of a lease"));
        }
        // By flags and not by ioctl, which a driver's process in its sandbox does not have.
        fcntl_setfl(&socket, fcntl_getfl(&socket)? - OFlags::NONBLOCK)?;
        set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
        set_socket_timeout(&socket, Timeout::Recv, timed.then_some(limit))?;
        Ok(Self { socket, packet: Mutex::new(vec![0; MAX_LEN].into()) })
    }

    /// Sends `message` with `fds` beside it.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let fits = bytes.len() <= MAX_LEN && fds.len() <= MAX_FDS;
        if !fits || (!fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds))) {
            let what = format!("a message of {} bytes with {} descriptors is too large for a lease", bytes.len(), fds.len());
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

    /// Receives the next message; `None` when the other end is closed. After an error, nothing that comes later makes sense.
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut packet = self.packet.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut packet)], &mut beside, RecvFlags::CMSG_CLOEXEC) {
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
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message that is too large"));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&packet[..received.bytes])?, fds)))
    }

    /// Ends the lease, for whoever waits for a message at either end, too.
    pub fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::{Answer, Request, VERSION};

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

    #[test]
    fn a_socket_without_messages_is_no_lease() {
        let (stream, _other) = UnixStream::pair().unwrap();
        assert!(Channel::new(stream.into(), SOON, true).is_err());
        assert!(Channel::new(std::fs::File::open("/dev/null").unwrap().into(), SOON, true).is_err());
    }

    proptest! {
        #[test]
        fn no_packet_is_worse_than_an_error(bytes in prop::collection::vec(any::<u8>(), 1..200), text in "\\PC{1,80}") {
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
