//! Counts the processor time that nobody else wants.
//!
//! A thread per processor, of the scheduler's idle class, counts in a tight loop. It is preempted
//! by whatever else wants to run, and it does not count while an interrupt is served on top of it.
//! What it counted is therefore what was idle; the rest of the time was busy: application, driver,
//! kernel, interrupts. Its unit, time for one step, is calibrated while nothing else runs.
//!
//! Under the lab's instruction clock, where one instruction takes one nanosecond, steps are counted
//! ([`Soaker::start`]). In real time a processor has no steady pace, and the thread reads the clock
//! instead ([`Soaker::timed`]): it adds up what passed from one look to the next, unless that is
//! longer than a look can take, when somebody else had the processor. That is the papers' own
//! method [Leslie et al. 2005, 4.1]. It spares the idle processor's wake-up, and so flatters
//! everyone a little.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::Error;

/// How long calibration takes.
const CALIBRATION: Duration = Duration::from_millis(50);

/// Looks at the clock from which a timed soaker learns how long one takes.
const LOOKS: usize = 2000;

/// A look that took this many times as long as the usual one was interrupted.
const INTERRUPTED: u32 = 8;

/// The threads; dropping the value ends them.
pub struct Soaker {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Nanoseconds of one step of one thread.
    step: f64,
    /// Processors whose time passes at once: the instruction clock counts what all of them do, one
    /// after the other.
    parallel: u32,
}

#[derive(Default)]
struct Shared {
    counts: Vec<AtomicU64>,
    stop: AtomicBool,
}

impl Soaker {
    /// Starts one thread on each of `cpus` processors; a step takes `step` nanoseconds.
    pub fn start(cpus: usize, step: f64) -> Self {
        Self::with(cpus, (step, 1), soak)
    }

    /// Starts one thread on each of `cpus` processors, which count nanoseconds by the clock.
    pub fn timed(cpus: usize) -> Self {
        Self::with(cpus, (1.0, cpus as u32), soak_by_clock)
    }

    fn with(cpus: usize, (step, parallel): (f64, u32), soak: fn(&Shared, usize)) -> Self {
        let shared = Arc::new(Shared {
            counts: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
        });
        let threads = (0..cpus).map(|cpu| {
            let shared = shared.clone();
            thread::spawn(move || soak(&shared, cpu))
        });
        Self { threads: threads.collect(), shared, step, parallel }
    }

    /// Nanoseconds of a step by the instruction clock, on a machine of `cpus` processors. Nothing
    /// else should run for the 50 ms that it takes.
    pub fn calibrate(cpus: usize) -> Result<f64, Error> {
        let soaker = Self::start(cpus, 0.0);
        thread::sleep(CALIBRATION / 5);
        let (start, before) = (Instant::now(), soaker.count());
        thread::sleep(CALIBRATION);
        let (elapsed, steps) = (start.elapsed(), soaker.count() - before);
        match steps {
            0 => Err(Error::Invalid(
                "the soaker did not run: no processor time was left while nothing else ran".into(),
            )),
            _ => Ok(elapsed.as_nanos() as f64 / steps as f64),
        }
    }

    /// Steps of all threads so far.
    pub fn count(&self) -> u64 {
        self.shared.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Busy time of all processors in `elapsed`, in which `steps` were counted.
    pub fn busy(&self, elapsed: Duration, steps: u64) -> Duration {
        busy(elapsed * self.parallel, steps, self.step)
    }
}

fn busy(available: Duration, steps: u64, step: f64) -> Duration {
    available.saturating_sub(Duration::from_nanos((steps as f64 * step) as u64))
}

impl Drop for Soaker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that only counts cannot panic.
            let _ = thread.join();
        }
    }
}

fn soak(shared: &Shared, cpu: usize) {
    settle(cpu);
    let Some(count) = shared.counts.get(cpu) else { return };
    let mut steps = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        steps += 1;
        // QEMU looks at its devices at this hint, as it does when the kernel's own idle loop polls.
        std::hint::spin_loop();
        count.store(steps, Ordering::Relaxed);
    }
}

fn soak_by_clock(shared: &Shared, cpu: usize) {
    settle(cpu);
    let Some(count) = shared.counts.get(cpu) else { return };
    let longest = usual_look() * INTERRUPTED;
    let (mut soaked, mut last) = (Duration::ZERO, Instant::now());
    while !shared.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let passed = now.duration_since(last);
        last = now;
        if passed <= longest {
            soaked += passed;
            count.store(soaked.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

/// How long a look at the clock takes when nobody interrupts: the middle one of many.
fn usual_look() -> Duration {
    let mut looks = [Duration::ZERO; LOOKS];
    let mut last = Instant::now();
    for look in &mut looks {
        let now = Instant::now();
        *look = now.duration_since(last);
        last = now;
    }
    looks.sort_unstable();
    looks[LOOKS / 2].max(Duration::from_nanos(50))
}

/// Puts the calling thread on processor `cpu` and into the idle class. Both are always allowed for
/// one's own thread; if they fail nevertheless, calibration still holds and the count is only less
/// exact.
pub(super) fn settle(cpu: usize) {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `cpu_set_t` is a plain array of bits, for which zeroes are valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu < libc::CPU_SETSIZE as usize {
        // SAFETY: the index is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: both calls read the values that they are given and concern the calling thread (0)
    // alone.
    unsafe {
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_soaked_was_busy() {
        assert_eq!(busy(Duration::from_micros(10), 1000, 4.0), Duration::from_micros(6));
    }

    #[test]
    fn more_steps_than_time_is_not_negative_work() {
        assert_eq!(busy(Duration::from_micros(1), 1000, 4.0), Duration::ZERO);
    }

    #[test]
    fn soakers_count_and_end_when_dropped() {
        for soaker in [Soaker::start(1, 1.0), Soaker::timed(1)] {
            // On a busy machine the idle class gets little, but not nothing.
            let start = Instant::now();
            while soaker.count() == 0 && start.elapsed() < Duration::from_secs(30) {
                thread::sleep(Duration::from_millis(1));
            }
            assert!(soaker.count() > 0);
        }
    }

    #[test]
    fn a_timed_soaker_never_counts_more_than_the_time_that_passed() {
        let (start, soaker) = (Instant::now(), Soaker::timed(1));
        thread::sleep(Duration::from_millis(30));
        let count = soaker.count();
        assert!(u128::from(count) <= start.elapsed().as_nanos());
    }
}
