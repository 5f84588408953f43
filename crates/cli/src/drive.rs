//! `ring3 drive NAME`: a driver process of ring3d's.

use std::process::ExitCode;

/// Options of `ring3 drive`.
#[derive(clap::Args)]
pub struct Args {
    /// What the device is called: for those who list processes.
    _name: String,
}

/// Drives until the supervisor ends it.
pub fn run(_: &Args) -> anyhow::Result<ExitCode> {
    // SAFETY: descriptor 3 is what ring3d has started this process with; the log and the panic hook open nothing, and this is the only call.
    let control = unsafe { ring3_host::drive::inherited() }?;
    ring3_host::drive::run(control)?;
    Ok(ExitCode::SUCCESS)
}
