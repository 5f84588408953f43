//! What goes wrong with a device's registers and calls, and when.
//!
//! # As text
//! `FAULT:WHAT:NTH:TIMES`, several with `+` between them, in the words that the simulated devices
//! have for their commands. All but the fault can be left out.
//! - FAULT: `drop` (not done: a read says all ones, a call that it went well), `value/0x0` (that is
//!   read, or written instead), `set/0x1` and `clear/0x1` (these bits of what is read or written),
//!   `delay/5ms`, `remove` (from then on everything reads all ones); for writes `damage/0x1` (words
//!   of memory are changed, as that number has it, of what the device wrote there meanwhile, if it
//!   did); for calls `refuse` (not supported; a reset leaves bus mastering off) and `fatal` (it
//!   fails and does nothing); for `irqs` `lose-interrupt` (those that are enabled by it never
//!   come).
//! - WHAT: `read`, `write`, `any` (both; the default), or a call: `irqs`, `bus-master`, `reset`.
//!   `read#4` is one of BAR 4, `read#config` one of configuration space, `read#4@0x2` one that
//!   touches byte 2 there, `read#4@0x10-0x13` one that touches one of four.
//! - NTH: which match is the first to be hit, from 1. TIMES: how many are hit, or `all`, or
//!   `reset`: all until the function was reset.
//!
//! `set/0x1:read#4@0x2:1:reset` is a bus master that says that it is active until its function is
//! reset.

use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring3_device::{Error, parse_duration, parse_number, parse_range};
use ring3_spec::pci;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is not done: a read says all ones, a call that it went well.
    Drop,
    /// This is read, or written instead.
    Value(u64),
    /// These bits are set in what is read or written.
    Set(u64),
    /// These bits are cleared in what is read or written.
    Clear(u64),
    /// Once it is done, words of the memory that driver and device share are changed as the number
    /// has it: of what the device wrote meanwhile, if it did.
    Damage(u64),
    /// It is done this much later; who asked waits.
    Delay(Duration),
    /// The device is pulled out: all ones from now on.
    Remove,
    /// The call is not supported. A reset leaves bus mastering off.
    Refuse,
    /// The call fails and does nothing.
    Fatal,
    /// The interrupts that the call enables never come.
    LoseInterrupt,
}

/// What a rule waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A read or a write.
    Access,
    /// A read.
    Read,
    /// A write.
    Write,
    /// [`Device::irqs`](ring3_device::Device::irqs).
    Irqs,
    /// [`Device::set_bus_master`](ring3_device::Device::set_bus_master), on or off.
    BusMaster,
    /// [`Device::reset`](ring3_device::Device::reset).
    Reset,
}

/// Where registers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// A base address register, 0 to 5.
    Bar(u8),
    /// Configuration space.
    Config,
}

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What goes wrong.
    pub action: Action,
    /// What it waits for.
    pub what: What,
    /// Only there; anywhere if `None`.
    pub space: Option<Space>,
    /// Only accesses that touch one of these bytes; all if `None`.
    pub bytes: Option<RangeInclusive<u64>>,
    /// The first match at which it fires, counted from 1.
    pub nth: u64,
    /// For how many matches it fires.
    pub times: u64,
    /// It is gone once the function was reset.
    pub until_reset: bool,
}

/// A register access, with where it is, or a call.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) place: Option<(Space, Range<u64>)>,
}

impl Rule {
    fn matches(&self, event: &Event) -> bool {
        let what = self.what == event.what
            || self.what == What::Access && matches!(event.what, What::Read | What::Write);
        what && event.place.as_ref().is_none_or(|(space, touched)| {
            let bytes = self.bytes.as_ref();
            self.space.is_none_or(|own| own == *space)
                && bytes.is_none_or(|bytes| {
                    touched.start <= *bytes.end() && *bytes.start() < touched.end
                })
        })
    }
}

#[derive(Default)]
struct Inner {
    /// Each rule with the matches that it has seen and the times that it has fired.
    rules: Mutex<Vec<(Rule, u64, u64)>>,
    removed: AtomicBool,
}

/// The rules of one device, shared between the device and whoever changes them while a driver runs.
#[derive(Clone, Default)]
pub struct Plan(Arc<Inner>);

