//! Lines with fields for the journal, where standard error is one.
//!
//! What is said goes to a thread that hands it on: who logs never waits for the journal, whose disk
//! may be one of ours. What comes faster than the journal takes it is lost.
//!
//! # References
//! - `[JOURNAL]` systemd, "Native Journal Protocol"; systemd.exec(5), `$JOURNAL_STREAM`

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{SyncSender, sync_channel};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Lines that may wait.
const QUEUE: usize = 1024;

/// The name of the thread that hands them on.
const THREAD: &str = "ring3d-journal";

/// Says all events to the journal: `RING3_DEVICE=`, `RING3_STATE=` and so on beside the message.
pub struct Journal(SyncSender<Vec<u8>>);

impl Journal {
    /// The journal, if this process's standard error goes there.
    pub fn of_stderr() -> Option<Self> {
        let stderr = rustix::fs::fstat(std::io::stderr()).ok()?;
        is_journal(&std::env::var("JOURNAL_STREAM").ok()?, (stderr.st_dev, stderr.st_ino))
            .then(|| Self::at(SOCKET))
            .flatten()
    }

    /// The journal that listens at `path`.
    fn at(path: &str) -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        let (lines, waiting) = sync_channel::<Vec<u8>>(QUEUE);
        let path = path.to_owned();
        let tell = move || {
            for line in waiting {
                // One that is restarted listens again later.
                let _ = socket.send_to(&line, &path);
            }
        };
        ring3_process::held_back(|| std::thread::Builder::new().name(THREAD.into()).spawn(tell))
            .ok()?;
        Some(Self(lines))
    }
}

/// Whether `stream`, as `JOURNAL_STREAM` has it, is the file of this device and inode.
fn is_journal(stream: &str, file: (u64, u64)) -> bool {
    stream
        .split_once(':')
        .and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)))
        == Some(file)
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let priority = match *event.metadata().level() {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        let mut entry = Entry(Vec::new());
        entry.add("PRIORITY", priority);
        entry.add("SYSLOG_IDENTIFIER", "ring3d");
        event.record(&mut entry);
        // Full: the journal stands still, and this line is lost.
        let _ = self.0.try_send(entry.0);
    }
}

/// An entry as the journal takes it. [JOURNAL]
struct Entry(Vec<u8>);

impl Entry {
    fn add(&mut self, name: &str, value: &str) {
        // Writing to memory does not fail.
        let _ = match value.contains('\n') {
            false => writeln!(self.0, "{name}={value}"),
            true => {
                let written = writeln!(self.0, "{name}");
                self.0.extend((value.len() as u64).to_le_bytes());
                self.0.extend(value.as_bytes());
                self.0.push(b'\n');
                written
            }
        };
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.add("MESSAGE", value),
            name => self.add(&format!("RING3_{}", name.to_uppercase().replace('.', "_")), value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn an_event_arrives_with_its_fields_and_a_message_of_several_lines_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let journal = UnixDatagram::bind(&path).unwrap();
        let subscriber =
            tracing_subscriber::registry().with(Journal::at(path.to_str().unwrap()).unwrap());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(device = %"scratch", state = "recovering", "driver 7 has died");
            tracing::error!("two\nlines");
        });
        let mut entry = [0; 1000];
        let len = journal.recv(&mut entry).unwrap();
        let text = String::from_utf8_lossy(&entry[..len]);
        for field in [
            "PRIORITY=6\n",
            "MESSAGE=driver 7 has died\n",
            "RING3_DEVICE=scratch\n",
            "RING3_STATE=recovering\n",
        ] {
            assert!(text.contains(field), "{text}");
        }
        let len = journal.recv(&mut entry).unwrap();
        assert!(
            entry[..len].ends_with(b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n"),
            "{:?}",
            &entry[..len]
        );
    }

    /// It would end ring3d by its first SIGTERM.
    #[test]
    fn the_journals_thread_takes_no_signal() {
        let _journal = Journal::at("/nowhere").unwrap();
        let named = || -> Vec<_> {
            let threads =
                std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
            threads
                .filter(|task| {
                    std::fs::read_to_string(task.join("comm"))
                        .is_ok_and(|name| name.trim() == THREAD)
                })
                .filter_map(|task| std::fs::read_to_string(task.join("status")).ok())
                .collect()
        };
        // It takes its name itself.
        while named().is_empty() {
            std::thread::yield_now();
        }
        for status in named() {
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            let blocked = u64::from_str_radix(blocked, 16).unwrap();
            assert!(
                [Signal::TERM, Signal::INT, Signal::HUP]
                    .iter()
                    .all(|signal| blocked & 1 << (signal.as_raw() - 1) != 0),
                "{status}"
            );
        }
    }

    #[test]
    fn only_the_stream_that_is_named_is_the_journals() {
        assert!(is_journal("9:12345", (9, 12345)));
        for stream in ["9:12346", "8:12345", "9", "", "x:y", "9:12345:1"] {
            assert!(!is_journal(stream, (9, 12345)), "{stream}");
        }
    }
}
