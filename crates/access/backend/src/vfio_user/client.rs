//! The connection to a server: requests, each answered within a time.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_device::Error;
use ring3_model::vfio_user::Channel;
use ring3_spec::vfio_user::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::config::Store;

/// How long an answer may take. A server does the work of a doorbell before it answers the next
/// request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// What reads a message off the front of bytes.
type Parser<T> = fn(&[u8]) -> Option<(T, &[u8])>;

/// A connected server. Dropping it ends the connection, and with it everything that the server did
/// for us.
pub(super) struct Client {
    name: String,
    channel: Arc<Channel>,
    /// The number of the next request; held from a request to its answer.
    next: Mutex<u16>,
    gone: Arc<AtomicBool>,
}

impl Client {
    /// Connects to the server at `path` and agrees on a version; `removal` is signalled when the
    /// server goes.
    pub(super) fn connect(path: &str, removal: OwnedFd) -> Result<Self, Error> {
        let name = format!("vfio-user:{path}");
        let stream = UnixStream::connect(path)
            .map_err(|error| Error::os(format!("{name}: {}", remedy(&error)), error))?;
        let failed =
            |error| Error::os(format!("vfio-user:{path}: preparing the connection"), error);
        let channel = Arc::new(Channel::new(stream, ANSWER_LIMIT).map_err(failed)?);
        let client = Self { name, channel, next: Mutex::new(0), gone: Arc::default() };
        client.agree()?;
        client.watch(removal).map_err(failed)?;
        Ok(client)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn agree(&self) -> Result<(), Error> {
        let (major, minor) = VERSION;
        let can = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_DATA}}}}}\0"
        );
        let ours = [&Version { major, minor }.to_bytes()[..], can.as_bytes()].concat();
        let theirs =
            self.ask(command::VERSION, &ours, Version::take).map_err(|error| match &error {
                Error::Os { source, .. } if Errno::from_io_error(source) == Some(Errno::BUSY) => {
                    Error::Busy(format!("{} serves another process: end that first", self.name))
                }
                Error::Gone => Error::Claim(format!(
                    "{}: what listens there does not answer as a vfio-user server",
                    self.name
                )),
                _ => error,
            })?;
        if theirs.major == major {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "{}: it speaks version {}.{}, this is {major}.{minor}",
            self.name, theirs.major, theirs.minor
        )))
    }

    /// Notices the end of the connection though nobody asks for anything.
    fn watch(&self, removal: OwnedFd) -> io::Result<()> {
        let (channel, gone) = (Arc::clone(&self.channel), Arc::clone(&self.gone));
        let watch = move || {
            while matches!(
                poll(&mut [PollFd::new(&*channel, PollFlags::RDHUP)], None),
                Err(Errno::INTR)
            ) {}
            gone.store(true, Ordering::Release);
            // It can only fail when the count is at its maximum, and then it is signalled already.
            let _ = rustix::io::write(&removal, &1u64.to_ne_bytes());
        };
        std::thread::Builder::new().name("ring3-vfio-user".into()).spawn(watch).map(drop)
    }

    /// Sends a request and returns what its answer carries. After a failure of the connection,
    /// everything is [`Error::Gone`].
    pub(super) fn request(
        &self,
        command: u16,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Error> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let id = self.send(&mut next, command, 0, parts, fds)?;
        let answer =
            self.channel.receive().and_then(|answer| answer.ok_or(ErrorKind::UnexpectedEof.into()));
        let (header, body) = answer.map_err(|error| self.lost(&error))?;
        if (header.id, header.command, header.flags & TYPE) != (id, command, REPLY) {
            return Err(self.broken("an answer to something else"));
        }
        if header.flags & ERROR == 0 {
            return Ok(body.bytes);
        }
        let error = io::Error::from_raw_os_error(i32::try_from(header.error).unwrap_or(0));
        Err(Error::os(
            format!("{}: its server refuses command {command}, and its log says why", self.name),
            error,
        ))
    }

    fn send(
        &self,
        next: &mut u16,
        command: u16,
        flags: u32,
        parts: [&[u8]; 2],
        fds: &[BorrowedFd<'_>],
    ) -> Result<u16, Error> {
        if self.gone.load(Ordering::Acquire) {
            return Err(Error::Gone);
        }
        let id = *next;
        *next = next.wrapping_add(1);
        let header = Header { id, command, len: 0, flags, error: 0 };
        self.channel.send(header, parts, fds).map_err(|error| self.lost(&error))?;
        Ok(id)
    }

    /// Asks `question`, whose answer has its form.
    pub(super) fn ask<T>(
        &self,
        command: u16,
        question: &[u8],
        take: Parser<T>,
    ) -> Result<T, Error> {
        let answer = self.request(command, [question, &[]], &[])?;
        take(&answer)
            .map(|(info, _)| info)
            .ok_or_else(|| self.broken("an answer that is too short"))
    }

    /// Reads a part of a region; false if there is nothing.
    pub(super) fn read(&self, region: u32, offset: u64, bytes: &mut [u8]) -> bool {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        let Ok(answer) = self.request(command::REGION_READ, [&access.to_bytes(), &[]], &[]) else {
            return false;
        };
        match RegionAccess::take(&answer) {
            Some((_, data)) if data.len() == bytes.len() => bytes.copy_from_slice(data),
            _ => return false,
        }
        true
    }

    /// Writes a part of a region and waits until that has happened; not if there is nobody any
    /// more.
    pub(super) fn write(&self, region: u32, offset: u64, bytes: &[u8]) {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        // A refusal says what a read would: that there is nothing.
        let _ = self.request(command::REGION_WRITE, [&access.to_bytes(), bytes], &[]);
    }

    /// Writes a part of a region, posted as on a bus: whatever is asked later comes behind it.
    pub(super) fn post(&self, region: u32, offset: u64, bytes: &[u8]) {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let _ =
            self.send(&mut next, command::REGION_WRITE, NO_REPLY, [&access.to_bytes(), bytes], &[]);
    }

    fn lost(&self, error: &io::Error) -> Error {
        if !self.gone.swap(true, Ordering::AcqRel) {
            tracing::warn!("{}: its server is gone: {error}", self.name);
        }
        self.channel.close();
        Error::Gone
    }

    /// The error of an answer that makes no sense: nothing that comes later would, either.
    fn broken(&self, what: &str) -> Error {
        let _ = self.lost(&io::Error::new(ErrorKind::InvalidData, what));
        Error::Protocol(format!("{}: {what}", self.name))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.channel.close();
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "connecting (nobody listens there: ring3 model nvme --socket PATH)"
        }
        ErrorKind::PermissionDenied => {
            "connecting (only the user whose server it is may: run as that one)"
        }
        _ => "connecting",
    }
}

/// Configuration space behind the socket.
pub(super) struct Remote(pub(super) Arc<Client>);

impl Store for Remote {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        self.0.read(CONFIG_REGION, offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(CONFIG_REGION, offset, bytes);
        Ok(())
    }
}
