//! The keeper's part in the machine's sleep.

use ring3_control::admin::Reply;
use ring3_control::drive::DriverCommand;

use super::{Answer, Keeper};
use crate::export::Job;
use crate::policy::{Event, Sleep};

/// What is said to who wants a driver while the machine sleeps.
pub fn refusal(name: &str) -> String {
    format!(
        "{name}: the machine is about to sleep; ring3 wake ends that, or the next minute and a \
        half does"
    )
}

impl Keeper {
    pub(super) fn fall_asleep(&mut self, sleep: Sleep, answer: Answer) {
        if self.machine.is_asked() {
            let name = &self.setup.device.name;
            return answer(Reply::Refused(format!(
                "{name}: another request is being done; try again"
            )));
        }
        // Who asks again has not been answered, and hears of it now.
        if let Some(last) = self.sleeper.replace(answer) {
            last(Reply::Refused("another ring3 sleep has come".into()));
        }
        self.note(match sleep {
            Sleep::Stopped => "the machine is about to sleep: the driver stops its device",
            Sleep::Driven => "the machine is about to sleep: the device is started anew afterwards",
        });
        self.happen(Event::Sleep(sleep));
    }

    pub(super) fn wake_up(&mut self) {
        if let Some(answer) = self.sleeper.take() {
            answer(Reply::Refused(format!(
                "{}: the machine is awake again",
                self.setup.device.name
            )));
        }
        self.happen(Event::Wake);
    }

    pub(super) fn answer_sleeper(&mut self) {
        if self.machine.may_sleep()
            && let Some(answer) = self.sleeper.take()
        {
            answer(Reply::Done);
        }
    }

    /// What the kernel does for clients waits for the driver, which would do nothing more.
    pub(super) fn begin_suspend(&mut self) {
        match self.setup.device.export.share {
            Some(_) => self.exporter.order(Job::HoldClients),
            None => self.suspend(),
        }
    }

    pub(super) fn suspend(&mut self) {
        self.order_driver(&DriverCommand::Rest);
    }
}
