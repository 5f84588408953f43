//! `ring3 sandbox show`: what a driver's process may do.

use std::process::ExitCode;

use ring3_manifest::{Manifest, drivers, hosted};
use ring3_sandbox::Sandbox;

/// What `ring3 sandbox` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show what a driver's process may do, and what it gives up.
    Show {
        /// The driver or its family: nvme, ata, ahci, ide, virtio, edu; or dde or dde:NAME for a
        /// driver of Linux.
        driver: String,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Shows it.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let Command::Show { driver, json } = command;
    // Those of Linux have one sandbox.
    let wanted = driver
        .split_once(':')
        .filter(|(family, _)| *family == "dde")
        .map_or(&*driver, |(family, _)| family);
    let named =
        |manifest: &&Manifest| [&*manifest.driver.name, &*manifest.driver.family].contains(&wanted);
    let description =
        Sandbox::new(drivers(None).chain([hosted()]).filter(named), "lease")?.describe();
    if json {
        outln!("{}", serde_json::to_string_pretty(&description)?);
    } else {
        outln!("{}", description.to_string().trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
