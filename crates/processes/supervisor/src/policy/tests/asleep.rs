//! Tests of the policy while the machine sleeps.

use super::super::*;
use super::{World, answer};

/// Answers all that is asked; no time passes.
fn answer_all(world: &mut World) {
    while let Some(action) = world.open.pop_front() {
        if let Some(event) = answer(action) {
            world.on(event);
        }
    }
}

fn asleep() -> World {
    let mut world = World::running();
    world.since();
    world.on(Event::Sleep(Sleep::Stopped));
    answer_all(&mut world);
    world
}

#[test]
fn before_the_machine_sleeps_the_driver_stops_its_device_and_ends_and_the_device_is_fenced() {
    let mut world = asleep();
    assert_eq!(world.since(), [Action::Rest, Action::Fence]);
    assert!(world.machine.may_sleep());
    assert_eq!(world.machine.state(), State::Sleeping);
}

#[test]
fn nothing_starts_while_the_machine_sleeps() {
    let mut world = asleep();
    world.since();
    for event in [Event::Restart, Event::Upgrade, Event::StandbyEnded, Event::Timer] {
        world.on(event).on(Event::Timer);
    }
    assert!(world.since().is_empty());
    assert!(!world.machine.is_asked());
}

#[test]
fn users_who_wait_while_the_machine_sleeps_get_no_error() {
    let world = asleep();
    assert_eq!(world.machine.io_deadline(), None);
}

#[test]
fn a_machine_that_wakes_has_its_disk_back() {
    let mut world = asleep();
    world.since();
    world.on(Event::Wake).settle();
    let done = world.since();
    assert_eq!(world.machine.state(), State::Running);
    assert!(
        done.contains(&Action::Recover) && done.contains(&Action::Drive(Start::Fenced)),
        "{done:?}"
    );
}

#[test]
fn a_hundred_sleeps_cost_nothing_of_the_budget_of_deaths() {
    let mut world = World::running();
    for _ in 0..100 {
        world.on(Event::Sleep(Sleep::Stopped));
        answer_all(&mut world);
        assert!(world.machine.may_sleep());
        world.on(Event::Wake).settle();
    }
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn a_machine_that_nobody_wakes_wakes_by_itself() {
    let mut world = asleep();
    world.now = world.machine.deadline().unwrap();
    world.on(Event::Timer).settle();
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn users_wait_no_longer_than_they_may_for_a_driver_after_a_wake() {
    for event in [Event::Wake, Event::Timer] {
        let mut world = asleep();
        world.now = world.machine.deadline().unwrap();
        world.on(event);
        assert_eq!(
            world.machine.io_deadline(),
            Some(world.now + world.machine.policy.io_timeout),
            "{event:?}"
        );
    }
}

#[test]
fn a_driver_that_drove_through_the_sleep_is_replaced_by_way_of_a_fence() {
    let mut world = World::running();
    world.since();
    world.on(Event::Sleep(Sleep::Driven));
    assert!(world.machine.may_sleep() && world.since().is_empty());
    world.on(Event::Wake).settle();
    let done = world.since();
    assert!(done.starts_with(&[Action::Kill]) && done.contains(&Action::Fence), "{done:?}");
    assert_eq!(world.machine.state(), State::Running);
}

#[test]
fn a_wake_without_a_sleep_changes_nothing() {
    let mut world = World::running();
    world.since();
    world.on(Event::Wake);
    assert_eq!(world.since(), []);
}

#[test]
fn a_driver_that_does_not_stop_in_time_is_killed_and_the_machine_sleeps_all_the_same() {
    let mut world = World::running();
    world.on(Event::Sleep(Sleep::Stopped));
    world.open.clear();
    world.since();
    world.now = world.machine.deadline().unwrap();
    world.on(Event::Timer);
    assert_eq!(
        world.since(),
        [Action::MissedDeadline(MissedDeadline::Stop(sleep::REST)), Action::Kill]
    );
    answer_all(&mut world);
    assert!(world.machine.may_sleep());
}

#[test]
fn a_device_that_is_stopped_for_good_while_the_machine_sleeps_is_stopped() {
    let mut world = asleep();
    world.on(Event::Stop { force: true }).settle();
    world.has_come_to(State::Stopped, Verdict::Done);
}
