//! The decision: compares facts with the desired state, and returns the next actions.

use std::time::Instant;

use super::*;

impl Machine {
    /// The next action, which then counts as begun; `None` if an event must come first.
    pub(super) fn decide(&mut self, now: Instant) -> Option<Action> {
        // A device that was left running for a next driver, and gets none.
        if (self.device, self.driver) == (Device::HandedOver, Driver::None)
            && self.goal != DesiredState::Run
        {
            self.device = Device::Unfenced;
        }
        // Adoption happens now or never.
        if (self.device, self.driver) == (Device::Orphaned, Driver::None) && !self.may_drive(now) {
            self.device = Device::Unfenced;
        }
        // In every desired state: what a dead driver has begun must end before anything else is
        // done with its device.
        if (self.device, self.driver) == (Device::Unfenced, Driver::None) {
            self.device = Device::Fencing;
            return Some(Action::Fence);
        }
        if self.device == Device::Gone {
            return self.give_up(now).or_else(|| self.release(now));
        }
        match self.goal {
            DesiredState::Run => self.run(now),
            DesiredState::Stop { force } => self.wind_down(now, force),
            DesiredState::Fail => self.give_up(now),
        }
    }

    fn run(&mut self, now: Instant) -> Option<Action> {
        if self.is_asleep() {
            return self.suspend(now);
        }
        match self.device {
            Device::Absent if self.due.claim.is_none_or(|due| due <= now) => {
                (self.device, self.due.claim) = (Device::Claiming, None);
                return Some(Action::Claim);
            }
            Device::Absent | Device::Claiming => return None,
            _ => {}
        }
        let may_try = self.budget.pause.is_none_or(|due| due <= now) && !self.budget.is_exhausted();
        // A driver that does not have it yet can wait for it.
        match self.export {
            KernelDevice::Discard if !self.given => return Some(self.stop_export(true, now)),
            KernelDevice::Lost if may_try && !self.given => {
                self.export = KernelDevice::Preparing;
                return Some(Action::Recover);
            }
            _ => {}
        }
        if self.wants_standby() && self.budget.spawn.is_none_or(|due| due <= now) {
            (self.standby, self.due.standby, self.budget.spawn) =
                (Standby::Preparing, Some(now + self.allowed(PREPARE)), None);
            return Some(Action::Spawn { upgraded: self.upgrade == Some(Upgrade::Waiting) });
        }
        match (self.driver, self.export) {
            (Driver::None, _) => self.drive(now),
            (Driver::Offering, KernelDevice::None) => {
                self.export = KernelDevice::Preparing;
                Some(Action::Create)
            }
            (Driver::Offering, KernelDevice::Ready) => {
                (self.driver, self.due.driver, self.given) =
                    (Driver::Taking, Some(now + self.allowed(TAKE)), true);
                Some(Action::Serve)
            }
            (Driver::Serving, KernelDevice::Ready) => {
                self.export = KernelDevice::Starting { stale: false };
                Some(Action::Start)
            }
            (Driver::Running, _)
                if (self.upgrade, self.standby) == (Some(Upgrade::Waiting), Standby::Ready) =>
            {
                (self.upgrade, self.driver, self.due.driver) =
                    (Some(Upgrade::Leaving), Driver::Leaving, Some(now + LEAVE));
                self.begin_outage(now);
                Some(Action::HandOver)
            }
            _ => None,
        }
    }

    pub(super) fn wants_standby(&self) -> bool {
        let tired = self.driver == Driver::None && self.budget.is_exhausted();
        // Users wait for the driver that starts, and it does not wait for the next standby.
        let busy = !matches!(self.driver, Driver::None | Driver::Dying | Driver::Running);
        self.goal == DesiredState::Run
            && self.standby == Standby::None
            && self.is_held()
            && !tired
            && !busy
            && !self.is_asleep()
    }

