//! Fault hooks: what goes wrong, and when. The one place where a model is told to misbehave.
//!
//! A [`FaultPlan`] is a list of [`Rule`]s that can be changed while a driver runs. A model asks it
//! about every command that it takes; a rule counts the commands that match it, and from the `nth`
//! on it fires, `times` times.
//!
//! # In a URI
//! `fault=FAULT:COMMAND:NTH:TIMES`, several with `+` between them. All but the fault can be left
//! out.
//! - FAULT: `drop`, `delay/5ms`, `hang`, `duplicate`, `reorder`, `wrong-id`, `invent`,
//!   `wrong-phase`, `status/0x281`, `stuck-ready`, `fatal`, `remove`, `storm/50000`,
//!   `lose-interrupt`, `corrupt`, `stray-dma/0xdead0000`, for NVMe `function-reset`, `lose-power`,
//!   `endless-list`, and for ATA `error/0x40` (bits of the error register), `fault`, `busy`,
//!   `busy-until-reset`, `dma-error`, `stuck`, `unplug`, `no-drive`, `lying-log`,
//!   `wrong-interrupt`, and for network cards `late-interrupt/5ms`, `wrong-length`, `garbage`,
//!   `link-down/100ms`; each is an [`Action`]. A model refuses those that it does not have.
//! - COMMAND: `any`, `admin`, `io` (the default), `enable` (also called `reset`), or a command of
//!   the model: `read`, `write`, `flush`, `identify`. `read#2` is one on queue 2 (of an ATA
//!   controller: of its second drive), `read@0-7` one that touches blocks 0 to 7.
//! - NTH: which match is the first to be hit, from 1. TIMES: how many are hit, or `all`.
//!
//! `fault=drop:read:3` loses the completion of the third read.

mod text;

pub(super) use text::{CommandName, Vocabulary};

use ring3_device::Error;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The command is done, and its completion is never written.
    Drop,
    /// The command is done this much later.
    Delay(Duration),
    /// The command is not done until it is aborted or released by hand.
    Hang,
    /// The completion is written twice.
    Duplicate,
    /// The command is done after the next one of its queue, or 10 ms later if there is none.
    Reorder,
    /// The completion carries the command id with these bits flipped.
    WrongId(u16),
    /// A completion with these bits of the command id flipped comes before the right one.
    Invent(u16),
    /// The completion is written with the phase of the lap before.
    WrongPhase,
    /// The command is not done and ends with this status field.
    Status(u16),
    /// A change of the enable bit is not followed: ready stays what it is, and so does the
    /// controller.
    StuckReady,
    /// Fatal status: the controller stops and says so.
    Fatal,
    /// The device is pulled out: all ones from now on.
    Remove,
    /// The completion's interrupt comes this many times more.
    Storm(u32),
    /// The completion's interrupt does not come.
    LoseInterrupt,
    /// The first byte of the data is inverted, on its way to memory or to the medium.
    Corrupt,
    /// Besides doing the command, the device writes 64 bytes at this address.
    StrayDma(u64),
    /// NVMe: the command is not done, because the function is reset behind the driver's back, as
    /// through sysfs or by its bus.
    FunctionReset,
    /// NVMe: the command is not done, because the power goes; it comes back at once, and what was
    /// only in the cache is lost.
    LosePower,
    /// NVMe: the list of namespaces is always full, and there are as many as ids.
    EndlessList,
    /// ATA: the command is not done and ends with these bits in the error register.
    Error(u8),
    /// ATA: the command is not done; the drive says that it is broken (DF).
    DriveFault,
    /// ATA: the drive takes the command, or a reset, and never clears BSY again, resets or not.
    Busy,
    /// ATA: the drive never clears BSY until it is reset.
    BusyUntilReset,
    /// ATA: an access of the controller to memory fails in the middle of the command.
    DmaError,
    /// ATA: the command is done and says so, but the controller goes on saying that it is under way
    /// (PxCI, the bus master's active bit).
    Stuck,
    /// ATA: the drive is pulled out.
    Unplug,
    /// ATA: no drive is found behind the reset.
    NoDrive,
    /// ATA: the log page names a queued command that was not in flight.
    LyingLog,
    /// ATA: an interrupt without a reason comes before the command is done, 10 ms later.
    WrongInterrupt,
    /// Network cards: the interrupt comes this much later.
    LateInterrupt(Duration),
    /// Network cards: the length that is written back has these bits flipped.
    WrongLength(u16),
    /// Network cards: what is written back is all ones.
    Garbage,
    /// Network cards: the frame is lost, and the link with it for this long.
    LinkDown(Duration),
}

