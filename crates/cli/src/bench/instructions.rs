//! `ring3 bench instructions`.

use std::process::ExitCode;

use anyhow::Result;

/// Options of `ring3 bench instructions`.
#[derive(clap::Args)]
pub struct Args {}

/// Counts.
pub fn run(_: &Args) -> Result<ExitCode> {
    anyhow::bail!("later")
}
