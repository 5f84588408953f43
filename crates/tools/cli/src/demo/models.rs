//! What needs no guest, no QEMU and no download: drivers of models, killed and spoilt.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// Kills drivers under load, and reads every block back.
pub fn kill() -> Result<()> {
    this_program(&["bench", "kill", "--quick"])
}

/// Spoils drivers and devices in 300 ways, and counts what an application has lost.
pub fn faults() -> Result<()> {
    this_program(&["faults", "--quick"])
}

/// The command that a user gives to see the same, as a process of its own: it takes signals itself.
fn this_program(words: &[&str]) -> Result<()> {
    outln!("   $ ring3 {}", words.join(" "));
    let program = std::env::current_exe().context("finding this program")?;
    let status = Command::new(program).args(words).status().context("starting this program")?;
    if !status.success() {
        bail!("ring3 {}: {status}", words.join(" "));
    }
    Ok(())
}