/// The queues that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All.
    Any,
    /// The admin queue.
    Admin,
    /// All but the admin queue.
    Io,
    /// This one.
    One(u16),
}

/// What a rule waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// A command.
    Command {
        /// On which queue.
        queues: Queues,
        /// With which opcode; any if `None`.
        opcode: Option<u8>,
        /// Touching one of these blocks; any, or none at all, if `None`.
        blocks: Option<RangeInclusive<u64>>,
    },
    /// A change of the enable bit; of ATA, a reset.
    Enable,
}

/// Something that happens in a model and that a rule may match.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A command was taken from queue `queue`; `blocks` is the first block and the number of
    /// blocks.
    Command {
        /// The submission queue, 0 for admin.
        queue: u16,
        /// Its opcode.
        opcode: u8,
        /// First block and number of blocks.
        blocks: Option<(u64, u64)>,
    },
    /// The enable bit changed; or an ATA drive or controller is reset.
    Enable,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it waits for.
    pub when: When,
    /// The first match at which it fires, counted from 1.
    pub nth: u64,
    /// For how many matches it fires.
    pub times: u64,
    /// What then goes wrong.
    pub action: Action,
}

impl Rule {
    /// `action` at the first command of opcode `opcode` on an I/O queue.
    pub fn io(action: Action, opcode: u8) -> Self {
        Self {
            when: When::Command { queues: Queues::Io, opcode: Some(opcode), blocks: None },
            nth: 1,
            times: 1,
            action,
        }
    }

    /// `action` at the first command of opcode `opcode` on the admin queue.
    pub fn admin(action: Action, opcode: u8) -> Self {
        Self {
            when: When::Command { queues: Queues::Admin, opcode: Some(opcode), blocks: None },
            nth: 1,
            times: 1,
            action,
        }
    }

    /// `action` at the first change of the enable bit.
    pub fn enable(action: Action) -> Self {
        Self { when: When::Enable, nth: 1, times: 1, action }
    }

    /// The same from match `nth` on, counted from 1.
    pub fn nth(self, nth: u64) -> Self {
        Self { nth, ..self }
    }

    /// The same for `times` matches.
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// The same for every match from the `nth` on.
    pub fn always(self) -> Self {
        Self { times: u64::MAX, ..self }
    }

    /// The same for queue `queue` only.
    pub fn on_queue(mut self, queue: u16) -> Self {
        if let When::Command { queues, .. } = &mut self.when {
            *queues = Queues::One(queue);
        }
        self
    }

    /// The same for commands that touch one of these blocks.
    pub fn at_blocks(mut self, range: RangeInclusive<u64>) -> Self {
        if let When::Command { blocks, .. } = &mut self.when {
            *blocks = Some(range);
        }
        self
    }
}

impl When {
    fn matches(&self, event: &Event) -> bool {
        match (self, event) {
            (When::Enable, Event::Enable) => true,
            (
                When::Command { queues, opcode, blocks },
                Event::Command { queue, opcode: code, blocks: touched },
            ) => {
                let queue_matches = match *queues {
                    Queues::Any => true,
                    Queues::Admin => *queue == 0,
                    Queues::Io => *queue != 0,
                    Queues::One(one) => *queue == one,
                };
                let blocks_match = match (blocks, touched) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(range), &Some((first, count))) => {
                        first <= *range.end()
                            && *range.start() <= first.saturating_add(count.saturating_sub(1))
                    }
                };
                queue_matches && blocks_match && opcode.is_none_or(|opcode| opcode == *code)
            }
            _ => false,
        }
    }
}

