//! What others take of this machine's processors while something is measured.
//!
//! Others are all but this process and its descendants, and a hypervisor's other guests, which show
//! as stolen time. A figure by the wall clock that was taken beside them says little, so it has to
//! say so.

use std::fs;
use std::time::{Duration, Instant};

use super::{busy_time, ticks};

/// Counts from its start on.
pub struct Others {
    start: Instant,
    all: Duration,
    own: Duration,
    cpus: usize,
}

/// The processors of this machine, whichever of them this process may use; `None` where there is
/// no `/proc/stat`.
pub fn processors() -> Option<usize> {
    count(&fs::read_to_string("/proc/stat").ok()?)
}

fn count(stat: &str) -> Option<usize> {
    let is_one = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    Some(stat.lines().filter(is_one).count()).filter(|&count| count > 0)
}

impl Others {
    /// Starts; `None` where there is no `/proc/stat`.
    pub fn start() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        Some(Self {
            start: Instant::now(),
            all: busy_time(&stat)?,
            own: own(),
            cpus: count(&stat)?,
        })
    }

    /// The others' share of all processors since the start or since the last call, in percent.
    /// Processes of one's own that ended in between count as long as somebody waited for them.
    pub fn percent(&mut self) -> Option<f64> {
        let now = Self::start()?;
        let others =
            now.all.saturating_sub(self.all).saturating_sub(now.own.saturating_sub(self.own));
        let available = now.start.duration_since(self.start) * self.cpus as u32;
        *self = now;
        Some((100.0 * others.as_secs_f64() / available.as_secs_f64().max(1e-9)).min(100.0))
    }
}

/// A process: its number, its parent's, and its processor time with that of the children that it
/// waited for.
type Process = (u32, u32, Duration);

/// Processor time of this process and its descendants.
fn own() -> Duration {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    family(std::process::id(), &stats.filter_map(|text| process(&text)).collect::<Vec<_>>())
}

fn family(root: u32, all: &[Process]) -> Duration {
    let own = all.iter().find(|(pid, ..)| *pid == root).map_or(Duration::ZERO, |(.., time)| *time);
    own + all
        .iter()
        .filter(|(_, parent, _)| *parent == root)
        .map(|(pid, ..)| family(*pid, all))
        .sum::<Duration>()
}

/// Reads `/proc/PID/stat`, where the name, which may contain anything, stands in parentheses.
/// [proc(5)]
fn process(text: &str) -> Option<Process> {
    let (pid, _) = text.split_once(' ')?;
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Fields 14 to 17 count from the number of the process, which is 1: utime, stime, cutime,
    // cstime.
    let time = fields
        .get(11..15)?
        .iter()
        .map(|field| field.parse::<u64>())
        .sum::<Result<u64, _>>()
        .ok()?;
    Some((pid.parse().ok()?, fields.get(1)?.parse().ok()?, ticks(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let text = "42 (a) b (c) S 7 42 42 0 -1 4194560 100 0 0 0 30 20 5 5 20 0 1 0 99 0 0";
        assert_eq!(process(text), Some((42, 7, Duration::from_millis(600))));
        assert_eq!(process("42 (a"), None);
    }

    #[test]
    fn descendants_are_ones_own_and_everybody_else_is_another() {
        let second = Duration::from_secs(1);
        let all =
            [(1, 0, second), (10, 1, second), (11, 10, second), (12, 11, second), (20, 1, second)];
        assert_eq!(family(10, &all), 3 * second);
    }

    #[test]
    fn ones_own_work_is_not_that_of_others() {
        let (mut others, before) = (Others::start().unwrap(), own());
        // However long that takes beside others.
        while own() < before + Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        assert!((0.0..=100.0).contains(&others.percent().unwrap()));
    }
}
