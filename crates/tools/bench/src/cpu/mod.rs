//! What a load costs: processor time, busy machine time, context switches.
//!
//! Linux has a clock of each process's run time and counts its context switches
//! (`/proc/PID/task/TID/status`); `/proc/stat` counts the machine's busy ticks. [proc(5)] Under a
//! guest's instruction clock ticks lie, so that there a [`Soaker`] counts what is left of the
//! processor.

mod calls;
mod idle;
mod others;
mod soaker;

pub use calls::Calls;
pub use others::{Others, processors};
pub use soaker::Soaker;

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Puts the calling thread on processor `cpu` and into the scheduler's idle class: it runs while
/// nobody else wants to.
pub fn stand_back(cpu: usize) {
    soaker::settle(cpu);
}

/// What was spent between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Time that passed.
    pub elapsed: Duration,
    /// Processor time of this process.
    pub process: Duration,
    /// Processor time of the driver's process, if it is another one.
    pub driver: Option<Duration>,
    /// Busy time of all processors by the kernel's ticks, interrupts included.
    pub machine: Duration,
    /// Idle time of all processors, exact.
    pub idle: Option<Duration>,
    /// Context switches of this process and the driver's.
    pub switches: u64,
}

impl Cost {
    /// The time in which `cpus` processors were not idle, together.
    pub fn busy(&self, cpus: usize) -> Option<Duration> {
        self.idle.map(|idle| (self.elapsed * cpus as u32).saturating_sub(idle))
    }

    /// What `time` is of the time of `cpus` processors, in percent.
    pub fn percent(&self, time: Duration, cpus: usize) -> f64 {
        let all = self.elapsed * cpus as u32;
        // The quotient first: the product's rounding made 100.00000000000001 % of the whole.
        100.0 * (time.as_secs_f64() / all.as_secs_f64().max(1e-9))
    }
}

/// Counts cost from its start on.
pub struct Meter {
    driver: Option<u32>,
    start: Instant,
    before: Cost,
}

impl Meter {
    /// Starts. `driver` is the driver's process, if it is another one.
    pub fn start(driver: Option<u32>) -> Self {
        let before = counters(driver);
        Self { driver, start: Instant::now(), before }
    }

    /// What was spent since the start.
    pub fn read(&self) -> Cost {
        let elapsed = self.start.elapsed();
        let (after, before) = (counters(self.driver), self.before);
        Cost {
            elapsed,
            process: after.process.saturating_sub(before.process),
            driver: after
                .driver
                .zip(before.driver)
                .map(|(after, before)| after.saturating_sub(before)),
            machine: after.machine.saturating_sub(before.machine),
            idle: after.idle.zip(before.idle).map(|(after, before)| after.saturating_sub(before)),
            switches: after.switches.saturating_sub(before.switches),
        }
    }
}

fn counters(driver: Option<u32>) -> Cost {
    let process = clock_gettime(ClockId::ProcessCPUTime);
    Cost {
        elapsed: Duration::ZERO,
        process: Duration::new(process.tv_sec as u64, process.tv_nsec as u32),
        driver: driver.and_then(process_time),
        machine: fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| busy_time(&text))
            .unwrap_or_default(),
        idle: idle::idle_time(),
        switches: switches(std::process::id()) + driver.map_or(0, switches),
    }
}

/// Processor time of a process, threads that have ended included; `None` if there is no such
/// process.
pub fn process_time(pid: u32) -> Option<Duration> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both write what they are given a pointer to; a process that is not there is an error.
    let read = unsafe {
        libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    read.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The most memory that a process has had resident so far, in bytes (`VmHWM`).
pub fn peak_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_field(&text, "VmHWM:").map(|kib| kib * 1024)
}

/// The memory that a process has resident now, in bytes (`VmRSS`).
pub fn resident_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_field(&text, "VmRSS:").map(|kib| kib * 1024)
}

/// Context switches of all threads of a process.
fn switches(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_thread = |text: String| {
        ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]
            .iter()
            .filter_map(|name| status_field(&text, name))
            .sum::<u64>()
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
        .map(of_thread)
        .sum()
}

fn status_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Everything but idle and iowait of the first line of `/proc/stat`. [proc(5)]
fn busy_time(text: &str) -> Option<Duration> {
    let mut fields =
        text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().map(str::parse::<u64>);
    let mut field = || fields.next()?.ok();
    let (user, nice, system, _idle, _iowait) = (field()?, field()?, field()?, field()?, field()?);
    let (irq, softirq, steal) = (field()?, field()?, field().unwrap_or(0));
    Some(ticks(user + nice + system + irq + softirq + steal))
}

/// Time of so many ticks of what the kernel tells, which are 10 ms on every Linux. [proc(5)]
fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let text = "cpu  100 1 20 9999 500 3 4 2 0 0\ncpu0 1 2 3\n";
        assert_eq!(busy_time(text), Some(Duration::from_millis(1300)));
    }

    #[test]
    fn processors_that_were_never_idle_were_busy_for_100_percent() {
        // By the product first, it is more than 100 for one time in ten.
        for nanos in [3_428_339_667, 1_000_000_007, 2_999_999_999] {
            let elapsed = Duration::from_nanos(nanos);
            let cost = Cost { elapsed, idle: Some(Duration::ZERO), ..Cost::default() };
            assert_eq!(cost.percent(cost.busy(2).unwrap(), 2), 100.0, "{elapsed:?}");
        }
    }

    #[test]
    fn a_loop_that_spins_costs_about_the_time_it_takes() {
        let meter = Meter::start(Some(std::process::id()));
        // However long that takes beside others.
        while meter.read().process < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let cost = meter.read();
        assert!(cost.process > Duration::from_millis(10), "{cost:?}");
        assert!(cost.driver.unwrap() > Duration::from_millis(10), "{cost:?}");
    }

    #[test]
    fn the_time_of_a_thread_that_has_ended_stays_its_processs() {
        let before = process_time(std::process::id()).unwrap();
        let spin = || {
            let own = || clock_gettime(ClockId::ThreadCPUTime);
            while own().tv_nsec < 30_000_000 {}
        };
        std::thread::spawn(spin).join().unwrap();
        let spent = process_time(std::process::id()).unwrap() - before;
        assert!(spent >= Duration::from_millis(30), "{spent:?}");
    }

    #[test]
    fn this_process_has_memory_and_one_that_does_not_exist_has_none() {
        assert!(peak_memory(std::process::id()).unwrap() > 100_000);
        assert_eq!(peak_memory(u32::MAX), None);
        assert_eq!(process_time(u32::MAX), None);
    }
}
