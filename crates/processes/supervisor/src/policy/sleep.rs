//! Sleep of the machine: the driver stops its device and exits, users wait, and nothing starts
//! before the machine is awake.

use super::*;

/// What the driver does while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It stops its device and exits.
    Stopped,
    /// It continues until the kernel freezes it, because the kernel still writes after user space
    /// has been notified. The device is restarted afterwards.
    Driven,
}

/// How long a driver may take to stop its device, because the caller that puts the machine to
/// sleep waits.
pub(super) const REST: Duration = Duration::from_secs(20);
/// After this time without a message the machine counts as awake. This clock does not advance
/// while it sleeps.
const OVERSLEPT: Duration = Duration::from_secs(90);

impl Machine {
    /// Whether the device is idle until the machine is awake.
    pub fn is_asleep(&self) -> bool {
        self.sleep == Some(Sleep::Stopped)
    }

    /// Whether the machine may sleep now.
    pub fn may_sleep(&self) -> bool {
        match self.sleep {
            None => false,
            Some(Sleep::Driven) => true,
            Some(Sleep::Stopped) => {
                let moves = matches!(
                    self.device,
                    Device::Claiming | Device::Driven | Device::HandedOver | Device::Orphaned
                );
                let fences = matches!(self.device, Device::Unfenced | Device::Fencing);
                self.driver == Driver::None && !moves && !fences
            }
        }
    }

    pub(super) fn fall_asleep(&mut self, sleep: Sleep, now: Instant) {
        (self.sleep, self.due.wake) = (Some(sleep), Some(now + OVERSLEPT));
        if sleep == Sleep::Stopped {
            self.due.io = None;
        }
    }

    /// The device may have lost its power: a driver that has driven it through the sleep is
    /// replaced.
    pub(super) fn wake_up(&mut self, now: Instant, actions: &mut Vec<Action>) {
        let slept = self.sleep.take();
        self.due.wake = None;
        let drives = !matches!(self.driver, Driver::None | Driver::Dying | Driver::Stopping);
        if slept == Some(Sleep::Driven) && drives {
            self.expected = true;
            self.kill(now, actions);
        }
        if self.driver != Driver::Running {
            self.begin_outage(now);
        }
    }

    /// The next action towards the suspended state, instead of the next one towards running.
    pub(super) fn suspend(&mut self, now: Instant) -> Option<Action> {
        match self.driver {
            Driver::None | Driver::Stopping | Driver::Dying => None,
            Driver::Running => {
                (self.driver, self.due.driver, self.expected) =
                    (Driver::Stopping, Some(now + REST), true);
                Some(Action::Rest)
            }
            // It has not got far enough to serve users.
            _ => Some(self.kill_on_purpose(now)),
        }
    }
}
