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
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000 or sim:virtio-net,
    /// or remote:PATH, a part of one that ring3 serve shares.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    signals: Signals,
    /// What the card becomes.
    #[arg(long, value_enum, default_value = "tap")]
    export: Export,
    /// What moves packets between the card's memory and the kernel: calls, which is cheapest for
    /// few, or vhost-net, which pays for many. auto takes what pays now; without /dev/vhost-net,
    /// calls.
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// Hand each packet of TCP on as the card has received it, and put none together: for
    /// measurements.
    #[arg(long)]
    no_coalescing: bool,
    /// How soon the threads that move packets run beside programs that send or compute without end:
    /// as these do, before them by a nice value (where this process may), or before them by the
    /// lowest real-time priority, which needs CAP_SYS_NICE or RLIMIT_RTPRIO. The sooner, the less
    /// packets wait, and the more each costs, as fewer come together.
    #[arg(long, value_enum, default_value = "high")]
    priority: Priority,
    /// With --export vduse, the device's name: one whose process was killed is gone on with.
    /// Otherwise the interface's name; r3net0 and so on if it is not given. One of that name that
    /// root has made for this user (ip tuntap add) is used.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Who may use the interface later, beside root. Of use with --persist.
    #[arg(long, value_name = "USER")]
    owner: Option<User>,
    /// Hold the card and its interface here, as ring3d does, and start the driver in a process of
    /// this user's, in a sandbox (`ring3 sandbox show DRIVER`), again when it dies: the interface
    /// stays.
    #[arg(
        long, value_name = "NAME",
        conflicts_with_all = ["persist", "no_coalescing", "priority"],
    )]
    user: Option<User>,
    /// The interface stays at the end, with its addresses and without a link: who runs this again
    /// with its --name goes on with it.
    #[arg(long)]
    persist: bool,
    /// Most bytes of a packet without its Ethernet header; 1500 if it is not given. It may be set
    /// later, as of any interface.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(68..=65535))]
    mtu: Option<u32>,
    /// Queues at most, each of which has a thread; fewer if the card has fewer.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64),
    )]
    queues: u16,
    /// Microseconds for which a queue polls before it sleeps, as long as that pays; 0 never polls.
    #[arg(
        long, value_name = "US", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(0..=1000),
    )]
    poll: u64,
    /// Say what is exported as a JSON object.
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this descriptor once the interface is there, then close it.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<RawFd>,
    /// Write figures (start-up time, packets, bytes, losses) to this file at the end, and on
    /// SIGUSR1.
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
    /// A TAP, by its descriptor.
    Tap,
    /// A virtio card, by VDUSE: an interface that outlives this process, if that dies.
    Vduse,
}

/// What moves packets.
#[derive(Clone, Copy, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
pub enum Engine {
    /// As the load is.
    Auto,
    /// read and write.
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

/// How soon threads run.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Priority {
    /// As programs do.
    Ordinary,
    /// nice -20.
    High,
    /// SCHED_FIFO, 1.
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
    let wishes = held::Wishes { user: Some(user), json: args.json, ready, stats: args.stats };
    held::run(&claim(args.device, args.protection, args.signals), driver, export, None, wishes)
}