impl Plan {
    /// Adds the rules in `text`; they count from now on.
    pub fn add(&self, text: &str) -> Result<(), Error> {
        let rules = text.split('+').map(str::parse).collect::<Result<Vec<Rule>, _>>()?;
        self.rules().extend(rules.into_iter().map(|rule| (rule, 0, 0)));
        Ok(())
    }

    /// Removes all rules. A device that was removed stays away.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// How often rules have fired, all that are in the plan together.
    pub fn fired(&self) -> u64 {
        self.rules().iter().map(|(_, _, fired)| fired).sum()
    }

    /// Whether a rule has removed the device.
    pub(crate) fn is_removed(&self) -> bool {
        self.0.removed.load(Ordering::Acquire)
    }

    /// What goes wrong at `event`: all rules count it, and the first whose turn it is fires. Waits
    /// if that is a delay.
    pub(crate) fn check(&self, event: &Event) -> Option<Action> {
        let action = self.next(event);
        match action {
            Some(Action::Remove) => self.0.removed.store(true, Ordering::Release),
            Some(Action::Delay(time)) => std::thread::sleep(time),
            _ => {}
        }
        action
    }

    fn next(&self, event: &Event) -> Option<Action> {
        let mut action = None;
        for (rule, seen, fired) in self.rules().iter_mut().filter(|(rule, ..)| rule.matches(event))
        {
            *seen += 1;
            if action.is_none() && *seen >= rule.nth && *fired < rule.times {
                *fired += 1;
                action = Some(rule.action);
            }
        }
        action
    }

    /// The function was reset.
    pub(crate) fn reset(&self) {
        self.rules().retain(|(rule, ..)| !rule.until_reset);
    }

    fn rules(&self) -> MutexGuard<'_, Vec<(Rule, u64, u64)>> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromStr for Plan {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let plan = Self::default();
        plan.add(text).map(|()| plan)
    }
}

const FAULTS: &str = "drop, value/NUMBER, set/BITS, clear/BITS, damage/NUMBER, delay/TIME, remove, \
                      refuse, fatal, lose-interrupt";
const WHATS: &str = "read, write, any, irqs, bus-master or reset; \
                     behind an access #BAR or #config, and @FIRST or @FIRST-LAST";

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |what: &str| Error::Invalid(format!("fault rule {text:?}: {what}"));
        let mut parts = text.split(':');
        let fault = parts.next().unwrap_or_default();
        let action =
            action(fault).ok_or_else(|| refuse(&format!("the fault must be one of {FAULTS}")))?;
        let default = match action {
            Action::Refuse | Action::Fatal => "reset",
            Action::LoseInterrupt => "irqs",
            Action::Damage(_) => "write",
            _ => "any",
        };
        let place = place(parts.next().unwrap_or(default));
        let (what, space, bytes) =
            place.ok_or_else(|| refuse(&format!("what it waits for must be {WHATS}")))?;
        if !goes_with(action, what) {
            return Err(refuse(
                "value, set and clear go with accesses, damage with writes, refuse and fatal with \
                calls, lose-interrupt with irqs",
            ));
        }
        let count = |text: &str| parse_number(text).filter(|count| *count > 0);
        let nth = count(parts.next().unwrap_or("1"))
            .ok_or_else(|| refuse("which match it is must be 1 or more"))?;
        let (times, until_reset) = match parts.next().unwrap_or("1") {
            "all" => (Some(u64::MAX), false),
            "reset" => (Some(u64::MAX), true),
            text => (count(text), false),
        };
        let times =
            times.ok_or_else(|| refuse("how often it happens must be 1 or more, all or reset"))?;
        match parts.next() {
            None => Ok(Self { action, what, space, bytes, nth, times, until_reset }),
            Some(_) => Err(refuse("it is FAULT:WHAT:NTH:TIMES, and there is more")),
        }
    }
}

fn action(text: &str) -> Option<Action> {
    let (name, argument) =
        text.split_once('/').map_or((text, None), |(name, argument)| (name, Some(argument)));
    let number = || parse_number(argument?);
    let plain = |action| argument.is_none().then_some(action);
    match name {
        "drop" => plain(Action::Drop),
        "value" => number().map(Action::Value),
        "set" => number().map(Action::Set),
        "clear" => number().map(Action::Clear),
        "damage" => number().map(Action::Damage),
        "delay" => parse_duration(argument?).map(Action::Delay),
        "remove" => plain(Action::Remove),
        "refuse" => plain(Action::Refuse),
        "fatal" => plain(Action::Fatal),
        "lose-interrupt" => plain(Action::LoseInterrupt),
        _ => None,
    }
}

