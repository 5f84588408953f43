//! A running QEMU: its channels, its deadline, its end.

use crate::cache::Cache;
use crate::console::Console;
use crate::error::{Doing, Error};
use crate::job::Folder;
use crate::outcome::{Event, Outcome, Reader};
use crate::qemu::{CONSOLE_FD, JOB_FD};
use command_fds::{CommandFdExt, FdMapping};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long QEMU may take to end once the guest is done or its channels are closed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// File in the run's folder with what QEMU complained about.
const ERRORS: &str = "qemu.stderr";

/// What a run does and when it must be over.
pub(crate) struct Run<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) limit: Duration,
    pub(crate) steps: &'a [String],
}

/// A running QEMU. Dropping it ends it.
pub(crate) struct Session {
    child: Child,
    job: UnixStream,
    incoming: Receiver<Vec<u8>>,
    console: Console,
    folder: Folder,
}

impl Session {
    /// Starts QEMU. With `terminal` it has the caller's terminal as its own.
    pub(crate) fn start(line: &[String], folder: Folder, terminal: bool) -> Result<Self, Error> {
        let program = Path::new(&line[0]);
        let pair = || UnixStream::pair().doing("making a channel for", program);
        let ((job, job_there), (said, said_there)) = (pair()?, pair()?);
        let fds = [(job_there, JOB_FD), (said_there, CONSOLE_FD)];
        let fds = fds.map(|(socket, child_fd)| FdMapping { parent_fd: OwnedFd::from(socket), child_fd });
        // QEMU dies with the thread that started it, so that nothing is left when this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(line);
        if !terminal {
            let path = folder.path().join(ERRORS);
            let errors = File::create(&path).doing("creating", &path)?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        }
        command.fd_mappings(fds.into()).map_err(|e| Error::Request(format!("passing channels to QEMU: {e}")))?;
        tracing::debug!(?line, "starting QEMU");
        let child = command.spawn().doing("starting", program)?;
        drop(command);
        let console = Console::default();
        let (send, incoming) = channel();
        let reading = job.try_clone().doing("sharing the channel of", program)?;
        std::thread::spawn(move || pass_on(reading, &send));
        let keep = console.clone();
        std::thread::spawn(move || read_all(said, &mut |bytes| keep.add(bytes)));
        Ok(Self { child, job, incoming, console, folder })
    }

    /// Follows the run to its verdict. `started` is when the run began, for its times and its limit.
    pub(crate) fn finish(&mut self, run: &Run, started: Instant, watch: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
        let mut reader = Reader::new(run.steps);
        let deadline = started.checked_add(run.limit);
        let mut began = None;
        loop {
            let left = deadline.map_or(END_LIMIT, |end| end.saturating_duration_since(Instant::now()));
            match self.incoming.recv_timeout(left) {
                Ok(bytes) => reader.take(&bytes, watch)?,
                Err(RecvTimeoutError::Timeout) if deadline.is_none() => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.too_late(run, &reader.position())),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            began = began.or_else(|| Some(started.elapsed()));
            if reader.finished {
                // The guest waits for this before it ends the machine.
                let _ = self.job.write_all(b"\n");
                break;
            }
        }
        let status = self.end()?;
        let orderly = reader.finished && status.code().is_some_and(|code| code & 1 == 1);
        if !orderly {
            return Err(self.no_verdict(run, status, &reader.position()));
        }
        let mut outcome = std::mem::take(&mut reader.outcome);
        outcome.seconds = (began.unwrap_or_default().as_secs_f64(), started.elapsed().as_secs_f64());
        outcome.console = self.console.text();
        if outcome.exit != 0 {
            self.console.keep(run.cache, &self.log_name());
        }
        Ok(outcome)
    }

    /// Waits for QEMU's end, which must come by itself now.
    fn end(&mut self) -> Result<ExitStatus, Error> {
        let until = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().doing("waiting for", Path::new("qemu-system-x86_64"))? {
                return Ok(status);
            }
            if Instant::now() > until {
                let _ = self.child.kill();
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
        let errors = std::fs::read_to_string(self.folder.path().join(ERRORS)).unwrap_or_default();
        let console = self.console.tail();
        if !status.success() && self.console.is_empty() {
            let message = errors.trim().replace("qemu-system-x86_64: ", "");
            return Error::Qemu { status: status.to_string(), message };
        }
        let log = self.console.keep(run.cache, &self.log_name());
        let how = format!("{when}, QEMU's {status} {}", errors.trim());
        Error::Died { how: how.trim_end().into(), console, log }
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
fn pass_on(stream: UnixStream, to: &Sender<Vec<u8>>) {
    read_all(stream, &mut |bytes| {
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
