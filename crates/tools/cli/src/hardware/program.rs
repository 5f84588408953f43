//! A step's process: this program again, with the device.
//!
//! # Cancellation
//! The process is killed when its time is over, when the test fails, and when a signal ends the
//! test, before the device is given back.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::leave::{Kept, or_end};

/// How often it is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(20);
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
        let said = std::thread::spawn(move || last_words(errors));
        let (until, mut lines) = (Instant::now() + limit, Vec::new());
        let mut over = false;
        // The output ends with the process, or with what it has started and left behind.
        while !over {
            match receiver.recv_timeout(LOOK) {
                Ok(line) => {
                    see(line.trim_end());
                    if lines.len() < LINES {
                        lines.push(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => over = true,
            }
            over |= Instant::now() > until;
        }
        let status = self.end(until)?;
        Ok(Answer { status, lines, said: said.join().unwrap_or_default() })
    }

    /// Waits for the process until `until`, then kills it.
    fn end(&self, until: Instant) -> Result<Option<ExitStatus>> {
        loop {
            let ended = self.child.with(|slot| match slot {
                Some(Started(child)) => child.try_wait(),
                None => Ok(None),
            });
            let ended = or_end(ended).context("waiting for a step")?;
            if ended.is_some() || Instant::now() > until {
                or_end(self.child.with(|slot| *slot = None));
                return Ok(ended);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The end of what a process says on standard error.
fn last_words(mut errors: impl Read) -> String {
    let (mut kept, mut piece) = (Vec::new(), [0; SAID]);
    while let Ok(len @ 1..) = errors.read(&mut piece) {
        kept.extend_from_slice(&piece[..len]);
        let surplus = kept.len().saturating_sub(SAID);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
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
        let said = last_words(text.as_bytes());
        assert!(said.len() <= SAID && said.ends_with("ring3: the end\n"));
        let answer = Answer { status: None, lines: vec!["no\n".into(), "{}\n".into()], said };
        assert_eq!(answer.why(), "it did not end in time: the end");
        assert!(!answer.is_good() && answer.value().is_err());
        assert_eq!(answer.values(), [serde_json::json!({})]);
    }
}
