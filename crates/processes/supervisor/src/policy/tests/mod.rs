mod asleep;
mod restored;

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const POLICY: RestartPolicy = RestartPolicy {
    burst: 3,
    window: Duration::from_secs(60),
    pause: Duration::from_millis(100),
    longest_pause: Duration::from_secs(1),
    io_timeout: Duration::from_secs(30),
    recovery: Duration::from_secs(20),
    lent: false,
};

/// What the machine has brought about, seen from outside, and what it must never do.
pub(super) struct World {
    pub(super) machine: Machine,
    pub(super) now: Instant,
    began: Instant,
    driver: bool,
    standby: bool,
    /// Something of a driver may go on.
    unfenced: bool,
    left: bool,
    /// It is being said that a driver was killed that had served, and of which no misbehaviour was
    /// reported.
    orphaned: bool,
    fencing: bool,
    /// What must be answered.
    pub(super) open: VecDeque<Action>,
    pub(super) verdicts: Vec<Verdict>,
    drives: Vec<Instant>,
    log: Vec<Action>,
    exported: bool,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            machine: Machine::new(POLICY),
            now,
            began: now,
            driver: false,
            standby: false,
            unfenced: false,
            left: false,
            orphaned: false,
            fencing: false,
            open: VecDeque::new(),
            verdicts: Vec::new(),
            drives: Vec::new(),
            log: Vec::new(),
            exported: false,
        }
    }

    /// The machine is in `state`, and what was asked last has ended so.
    #[track_caller]
    pub(super) fn has_come_to(&self, state: State, verdict: Verdict) {
        assert_eq!((self.machine.state(), self.verdicts.last()), (state, Some(&verdict)));
    }

    /// The machine is in `state`, and all that was asked has ended so.
    #[track_caller]
    pub(super) fn has_had(&self, state: State, verdicts: &[Verdict]) {
        assert_eq!((self.machine.state(), &self.verdicts[..]), (state, verdicts));
    }

    /// Lets `event` happen, and checks what the machine makes of it.
    pub(super) fn on(&mut self, event: Event) -> &mut Self {
        match event {
            // An answer to a second kill: a process ends once.
            Event::Ended | Event::Killed if !self.driver => return self,
            Event::StandbyEnded if !self.standby => return self,
            Event::Ended => (self.driver, self.fencing) = (false, false),
            Event::Killed => {
                (self.driver, self.fencing, self.orphaned) =
                    (false, false, self.machine.is_running())
            }
            Event::HandedOver if self.machine.is_leaving() => {
                (self.driver, self.fencing, self.left) = (false, false, true)
            }
            Event::StandbyEnded => self.standby = false,
            Event::Fenced if self.fencing => {
                (self.unfenced, self.left, self.fencing) = (false, false, false)
            }
            Event::Claimed => (self.unfenced, self.left) = (false, false),
            Event::ExportStopped => self.exported = false,
            _ => {}
        }
        for action in self.machine.handle(event, self.now) {
            self.note(action);
        }
        self.orphaned = false;
        self.is_waited_for();
        self
    }

    fn note(&mut self, action: Action) {
        match action {
            Action::Drive(start) => {
                assert!(!self.driver, "a second driver");
                assert!(self.standby, "a driver out of nothing");
                let may = match start {
                    Start::Fenced => !self.unfenced,
                    Start::HandedOver => self.left,
                    Start::Adopted => self.orphaned,
                };
                assert!(may, "driven without a fence: {:?}", self.log);
                (self.driver, self.standby, self.unfenced, self.left) = (true, false, true, false);
                self.drives.push(self.now);
            }
            Action::Fence => {
                assert!(!self.driver, "fenced under a living driver");
                self.fencing = true;
            }
            Action::Spawn { .. } => {
                assert!(!self.standby, "a second standby");
                self.standby = true;
            }
            Action::Create => self.exported = true,
            Action::Serve | Action::HandOver | Action::StopDriver | Action::Rest | Action::Kill => {
                assert!(self.driver, "{action:?} without a driver")
            }
            Action::Answer(verdict) => self.verdicts.push(verdict),
            Action::Start => assert!(self.driver && self.exported),
            _ => {}
        }
        if answer(action).is_some() {
            self.open.push_back(action);
        }
        self.log.push(action);
    }

    /// Whatever is waited for has an end.
    fn is_waited_for(&self) {
        let state = self.machine.state();
        let is_settled = matches!(state, State::Failed | State::Stopped)
            || (state == State::Running && !self.machine.is_asked());
        assert!(
            is_settled || !self.open.is_empty() || self.machine.deadline().is_some(),
            "nothing will ever happen: {:?} after {:?}",
            self.machine,
            self.log
        );
    }

    /// Answers all that is asked, as a world without faults does.
    pub(super) fn settle(&mut self) -> &mut Self {
        for _ in 0..200 {
            if let Some(action) = self.open.pop_front() {
                if let Some(event) = answer(action) {
                    self.on(event);
                }
            } else if self.machine.state() != State::Running || self.machine.is_asked() {
                let Some(due) = self.machine.deadline() else { break };
                self.now = self.now.max(due);
                self.on(Event::Timer);
            } else {
                break;
            }
        }
        self
    }

    pub(super) fn running() -> Self {
        let mut world = Self::new();
        world.on(Event::Timer).settle();
        assert_eq!(world.machine.state(), State::Running, "{:?}", world.log);
        world
    }

    pub(super) fn since(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.log)
    }
}

