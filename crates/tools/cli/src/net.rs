//! `ring3 net`: network cards, in this process.

mod bench;
mod check;
mod info;
mod target;
mod wire;

use std::process::ExitCode;

/// What `ring3 net` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Say what a network card is.
    Info(info::Args),
    /// Show that a network card does what every one must do. Needs a second card at the other end
    /// of its cable.
    Check(check::Args),
    /// Send what a network card receives out again, and say what a packet costs: beside DPDK's
    /// testpmd, which does the same.
    Bench(bench::Args),
}

/// Runs the command.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}
