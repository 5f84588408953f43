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

impl FromStr for User {
    type Err = String;

    /// By name or number. Root is none who could drive a device: he would need no sandbox.
    fn from_str(word: &str) -> Result<Self, String> {
        let failed = |error| format!("user {word:?} cannot be looked up: {error}");
        let found = match word.parse() {
            Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)),
            Err(_) => nix::unistd::User::from_name(word),
        };
        let found = found.map_err(failed)?.ok_or_else(|| format!("there is no user {word:?}: adduser --system {word}"))?;
        let (user, group) = (found.uid.as_raw(), found.gid.as_raw());
        if user == 0 || group == 0 {
            return Err(format!("{word:?} is root, or of root's group, and a driver is not: name another user"));
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
