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
mod completion;
mod controller;
mod dde;
mod demo;
mod devices;
mod doctor;
mod driving;
mod faults;
mod findings;
mod hardware;
mod help;
mod job;
mod lab;
mod leave;
mod man;
mod model;
mod net;
mod new;
mod nvme;
mod plot;
mod quirks;
mod record;
mod report;
mod run;
mod sandbox;
mod serve;
mod sizes;
mod sleep;
mod split;
mod suites;
mod supervised;
mod top;
mod ublk;
mod usage;
mod vduse;
mod version;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ring3_process::log;

/// Drivers of disks and network cards in four places: kernel, native, hosted, split.
///
/// In the kernel: Linux's own driver, for comparison (ring3 bench).
///
/// Native: a driver of ring3's in a process. That is the program which uses the device (ring3 blk,
/// ring3 net), or a process behind a block device or an interface of the kernel (ring3 run, ring3d)
/// or behind sockets (ring3 serve).
///
/// Hosted: an unmodified driver of Linux in a process (ring3 dde).
///
/// Split: a driver of Linux, cut into a small part in the kernel and a large one in a process
/// (ring3 split).
#[derive(Parser)]
#[command(name = "ring3", version, long_version = version::LONG, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// The first paragraph of each is its line in `ring3 --help`: see `help`.
#[derive(Subcommand)]
enum Command {
    /// Show what an IDE or AHCI controller and its drives report.
    Ata(ata::Args),
    /// Measure disks, cards, kills and restarts.
    ///
    /// Most of these benchmarks boot a guest under QEMU, and compare ring3's drivers with the
    /// kernel's and with others in one run. `kill` and `instructions` need no guest.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Read, write, check or load a disk, with its driver in this process.
    #[command(subcommand)]
    Blk(blk::Command),
    /// Check or load a network card, with its driver in this process.
    #[command(subcommand)]
    Net(net::Command),
    /// Show all of it in a guest: a disk and a card driven by processes.
    ///
    /// Boots a guest under QEMU, in which a process drives an NVMe disk with file systems on it and
    /// another one a network card, and measures both beside the kernel's drivers. Takes some
    /// minutes.
    Demo(demo::Args),
    /// Build, list, run and fuzz unmodified drivers of Linux.
    #[command(subcommand)]
    Dde(dde::Command),
    /// List the PCI functions, their drivers and IOMMU groups.
    ///
    /// The list says for each function whether a process can claim it, and why not.
    Devices(devices::Args),
    /// Inject faults into drivers, and count which of them cost data.
    ///
    /// Injects thousands of faults into drivers of simulated disks, or hundreds into drivers in a
    /// guest (--guest), and reports what each one did to the data and to the users of the disk.
    Faults(Box<faults::Args>),
    /// Test a device with ring3's driver, and list tested devices.
    #[command(subcommand)]
    Hardware(hardware::Command),
    /// Boot a guest under QEMU with the devices of a scenario.
    Lab(lab::Args),
    /// Serve a simulated device to drivers of other processes.
    Model(model::Args),
    /// Make a crate for a driver of your own, with tests that pass.
    #[command(subcommand)]
    New(new::Command),
    /// Show what an NVMe controller reports: identity, health, errors.
    Nvme(nvme::Args),
    /// Show which odd devices drivers know, and compare that with Linux.
    #[command(subcommand)]
    Quirks(quirks::Command),
    /// Draw the report of a benchmark or a campaign as an SVG figure.
    Plot(plot::Args),
    /// Show the four places and the papers' figures on one page.
    ///
    /// Writes one HTML file without anything outside of itself, from stored reports: in each figure
    /// the paper's value beside ours. With --run it measures what is missing.
    Report(report::Args),
    /// Run a command of ring3 and record all traffic with its device.
    ///
    /// The recording has every register access, all data that the device writes to memory, and
    /// every interrupt. `ring3 replay` runs the same command without the device.
    Record(record::RecordArgs),
    /// Run a recorded command with the recording in place of the device.
    Replay(record::ReplayArgs),
    /// Run one driver that makes block devices or an interface.
    ///
    /// The driver runs in a sandboxed process of its own, which is restarted when it dies, if the
    /// device allows that (vfio:, vfio-user:). Otherwise it runs in this process.
    #[command(subcommand)]
    Run(run::Driver),
    /// Show what a driver's process may do under a supervisor.
    #[command(subcommand)]
    Sandbox(sandbox::Command),
    /// Serve a disk or a network card to several programs.
    ///
    /// Each client has its own memory, rights and limits.
    #[command(subcommand)]
    Serve(serve::Command),
    /// Split a driver of Linux: a part in the kernel, the rest outside.
    Split(split::Args),
    /// Run test suites of others on the kernel's disk and on ring3's.
    ///
    /// Boots guests under QEMU, in which liburing's tests, blktests and xfstests run on an NVMe
    /// disk with its driver in several places, and counts what passed in each. Takes hours.
    Suites(suites::Args),
    /// Watch the load and the outages of ring3d's devices.
    Top(top::Args),
    /// List the kernel's ublk devices, and delete orphans.
    #[command(subcommand)]
    Ublk(ublk::Command),
    /// List the kernel's VDUSE devices, and delete orphans.
    #[command(subcommand)]
    Vduse(vduse::Command),
    /// Say what prevents a process from driving a function.
    ///
    /// For each obstacle it prints the command that removes it and the one that undoes that. It
    /// changes nothing.
    Doctor(doctor::Args),
    /// Show the state of ring3d's devices.
    Status(supervised::StatusArgs),
    /// Print the log of a device's driver, and ring3d's messages about it.
    Logs(supervised::LogsArgs),
    /// Restart a device's driver, also one that has failed or was stopped.
    Restart(supervised::RestartArgs),
    /// Stop a device's disks and its driver.
    ///
    /// ring3d keeps its claim on the device; `ring3 restart` starts it again.
    Stop(supervised::StopArgs),
    /// Replace the program of a driver while its disks are in use.
    Upgrade(supervised::UpgradeArgs),
    /// Have ring3d read its manifests again.
    Reload(supervised::ReloadArgs),
    /// Prepare for suspend: pause users, stop ring3d's devices.
    ///
    /// systemd's sleep hook runs this before the machine suspends or hibernates. Processes that use
    /// disks which other processes serve are frozen, and ring3d's devices are stopped.
    Sleep(sleep::SleepArgs),
    /// Undo `ring3 sleep`: start the devices, resume their users.
    Wake(sleep::WakeArgs),
    /// Hand a PCI function to vfio-pci, so that a process can drive it.
    Bind(bind::BindArgs),
    /// Give a PCI function back to the driver that had it.
    Unbind(bind::UnbindArgs),
    /// List what is in the cache folder, and delete old entries.
    ///
    /// The cache is the folder RING3_CACHE, or else ring3 in XDG_CACHE_HOME or in ~/.cache. It has
    /// what ring3 fetched (QEMU, kernels, sources) and built (guests, drivers).
    Cache(cache::Args),
    /// Print the completion script of a shell.
    ///
    /// `make install` puts these scripts in their places.
    Completion(completion::Args),
    /// Write the manual pages of all commands.
    Man(man::Args),
    /// Run one part of a measurement, for another process of this program.
    #[command(name = job::COMMAND, hide = true)]
    Job(Box<job::Args>),
}

