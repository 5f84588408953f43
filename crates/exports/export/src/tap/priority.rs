//! How soon a thread that moves packets runs beside the programs that it serves.
//!
//! # Why
//! A driver in the kernel works in interrupts, ahead of every program. A thread runs when the
//! scheduler gives it a turn. What a program sends until then waits in the TAP's own queue, which
//! no queueing discipline sees and which loses what it has no room for. A thread that runs at once
//! keeps that queue short, and a program that sends too much waits for the processor instead.
//!
//! # Shape
//! The thread has its [`Priority`] as long as it sleeps now and then. One that has run for
//! [`MOST`] without a sleep, whether it moved packets or polled for them, shares the processor as
//! programs do for as long, or until it has slept: or packets that are received would keep the
//! programs from running that want them, as the kernel hands such work to an ordinary thread too.
//! Then it has its priority again: who sends without end would leave it no sleep, and it would stay
//! behind.
//!
//! # Limits
//! A sleep of any length counts. Packets that come just more slowly than the thread moves them
//! leave programs what the kernel keeps for them: 5 percent beside a real-time priority, and a
//! ninetieth or so beside nice -20. [sched(7), sched_rt_runtime_us]

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};

use super::Error;

/// Of the time in which a thread has its priority without a sleep. More than some batches take on a
/// slow processor.
const MOST: Duration = Duration::from_millis(10);
/// The clock is read after so many turns.
const LOOK: u32 = 16;
/// The lowest of the real-time priorities: ahead of every ordinary thread, and of no other.
/// [sched(7)]
const REAL_TIME: libc::c_int = 1;
/// The nice value that comes first. [sched(7)]
const NICEST: i32 = -20;

/// How soon a thread runs that moves packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// As programs do.
    #[default]
    Ordinary,
    /// Before programs of the same session or control group, by its nice value. As programs do
    /// where this process may not change that.
    High,
    /// Before every program. An error where this process may not.
    RealTime,
}

impl Priority {
    /// Fails if this process may not have threads with it.
    pub fn check(self) -> Result<(), Error> {
        if self != Self::RealTime {
            return Ok(());
        }
        // A thread of its own: the calling one stays as it is.
        let tried = thread::Builder::new()
            .name("priority".into())
            .spawn(|| real_time(true))
            .map(thread::JoinHandle::join);
        let tried = tried.and_then(|joined| {
            joined.unwrap_or_else(|_| Err(io::Error::other("a thread panicked: a defect of ring3")))
        });
        let what = "--priority real-time needs CAP_SYS_NICE or RLIMIT_RTPRIO (`ulimit -r 1`): run \
                    as root, or leave it out";
        tried.map_err(|error| Error::os(what, error))
    }
}

/// The priority of the calling thread.
pub struct PriorityBoost {
    priority: Priority,
    /// The thread's nice value at first.
    nice: i32,
    now: bool,
    /// Since when it has run without a sleep and with this priority, as far as it was looked at.
    since: Option<Instant>,
    turns: u32,
}

impl PriorityBoost {
    /// The calling thread has `priority` from now on, if it may.
    pub fn new(priority: Priority) -> Self {
        // Of the thread, not of its process. [getpriority(2), C library/kernel differences] One in
        // a sandbox may not ask.
        let nice =
            if priority == Priority::High { getpriority_process(None).unwrap_or(0) } else { 0 };
        let mut ahead = Self { priority, nice, now: false, since: None, turns: 0 };
        ahead.slept();
        ahead
    }

    /// The thread has moved packets, and goes on without a sleep.
    #[inline]
    pub fn worked(&mut self) {
        self.turns += 1;
        if self.priority != Priority::Ordinary && self.turns.is_multiple_of(LOOK) {
            self.poll(Instant::now());
        }
    }

    /// The thread has waited for packets, and may have slept. If it has polled instead, it has not
    /// left the processor.
    #[inline]
    pub fn waited(&mut self, slept: bool) {
        if slept { self.slept() } else { self.worked() }
    }

    #[inline]
    fn slept(&mut self) {
        (self.since, self.turns) = (None, 0);
        if !self.now && self.priority != Priority::Ordinary {
            self.set(true);
        }
    }

    #[cold]
    fn poll(&mut self, now: Instant) {
        if now.saturating_duration_since(*self.since.get_or_insert(now)) >= MOST {
            self.since = Some(now);
            self.set(!self.now);
        }
    }

    #[cold]
    fn set(&mut self, ahead: bool) {
        let set = match self.priority {
            Priority::Ordinary => Ok(()),
            Priority::High => nice(if ahead { NICEST } else { self.nice }),
            Priority::RealTime => real_time(ahead),
        };
        match set {
            Ok(()) => self.now = ahead,
            Err(error) => {
                if (self.priority, ahead) != (Priority::High, true) {
                    tracing::warn!(
                        %error,
                        "the priority of a thread that moves packets cannot be changed any more"
                    );
                }
                self.priority = Priority::Ordinary;
            }
        }
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        if self.now {
            self.set(false);
        }
    }
}

/// Sets the calling thread's nice value. One that is less than before needs CAP_SYS_NICE or
/// RLIMIT_NICE.
fn nice(value: i32) -> io::Result<()> {
    policy(libc::SCHED_OTHER, 0)?;
    Ok(setpriority_process(None, value)?)
}

/// Sets the calling thread's policy. It needs CAP_SYS_NICE or RLIMIT_RTPRIO.
fn real_time(ahead: bool) -> io::Result<()> {
    if ahead { policy(libc::SCHED_FIFO, REAL_TIME) } else { policy(libc::SCHED_OTHER, 0) }
}

