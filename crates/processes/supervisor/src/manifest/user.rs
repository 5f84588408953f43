//! Whose a driver's process is.

use std::str::FromStr;

use serde::Deserialize;

/// A user of this machine, with his group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct User {
    /// His number.
    pub user: u32,
    /// His group's.
    pub group: u32,
}

/// Numbers that are for users whom services make for themselves. [systemd, Users, Groups, UIDs and
/// GIDs]
const OWN: std::ops::RangeInclusive<u32> = 61_184..=65_519;

impl User {
    /// The user of a device's own whose manifest names none: the same each time, as it is told by
    /// the `name`. Nobody but this device's drivers is he, so that no process of others can end or
    /// stop them. `taken` says who cannot be had; `None` if nobody is left.
    pub fn own(name: &str, taken: impl Fn(u32) -> bool) -> Option<Self> {
        // FNV-1a, which is the same in each release.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        let (first, count) = (*OWN.start(), OWN.end() - OWN.start() + 1);
        let begin = (hash % u64::from(count)) as u32;
        let free = (0..count).map(|step| first + (begin + step) % count).find(|user| !taken(*user));
        free.map(|user| Self { user, group: user })
    }

    /// Whether the machine has a user or a group of this number, or a service that has made itself
    /// one.
    pub fn is_somebody(number: u32) -> bool {
        // Of files alone: who asks a directory waits for it.
        let is_named = |file: &str| {
            let text = match std::fs::read_to_string(file) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
                // Nobody knows whose number it is then.
                Err(_) => return true,
                Ok(text) => text,
            };
            text.lines()
                .any(|line| line.split(':').nth(2).is_some_and(|found| found.parse() == Ok(number)))
        };
        is_named("/etc/passwd")
            || is_named("/etc/group")
            || std::path::Path::new("/run/systemd/dynamic-uid").join(number.to_string()).exists()
    }
}

impl FromStr for User {
    type Err = String;

    /// By name or number. Root is none who could drive a device: he would need no sandbox.
    fn from_str(word: &str) -> Result<Self, String> {
        let failed = |error| format!("user {word:?} cannot be looked up: {error}");
        let found = match word.parse() {
            Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)),
            Err(_) => nix::unistd::User::from_name(word),
        };
        let found = found
            .map_err(failed)?
            .ok_or_else(|| format!("there is no user {word:?}: adduser --system {word}"))?;
        let (user, group) = (found.uid.as_raw(), found.gid.as_raw());
        if user == 0 || group == 0 {
            return Err(format!(
                "{word:?} is root, or of root's group, and a driver is not: name another user"
            ));
        }
        Ok(Self { user, group })
    }
}

impl TryFrom<String> for User {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}
