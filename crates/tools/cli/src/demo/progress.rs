//! Which part of the demonstration runs, how many remain, and how long they took the last time.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The parts of one run, in their order.
pub struct Progress {
    parts: Vec<&'static str>,
    /// How many have begun.
    begun: usize,
    start: Instant,
    /// Since when the present one runs.
    since: Instant,
    took: BTreeMap<String, Duration>,
    last: BTreeMap<String, Duration>,
    /// Keeps the times for the next run.
    file: PathBuf,
}

impl Progress {
    /// Nothing has begun of `parts`. `file` has the times of the last run, if there was one.
    pub fn new(parts: Vec<&'static str>, file: PathBuf) -> Self {
        let last = fs::read_to_string(&file).map(|text| parse(&text)).unwrap_or_default();
        let (start, since) = (Instant::now(), Instant::now());
        Self { parts, begun: 0, start, since, took: BTreeMap::new(), last, file }
    }

    /// The next part begins: the line that says so.
    pub fn next(&mut self, text: &str) -> String {
        self.end();
        let rest = self.parts.get(self.begun..).unwrap_or_default();
        self.begun += 1;
        self.since = Instant::now();
        let line = format!("{} of {}. {text}", self.begun, self.parts.len());
        let known = |part: &&'static str| self.last.get(*part).copied();
        match (rest.first().and_then(known), rest.iter().map(known).sum::<Option<Duration>>()) {
            (Some(this), Some(all)) => format!(
                "{line}\n   {} so far; the last time this took {}, and all that remains {}",
                clock(self.start.elapsed()),
                clock(this),
                clock(all)
            ),
            _ => format!("{line}\n   {} so far", clock(self.start.elapsed())),
        }
    }

    /// All parts are done: how long they took, for the next time, too.
    pub fn finish(mut self) -> Duration {
        self.end();
        let lines: Vec<_> = self
            .took
            .iter()
            .map(|(part, took)| format!("{} {part}\n", took.as_secs_f64()))
            .collect();
        // Without them the next run knows less, and nothing else.
        if let Some(folder) = self.file.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let _ = fs::write(&self.file, lines.concat());
        self.start.elapsed()
    }

    fn end(&mut self) {
        if let Some(part) = self.begun.checked_sub(1).and_then(|at| self.parts.get(at)) {
            self.took.insert((*part).into(), self.since.elapsed());
        }
    }
}

/// The times in a file: seconds and the part's name on each line. What is none is left out.
fn parse(text: &str) -> BTreeMap<String, Duration> {
    let time = |line: &str| {
        let (seconds, part) = line.split_once(' ')?;
        Some((part.to_owned(), Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
    };
    text.lines().filter_map(time).collect()
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{}:{:02} min", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_run_says_how_long_each_part_and_the_rest_took_in_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("logs/times");
        let progress = || Progress::new(vec!["kill", "guest"], file.clone());
        let mut first = progress();
        assert_eq!(first.next("kills"), "1 of 2. kills\n   0 s so far");
        first.next("guest");
        first.finish();
        let mut second = progress();
        second.last = parse("3.2 kill\n70 guest\nx\n-1 kill\n");
        assert_eq!(
            second.next("kills"),
            "1 of 2. kills\n   0 s so far; the last time this took 3 s, and all that remains 1:13 \
             min"
        );
        assert!(
            second.next("guest").ends_with("this took 1:10 min, and all that remains 1:10 min")
        );
        assert_eq!(progress().last.keys().collect::<Vec<_>>(), ["guest", "kill"]);
    }

    #[test]
    fn a_part_without_a_time_makes_no_promise() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("times");
        fs::write(&file, "3 kill\n").unwrap();
        let mut progress = Progress::new(vec!["kill", "guest"], file);
        assert_eq!(progress.next("kills"), "1 of 2. kills\n   0 s so far");
    }
}
