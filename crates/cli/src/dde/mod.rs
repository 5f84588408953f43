//! `ring3 dde`: unmodified drivers of Linux, each in a process of its own.
//!
//! What they are made of lies in `dde/` of ring3's source: `ddekit`, and `linux` under the kernel's licence. Nothing of it is in this program, which builds, starts and talks to
//! them; see docs/hosting.md.

mod build;
mod catalogue;
mod hosted;

use std::process::ExitCode;

use anyhow::Result;
use ring3_backend::Uri;

pub use catalogue::Name;
pub use hosted::Hosted;

/// What `ring3 dde` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Compile a driver of Linux as a program: the first time with the kernel's files under it, which takes a minute or two.
    Build(build::Args),
    /// List the drivers that can be hosted, and what of them was tried.
    List(catalogue::Args),
    /// Drive a network card by a driver of Linux, and serve it to other programs as remote:PATH, until SIGINT or SIGTERM.
    Run(RunArgs),
}

/// Arguments of `ring3 dde run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The driver, as ring3 dde list has it: e1000e.
    driver: String,
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:e1000e.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The socket, where others find the card as remote:PATH.
    #[arg(long, value_name = "PATH")]
    socket: std::path::PathBuf,
    /// Drive it though nothing confines its transfers.
    #[arg(long)]
    unprotected: bool,
    /// MiB of the memory that the device reaches, which is all that the driver and the kernel below it have. Usual: 64.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..=2048))]
    arena: Option<u32>,
    /// Print what the driver has to say.
    #[arg(long)]
    verbose: bool,
}

/// Runs the command.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Build(args) => build::run(&args),
        Command::List(args) => catalogue::run(&args),
        Command::Run(args) => hosted::run(&args),
    }
}
