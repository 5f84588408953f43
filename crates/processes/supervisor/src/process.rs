//! One driver process, as the supervisor holds it.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_control::drive::{DriverCommand, DriverMessage, Prepare};
use ring3_lease::Channel;
use ring3_stats::Segment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::keeper::named;
use ring3_sandbox::{Child, Limits, Program, spawn};

/// Where the process finds the supervisor's socket.
const CONTROL: RawFd = 3;
/// How long it may take to take an order.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// Queues that can be watched.
pub const QUEUES: u16 = 128;

/// A driver process. Dropping it does not end it.
pub struct Process {
    child: Child,
    mounts: Option<OwnedFd>,
    control: Channel,
    words: io::PipeReader,
    /// Since when it says nothing more.
    closed: Option<Instant>,
    /// What it shows.
    pub stats: Arc<Segment>,
}

impl Process {
    /// Starts `program` with `argv`, and tells it what it is to be. It prepares for so many
    /// `queues` of all its disks.
    pub fn start(
        program: &Program,
        argv: &[CString],
        prepare: &Prepare,
        limits: &Limits,
        queues: u16,
    ) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let (words, out) = io::pipe()?;
        rustix::io::ioctl_fionbio(&words, true)?;
        let fds = [(out.as_fd(), 1), (out.as_fd(), 2), (theirs.as_fd(), CONTROL)];
        let stats = Arc::new(Segment::create(queues)?);
        let control = Channel::new(ours, SEND_LIMIT, true)?;
        let child = spawn(program, argv, &fds, limits)?;
        let process = Self { child, mounts: None, control, words, closed: None, stats };
        let prepared = process
            .order(&DriverCommand::Prepare(Box::new(prepare.clone())), &[process.stats.as_fd()]);
        prepared.inspect_err(|_| process.kill()).map(|()| process)
    }

    /// Process `pid`, which another supervisor has started, of what that has kept; `None` if
    /// anything is missing.
    pub fn adopt(pid: u32, kept: &mut BTreeMap<String, OwnedFd>) -> Option<Self> {
        let mut take = |what: &str| kept.remove(&format!("{pid}.{what}"));
        let (pidfd, control, words, stats) =
            (take("end")?, take("orders")?, take("words")?, take("stats")?);
        let control = Channel::new(control, SEND_LIMIT, true).ok()?;
        let stats = Arc::new(Segment::open(stats).ok()?);
        let child = Child { pid, pidfd, unlimited: Vec::new() };
        let mut process =
            Self { child, mounts: None, control, words: words.into(), closed: None, stats };
        process.keep_mounts();
        Some(process)
    }

    /// Keeps its namespace of mounts, as it is now, until this value is dropped: the last one to
    /// leave it waits for all processors, and the end of a driver should not.
    pub fn keep_mounts(&mut self) {
        let path = format!("/proc/{}/ns/mnt", self.pid());
        // Without it, it is the driver who waits. One that has ended by now may have been somebody
        // else, to whom its number was given.
        let mounts = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        self.mounts = mounts.filter(|_| !self.wait(Duration::ZERO));
    }

    /// What [`adopt`](Self::adopt) needs, by names.
    pub fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let pid = self.pid();
        let all = [
            named(pid, "end", &self.child.pidfd),
            named(pid, "orders", &self.control),
            named(pid, "words", &self.words),
            named(pid, "stats", &*self.stats),
        ];
        all.into_iter().flatten().collect()
    }

    /// Waits until it has ended; false if that takes longer than `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        poll(&mut [PollFd::new(&self.end(), PollFlags::IN)], limit.as_ref())
            .is_ok_and(|ready| ready > 0)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// What of its limits the machine does not keep.
    pub fn unlimited(&self) -> &[String] {
        &self.child.unlimited
    }

    /// Readable when it has ended.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }

    /// Readable when it has reported something; `None` if it says nothing more.
    pub fn reports(&self) -> Option<BorrowedFd<'_>> {
        self.closed.is_none().then(|| self.control.as_fd())
    }

    /// Since when it says nothing more: its end should follow.
    pub fn closed(&self) -> Option<Instant> {
        self.closed
    }

    /// Readable when it has written something.
    pub fn words(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// Tells it to do something, with `fds` beside.
    pub fn order(&self, order: &DriverCommand, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.control.send(order, fds)
    }

    /// What it has reported; `None` if it says nothing more.
    pub fn report(&mut self) -> io::Result<Option<(DriverMessage, Vec<OwnedFd>)>> {
        let report = self.control.receive();
        if !matches!(report, Ok(Some(_))) {
            self.closed = Some(Instant::now());
        }
        report
    }

    /// What it has written, as much as `buffer` holds; 0 if there is nothing now.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        match self.words.read(buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(_) => 0,
        }
    }

    /// Ends it, whatever it does.
    pub fn kill(&self) {
        kill(self.end());
    }

    /// How it has ended, in words; `None` if it has not.
    pub fn ended(&self) -> Option<String> {
        ended(self.end())
    }

    /// Whether somebody else has ended it, and not its own fault; before [`ended`](Self::ended) was
    /// asked. Of the signals that others send, SIGKILL alone ends the first process of a namespace.
    /// [pid_namespaces(7)]
    pub fn was_killed(&self) -> bool {
        let ended = waitid(
            WaitId::PidFd(self.end()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
        );
        let signal = ended.ok().flatten().and_then(|status| status.terminating_signal());
        signal == Some(Signal::KILL.as_raw())
    }
}

/// Ends a process, whatever it does.
pub(crate) fn kill(process: BorrowedFd<'_>) {
    if let Err(error) = pidfd_send_signal(process, Signal::KILL) {
        tracing::debug!(%error, "a process that has ended already");
    }
}

/// How a process has ended, in words; `None` if it has not.
pub(crate) fn ended(process: BorrowedFd<'_>) -> Option<String> {
    match waitid(WaitId::PidFd(process), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(Some(status)) => Some(match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => format!("was ended by signal {signal}{}", name(signal)),
            (_, Some(code)) => format!("ended with exit code {code}"),
            _ => "ended".into(),
        }),
        Ok(None) => None,
        // Not ours to wait for: another supervisor has started it.
        Err(_) => Some("ended".into()),
    }
}

fn name(signal: i32) -> &'static str {
    let names = [
        (4, " (SIGILL)"),
        (6, " (SIGABRT)"),
        (7, " (SIGBUS)"),
        (9, " (SIGKILL)"),
        (11, " (SIGSEGV)"),
        (15, " (SIGTERM)"),
        (31, " (SIGSYS)"),
    ];
    names.iter().find_map(|&(number, name)| (number == signal).then_some(name)).unwrap_or_default()
}
