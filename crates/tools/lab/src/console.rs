//! The guest's console: kept in memory while the run goes well, in a file when it does not.

use crate::cache::{Cache, shared_folder};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// More than this of a console is not kept: its beginning goes first.
const LIMIT: usize = 4 << 20;
/// Lines of it that an error shows.
const TAIL: usize = 50;
/// What is in a line by which the kernel says that something is wrong with it.
const FAULTS: [&str; 5] =
    ["BUG: ", "Oops: ", "general protection fault", "Internal error", "Kernel panic"];
/// What stands for a console that said nothing.
const NOTHING: &str = "(it said nothing)";
/// Logs of failed runs that the cache keeps.
const KEPT: usize = 30;

/// What the guest's serial port said so far; shared with the thread that reads it.
#[derive(Clone, Default)]
pub(crate) struct Console(Arc<Mutex<Vec<u8>>>);

impl Console {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, bytes: &[u8]) {
        let mut kept = self.bytes();
        kept.extend_from_slice(bytes);
        if kept.len() > 2 * LIMIT {
            let cut = kept.len() - LIMIT;
            kept.drain(..cut);
        }
    }

    /// All of it, without the firmware's screen controls.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).replace("\r\n", "\n").replace('\u{1b}', "")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Bytes that are kept.
    pub(crate) fn length(&self) -> usize {
        self.bytes().len()
    }

    /// Whether `text` is in what is kept, behind the first `from` bytes.
    pub(crate) fn says(&self, text: &str, from: usize) -> bool {
        let kept = self.bytes();
        let later = kept.get(from..).unwrap_or_default();
        later.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// The last lines, behind the first in which the kernel says that something is wrong with it:
    /// what follows such a line can be long, and is often its consequence.
    pub(crate) fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return NOTHING.into();
        }
        let (before, last) = lines.split_at(lines.len().saturating_sub(TAIL));
        let is_fault = |line: &&&str| FAULTS.iter().any(|fault| line.contains(fault));
        let first = before.iter().find(is_fault).map(|line| format!("{line}\n[...]\n"));
        format!("{}{}", first.unwrap_or_default(), last.join("\n"))
    }

    /// Writes it into the cache's logs and says where. A log that cannot be kept is not worth a
    /// second error.
    pub(crate) fn keep(&self, cache: &Cache, run: &str) -> Option<PathBuf> {
        let logs = cache.own().join("logs");
        shared_folder(&logs).ok()?;
        forget_oldest(&logs);
        let path = logs.join(format!("{run}.log"));
        fs::write(&path, self.text()).ok().map(|()| path)
    }
}

fn forget_oldest(logs: &std::path::Path) {
    let Ok(entries) = fs::read_dir(logs) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(KEPT - 1) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        let console = Console::default();
        for n in 0..100 {
            console.add(format!("line {n}\r\n").as_bytes());
        }
        let tail = console.tail();
        assert!(tail.starts_with("line 50\n") && tail.ends_with("line 99"), "{tail}");
    }

    #[test]
    fn the_tail_has_the_first_fault_of_the_kernel_however_long_ago_it_was() {
        let console = Console::default();
        console.add(b"well\n[   20.9] BUG: kernel NULL pointer dereference\n[ 21.0] Oops: Oops:\n");
        for n in 0..TAIL {
            console.add(format!("line {n}\n").as_bytes());
        }
        let tail = console.tail();
        let wanted = "[   20.9] BUG: kernel NULL pointer dereference\n[...]\nline 0\nline 1\n";
        assert!(tail.starts_with(wanted), "{tail}");
    }

    #[test]
    fn what_was_said_before_is_not_said_now() {
        let console = Console::default();
        console.add(b"a timer is lost\r\n");
        let before = console.length();
        assert!(console.says("is lost", 0) && !console.says("is lost", before));
        console.add(b"and another is lost");
        assert!(console.says("is lost", before) && !console.says("is lost", 1000));
    }

    #[test]
    fn a_console_that_never_stops_does_not_fill_memory() {
        let console = Console::default();
        for _ in 0..40 {
            console.add(&vec![b'x'; 1 << 20]);
        }
        assert!(console.bytes().len() <= 2 * LIMIT);
    }

    #[test]
    fn old_logs_give_way() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        for n in 0..KEPT + 5 {
            Console::default().keep(&cache, &format!("run{n}")).unwrap();
        }
        assert_eq!(fs::read_dir(cache.path("logs")).unwrap().count(), KEPT);
    }
}
