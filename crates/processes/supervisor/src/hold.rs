//! `ring3d --hold`: a process that keeps descriptors for ring3d, starts it, and starts it again
//! when it dies; for machines without systemd, and nothing else.
//!
//! # Trust
//! Only root reaches the folder in which its socket is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use ring3_process::{PendingSignals, Signals, marked};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::listen;

/// Descriptors that are kept at most.
const MOST: usize = 4096;
/// Most bytes and most descriptors of a message.
const MESSAGE: (usize, usize) = (4096, 64);
/// Between a death and the next start: the first time, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// With this, a ring3d ends that has left its devices to the next one.
pub const REPLACE: u8 = 75;
/// Whoever lived so long has not died of its start.
const SETTLED: Duration = Duration::from_secs(30);

/// What is kept, the oldest first.
#[derive(Debug, Default)]
pub struct FdStore {
    kept: Vec<(String, OwnedFd)>,
    /// A ring3d has once been ready.
    ready: bool,
}

impl FdStore {
    /// Does what a message asks for; what it says beside that is of no interest here.
    pub fn take(&mut self, message: &str, fds: Vec<OwnedFd>) {
        let values: BTreeMap<_, _> =
            message.lines().filter_map(|line| line.split_once('=')).collect();
        self.ready |= values.get("READY") == Some(&"1");
        let name = *values.get("FDNAME").unwrap_or(&"stored");
        if values.get("FDSTOREREMOVE") == Some(&"1") {
            self.kept.retain(|(kept, _)| kept != name);
        } else if values.get("FDSTORE") == Some(&"1") && !name.contains(':') {
            let room = MOST.saturating_sub(self.kept.len());
            if fds.len() > room {
                tracing::error!("{name} is not kept: there are {MOST} descriptors already");
            }
            self.kept.extend(fds.into_iter().take(room).map(|fd| (name.to_owned(), fd)));
        }
    }

    /// The names, as `LISTEN_FDNAMES` has them.
    pub fn names(&self) -> String {
        self.kept.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(":")
    }

    /// All that is kept.
    #[cfg(test)]
    pub(crate) fn into_kept(self) -> Vec<(String, OwnedFd)> {
        self.kept
    }

    /// Copies for a process to be started.
    fn copies(&self) -> io::Result<Vec<FdMapping>> {
        let copy = |(at, (_, fd)): (usize, &(String, OwnedFd))| {
            Ok(FdMapping { parent_fd: fd.try_clone()?, child_fd: listen::FIRST + at as i32 })
        };
        self.kept.iter().enumerate().map(copy).collect()
    }
}

/// Who keeps, and whom for.
pub struct Holder {
    program: PathBuf,
    args: Vec<OsString>,
    address: PathBuf,
    socket: UnixDatagram,
    shelf: FdStore,
}

impl Holder {
    /// Will start `program` with `args`, and listen in `folder`, which is its own.
    pub fn new(program: PathBuf, args: Vec<OsString>, folder: &Path) -> io::Result<Self> {
        let address = folder.join("notify");
        let socket = UnixDatagram::bind(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { program, args, address, socket, shelf: FdStore::default() })
    }

