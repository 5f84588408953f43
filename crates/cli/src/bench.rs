//! `ring3 bench`: measurements.

mod accesses;
pub mod campaign;
mod disk;
pub mod guest;
mod instructions;
pub mod load;
mod look;
pub mod open;
mod paper;
mod progress;

use std::process::ExitCode;

use anyhow::Result;

/// Arguments of `ring3 bench`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// A disk with its driver in the kernel, in the application's process and in a process of its own, side by side.
    Disk(Box<disk::Args>),
    /// Instructions per 4 KiB read in driver and class alone, counted by callgrind.
    Instructions(instructions::Args),
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Disk(args) => disk::run(&args),
        Command::Instructions(args) => instructions::run(&args),
    }
}
