//! `ring3 run net`: a network card as an interface of the kernel.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ring3_backend::Uri;
use ring3_driver::registry::Settings;
use ring3_export::tap;
use ring3_host::net::{self, NetExportKind, Options};
use ring3_host::open::Claim;
use ring3_host::{ExitReason, Ready};
use ring3_supervisor::manifest::User;

use super::disk::{FORCED, LOST};
use super::held;
use crate::dde::{self, Choice, Name};
use crate::driving::{Protection, Signals};

/// Options of `ring3 run net`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 stopped as asked, 1 an error, 2 wrong options, 3 the system wanted \
                  the card back, 4 the card or its interface is gone."
)]
pub struct Args {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000, sim:virtio-net, or
    /// remote:PATH, a card that `ring3 serve net` shares.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    signals: Signals,
    /// The kernel interface that makes a network interface of the card.
    #[arg(long, value_enum, default_value = "tap")]
    export: Export,
    /// What moves packets to and from the kernel. Calls (tap) are cheapest for few packets,
    /// vhost-net for many. auto takes the cheaper one; without /dev/vhost-net, calls.
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// Do not merge received TCP packets: pass each one on as received. For measurements.
    #[arg(long)]
    no_coalescing: bool,
    /// Scheduling priority of the threads that move packets. A higher one shortens the delay of
    /// packets beside busy programs, and costs more per packet, because batches are smaller.
    #[arg(long, value_enum, default_value = "high")]
    priority: Priority,
    /// The interface's name (default r3net0 and so on). One of that name that root has made for
    /// this user (ip tuntap add) is used. With --export vduse, the device's name: if a killed
    /// process has left a device of that name, this process continues with it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The user who may use the interface later, besides root. For --persist.
    #[arg(long, value_name = "USER")]
    owner: Option<User>,
    /// Run the driver as a sandboxed process of this user (`ring3 sandbox show DRIVER`). If it
    /// dies, it is restarted and the interface stays, because this process holds both.
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = ["persist", "no_coalescing", "priority"],
    )]
    user: Option<User>,
    /// Keep the interface and its addresses at the end, without a link. The next run with the same
    /// --name continues with it.
    #[arg(long)]
    persist: bool,
    /// Longest packet in bytes, without its Ethernet header (default 1500). Can be changed later.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=65535))]
    mtu: Option<u32>,
    /// Maximum number of queues, with one thread each. Fewer if the card has fewer.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    queues: u16,
    /// Microseconds that a queue polls before it sleeps, while polling pays. 0 never polls.
    #[arg(
        long, value_name = "US", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(0..=1000),
    )]
    poll: u64,
    /// Print what is exported as a JSON object.
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this descriptor once the interface is there, then close it.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<RawFd>,
    /// Write figures (start-up, packets, bytes, losses) to this file at the end and on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
}

impl Args {
    /// The same by a driver of Linux.
    pub fn by(self, name: Name) -> anyhow::Result<Self> {
        match self.choice.hosted() {
            Some(other) if *other != name => {
                anyhow::bail!("--driver {other}: the driver is {name} already")
            }
            _ => Ok(Self { choice: Choice::of(name), ..self }),
        }
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Export {
    /// A TAP interface.
    Tap,
    /// A virtio card, by VDUSE. Its interface outlives this process if that dies.
    Vduse,
}

/// What moves packets.
#[derive(Clone, Copy, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
pub enum Engine {
    /// Chosen by the load.
    Auto,
    /// read() and write() calls.
    Tap,
    /// vhost-net.
    Vhost,
}

impl From<Engine> for tap::Engine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Auto => Self::Auto,
            Engine::Tap => Self::Tap,
            Engine::Vhost => Self::Vhost,
        }
    }
}

/// Scheduling priority of the threads that move packets.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Priority {
    /// As ordinary programs.
    Ordinary,
    /// nice -20, where this process may set it.
    High,
    /// SCHED_FIFO 1, the lowest real-time priority. Needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    RealTime,
}

