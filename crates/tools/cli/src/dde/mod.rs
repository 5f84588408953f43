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
    /// Compile a driver of Linux as a program.
    ///
    /// The first build also compiles the kernel's code below the drivers, which takes a minute or
    /// two.
    Build(build::Args),
    /// Fuzz a driver with a hostile device.
    ///
    /// AFL++ generates what the device answers, writes to memory and interrupts. AddressSanitizer
    /// watches the driver.
    Fuzz(fuzz::Args),
    /// List the drivers that can be hosted, and how each was tested.
    List(catalogue::Args),
    /// Drive a card or a disk with a driver of Linux.
    ///
    /// Serves the device to other programs as remote:PATH until SIGINT or SIGTERM, or answers a
    /// card's packets in the driver's process (--reflect, --lwip). A sound card plays a file and
    /// ends.
    Run(RunArgs),
}

/// Arguments of `ring3 dde run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The driver, by its name in ring3 dde list, such as e1000e, nvme or snd-ens1370.
    driver: String,
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:e1000e, qtest:nvme.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The socket at which other programs use the card or the disk, as --device remote:PATH.
    #[arg(
        long, value_name = "PATH", required_unless_present_any = ["reflect", "lwip", "play"],
        conflicts_with_all = ["reflect", "lwip", "play"],
    )]
    socket: Option<std::path::PathBuf>,
    /// Instead of --socket: return each packet that is addressed to the card to its sender, and
    /// ICMP echo requests as replies. ARP is not answered.
    #[arg(long, conflicts_with_all = ["lwip", "play"])]
    reflect: bool,
    /// Instead of --socket: run lwIP with this address in the driver's process. It answers ICMP,
    /// and has services at ports 7 (echo), 9 (discard) and 19 (TCP, sends without end).
    #[arg(long, value_name = "ADDRESS/BITS", conflicts_with = "play")]
    lwip: Option<String>,
    /// For a sound card: play this WAV file (PCM, 8 or 16 bits), and end.
    #[arg(long, value_name = "FILE")]
    play: Option<std::path::PathBuf>,
    /// How the device reaches the driver's buffers.
    #[arg(long, value_enum, default_value = "zero-copy")]
    dma: Dma,
    /// Microseconds that the card is polled after its last packet, with its interrupts off, while
    /// polling pays. From 0 to 1,000,000. Default: 0, never.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    poll: Option<u32>,
    /// Longest packet in bytes, without its Ethernet header, from 68 to 9000 and as far as the
    /// driver supports. Default: 1500.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=9000))]
    mtu: Option<u32>,
    /// Hide MSI-X from the driver, which then uses MSI or INTx.
    #[arg(long)]
    no_msix: bool,
    /// Drive a device that no IOMMU protects the machine from (uio:ADDRESS). A bug in the driver
    /// can then overwrite any memory of this machine.
    #[arg(long)]
    unprotected: bool,
    /// Memory in MiB that the device can reach, from 16 to 2048. It is all the memory of the driver
    /// and of the kernel code below it. Default: 64.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..=2048))]
    arena: Option<u32>,
    /// Print the driver's messages.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    tools: Tools,
}

/// What becomes of a driver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dma {
    /// Directly, without a copy.
    ZeroCopy,
    /// By a copy of each buffer, for comparison.
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
