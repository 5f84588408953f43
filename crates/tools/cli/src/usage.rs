//! What an error of the command line suggests, where clap's own words leave the user alone.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// `error` of the command line `words` of `command`, with what to write in its place.
pub fn explained(mut error: Error, command: &Command, words: &[OsString]) -> Error {
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => device_without_option(&error, command, words),
        ErrorKind::ValueValidation => not_a_number(&error),
        _ => None,
    };
    if let Some(tip) = tip {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// A device is the first thing that a user has, and other programs take it without an option.
fn device_without_option(error: &Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let takes_device = subcommand(command, words)
        .get_arguments()
        .any(|argument| argument.get_long() == Some("device") && !argument.is_hide_set());
    let is_device = word.contains(':') && !word.starts_with('-');
    (takes_device && is_device).then(|| format!("a device comes after its option: --device {word}"))
}

/// The subcommand that `words` name, as far as they name one.
fn subcommand<'a>(command: &'a Command, words: &[OsString]) -> &'a Command {
    words.iter().skip(1).fold(command, |command, word| {
        word.to_str().and_then(|word| command.find_subcommand(word)).unwrap_or(command)
    })
}

/// The standard library's words for a number that is none do not say what would be one.
fn not_a_number(error: &Error) -> Option<String> {
    let cause: &ParseIntError = error.source()?.downcast_ref()?;
    Some(
        match cause.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "a smaller number is expected",
            _ => "a whole number is expected, in decimal digits alone, such as 8",
        }
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use crate::parse;

    fn said(words: &[&str]) -> String {
        parse(words.iter().copied()).err().unwrap().to_string()
    }

    #[test]
    fn a_device_without_its_option_is_answered_with_the_option() {
        let said = said(&["ring3", "run", "nvme", "0000:01:00.0"]);
        assert!(said.contains("--device 0000:01:00.0"), "{said}");
    }

    #[test]
    fn an_argument_that_is_no_device_is_not_called_one() {
        for words in [["ring3", "run", "nvme", "disk"], ["ring3", "cache", "list", "sim:nvme"]] {
            let said = said(&words);
            assert!(!said.contains("comes after its option"), "{said}");
        }
    }

    #[test]
    fn a_number_that_is_none_is_answered_with_one() {
        for wrong in ["3x", "1.5", "", "0x10"] {
            let said = said(&["ring3", "run", "nvme", "--device", "sim:nvme", "--depth", wrong]);
            assert!(said.contains("such as 8"), "{said}");
        }
    }

    #[test]
    fn a_number_that_no_type_holds_is_answered_with_a_smaller_one() {
        let huge = "99999999999999999999999";
        let said = said(&["ring3", "run", "nvme", "--device", "sim:nvme", "--depth", huge]);
        assert!(said.contains("a smaller number"), "{said}");
    }
}
