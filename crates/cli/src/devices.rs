//! `ring3 devices`.

use std::process::ExitCode;

/// Options of `ring3 devices`.
#[derive(clap::Args)]
pub struct Args {}

/// Prints the addresses of all PCI functions.
pub fn run(_: Args) -> anyhow::Result<ExitCode> {
    for entry in std::fs::read_dir("/sys/bus/pci/devices")? {
        println!("{}", entry?.file_name().to_string_lossy());
    }
    Ok(ExitCode::SUCCESS)
}