/// Threads that the kernel starts in this one's name, such as vhost-net's, do not inherit its
/// priority: nothing would take it from them. That stays set with the ordinary policy too: to take
/// it back needs CAP_SYS_NICE, and a thread with a limit alone would stay ahead.
fn policy(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: all zeroes are a `sched_param`: some C libraries have more than the priority in it.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: the call reads one structure; thread 0 is the calling one.
    let done = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy of the calling thread, without its flags.
    fn policy() -> libc::c_int {
        // SAFETY: a question without memory.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    fn niceness() -> i32 {
        getpriority_process(None).unwrap()
    }

    /// One that runs ahead; `None` where this process may not.
    fn ahead() -> Option<PriorityBoost> {
        let ahead = PriorityBoost::new(Priority::RealTime);
        if !ahead.now {
            println!("skipped: no right to real-time priorities");
        }
        ahead.now.then_some(ahead)
    }

    #[test]
    fn a_thread_that_sleeps_runs_ahead_and_one_that_does_not_shares_the_processor_until_it_has_slept()
     {
        let Some(mut ahead) = ahead() else { return };
        assert_eq!(policy(), libc::SCHED_FIFO);
        let start = Instant::now();
        ahead.poll(start);
        ahead.poll(start + MOST / 2);
        assert_eq!(policy(), libc::SCHED_FIFO);
        ahead.slept();
        ahead.poll(start + MOST);
        assert_eq!(policy(), libc::SCHED_FIFO, "it has slept meanwhile");
        ahead.poll(start + MOST * 2);
        assert_eq!(policy(), libc::SCHED_OTHER);
        ahead.slept();
        assert_eq!(policy(), libc::SCHED_FIFO);
        drop(ahead);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_thread_that_never_sleeps_runs_ahead_again_after_it_has_shared_the_processor() {
        let Some(mut ahead) = ahead() else { return };
        let mut seen = Vec::new();
        let start = Instant::now();
        while seen.len() < 3 && start.elapsed() < Duration::from_secs(10) {
            ahead.worked();
            let policy = policy();
            if seen.last() != Some(&policy) {
                seen.push(policy);
            }
        }
        assert_eq!(seen, [libc::SCHED_FIFO, libc::SCHED_OTHER, libc::SCHED_FIFO]);
    }

    #[test]
    fn a_thread_that_polls_and_does_not_sleep_shares_the_processor() {
        let Some(mut ahead) = ahead() else { return };
        let start = Instant::now();
        while policy() == libc::SCHED_FIFO && start.elapsed() < Duration::from_secs(10) {
            ahead.waited(false);
        }
        assert_eq!(policy(), libc::SCHED_OTHER);
        ahead.waited(true);
        assert_eq!(policy(), libc::SCHED_FIFO);
    }

    #[test]
    fn a_thread_whose_right_is_a_limit_alone_shares_the_processor_again_too() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let mut limit = getrlimit(Resource::Rtprio);
        (limit.current, limit.maximum) = (Some(1), limit.maximum.map(|most| most.max(1)));
        if setrlimit(Resource::Rtprio, limit).is_err() {
            println!("skipped: no right to a limit of real-time priorities");
            return;
        }
        // The thread's capabilities go with it.
        let limited = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            let mut ahead = ahead()?;
            ahead.set(false);
            Some(policy())
        };
        let policy = thread::spawn(limited).join().unwrap();
        assert!(policy.is_none_or(|policy| policy == libc::SCHED_OTHER), "{policy:?}");
    }

    #[test]
    fn a_thread_that_it_starts_does_not_run_ahead() {
        let Some(_ahead) = ahead() else { return };
        assert_eq!(thread::spawn(policy).join().unwrap(), libc::SCHED_OTHER);
    }

    #[test]
    fn where_it_is_not_wanted_nothing_is_asked_for() {
        let mut ahead = PriorityBoost::new(Priority::Ordinary);
        ahead.slept();
        (0..2 * LOOK).for_each(|_| ahead.worked());
        assert_eq!((ahead.now, policy()), (false, libc::SCHED_OTHER));
    }

    #[test]
    fn a_high_priority_is_a_nice_value_which_goes_when_the_thread_does_not_sleep_and_at_the_end() {
        let before = niceness();
        let mut ahead = PriorityBoost::new(Priority::High);
        if !ahead.now {
            println!("skipped: no right to nice values below zero");
            return;
        }
        assert_eq!((policy(), niceness()), (libc::SCHED_OTHER, NICEST));
        assert_eq!(
            thread::spawn(niceness).join().unwrap(),
            0,
            "a thread that it starts has none of it"
        );
        let start = Instant::now();
        ahead.poll(start);
        ahead.poll(start + MOST);
        assert_eq!(niceness(), before);
        ahead.waited(true);
        assert_eq!(niceness(), NICEST);
        drop(ahead);
        assert_eq!(niceness(), before);
    }

    #[test]
    fn who_may_not_have_a_high_priority_goes_on_with_the_ordinary_one() {
        use rustix::process::{Resource, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        let most = getrlimit(Resource::Nice);
        // For the whole process, whose other threads have the capability if it has a right at all.
        if setrlimit(Resource::Nice, rustix::process::Rlimit { current: Some(0), ..most }).is_err()
        {
            println!("skipped: the limit of nice values cannot be set");
            return;
        }
        // The thread's capabilities go with it.
        let tried = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_NICE);
            set_capabilities(None, sets).unwrap();
            let mut ahead = PriorityBoost::new(Priority::High);
            ahead.waited(true);
            (ahead.now, ahead.priority, niceness())
        };
        assert_eq!(thread::spawn(tried).join().unwrap(), (false, Priority::Ordinary, niceness()));
    }
}
