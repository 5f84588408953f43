//! The user half of a split driver: a process that is started again when it dies or hangs.
//!
//! # Shape
//! A [`start`]ed keeper is a thread as a device's is, with the same restart policy, states and log.
//! It has nothing to claim, to fence or to export: the device is the kernel half's, which goes on
//! meanwhile, and a user half keeps nothing that the next one needs.
//!
//! # Trust
//! The process is in a sandbox that it makes itself, before any code of the driver runs
//! (split/runtime/user/confine.c), in the namespaces and the control group that it is started in.
//! It has its log and /dev/ring3-split. Whether it answers, the kernel says.
//!
//! # Survival
//! It ends with the thread that has started it, and so with ring3d: the next ring3d starts another
//! one, for which upcalls wait `grace_ms` of the run time.

mod kernel;
mod process;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ring3_control::admin::Reply;
use ring3_control::status::State;
use ring3_sandbox::Program;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::journal::seconds;
use crate::keeper::{Handle, KeeperCommand, KeeperRequest, PublishedState};
use crate::manifest::UserHalf;
use crate::policy::{Budget, RestartPolicy};
use process::Process;

/// Between two looks at what the kernel says.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes that it may write between two looks; it waits with what is more.
const WORDS: usize = 256 << 10;
/// How long one that was killed may take to end.
const END: Duration = Duration::from_secs(5);
/// Between two looks at one that is waited for.
const PROMPT: Duration = Duration::from_millis(5);

/// What its user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HalfGoal {
    Run,
    Stop,
    /// It has died too often: nothing is tried before a user asks for it.
    Fail,
}

struct Keeper {
    half: UserHalf,
    policy: RestartPolicy,
    program: Program,
    shared: Arc<PublishedState>,
    asked: KeeperRequest,
    goal: HalfGoal,
    budget: Budget,
    process: Option<Process>,
    /// It has attached to its kernel half.
    attached: bool,
    looked: Instant,
    words: usize,
    ending: bool,
}

/// Starts a keeper of `half`; its program lies beside `own`, that of ring3's drivers, if it does
/// not name one.
pub fn start(half: UserHalf, own: &Program) -> io::Result<Handle> {
    let (program, name) = (process::program(own, &half)?, half.name.clone());
    let shared = Arc::new(PublishedState::new(&name, &format!("split:{name}")));
    let state = shared.clone();
    let make = |asked| {
        Ok(Keeper {
            policy: half.policy(),
            half,
            program,
            shared: state,
            asked,
            goal: HalfGoal::Run,
            budget: Budget::default(),
            process: None,
            attached: false,
            looked: Instant::now(),
            words: 0,
            ending: false,
        })
    };
    Handle::start(&name, shared, make, Keeper::live)
}

impl Keeper {
    fn live(mut self) {
        while !self.ending {
            self.reap();
            self.begin();
            self.poll();
            self.show();
            self.wait();
        }
    }

    /// Starts a process, if one is wanted now.
    fn begin(&mut self) {
        let now = Instant::now();
        if self.goal != HalfGoal::Run || self.process.is_some() || self.pauses_until(now).is_some()
        {
            return;
        }
        let device = match kernel::open() {
            Ok(Some(device)) => device,
            Ok(None) => return,
            Err(error) => return self.fails(&format!("no user half could be started: {error}")),
        };
        match Process::start(&self.program, &self.half, &device) {
            Ok(process) => {
                process.unlimited().iter().for_each(|what| self.note_once(what));
                self.shared.status().unlimited = process.unlimited().to_vec();
                self.process = Some(process);
            }
            Err(error) => self.fails(&format!("no user half could be started: {error}")),
        }
    }

    /// Until when the next start waits, if it does.
    fn pauses_until(&self, now: Instant) -> Option<Instant> {
        self.budget.pause.filter(|&pause| now < pause)
    }

    /// One has died, or could not be started.
    fn fails(&mut self, why: &str) {
        self.note(why);
        self.budget.spend(&self.policy, Instant::now(), self.attached);
        self.attached = false;
        if self.budget.is_exhausted() {
            self.goal = HalfGoal::Fail;
            self.note(&format!(
                "it has died too often; ring3 restart {} tries again",
                self.half.name
            ));
        }
    }

    /// Takes leave of one that has ended.
    fn reap(&mut self) {
        let Some(how) = self.process.as_ref().and_then(Process::ended) else { return };
        let Some(mut process) = self.process.take() else { return };
        while self.read_log(&mut process) > 0 {}
        self.shared.journal().ended(process.pid());
        let how = format!("user half {} {how}", process.pid());
        self.shared.status().last_end = Some(how.clone());
        if self.goal != HalfGoal::Run || how.ends_with("exit code 0") {
            // Stopped, or its kernel half is unloaded.
            self.attached = false;
            return self.note(&how);
        }
        self.shared.status().restarts += 1;
        self.fails(&how);
    }

    /// Polls whether the user half answers, and resets its limit of log lines.
    fn poll(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK {
            (self.looked, self.words) = (now, 0);
        }
        let Some(process) = &self.process else { return };
        let Some(half) = kernel::half_of(&self.half.name) else { return self.attached = false };
        if half.attached && !self.attached {
            self.attached = true;
            self.budget.serves();
        }
        if half.attached && half.unanswered > 0 {
            self.note(&format!(
                "user half {} is taken for dead: it has not answered in time",
                process.pid()
            ));
            self.kill();
        }
    }