    /// Starts it, and again whenever it dies; returns when it has ended with 0, or after a signal
    /// said so, or by itself before it was ever ready.
    pub fn run(mut self, signals: &Signals) -> io::Result<ExitStatus> {
        let mut pause = PAUSES.0;
        loop {
            let since = Instant::now();
            let mut child = self.start()?;
            let (status, told) = self.watch(&mut child, signals)?;
            if told || status.success() {
                return Ok(status);
            }
            if status.code() == Some(REPLACE.into()) {
                pause = PAUSES.0;
                continue;
            }
            if !self.shelf.ready && status.code().is_some() {
                return Ok(status);
            }
            pause = if since.elapsed() > SETTLED { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
            let kept = self.shelf.kept.len();
            tracing::error!(
                "ring3d has died ({status}) and is started again in {pause:?}; {kept} descriptors \
                are kept for it"
            );
            if self.sleep(pause, signals)? {
                return Ok(status);
            }
        }
    }

    fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg0(marked(&self.program))
            .args(&self.args)
            .env("NOTIFY_SOCKET", &self.address)
            .env("FDSTORE", MOST.to_string());
        // Its own number it will find as its parent's: see `listen`.
        command.env("LISTEN_PID", std::process::id().to_string());
        command
            .env("LISTEN_FDS", self.shelf.kept.len().to_string())
            .env("LISTEN_FDNAMES", self.shelf.names());
        command.fd_mappings(self.shelf.copies()?).map_err(io::Error::other)?;
        command.spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("starting {}: {error}", self.program.display()))
        })
    }

    /// Keeps what `child` sends until it has ended; true if a signal has said that it should.
    fn watch(&mut self, child: &mut Child, signals: &Signals) -> io::Result<(ExitStatus, bool)> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let mut told = false;
        loop {
            let mut fds = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&process, PollFlags::IN),
                PollFd::new(signals, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ended = !fds[1].revents().is_empty();
            told |= pass_on(signals.take_pending(), &process);
            // After it has ended, too: what it has sent last is there.
            while let Some((message, fds)) = receive(&self.socket)? {
                self.shelf.take(&message, fds);
            }
            if ended {
                return Ok((child.wait()?, told));
            }
        }
    }

    /// Waits for `pause`; true if a signal ends it.
    fn sleep(&self, pause: Duration, signals: &Signals) -> io::Result<bool> {
        let limit = Timespec::try_from(pause).ok();
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], limit.as_ref());
        // What is to be replaced has died already.
        Ok(signals.take_pending().stop)
    }
}

/// Tells `process` what is wished: to stop, or to leave its devices to the next one. Whether it is
/// to stop.
fn pass_on(pending: PendingSignals, process: &OwnedFd) -> bool {
    for (wished, signal) in [(pending.hang_up, Signal::HUP), (pending.stop, Signal::TERM)] {
        // It may have ended.
        let _ = wished.then(|| pidfd_send_signal(process, signal));
    }
    pending.stop
}

/// The next message at `socket`, which does not block, with what came beside it; an empty one in
/// place of one that makes no sense.
pub(crate) fn receive(socket: &UnixDatagram) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE.0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE.1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = match recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut beside,
        RecvFlags::CMSG_CLOEXEC,
    ) {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(Errno::INTR) => return Ok(Some(Default::default())),
        Err(error) => return Err(error.into()),
    };
    let rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        tracing::error!(
            "a message of ring3d's is too large, or this process has no descriptor left; it is not \
            kept"
        );
        return Ok(Some(Default::default()));
    }
    let text = std::str::from_utf8(&bytes[..received.bytes]);
    Ok(Some(text.map(|text| (text.to_owned(), fds)).unwrap_or_default()))
}

/// Holds `program`, started with `args`, until it has ended in order.
pub fn hold(program: PathBuf, args: Vec<OsString>) -> io::Result<ExitStatus> {
    let signals = Signals::take()?;
    ring3_process::raise_files();
    let folder = tempfile::Builder::new().prefix("ring3d.").tempdir_in(runtime())?;
    Holder::new(program, args, folder.path())?.run(&signals)
}

