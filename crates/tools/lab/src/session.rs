//! A running QEMU: its channels, its deadline, its end.

use crate::cache::Cache;
use crate::console::Console;
use crate::error::{Doing, Error};
use crate::folder::Folder;
use crate::monitor::Monitor;
use crate::outcome::{Event, Outcome, Reader};
use crate::qemu::{CONSOLE_FD, JOB_FD, MONITOR_FD};
use command_fds::{CommandFdExt, FdMapping};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long QEMU may take to end once the guest is done or its channels are closed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks whether a guest does anything.
const LOOK: Duration = Duration::from_secs(5);
/// Looks that may see nothing, one after the other: half a minute. Looks are counted, because who
/// was stopped himself has not looked.
const STILL: u32 = 6;
/// Less than this, of all its processors, is nothing between two looks. One that waits has timers:
/// it took 20 ms of the host's processors in 6 s. One that had lost a processor's timer was not
/// seen to take any in 10 s, in steps of 10 ms.
const NOTHING: Duration = Duration::from_millis(1);
/// Looks for which a guest may say nothing once its kernel misses a timer: a minute. Its other
/// processors work on, and it used to take the whole of its time limit; a late timer of a busy host
/// comes within that.
const UNTIMED: u32 = 12;
/// What the guest's kernel says when a processor's timer does not come any more.
pub(crate) const LOST_TIMER: &str = "Possible timer handling issue";

/// The program, for messages.
const QEMU: &str = "qemu-system-x86_64";
/// Pieces of output that may wait for whoever watches; then the guest waits.
const BACKLOG: usize = 64;
/// File in the run's folder with what QEMU complained about.
const ERRORS: &str = "qemu.stderr";

/// What a run does and when it must be over.
pub(crate) struct Run<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) limit: Duration,
    pub(crate) started: Instant,
    pub(crate) steps: &'a [String],
    /// Whether QEMU's exit code says that the guest meant its end.
    pub(crate) says_its_end: bool,
}

