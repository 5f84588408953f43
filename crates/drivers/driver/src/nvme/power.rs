//! Power states, and the transitions between them that a controller makes by itself (APST). [NVMe
//! 5.1.25.1.6]
//!
//! # Policy
//! That of the kernel's driver (`nvme_configure_apst`, Linux 6.12): an idle controller goes to the
//! deepest state that takes no commands and that it leaves soon enough. A state that is entered and
//! left within 15 ms is entered after 100 ms, one that takes up to 100 ms after 2 s, and one that
//! takes longer never. [`Options::power_latency`](super::Options::power_latency) bounds the time
//! that leaving a state takes, for which the next request waits; 0 keeps the controller awake.

use std::time::Duration;

use ring3_device::Error;
use ring3_quirks::Quirks;
use ring3_spec::nvme::Submission;
use ring3_spec::nvme::feature::{self, POWER_STATES, Transition, transition_table};
use ring3_spec::nvme::identify;
use serde::{Deserialize, Serialize};

use super::admin::Admin;
use super::controller::Controller;
use super::quirks::{BROKEN_APST, BROKEN_DEEPEST_STATE};

/// Entering and leaving take at most so long together, in microseconds, and the state is entered
/// after so many milliseconds: `apst_primary_` and `apst_secondary_` of the kernel's driver.
const STEPS: [(u64, u32); 2] = [(15_000, 100), (100_000, 2000)];

/// A power state of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerState {
    /// Whether requests are done in it.
    pub operational: bool,
    /// Most microseconds that entering it takes (ENLAT).
    pub entry_us: u32,
    /// Most microseconds that leaving it takes (EXLAT).
    pub exit_us: u32,
    /// Most power, in microwatts; 0 if the controller does not say.
    pub microwatts: u32,
    /// Where the controller goes from it when it is idle, and after how many milliseconds.
    pub next: Option<(u8, u32)>,
}

/// The states of a controller, if it can change between them by itself and has several; 0 is the
/// one with the most power.
pub(super) fn states(
    controller: &identify::Controller,
    quirks: &Quirks,
    limit: Duration,
) -> Vec<PowerState> {
    let count = usize::from(controller.power_states_0based()) + 1;
    if count > POWER_STATES {
        tracing::warn!(
            "the controller says that it has {count} power states (NPSS), and {POWER_STATES} is \
            the most: none is used"
        );
        return Vec::new();
    }
    if count == 1 {
        return Vec::new();
    }
    let state = |state: identify::PowerState| PowerState {
        operational: state.is_operational(),
        entry_us: state.entry_us(),
        exit_us: state.exit_us(),
        microwatts: state.microwatts(),
        next: None,
    };
    let mut states: Vec<_> =
        (0..count).filter_map(|number| controller.power_state(number)).map(state).collect();
    let awake = quirks.has(BROKEN_APST) || limit.is_zero();
    if controller.power_state_transitions() & 1 == 1 && !awake {
        plan(&mut states, limit, quirks.has(BROKEN_DEEPEST_STATE));
    }
    states
}

/// Plans the transitions, from the deepest state on: each state goes to the last one behind it that
/// will do, so that only the first of those with the same time is ever entered from a shallow one.
fn plan(states: &mut [PowerState], limit: Duration, leave_out_deepest: bool) {
    let deepest = states.len().saturating_sub(1);
    let (mut target, mut step_before) = (None, STEPS.len());
    for number in (0..states.len()).rev() {
        let state = &mut states[number];
        state.next = target;
        let total = u64::from(state.entry_us) + u64::from(state.exit_us);
        let step = STEPS.iter().position(|&(most, _)| total <= most);
        let soon = Duration::from_micros(state.exit_us.into()) <= limit;
        if state.operational || !soon || leave_out_deepest && number == deepest {
            continue;
        }
        // A shallower state with the time of a deeper one is never worth a stop.
        if let Some(step) = step.filter(|&step| step < step_before) {
            step_before = step;
            target = Some((number as u8, STEPS[step].1));
        }
    }
}

