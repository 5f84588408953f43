//! `ring3`: device drivers outside the kernel, in one command.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod admin;
mod ata;
mod bench;
mod bind;
mod blk;
mod cache;
mod controller;
mod dde;
mod demo;
mod devices;
mod doctor;
mod driving;
mod faults;
mod findings;
mod job;
mod lab;
mod leave;
mod model;
mod net;
mod nvme;
mod plot;
mod record;
mod run;
mod sandbox;
mod serve;
mod sizes;
mod sleep;
mod split;
mod supervised;
mod top;
mod ublk;
mod vduse;
mod version;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ring3_process::log;

/// Device drivers outside the Linux kernel: a disk driven by a process, seen by everyone as a block
/// device.
#[derive(Parser)]
#[command(name = "ring3", version, long_version = version::LONG, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Ask the drives of an IDE or AHCI controller what they are.
    Ata(ata::Args),
    /// Measure disks with their driver in different places.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Use disks whose driver runs in this process.
    #[command(subcommand)]
    Blk(blk::Command),
    /// Use network cards whose driver runs in this process.
    #[command(subcommand)]
    Net(net::Command),
    /// Show it all: a disk driven by a process, file systems on it, measured beside the kernel's
    /// driver.
    Demo(demo::Args),
    /// Build unmodified drivers of Linux as programs, list them, and run them.
    #[command(subcommand)]
    Dde(dde::Command),
    /// List the PCI functions, their drivers and IOMMU groups, and which can be claimed.
    Devices(devices::Args),
    /// Inject thousands of faults into drivers of models, or hundreds in a guest, and see what
    /// becomes of their disks.
    Faults(Box<faults::Args>),
    /// Boot guests under QEMU with the devices of a scenario, and run its steps there.
    Lab(lab::Args),
    /// Serve a model of a device to drivers in other processes.
    Model(model::Args),
    /// Ask an NVMe controller what it is and how it is.
    Nvme(nvme::Args),
    /// Draw a report of a benchmark or a campaign as a figure.
    Plot(plot::Args),
    /// Run another command of this program and record all that passes between its device and the
    /// driver.
    Record(record::RecordArgs),
    /// Run a recorded command again, with the recording in the place of the device.
    Replay(record::ReplayArgs),
    /// Run one driver: in a process of its own that is started again when it dies, where the device
    /// allows that, and otherwise in this process.
    #[command(subcommand)]
    Run(run::Driver),
    /// Say what the process of a driver may do.
    #[command(subcommand)]
    Sandbox(sandbox::Command),
    /// Serve a disk or a network card to several programs, each with memory, rights and limits of
    /// its own.
    #[command(subcommand)]
    Serve(serve::Command),
    /// Cut a kernel driver into a small kernel half and a large user half: study, show, profile,
    /// plan, annotate.
    Split(split::Args),
    /// Watch what supervised devices do.
    Top(top::Args),
    /// List the kernel's ublk devices, and delete those that dead processes have left.
    #[command(subcommand)]
    Ublk(ublk::Command),
    /// List the kernel's VDUSE devices, and delete those that dead processes have left.
    #[command(subcommand)]
    Vduse(vduse::Command),
    /// Say what stands in the way of claiming a function, what mends it, and what undoes that.
    Doctor(doctor::Args),
    /// Say how the devices are that ring3d keeps.
    Status(supervised::StatusArgs),
    /// Print what a device's driver wrote, and what ring3d has to say about it.
    Logs(supervised::LogsArgs),
    /// Replace a device's driver process, or try again what was given up or stopped.
    Restart(supervised::RestartArgs),
    /// Stop a device's disks and its driver; ring3d keeps the device.
    Stop(supervised::StopArgs),
    /// Replace the program of a device's driver while its disks are used.
    Upgrade(supervised::UpgradeArgs),
    /// Have ring3d read its manifests again.
    Reload(supervised::ReloadArgs),
    /// Make ready for the machine's sleep: users of disks that processes serve stand still, and
    /// ring3d's devices are stopped.
    Sleep(sleep::SleepArgs),
    /// Undo that: devices are started, and users go on.
    Wake(sleep::WakeArgs),
    /// Hand a PCI function to vfio-pci (or uio_pci_generic), so that a process can drive it.
    Bind(bind::BindArgs),
    /// Give a PCI function back to the driver that had it.
    Unbind(bind::UnbindArgs),
    /// List what is in the cache folder, and delete old entries.
    ///
    /// The cache is the folder RING3_CACHE, or else ring3 in XDG_CACHE_HOME or in ~/.cache. It has
    /// what ring3 fetched (QEMU, kernels, sources) and built (guests, drivers).
    Cache(cache::Args),
    /// What this program has another process of it do.
    #[command(name = job::COMMAND, hide = true)]
    Job(Box<job::Args>),
}

