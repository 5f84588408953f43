//! `ring3 dde`: unmodified drivers of Linux, each in a process of its own.
//!
//! What they are made of lies in `dde/` of ring3's source: `ddekit`, and `linux` under the kernel's
//! licence. Nothing of it is in this program, which builds, starts and talks to them; see
//! docs/hosting.md.

mod build;
mod catalogue;
mod choice;
mod coverage;
mod fuzz;
mod hosted;
mod kernel;
mod place;
mod program;
mod tools;

use std::process::ExitCode;

use anyhow::Result;
use ring3_backend::Uri;
use ring3_lab::Guest;

pub use build::{Built, SONAME, build};
pub use catalogue::{Class, Name, names, root};
pub use choice::{Choice, Place, check};
pub use coverage::Coverage;
pub use hosted::Hosted;
pub use tools::Tools;

/// `guest` with the programs of drivers of Linux, by the names of [`Command::List`]: each lies
/// beside this one, or is built if need be.
pub fn enter(guest: Guest, drivers: &[String]) -> Result<Guest> {
    drivers.iter().try_fold(guest, |guest, driver| program(driver)?.enter(guest))
}

/// The program of the driver of Linux of that name, which lies beside this one, or is built if need
/// be.
pub fn program(driver: &str) -> Result<program::Program> {
    program::Program::of(&Name(driver.into()), None)
}

/// What `ring3 dde` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Compile a driver of Linux as a program: the first time with the kernel's files under it,
    /// which takes a minute or two.
    Build(build::Args),
    /// Look for what a device can do to a driver: AFL++ makes the device's answers, its memory and
    /// its interrupts, AddressSanitizer watches the driver.
    Fuzz(fuzz::Args),
    /// List the drivers that can be hosted, and what of them was tried.
    List(catalogue::Args),
    /// Drive a network card or a disk by a driver of Linux until SIGINT or SIGTERM, and serve it to
    /// other programs as remote:PATH, or have a card's frames answered in the driver's process. A
    /// sound card plays a file.
    Run(RunArgs),
}

/// Arguments of `ring3 dde run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The driver, as ring3 dde list has it: e1000e, nvme, snd-ens1370.
    driver: String,
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:e1000e, qtest:nvme.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The socket, where others find the card or the disk as remote:PATH.
    #[arg(
        long, value_name = "PATH", required_unless_present_any = ["reflect", "lwip", "play"],
        conflicts_with_all = ["reflect", "lwip", "play"],
    )]
    socket: Option<std::path::PathBuf>,
    /// Instead: send back each frame that is for the card, below any protocol; echo requests of
    /// ICMP as replies. ARP is not answered.
    #[arg(long, conflicts_with_all = ["lwip", "play"])]
    reflect: bool,
    /// Instead: be a host with this address by lwIP, in the driver's process: ICMP, UDP and TCP,
    /// with services at ports 7 (echo), 9 (discard) and 19 (characters without end, TCP).
    #[arg(long, value_name = "ADDRESS/BITS", conflicts_with = "play")]
    lwip: Option<String>,
    /// Of a sound card: play this file of WAV's, PCM of 8 or 16 bits, and end.
    #[arg(long, value_name = "FILE")]
    play: Option<std::path::PathBuf>,
    /// What becomes of the buffers that the driver gives to the device: nothing, or each is copied,
    /// for comparison.
    #[arg(long, value_enum, default_value = "zero-copy")]
    dma: Dma,
    /// Microseconds for which the card is polled after its last packet, with its interrupts off, as
    /// long as that pays. Usual: 0, by interrupt alone.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    poll: Option<u32>,
    /// Bytes of the longest packet, as far as the driver takes it. Usual: 1500.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=9000))]
    mtu: Option<u32>,
    /// Let the driver see no MSI-X.
    #[arg(long)]
    no_msix: bool,
    /// Drive it though nothing confines its transfers.
    #[arg(long)]
    unprotected: bool,
    /// MiB of the memory that the device reaches, which is all that the driver and the kernel below
    /// it have. Usual: 64.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..=2048))]
    arena: Option<u32>,
    /// Print what the driver has to say.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    tools: Tools,
}

/// What becomes of a driver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dma {
    /// The device has them.
    ZeroCopy,
    /// The device has a copy.
    Copy,
}

/// Runs the command.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Build(args) => build::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::List(args) => catalogue::run(&args),
        Command::Run(args) => hosted::run(&args),
    }
}
