//! The partitions of a disk. The kernel looks for none on a disk whose server it does not trust,
//! and a driver in its sandbox is not trusted.
//!
//! # Shape
//! A [`Watch`] is a thread of a disk that has users. It has the table read when it begins and
//! whenever somebody who could write the disk has closed it, as udev does, and tells the kernel
//! what there is.
//!
//! # Trust
//! A table is what a device, or whoever had it before, says. The one who reads it is a process that
//! can do nothing else, as drivers are; what it answers is checked before it is believed.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_partitions::{Found, check, kernel};
use ring3_process::log::plain;
use ring3_sandbox::{CPU_WEIGHT, Child, Limits, Program, spawn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::links;

/// How long nobody must have closed a disk before it is looked at.
const QUIET: Duration = Duration::from_millis(200);
/// How long a table may take to be read. The disk's driver may die meanwhile.
const READ: Duration = Duration::from_secs(60);
/// How long the thread may take to hear of its end. It may wait for a disk that only goes on once
/// it is gone.
const END: Duration = Duration::from_secs(1);
/// Most bytes of an answer: 128 partitions in words, and more.
const ANSWER: u64 = 64 << 10;
/// What the process may use up that reads a table.
const MEMORY: u64 = 64 << 20;

/// Which disk.
pub struct Of {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Under `/dev/ring3`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of its logical blocks.
    pub block: u32,
    /// `ring3-driver`, which reads a table, too.
    pub program: Arc<Program>,
}

/// Why a table is not used.
pub type Refused = Arc<Mutex<Option<String>>>;

/// Keeps the kernel's partitions of a disk what its table says, until it is dropped.
pub struct Watch {
    stop: Arc<OwnedFd>,
    ended: Receiver<()>,
    /// Why its table is not used.
    refused: Refused,
    /// Its table was read once.
    was_read: Arc<AtomicBool>,
}

impl Watch {
    /// Begins with a look.
    pub fn start(of: Of) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (tell, ended) = channel::<()>();
        let (refused, was_read) = (Refused::default(), Arc::<AtomicBool>::default());
        let mut thread = Watching {
            of,
            stop: stop.clone(),
            refused: refused.clone(),
            was_read: was_read.clone(),
        };
        std::thread::Builder::new().name("partitions".into()).spawn(move || {
            if let Err(error) = thread.watch() {
                thread.refuse(Some(format!("it is not watched: {error}")));
                thread.was_read.store(true, Ordering::Release);
            }
            drop(tell);
        })?;
        Ok(Self { stop, ended, refused, was_read })
    }

    /// Whether its table was read since it began.
    pub fn was_read(&self) -> Arc<AtomicBool> {
        self.was_read.clone()
    }

    /// Why its table is not used; `None` if it is, or there is none.
    pub fn refused(&self) -> Refused {
        self.refused.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        let _ = self.ended.recv_timeout(END);
    }
}

struct Watching {
    of: Of,
    stop: Arc<OwnedFd>,
    refused: Refused,
    was_read: Arc<AtomicBool>,
}

impl Watching {
    fn disk(&self) -> String {
        format!("ublkb{}", self.of.id)
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/dev").join(self.disk())
    }

    fn watch(&mut self) -> io::Result<()> {
        let closed = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&closed, self.path(), inotify::WatchFlags::CLOSE_WRITE)?;
        loop {
            let read = self.probe();
            self.refuse(read.err());
            self.was_read.store(true, Ordering::Release);
            self.wait(&closed, None)?;
            // Whoever writes a table closes the disk more than once.
            while !self.is_over() && self.wait(&closed, Some(QUIET))? {
                while rustix::io::read(&closed, &mut [0; 4096]).is_ok() {}
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// Until `fd` is readable: true; or it is over, or time is.
    fn wait(&self, fd: &impl AsFd, limit: Option<Duration>) -> io::Result<bool> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => Ok(!fds[0].revents().is_empty() && fds[1].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn is_over(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*self.stop, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn refuse(&self, why: Option<String>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = why.as_ref().filter(|why| refused.as_ref() != Some(why)) {
            tracing::warn!("the partition table of {} is not used: {why}", self.of.name);
        }
        *refused = why;
    }

    /// Reads the partition table, and passes the partitions to the kernel.
    fn probe(&self) -> Result<(), String> {
        let no_block = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let disk = OpenOptions::new()
            .read(true)
            .custom_flags(no_block)
            .open(self.path())
            .map_err(|error| error.to_string())?;
        let Some(answer) = self.ask(&disk)? else { return Ok(()) };
        let partitions = match serde_json::from_slice(&answer)
            .map_err(|_| "its reader makes no sense".to_owned())?
        {
            Found::Partitions(partitions) => partitions,
            Found::Damaged(why) => return Err(plain(&why.chars().take(200).collect::<String>())),
        };
        check(&partitions, self.of.bytes, self.of.block)?;
        let told = kernel::tell(&disk, &self.disk(), &partitions);
        if told != Ok(false) {
            links::set(&self.of.name, &self.disk())
                .map_err(|error| format!("its names cannot be made: {error}"))?;
        }
        told.map(drop)
    }

    /// What the process says that reads the table; `None` if that is wanted no more.
    fn ask(&self, disk: &File) -> Result<Option<Vec<u8>>, String> {
        let failed = |error: io::Error| format!("its reader cannot be started: {error}");
        let (answer, says) = io::pipe().map_err(failed)?;
        let words = ["ring3-driver".into(), "partitions".into(), self.of.block.to_string()]
            .map(CString::new);
        let argv =
            words.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        // No device has a `+` in its name, and so none has this group.
        let limits = Limits {
            name: format!("{}+table", self.of.name),
            memory: MEMORY,
            cpu_percent: 50,
            cpu_weight: CPU_WEIGHT,
            pids: 4,
        };
        let child =
            spawn(&self.of.program, &argv, &[(disk.as_fd(), 0), (says.as_fd(), 1)], &limits)
                .map_err(failed)?;
        drop(says);
        let ended = self.wait(&child.pidfd, Some(READ));
        if !matches!(ended, Ok(true)) {
            let _ = pidfd_send_signal(&child.pidfd, Signal::KILL);
        }
        let how = end(&child);
        let mut bytes = Vec::new();
        match ended {
            Ok(true) if how == Some(0) => {
                answer.take(ANSWER).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                Ok(Some(bytes))
            }
            _ if self.is_over() => Ok(None),
            Ok(true) => Err("its reader has ended without an answer".into()),
            _ => Err(format!("it could not be read within {READ:?}")),
        }
    }
}

/// The exit code, if it has one.
fn end(child: &Child) -> Option<i32> {
    waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED).ok()??.exit_status()
}