impl Command {
    /// Whether file systems may stand on this process.
    fn serves_storage(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Serve(_))
    }
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_bug));
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("RING3_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(log::writer)
        .without_time()
        .init();
    let parsed = Cli::try_parse();
    if parsed.as_ref().is_ok_and(|cli| cli.command.serves_storage()) {
        ring3_process::mark_process();
    }
    log::start();
    let code = output::finish(record::finish(execute(parsed)));
    log::flush(log::LAST_LINES);
    code
}

fn execute(parsed: Result<Cli, clap::Error>) -> ExitCode {
    match parsed {
        Ok(cli) => run(cli.command).unwrap_or_else(|error| {
            errln!("ring3: {}", explain(&error));
            ExitCode::FAILURE
        }),
        Err(answer) => say(&answer),
    }
}

/// The usual report of a panic waits for whoever reads it, with a lock that all who panic share.
fn report_bug(panic: &PanicHookInfo<'_>) {
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => errln!("ring3: a bug: {panic}\n{trace}"),
        _ => errln!("ring3: a bug: {panic}"),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Ata(args) => ata::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Blk(command) => blk::run(command),
        Command::Net(command) => net::run(command),
        Command::Demo(args) => demo::run(&args),
        Command::Dde(command) => dde::run(command),
        Command::Devices(args) => devices::run(args),
        Command::Faults(args) => faults::run(&args),
        Command::Job(args) => job::run(*args),
        Command::Lab(args) => lab::run(args),
        Command::Model(args) => model::run(args),
        Command::Nvme(args) => nvme::run(args),
        Command::Plot(args) => plot::run(&args),
        Command::Record(args) => args.words().map(|words| execute(Cli::try_parse_from(words))),
        Command::Replay(args) => match args.words()? {
            Some(words) => Ok(execute(Cli::try_parse_from(words))),
            None => Ok(ExitCode::SUCCESS),
        },
        Command::Run(command) => run::run(command),
        Command::Sandbox(command) => sandbox::run(command),
        Command::Serve(command) => serve::run(command),
        Command::Split(args) => split::run(args),
        Command::Top(args) => top::run(&args),
        Command::Ublk(command) => ublk::run(command),
        Command::Vduse(command) => vduse::run(command),
        Command::Doctor(args) => doctor::run(args),
        Command::Status(args) => supervised::status(args),
        Command::Logs(args) => supervised::logs(args),
        Command::Restart(args) => supervised::restart(args),
        Command::Stop(args) => supervised::stop(args),
        Command::Upgrade(args) => supervised::upgrade(args),
        Command::Reload(args) => supervised::reload(args),
        Command::Sleep(args) => sleep::sleep(&args),
        Command::Wake(args) => sleep::wake(&args),
        Command::Bind(args) => bind::run_bind(args),
        Command::Unbind(args) => bind::run_unbind(args),
        Command::Cache(args) => cache::run(&args),
    }
}

/// Help or the version on standard output, wrong options on standard error; with the exit code that
/// belongs to it.
fn say(answer: &clap::Error) -> ExitCode {
    let printed = answer.print();
    if !answer.use_stderr() {
        output::keep(printed);
    }
    u8::try_from(answer.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// An error and its causes in one line, none of them twice: some errors' texts hold their causes.
fn explain(error: &anyhow::Error) -> String {
    let inside_out = error.chain().map(ToString::to_string).collect::<Vec<_>>().into_iter().rev();
    inside_out.fold(String::new(), |inner, outer| {
        match (inner.contains(&outer), outer.contains(&inner)) {
            (true, _) => inner,
            (_, true) => outer,
            _ => format!("{outer}: {inner}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::Parser;

    use super::{Cli, explain};

    #[test]
    fn each_command_of_the_readme_is_taken_as_it_stands() {
        let commands: Vec<_> = include_str!("../../../../README.md")
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(|line| line.strip_prefix("sudo ").unwrap_or(line))
            .filter(|line| line.starts_with("ring3 "))
            .collect();
        assert!(commands.len() > 20, "{commands:?}");
        for command in commands {
            let words = command.split(" #").next().unwrap().split_whitespace();
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{command}: {error}");
            }
        }
    }

    #[test]
    fn no_part_of_an_error_is_said_twice() {
        let error = anyhow!("no such device")
            .context("vfio:1: no such device")
            .context("vfio:1")
            .context("starting");
        assert_eq!(explain(&error), "starting: vfio:1: no such device");
    }
}
