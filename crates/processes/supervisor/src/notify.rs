//! What ring3d says to who started it: systemd, or `ring3d --hold`, by the protocol of sd_notify.
//!
//! # References
//! - `[SD-NOTIFY]` sd_notify(3), sd_pid_notify_with_fds(3), of systemd 252

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

/// Most descriptors beside one message.
const MAX_FDS: usize = 64;
/// How long a message may wait for room.
const SEND_LIMIT: Duration = Duration::from_secs(2);

/// The way to who started this process; nowhere if nobody listens.
#[derive(Debug)]
pub struct Notifier(Option<(OwnedFd, SocketAddrUnix)>);

impl Notifier {
    /// To the socket that `address` names, as `NOTIFY_SOCKET` does: a path, or a name that begins
    /// with `@`.
    pub fn to(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // Who does not listen must not stop us.
        set_socket_timeout(&socket, Timeout::Send, Some(SEND_LIMIT))?;
        Ok(Self(Some((socket, address))))
    }

    /// To nobody.
    pub fn silent() -> Self {
        Self(None)
    }

    /// To `NOTIFY_SOCKET`, if that is set.
    pub fn from_env() -> io::Result<Self> {
        std::env::var_os("NOTIFY_SOCKET").map_or(Ok(Self::silent()), |address| Self::to(&address))
    }

    /// Whether somebody listens.
    pub fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    /// Sends `text`, lines of `NAME=value`.
    pub fn send(&self, text: &str) -> io::Result<()> {
        self.send_with(text, &[])
    }

    /// Sends `text` with `fds` beside it.
    pub fn send_with(&self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some((socket, address)) = &self.0 else { return Ok(()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} descriptors beside one message", fds.len()),
            ));
        }
        sendmsg_addr(
            socket,
            address,
            &[IoSlice::new(text.as_bytes())],
            &mut beside,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// All devices of the manifests were looked at.
    pub fn ready(&self, status: &str) -> io::Result<()> {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)))
    }

    /// In words, for `systemctl status`.
    pub fn status(&self, status: &str) -> io::Result<()> {
        self.send(&format!("STATUS={}", one_line(status)))
    }

    /// It ends, in order.
    pub fn stopping(&self) -> io::Result<()> {
        self.send("STOPPING=1")
    }

    /// It lives: to be said at least as often as [`watchdog`] returns.
    pub fn alive(&self) -> io::Result<()> {
        self.send("WATCHDOG=1")
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// How often this process is to say that it lives, if anybody wants to know: half of what kills it.
/// [sd_watchdog_enabled(3)]
pub fn watchdog() -> Option<Duration> {
    let variable = |name| std::env::var(name).ok();
    interval(
        variable("WATCHDOG_USEC").as_deref(),
        variable("WATCHDOG_PID").as_deref(),
        std::process::id(),
    )
}

fn interval(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    usec?.parse().ok().filter(|&usec: &u64| usec > 0).map(|usec| Duration::from_micros(usec) / 2)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn states_arrive_as_lines_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("ring3-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets =
            [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&abstract_name).unwrap()];
        for (socket, address) in
            sockets.iter().zip([path.into_os_string(), format!("@{name}").into()])
        {
            let notifier = Notifier::to(&address).unwrap();
            notifier.ready("2 devices,\n1 absent").unwrap();
            let mut text = [0; 100];
            let len = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..len], b"READY=1\nSTATUS=2 devices, 1 absent");
        }
    }

    #[test]
    fn nobody_who_listens_is_no_error_and_one_who_has_gone_is() {
        assert!(Notifier::silent().ready("").is_ok());
        let folder = tempfile::tempdir().unwrap();
        assert!(Notifier::to(folder.path().join("gone").as_os_str()).unwrap().alive().is_err());
    }

    #[test]
    fn a_watchdog_is_ours_only_if_it_names_this_process_or_none() {
        assert_eq!(interval(Some("30000000"), None, 7), Some(Duration::from_secs(15)));
        assert_eq!(interval(Some("30000000"), Some("7"), 7), Some(Duration::from_secs(15)));
        for (usec, pid) in
            [(Some("30000000"), Some("8")), (Some("0"), None), (Some("x"), None), (None, None)]
        {
            assert_eq!(interval(usec, pid, 7), None);
        }
    }
}
