//! A step's process: this program again, with the device.
//!
//! # Cancellation
//! The process is ended when its time is over, when the test fails, and when a signal ends the
//! test, before the device is given back: by SIGTERM, and a moment later by SIGKILL. The kernel
//! kills it if the test is killed, and so it does with what the process itself has started.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::leave::{Kept, or_end};

/// How often it is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long a process may take to end after SIGTERM, and its output after the process.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bytes of a line, and lines of a process, at most.
const LONGEST: u64 = 1 << 20;
const LINES: usize = 100_000;
/// Bytes that are kept of what a process says on standard error.
const SAID: usize = 4096;

/// Starts processes of this program, one at a time.
pub struct Program {
    path: PathBuf,
    child: Kept<Option<Started>>,
}

/// A process that does not outlive this.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let since = Instant::now();
        // An error here is one of a process that has ended.
        while let Ok(None) = self.0.try_wait()
            && kill_process(Pid::from_child(&self.0), Signal::TERM).is_ok()
            && since.elapsed() < FAREWELL
        {
            std::thread::sleep(LOOK);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process said.
pub struct Answer {
    /// `None` if it was killed because its time was over.
    status: Option<ExitStatus>,
    pub lines: Vec<String>,
    said: String,
}

impl Program {
    pub fn this() -> Result<Self> {
        let path = std::env::current_exe().context("where this program is")?;
        Ok(Self { path, child: Kept::new(None) })
    }

    /// Runs `ring3 WORDS` until it ends or for `limit`, and shows each line to `see`.
    pub fn run(
        &self,
        words: &[String],
        limit: Duration,
        see: &mut dyn FnMut(&str),
    ) -> Result<Answer> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.path);
        // In a group of its own, so that control-C ends the test first, which ends this.
        command.args(words).process_group(0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ring3_process::end_with_this(&mut command);
        let started = self.child.with(|slot| {
            let mut child = command.spawn().context("starting a step")?;
            let pipes = child.stdout.take().zip(child.stderr.take());
            *slot = Some(Started(child));
            pipes.context("a step has no output")
        });
        let (output, errors) = or_end(started)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while output.by_ref().take(LONGEST).read_line(&mut line).is_ok_and(|len| len > 0) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let said = Arc::new(Mutex::new(Vec::new()));
        let (kept, (end_of_words, words_end)) = (Arc::clone(&said), channel::<()>());
        std::thread::spawn(move || {
            keep_last_words(errors, &kept);
            drop(end_of_words);
        });
        let (until, mut lines) = (Instant::now() + limit, Vec::new());
        let (mut over, mut ended) = (false, None);
        // The output ends with the process; what it has started and left behind may hold it open.
        while !over {
            match receiver.recv_timeout(LOOK) {
                Ok(line) => {
                    see(line.trim_end());
                    if lines.len() < LINES {
                        lines.push(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) if ended.is_none() => {
                    ended = self.status()?.map(|_| Instant::now());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => over = true,
            }
            over |= Instant::now() > until;
            over |= ended.is_some_and(|ended| ended.elapsed() > FAREWELL);
        }
        let status = self.end(until)?;
        let _ = words_end.recv_timeout(FAREWELL);
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Answer { status, lines, said: String::from_utf8_lossy(&said).into_owned() })
    }

    /// How the process has ended; `None` while it runs.
    fn status(&self) -> Result<Option<ExitStatus>> {
        let ended = self.child.with(|slot| match slot {
            Some(Started(child)) => child.try_wait(),
            None => Ok(None),
        });
        or_end(ended).context("waiting for a step")
    }

    /// Waits for the process until `until`, then kills it.
    fn end(&self, until: Instant) -> Result<Option<ExitStatus>> {
        loop {
            let ended = self.status()?;
            if ended.is_some() || Instant::now() > until {
                or_end(self.child.with(|slot| *slot = None));
                return Ok(ended);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Keeps the end of what a process says on standard error, until that ends.
fn keep_last_words(mut errors: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut piece = [0; SAID];
    while let Ok(len @ 1..) = errors.read(&mut piece) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&piece[..len]);
        let surplus = kept.len().saturating_sub(SAID);
        kept.drain(..surplus);
    }
}

impl Answer {
    /// Whether it ended well.
    pub fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Why it did not, in its own words.
    pub fn why(&self) -> String {
        let said = self.said.lines().map(str::trim).rfind(|line| !line.is_empty());
        let said = said.map(|line| line.strip_prefix("ring3: ").unwrap_or(line));
        match (self.status, said) {
            (None, said) => format!("it did not end in time: {}", said.unwrap_or("no word")),
            (Some(_), Some(said)) => said.to_owned(),
            (Some(status), None) => format!("it ended with {status}"),
        }
    }

    /// The lines that are JSON.
    pub fn values(&self) -> Vec<Value> {
        self.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The last of them; an error with its own words if there is none, or if it did not end well.
    pub fn value(&self) -> Result<Value> {
        anyhow::ensure!(self.is_good(), "{}", self.why());
        self.values().pop().context("it has printed nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_was_said_is_kept() {
        let text = format!("{}\nring3: the end\n", "x".repeat(3 * SAID));
        let kept = Mutex::default();
        keep_last_words(text.as_bytes(), &kept);
        let said = String::from_utf8(kept.into_inner().unwrap()).unwrap();
        assert!(said.len() <= SAID && said.ends_with("ring3: the end\n"));
        let answer = Answer { status: None, lines: vec!["no\n".into(), "{}\n".into()], said };
        assert_eq!(answer.why(), "it did not end in time: the end");
        assert!(!answer.is_good() && answer.value().is_err());
        assert_eq!(answer.values(), [serde_json::json!({})]);
    }

    /// `words` to a shell instead of this program, for `limit`.
    fn shell(words: &str, limit: Duration) -> Answer {
        let program = Program { path: "/bin/sh".into(), child: Kept::new(None) };
        program.run(&["-c".into(), words.into()], limit, &mut |_| {}).unwrap()
    }

    #[test]
    fn what_a_process_has_left_behind_does_not_hold_up_the_test() {
        let since = Instant::now();
        let answer = shell("echo why >&2; sleep 60 & exit 3", Duration::from_secs(50));
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
        assert_eq!((answer.is_good(), answer.why().as_str()), (false, "why"));
    }

    #[test]
    fn a_process_whose_time_is_over_is_asked_to_end_before_it_is_killed() {
        let asked = shell("trap 'echo bye >&2; exit' TERM; while :; do sleep 0.1; done", 50 * LOOK);
        let deaf = shell("trap '' TERM; while :; do sleep 0.1; done", 50 * LOOK);
        assert_eq!(deaf.why(), "it did not end in time: no word");
        assert_eq!(asked.why(), "it did not end in time: bye");
    }
}
