//! `ring3 blk`: disks, in this process.

use std::process::ExitCode;

use crate::bench::load;

/// Arguments of `ring3 blk`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Put a load on a disk and say what it did and cost.
    Bench(load::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Bench(args) => load::run(&args),
    }
}
