//! Standard error, written by a thread of its own.
//!
//! Whoever reads the words of a process that serves a disk may stand still: a terminal that was
//! stopped, a pipe that nobody empties, a file on the very disk that is served. The disk must not
//! stand still with him. So a line is put into a queue, which never waits, and a thread writes it.
//!
//! # Bounds
//! The queue holds [`LINES`] lines of at most [`LINE`] bytes each. What finds it full is left out.
//! Of what the program logs, at most [`BURST`] lines are written at once and [`PER_SECOND`] lines a
//! second on average; the rest is left out, too. How many lines were left out is said, once a
//! second at most. What the user is to know ([`notice`]) is not subject to the rate.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::signals;

/// Lines that wait to be written.
pub const LINES: usize = 256;
/// Most bytes of a line.
pub const LINE: usize = 8 << 10;
/// Lines of the log that may come at once.
pub const BURST: u32 = 200;
/// Lines of the log for each second after that.
pub const PER_SECOND: u32 = 20;
/// How long a process that ends waits for its last lines to be written.
pub const LAST_LINES: Duration = Duration::from_secs(2);

/// Between two lines that say how many were left out.
const REPORT: Duration = Duration::from_secs(1);
/// Between two attempts to write to a descriptor that does not wait by itself.
const AGAIN: Duration = Duration::from_millis(10);
/// The thread writes lines; it needs little.
const STACK: usize = 64 << 10;

/// Starts the thread for standard error, unless it runs. Everything here does so by itself; a
/// program calls this first, so that the thread is not the child of one that serves a disk.
pub fn start() {
    process();
}

/// A line for the user, which is written whatever the log's rate.
pub fn notice(text: fmt::Arguments<'_>) {
    process().put(Kind::Notice, format!("{text}\n").into_bytes());
}

/// A text that takes the place of the one before on a terminal; nothing if the thread is behind.
pub fn status(text: fmt::Arguments<'_>) {
    let log = process();
    if log.waiting() == 0 {
        log.put(Kind::Notice, format!("\r\x1b[K{text}").into_bytes());
    }
}

/// Where a subscriber writes its lines, each with one call.
pub fn writer() -> impl Write {
    process()
}

/// Waits until all lines so far are written, for `limit` at most; false if they are not.
pub fn flush(limit: Duration) -> bool {
    process().flush(limit)
}

/// What others have said, a process, a device or a file, as text of one line: nothing of it moves a
/// terminal, or looks like another line.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { plain.extend(letter.escape_debug()) } else { plain.push(letter) }
    }
    plain
}

fn process() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| Log::new(Stderr))
}

/// Standard error without the standard library's lock, which the thread would hold while it waits.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(io::stderr(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Of the program's log.
    Logged,
    /// For the user.
    Notice,
}

enum Message {
    Line(Kind, Vec<u8>),
    Flush(SyncSender<()>),
}

/// What both sides count.
#[derive(Default)]
struct Counts {
    /// Lines that were put into the queue and are not written yet.
    waiting: AtomicU64,
    /// Lines that found the queue full since that was last said.
    full: AtomicU64,
}

/// The side of those who have something to say.
struct Log {
    messages: SyncSender<Message>,
    counts: Arc<Counts>,
}

impl Log {
    /// Lines go to `output`. Without a thread, which a machine may refuse, who has something to say
    /// writes it to standard error.
    fn new(output: impl Write + Send + 'static) -> Self {
        let (messages, inbox) = sync_channel(LINES);
        let counts = Arc::new(Counts::default());
        let mut scribe = LogWriter::new(output, counts.clone());
        let spawn = || {
            thread::Builder::new()
                .name("ring3-log".into())
                .stack_size(STACK)
                .spawn(move || scribe.serve(&inbox))
        };
        // A signal that ends or stops the process is for the other threads.
        let _ = signals::held_back(spawn);
        Self { messages, counts }
    }

    fn waiting(&self) -> u64 {
        self.counts.waiting.load(Ordering::Relaxed)
    }