/// What the world says to `action` if all goes well.
pub(super) fn answer(action: Action) -> Option<Event> {
    Some(match action {
        Action::Claim => Event::Claimed,
        Action::Spawn { .. } => Event::Ready,
        Action::KillStandby => Event::StandbyEnded,
        Action::Kill | Action::StopDriver | Action::Rest => Event::Ended,
        Action::Fence => Event::Fenced,
        Action::Drive(_) => Event::Offers,
        Action::Create | Action::Recover => Event::Prepared,
        Action::Serve => Event::Serving,
        Action::Start => Event::Started,
        Action::StopExport { .. } => Event::ExportStopped,
        Action::HandOver => Event::HandedOver,
        Action::Release | Action::CommitUpgrade | Action::Answer(_) | Action::MissedDeadline(_) => {
            return None;
        }
    })
}

#[test]
fn a_device_is_claimed_driven_and_served_and_has_a_standby() {
    let mut world = World::running();
    let wanted = [
        Action::Claim,
        Action::Spawn { upgraded: false },
        Action::Drive(Start::Fenced),
        Action::Create,
        Action::Serve,
        Action::Start,
        Action::Spawn { upgraded: false },
    ];
    assert_eq!(world.since(), wanted);
    assert!(world.machine.deadline().is_none(), "a running device costs no timer");
}

