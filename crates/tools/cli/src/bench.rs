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
mod paper;
pub mod ping;
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
    /// A network card by Linux's own driver, unmodified, in the kernel and in a process: latency
    /// and throughput, without a stack, with lwIP, and as an interface.
    Dde(dde::Args),
    /// A disk with its driver in the kernel, in the application's process and in a process of its
    /// own, side by side.
    Disk(Box<disk::Args>),
    /// Source lines that hosting drivers of Linux takes, part by part, beside those of others.
    Effort(effort::Args),
    /// Instructions per 4 KiB read in driver and class alone, counted by callgrind.
    Instructions(instructions::Args),
    /// From an interrupt to its handler in the kernel, and from there to a process.
    IrqDelay(irq_delay::Args),
    /// Kill a driver under load, many times, on a claim that outlives it: what is lost, and how
    /// soon the next one works.
    Kill(kill::Args),
    /// Kill and replace the driver of a supervised disk under load: how long applications wait, and
    /// what they lose.
    Restart(Box<restart::Args>),
    /// A split driver beside the distribution's in a guest: the same as `ring3 split bench`.
    #[command(disable_help_flag = true)]
    Split(split::Args),
    /// Forwarding through a network card, by ring3 and by DPDK's testpmd, side by side.
    Forward(forward::Args),
    /// Two network cards cabled together, with their drivers in the kernel and in the measuring
    /// process, and DPDK's: throughput and latency, with and without other tasks.
    Loopback(loopback::Args),
    /// A ping beside a load of the same network card, with its driver in the kernel and behind an
    /// interface, on two kernels.
    Ping(ping::Args),
    /// TCP through a network card with its driver in the kernel and behind an interface, side by
    /// side: bytes per instruction.
    Tcp(tcp::Args),
    /// UDP through a network card with its driver in the kernel, in the application's process and
    /// behind an interface, side by side.
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
        Command::Ping(args) => ping::run(&args),
        Command::Tcp(args) => tcp::run(&args),
        Command::UdpEcho(args) => udp_echo::run(&args),
    }
}
