//! The driver's way to the holder.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_device::Error;
use ring3_lease::{Answer, Channel, DeviceDescription, Refusal, Request, VERSION};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// How long an answer may take: longer than the holder waits for a server, or for a reset.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The driver's end of a lease. Dropping it gives the lease back.
pub(super) struct LeaseClient {
    name: String,
    channel: Arc<Channel>,
    /// Held from a request to its answer.
    turn: Mutex<()>,
    gone: Arc<AtomicBool>,
}

impl LeaseClient {
    /// Agrees on a version, and learns what is leased.
    pub(super) fn open(socket: OwnedFd) -> Result<(Self, DeviceDescription, Vec<OwnedFd>), Error> {
        let failed = |error: io::Error| {
            Error::Claim(format!(
                "this is no lease of a device: {error}; give one that its holder has made"
            ))
        };
        let channel = Arc::new(Channel::new(socket, ANSWER_LIMIT, true).map_err(failed)?);
        let mut link = Self {
            name: "the leased device".into(),
            channel,
            turn: Mutex::default(),
            gone: Arc::default(),
        };
        match link.ask(&Request::Hello { version: VERSION }, &[])? {
            (Answer::Facts(facts), fds) if facts.version == VERSION => {
                link.name.clone_from(&facts.name);
                Ok((link, *facts, fds))
            }
            _ => Err(link.broken()),
        }
    }

    /// Signals `removal` when the holder goes, though nobody asks for anything.
    pub(super) fn watch(&self, removal: OwnedFd) -> Result<(), Error> {
        let (channel, gone) = (Arc::clone(&self.channel), Arc::clone(&self.gone));
        let watch = move || {
            while matches!(
                poll(&mut [PollFd::new(&*channel, PollFlags::RDHUP)], None),
                Err(Errno::INTR)
            ) {}
            // If it is we who have closed it, nobody is told.
            if !gone.swap(true, Ordering::AcqRel) {
                crate::eventfd::signal(&removal);
            }
        };
        let thread = std::thread::Builder::new().name("ring3-lease".into()).spawn(watch);
        thread.map(drop).map_err(|error| Error::os("starting a thread", error))
    }

    /// Asks, with `fds` beside it, and returns the answer; [`Error`] as the holder has it if it
    /// refuses.
    pub(super) fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(request, fds)?;
        let answer =
            self.channel.receive().and_then(|answer| answer.ok_or(ErrorKind::UnexpectedEof.into()));
        match answer.map_err(|error| self.lost(&error))? {
            (Answer::Refused(refusal), _) => Err(self.refused(refusal)),
            answer => Ok(answer),
        }
    }

    /// Asks for what is either done or refused.
    pub(super) fn order(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.ask(request, fds)? {
            (Answer::Done, _) => Ok(()),
            _ => Err(self.broken()),
        }
    }

    /// Asks for a number; all ones if there is nobody who says it.
    pub(super) fn value(&self, request: &Request) -> u64 {
        match self.ask(request, &[]) {
            Ok((Answer::Value(value), _)) => value,
            Ok(_) => {
                let _ = self.broken();
                u64::MAX
            }
            Err(_) => u64::MAX,
        }
    }

    /// Asks for what is not answered.
    pub(super) fn post(&self, request: &Request) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.send(request, &[]);
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if self.gone.load(Ordering::Acquire) {
            return Err(self.ended());
        }
        self.channel.send(request, fds).map_err(|error| self.lost(&error))
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Gone => Error::Gone,
            Refusal::Unsupported(text) => Error::Unsupported(text),
            Refusal::Invalid(text) => Error::Invalid(text),
            Refusal::Busy(text) => Error::Busy(text),
            Refusal::Failed(text) => Error::Claim(text),
        }
    }

    fn lost(&self, error: &io::Error) -> Error {
        if !self.gone.load(Ordering::Acquire) {
            tracing::warn!("{}: its lease has ended: {error}", self.name);
        }
        // Who watches sees the end, and tells.
        self.channel.close();
        self.ended()
    }

    fn ended(&self) -> Error {
        let name = &self.name;
        Error::Claim(format!(
            "{name}: its lease has ended, because its holder is gone or has taken it back: end \
            this process, and start one with a new lease"
        ))
    }

    /// The error of an answer that makes no sense: nothing that comes later would, either.
    pub(super) fn broken(&self) -> Error {
        self.lost(&ErrorKind::InvalidData.into())
    }
}

impl Drop for LeaseClient {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.channel.close();
    }
}