#[test]
fn the_first_thing_after_a_death_is_the_fence_and_the_kernel_is_asked_meanwhile() {
    let mut world = World::running();
    world.since();
    world.on(Event::Ended);
    assert_eq!(world.since(), [Action::Fence, Action::Recover]);
    assert_eq!(world.machine.state(), State::Recovering);
    world.on(Event::Fenced);
    assert_eq!(world.since(), [Action::Drive(Start::Fenced)]);
    world.settle();
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn while_users_register_memory_they_get_no_errors_before_a_dead_drivers_device_is_fenced() {
    for (lent, first) in [(false, Action::StopExport { force: true }), (true, Action::KillStandby)]
    {
        let mut world = World::running();
        world.machine.policy.lent = lent;
        world.on(Event::Ended).on(Event::Prepared).since();
        world.on(Event::Stop { force: true });
        assert_eq!(world.since().first(), Some(&first), "{lent}");
        world.on(Event::FenceFailed);
        assert!(!world.since().contains(&Action::StopExport { force: true }), "{lent}");
    }
    let mut world = World::running();
    world.machine.policy.lent = true;
    world.on(Event::Ended).on(Event::Prepared).on(Event::Stop { force: true }).since();
    world.on(Event::Fenced);
    assert_eq!(world.since(), [Action::StopExport { force: true }]);
    world.settle();
    assert_eq!(world.machine.state(), State::Stopped);
}

#[test]
fn from_a_driver_that_was_killed_the_standby_adopts_the_device_at_once() {
    let mut world = World::running();
    world.since();
    world.on(Event::Killed);
    assert_eq!(world.since(), [Action::Recover, Action::Drive(Start::Adopted)]);
    assert_eq!(world.machine.state(), State::Recovering);
    world.settle();
    assert_eq!(world.machine.state(), State::Running);
    world.since();
    world.on(Event::Killed);
    assert_eq!(world.since()[1], Action::Drive(Start::Adopted), "and again");
}

#[test]
fn a_driver_that_is_killed_before_it_serves_or_while_it_adopts_is_fenced() {
    let mut world = World::running();
    world.on(Event::Killed).since();
    world.on(Event::Killed);
    assert!(world.since().contains(&Action::Fence));
    world.settle();
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn from_a_driver_that_was_reported_or_restarted_or_whose_successor_is_not_there_nothing_is_adopted()
{
    let cases: [&[Event]; 4] = [
        &[Event::Unhealthy],
        &[Event::Restart],
        &[Event::StandbyEnded],
        &[Event::Stop { force: true }, Event::ExportStopped],
    ];
    for before in cases {
        let mut world = World::running();
        for event in before {
            world.on(*event);
        }
        world.since();
        world.on(Event::Killed);
        assert_eq!(world.since()[0], Action::Fence, "{before:?}");
    }
}

#[test]
fn a_driver_that_is_killed_beyond_the_budget_is_fenced() {
    let mut world = World::running();
    for _ in 0..3 {
        world.on(Event::Killed).settle();
        world.on(Event::Ready);
    }
    world.since();
    world.on(Event::Killed);
    let done = world.since();
    assert!(
        done.contains(&Action::Fence) && !done.contains(&Action::Drive(Start::Adopted)),
        "{done:?}"
    );
}

#[test]
fn a_new_program_on_trial_that_is_killed_is_fenced() {
    let mut world = World::running();
    world.on(Event::Upgrade);
    up_to(&mut world, Action::HandOver);
    world.on(Event::HandedOver);
    while !world.machine.is_running() {
        let action = world.open.pop_front().unwrap();
        if let Some(event) = answer(action) {
            world.on(event);
        }
    }
    world.on(Event::Ready).since();
    world.on(Event::Killed);
    assert!(world.since().contains(&Action::Fence));
}

#[test]
fn a_death_while_users_have_no_disk_yet_makes_the_kernels_half_anew() {
    let mut world = World::new();
    world.on(Event::Timer);
    up_to(&mut world, Action::Start);
    world.since();
    world.on(Event::Ended).on(Event::ExportFailed);
    assert!(world.since().contains(&Action::StopExport { force: true }));
    world.settle();
    world.on(Event::Fenced).on(Event::Ready).on(Event::ExportStopped).settle();
    assert_eq!(world.machine.state(), State::Running, "{:?}", world.log);
    assert!(world.log.contains(&Action::Create) && !world.log.contains(&Action::Recover));
}

#[test]
fn a_driver_that_dies_too_often_is_given_up_and_waiting_io_fails_at_its_deadline() {
    let mut world = World::running();
    for _ in 0..3 {
        world.on(Event::Ended).settle();
        assert_eq!(world.machine.state(), State::Running);
    }
    let died = world.now;
    world.on(Event::Ended).on(Event::Fenced).on(Event::Prepared);
    world.open.clear();
    world.since();
    assert_eq!(world.machine.state(), State::BackingOff);
    assert_eq!(world.machine.io_deadline(), Some(died + POLICY.io_timeout));
    world.settle();
    assert_eq!(world.machine.state(), State::Failed);
    assert_eq!(world.now, died + POLICY.io_timeout);
    assert!(world.since().contains(&Action::StopExport { force: true }));
}

#[test]
fn a_kernel_that_never_answers_ends_in_a_state_at_the_deadline_and_each_command_in_an_answer() {
    let mut world = World::running();
    world.since();
    let died = world.now;
    world.on(Event::Ended);
    assert!(world.since().contains(&Action::Recover));
    // All else is answered.
    world.open.retain(|action| *action != Action::Recover);
    while world.machine.state() == State::Recovering {
        world.now = world.machine.deadline().unwrap();
        world.on(Event::Timer);
        world.open.retain(|action| *action != Action::Recover);
        while let Some(event) = world.open.pop_front().and_then(answer) {
            world.on(event);
        }
    }
    assert_eq!((world.machine.state(), world.now), (State::Stopping, died + POLICY.io_timeout));
    for event in [Event::Restart, Event::Stop { force: true }, Event::Stop { force: false }] {
        world.on(event);
        world.open.clear();
        while world.machine.is_asked() {
            world.now = world.machine.deadline().unwrap();
            world.on(Event::Timer);
            world.open.clear();
        }
        assert_eq!(world.verdicts.pop(), Some(Verdict::KernelTimeout), "{event:?}");
        assert!(world.now <= died + KERNEL);
    }
    assert!(
        world.machine.deadline().is_none_or(|due| due > world.now),
        "an end that is over costs no timer"
    );
    // And if it does, late.
    world.on(Event::ExportFailed).settle();
    assert_eq!(world.machine.state(), State::Stopped, "{:?}", world.log);
}

#[test]
fn a_user_may_try_again_what_was_given_up() {
    let mut world = World::running();
    for _ in 0..4 {
        world.on(Event::Ended).settle();
    }
    assert_eq!(world.machine.state(), State::Failed);
    world.on(Event::Restart).settle();
    world.has_had(State::Running, &[Verdict::Done]);
}

#[test]
fn starts_that_fail_wait_longer_and_longer_and_a_death_after_service_does_not_wait() {
    let mut world = World::running();
    let mut paused = Vec::new();
    for _ in 0..3 {
        let died = world.now;
        world.on(Event::Ended);
        let drives = world.drives.len();
        while world.drives.len() == drives {
            match world.open.pop_front() {
                Some(action) => {
                    world.on(answer(action).unwrap());
                }
                None => {
                    world.now = world.machine.deadline().unwrap();
                    world.on(Event::Timer);
                }
            }
        }
        paused.push(world.drives.last().unwrap().duration_since(died));
    }
    assert_eq!(paused, [Duration::ZERO, Duration::ZERO, POLICY.pause]);
}

#[test]
fn a_device_that_cannot_be_fenced_is_never_driven_and_a_restart_begins_with_the_fence() {
    let mut world = World::running();
    world.on(Event::Ended);
    world.open.retain(|action| *action != Action::Fence);
    world.since();
    world.on(Event::FenceFailed).settle();
    assert_eq!(world.machine.state(), State::Failed);
    assert!(!world.since().contains(&Action::Drive(Start::Fenced)));
    world.on(Event::Restart);
    assert_eq!(world.since()[0], Action::Fence);
    world.settle();
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn while_a_device_cannot_be_fenced_and_users_register_memory_each_command_tries_the_fence_and_is_answered()
 {
    let mut world = World::running();
    world.machine.policy.lent = true;
    world.on(Event::Ended).on(Event::Prepared);
    let commands = [
        None,
        Some(Event::Restart),
        Some(Event::Stop { force: true }),
        Some(Event::Stop { force: false }),
    ];
    for command in commands {
        if let Some(command) = command {
            world.since();
            world.on(command);
            assert_eq!(world.since().first(), Some(&Action::Fence), "{command:?}");
        }
        world.open.retain(|action| *action != Action::Fence);
        world.on(Event::FenceFailed).settle();
        assert!(!world.since().contains(&Action::StopExport { force: true }));
        assert_eq!(
            (world.machine.state(), world.machine.is_asked()),
            (State::Failed, false),
            "{command:?}"
        );
        assert_eq!(world.verdicts.pop(), command.map(|_| Verdict::Failed));
    }
    world.on(Event::Stop { force: true }).settle();
    world.has_come_to(State::Stopped, Verdict::Done);
}

#[test]
fn a_device_that_vanishes_takes_its_disks_with_it_and_is_waited_for() {
    let mut world = World::running();
    world.since();
    world.on(Event::Gone);
    while let Some(action) = world.open.pop_front() {
        if let Some(event) = answer(action) {
            world.on(event);
        }
    }
    assert_eq!(world.machine.state(), State::Absent);
    let done = world.since();
    assert!(
        done.contains(&Action::Release)
            && done.contains(&Action::StopExport { force: true })
            && !done.contains(&Action::Fence)
    );
    let place = |action| done.iter().position(|&done| done == action);
    assert!(
        place(Action::StopExport { force: true }) < place(Action::Kill),
        "while a driver is there to fail its users' requests: {done:?}"
    );
    world.settle();
    assert_eq!(world.machine.state(), State::Running, "and it is there again");
}

#[test]
fn a_driver_that_keeps_its_users_requests_does_not_keep_a_device_that_is_gone() {
    for event in [Event::Gone, Event::Stop { force: true }] {
        let mut world = World::running();
        world.since();
        world.on(event);
        assert!(!world.since().contains(&Action::Kill), "it has its time");
        world.now += REFUSE;
        world.on(Event::Timer);
        assert!(world.since().contains(&Action::Kill), "{:?}", world.machine);
    }
}

#[test]
fn a_device_is_stopping_until_it_is_stopped_and_nothing_else_meanwhile() {
    let mut world = World::running();
    world.on(Event::Stop { force: false });
    let mut states = vec![world.machine.state()];
    while let Some(event) = world.open.pop_front().and_then(answer) {
        world.on(event);
        states.push(world.machine.state());
    }
    states.dedup();
    assert_eq!(states, [State::Stopping, State::Stopped]);
}

#[test]
fn a_stop_is_refused_while_somebody_uses_the_disk() {
    let mut world = World::running();
    world.on(Event::Stop { force: false });
    assert_eq!(world.machine.state(), State::Stopping);
    world.open.clear();
    world.on(Event::ExportBusy);
    world.has_had(State::Running, &[Verdict::Busy]);
    world.on(Event::Stop { force: true }).settle();
    world.has_come_to(State::Stopped, Verdict::Done);
    world.since();
    world.on(Event::Restart).settle();
    assert_eq!(world.machine.state(), State::Running, "{:?}", world.log);
}

/// Takes what is asked up to `last`, which is left unanswered.
fn up_to(world: &mut World, last: Action) {
    while !world.log.contains(&last) {
        let action = world.open.pop_front().unwrap();
        if let Some(event) = answer(action) {
            world.on(event);
        }
    }
    world.open.clear();
}

/// For how long each of the `count` next starts is waited for, of which none comes to an end.
fn waits(world: &mut World, count: usize) -> Vec<u64> {
    let late = |action: &Action| {
        if let Action::MissedDeadline(MissedDeadline::Open(after)) = action {
            Some(after.as_secs())
        } else {
            None
        }
    };
    for _ in 0..300 {
        match world.open.pop_front() {
            Some(Action::Drive(_)) => {}
            Some(action) => drop(answer(action).map(|event| world.on(event))),
            None => {
                world.now = world.machine.deadline().unwrap();
                world.on(Event::Timer);
            }
        }
        if world.log.iter().filter_map(late).count() == count {
            break;
        }
    }
    world.since().iter().filter_map(late).collect()
}

#[test]
fn a_start_that_took_too_long_gives_the_next_one_twice_the_time_and_one_that_serves_ends_that() {
    let mut world = World::running();
    world.machine.policy = RestartPolicy {
        recovery: Duration::from_secs(2),
        burst: 100,
        io_timeout: Duration::from_secs(100),
        ..POLICY
    };
    world.on(Event::Ended);
    assert_eq!(waits(&mut world, 3), [2, 4, 8]);
    world.settle();
    assert_eq!(world.machine.state(), State::Running);
    world.on(Event::Ended);
    assert_eq!(waits(&mut world, 1), [2]);
}

#[test]
fn no_start_gets_longer_than_users_would_wait_for_it() {
    let mut world = World::new();
    world.machine.policy = RestartPolicy {
        recovery: Duration::from_secs(2),
        burst: 100,
        io_timeout: Duration::from_secs(5),
        ..POLICY
    };
    world.on(Event::Timer);
    assert_eq!(waits(&mut world, 4), [2, 4, 5, 5]);
}

#[test]
fn a_driver_that_does_not_stop_is_killed_once_somebody_insists() {
    let mut world = World::running();
    world.since();
    world.on(Event::Stop { force: false });
    up_to(&mut world, Action::StopDriver);
    assert!(!world.log.contains(&Action::Kill));
    world.on(Event::Stop { force: true });
    assert_eq!(world.log.last(), Some(&Action::Kill));
    world.settle();
    world.has_had(State::Stopped, &[Verdict::Done]);
}

#[test]
fn a_disk_that_is_not_let_go_by_force_is_taken_from_its_driver_once_somebody_insists() {
    let mut world = World::running();
    world.since();
    world.on(Event::Stop { force: true });
    up_to(&mut world, Action::StopExport { force: true });
    world.on(Event::Stop { force: true });
    assert_eq!(world.log.last(), Some(&Action::Kill));
    world.on(Event::Ended).on(Event::ExportStopped).settle();
    assert_eq!(world.machine.state(), State::Stopped);
}

#[test]
fn a_stop_does_not_wait_for_a_start_that_never_comes_to_an_end() {
    let mut world = World::running();
    world.on(Event::Restart);
    assert!(world.machine.is_asked() && world.machine.overrules(Event::Stop { force: false }));
    assert!(!world.machine.overrules(Event::Restart) && !world.machine.overrules(Event::Upgrade));
    world.on(Event::Stop { force: false }).settle();
    world.has_had(State::Stopped, &[Verdict::Done]);
}

#[test]
fn what_is_somebody_elses_ends_the_start_and_no_driver_is_tried_after_the_other() {
    let mut world = World::new();
    world.on(Event::Timer);
    up_to(&mut world, Action::Create);
    world.on(Event::Restart);
    world.on(Event::ExportRefused).settle();
    assert_eq!((world.machine.state(), world.drives.len()), (State::Failed, 1), "{:?}", world.log);
    world.on(Event::Restart);
    world.on(Event::Timer).settle();
    world.has_come_to(State::Running, Verdict::Done);
}

#[test]
fn an_upgrade_resumes_without_a_fence_and_is_final_after_a_probation() {
    let mut world = World::running();
    world.since();
    world.on(Event::Upgrade);
    up_to(&mut world, Action::HandOver);
    world.on(Event::HandedOver).settle();
    let done = world.since();
    assert!(
        done.contains(&Action::Drive(Start::HandedOver)) && !done.contains(&Action::Fence),
        "{done:?}"
    );
    world.has_come_to(State::Running, Verdict::Done);
    assert!(done.contains(&Action::CommitUpgrade));
    assert!(world.machine.deadline().is_some() || !world.open.is_empty() || world.standby);
}

#[test]
fn a_new_program_that_dies_goes_back_to_the_old_one() {
    let mut world = World::running();
    world.since();
    world.on(Event::Upgrade);
    up_to(&mut world, Action::HandOver);
    world.on(Event::HandedOver);
    world.open.retain(|action| !matches!(action, Action::Drive(_)));
    world.on(Event::Ended).settle();
    world.has_come_to(State::Running, Verdict::WentBack);
    let done = world.since();
    assert!(done.contains(&Action::Fence) && !done.contains(&Action::CommitUpgrade));
    let after = done.iter().skip_while(|action| !matches!(action, Action::Drive(_)));
    assert!(
        after.clone().all(|action| *action != Action::Spawn { upgraded: true }),
        "the old program follows"
    );
}

#[test]
fn a_new_program_that_never_gets_ready_leaves_the_driver_alone() {
    let mut world = World::running();
    world.since();
    world.on(Event::Upgrade);
    up_to(&mut world, Action::Spawn { upgraded: true });
    world.on(Event::StandbyEnded).settle();
    world.has_come_to(State::Running, Verdict::WentBack);
    assert!(world.driver && !world.since().contains(&Action::HandOver));
}

fn events() -> impl Strategy<Value = Event> {
    use Event::*;
    prop_oneof![
        Just(Claimed),
        Just(Missing),
        Just(Gone),
        Just(Ready),
        Just(StandbyEnded),
        Just(StandbyLied),
        Just(Offers),
        Just(Serving),
        Just(HandedOver),
        Just(Unhealthy),
        Just(Ended),
        Just(Killed),
        Just(Fenced),
        Just(FenceFailed),
        Just(Prepared),
        Just(Started),
        Just(ExportFailed),
        Just(ExportRefused),
        Just(ExportStopped),
        Just(ExportBusy),
        Just(Restart),
        Just(Stop { force: false }),
        Just(Stop { force: true }),
        Just(Upgrade),
        Just(Sleep(super::Sleep::Stopped)),
        Just(Sleep(super::Sleep::Driven)),
        Just(Wake),
        Just(Timer)
    ]
}

/// A fault that the world may have instead of the answer to `action`.
fn fault(action: Action) -> Event {
    match action {
        Action::Claim => Event::Missing,
        Action::Spawn { .. } => Event::StandbyEnded,
        Action::Fence => Event::FenceFailed,
        Action::Drive(_) | Action::Serve => Event::Ended,
        Action::Create | Action::Recover | Action::Start => Event::ExportFailed,
        Action::StopExport { force: false } => Event::ExportBusy,
        other => answer(other).unwrap_or(Event::Timer),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Events that could not have happened, too.
    #[test]
    fn any_order_of_events_is_survived(
        events in prop::collection::vec((events(), 0u64..40_000), 1..120)
    ) {
        let mut machine = Machine::new(POLICY);
        let mut now = Instant::now();
        for (event, ms) in events {
            now += Duration::from_millis(ms);
            prop_assert!(machine.handle(event, now).len() < 20);
            machine.state();
        }
    }

    /// What is asked is answered well or badly, sooner or later; drivers, standbys and devices go
    /// at any time, and users want anything.
    #[test]
    fn a_world_of_faults_is_never_driven_unfenced_nor_twice_and_never_stands_still(
        steps in prop::collection::vec(
            (0u8..100, 0u64..2_000, any::<prop::sample::Index>()), 1..150,
        )
    ) {
        for lent in [false, true] {
            let mut world = World::new();
            world.machine.policy.lent = lent;
            world.on(Event::Timer);
            for (dice, ms, index) in &steps {
                world.now += Duration::from_millis(*ms);
                let pick = (!world.open.is_empty()).then(|| index.index(world.open.len()));
                match (*dice, pick) {
                    (0..60, Some(at)) => {
                        let action = world.open.remove(at).unwrap();
                        world.on(answer(action).unwrap());
                    }
                    (60..75, Some(at)) => {
                        let action = world.open.remove(at).unwrap(); world.on(fault(action));
                    }
                    (75..79, _) if world.driver => { world.on(Event::Ended); }
                    (79..82, _) if world.driver => { world.on(Event::Killed); }
                    (82..86, _) if world.standby => { world.on(Event::StandbyEnded); }
                    (86..89, _) => { world.on(Event::Unhealthy); }
                    (89..91, _) => { world.on(Event::Restart); }
                    (91..93, _) => { world.on(Event::Upgrade); }
                    (93..95, _) => { world.on(Event::Stop { force: *dice == 93 }); }
                    (95, _) => { world.on(Event::Gone); }
                    (96, _) => { world.on(Event::Sleep(Sleep::Stopped)); }
                    (97, _) => { world.on(Event::Wake); }
                    _ => { world.on(Event::Timer); }
                }
            }
            // Without further faults it comes to a rest in one of the states that may last.
            world.settle();
            prop_assert!(
                matches!(world.machine.state(), State::Running | State::Failed | State::Stopped),
                "{:?} {:?}", world.machine, world.log,
            );
            prop_assert!(!world.machine.is_asked(), "{:?}", world.machine);
        }
    }

    /// Whenever and however often a driver dies by itself, no more are started than the budget has.
    #[test]
    fn no_more_drivers_than_the_budget_has_are_started_in_a_window(
        deaths in prop::collection::vec(0u64..20_000, 1..60)
    ) {
        let mut world = World::running();
        for ms in deaths {
            world.now += Duration::from_millis(ms);
            if !world.driver { break; }
            world.on(Event::Ended).settle();
        }
        for (at, first) in world.drives.iter().enumerate() {
            let within = world.drives[at..]
                .iter()
                .filter(|drive| drive.duration_since(*first) < POLICY.window)
                .count();
            prop_assert!(
                within <= POLICY.burst as usize + 1, "{:?}",
                world.drives
                    .iter()
                    .map(|drive| drive.duration_since(world.began))
                    .collect::<Vec<_>>(),
            );
        }
    }
}
