//! The supervision policy of one device: a state machine of plain values, without I/O.
//!
//! # Shape
//! [`Machine::handle`] takes an event and returns actions. Facts (which processes live, what is
//! fenced, what the kernel has) are stored separately from the desired state; `decide` compares the
//! two, so that events may come in any order, twice, or never.
//!
//! # Invariants
//! `tests/mod.rs` checks these.
//! - At most one process drives the device. An old driver that has handed over and was killed may
//!   still be freeing its memory.
//! - After a driver has ended, the device is fenced, or claimed again, before the next one drives.
//!   Two exceptions: a driver that has handed over ([`Start::HandedOver`]), and adoption
//!   ([`Start::Adopted`]). Adoption needs a driver that was serving, that was not reported
//!   unhealthy, and that was killed, and a standby that is ready at that moment.
//! - Every wait ends: by an event, or at [`Machine::deadline`]. A driver that serves before its
//!   device is announced has no deadline of its own; the health check (`health.rs`) ends it if the
//!   kernel's requests do not.
//! - A driver is restarted after at most [`RestartPolicy::burst`] deaths within `window`. After the
//!   next death it is restarted only on a user's command.
//! - I/O that waits longer than [`RestartPolicy::io_timeout`] fails. One exception: clients have
//!   registered memory, and the device could not be fenced.

mod budget;
mod decide;
mod sleep;
#[cfg(test)]
mod tests;
mod words;

use std::time::{Duration, Instant};

use ring3_control::status::State;

pub(crate) use budget::Budget;
pub use budget::RestartPolicy;
pub use sleep::Sleep;
pub use words::{Action, DesiredState, Event, MissedDeadline, PreviousState, Start, Verdict};

/// State of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Absent,
    Claiming,
    /// Claimed and stopped: fenced, or not started yet.
    Quiet,
    /// A driver process has the lease.
    Driven,
    /// The last driver has handed over: the controller runs, and its state is saved.
    HandedOver,
    /// The driver that served was killed. The standby adopts the device now, or it is fenced.
    Orphaned,
    /// The last driver is dead, and the device is not fenced yet.
    Unfenced,
    Fencing,
    /// The fence has failed.
    FenceFailed,
    /// The device was removed, and its disks are being removed.
    Gone,
}

/// Where the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    None,
    Opening,
    Offering,
    /// It has the kernel device and is about to serve.
    Taking,
    /// It serves, and the device is not announced to users yet.
    Serving,
    Running,
    Leaving,
    Stopping,
    Dying,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standby {
    None,
    Preparing,
    Ready,
    Dying,
}

/// State of the block device or interface in the kernel, which users open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelDevice {
    None,
    Preparing,
    Ready,
    /// `stale`: its driver has died meanwhile.
    Starting {
        stale: bool,
    },
    Up,
    /// Its driver has died: users wait.
    Lost,
    /// Its driver has died before there were users: it is removed and created again.
    Discard,
    Stopping,
}

/// Progress of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upgrade {
    /// The old standby is being ended.
    Clearing,
    /// The new standby is being started.
    Waiting,
    /// The old driver is handing over.
    Leaving,
    /// The new driver has to start serving.
    Starting,
    /// The new driver serves, and the upgrade can still be reverted.
    Probation,
}

/// Deadlines of what this state machine waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Deadlines {
    claim: Option<Instant>,
    standby: Option<Instant>,
    driver: Option<Instant>,
    /// When waiting I/O fails.
    io: Option<Instant>,
    probation: Option<Instant>,
    wake: Option<Instant>,
}