fn place(text: &str) -> Option<(What, Option<Space>, Option<RangeInclusive<u64>>)> {
    let (text, bytes) = match text.split_once('@') {
        Some((text, bytes)) if bytes.contains('-') => (text, Some(parse_range(bytes)?)),
        Some((text, byte)) => (text, Some(parse_number(byte).map(|byte| byte..=byte)?)),
        None => (text, None),
    };
    let bar = |text| {
        parse_number(text)
            .filter(|bar| *bar < pci::BAR_COUNT.into())
            .map(|bar| Space::Bar(bar as u8))
    };
    let (name, space) = match text.split_once('#') {
        Some((name, "config")) => (name, Some(Space::Config)),
        Some((name, index)) => (name, Some(bar(index)?)),
        None => (text, None),
    };
    let what = match name {
        "any" => What::Access,
        "read" => What::Read,
        "write" => What::Write,
        "irqs" => What::Irqs,
        "bus-master" => What::BusMaster,
        "reset" => What::Reset,
        _ => return None,
    };
    let anywhere = space.is_none() && bytes.is_none();
    (what.is_access() || anywhere).then_some((what, space, bytes))
}

impl What {
    fn is_access(self) -> bool {
        matches!(self, What::Access | What::Read | What::Write)
    }
}

fn goes_with(action: Action, what: What) -> bool {
    match action {
        Action::Value(_) | Action::Set(_) | Action::Clear(_) => what.is_access(),
        Action::Damage(_) => what == What::Write,
        Action::Refuse | Action::Fatal => !what.is_access(),
        Action::LoseInterrupt => what == What::Irqs,
        Action::Drop => what != What::Irqs,
        Action::Delay(_) | Action::Remove => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn a_fault_alone_meets_the_first_access_of_any_register() {
        let drop = rule("drop");
        assert_eq!(
            (drop.what, drop.space, drop.bytes, drop.nth, drop.times),
            (What::Access, None, None, 1, 1)
        );
        assert_eq!((rule("refuse").what, rule("lose-interrupt").what), (What::Reset, What::Irqs));
    }

    #[test]
    fn a_rule_names_its_register_and_its_turn() {
        let one = rule("set/0x1:read#4@0x2:3:reset");
        assert_eq!(
            (one.action, one.what, one.space, one.bytes),
            (Action::Set(1), What::Read, Some(Space::Bar(4)), Some(2..=2))
        );
        assert_eq!((one.nth, one.times, one.until_reset), (3, u64::MAX, true));
        let two = rule("delay/5ms:write#config@4-7:1:2");
        assert_eq!((two.space, two.bytes, two.times), (Some(Space::Config), Some(4..=7), 2));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("explode", "drop, value/NUMBER"),
            ("value:read", "drop, value/NUMBER"),
            ("drop:sing", "read, write, any"),
            ("drop:read#6", "#BAR"),
            ("drop:reset#1", "#BAR"),
            ("drop:read@9-1", "@FIRST"),
            ("value/1:reset", "go with accesses"),
            ("refuse:read", "go with accesses"),
            ("damage/1:read", "damage with writes"),
            ("lose-interrupt:reset", "go with accesses"),
            ("drop:irqs", "go with accesses"),
            ("drop:read:0", "1 or more"),
            ("drop:read:1:0", "all or reset"),
            ("drop:read:1:1:1", "there is more"),
        ] {
            let error = text.parse::<Rule>().unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn an_access_meets_a_rule_for_a_byte_that_it_touches() {
        let rule = rule("drop:read#0@4-7");
        let read = |bar, offset, width| Event {
            what: What::Read,
            place: Some((Space::Bar(bar), offset..offset + width)),
        };
        let met = [(0, 0, 4), (0, 0, 8), (0, 7, 1), (0, 8, 4), (1, 4, 4)]
            .map(|(bar, at, width)| rule.matches(&read(bar, at, width)));
        assert_eq!(met, [false, true, true, false, false]);
    }
}
