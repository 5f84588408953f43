//! The process that outlives an exporting one by a moment, so that nothing of it ends before its
//! device is quiet; and the commands that wait for what is in flight.
//!
//! # Why another process
//! A command that registers memory waits in the kernel until all requests of the disk have ended.
//! Were it this process's, and were this process killed meanwhile, its open files could not be
//! closed before the command has ended, nor the command end before they are closed.
//!
//! # The next exporting process
//! Where the devices outlive their server (`--recoverable`), the kernel still knows clients' memory
//! when that has died, and hands its requests to the next server by the same indices. It forgets
//! none before these have ended, with the device locked, so nothing can be forgotten before there
//! is a next server. So the guard lives until then, and hands over what it keeps: memory, by index,
//! and the sockets of clients, which notice nothing.
//!
//! # Waiting
//! Without an end, for a function whose bus-master bit stays set after its owner has died: a line
//! of the log says so again and again. VFIO clears it when it is closed.

mod process;
mod protocol;
mod quiet;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ring3_lease::Channel;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Uid;

pub use process::run;
pub(super) use protocol::Key;
use protocol::{Order, Reply, VERSION};

use crate::attach::Source;

/// The hidden command that becomes a guard, whose standard input is the socket to who started it.
pub const COMMAND: &str = "share-guard";

/// How long it may take to answer: the kernel waits for what is in flight.
const PATIENCE: Duration = Duration::from_secs(130);

/// The function whose bus-master bit says whether the device of `source` may write memory; `None`
/// for one that ends with this process. Others cannot be watched.
pub(super) fn function(source: &Source) -> Result<Option<String>, ring3_device::Error> {
    let Source::Device(claim) = source else { return Ok(None) };
    let uri = &claim.device;
    match uri.scheme.as_str() {
        "vfio" => Ok(Some(uri.target.clone())),
        "sim" => Ok(None),
        scheme => Err(ring3_device::Error::Unsupported(format!(
            "sharing clients' memory with a device behind {scheme}: nobody could tell when it has \
            stopped writing there; --share is for vfio: (and sim:)"
        ))),
    }
}

/// Where the guard of who shares memory at `share` hears the next exporting process.
pub(super) fn successors(share: &Path) -> PathBuf {
    let mut path = share.as_os_str().to_owned();
    path.push(".guard");
    path.into()
}

/// The guard, as an exporting process has it.
pub(super) struct Guard {
    channel: Channel,
    /// If it was started by this process.
    child: Option<Child>,
}

/// What a dead exporting process has left.
#[derive(Default)]
pub(super) struct PreviousExporter {
    /// Memory that requests may lie in.
    pub regions: Vec<(Key, OwnedFd)>,
    /// Clients, and the memory that each was told is shared.
    pub clients: Vec<(Vec<Key>, OwnedFd)>,
}

impl Guard {
    /// Starts one for the device behind `function`. If the disks outlive this process, it hears the
    /// next one at `successors`.
    pub fn start(function: Option<String>, successors: Option<PathBuf>) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg0("@ring3")
            .arg(COMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // What a terminal sends to this process is not for it.
            .process_group(0)
            .spawn()?;
        let guard = Self { channel: Channel::new(ours, PATIENCE, true)?, child: Some(child) };
        guard.ask(&Order::Watch { function, successors }, &[]).map_err(io::Error::other)?;
        Ok(guard)
    }