    fn drive(&mut self, now: Instant) -> Option<Action> {
        let start = match self.device {
            Device::Quiet => Start::Fenced,
            Device::HandedOver => Start::HandedOver,
            Device::Orphaned => Start::Adopted,
            _ => return None,
        };
        if !self.may_drive(now) {
            return None;
        }
        (self.device, self.standby) = (Device::Driven, Standby::None);
        (self.driver, self.due.driver) =
            (Driver::Opening, Some(now + self.allowed(self.policy.recovery)));
        self.budget.standby_was_good();
        self.budget.pause = None;
        if matches!(self.upgrade, Some(Upgrade::Waiting | Upgrade::Leaving)) {
            self.upgrade = Some(Upgrade::Starting);
        }
        Some(Action::Drive(start))
    }

    /// Whether a driver is wanted, and a standby waits for the device.
    fn may_drive(&self, now: Instant) -> bool {
        let is_due = self.budget.pause.is_none_or(|due| due <= now);
        let ready = self.standby == Standby::Ready && !self.is_asleep();
        self.goal == DesiredState::Run && ready && is_due && !self.budget.is_exhausted()
    }

    /// A user wants it stopped: first stop the users of the disk, while there is a driver that can
    /// complete their requests.
    fn wind_down(&mut self, now: Instant, force: bool) -> Option<Action> {
        if self.must_wait() {
            return self.release_standby(now);
        }
        match (self.driver, self.export) {
            (Driver::Running, KernelDevice::Up)
            | (
                Driver::None,
                KernelDevice::Up | KernelDevice::Lost | KernelDevice::Ready | KernelDevice::Discard,
            ) => Some(self.stop_export(force, now)),
            (Driver::Stopping | Driver::Dying, _)
            | (
                _,
                KernelDevice::Preparing | KernelDevice::Starting { .. } | KernelDevice::Stopping,
            ) => None,
            (Driver::None, KernelDevice::None) => self.release_standby(now),
            (_, KernelDevice::None) => {
                (self.driver, self.due.driver, self.expected) =
                    (Driver::Stopping, Some(now + STOP), true);
                Some(Action::StopDriver)
            }
            // It has not got far enough to complete users' requests.
            _ => Some(self.kill_on_purpose(now)),
        }
    }

    /// No further attempt: waiting I/O fails.
    fn give_up(&mut self, now: Instant) -> Option<Action> {
        if self.must_wait() {
            return self.release_standby(now);
        }
        match (self.driver, self.export) {
            // One who serves fails its users' requests first.
            (Driver::Running, KernelDevice::Up)
            | (
                Driver::None,
                KernelDevice::Up | KernelDevice::Lost | KernelDevice::Ready | KernelDevice::Discard,
            ) => Some(self.stop_export(true, now)),
            (Driver::Running, KernelDevice::Stopping) => None,
            (Driver::None | Driver::Dying, _) => self.release_standby(now),
            _ => Some(self.kill_on_purpose(now)),
        }
    }

    /// Whether requests of a dead driver may still write memory that users have registered: these
    /// requests must not complete before that is over.
    pub(super) fn must_wait(&self) -> bool {
        let goes_on = matches!(
            self.device,
            Device::Unfenced | Device::Fencing | Device::FenceFailed | Device::Orphaned
        );
        self.policy.lent && self.driver == Driver::None && goes_on
    }

    fn stop_export(&mut self, force: bool, now: Instant) -> Action {
        self.export = KernelDevice::Stopping;
        // One that does not let go of its users' requests does not keep the device.
        if force && self.driver == Driver::Running {
            self.due.driver = Some(now + REFUSE);
        }
        Action::StopExport { force }
    }

    pub(super) fn kill_on_purpose(&mut self, now: Instant) -> Action {
        (self.driver, self.due.driver, self.expected) =
            (Driver::Dying, Some(now + KILL_AGAIN), true);
        Action::Kill
    }

