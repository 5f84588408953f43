//! One end of a connection: whole messages, with the descriptors beside them, each within a time.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ring3_spec::vfio_user::{Header, MAX_DATA, MAX_FDS, REPLY};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// A message is no longer than an access of the most bytes, with what stands before them.
const MAX_LEN: usize = MAX_DATA as usize + 64;

/// A message without its header.
#[derive(Debug, Default)]
pub struct Body {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What travelled beside it.
    pub fds: Vec<OwnedFd>,
}

/// A connected socket.
///
/// # Trust
/// The other end may send anything, or nothing: a message has a length that fits, and comes within
/// the time or not at all.
pub struct Channel {
    stream: UnixStream,
    limit: Duration,
}

impl Channel {
    /// Messages over `stream`, each of which comes and goes within `limit`.
    pub fn new(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, limit })
    }

    /// Sends `header`, whose length is set here, and the parts of its body.
    pub fn send(
        &self,
        header: Header,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let len = (Header::LEN + parts[0].len() + parts[1].len()) as u32;
        let bytes = [&Header { len, ..header }.to_bytes()[..], parts[0], parts[1]].concat();
        let (mut sent, since) = (0, Instant::now());
        while sent < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(ErrorKind::InvalidInput.into());
            }
            match sendmsg(
                &self.stream,
                &[IoSlice::new(&bytes[sent..])],
                &mut beside,
                SendFlags::NOSIGNAL,
            ) {
                Ok(more) => sent += more,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
            self.in_time(since, sent == bytes.len())?;
        }
        Ok(())
    }

    /// Receives the next message; `None` at the end of the connection. [`ErrorKind::WouldBlock`]:
    /// nothing came within the time. After every other error the place in the stream is lost.
    pub fn receive(&self) -> io::Result<Option<(Header, Body)>> {
        let mut start = [0; Header::LEN];
        let mut body = Body::default();
        let first = self.receive_some(&mut start, &mut body.fds)?;
        if first == 0 {
            return Ok(None);
        }
        let since = Instant::now();
        self.fill(&mut start[first..], since)?;
        let wrong = |what: String| io::Error::new(ErrorKind::InvalidData, what);
        let (header, _) = Header::take(&start).ok_or(ErrorKind::InvalidData)?;
        match usize::try_from(header.len).ok().filter(|len| (Header::LEN..=MAX_LEN).contains(len)) {
            Some(len) => body.bytes.resize(len - Header::LEN, 0),
            None => {
                return Err(wrong(format!(
                    "a message of {} bytes: at most {MAX_LEN} make sense",
                    header.len
                )));
            }
        }
        self.fill(&mut body.bytes, since)?;
        Ok(Some((header, body)))
    }

    /// Ends the connection, for whoever waits for a message, too.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn receive_some(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            match recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(bytes)],
                &mut beside,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => {
                    for message in beside.drain() {
                        if let RecvAncillaryMessage::ScmRights(received) = message {
                            fds.extend(received);
                        }
                    }
                    return Ok(received.bytes);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The rest of a message, of which the start came at `since`.
    fn fill(&self, bytes: &mut [u8], since: Instant) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.receive_some(&mut bytes[filled..], &mut Vec::new()) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(more) => filled += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.in_time(since, filled == bytes.len())?;
        }
        Ok(())
    }

    /// Whether a message that began at `since` is whole, or may still become so.
    fn in_time(&self, since: Instant, whole: bool) -> io::Result<()> {
        if whole || since.elapsed() < self.limit { Ok(()) } else { Err(ErrorKind::TimedOut.into()) }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The header of the answer to `request`.
pub(super) fn answer(request: &Header, flags: u32, error: u32) -> Header {
    Header { flags: REPLY | flags, error, len: 0, ..*request }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours, SOON).unwrap(), theirs)
    }

    fn start(len: u32) -> [u8; Header::LEN] {
        Header { id: 7, command: 9, len, flags: 0, error: 0 }.to_bytes()
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (one, other) = (Channel::new(one, SOON).unwrap(), Channel::new(other, SOON).unwrap());
        let header = Header { id: 3, command: 8, len: 0, flags: 0, error: 0 };
        one.send(header, [b"ab", b"c"], &[std::io::stdin().as_fd(), std::io::stdin().as_fd()])
            .unwrap();
        let (header, body) = other.receive().unwrap().unwrap();
        assert_eq!(
            (header.id, header.len, &body.bytes[..], body.fds.len()),
            (3, 19, &b"abc"[..], 2)
        );
        drop(one);
        assert!(other.receive().unwrap().is_none());
    }

    #[test]
    fn a_length_that_makes_no_sense_is_refused_before_anything_is_allocated() {
        for len in [0, 15, u32::MAX] {
            let (ours, mut theirs) = pair();
            theirs.write_all(&start(len)).unwrap();
            assert_eq!(ours.receive().unwrap_err().kind(), ErrorKind::InvalidData, "{len}");
        }
    }

    #[test]
    fn half_a_message_ends_in_time_and_silence_is_told_from_it() {
        let (ours, mut theirs) = pair();
        assert_eq!(ours.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
        theirs.write_all(&start(20)[..9]).unwrap();
        assert_eq!(ours.receive().unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_message_that_trickles_ends_in_time() {
        let (ours, mut theirs) = pair();
        theirs.write_all(&start(4096)).unwrap();
        let trickle = std::thread::spawn(move || {
            while theirs.write_all(&[0]).is_ok() {
                std::thread::sleep(SOON / 5)
            }
        });
        assert_eq!(ours.receive().unwrap_err().kind(), ErrorKind::TimedOut);
        drop(ours);
        trickle.join().unwrap();
    }

    #[test]
    fn an_end_in_the_middle_of_a_message_is_an_error() {
        let (ours, mut theirs) = pair();
        theirs.write_all(&start(20)).unwrap();
        drop(theirs);
        assert_eq!(ours.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_does_not_read_does_not_stop_the_sender() {
        let (ours, _theirs) = pair();
        let header = Header::default();
        let much = vec![0; MAX_DATA as usize];
        assert_eq!(ours.send(header, [&much, &[]], &[]).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
