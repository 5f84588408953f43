//! Fault rules as a user writes them.

use ring3_device::Error;

use super::{Action, Queues, Rule, When};
use crate::options::{duration, number, range};

/// A command that a rule can name: its name, its queue, its opcode.
pub(crate) type CommandName = (&'static str, Queues, u8);

/// Flipped bits of a command id if the user does not say which.
const ID_BITS: u16 = 0xffff;
/// Interrupts of a storm if the user does not say how many: some ten thousand in a few ten
/// milliseconds.
const STORM: u32 = 50_000;
/// Where a stray access goes if the user does not say: a page that no arena of ours lies in.
const STRAY: u64 = 0xdead_0000;

/// What a model can be told to do wrong.
pub(crate) struct Vocabulary {
    /// Its commands.
    pub(crate) commands: &'static [CommandName],
    /// The faults that it has, as the user writes them: with what stands behind the slash.
    pub(crate) faults: &'static [&'static str],
}

/// Reads rules with `+` between them.
pub(crate) fn parse(text: &str, words: &Vocabulary) -> Result<Vec<Rule>, Error> {
    text.split('+').map(|rule| parse_rule(rule, words)).collect()
}

fn parse_rule(text: &str, words: &Vocabulary) -> Result<Rule, Error> {
    let commands = words.commands;
    let refuse = |what: &str| Error::Invalid(format!("fault rule {text:?}: {what}"));
    let mut parts = text.split(':');
    let fault = parts.next().unwrap_or_default();
    let base = |text: &str| text.split(['/', '[']).next().unwrap_or_default().to_owned();
    let known = words.faults.iter().any(|known| base(known) == base(fault));
    let action = action(fault)
        .filter(|_| known)
        .ok_or_else(|| refuse(&format!("the fault must be one of {}", words.faults.join(", "))))?;
    let at_reset = matches!(action, Action::StuckReady | Action::NoDrive);
    let command = parts.next().unwrap_or(match action {
        _ if at_reset => "enable",
        Action::LyingLog => "log",
        Action::EndlessList => "identify",
        _ => "io",
    });
    let when = when(command, commands).ok_or_else(|| {
        let names: Vec<&str> = commands.iter().map(|(name, ..)| *name).collect();
        let names = names.join(", ");
        refuse(&format!(
            "what it waits for must be any, admin, io, enable or one of {names}; \
             behind it #QUEUE or @FIRST-LAST"
        ))
    })?;
    if at_reset != (when == When::Enable) && action != Action::Busy {
        return Err(refuse(
            "stuck-ready and no-drive go with enable, other faults with commands, and busy with \
            both",
        ));
    }
    let count = |text: Option<&str>, default| match text {
        None => Some(default),
        Some("all") => Some(u64::MAX),
        Some(text) => number(text).filter(|n| *n > 0),
    };
    let nth = count(parts.next(), 1)
        .filter(|nth| *nth < u64::MAX)
        .ok_or_else(|| refuse("which match it is must be 1 or more"))?;
    let times = count(parts.next(), 1)
        .ok_or_else(|| refuse("how often it happens must be 1 or more, or all"))?;
    match parts.next() {
        None => Ok(Rule { when, nth, times, action }),
        Some(_) => Err(refuse("it is FAULT:COMMAND:NTH:TIMES, and there is more")),
    }
}