impl From<Priority> for tap::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Ordinary => Self::Ordinary,
            Priority::High => Self::High,
            Priority::RealTime => Self::RealTime,
        }
    }
}

/// What the card becomes, if the options fit that.
fn way(args: &Args) -> anyhow::Result<NetExportKind> {
    let of_tap = [
        ("--owner", args.owner.is_some()),
        ("--user", args.user.is_some()),
        ("--persist", args.persist),
        ("--queues", args.queues > 1),
        ("--engine", matches!(args.engine, Engine::Vhost)),
    ];
    match (args.export, of_tap.into_iter().find(|(_, given)| *given)) {
        (Export::Tap, _) => Ok(NetExportKind::Tap),
        (Export::Vduse, None) => Ok(NetExportKind::Vduse(args.name.clone())),
        (Export::Vduse, Some((option, _))) => {
            anyhow::bail!(
                "{option} is of --export tap: a VDUSE card has one pair of virtqueues, and stays \
                when its process dies"
            )
        }
    }
}

/// Drives a card.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let way = way(&args)?;
    // SAFETY: a number of the command line, taken once, and before anything of this process is
    // opened that is kept.
    let ready = args.ready_fd.map(|fd| unsafe { Ready::inherit(fd) }).transpose()?;
    if let Some(user) = args.user {
        return run_as(user, args, ready);
    }
    let place =
        args.choice.place(&args.device, args.protection.unprotected, args.signals.chosen())?;
    let claim = claim(place.device().clone(), args.protection, args.signals);
    let tap = tap::Options {
        name: args.name,
        owner: args.owner.map(|owner| owner.user),
        persist: args.persist,
        mtu: args.mtu,
        queues: args.queues,
        poll: Duration::from_micros(args.poll),
        engine: args.engine.into(),
        joins: !args.no_coalescing,
        priority: args.priority.into(),
        ..tap::Options::default()
    };
    match net::run(&claim, Options { way, tap, json: args.json, ready, stats: args.stats }) {
        Ok(ExitReason::Stopped | ExitReason::Removed) => Ok(ExitCode::SUCCESS),
        Ok(ExitReason::Forced) => Ok(ExitCode::from(FORCED)),
        Err(error) if error.is_loss() => {
            errln!("ring3: {error}");
            Ok(ExitCode::from(LOST))
        }
        Err(error) => Err(error.into()),
    }
}

fn claim(device: Uri, protection: Protection, signals: Signals) -> Claim {
    Claim {
        unprotected: protection.unprotected,
        settings: signals.apply(Settings::default()),
        ..Claim::new(device)
    }
}

/// The same by a driver of its own, confined.
fn run_as(user: User, args: Args, ready: Option<Ready>) -> anyhow::Result<ExitCode> {
    if args.device.scheme == "remote" {
        anyhow::bail!(
            "--user: the card's driver is a process already, which serves it: leave --user out"
        );
    }
    if matches!(args.engine, Engine::Vhost) {
        // Its driver would say so, too, but nobody would be told.
        tap::Workers::check()?;
    }
    let driver = args.choice.hosted();
    driver.map_or(Ok(()), |name| dde::check(name, &args.device, args.signals.chosen()))?;
    let driver = driver.map(ToString::to_string);
    let export = held::ExportConfig {
        kind: held::Kind::Tap,
        queues: args.queues,
        poll_us: args.poll,
        interface: Some(args.name.unwrap_or_else(|| tap::ANY.into())),
        owner: args.owner,
        engine: Some(args.engine.into()),
        mtu: args.mtu,
        ..held::ExportConfig::default()
    };
    let options = held::HeldOptions { user: Some(user), json: args.json, ready, stats: args.stats };
    held::run(&claim(args.device, args.protection, args.signals), driver, export, None, options)
}