/// Interval between two probes for an absent device.
const CLAIM_AGAIN: Duration = Duration::from_secs(5);
/// How long a driver may live on whose disks are taken away by force.
const REFUSE: Duration = Duration::from_secs(30);
/// How long a standby may take to become ready.
const PREPARE: Duration = Duration::from_secs(30);
/// How long a driver may take to register its buffers with the kernel.
const TAKE: Duration = Duration::from_secs(15);
/// How long it may take to complete the requests at the device before it hands over.
const LEAVE: Duration = Duration::from_secs(10);
/// How long a driver may take to stop: a rotating drive may need minutes to flush its cache.
const STOP: Duration = Duration::from_secs(190);
/// Interval between two kills of a process that does not exit.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// How long a new program must serve before the upgrade can no longer be reverted.
const PROBATION: Duration = Duration::from_secs(1);
/// How long the kernel may take for a command about the disks before a waiting user gets an answer:
/// more than the kernel needs to notice that a server has died.
const KERNEL: Duration = Duration::from_secs(100);

/// The state machine of one device.
#[derive(Debug)]
pub struct Machine {
    policy: RestartPolicy,
    goal: DesiredState,
    device: Device,
    driver: Driver,
    standby: Standby,
    export: KernelDevice,
    upgrade: Option<Upgrade>,
    /// The machine sleeps, or is about to.
    sleep: Option<Sleep>,
    budget: Budget,
    /// Consecutive starts that took too long.
    slow: u32,
    due: Deadlines,
    /// The kernel device has, or had, users.
    shown: bool,
    /// The driver has the kernel device.
    given: bool,
    /// The driver has served users.
    ran: bool,
    /// The driver was killed on purpose.
    expected: bool,
    /// The standby was killed on purpose, because another one is wanted, or none.
    dismissed: bool,
    /// A user command waits for its result.
    asked: bool,
    /// The kernel command in progress and its deadline: `None` once the deadline is over.
    kernel: Option<(KernelDevice, Option<Instant>)>,
}

impl Machine {
    /// A device that has to be claimed and driven; [`Event::Timer`] starts it.
    pub fn new(policy: RestartPolicy) -> Self {
        let (goal, device, driver, standby, export) =
            (DesiredState::Run, Device::Absent, Driver::None, Standby::None, KernelDevice::None);
        let (budget, due) = (Budget::default(), Deadlines::default());
        let (shown, given, ran, expected, dismissed, asked) =
            (false, false, false, false, false, false);
        Self {
            policy,
            goal,
            device,
            driver,
            standby,
            export,
            upgrade: None,
            sleep: None,
            budget,
            slow: 0,
            due,
            shown,
            given,
            ran,
            expected,
            dismissed,
            asked,
            kernel: None,
        }
    }

    /// The state machine of a device that an earlier supervisor had, in its `previous` state.
    /// Without a driver that serves, the device is fenced before anything else.
    pub fn restore(
        policy: RestartPolicy,
        goal: DesiredState,
        previous: PreviousState,
        now: Instant,
    ) -> Self {
        let mut machine = Self { goal, shown: previous.shown, ..Self::new(policy) };
        machine.device = match previous {
            PreviousState { held: false, .. } => Device::Absent,
            PreviousState { driven: true, .. } => Device::Driven,
            PreviousState { .. } => Device::Unfenced,
        };
        machine.export = match previous {
            PreviousState { shown: false, .. } => KernelDevice::None,
            PreviousState { held: true, driven: true, .. } => KernelDevice::Up,
            PreviousState { .. } => KernelDevice::Lost,
        };
        if machine.export == KernelDevice::Up {
            (machine.driver, machine.given) = (Driver::Running, true);
        }
        if machine.export == KernelDevice::Lost {
            machine.begin_outage(now);
        }
        machine
    }

    /// An absent device may exist now.
    pub fn look_again(&mut self) {
        self.due.claim = None;
    }

