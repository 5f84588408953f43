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
    /// Show a network card.
    Info(info::Args),
    /// Run the conformance suite on a network card.
    ///
    /// Needs a second card at the other end of the cable (--peer). For QEMU's cards (qtest:) this
    /// program itself is the other end.
    Check(check::Args),
    /// Forward the packets that a card receives, and measure their cost.
    ///
    /// DPDK's testpmd does the same, for comparison.
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