    /// A removed device that has no export any more.
    fn release(&mut self, now: Instant) -> Option<Action> {
        let is_bare = (self.driver, self.standby, self.export)
            == (Driver::None, Standby::None, KernelDevice::None);
        is_bare.then(|| {
            // A device that comes back may be another one, or the same after a pause.
            self.budget.reset();
            (self.device, self.due.claim) = (Device::Absent, Some(now + CLAIM_AGAIN));
            Action::Release
        })
    }

    pub(super) fn release_standby(&mut self, now: Instant) -> Option<Action> {
        if !matches!(self.standby, Standby::Preparing | Standby::Ready) {
            return None;
        }
        (self.standby, self.due.standby, self.dismissed) =
            (Standby::Dying, Some(now + KILL_AGAIN), true);
        Some(Action::KillStandby)
    }
}

/// Transitions that change more than one fact.
impl Machine {
    /// The driver is gone. If it had the device, that is now `device`.
    pub(super) fn ended(&mut self, device: Device, now: Instant, actions: &mut Vec<Action>) {
        let was = std::mem::replace(&mut self.driver, Driver::None);
        self.due.driver = None;
        let (expected, ran) = (std::mem::take(&mut self.expected), std::mem::take(&mut self.ran));
        if self.device == Device::Driven {
            self.device = device;
        }
        let given = std::mem::take(&mut self.given);
        self.export = match self.export {
            KernelDevice::Up => KernelDevice::Lost,
            KernelDevice::Ready if given => self.without_driver(),
            KernelDevice::Starting { .. } => KernelDevice::Starting { stale: true },
            other => other,
        };
        let by_upgrade = match (self.upgrade, was) {
            // Whether or not the old one has handed over properly, the new one takes over.
            (Some(Upgrade::Leaving), Driver::Leaving | Driver::Dying) => true,
            (Some(Upgrade::Starting | Upgrade::Probation), _) => {
                self.go_back(actions);
                true
            }
            _ => false,
        };
        if self.goal == DesiredState::Run && self.device != Device::Gone && !expected && !by_upgrade
        {
            self.spend(now, ran, actions);
        }
    }

    /// State of the kernel device once its driver is dead.
    fn without_driver(&self) -> KernelDevice {
        if self.shown { KernelDevice::Lost } else { KernelDevice::Discard }
    }

    /// Counts a driver that has died, or could not be started.
    fn spend(&mut self, now: Instant, had_run: bool, actions: &mut Vec<Action>) {
        self.budget.spend(&self.policy, now, had_run);
        self.give_up_if_exhausted(actions);
    }

    /// Gives the device up once no restart is left, if no I/O waits. Waiting I/O is kept until its
    /// deadline: nothing is tried any more, but a user's restart can still save it.
    pub(super) fn give_up_if_exhausted(&mut self, actions: &mut Vec<Action>) {
        if self.budget.is_exhausted()
            && !self.shown
            && self.goal == DesiredState::Run
            && self.is_held()
        {
            self.fail(actions);
        }
    }

    pub(super) fn standby_ended(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let was = std::mem::replace(&mut self.standby, Standby::None);
        let dismissed = std::mem::take(&mut self.dismissed);
        self.due.standby = None;
        match self.upgrade {
            _ if was == Standby::None => return,
            Some(Upgrade::Clearing) => return self.upgrade = Some(Upgrade::Waiting),
            Some(Upgrade::Waiting | Upgrade::Leaving) => self.go_back(actions),
            _ => {}
        }
        if dismissed {
            return;
        }
        self.budget.spend_standby(&self.policy, now);
        if self.driver == Driver::None && self.goal == DesiredState::Run && self.is_held() {
            self.spend(now, false, actions);
        }
    }

    pub(super) fn started(&mut self, now: Instant) {
        match self.export {
            KernelDevice::Starting { stale: true } => {
                (self.export, self.shown) = (KernelDevice::Lost, true)
            }
            KernelDevice::Starting { stale: false } if self.driver == Driver::Serving => {
                (self.export, self.driver, self.due.io, self.shown) =
                    (KernelDevice::Up, Driver::Running, None, true);
                self.budget.serves();
                self.slow = 0;
                self.ran = true;
                if self.upgrade == Some(Upgrade::Starting) {
                    (self.upgrade, self.due.probation) =
                        (Some(Upgrade::Probation), Some(now + PROBATION));
                }
            }
            KernelDevice::Starting { .. } => (self.export, self.shown) = (KernelDevice::Up, true),
            _ => {}
        }
    }