#[derive(Default)]
struct Inner {
    /// How many rules there are, so that a model without any pays one load per command.
    count: AtomicUsize,
    /// Each rule with the matches that it has seen and the times that it has fired.
    rules: Mutex<Vec<(Rule, u64, u64)>>,
    /// What rules can name; nothing if `None`.
    words: Option<&'static Vocabulary>,
}

/// The rules of one device, shared between the model and whoever changes them.
#[derive(Clone, Default)]
pub struct FaultPlan(Arc<Inner>);

impl FaultPlan {
    /// Without a rule, of a model that has these `words`.
    pub(super) fn of(words: &'static Vocabulary) -> Self {
        Self(Arc::new(Inner { words: Some(words), ..Inner::default() }))
    }

    /// Adds the rules in `text`, as a URI has them; they count from now on.
    pub fn read(&self, text: &str) -> Result<(), Error> {
        let words = self.0.words.ok_or_else(|| {
            Error::Unsupported("fault rules: this model names no commands".into())
        })?;
        text::parse(text, words)?.into_iter().for_each(|rule| self.add(rule));
        Ok(())
    }

    /// Adds a rule; it counts from now on.
    pub fn add(&self, rule: Rule) {
        let mut rules = self.rules();
        rules.push((rule, 0, 0));
        self.0.count.store(rules.len(), Ordering::Release);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        let mut rules = self.rules();
        rules.clear();
        self.0.count.store(0, Ordering::Release);
    }

    /// How often rules have fired, all that are in the plan together.
    pub fn fired(&self) -> u64 {
        self.rules().iter().map(|(_, _, fired)| fired).sum()
    }

    /// What goes wrong at `event`: all rules count it, and the first whose turn it is fires.
    #[inline]
    pub fn check(&self, event: &Event) -> Option<Action> {
        if self.0.count.load(Ordering::Acquire) == 0 { None } else { self.look_up(event) }
    }

    #[cold]
    fn look_up(&self, event: &Event) -> Option<Action> {
        let mut action = None;
        for (rule, seen, fired) in
            self.rules().iter_mut().filter(|(rule, ..)| rule.when.matches(event))
        {
            *seen += 1;
            if action.is_none() && *seen >= rule.nth && *fired < rule.times {
                *fired += 1;
                action = Some(rule.action);
            }
        }
        if let Some(action) = action {
            tracing::debug!(?event, ?action, "fault hook");
        }
        action
    }

    fn rules(&self) -> MutexGuard<'_, Vec<(Rule, u64, u64)>> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(queue: u16, opcode: u8, first: u64) -> Event {
        Event::Command { queue, opcode, blocks: Some((first, 8)) }
    }

    #[test]
    fn a_rule_fires_from_the_nth_match_on_for_as_often_as_it_says() {
        let plan = FaultPlan::default();
        plan.add(Rule::io(Action::Drop, 2).nth(2).times(2));
        let fired: Vec<_> = (0..5).map(|_| plan.check(&command(1, 2, 0)).is_some()).collect();
        assert_eq!(fired, [false, true, true, false, false]);
        assert_eq!(plan.fired(), 2);
    }

    #[test]
    fn a_rule_for_blocks_fires_if_the_command_touches_one_of_them() {
        let plan = FaultPlan::default();
        plan.add(Rule::io(Action::Drop, 2).at_blocks(100..=100).always());
        let hits = [92, 93, 100, 101].map(|first| plan.check(&command(1, 2, first)).is_some());
        assert_eq!(hits, [false, true, true, false]);
    }

    #[test]
    fn a_rule_for_io_does_not_count_admin_commands_of_the_same_opcode() {
        let plan = FaultPlan::default();
        plan.add(Rule::io(Action::Drop, 2));
        assert_eq!(plan.check(&command(0, 2, 0)), None);
        assert_eq!(plan.check(&command(7, 2, 0)), Some(Action::Drop));
    }

    #[test]
    fn of_two_rules_the_first_fires_and_both_count() {
        let plan = FaultPlan::default();
        plan.add(Rule::io(Action::Drop, 2));
        plan.add(Rule::io(Action::Duplicate, 2).nth(2));
        assert_eq!(plan.check(&command(1, 2, 0)), Some(Action::Drop));
        assert_eq!(plan.check(&command(1, 2, 0)), Some(Action::Duplicate));
    }
}
