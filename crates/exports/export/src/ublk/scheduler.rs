//! The kernel's I/O scheduler in front of an exported disk.

use std::fs;
use std::io;
use std::str::FromStr;

/// Which I/O scheduler the kernel puts in front of the disk.
///
/// A disk with one queue gets `mq-deadline` from the kernel, which sorts and holds back requests
/// for a medium that turns. Anything else loses by it: `none` reads 11 to 13 percent more at 32
/// requests in flight. Read from the word in [`Scheduler::WORDS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// None, but the kernel's choice for a disk that turns.
    #[default]
    Auto,
    /// The kernel's choice.
    Keep,
    /// Requests go to the disk as they come.
    None,
    /// Sorted by address, reads before writes, none too late.
    MqDeadline,
    /// Held back as latencies ask for.
    Kyber,
    /// Shared out among processes.
    Bfq,
}

impl Scheduler {
    /// Each with the word by which a user names it; those that the kernel has are called as it
    /// calls them.
    pub const WORDS: [(&'static str, Self); 6] = [
        ("auto", Self::Auto),
        ("keep", Self::Keep),
        ("none", Self::None),
        ("mq-deadline", Self::MqDeadline),
        ("kyber", Self::Kyber),
        ("bfq", Self::Bfq),
    ];

    /// What is to be written for a disk that `rotates` or not; `None` to leave it.
    fn name(self, rotates: bool) -> Option<&'static str> {
        match self {
            Self::Auto => (!rotates).then_some("none"),
            Self::Keep => None,
            Self::None | Self::MqDeadline | Self::Kyber | Self::Bfq => Self::WORDS
                .into_iter()
                .find_map(|(word, scheduler)| (scheduler == self).then_some(word)),
        }
    }

    /// Chooses it for the block device `disk` (`ublkb0`). A disk with another scheduler is slower
    /// and not wrong, so a refusal is a warning.
    pub fn set(self, disk: &str, rotates: bool) {
        let Some(name) = self.name(rotates) else { return };
        if let Err(error) = write(disk, name) {
            let file = path(disk);
            tracing::warn!(
                scheduler = name,
                file,
                %error,
                "the kernel's choice of I/O scheduler stays; modprobe it, or write it there"
            );
        }
    }
}

impl FromStr for Scheduler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS
            .into_iter()
            .find_map(|(word, scheduler)| (word == text).then_some(scheduler));
        found.ok_or_else(|| Self::WORDS.map(|(word, _)| word).join(", "))
    }
}

fn path(disk: &str) -> String {
    format!("/sys/block/{disk}/queue/scheduler")
}

fn write(disk: &str, name: &str) -> io::Result<()> {
    fs::write(path(disk), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_does_not_turn_gets_no_scheduler_and_one_that_turns_the_kernels() {
        assert_eq!(Scheduler::default().name(false), Some("none"));
        assert_eq!(Scheduler::default().name(true), None);
    }

    #[test]
    fn a_scheduler_is_read_from_its_word_and_another_word_is_answered_with_those_that_there_are() {
        assert_eq!("mq-deadline".parse(), Ok(Scheduler::MqDeadline));
        assert_eq!(
            "fast".parse::<Scheduler>(),
            Err("auto, keep, none, mq-deadline, kyber, bfq".into())
        );
    }

    #[test]
    fn what_the_user_names_is_what_is_written_also_for_a_disk_that_turns() {
        assert_eq!(Scheduler::None.name(true), Some("none"));
        assert_eq!(Scheduler::MqDeadline.name(false), Some("mq-deadline"));
        assert_eq!(Scheduler::Keep.name(false), None);
    }
}