impl Run<'_> {
    /// Time left; `None` when there is no limit.
    fn left(&self) -> Option<Duration> {
        self.started
            .checked_add(self.limit)
            .map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// What looks at a guest have seen since it last said something.
#[derive(Default)]
struct Silence {
    /// How long its console was then: one that missed a timer before has gone on.
    since: usize,
    looks: u32,
    /// The last ones, between which it did not work.
    still: u32,
    /// Those since its kernel missed a timer.
    untimed: u32,
}

impl Silence {
    fn new(console: &Console) -> Self {
        Self { since: console.length(), ..Self::default() }
    }

    fn look(&mut self, worked: Duration, lost_timer: bool) {
        self.looks += 1;
        self.still = if worked < NOTHING { self.still + 1 } else { 0 };
        self.untimed += u32::from(lost_timer);
    }

    fn is_dead(&self) -> bool {
        self.still >= STILL || self.untimed >= UNTIMED
    }
}

/// A running QEMU. Dropping it ends it.
pub(crate) struct Session {
    child: Child,
    job: UnixStream,
    monitor: UnixStream,
    incoming: Receiver<Vec<u8>>,
    console: Console,
    folder: Folder,
}

impl Session {
    /// Starts QEMU. With `terminal` it has the caller's terminal as its own.
    pub(crate) fn start(line: &[String], folder: Folder, terminal: bool) -> Result<Self, Error> {
        let program = Path::new(&line[0]);
        let pair = || UnixStream::pair().doing("making a channel for", program);
        let ((job, job_there), (said, said_there), (monitor, monitor_there)) =
            (pair()?, pair()?, pair()?);
        let fds = [(job_there, JOB_FD), (said_there, CONSOLE_FD), (monitor_there, MONITOR_FD)];
        let fds =
            fds.map(|(socket, child_fd)| FdMapping { parent_fd: OwnedFd::from(socket), child_fd });
        // QEMU dies with the thread that started it, so that nothing is left when this process is
        // killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(line);
        if !terminal {
            let path = folder.path().join(ERRORS);
            let errors = File::create(&path).doing("creating", &path)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        }
        command
            .fd_mappings(fds.into())
            .map_err(|e| Error::Request(format!("passing channels to QEMU: {e}")))?;
        tracing::debug!(?line, "starting QEMU");
        let child = command.spawn().doing("starting", program)?;
        drop(command);
        let console = Console::default();
        let (send, incoming) = sync_channel(BACKLOG);
        let reading = job.try_clone().doing("sharing the channel of", program)?;
        std::thread::spawn(move || pass_on(reading, &send));
        let keep = console.clone();
        std::thread::spawn(move || read_all(said, &mut |bytes| keep.add(bytes)));
        Ok(Self { child, job, monitor, incoming, console, folder })
    }

    /// QEMU's monitor.
    pub(crate) fn monitor(&self) -> Result<Monitor<'_>, Error> {
        Monitor::greet(&self.monitor)
    }

    /// Waits until a guest that was started to wait asks for its job.
    pub(crate) fn wait_ready(&mut self, run: &Run) -> Result<(), Error> {
        let mut reader = Reader::new(&[]);
        if self.follow(run, &mut reader, |reader| reader.ready, &mut |_| {})? {
            return Ok(());
        }
        let status = self.end()?;
        Err(self.no_verdict(run, status, &reader.position()))
    }

    /// Hands a waiting guest its job.
    pub(crate) fn send_job(&mut self, run: &Run, job: &[u8]) -> Result<(), Error> {
        let left = run.left().unwrap_or(END_LIMIT).max(Duration::from_millis(1));
        let sent = self.job.set_write_timeout(Some(left)).and_then(|()| self.job.write_all(job));
        let when = "while the guest took its job";
        match sent {
            Ok(()) => Ok(()),
            // A time-out; otherwise QEMU has closed its end.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.too_late(run, when))
            }
            Err(_) => {
                let status = self.end()?;
                Err(self.no_verdict(run, status, when))
            }
        }
    }

    /// Follows the run to its verdict.
    pub(crate) fn finish(
        &mut self,
        run: &Run,
        watch: &mut dyn FnMut(Event),
    ) -> Result<Outcome, Error> {
        let mut reader = Reader::new(run.steps);
        let mut began = 0.0;
        self.follow(run, &mut reader, |reader| reader.finished, &mut |event| {
            if event == Event::Started {
                began = run.started.elapsed().as_secs_f64();
            }
            watch(event);
        })?;
        // The guest waits for this before it ends the machine.
        let _ = self.job.write_all(b"\n");
        let (status, asked) = self.end_or_ask()?;
        // Whoever had to be asked has given its verdict and its files, and nothing of the job was
        // left to run: an emulated processor has stood still there.
        let says = run.says_its_end && !asked;
        let orderly =
            status.code().is_some_and(|code| if says { code & 1 == 1 } else { code == 0 });
        if !(reader.finished && orderly) {
            return Err(self.no_verdict(run, status, &reader.position()));
        }
        let mut outcome = std::mem::take(&mut reader.outcome);
        outcome.seconds = (began, run.started.elapsed().as_secs_f64());
        outcome.console = self.console.text();
        if outcome.exit != 0 {
            self.console.keep(run.cache, &self.log_name());
        }
        Ok(outcome)
    }

    /// Reads what the guest sends until `enough`, which is true; or until QEMU closes its end,
    /// which is false.
    fn follow(
        &mut self,
        run: &Run,
        reader: &mut Reader,
        enough: impl Fn(&Reader) -> bool,
        watch: &mut dyn FnMut(Event),
    ) -> Result<bool, Error> {
        let (mut silence, mut worked) = (Silence::new(&self.console), self.worked());
        while !enough(reader) {
            let left = run.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self.too_late(run, &reader.situation()));
            }
            match self.incoming.recv_timeout(left.unwrap_or(LOOK).min(LOOK)) {
                Ok(bytes) => {
                    silence = Silence::new(&self.console);
                    reader.take(&bytes, watch)?;
                }
                // Whether that was the run's limit is seen above.
                Err(RecvTimeoutError::Timeout) => {
                    let before = std::mem::replace(&mut worked, self.worked());
                    silence.look(
                        worked.saturating_sub(before),
                        self.console.says(LOST_TIMER, silence.since),
                    );
                    // Without a time limit a person is at it, who may have put it to sleep.
                    if silence.is_dead() && left.is_some() {
                        return Err(self.stood_still(run, silence.looks, &reader.situation()));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What QEMU's threads but the first, among them the guest's processors, have taken of the
    /// host's. Nothing can be said of one that has ended. [Linux,
    /// Documentation/scheduler/sched-stats]
    fn worked(&self) -> Duration {
        let first = self.child.id().to_string();
        let tasks =
            std::fs::read_dir(format!("/proc/{first}/task")).into_iter().flatten().flatten();
        tasks
            .filter(|task| task.file_name() != *first)
            .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
            .filter_map(|text| text.split_whitespace().next()?.parse().ok())
            .map(Duration::from_nanos)
            .sum()
    }

    fn stood_still(&mut self, run: &Run, looks: u32, when: &str) -> Error {
        let _ = self.child.kill();
        let log = self.console.keep(run.cache, &self.log_name());
        Error::StoodStill {
            time: LOOK * looks,
            when: when.into(),
            console: self.console.tail(),
            log,
        }
    }

    /// Waits for QEMU's end, which must come by itself now.
    fn end(&mut self) -> Result<ExitStatus, Error> {
        if let Some(status) = self.end_within(END_LIMIT)? {
            return Ok(status);
        }
        let _ = self.child.kill();
        self.child.wait().doing("waiting for", Path::new(QEMU))
    }

    /// Waits for QEMU's end, and asks for it when it does not come by itself; whether that was
    /// needed. It then writes what it holds of its disks. [QEMU, `man qemu-system-x86_64`,
    /// SIGTERM]
    fn end_or_ask(&mut self) -> Result<(ExitStatus, bool), Error> {
        if let Some(status) = self.end_within(END_LIMIT)? {
            return Ok((status, false));
        }
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        );
        Ok((self.end()?, true))
    }

    fn end_within(&mut self, limit: Duration) -> Result<Option<ExitStatus>, Error> {
        let until = Instant::now() + limit;
        loop {
            let status = self.child.try_wait().doing("waiting for", Path::new(QEMU))?;
            if status.is_some() || Instant::now() > until {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn too_late(&mut self, run: &Run, when: &str) -> Error {
        let _ = self.child.kill();
        let log = self.console.keep(run.cache, &self.log_name());
        Error::TimeLimit { limit: run.limit, when: when.into(), console: self.console.tail(), log }
    }

    fn no_verdict(&self, run: &Run, status: ExitStatus, when: &str) -> Error {
        let console = self.console.tail();
        if !status.success() && self.console.is_empty() {
            return Error::Qemu { status: status.to_string(), message: self.complaint() };
        }
        let log = self.console.keep(run.cache, &self.log_name());
        let how = format!("{when}, QEMU's {status} {}", self.complaint());
        Error::Died { how: how.trim_end().into(), console, log }
    }

    /// An error from the monitor, or, when QEMU is gone, why it went.
    pub(crate) fn explain(&mut self, error: Error) -> Error {
        match (error, self.child.try_wait()) {
            (Error::Monitor { .. }, Ok(Some(status))) => {
                Error::Qemu { status: status.to_string(), message: self.complaint() }
            }
            (error, _) => error,
        }
    }

    /// What QEMU wrote on its standard error.
    fn complaint(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(ERRORS)).unwrap_or_default();
        text.trim().replace("qemu-system-x86_64: ", "")
    }

    fn log_name(&self) -> String {
        self.folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends what comes out of `stream` on, until it ends.
fn pass_on(stream: UnixStream, to: &SyncSender<Vec<u8>>) {
    read_all(stream, &mut |bytes| {
        // Nobody listens any more once the run is over.
        let _ = to.send(bytes.to_vec());
    });
}

fn read_all(mut stream: UnixStream, take: &mut dyn FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            return;
        }
        take(&buffer[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The look at which a guest that says nothing is given up, of a few minutes of them.
    fn given_up(worked: Duration, lost_timer: bool) -> Option<u32> {
        let mut silence = Silence::default();
        (0..100).find_map(|_| {
            silence.look(worked, lost_timer);
            silence.is_dead().then_some(silence.looks)
        })
    }

    #[test]
    fn a_guest_that_works_in_silence_is_left_alone() {
        assert_eq!(given_up(LOOK, false), None);
    }

    #[test]
    fn a_guest_whose_processors_do_nothing_is_given_up() {
        assert_eq!(given_up(Duration::ZERO, false), Some(STILL));
    }

    #[test]
    fn a_guest_that_misses_a_timer_is_given_up_though_a_processor_of_its_works() {
        assert_eq!(given_up(LOOK, true), Some(UNTIMED));
    }
}
