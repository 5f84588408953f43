//! Where the time of a request goes, and what it takes of the kernel.

use super::event::{Event, What};
use crate::stats::Summary;

/// Who a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The thread that wants the data.
    Client,
    /// A thread of the driver's process, where that is another one.
    Driver,
}

/// What ends a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The client's own mark of this number, counted from its first.
    Mark(usize),
    /// The kernel hands the request to a block device's driver.
    Issue,
    /// The disk's interrupt.
    Interrupt,
    /// Somebody is woken.
    Waking(Who),
    /// Somebody runs.
    Running(Who),
    /// Somebody makes a system call.
    Call(Who),
}

/// A step of a request: the metric that holds its time, and its end. It begins where the one before
/// ends, the first at mark 0.
pub type Step = (&'static str, Until);

/// The kernel's driver under read().
pub const KERNEL: &[Step] = &[
    ("queue_us", Until::Issue),
    ("device_us", Until::Interrupt),
    ("interrupt_us", Until::Waking(Who::Client)),
    ("client_wakeup_us", Until::Running(Who::Client)),
    ("return_us", Until::Mark(1)),
];

/// A driver in the client's process that sleeps for its interrupt. Mark 1 is after the doorbell.
pub const PROCESS: &[Step] = &[
    ("queue_us", Until::Mark(1)),
    ("device_us", Until::Interrupt),
    ("interrupt_us", Until::Waking(Who::Client)),
    ("scheduler_us", Until::Running(Who::Client)),
    ("handler_us", Until::Mark(2)),
];

/// The same without interrupts: the handler's time is in the device's.
pub const POLLED: &[Step] = &[("queue_us", Until::Mark(1)), ("device_us", Until::Mark(2))];

/// A driver in a process of its own. It goes back to sleep by the system call that hands results
/// over, too.
pub const EXPORT: &[Step] = &[
    ("queue_us", Until::Issue),
    ("driver_wakeup_us", Until::Running(Who::Driver)),
    ("driver_queue_us", Until::Call(Who::Driver)),
    ("device_us", Until::Interrupt),
    ("interrupt_us", Until::Waking(Who::Driver)),
    ("scheduler_us", Until::Running(Who::Driver)),
    ("handler_us", Until::Call(Who::Driver)),
    ("signal_us", Until::Waking(Who::Client)),
    ("client_wakeup_us", Until::Running(Who::Client)),
    ("return_us", Until::Mark(1)),
];

/// The steps in the order in which they are told.
pub const STEPS: [(&str, &str); 10] = [
    ("queue_us", "queue new work"),
    ("driver_wakeup_us", "wake the driver"),
    ("driver_queue_us", "driver queues work"),
    ("device_us", "device"),
    ("interrupt_us", "interrupt, kernel stub"),
    ("scheduler_us", "scheduler latency"),
    ("handler_us", "driver's handler"),
    ("signal_us", "signal the client"),
    ("client_wakeup_us", "wake the client"),
    ("return_us", "return to the client"),
];

/// What was recorded of some requests, one after the other.
pub struct Recording<'a> {
    /// The kernel's events in the order of time.
    pub events: &'a [Event],
    /// Each request's marks.
    pub marks: &'a [Vec<u64>],
    /// The client's thread.
    pub client: u32,
    /// The driver's threads.
    pub drivers: &'a [u32],
    /// Nanoseconds of a tick of the time stamp counter.
    pub tick: f64,
}

