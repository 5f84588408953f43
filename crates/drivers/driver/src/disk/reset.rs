//! The steps of a reset of a controller: who came back, and what it has lost.
//!
//! # Why in this order
//! What was in flight is repeated after a reset, writes too. If another disk is there by then, they
//! would be written over somebody else's data. So the controller is asked who it is while its lock
//! is held, for which all queues wait.
//!
//! # What is a loss
//! The volatile cache is lost if the controller has crashed, or if its own count of its losses of
//! power has changed. If it does not count them, every reset that the driver did not make itself
//! counts as a loss.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_device::Error;

use super::Controller;
use super::write_cache::PowerCount;
use crate::lifetime::{StopFailed, lock};

/// What has become of a controller that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It runs, as far as its registers say.
    Running,
    /// It was reset by somebody else, or does not answer. It may have lost its power.
    Disturbed,
    /// It reports a fatal error: what its firmware held in memory is lost with it.
    Crashed,
}

/// When a controller has lost the caches of its disks.
#[derive(Default)]
pub(crate) struct Losses {
    /// The generation that began with the last loss; 0 if there was none.
    last: AtomicU32,
    /// How often the controller said that it has lost its power, when it was last asked.
    power: Mutex<PowerCount>,
}

impl Losses {
    /// The losses of a controller whose last one began generation `last`.
    pub(crate) fn resume(last: u32, power: PowerCount) -> Self {
        Self { last: AtomicU32::new(last), power: Mutex::new(power) }
    }

    /// Whether caches were lost since `generation` began.
    #[inline]
    pub(crate) fn since(&self, generation: u32) -> bool {
        self.last() > generation
    }

    /// The generation that began with the last loss; 0 if there was none.
    #[inline]
    pub(crate) fn last(&self) -> u32 {
        self.last.load(Ordering::SeqCst)
    }

    /// How often the controller said that it has lost its power.
    pub(crate) fn power(&self) -> PowerCount {
        *lock(&self.power)
    }

    /// The controller says that it has lost its power so often.
    pub(crate) fn set_power(&self, now: PowerCount) {
        *lock(&self.power) = now;
    }
}

/// Resets `controller` if it has not been reset since `generation`, and starts it again.
pub(super) fn reset<C: Controller>(
    controller: &C,
    generation: u32,
    why: &str,
) -> Result<(), Error> {
    let mut state = controller.lock();
    let lifetime = controller.lifetime();
    lifetime.check()?;
    if lifetime.generation() != generation {
        return Ok(());
    }
    let condition = controller.condition(&state);
    // First, so that queues stop ringing doorbells of a controller that does not know them.
    let next = lifetime.begin_reset(generation, why);
    if condition == Condition::Crashed {
        lose_caches(controller, next, "it has crashed");
    }
    if let Err(StopFailed { error, quiesced }) = controller.stop(&mut state) {
        lifetime.fail(&error, "it cannot be stopped", quiesced);
        return Err(error);
    }
    let mut back = restart(controller, &mut state, next, condition);
    for _ in 1..C::STARTS {
        // A start is repeated as a request is: if it timed out, or if the device's answer to who it
        // is made no sense.
        let is_unclear = matches!(back, Err(Error::Timeout { .. } | Error::Protocol(_)));
        if !is_unclear || controller.stop(&mut state).is_err() {
            break;
        }
        back = restart(controller, &mut state, next, condition);
    }
    back.inspect_err(|error| {
        give_up(controller, &mut state, error, "it did not come back from a reset");
    })
}

/// Gives `controller` up: `what` has failed with `error`.
pub(super) fn give_up<C: Controller>(
    controller: &C,
    state: &mut C::State,
    error: &Error,
    what: &str,
) {
    let quiesced = controller.stop(state).err().is_none_or(|unstopped| unstopped.quiesced);
    controller.lifetime().fail(error, what, quiesced);
}

/// Starts a controller that was stopped, and asks whether it has lost anything and who it is.
fn restart<C: Controller>(
    controller: &C,
    state: &mut C::State,
    generation: u32,
    condition: Condition,
) -> Result<(), Error> {
    controller.start(state)?;
    look_for_loss(controller, state, generation, condition)?;
    controller.revalidate(state)
}

/// Decides after a reset, which found the controller in `condition`, whether it has lost its
/// volatile caches.
fn look_for_loss<C: Controller>(
    controller: &C,
    state: &mut C::State,
    generation: u32,
    condition: Condition,
) -> Result<(), Error> {
    let caches = controller.caches();
    let Some(losses) = controller.losses().filter(|_| !caches.is_empty()) else { return Ok(()) };
    let before = losses.power();
    // One that did not say when it was opened is not asked again. The answer would decide nothing,
    // and a controller that does not answer at all would be given up for it.
    let now = if before.is_known() { controller.power_count(state)? } else { before };
    losses.set_power(now);
    if before.was_lost(now, condition == Condition::Running) {
        lose_caches(
            controller,
            generation,
            "its power has failed, or it was reset by somebody else and does not say",
        );
    }
    caches.iter().for_each(|(_, cache)| cache.set_power(now));
    Ok(())
}

/// The caches have lost what they held before `generation`, because of `why`.
fn lose_caches<C: Controller>(controller: &C, generation: u32, why: &str) {
    if let Some(losses) = controller.losses() {
        losses.last.store(generation, Ordering::SeqCst);
    }
    for (disk, _) in controller.caches().iter().filter(|(_, cache)| cache.mark_lost()) {
        tracing::error!(
            "{disk}: {why}: writes since the last flush may be lost, and the next flush fails; \
            check what was written last"
        );
    }
}