    pub(super) fn export_failed(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match self.export {
            KernelDevice::Preparing if !self.shown => self.export = KernelDevice::None,
            KernelDevice::Preparing | KernelDevice::Starting { .. } => {
                self.export = self.without_driver()
            }
            // One of the disks does not fit: the driver's end does the rest.
            KernelDevice::Ready if self.driver == Driver::Taking => {}
            _ => return,
        }
        match self.driver {
            Driver::None if self.goal == DesiredState::Run && self.device != Device::Gone => {
                self.spend(now, false, actions)
            }
            Driver::None | Driver::Dying => {}
            _ => self.kill(now, actions),
        }
    }

    /// Handles missed deadlines.
    pub(super) fn expire(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let is_over = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_over(self.due.driver) {
            let late = match self.driver {
                Driver::Opening => Some(MissedDeadline::Open(self.allowed(self.policy.recovery))),
                Driver::Taking => Some(MissedDeadline::Take(self.allowed(TAKE))),
                Driver::Leaving => Some(MissedDeadline::Leave(LEAVE)),
                Driver::Stopping => {
                    Some(MissedDeadline::Stop(if self.is_asleep() { sleep::REST } else { STOP }))
                }
                _ => None,
            };
            self.blame(late, actions);
            self.kill(now, actions);
        }
        if is_over(self.due.standby) {
            let late = (self.standby == Standby::Preparing)
                .then(|| MissedDeadline::Standby(self.allowed(PREPARE)));
            self.blame(late, actions);
            self.kill_standby(now, actions);
        }
        if is_over(self.due.io) {
            self.due.io = None;
            if self.goal == DesiredState::Run && self.device != Device::Gone {
                self.fail(actions);
            }
        }
        if is_over(self.due.probation) {
            self.due.probation = None;
            if self.upgrade.take().is_some() {
                actions.push(Action::CommitUpgrade);
                self.answer(Verdict::Done, actions);
                actions.extend(self.release_standby(now));
            }
        }
        if is_over(self.due.wake) {
            self.wake_up(now, actions);
        }
        if is_over(self.budget.pause) {
            self.budget.pause = None;
        }
    }

    fn blame(&mut self, late: Option<MissedDeadline>, actions: &mut Vec<Action>) {
        actions.extend(late.map(Action::MissedDeadline));
        if matches!(
            late,
            Some(MissedDeadline::Standby(_) | MissedDeadline::Open(_) | MissedDeadline::Take(_))
        ) {
            self.slow = self.slow.saturating_add(1);
        }
    }

    /// Records since when the kernel command is in progress.
    pub(super) fn watch_kernel(&mut self, now: Instant) {
        let waits = matches!(
            self.export,
            KernelDevice::Preparing | KernelDevice::Starting { .. } | KernelDevice::Stopping
        );
        self.kernel = match self.kernel {
            _ if !waits => None,
            Some((export, due)) if export == self.export => {
                Some((export, due.filter(|due| *due > now)))
            }
            _ => Some((self.export, Some(now + KERNEL))),
        };
    }

    /// Sends the result to the waiting user command.
    pub(super) fn judge(&mut self, actions: &mut Vec<Action>) {
        if self.is_stuck() {
            self.answer(Verdict::KernelTimeout, actions);
        }
        match self.goal {
            DesiredState::Run if self.driver == Driver::Running && self.upgrade.is_none() => {
                self.answer(Verdict::Done, actions)
            }
            DesiredState::Stop { .. } if self.is_at_rest() => self.answer(Verdict::Done, actions),
            DesiredState::Fail if self.is_over() => self.answer(Verdict::Failed, actions),
            _ => {}
        }
    }
}