impl Recording<'_> {
    /// The median time of each step in microseconds, and of how many requests. A request whose
    /// steps come in another order, because its interrupt was there before anybody slept, is left
    /// out.
    pub fn medians(&self, steps: &[Step]) -> (Vec<(&'static str, f64)>, usize) {
        let cuts: Vec<Vec<f64>> =
            self.marks.iter().filter_map(|marks| self.cut(marks, steps)).collect();
        let median = |index: usize| {
            let times: Vec<f64> = cuts.iter().filter_map(|cut| cut.get(index).copied()).collect();
            Summary::of(&times).map(|summary| summary.median)
        };
        let medians = steps
            .iter()
            .enumerate()
            .filter_map(|(index, (metric, _))| Some((*metric, median(index)?)));
        (medians.collect(), cuts.len())
    }

    /// One request's steps in microseconds.
    fn cut(&self, marks: &[u64], steps: &[Step]) -> Option<Vec<f64>> {
        let (&first, &last) = (marks.first()?, marks.last()?);
        let from = self.events.partition_point(|event| event.at < first);
        let mut events =
            self.events.get(from..)?.iter().take_while(|event| event.at <= last).peekable();
        let mut at = first;
        let mut times = Vec::with_capacity(steps.len());
        for (_, until) in steps {
            let end = match until {
                Until::Mark(mark) => *marks.get(*mark)?,
                until => events.find(|event| event.at >= at && self.ends(event, *until))?.at,
            };
            times.push(end.checked_sub(at)? as f64 * self.tick / 1000.0);
            at = end;
        }
        Some(times)
    }

    fn ends(&self, event: &Event, until: Until) -> bool {
        match (&event.what, until) {
            (What::Issue(_), Until::Issue) => true,
            (What::Interrupt(name), Until::Interrupt) => is_disk(name),
            (What::Waking(thread), Until::Waking(who))
            | (What::Running(thread), Until::Running(who)) => self.is(*thread, who),
            (What::Call, Until::Call(who)) => self.is(event.thread, who),
            _ => false,
        }
    }

    fn is(&self, thread: u32, who: Who) -> bool {
        match who {
            Who::Client => thread == self.client,
            Who::Driver => self.drivers.contains(&thread),
        }
    }

    /// Per request of `requests`, from the first mark to the last: system calls and context
    /// switches of client and driver, and the disk's interrupts.
    pub fn counts(&self, requests: usize) -> Vec<(&'static str, f64)> {
        let first = self.marks.first().and_then(|marks| marks.first()).copied().unwrap_or(0);
        let last = self.marks.last().and_then(|marks| marks.last()).copied().unwrap_or(0);
        let ours = |thread: u32| self.is(thread, Who::Client) || self.is(thread, Who::Driver);
        let within = || self.events.iter().filter(|event| (first..=last).contains(&event.at));
        let count = |wanted: &dyn Fn(&Event) -> bool| {
            within().filter(|event| wanted(event)).count() as f64 / requests.max(1) as f64
        };
        vec![
            ("calls_per_op", count(&|event| event.what == What::Call && ours(event.thread))),
            (
                "switches_per_op",
                count(&|event| matches!(event.what, What::Running(thread) if ours(thread))),
            ),
            (
                "interrupts_per_op",
                count(&|event| matches!(&event.what, What::Interrupt(name) if is_disk(name))),
            ),
        ]
    }
}

/// Interrupts are named by the driver that took them.
fn is_disk(name: &str) -> bool {
    ["nvme", "vfio", "ahci", "ata", "uio"].iter().any(|driver| name.starts_with(driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u32 = 10;
    const DRIVER: u32 = 20;

    fn event(at: u64, thread: u32, what: What) -> Event {
        Event { at, thread, what }
    }

    /// A read by the kernel's driver: 2 us to the driver, 30 in the device, 3 in the handler, 4 to
    /// run again, 1 back.
    fn read(start: u64) -> (Vec<Event>, Vec<u64>) {
        let events = vec![
            event(start + 500, CLIENT, What::Call),
            event(start + 2000, CLIENT, What::Issue("8,0".into())),
            event(start + 2500, CLIENT, What::Running(0)),
            event(start + 9000, 0, What::Interrupt("timer".into())),
            event(start + 32_000, 0, What::Interrupt("nvme0q1".into())),
            event(start + 35_000, 0, What::Waking(CLIENT)),
            event(start + 39_000, 0, What::Running(CLIENT)),
        ];
        (events, vec![start, start + 40_000])
    }

    fn recording<'a>(events: &'a [Event], marks: &'a [Vec<u64>]) -> Recording<'a> {
        Recording { events, marks, client: CLIENT, drivers: &[DRIVER], tick: 1.0 }
    }

    #[test]
    fn a_request_is_cut_where_its_steps_end() {
        let (events, marks) = read(1000);
        let (medians, requests) = recording(&events, &[marks]).medians(KERNEL);
        let expected = [
            ("queue_us", 2.0),
            ("device_us", 30.0),
            ("interrupt_us", 3.0),
            ("client_wakeup_us", 4.0),
            ("return_us", 1.0),
        ];
        assert_eq!((medians.as_slice(), requests), (expected.as_slice(), 1));
    }

    #[test]
    fn a_request_whose_interrupt_came_before_the_sleep_is_left_out() {
        let (mut events, marks) = read(1000);
        events.retain(|event| !matches!(event.what, What::Waking(_)));
        assert_eq!(recording(&events, &[marks]).medians(KERNEL), (vec![], 0));
    }

    #[test]
    fn what_happens_between_the_first_and_the_last_mark_is_counted() {
        let ((mut events, first), (more, second)) = (read(1000), read(101_000));
        events.extend(more);
        events.push(event(500_000, CLIENT, What::Call));
        let counts = recording(&events, &[first, second]).counts(2);
        assert_eq!(
            counts,
            [("calls_per_op", 1.0), ("switches_per_op", 1.0), ("interrupts_per_op", 1.0)]
        );
    }

    #[test]
    fn every_step_of_a_script_has_a_name() {
        for (metric, _) in [KERNEL, PROCESS, POLLED, EXPORT].concat() {
            assert!(STEPS.iter().any(|(name, _)| *name == metric), "{metric}");
        }
    }
}