fn action(text: &str) -> Option<Action> {
    let (name, argument) = match text.split_once('/') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let or = |default: u64, most: u64| match argument {
        None => Some(default),
        Some(text) => number(text).filter(|value| *value <= most),
    };
    let bits =
        || or(ID_BITS.into(), u16::MAX.into()).filter(|bits| *bits > 0).map(|bits| bits as u16);
    let plain = |action| argument.is_none().then_some(action);
    match name {
        "drop" => plain(Action::Drop),
        "delay" => duration(argument?).map(Action::Delay),
        "hang" => plain(Action::Hang),
        "duplicate" => plain(Action::Duplicate),
        "reorder" => plain(Action::Reorder),
        "wrong-id" => bits().map(Action::WrongId),
        "invent" => bits().map(Action::Invent),
        "wrong-phase" => plain(Action::WrongPhase),
        "status" => number(argument?)
            .filter(|code| (1..1 << 15).contains(code))
            .map(|code| Action::Status(code as u16)),
        "stuck-ready" => plain(Action::StuckReady),
        "fatal" => plain(Action::Fatal),
        "remove" => plain(Action::Remove),
        "storm" => or(STORM.into(), u32::MAX.into()).map(|count| Action::Storm(count as u32)),
        "lose-interrupt" => plain(Action::LoseInterrupt),
        "corrupt" => plain(Action::Corrupt),
        "stray-dma" => or(STRAY, u64::MAX).map(Action::StrayDma),
        "function-reset" => plain(Action::FunctionReset),
        "lose-power" => plain(Action::LosePower),
        "endless-list" => plain(Action::EndlessList),
        "error" => number(argument?)
            .filter(|bits| (1..=0xff).contains(bits))
            .map(|bits| Action::Error(bits as u8)),
        "fault" => plain(Action::DriveFault),
        "busy" => plain(Action::Busy),
        "busy-until-reset" => plain(Action::BusyUntilReset),
        "dma-error" => plain(Action::DmaError),
        "stuck" => plain(Action::Stuck),
        "unplug" => plain(Action::Unplug),
        "no-drive" => plain(Action::NoDrive),
        "lying-log" => plain(Action::LyingLog),
        "wrong-interrupt" => plain(Action::WrongInterrupt),
        "late-interrupt" => duration(argument?).map(Action::LateInterrupt),
        "wrong-length" => bits().map(Action::WrongLength),
        "garbage" => plain(Action::Garbage),
        "link-down" => duration(argument?).map(Action::LinkDown),
        _ => None,
    }
}

fn when(text: &str, commands: &[CommandName]) -> Option<When> {
    if text == "enable" || text == "reset" {
        return Some(When::Enable);
    }
    let (text, blocks) = match text.split_once('@') {
        Some((text, blocks)) => (text, Some(range(blocks)?)),
        None => (text, None),
    };
    let (name, queue) = match text.split_once('#') {
        Some((name, queue)) => {
            (name, Some(number(queue).filter(|queue| *queue <= u16::MAX.into())? as u16))
        }
        None => (text, None),
    };
    let (queues, opcode) = match name {
        "any" => (Queues::Any, None),
        "admin" => (Queues::Admin, None),
        "io" => (Queues::Io, None),
        _ => commands
            .iter()
            .find(|command| command.0 == name)
            .map(|command| (command.1, Some(command.2)))?,
    };
    Some(When::Command { queues: queue.map_or(queues, Queues::One), opcode, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const WORDS: Vocabulary = Vocabulary {
        commands: &[("read", Queues::Io, 2), ("identify", Queues::Admin, 6)],
        faults: &[
            "drop",
            "delay/TIME",
            "status/CODE",
            "stuck-ready",
            "corrupt",
            "stray-dma[/ADDRESS]",
            "busy",
        ],
    };

    fn rule(text: &str) -> Rule {
        parse(text, &WORDS).unwrap().remove(0)
    }

    #[test]
    fn a_fault_alone_meets_the_first_io_command() {
        let when = When::Command { queues: Queues::Io, opcode: None, blocks: None };
        assert_eq!(rule("drop"), Rule { when, nth: 1, times: 1, action: Action::Drop });
        assert_eq!(rule("stuck-ready"), Rule::enable(Action::StuckReady));
    }

    #[test]
    fn a_rule_names_its_command_and_its_turn() {
        assert_eq!(rule("drop:read:3"), Rule::io(Action::Drop, 2).nth(3));
        assert_eq!(
            rule("delay/5ms:identify:1:all"),
            Rule::admin(Action::Delay(Duration::from_millis(5)), 6).always()
        );
        assert_eq!(
            rule("corrupt:read#2@100-200"),
            Rule::io(Action::Corrupt, 2).on_queue(2).at_blocks(100..=200)
        );
    }

    #[test]
    fn rules_stand_beside_each_other() {
        let rules = parse("status/0x281:read+stray-dma/0x1000:read:2", &WORDS).unwrap();
        assert_eq!(
            rules,
            [Rule::io(Action::Status(0x281), 2), Rule::io(Action::StrayDma(0x1000), 2).nth(2)]
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("explode", "drop, delay/TIME"),
            ("drop:sing", "read, identify"),
            ("drop:read:0", "1 or more"),
            ("drop:read:1:0", "or all"),
            ("drop:read:1:1:1", "there is more"),
            ("delay:read", "drop, delay/TIME"),
            ("status/0:read", "status/CODE"),
            ("drop:enable", "stuck-ready and no-drive go with enable"),
            ("stuck-ready:read", "stuck-ready and no-drive go with enable"),
            ("unplug:read", "drop, delay/TIME"),
            ("drop:read@9-1", "@FIRST-LAST"),
        ] {
            let error = parse(text, &WORDS).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