    /// Returns the actions that follow `event`, in this order.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        self.note(event, now, &mut actions);
        if self.driver == Driver::None {
            self.begin_outage(now);
            self.give_up_if_exhausted(&mut actions);
        }
        self.expire(now, &mut actions);
        if self.is_vain() {
            self.fail(&mut actions);
        }
        while let Some(action) = self.decide(now) {
            actions.push(action);
        }
        self.watch_kernel(now);
        self.judge(&mut actions);
        actions
    }

    /// When [`Event::Timer`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let Deadlines { claim, standby, driver, io, probation, wake } = self.due;
        let claim = claim.filter(|_| !self.is_asleep());
        let starts = self.goal == DesiredState::Run
            && self.driver == Driver::None
            && self.is_held()
            && !self.is_asleep();
        let pause = self.budget.pause.filter(|_| starts);
        let spawn = self.budget.spawn.filter(|_| self.wants_standby());
        let kernel = self.kernel.and_then(|(_, due)| due);
        [claim, standby, driver, io, probation, wake, pause, spawn, kernel]
            .into_iter()
            .flatten()
            .min()
    }

    /// The state as users see it.
    pub fn state(&self) -> State {
        match (self.goal, self.upgrade) {
            // No user waits for a driver any more; users wait for the kernel alone.
            (DesiredState::Fail, _) if self.is_stuck() || self.is_over() => State::Failed,
            (DesiredState::Fail, _) if self.kernel.is_some() => State::Stopping,
            (DesiredState::Stop { .. }, _) if self.is_at_rest() => State::Stopped,
            (DesiredState::Stop { .. }, _) => State::Stopping,
            (DesiredState::Run, _) if self.is_asleep() => State::Sleeping,
            (DesiredState::Run, _) if matches!(self.device, Device::Absent | Device::Claiming) => {
                State::Absent
            }
            (DesiredState::Run, Some(Upgrade::Leaving | Upgrade::Starting)) => State::Upgrading,
            _ if self.export == KernelDevice::Up && self.driver != Driver::Dying => State::Running,
            (DesiredState::Run, _)
                if self.driver == Driver::None
                    && (self.budget.is_exhausted() || self.budget.pause.is_some()) =>
            {
                State::BackingOff
            }
            _ if self.shown => State::Recovering,
            _ => State::Starting,
        }
    }

    /// Whether a user command waits for its result: there is one at a time.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Deadline of waiting I/O. `None` while a driver serves it, or while none waits; a driver that
    /// is only starting does not clear it.
    pub fn io_deadline(&self) -> Option<Instant> {
        self.due.io
    }

    /// Whether a standby is ready.
    pub fn has_standby(&self) -> bool {
        self.standby == Standby::Ready
    }

    /// Whether the device should be driven.
    pub fn is_wanted(&self) -> bool {
        self.goal == DesiredState::Run && self.device != Device::Gone
    }

    /// Whether the device was removed, or the system wants it back.
    pub fn is_gone(&self) -> bool {
        self.device == Device::Gone
    }

    /// Whether the disks are announced to users, and a driver serves them.
    pub fn is_running(&self) -> bool {
        self.driver == Driver::Running
    }

    /// Whether the driver has yet to report its disks or card.
    pub fn is_opening(&self) -> bool {
        self.driver == Driver::Opening
    }

    /// Whether it has yet to report that it has handed over.
    pub fn is_leaving(&self) -> bool {
        self.driver == Driver::Leaving
    }

    /// Whether it has yet to report that its device is stopped.
    pub fn is_stopping(&self) -> bool {
        self.driver == Driver::Stopping
    }

    /// Whether it is being ended.
    pub fn is_dying(&self) -> bool {
        self.driver == Driver::Dying
    }

    /// Whether no restart is left, and no I/O waits.
    fn is_vain(&self) -> bool {
        let tired = self.goal == DesiredState::Run && self.budget.is_exhausted() && !self.shown;
        tired && (self.driver, self.export) == (Driver::None, KernelDevice::None)
    }

    /// No process runs, and nothing is served.
    fn is_at_rest(&self) -> bool {
        let device = matches!(self.device, Device::Absent | Device::Quiet | Device::FenceFailed);
        device
            && (self.driver, self.standby, self.export)
                == (Driver::None, Standby::None, KernelDevice::None)
    }

    /// No further action for a device that was given up: if it cannot be fenced, users who have
    /// registered memory wait until a user command tries the fence again.
    fn is_over(&self) -> bool {
        let is_unfenced = self.device == Device::FenceFailed && self.must_wait();
        self.is_at_rest() || (is_unfenced && self.standby == Standby::None)
    }

    /// The kernel does not complete its command.
    fn is_stuck(&self) -> bool {
        matches!(self.kernel, Some((_, None)))
    }

    fn is_held(&self) -> bool {
        !matches!(self.device, Device::Absent | Device::Claiming | Device::Gone)
    }

    /// Updates the facts. An event that does not fit them is late or false, and changes nothing.
    fn note(&mut self, event: Event, now: Instant, actions: &mut Vec<Action>) {
        match event {
            Event::Claimed if self.device == Device::Claiming => self.device = Device::Quiet,
            Event::Missing if self.device == Device::Claiming => {
                self.device = Device::Absent;
                self.due.claim = Some(now + CLAIM_AGAIN);
                if self.goal == DesiredState::Run {
                    self.answer(Verdict::Absent, actions);
                }
            }
            Event::Gone if self.is_held() => {
                self.device = Device::Gone;
                self.go_back(actions);
            }
            Event::Ready if self.standby == Standby::Preparing => {
                (self.standby, self.due.standby) = (Standby::Ready, None)
            }
            Event::StandbyEnded => self.standby_ended(now, actions),
            Event::StandbyLied if matches!(self.standby, Standby::Preparing | Standby::Ready) => {
                self.kill_standby(now, actions)
            }
            Event::Offers if self.driver == Driver::Opening => {
                (self.driver, self.due.driver) = (Driver::Offering, None)
            }
            Event::Serving if self.driver == Driver::Taking => {
                (self.driver, self.due.driver) = (Driver::Serving, None)
            }
            Event::HandedOver if self.driver == Driver::Leaving => {
                self.ended(Device::HandedOver, now, actions)
            }
            Event::Unhealthy if !matches!(self.driver, Driver::None | Driver::Dying) => {
                self.kill(now, actions)
            }
            Event::Ended if self.driver != Driver::None => {
                self.ended(Device::Unfenced, now, actions)
            }
            Event::Killed if self.driver != Driver::None => {
                let healthy = self.driver == Driver::Running && self.upgrade.is_none();
                self.ended(if healthy { Device::Orphaned } else { Device::Unfenced }, now, actions);
            }
            Event::Fenced if self.device == Device::Fencing => self.device = Device::Quiet,
            Event::FenceFailed if self.device == Device::Fencing => {
                self.device = Device::FenceFailed;
                self.fail(actions);
            }
            Event::Prepared if self.export == KernelDevice::Preparing => {
                self.export = KernelDevice::Ready
            }
            Event::Started => self.started(now),
            Event::ExportFailed => self.export_failed(now, actions),
            Event::ExportRefused if self.export == KernelDevice::Preparing && !self.shown => {
                self.export = KernelDevice::None;
                if self.goal == DesiredState::Run {
                    self.fail(actions);
                }
            }
            Event::ExportStopped if self.export == KernelDevice::Stopping => {
                (self.export, self.shown, self.due.io) = (KernelDevice::None, false, None);
            }
            Event::ExportBusy if self.export == KernelDevice::Stopping => {
                self.export = if self.driver == Driver::Running {
                    self.due.driver = None;
                    KernelDevice::Up
                } else {
                    KernelDevice::Lost
                };
                if let DesiredState::Stop { .. } = self.goal {
                    // A refused stop does not drive a device that could not be fenced.
                    self.goal = if self.device == Device::FenceFailed {
                        DesiredState::Fail
                    } else {
                        DesiredState::Run
                    };
                    self.answer(Verdict::Busy, actions);
                }
            }
            Event::Restart => self.restart(now, actions),
            Event::Stop { .. } if !self.asked || self.overrules(event) => {
                self.stop(event, now, actions)
            }
            Event::Upgrade if !self.asked && !self.is_asleep() => self.begin_upgrade(now, actions),
            Event::Sleep(sleep) if !self.asked => self.fall_asleep(sleep, now),
            Event::Wake => self.wake_up(now, actions),
            _ => {}
        }
    }

    fn answer(&mut self, verdict: Verdict, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.asked) {
            actions.push(Action::Answer(verdict));
        }
    }

    fn kill(&mut self, now: Instant, actions: &mut Vec<Action>) {
        (self.driver, self.due.driver) = (Driver::Dying, Some(now + KILL_AGAIN));
        self.begin_outage(now);
        actions.push(Action::Kill);
    }

    /// Starts the deadline of waiting I/O.
    fn begin_outage(&mut self, now: Instant) {
        if self.shown && self.goal == DesiredState::Run && !self.is_asleep() {
            self.due.io.get_or_insert(now + self.policy.io_timeout);
        }
    }

    /// No further attempt before a user's command.
    fn fail(&mut self, actions: &mut Vec<Action>) {
        (self.goal, self.due.io) = (DesiredState::Fail, None);
        if self.upgrade.take().is_some() {
            (self.due.probation, self.asked) = (None, false);
            actions.push(Action::Answer(Verdict::Failed));
        }
    }

    /// How long a start may take that has `usual` at first. Each start that took too long doubles
    /// it, up to the deadline of users' I/O: on a slow machine, a fixed limit would end one start
    /// after the other.
    fn allowed(&self, usual: Duration) -> Duration {
        let doubled = usual.saturating_mul(1u32.checked_shl(self.slow).unwrap_or(u32::MAX));
        usual.max(doubled.min(self.policy.io_timeout))
    }

    fn kill_standby(&mut self, now: Instant, actions: &mut Vec<Action>) {
        (self.standby, self.due.standby) = (Standby::Dying, Some(now + KILL_AGAIN));
        actions.push(Action::KillStandby);
    }

    fn restart(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.asked || self.is_asleep() {
            return;
        }
        (self.goal, self.asked) = (DesiredState::Run, true);
        self.budget.reset();
        self.due.claim = None;
        if self.device == Device::FenceFailed {
            self.device = Device::Unfenced;
        }
        if !matches!(self.driver, Driver::None | Driver::Dying) {
            self.expected = true;
            self.kill(now, actions);
        }
    }

    /// Whether `event` is accepted while another command is in progress: a stop does not wait for a
    /// start that may never finish, and a forced stop is always accepted.
    pub fn overrules(&self, event: Event) -> bool {
        match event {
            Event::Stop { force } => force || !matches!(self.goal, DesiredState::Stop { .. }),
            _ => false,
        }
    }

    fn stop(&mut self, event: Event, now: Instant, actions: &mut Vec<Action>) {
        let force = event == Event::Stop { force: true };
        let again =
            self.goal == DesiredState::Stop { force: true } || self.driver == Driver::Stopping;
        let insists = force && again && self.asked;
        self.goal = DesiredState::Stop { force };
        self.asked = true;
        // Its users have waited for a fence, and do so again.
        if self.device == Device::FenceFailed && self.must_wait() {
            self.device = Device::Unfenced;
        }
        if self.upgrade.take().is_some() {
            self.due.probation = None;
        }
        // The kernel command that waits for the driver ends with it.
        if insists && !matches!(self.driver, Driver::None | Driver::Dying) {
            actions.push(self.kill_on_purpose(now));
        }
    }

    fn begin_upgrade(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.asked = true;
        if (self.goal, self.driver, self.upgrade) != (DesiredState::Run, Driver::Running, None) {
            return self.answer(Verdict::NotRunning, actions);
        }
        self.budget.spawn = None;
        self.upgrade =
            Some(if self.standby == Standby::None { Upgrade::Waiting } else { Upgrade::Clearing });
        actions.extend(self.release_standby(now));
    }

    /// The new program is not healthy, or the upgrade was cancelled.
    fn go_back(&mut self, actions: &mut Vec<Action>) {
        if self.upgrade.take().is_some() {
            self.due.probation = None;
            self.answer(Verdict::WentBack, actions);
        }
    }
}