/// The command line, with the help that ring3 writes itself.
fn command_line() -> clap::Command {
    help::complete(Cli::command())
}

fn parse<Word: Into<OsString>>(words: impl IntoIterator<Item = Word>) -> Result<Cli, clap::Error> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let mut matches = command_line()
        .try_get_matches_from(&words)
        .map_err(|error| usage::explained(error, &command_line(), &words))?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command_line()))
}

impl Command {
    /// Whether file systems may stand on this process.
    fn serves_storage(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Serve(_))
    }

    /// What is logged unless RING3_LOG says otherwise. What a model warns of when a driver breaks
    /// a rule is what a campaign of faults counts.
    fn log_level(&self) -> &'static str {
        if matches!(self, Self::Faults(_) | Self::Hardware(_)) { "error" } else { "warn" }
    }
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_bug));
    let parsed = parse(std::env::args_os());
    let level = parsed.as_ref().map_or("warn", |cli| cli.command.log_level());
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("RING3_LOG")
                .unwrap_or_else(|_| level.into()),
        )
        .with_writer(log::writer)
        .without_time()
        .init();
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
        Command::Hardware(command) => hardware::run(command),
        Command::Job(args) => job::run(*args),
        Command::Lab(args) => lab::run(args),
        Command::Model(args) => model::run(args),
        Command::Nvme(args) => nvme::run(args),
        Command::Plot(args) => plot::run(&args),
        Command::Quirks(command) => quirks::run(command),
        Command::Report(args) => {
            bench::begin();
            report::run(&args)
        }
        Command::Record(args) => args.words().map(|words| execute(parse(words))),
        Command::Replay(args) => match args.words()? {
            Some(words) => Ok(execute(parse(words))),
            None => Ok(ExitCode::SUCCESS),
        },
        Command::Run(command) => run::run(command),
        Command::Sandbox(command) => sandbox::run(command),
        Command::Serve(command) => serve::run(command),
        Command::Split(args) => split::run(args),
        Command::Suites(args) => suites::run(&args),
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
        Command::Completion(args) => completion::run(&args),
        Command::Man(args) => man::run(&args),
        Command::New(command) => new::run(&command),
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

    use super::{explain, parse};

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
            if let Err(error) = parse(words) {
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
