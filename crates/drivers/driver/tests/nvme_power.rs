//! Power states: what an idle controller is let do by itself.

mod disks;
mod nvme;

use std::thread::sleep;
use std::time::{Duration, Instant};

use nvme::{Bench, PATIENCE, bench, bench_with, succeed};
use ring3_class::block::Request;
use ring3_driver::Circumstances;
use ring3_driver::nvme::Options;
use ring3_quirks::Overrides;

/// One state that is left soon, and one that takes longer.
const SLEEPS: &str = ",sleep=1ms/2ms+20ms/30ms";

/// Where the controller goes from each of its states, and after how many milliseconds.
fn planned(bench: &Bench) -> Vec<Option<(u8, u32)>> {
    bench.controller.power_states().iter().map(|state| state.next).collect()
}

/// Waits until the model is in `state`.
fn wait_for(bench: &Bench, state: usize) {
    let start = Instant::now();
    while bench.handle.power().state != state {
        assert!(start.elapsed() < PATIENCE, "{:?}", bench.handle.power());
        sleep(Duration::from_millis(5));
    }
}

fn read(bench: &Bench) -> Duration {
    let mut queue = bench.queue(8);
    let start = Instant::now();
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    start.elapsed()
}

fn latency(ms: u64) -> Options {
    Options { power_latency: Duration::from_millis(ms), ..Options::default() }
}

#[test]
fn an_idle_controller_goes_to_deeper_states_and_a_request_wakes_it() {
    let bench = bench_with(SLEEPS, Options::default());
    assert_eq!(planned(&bench), [Some((1, 100)), Some((2, 2000)), None]);
    assert_eq!(bench.controller.power_state().unwrap(), 0);
    wait_for(&bench, 1);
    assert_eq!(bench.controller.power_state().unwrap(), 1);
    wait_for(&bench, 2);
    assert!(read(&bench) >= Duration::from_millis(30), "it leaves the state first");
    let power = bench.handle.power();
    assert_eq!((power.entered, power.woken), (vec![1, 1], 1));
    wait_for(&bench, 1);
}

#[test]
fn a_controller_under_load_stays_awake() {
    let bench = bench_with(SLEEPS, Options::default());
    let (mut queue, start) = (bench.queue(8), Instant::now());
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    }
    // Unless this machine was away for as long.
    let entered = bench.handle.power().entered;
    assert!(entered.is_empty() || longest > Duration::from_millis(50), "{entered:?} {longest:?}");
}

#[test]
fn a_limit_of_latency_leaves_out_states_that_are_left_too_late() {
    assert_eq!(planned(&bench_with(SLEEPS, latency(10))), [Some((1, 100)), None, None]);
    assert_eq!(planned(&bench_with(SLEEPS, latency(0))), [None; 3]);
}

#[test]
fn a_controller_that_is_kept_awake_does_not_sleep() {
    let bench = bench_with(SLEEPS, latency(0));
    sleep(Duration::from_millis(250));
    assert_eq!((bench.handle.power().state, bench.handle.power().entered), (0, Vec::new()));
}

#[test]
fn a_reset_sets_the_transitions_again() {
    let bench = bench_with(SLEEPS, Options::default());
    bench.controller.reset().unwrap();
    wait_for(&bench, 1);
}

#[test]
fn a_controller_that_dies_in_its_deepest_state_sleeps_in_the_others_alone() {
    let uri = format!(",id=2646:2263,quirk=broken-deepest-state{SLEEPS}");
    let bench = bench(&uri);
    assert_eq!(planned(&bench), [Some((1, 100)), None, None]);
    wait_for(&bench, 1);
    read(&bench);
    let overrides = Overrides(vec!["no-broken-deepest-state".into()]);
    let quirks = Circumstances { overrides, ..Circumstances::default() };
    let bench = bench_with(&uri, Options { quirks, ..nvme::short() });
    let mut queue = bench.queue(8);
    let outcome = nvme::run(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert!(outcome.of(1).is_err());
}

#[test]
fn a_controller_with_one_state_has_none_to_choose_from() {
    assert_eq!(planned(&bench("")), []);
}
