//! `ring3 hardware`: what ring3 does on a real machine with a device, as one file that can be sent.
//!
//! # Shape
//! [`mod@test`] runs the steps, each by a process of this program that drives the device, so that a
//! driver which crashes or hangs ends one step and not the test. [`report`] is the file. [`list`]
//! reads such files.

mod kernel;
mod list;
mod loads;
pub mod look;
mod machine;
mod place;
mod program;
mod recording;
mod report;
mod secrets;
mod steps;
mod test;
mod verify;

use std::process::ExitCode;

/// What `ring3 hardware` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Test a device with ring3's driver, and write one file without serial numbers.
    ///
    /// Steps: doctor, the kernel's driver before, identity and quirks, recording, conformance,
    /// latency and throughput, kills and restarts, resets, verify, temperature, the kernel's driver
    /// after. Without --destroy nothing is written to the disk. A device that the kernel drives is
    /// bound to vfio-pci meanwhile and given back at the end, after errors and at Ctrl-C as well.
    Test(Box<test::Args>),
    /// List the results of tested devices.
    ///
    /// Default: those that come with ring3.
    List(list::Args),
}

/// Runs the command.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Test(args) => test::run(*args),
        Command::List(args) => list::run(&args),
    }
}
