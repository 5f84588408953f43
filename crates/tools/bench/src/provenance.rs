//! Where a report comes from: which program made it, when, by which command, on what machine, and
//! what others did there meanwhile.

use std::ffi::OsString;
use std::fs;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cpu::{Others, processors};

/// Where a report comes from. docs/report.md describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// ring3's version.
    pub version: String,
    /// The commit that was checked out when the program was built; `None` if it was built outside
    /// of a repository.
    pub commit: Option<String>,
    /// When the report was made, by RFC 3339.
    pub date: String,
    /// The command, as a shell takes it.
    pub command: String,
    /// The host's processor, as the kernel calls it.
    pub processor: String,
    /// How many of them the host has.
    pub processors: u32,
    /// What others took of them since the measurement began, or since the last report of the same
    /// command, in percent; `None` if it is not known.
    pub others_percent: Option<f64>,
}

static COMMIT: OnceLock<Option<&'static str>> = OnceLock::new();
static OTHERS: Mutex<Option<Others>> = Mutex::new(None);

/// A measurement begins, by a program of this commit.
pub fn begin(commit: Option<&'static str>) {
    COMMIT.get_or_init(|| commit);
    *OTHERS.lock().unwrap_or_else(PoisonError::into_inner) = Others::start();
}

impl Provenance {
    /// Of a report that is made now.
    pub fn now() -> Self {
        let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: COMMIT.get().copied().flatten().map(Into::into),
            date: now(),
            command: words(std::env::args_os()),
            processor: processor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            processors: processors().unwrap_or(1) as u32,
            others_percent: others.as_mut().and_then(Others::percent),
        }
    }
}

/// This second.
fn now() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default()
}

/// A command line with quotes where a shell needs them, and without the program's folder.
fn words(arguments: impl Iterator<Item = OsString>) -> String {
    let plain = |word: &str| {
        let usual = |letter: char| letter.is_alphanumeric() || "-_./:=,+@%".contains(letter);
        !word.is_empty() && word.chars().all(usual)
    };
    let quoted = |(number, word): (usize, OsString)| {
        let word = word.to_string_lossy();
        match word.rsplit('/').next() {
            Some(name) if number == 0 => name.to_owned(),
            _ if plain(&word) => word.into_owned(),
            _ => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    arguments.enumerate().map(quoted).collect::<Vec<_>>().join(" ")
}

/// The model's name in `/proc/cpuinfo`, which not every architecture has there.
fn processor(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = name.and_then(|rest| rest.split_once(':')).map_or("", |(_, name)| name.trim());
    if name.is_empty() { std::env::consts::ARCH.into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_when_it_was_made_and_by_what() {
        begin(Some("0123abc"));
        let made = Provenance::now();
        assert!(OffsetDateTime::parse(&made.date, &Rfc3339).is_ok(), "{made:?}");
        assert_eq!(made.commit.as_deref(), Some("0123abc"));
        assert!(!made.processor.is_empty() && made.processors > 0 && !made.command.is_empty());
    }

    #[test]
    fn a_command_can_be_given_to_a_shell_again() {
        let words = |line: &[&str]| words(line.iter().map(OsString::from));
        assert_eq!(
            words(&["/usr/bin/ring3", "bench", "--out", "a b", "it's", ""]),
            r"ring3 bench --out 'a b' 'it'\''s' ''"
        );
    }

    #[test]
    fn a_word_that_is_no_text_is_shown_as_far_as_it_is() {
        use std::os::unix::ffi::OsStringExt;
        let line = [OsString::from("ring3"), OsString::from_vec(b"/tmp/\xff".to_vec())];
        assert_eq!(words(line.into_iter()), "ring3 '/tmp/\u{fffd}'");
    }

    #[test]
    fn a_processor_without_a_name_is_called_by_its_architecture() {
        let text = "processor\t: 0\nmodel name\t: A fine one  \nflags: x\n";
        assert_eq!(processor(text), "A fine one");
        assert_eq!(processor("processor\t: 0\n"), std::env::consts::ARCH);
    }
}
