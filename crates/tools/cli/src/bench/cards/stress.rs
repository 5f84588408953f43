//! Tasks that take the processor.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, setpriority_process};

/// A task that never sleeps, until this is dropped.
pub struct Competitor(Child);

impl Competitor {
    /// Starts it with this niceness.
    pub fn start(nice: i32) -> Result<Self> {
        let child =
            Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        // From here on a failure ends it.
        let competitor = Self(child.context("starting a competing task (sh)")?);
        setpriority_process(Some(Pid::from_child(&competitor.0)), nice)
            .context("setting the priority of a competing task")?;
        Ok(competitor)
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        // It does nothing but run: there is nothing to ask it for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
