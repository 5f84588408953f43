//! A user over sockets of the kernel: as any program of any machine.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::load::{Kind, Load};
use super::many::{BATCH, Many, ROOM};
use super::measure::{PATIENCE, QUIET, Seen};
use super::talk::{Ask, Mark, PEER_DATA, PEER_TALK, TELL, Tally, USER_DATA, USER_TALK};
use super::{User, Work, no_answer};
use crate::Error;

/// How long an answer is waited for before the question is asked again.
const AGAIN: Duration = Duration::from_millis(200);
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
        let failed = |error| {
            Error::os(
                format!("opening sockets of {here}, which must be an address of this machine"),
                error,
            )
        };
        let data = socket(USER_DATA, PEER_DATA, QUIET).map_err(failed)?;
        let talk = socket(USER_TALK, PEER_TALK, AGAIN).map_err(failed)?;
        Ok(Self { data, talk, many: Many::new() })
    }

    /// One call, or one there and one back.
    #[inline]
    fn turn(&mut self, load: &Load, seen: &mut Seen) -> io::Result<()> {
        match load.kind {
            Kind::Echo(_) | Kind::Rate(_) => {
                let length = self.data.recv(self.many.place(0))?;
                let packet = &self.many.place(0)[..length];
                let Some(mark) = Mark::of(packet) else { return Ok(()) };
                // What the interface has no room for is lost, as any packet may be.
                if self.data.send(packet).is_ok() {
                    seen.see(&mark);
                }
            }
            Kind::Out => seen.packets += self.many.send(&self.data, BATCH)?,
            Kind::In | Kind::Idle => {
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
        let Some(mark) = Mark::of(self.many.place(0)) else { return Ok(()) };
        self.data.send(&Mark { number: mark.number.max(number), ..mark }.bytes()).map(drop)
    }
}

impl User for Sockets {
    fn ask(&mut self, ask: &Ask) -> Result<Tally, Error> {
        let question = serde_json::to_vec(ask)
            .map_err(|error| Error::format("a question to the peer", error))?;
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
        Err(no_answer(PATIENCE))
    }

    fn work(
        &mut self,
        load: &Load,
        time: Duration,
        begin: &mut dyn FnMut(),
        end: &mut dyn FnMut(),
    ) -> Result<Work, Error> {
        let failed = |error| Error::os(format!("sending and receiving {load}"), error);
        self.many.prepare(if load.kind == Kind::Out { load.bytes.into() } else { ROOM });
        let (asked, mut seen) = (Instant::now(), Seen::default());
        while load.kind != Kind::Out && seen.packets == 0 {
            match self.turn(load, &mut seen) {
                Err(error) if !is_silence(&error) => return Err(failed(error)),
                _ if asked.elapsed() > PATIENCE => {
                    return Err(Error::Invalid(format!("{load}: nothing comes")));
                }
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

    fn idle(&mut self, time: Duration) -> Result<(), Error> {
        std::thread::sleep(time);
        Ok(())
    }

    fn drain(&mut self, load: &Load) -> Result<(), Error> {
        let load =
            Load { kind: if load.kind == Kind::Out { Kind::In } else { load.kind }, ..*load };
        while self.turn(&load, &mut Seen::default()).is_ok() {}
        Ok(())
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