/// The table for the controller.
fn table(states: &[PowerState]) -> [u8; 8 * POWER_STATES] {
    let mut entries = [Transition(0); POWER_STATES];
    for (entry, state) in entries.iter_mut().zip(states) {
        if let Some((target, idle_ms)) = state.next {
            *entry = Transition(0).with_target(target.into()).with_idle_ms(idle_ms.into());
        }
    }
    transition_table(&entries)
}

impl Admin {
    /// Tells a controller that changes its power state by itself which ones it may enter. It costs
    /// power alone if it refuses, unless it must be kept awake.
    pub(super) fn set_transitions(
        &mut self,
        states: &[PowerState],
        must_stay_awake: bool,
    ) -> Result<(), Error> {
        let sleeps = states.iter().any(|state| state.next.is_some());
        let value = if sleeps { feature::TRANSITIONS_ENABLED } else { 0 };
        let command = Submission::set_feature(feature::POWER_STATE_TRANSITIONS, value);
        match self.send_page(&table(states), command)? {
            Ok(_) => {}
            Err(status) if must_stay_awake => tracing::warn!(
                "the controller refuses to stay in its first power state: {status}; it may leave \
                the bus when it is idle"
            ),
            Err(status) => tracing::warn!(
                "the controller refuses its transitions between power states: {status}"
            ),
        }
        Ok(())
    }
}

impl Controller {
    /// Its power states, if it has several, with what it does by itself.
    pub fn power_states(&self) -> &[PowerState] {
        &self.shared.traits.power_states
    }

    /// The state that it is in now. [NVMe 5.1.25.1.2]
    pub fn power_state(&self) -> Result<u8, Error> {
        let command = Submission::get_feature(feature::POWER_MANAGEMENT);
        let value = self.shared.command(|admin| admin.demand("its power state", command))?;
        Ok((value & 0x1f) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    /// States of (operational, ENLAT, EXLAT).
    fn planned(
        states: &[(bool, u32, u32)],
        limit: Duration,
        leave_out_deepest: bool,
    ) -> Vec<Option<(u8, u32)>> {
        let state = |&(operational, entry_us, exit_us): &_| PowerState {
            operational,
            entry_us,
            exit_us,
            microwatts: 0,
            next: None,
        };
        let mut states: Vec<_> = states.iter().map(state).collect();
        plan(&mut states, limit, leave_out_deepest);
        states.into_iter().map(|state| state.next).collect()
    }

    /// As many drives have them: three that work, one that is left soon, and a deep one.
    const USUAL: [(bool, u32, u32); 5] =
        [(true, 0, 0), (true, 0, 0), (true, 0, 0), (false, 5_000, 10_000), (false, 10_000, 45_000)];

    #[test]
    fn an_idle_controller_sleeps_soon_and_deeper_later() {
        let (light, deep) = (Some((3, 100)), Some((4, 2000)));
        assert_eq!(planned(&USUAL, LIMIT, false), [light, light, light, deep, None]);
    }

    #[test]
    fn the_deepest_state_can_be_left_out() {
        let light = Some((3, 100));
        assert_eq!(planned(&USUAL, LIMIT, true), [light, light, light, None, None]);
    }

    #[test]
    fn a_state_that_is_left_too_late_is_not_entered() {
        let light = Some((3, 100));
        let limit = Duration::from_millis(20);
        assert_eq!(planned(&USUAL, limit, false), [light, light, light, None, None]);
        assert_eq!(planned(&[(true, 0, 0), (false, 60_000, 60_000)], LIMIT, false), [None; 2]);
        let endless = [(true, 0, 0), (false, u32::MAX, u32::MAX)];
        assert_eq!(planned(&endless, Duration::MAX, false), [None; 2]);
    }

    #[test]
    fn a_shallow_state_with_the_time_of_a_deeper_one_is_passed_over() {
        let states = [(true, 0, 0), (false, 1, 1), (false, 2, 2)];
        let deep = Some((2, 100));
        assert_eq!(planned(&states, LIMIT, false), [deep, deep, None]);
    }

    #[test]
    fn states_beyond_the_last_place_are_none() {
        let mut controller = identify::Controller::zeroed();
        controller.set_power_states_0based(255).set_power_state_transitions(1);
        assert_eq!(states(&controller, &Quirks::default(), LIMIT), []);
    }
}
