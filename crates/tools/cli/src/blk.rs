//! `ring3 blk`: disks, in this process.

mod check;
mod copy;
pub mod flow;
mod info;
mod lend;
pub mod target;

use std::process::ExitCode;

use crate::bench::load;

/// What `ring3 blk` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show the disks of a device.
    Info(info::Args),
    /// Copy from a disk to a file or to standard output.
    Read(copy::ReadArgs),
    /// Copy from a file or from standard input to a disk.
    Write(copy::WriteArgs),
    /// Run the conformance suite on a disk; destroys its content.
    ///
    /// The suite checks what every disk must do: data, order, limits, errors, flushes. With
    /// --read-only it runs the checks that change nothing.
    Check(check::Args),
    /// Share memory with the exporter of a disk, for other programs.
    ///
    /// Prints a file of memory that a program such as fio can map (--mem=mmaphuge:FILE). Requests
    /// from that memory are not copied (Linux 7.1 and later).
    Lend(lend::Args),
    /// Put a load on a disk, and measure throughput, latency and cost.
    Bench(load::Args),
}

/// Runs the command.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Info(args) => info::run(&args),
        Command::Read(args) => copy::read(&args),
        Command::Write(args) => copy::write(&args),
        Command::Check(args) => check::run(&args),
        Command::Lend(args) => lend::run(&args),
        Command::Bench(args) => load::run(&args),
    }
}