    /// Never waits.
    fn put(&self, kind: Kind, line: Vec<u8>) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        let refused = self.messages.try_send(Message::Line(kind, line)).err();
        if refused.is_some() {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        match refused {
            Some(TrySendError::Full(_)) => drop(self.counts.full.fetch_add(1, Ordering::Relaxed)),
            Some(TrySendError::Disconnected(Message::Line(_, line))) => {
                drop(Stderr.write_all(&line))
            }
            _ => {}
        }
    }

    fn flush(&self, limit: Duration) -> bool {
        let start = Instant::now();
        let (done, written) = sync_channel(1);
        let mut message = Message::Flush(done);
        loop {
            message = match self.messages.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(message)) if start.elapsed() < limit => message,
                Err(_) => return false,
            };
            thread::sleep(AGAIN.min(limit));
        }
        written.recv_timeout(limit.saturating_sub(start.elapsed())).is_ok()
    }
}

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(Kind::Logged, one_line(&bytes[..bytes.len().min(LINE)], bytes.len() > LINE));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line of a subscriber's, which ends where it ends, whatever was logged: another line would look
/// like one of this program's own.
fn one_line(bytes: &[u8], is_cut: bool) -> Vec<u8> {
    let mut line = Vec::with_capacity(bytes.len() + 4);
    for &byte in bytes.strip_suffix(b"\n").unwrap_or(bytes) {
        match byte {
            b'\n' => line.extend(b"\\n"),
            b'\r' => line.extend(b"\\r"),
            other => line.push(other),
        }
    }
    line.extend(if is_cut { &b"...\n"[..] } else { b"\n" });
    line
}

/// The side of the thread, which may wait for ever.
struct LogWriter<W> {
    output: W,
    counts: Arc<Counts>,
    /// Lines of the log that may be written now, and when that was counted.
    allowed: u32,
    counted: Instant,
    /// Lines that came too fast since that was last said, and when it was.
    too_fast: u64,
    reported: Instant,
}

impl<W: Write> LogWriter<W> {
    fn new(output: W, counts: Arc<Counts>) -> Self {
        let now = Instant::now();
        Self { output, counts, allowed: BURST, counted: now, too_fast: 0, reported: now }
    }

    fn serve(&mut self, inbox: &Receiver<Message>) {
        loop {
            let message = match self.left_out() {
                0 => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => inbox.recv_timeout(REPORT.saturating_sub(self.reported.elapsed())),
            };
            match message {
                Ok(Message::Line(kind, line)) => {
                    self.line(kind, &line);
                    self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                    if self.left_out() > 0 && self.reported.elapsed() >= REPORT {
                        self.report();
                    }
                }
                Ok(Message::Flush(done)) => {
                    self.report();
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.report(),
                Err(RecvTimeoutError::Disconnected) => return self.report(),
            }
        }
    }

    fn line(&mut self, kind: Kind, line: &[u8]) {
        if kind == Kind::Notice || self.may_log() {
            self.write(line);
        } else {
            self.too_fast += 1;
        }
    }

    fn may_log(&mut self) -> bool {
        let earned = (self.counted.elapsed().as_secs_f64() * f64::from(PER_SECOND)) as u32;
        if earned > 0 {
            self.allowed = self.allowed.saturating_add(earned).min(BURST);
            self.counted = Instant::now();
        }
        let may = self.allowed > 0;
        self.allowed = self.allowed.saturating_sub(1);
        may
    }

    fn left_out(&self) -> u64 {
        self.too_fast + self.counts.full.load(Ordering::Relaxed)
    }

    fn report(&mut self) {
        let left_out =
            std::mem::take(&mut self.too_fast) + self.counts.full.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            self.write(
                format!(
                    "ring3: {left_out} lines of the log were left out: there were too many, or \
                     they were not read\n"
                )
                .as_bytes(),
            );
        }
        self.reported = Instant::now();
    }

    /// Writes all of `bytes`; an error has nobody to be told.
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.output.write(bytes) {
                Ok(0) => return,
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
