//! How long the processors were idle, by the kernel's own clock reads at each way into and out of
//! idleness.
//!
//! With a tickless kernel these times are exact, interrupts on top of idleness left out.
//! `/proc/timer_list` has them in nanoseconds for root; `/proc/stat` has the same in units of 10 ms
//! for everyone. [proc(5); Linux kernel/time/tick-sched.c]

use std::fs;
use std::time::Duration;

/// Idle time of all processors together since boot.
pub fn idle_time() -> Option<Duration> {
    let exact = fs::read_to_string("/proc/timer_list").ok().and_then(|text| from_timers(&text));
    exact.or_else(|| fs::read_to_string("/proc/stat").ok().and_then(|text| from_stat(&text)))
}

/// `.idle_sleeptime` and `.iowait_sleeptime` of each processor: one idles without, the other with
/// somebody waiting for a device.
fn from_timers(text: &str) -> Option<Duration> {
    let is_idle = |line: &&str| {
        line.trim_start().starts_with(".idle_sleeptime")
            || line.trim_start().starts_with(".iowait_sleeptime")
    };
    let nanos =
        |line: &str| line.split_once(':')?.1.split_ascii_whitespace().next()?.parse::<u64>().ok();
    let times: Option<Vec<u64>> = text.lines().filter(is_idle).map(nanos).collect();
    times.filter(|times| !times.is_empty()).map(|times| Duration::from_nanos(times.iter().sum()))
}

/// The fourth and the fifth number of the first line: idle and iowait.
fn from_stat(text: &str) -> Option<Duration> {
    let mut fields = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map(str::parse::<u64>)
        .skip(3);
    let (idle, waiting) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Duration::from_millis(10 * (idle + waiting)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_with_and_without_somebody_waiting_is_added_up_over_processors() {
        let text = "cpu: 0\n  .idle_jiffies   : 4\n  .idle_sleeptime : 1000 nsecs\n  \
             .iowait_sleeptime: 20 nsecs\ncpu: 1\n  .idle_sleeptime : 300 nsecs\n";
        assert_eq!(from_timers(text), Some(Duration::from_nanos(1320)));
    }

    #[test]
    fn a_kernel_that_shows_no_such_times_is_no_idle_machine() {
        assert_eq!(from_timers("Timer List Version: v0.10\n"), None);
    }

    #[test]
    fn the_coarse_times_count_waiting_as_idle() {
        assert_eq!(
            from_stat("cpu  100 1 20 9999 500 3 4 2 0 0\n"),
            Some(Duration::from_millis(104_990))
        );
    }
}
