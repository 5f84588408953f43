//! Tests of the policy for a device that an earlier supervisor claimed.

use super::super::*;

fn machine(previous: PreviousState) -> Machine {
    let policy = RestartPolicy {
        burst: 3,
        window: Duration::from_secs(60),
        pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(1),
        io_timeout: Duration::from_secs(60),
        recovery: Duration::from_secs(120),
        lent: false,
    };
    Machine::restore(policy, DesiredState::Run, previous, Instant::now())
}

#[test]
fn a_driver_that_serves_is_left_alone_and_gets_a_standby() {
    let mut machine = machine(PreviousState { held: true, driven: true, shown: true });
    assert!(
        machine.is_running()
            && machine.state() == State::Running
            && machine.io_deadline().is_none()
    );
    assert_eq!(machine.handle(Event::Timer, Instant::now()), [Action::Spawn { upgraded: false }]);
}

#[test]
fn a_driver_that_has_died_meanwhile_is_fenced_and_its_disks_are_recovered() {
    let mut machine = machine(PreviousState { held: true, driven: true, shown: true });
    let actions = machine.handle(Event::Ended, Instant::now());
    assert_eq!(actions[0], Action::Fence);
    assert!(actions.contains(&Action::Recover), "{actions:?}");
}

#[test]
fn without_a_driver_everything_begins_with_a_fence_and_users_wait_no_longer_than_they_may() {
    let mut machine = machine(PreviousState { held: true, driven: false, shown: true });
    assert_eq!(machine.state(), State::Recovering);
    assert!(machine.io_deadline().is_some());
    assert_eq!(machine.handle(Event::Timer, Instant::now())[0], Action::Fence);
}

#[test]
fn disks_whose_claim_has_ended_wait_for_another_one() {
    let mut machine = machine(PreviousState { held: false, driven: false, shown: true });
    assert_eq!(machine.handle(Event::Timer, Instant::now()), [Action::Claim]);
    let actions = machine.handle(Event::Claimed, Instant::now());
    assert!(
        actions.contains(&Action::Recover) && !actions.contains(&Action::Create),
        "{actions:?}"
    );
}

#[test]
fn what_a_user_has_stopped_stays_stopped() {
    let policy = machine(PreviousState { held: true, driven: false, shown: false }).policy;
    let left = PreviousState { held: true, driven: false, shown: false };
    let mut machine =
        Machine::restore(policy, DesiredState::Stop { force: false }, left, Instant::now());
    assert_eq!(machine.handle(Event::Timer, Instant::now()), [Action::Fence]);
    assert_eq!(machine.handle(Event::Fenced, Instant::now()), []);
    assert_eq!(machine.state(), State::Stopped);
}
