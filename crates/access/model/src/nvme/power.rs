//! Power states, and the transitions between them that the controller makes by itself. [NVMe
//! 5.1.25.1.6]
//!
//! State 0 takes commands. The others are deeper ones that do not: a command of an I/O queue waits
//! until the controller has left them. It is idle from its last I/O command on.

use std::time::{Duration, Instant};

use ring3_spec::nvme::feature::{POWER_STATES, Transition};

use super::controller::NvmeModel;
use crate::Bus;

/// A state that takes no commands, behind state 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// ENLAT.
    pub entry: Duration,
    /// EXLAT.
    pub exit: Duration,
}

/// What its power states were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PowerCounters {
    /// The state now.
    pub state: usize,
    /// How often each state behind state 0 was entered.
    pub entered: Vec<u64>,
    /// Commands that waited until it was left.
    pub woken: u64,
}

/// The power state of a controller, and what it does by itself.
#[derive(Default)]
pub(super) struct Power {
    pub(super) counters: PowerCounters,
    /// What the host has set, if the controller may change its state by itself.
    transitions: Option<[Transition; POWER_STATES]>,
    /// When it goes on to the next state.
    pub(super) due: Option<Instant>,
}

impl Power {
    /// It may go from one of `sleeps` to another only as `transitions` say; never if there are
    /// none.
    pub(super) fn set(
        &mut self,
        bus: &Bus,
        transitions: Option<[Transition; POWER_STATES]>,
        sleeps: &[Sleep],
    ) {
        self.transitions = transitions;
        self.rest(bus, Duration::ZERO, sleeps);
    }

    /// A reset: it is awake, and stays so until the host says otherwise.
    pub(super) fn stop(&mut self) {
        (self.transitions, self.due, self.counters.state) = (None, None, 0);
    }

    /// Whether it may go to state `state`, of any state.
    pub(super) fn may_enter(&self, state: usize) -> bool {
        self.transitions
            .is_some_and(|entries| entries.iter().any(|entry| entry.target() as usize == state))
    }

    /// It is idle from `after` from now on.
    fn rest(&mut self, bus: &Bus, after: Duration, sleeps: &[Sleep]) {
        self.due = self.next(sleeps).map(|(_, idle)| Instant::now() + after + idle);
        self.due.iter().for_each(|&due| bus.wake_at(due));
    }

    /// Where it goes from here, and when.
    fn next(&self, sleeps: &[Sleep]) -> Option<(usize, Duration)> {
        let entry = self.transitions.as_ref()?.get(self.counters.state)?;
        let (target, idle) = (entry.target() as usize, entry.idle_ms());
        let goes = target > self.counters.state && target <= sleeps.len() && idle > 0;
        goes.then(|| (target, Duration::from_millis(idle)))
    }

    /// Goes to the next state if it is time.
    pub(super) fn tick(&mut self, bus: &Bus, now: Instant, sleeps: &[Sleep]) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        if let Some((target, _)) = self.next(sleeps) {
            self.counters.state = target;
            self.counters.entered.resize(sleeps.len(), 0);
            self.counters.entered[target - 1] += 1;
            self.rest(bus, sleeps[target - 1].entry, sleeps);
        }
    }

    /// A command has come: how long it waits until state 0 is there again.
    fn wake(&mut self, bus: &Bus, sleeps: &[Sleep]) -> Duration {
        let state = std::mem::take(&mut self.counters.state);
        let exit = state.checked_sub(1).and_then(|index| sleeps.get(index));
        let exit = exit.map_or(Duration::ZERO, |sleep| sleep.exit);
        self.counters.woken += u64::from(state > 0);
        self.rest(bus, exit, sleeps);
        exit
    }
}

impl NvmeModel {
    /// What leaving its power state costs a command of an I/O queue.
    pub(super) fn wake_cost(&mut self, bus: &Bus) -> Duration {
        self.power.wake(bus, &self.shape.sleeps)
    }
}
