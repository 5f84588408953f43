//! The user halves of split drivers.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Limits, Restart, User, range};

/// A driver of Linux that is split, and whose user half is kept alive. Its device is its kernel half's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Half {
    /// The driver, as its module is named.
    #[serde(skip)]
    pub name: String,
    /// The user half; `split-NAME`, beside ring3's own drivers, if `None`.
    pub program: Option<PathBuf>,
    /// Its memory may be swapped out.
    #[serde(default)]
    pub unpinned: bool,
    /// When it is started again.
    #[serde(default)]
    pub restart: Restart,
    /// What it may use up.
    #[serde(default)]
    pub limits: Limits,
    /// Whose it is; of one who owns nothing if `None`.
    pub user: Option<User>,
}

/// Most bytes of a driver's name. [split/runtime/abi.h, SPLIT_NAME]
const LONGEST: usize = 31;

impl Half {
    pub(super) fn check(&self) -> Result<(), String> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_module = (1..=LONGEST).contains(&self.name.len()) && self.name.bytes().all(known);
        range("its name", is_module, "a driver's, as its module is named: 1 to 31 letters, digits, `-` and `_`")?;
        self.restart.check()?;
        self.limits.check()
    }
}
