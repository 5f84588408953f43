//! A user over sockets of the kernel: as any program of any machine.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::load::{Kind, Load};
use super::measure::{PATIENCE, QUIET, Seen};
use super::talk::{Ask, Mark, PEER_DATA, PEER_TALK, TELL, Tally, USER_DATA, USER_TALK};
use super::{User, Work};
use crate::Error;

/// How long an answer is waited for before the question is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// Packets of one call, where there are many.
const BATCH: usize = 32;
/// More than the payload of a packet.
const ROOM: usize = 2048;
/// The clock is read after so many calls.
const LOOK: u32 = 32;

/// Two sockets: one for loads, one to talk.
pub struct Sockets {
    data: UdpSocket,
    talk: UdpSocket,
    many: Many,
}

impl Sockets {
    /// From this machine's address `here` to the peer's.
    pub fn open(here: Ipv4Addr, peer: Ipv4Addr) -> Result<Self, Error> {
        let socket = |from: u16, to: u16, silence| -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((here, from))?;
            socket.connect((peer, to))?;
            socket.set_read_timeout(Some(silence))?;
            Ok(socket)
        };
        let failed = |error| Error::os(format!("opening sockets of {here}, which must be an address of this machine"), error);
        let data = socket(USER_DATA, PEER_DATA, QUIET).map_err(failed)?;
        let talk = socket(USER_TALK, PEER_TALK, AGAIN).map_err(failed)?;
        Ok(Self { data, talk, many: Many::new() })
    }

    /// One call, or one there and one back.
    #[inline]
    fn turn(&mut self, load: &Load, seen: &mut Seen) -> io::Result<()> {
        match load.kind {
            Kind::Echo(_) | Kind::Rate(_) => {
                let length = self.data.recv(&mut self.many.bytes[..ROOM])?;
                let packet = &self.many.bytes[..length];
                let Some(mark) = Mark::of(packet) else { return Ok(()) };
                // What the interface has no room for is lost, as any packet may be.
                if self.data.send(packet).is_ok() {
                    seen.see(&mark);
                }
            }
            Kind::Out => seen.packets += self.many.send(&self.data)?,
            Kind::In => {
                let before = seen.packets / TELL;
                seen.packets += self.many.receive(&self.data)?;
                if seen.packets / TELL != before {
                    self.tell(seen.packets)?;
                }
            }
        }
        Ok(())
    }

    /// Tells the peer how much has come.
    fn tell(&mut self, number: u64) -> io::Result<()> {
        let Some(mark) = Mark::of(&self.many.bytes) else { return Ok(()) };
        self.data.send(&Mark { number: mark.number.max(number), ..mark }.bytes()).map(drop)
    }
}

impl User for Sockets {
    fn ask(&mut self, ask: &Ask) -> Result<Tally, Error> {
        let question = serde_json::to_vec(ask).map_err(|error| Error::format("a question to the peer", error))?;
        let (start, mut answer) = (Instant::now(), [0; ROOM]);
        while start.elapsed() < PATIENCE {
            // As long as there is no link, nobody can be reached.
            let asked = self.talk.send(&question);
            while let Ok(length) = self.talk.recv(&mut answer) {
                match serde_json::from_slice::<Tally>(&answer[..length]) {
                    Ok(tally) if tally.id == ask.id() => return Ok(tally),
                    _ => {}
                }
            }
            if asked.is_err() {
                std::thread::sleep(AGAIN);
            }
        }
        Err(Error::Invalid(format!("nobody at the other end of the cable answers within {} s", PATIENCE.as_secs())))
    }

    fn work(&mut self, load: &Load, time: Duration, begin: &mut dyn FnMut(), end: &mut dyn FnMut()) -> Result<Work, Error> {
        let failed = |error| Error::os(format!("sending and receiving {load}"), error);
        self.many.prepare(load);
        let (asked, mut seen) = (Instant::now(), Seen::default());
        while load.kind != Kind::Out && seen.packets == 0 {
            match self.turn(load, &mut seen) {
                Err(error) if !is_silence(&error) => return Err(failed(error)),
                _ if asked.elapsed() > PATIENCE => return Err(Error::Invalid(format!("{load}: nothing comes"))),
                _ => {}
            }
        }
        begin();
        let (start, before) = (Instant::now(), seen);
        for turn in 0_u32.. {
            let silent = match self.turn(load, &mut seen) {
                Ok(()) => false,
                Err(error) if is_silence(&error) => true,
                Err(error) => return Err(failed(error)),
            };
            if (silent || turn % LOOK == 0) && start.elapsed() >= time {
                break;
            }
        }
        end();
        Ok(seen.since(&before))
    }

    fn drain(&mut self, load: &Load) -> Result<(), Error> {
        let load = Load { kind: if load.kind == Kind::Out { Kind::In } else { load.kind }, ..*load };
        while self.turn(&load, &mut Seen::default()).is_ok() {}
        Ok(())
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Packets of one call.
struct Many {
    bytes: Vec<u8>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Many {
    fn new() -> Self {
        let mut bytes = vec![0; BATCH * ROOM];
        let piece = |piece: &mut [u8]| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
        let mut vectors: Vec<_> = bytes.chunks_mut(ROOM).map(piece).collect();
        let header = |vector: &mut libc::iovec| {
            // SAFETY: a header of zeroes names no address, no vectors and no control data.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (&raw mut *vector, 1);
            header
        };
        let headers = vectors.iter_mut().map(header).collect();
        Self { bytes, vectors, headers }
    }

    /// For packets of `load`: of its size to send, of any to receive.
    fn prepare(&mut self, load: &Load) {
        let length = if load.kind == Kind::Out { load.bytes.into() } else { ROOM };
        self.vectors.iter_mut().for_each(|vector| vector.iov_len = length);
    }

    #[inline]
    fn send(&mut self, socket: &UdpSocket) -> io::Result<u64> {
        // SAFETY: headers, vectors and bytes lie in vectors that are never made longer, so that each points to the next as long as this value lives.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), BATCH as u32, 0) };
        u64::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    #[inline]
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<u64> {
        let (headers, none) = (self.headers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: as above; the kernel writes into the bytes, to which no reference exists meanwhile.
        let received = unsafe { libc::recvmmsg(socket.as_raw_fd(), headers, BATCH as u32, libc::MSG_WAITFORONE, none) };
        u64::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

// SAFETY: its pointers are to its own memory.
unsafe impl Send for Many {}