    fn kill(&mut self) {
        if let Some(process) = self.process.as_ref().filter(|process| !process.kill(END)) {
            self.note(&format!(
                "user half {} was killed and does not end: the kernel works for it",
                process.pid()
            ));
        }
    }

    /// Until something happens, or it is time to look.
    fn wait(&mut self) {
        let now = Instant::now();
        let wakes = self.pauses_until(now).into_iter().chain([self.looked + LOOK]).min();
        let timeout =
            wakes.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(self.asked.as_fd(), PollFlags::IN)];
        if let Some(process) = &self.process {
            fds.push(PollFd::from_borrowed_fd(process.end(), PollFlags::IN));
            if self.words < WORDS {
                fds.push(PollFd::from_borrowed_fd(process.words(), PollFlags::IN));
            }
        }
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let (asked, spoken) =
            (!fds[0].revents().is_empty(), fds.get(2).is_some_and(|fd| !fd.revents().is_empty()));
        if let Some(mut process) = self.process.take_if(|_| spoken) {
            let read = self.read_log(&mut process);
            self.words += if read == 0 { WORDS } else { read };
            self.process = Some(process);
        }
        if asked {
            self.asked.take().into_iter().for_each(|ask| self.handle_command(ask));
        }
    }

    fn read_log(&self, process: &mut Process) -> usize {
        let mut buffer = [0; 4096];
        let read = process.read(&mut buffer);
        self.shared.journal().written(process.pid(), &buffer[..read]);
        read
    }

    fn handle_command(&mut self, ask: KeeperCommand) {
        match ask {
            KeeperCommand::Rescan | KeeperCommand::ForceStop | KeeperCommand::Wake => {}
            // The kernel freezes its user half, and its kernel half is put to sleep by the kernel.
            KeeperCommand::Sleep { answer, .. } => answer(Reply::Done),
            KeeperCommand::Restart(answer) => {
                self.start_anew();
                answer(Reply::Done);
            }
            // Nobody uses it as a disk is used: its kernel half goes on.
            KeeperCommand::Stop { answer, .. } => {
                self.stop();
                answer(Reply::Done);
            }
            KeeperCommand::Upgrade { program, answer } => answer(self.upgrade(program)),
            KeeperCommand::Leave => {
                self.stop();
                self.ending = true;
            }
            KeeperCommand::End { answer, .. } => {
                self.stop();
                self.ending = true;
                answer(Reply::Done);
            }
        }
    }

    fn start_anew(&mut self) {
        self.end();
        (self.goal, self.budget) = (HalfGoal::Run, Budget::default());
        self.begin();
    }

    fn stop(&mut self) {
        self.end();
        self.show();
    }

    /// Ends the process. That is no death: it is wanted.
    fn end(&mut self) {
        self.goal = HalfGoal::Stop;
        self.kill();
        self.reap();
    }

    fn upgrade(&mut self, program: Option<PathBuf>) -> Reply {
        if self.state() != State::Running {
            return Reply::Refused(
                "it does not run: ring3 restart starts it, ring3 logs says why it does not".into(),
            );
        }
        let path = program.unwrap_or_else(|| self.program.path().to_owned());
        let new = match Program::open(&path) {
            Ok(new) => new,
            Err(error) => return Reply::Refused(format!("{}: {error}", path.display())),
        };
        let old = std::mem::replace(&mut self.program, new);
        let begin = Instant::now();
        self.start_anew();
        if self.attaches(begin + END) {
            self.shared.status().upgrades += 1;
            return Reply::Upgraded { stall_ms: begin.elapsed().as_secs_f64() * 1000.0 };
        }
        self.program = old;
        self.start_anew();
        Reply::Refused(format!(
            "{} does not attach, ring3 logs says why; the old program is started again",
            path.display()
        ))
    }

    /// Whether the process attaches before `limit`.
    fn attaches(&mut self, limit: Instant) -> bool {
        while Instant::now() < limit
            && self.process.as_ref().is_some_and(|process| !process.has_ended_within(PROMPT))
        {
            if kernel::half_of(&self.half.name).is_some_and(|half| half.attached) {
                return true;
            }
        }
        false
    }

    fn state(&self) -> State {
        match (self.goal, &self.process) {
            (HalfGoal::Fail, _) => State::Failed,
            (HalfGoal::Stop, None) => State::Stopped,
            (HalfGoal::Stop, Some(_)) => State::Stopping,
            (HalfGoal::Run, Some(_)) if self.attached => State::Running,
            (HalfGoal::Run, _) if kernel::half_of(&self.half.name).is_none() => State::Absent,
            (HalfGoal::Run, None) if self.pauses_until(Instant::now()).is_some() => {
                State::BackingOff
            }
            (HalfGoal::Run, _) => State::Starting,
        }
    }

    /// Shows others where it is.
    fn show(&self) {
        let (state, pid) = (self.state(), self.process.as_ref().map_or(0, Process::pid));
        let mut status = self.shared.status();
        status.pid = pid;
        status.device = if state == State::Absent { String::new() } else { "ring3-split".into() };
        if status.state != state {
            (status.state, status.since) = (state, seconds(SystemTime::now()));
            drop(status);
            self.note(&crate::keeper::word_of(state));
        }
    }

    fn note(&self, text: &str) {
        tracing::info!(device = %self.half.name, "{text}");
        self.shared.journal().note(text);
    }

    /// The same is not said with each process.
    fn note_once(&self, text: &str) {
        if !self.shared.journal().has(text) {
            self.note(text);
        }
    }
}
