//! A program in namespaces and a control group of its own.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::cgroup::Group;
use crate::child::{self, CloneArgs, Plan};

/// A program that was found once: what lies at its path later is another one.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    file: OwnedFd,
}

impl Program {
    /// What lies at `path` now.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let file = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { path, file })
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The part of the processors' time that groups have of which nobody says anything. [cgroup-v2,
/// cpu.weight]
pub const CPU_WEIGHT: u32 = 100;

/// What a process may use up. Where the machine has no cgroup v2 that can be written, memory is
/// limited to what is the process's alone (RLIMIT_DATA), and the rest is not: [`Child::unlimited`]
/// says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Names its control group; processes of one device share it.
    pub name: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Of one processor's time, in percent.
    pub cpu_percent: u32,
    /// Its part of the processors' time where others want it too, 1 to 10000; [`CPU_WEIGHT`] is
    /// usual.
    pub cpu_weight: u32,
    /// Threads and processes.
    pub pids: u32,
}

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    /// Its number, in the namespace of who has started it.
    pub pid: u32,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
    /// What of its limits the machine does not keep, in words.
    pub unlimited: Vec<String>,
}

/// Its own mounts, network, processes, messages and host name; and no handler of the parent's
/// signals.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;
/// [clone(2)]
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;
pub(crate) const INTO_CGROUP: u64 = 0x2_0000_0000;

/// Threads of all processes of the user, in case that no control group counts a device's.
const ALL_THREADS: u64 = 4096;

/// What of the environment a driver's process has.
const ENVIRONMENT: [&str; 2] = ["RING3_LOG", "RUST_BACKTRACE"];

/// Starts `program` with `argv`, each of `fds` at its place, no other descriptor, and next to no
/// environment. Needs root's right to make namespaces.
///
/// Returns once the program runs; what it is allowed beyond that is its own to give up, by
/// [`enter`](crate::enter()).
pub fn spawn(
    program: &Program,
    argv: &[CString],
    fds: &[(BorrowedFd<'_>, RawFd)],
    limits: &Limits,
) -> io::Result<Child> {
    let (unlimited, group) = match Group::of(limits) {
        Ok(mut group) => (std::mem::take(&mut group.missing), Some(group)),
        Err(error) => (vec![format!("only each process's own memory is limited: {error}")], None),
    };
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let environment: Vec<CString> =
        ENVIRONMENT.iter().filter_map(|name| variable(name, &env::var_os(name)?)).collect();
    let mut places: Vec<_> = fds.iter().map(|(fd, place)| (fd.as_raw_fd(), *place)).collect();
    let mut plan = Plan {
        program: program.as_fd().as_raw_fd(),
        argv: &child::pointers(argv),
        envp: &child::pointers(&environment),
        high: places.iter().map(|(_, place)| place + 1).max().unwrap_or(0),
        fds: &mut places,
        limits: &[
            (libc::RLIMIT_CORE, 0),
            (libc::RLIMIT_DATA, limits.memory),
            (libc::RLIMIT_NPROC, ALL_THREADS),
        ],
        report: write.as_raw_fd(),
    };
    let into = group.as_ref().map_or(0, |_| INTO_CGROUP);
    let birth = CloneArgs {
        flags: NAMESPACES | CLEAR_SIGHAND | into,
        group: group.as_ref().map_or(0, |group| group.as_fd().as_raw_fd()),
    };
    let (pid, pidfd) =
        child::start(&birth, &mut plan).map_err(|error| refused(program, "starting", error))?;
    // SAFETY: the kernel has just made it for this process.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    drop(write);
    spare_no_more(pid);
    let mut number = [0; size_of::<i32>()];
    if File::from(read).read_exact(&mut number).is_err() {
        return Ok(Child { pid, pidfd, unlimited });
    }
    // Without the one who waits for it, its end would stay.
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    Err(refused(program, "executing", io::Error::from_raw_os_error(i32::from_ne_bytes(number))))
}

/// What keeps this process from being chosen when memory runs out is not for one that was started
/// for what it may do wrong.
fn spare_no_more(pid: u32) {
    let own = fs::read_to_string("/proc/self/oom_score_adj")
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    if own.is_some_and(|own| own < 0) {
        // One that has ended already needs none.
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
    }
}

fn variable(name: &str, value: &OsStr) -> Option<CString> {
    CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
}

fn refused(program: &Program, doing: &str, error: io::Error) -> io::Error {
    let what = match error.raw_os_error() {
        Some(libc::EPERM) => " (namespaces need root, or CAP_SYS_ADMIN in a container)",
        _ => "",
    };
    io::Error::new(
        error.kind(),
        format!("{doing} {} in a sandbox: {error}{what}", program.path.display()),
    )
}
