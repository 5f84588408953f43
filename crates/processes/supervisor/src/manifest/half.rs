//! The user halves of split drivers.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Limits, Restart, User, range};
use crate::policy::RestartPolicy;

/// A driver of Linux that is split, and whose user half is kept alive. Its device is its kernel
/// half's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserHalf {
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
    pub(crate) restart: Again,
    /// What it may use up.
    #[serde(default)]
    pub(crate) limits: Spent,
    /// Whose it is; of one who owns nothing if `None`.
    pub user: Option<User>,
}

/// What of [`Restart`] concerns a process that has no device and no users of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Again {
    burst: u32,
    window_s: u64,
    backoff_ms: u64,
    backoff_max_ms: u64,
}

impl Default for Again {
    fn default() -> Self {
        let Restart { burst, window_s, backoff_ms, backoff_max_ms, .. } = Restart::default();
        Self { burst, window_s, backoff_ms, backoff_max_ms }
    }
}

/// The same of [`Limits`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Spent {
    memory_mib: u64,
    cpu_percent: u32,
    cpu_weight: Option<u32>,
    pids: u32,
}

impl Default for Spent {
    fn default() -> Self {
        let Limits { memory_mib, cpu_percent, cpu_weight, pids, .. } = Limits::default();
        Self { memory_mib, cpu_percent, cpu_weight, pids }
    }
}

/// Most bytes of a driver's name. [split/runtime/abi.h, SPLIT_NAME]
const LONGEST: usize = 31;

impl UserHalf {
    /// When it is started again.
    pub fn policy(&self) -> RestartPolicy {
        self.restart().policy()
    }

    /// What it may use up.
    pub fn limits(&self) -> Limits {
        let Spent { memory_mib, cpu_percent, cpu_weight, pids } = self.limits;
        Limits { memory_mib, cpu_percent, cpu_weight, pids, ..Limits::default() }
    }

    fn restart(&self) -> Restart {
        let Again { burst, window_s, backoff_ms, backoff_max_ms } = self.restart;
        Restart { burst, window_s, backoff_ms, backoff_max_ms, ..Restart::default() }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_module = (1..=LONGEST).contains(&self.name.len()) && self.name.bytes().all(known);
        range(
            "its name",
            is_module,
            "a driver's, as its module is named: 1 to 31 letters, digits, `-` and `_`",
        )?;
        self.restart().check()?;
        self.limits().check()
    }
}