    /// Goes on with the guard that listens at `successors`, and with what the server of
    /// `/dev/ublkb{id}` has left. Waits until the device of that is quiet.
    pub fn take_over(
        successors: &Path,
        function: Option<String>,
        id: u32,
    ) -> Result<(Self, PreviousExporter), String> {
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::CONNREFUSED) => format!(
                "{}: nobody keeps the memory that clients have shared with /dev/ublkb{id}; \
                 either it was started with another --share: say that, or its guard was killed, \
                 too: requests may lie in memory that nobody knows, so `ring3 ublk delete {id}`, \
                 and start anew",
                successors.display()
            ),
            _ => format!("{}: {error}", successors.display()),
        };
        let open = || -> io::Result<Channel> {
            let socket = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            connect(&socket, &SocketAddrUnix::new(successors)?)?;
            check_owner(socket_peercred(&socket)?.uid)?;
            Channel::new(socket, PATIENCE, true)
        };
        let guard = Self { channel: open().map_err(failed)?, child: None };
        let (Reply::TakenOver { ids }, _) =
            guard.ask(&Order::TakeOver { version: VERSION, function }, &[])?
        else {
            return Err("its guard does not answer as it should".into());
        };
        if !ids.contains(&id) {
            let kept =
                ids.iter().map(|id| format!("/dev/ublkb{id}")).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "the guard there is that of {kept}: say the --share that /dev/ublkb{id} was \
                started with"
            ));
        }
        let left = guard.left()?;
        Ok((guard, left))
    }

    fn left(&self) -> Result<PreviousExporter, String> {
        let mut left = PreviousExporter::default();
        while let (Reply::Region { key }, Some(fd)) =
            self.ask(&Order::Region { place: left.regions.len() }, &[])?
        {
            left.regions.push((key, fd));
        }
        while let (Reply::Client { keys }, Some(fd)) =
            self.ask(&Order::Client { place: left.clients.len() }, &[])?
        {
            left.clients.push((keys, fd));
        }
        Ok(left)
    }

    /// Has it keep `file`, `/dev/ublkcN`, open.
    pub fn hold(&self, id: u32, file: &File) -> Result<(), String> {
        self.ask(&Order::Hold { id }, &[file.as_fd()]).map(drop)
    }

    /// Registers memory that was checked with device `id`.
    pub fn register(&self, id: u32, memory: &OwnedFd, bytes: u64) -> Result<Key, String> {
        match self.ask(&Order::Register { id, bytes }, &[memory.as_fd()])? {
            (Reply::Registered { index }, _) => Ok(Key { id, index }),
            (reply, _) => Err(format!("the guard answers {reply:?}")),
        }
    }

    /// A client has heard that its memory is `keys`: the next exporting process hears it by the
    /// same socket.
    pub fn keep(&self, keys: Vec<Key>, client: BorrowedFd<'_>) -> Result<(), String> {
        self.ask(&Order::Keep { keys }, &[client]).map(drop)
    }

    /// When this returns well, no request lies in the memory `key` any more.
    pub fn forget(&self, key: Key) -> Result<(), String> {
        self.ask(&Order::Forget { key }, &[]).map(drop)
    }

    /// It has nothing to wait for.
    pub fn release(self) {
        if self.ask(&Order::Release, &[]).is_ok()
            && let Some(mut child) = self.child
        {
            let _ = child.wait();
        }
    }

    fn ask(
        &self,
        order: &Order,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Option<OwnedFd>), String> {
        let gone = |why: String| {
            format!("the guard of clients' memory has ended ({why}): start the export again")
        };
        self.channel.send(order, fds).map_err(|error| gone(error.to_string()))?;
        match self.channel.receive::<Reply>() {
            Ok(Some((Reply::Failed { reason }, _))) => Err(reason),
            Ok(Some((reply, mut fds))) => Ok((reply, fds.pop())),
            Ok(None) => Err(gone("it has closed its socket".into())),
            Err(error) => Err(gone(error.to_string())),
        }
    }
}

/// Fails if the process at the other end is neither this user's nor root's: what it says of
/// clients' memory is believed, and the socket's folder may be one in which others make files.
fn check_owner(uid: Uid) -> io::Result<()> {
    if uid.is_root() || uid == rustix::process::geteuid() {
        return Ok(());
    }
    let why = format!(
        "user {} listens there, and no guard of this user's: choose a folder in which nobody else \
        makes files",
        uid.as_raw()
    );
    Err(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Claim;

    #[test]
    fn a_guard_of_another_user_is_not_believed() {
        assert!(check_owner(Uid::ROOT).is_ok() && check_owner(rustix::process::geteuid()).is_ok());
        let other = Uid::from_raw(rustix::process::geteuid().as_raw() ^ 0x5555);
        assert!(check_owner(other).unwrap_err().to_string().contains("choose a folder"));
    }

    #[test]
    fn what_nobody_can_watch_shares_no_memory() {
        let of = |uri: &str| function(&Source::Device(Claim::new(uri.parse().unwrap())));
        assert_eq!(of("vfio:0000:01:00.0").unwrap().unwrap(), "0000:01:00.0");
        assert_eq!(of("sim:nvme").unwrap(), None);
        for uri in ["vfio-user:/run/x", "uio:0000:01:00.0", "qtest:nvme", "remote:/run/x"] {
            assert!(of(uri).unwrap_err().to_string().contains("--share"), "{uri}");
        }
    }
}