/// A folder for what lives as long as the machine runs.
fn runtime() -> PathBuf {
    let run = Path::new("/run");
    if rustix::fs::access(run, rustix::fs::Access::WRITE_OK).is_ok() {
        run.into()
    } else {
        std::env::temp_dir()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use serde_json::json;

    use super::*;
    use crate::notify::Notifier;
    use crate::store::Store;

    fn memory() -> OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn what_is_stored_is_kept_under_its_name_until_it_is_removed() {
        let mut shelf = FdStore::default();
        shelf.take("FDSTORE=1\nFDNAME=a/device\nFDPOLL=0", vec![memory()]);
        shelf.take("FDSTORE=1\nFDNAME=a/turn", vec![memory()]);
        shelf.take("FDSTORE=1", vec![memory()]);
        assert_eq!(shelf.names(), "a/device:a/turn:stored");
        shelf.take("FDSTOREREMOVE=1\nFDNAME=a/turn", Vec::new());
        assert_eq!(shelf.names(), "a/device:stored");
    }

    #[test]
    fn what_is_no_order_is_not_kept() {
        let mut shelf = FdStore::default();
        for message in [
            "",
            "READY=1",
            "FDNAME=a",
            "FDSTORE=0\nFDNAME=a",
            "FDSTORE=1\nFDNAME=a:b",
            "\n=\nFDSTORE",
        ] {
            shelf.take(message, vec![memory()]);
        }
        assert_eq!(shelf.names(), "");
    }

    /// Says to this program that it is ring3d, and where it writes what it has found.
    const CHILD: &str = "RING3_TEST_HELD";

    /// Two lives of a ring3d: the first keeps something and is killed, the second finds it.
    fn life(results: &Path) {
        let (store, mut records, _) = Store::open(Notifier::from_env().unwrap(), listen::take());
        let lives = fs::read_to_string(results).unwrap_or_default();
        let Some(record) = records.remove("scratch") else {
            fs::write(results, format!("{lives}fresh ")).unwrap();
            let memory = memory();
            rustix::io::write(&memory, b"kept").unwrap();
            store.keep("scratch", &json!({"pid": 7}), &[("device", &memory)]).unwrap();
            Notifier::from_env().unwrap().ready("").unwrap();
            rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            unreachable!()
        };
        let mut bytes = [0; 4];
        rustix::io::pread(record.fds["device"].as_fd(), &mut bytes, 0).unwrap();
        fs::write(
            results,
            format!("{lives}{} {}", record.facts["pid"], String::from_utf8_lossy(&bytes)),
        )
        .unwrap();
    }

    #[test]
    fn a_ring3d_that_is_killed_is_started_again_and_finds_what_it_had() {
        if let Some(results) = std::env::var_os(CHILD) {
            return life(Path::new(&results));
        }
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("results");
        let name = "hold::tests::a_ring3d_that_is_killed_is_started_again_and_finds_what_it_had";
        let script = format!(
            "{CHILD}={} exec {} --exact {name}",
            results.display(),
            std::env::current_exe().unwrap().display()
        );
        let args = ["-c", &script].map(OsString::from).to_vec();
        let holder = Holder::new("/bin/sh".into(), args, folder.path()).unwrap();
        let status = holder.run(&Signals::take().unwrap()).unwrap();
        assert!(status.success());
        assert_eq!(fs::read_to_string(&results).unwrap(), "fresh 7 kept");
    }

    #[test]
    fn a_ring3d_that_leaves_its_devices_to_the_next_one_is_followed_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("mkdir {}/once && exit 75; exit 0", folder.path().display());
        let holder = Holder::new(
            "/bin/sh".into(),
            ["-c", &script].map(OsString::from).to_vec(),
            folder.path(),
        )
        .unwrap();
        assert!(holder.run(&Signals::take().unwrap()).unwrap().success());
        assert!(folder.path().join("once").is_dir());
    }

    #[test]
    fn a_hang_up_is_passed_on_as_one_and_only_a_stop_ends_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        for (pending, ends) in [
            (PendingSignals { hang_up: true, ..PendingSignals::default() }, (false, 75)),
            (PendingSignals { stop: true, ..PendingSignals::default() }, (true, 0)),
        ] {
            let ready = folder.path().join(format!("ready {}", pending.stop));
            let script =
                "trap 'exit 75' HUP; trap 'exit 0' TERM; : >\"$0\"; while :; do sleep 0.01; done";
            let mut child =
                Command::new("/bin/sh").args(["-c", script]).arg(&ready).spawn().unwrap();
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            assert_eq!(
                (pass_on(pending, &process), child.wait().unwrap().code()),
                (ends.0, Some(ends.1))
            );
        }
    }

    #[test]
    fn a_ring3d_that_ends_by_itself_before_it_was_ready_is_not_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let holder = Holder::new(
            "/bin/sh".into(),
            ["-c", "exit 3"].map(OsString::from).to_vec(),
            folder.path(),
        )
        .unwrap();
        assert_eq!(holder.run(&Signals::take().unwrap()).unwrap().code(), Some(3));
    }
}
