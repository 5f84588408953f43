//! `ring3 blk`: disks, in this process.

mod check;
mod copy;
mod flow;
mod info;
mod lend;
mod target;

use std::process::ExitCode;

use crate::bench::load;

/// What `ring3 blk` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Say what the disks of a device are.
    Info(info::Args),
    /// Copy from a disk to a file.
    Read(copy::ReadArgs),
    /// Copy from a file to a disk.
    Write(copy::WriteArgs),
    /// Show that a disk does what every disk must do. Destroys its content.
    Check(check::Args),
    /// Share memory with who exports a disk, for programs that take a file of memory: fio
    /// --mem=mmaphuge:FILE.
    Lend(lend::Args),
    /// Put a load on a disk and say what it did and cost.
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
