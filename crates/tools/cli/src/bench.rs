//! `ring3 bench`: measurements.

mod accesses;
pub mod campaign;
pub mod cards;
pub mod dde;
pub mod disk;
mod effort;
mod forward;
pub mod guest;
pub mod instructions;
pub mod irq_delay;
pub mod kill;
pub mod load;
mod look;
pub mod loopback;
pub mod open;
pub mod outage;
mod paper;
pub mod ping;
pub mod places;
mod progress;
pub mod restart;
pub mod ring3d;
pub mod tcp;
pub mod udp_echo;

use std::process::ExitCode;

use anyhow::Result;
use ring3_bench::provenance;

use crate::split;

/// What `ring3 bench` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure a card with Linux's driver in the kernel and in a process.
    ///
    /// The driver is unmodified. Measures latency and throughput without a network stack, with
    /// lwIP, and as an interface of the kernel. Boots a guest.
    Dde(dde::Args),
    /// Measure a disk with its driver in the kernel and in processes.
    ///
    /// The driver runs in the kernel, in the application's process, and in a process of its own, by
    /// turns in each round. Boots a guest, unless --here is given. An interrupted run continues
    /// with the same command.
    Disk(Box<disk::Args>),
    /// Count the source lines that hosting Linux's drivers takes.
    ///
    /// Counts by part, and compares with other projects. Needs cloc, which is fetched.
    Effort(effort::Args),
    /// Count the instructions of one 4 KiB read in the driver, by callgrind.
    ///
    /// Counts the driver and the block class alone, without device, kernel and load. Needs valgrind
    /// and no guest.
    Instructions(instructions::Args),
    /// Measure the delay of an interrupt, to the kernel and to a process.
    ///
    /// Measures from the interrupt to its handler in the kernel, and from there to the waiting
    /// process. Boots a guest.
    IrqDelay(irq_delay::Args),
    /// Kill drivers under load, and check what is lost.
    ///
    /// A process holds the device, and kills the driver's process again and again. Reports lost or
    /// wrong data, and the time until the next driver serves. Needs no guest.
    Kill(kill::Args),
    /// Kill and upgrade the driver of a supervised disk under load.
    ///
    /// Reports how long applications wait and what they lose. Boots a guest in which ring3d holds
    /// the disk, unless --here is given.
    Restart(Box<restart::Args>),
    /// Compare a split driver with the distribution's, in a guest.
    ///
    /// The same as `ring3 split bench`.
    #[command(disable_help_flag = true)]
    Split(split::Args),
    /// Measure forwarding through a card, beside DPDK's testpmd.
    ///
    /// Boots a guest.
    Forward(forward::Args),
    /// Measure two cards that are cabled together, beside DPDK.
    ///
    /// The cards' drivers run in the kernel and in the measuring process. Measures throughput and
    /// latency, with and without other tasks. Boots a guest.
    Loopback(loopback::Args),
    /// Kill the driver of a supervised card, and measure how long it is silent.
    ///
    /// The driver is ring3's own or Linux's, hosted. A ping goes through the interface each 10 ms.
    /// Boots a guest in which ring3d holds the card.
    Outage(outage::Args),
    /// Measure a ping through a card that is under load, on two kernels.
    ///
    /// The card's driver runs in the kernel, and in a process behind an interface. Boots a guest.
    Ping(ping::Args),
    /// Measure one device in four places: kernel, native, hosted, split.
    ///
    /// Measures e1000, e1000e and NVMe: throughput, instructions, latency, lines in the kernel, and
    /// what a killed driver costs. Runs the other benchmarks for that, some ten minutes with
    /// --quick. An interrupted run continues with the same command.
    Places(places::Args),
    /// Measure TCP through a card: bytes per instruction.
    ///
    /// The card's driver runs in the kernel, and in a process behind an interface. Boots a guest.
    Tcp(tcp::Args),
    /// Measure a UDP echo through a card: cost, latency, throughput.
    ///
    /// The card's driver runs in the kernel, in the application's process, and in a process behind
    /// an interface. Boots a guest.
    UdpEcho(Box<udp_echo::Args>),
}

/// Begins a measurement, whose reports say what others did meanwhile.
pub fn begin() {
    provenance::begin(option_env!("RING3_COMMIT"));
}

/// Runs the command.
pub fn run(command: Command) -> Result<ExitCode> {
    begin();
    match command {
        Command::Dde(args) => dde::run(&args),
        Command::Disk(args) => disk::run(&args),
        Command::Effort(args) => effort::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::IrqDelay(args) => irq_delay::run(&args),
        Command::Kill(args) => kill::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Split(args) => split::run(split::Args::of("bench", args)),
        Command::Forward(args) => forward::run(&args),
        Command::Loopback(args) => loopback::run(&args),
        Command::Outage(args) => outage::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Places(args) => places::run(&args),
        Command::Tcp(args) => tcp::run(&args),
        Command::UdpEcho(args) => udp_echo::run(&args),
    }
}
