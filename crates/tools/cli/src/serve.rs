//! `ring3 serve disk|net --device URI --socket PATH`: one disk, or one network card, for several
//! programs.

pub mod share;

use std::os::fd::RawFd;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use ring3_backend::Uri;
use ring3_broker::server::{self, card};
use ring3_driver::registry::Settings;
use ring3_host::open::Claim;
use ring3_host::serve::{self, Options, Shares};
use ring3_host::{ExitReason, Ready};
use ring3_supervisor::manifest::User;
use share::Share;

use crate::dde::Choice;
use crate::driving::{Interrupt, Protection, Signals, Transfer};
use crate::run::held;

/// Exit code of a server whose device was taken away.
const FORCED: u8 = 3;
/// Clients at the same time, on all sockets.
const MOST: usize = 256;

/// What `ring3 serve` serves.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Serve a disk.
    ///
    /// A program that may connect to the socket PATH uses its part of the disk as --device
    /// remote:PATH.
    Disk(DiskArgs),
    /// Serve a network card.
    ///
    /// A program that may connect to the socket PATH uses the card with an address of its own, as
    /// --device remote:PATH.
    Net(NetArgs),
}

/// What is said of any device that is served.
#[derive(clap::Args)]
struct Common {
    /// A socket for clients, with their limits and rights (below). May be repeated.
    #[arg(long = "socket", value_name = "PATH[,KEY=VALUE]...", required = true)]
    sockets: Vec<String>,
    /// Microseconds that the server polls before it sleeps, while polling pays, from 0 to 1000. 0
    /// never polls.
    #[arg(
        long, value_name = "US", default_value_t = 50,
        value_parser = clap::value_parser!(u64).range(0..=1000),
    )]
    poll: u64,
    /// Copy the clients' data even where the device could reach their memory.
    #[arg(long)]
    copy: bool,
    /// Hold the device in this process, and run its driver as a sandboxed process of this user
    /// (`ring3 sandbox show DRIVER`). The driver serves the clients. When it dies it is restarted,
    /// and the clients connect again.
    #[arg(long, value_name = "NAME")]
    user: Option<User>,
    /// Print what is served as a JSON object.
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this descriptor once the sockets are there, then close it.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<RawFd>,
}

/// Options of `ring3 serve disk`.
#[derive(clap::Args)]
#[command(after_help = "A socket can have limits and rights after its path, such as \
                        /run/a,offset=1G,size=1G,access=ro,iops=1000,rate=100M,depth=32,queues=4,\
                        memory=64M,weight=2,clients=4,mode=660. Limits are per client. \
                        docs/share.md lists all.\n\n\
                        Exit codes: 0 stopped as asked, 1 an error, 2 wrong options, 3 the system \
                        wanted the device back, 4 the driver of --user is lost.")]
pub struct DiskArgs {
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:nvme, vfio-user:PATH, sim:nvme or
    /// sim:ahci, or remote:PATH, a part of what another one serves.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// The namespace of an NVMe controller. Required if it has several.
    #[arg(long, value_name = "ID", conflicts_with = "drive")]
    namespace: Option<u32>,
    /// The drive of an IDE or AHCI controller, by its port or place, from 0. Required if it has
    /// several.
    #[arg(long, value_name = "PLACE")]
    drive: Option<u32>,
    /// The fastest transfer mode of an ATA drive that the driver may use.
    #[arg(long, value_enum, default_value = "queued")]
    transfer: Transfer,
    /// How the device raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    /// Maximum number of requests of all clients that the disk has at once, from 1 to 1024.
    #[arg(
        long, value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    depth: u16,
    #[command(flatten)]
    common: Common,
}

/// Options of `ring3 serve net`.
#[derive(clap::Args)]
#[command(after_help = "A socket can have limits and rights after its path, such as \
                        /run/a,mac=02:00:00:00:00:07,vlan=7,pps=10000,rate=10M,depth=256,\
                        memory=16M,weight=2,clients=4,mode=660. Limits are per client, and \
                        apply to what it sends. docs/share.md lists all.\n\n\
                        Exit codes: 0 stopped as asked, 1 an error, 2 wrong options, 3 the system \
                        wanted the card back, 4 the driver of --user is lost.")]
pub struct NetArgs {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:e1000e, vfio-user:PATH, sim:e1000 or
    /// sim:virtio-net.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    signals: Signals,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    common: Common,
}

/// Serves until a signal ends it.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Disk(args) => {
            let accesses: Vec<server::Access> =
                accesses(&args.common.sockets, |access: &server::Access| access.clients)?;
            let part = args.namespace.or(args.drive);
            let settings = Settings {
                interrupts: args.irq.into(),
                part,
                level: args.transfer.into(),
                ..Settings::default()
            };
            serve(
                (args.device, &args.protection, settings),
                Shares::Disk { accesses, depth: args.depth },
                &args.common,
            )
        }
        Command::Net(args) => {
            let accesses = accesses(&args.common.sockets, card::Access::places)?;
            let place = args.choice.place(
                &args.device,
                args.protection.unprotected,
                args.signals.chosen(),
            )?;
            let settings = args.signals.apply(Settings::default());
            serve(
                (place.device().clone(), &args.protection, settings),
                Shares::Card { accesses },
                &args.common,
            )
        }
    }
}

/// The terms of the sockets, of which each has so many `places`.
pub fn accesses<A: FromStr<Err = String>>(
    sockets: &[String],
    places: impl Fn(&A) -> u16,
) -> Result<Vec<A>> {
    let accesses = sockets
        .iter()
        .map(|text| text.parse().map_err(|error| anyhow::anyhow!("--socket {text}: {error}")));
    let accesses = accesses.collect::<Result<Vec<A>>>()?;
    let places: usize = accesses.iter().map(|access| usize::from(places(access))).sum();
    ensure!(
        places <= MOST,
        "--socket: {places} clients in all, and {MOST} at most can be served: grant fewer \
        (clients=N)"
    );
    Ok(accesses)
}

fn serve(
    (device, protection, settings): (Uri, &Protection, Settings),
    shares: Shares,
    common: &Common,
) -> Result<ExitCode> {
    let claim = Claim { unprotected: protection.unprotected, settings, ..Claim::new(device) };
    // SAFETY: a number of the command line, taken once, and before anything of this process is
    // opened that is kept.
    let ready = common.ready_fd.map(|fd| unsafe { Ready::inherit(fd) }).transpose()?;
    if let Some(user) = common.user {
        ensure!(
            claim.device.scheme != "remote",
            "--user: the driver is a process already, which serves it: leave --user out"
        );
        let share = Share::bind(&shares, &common.sockets, (common.poll, common.copy))?;
        let options = held::HeldOptions { user: Some(user), json: common.json, ready, stats: None };
        return held::share(&claim, share, options);
    }
    let poll = Duration::from_micros(common.poll);
    let options = Options { shares, poll, copy: common.copy, json: common.json, ready };
    Ok(match serve::run(&claim, options)? {
        ExitReason::Forced => ExitCode::from(FORCED),
        ExitReason::Stopped | ExitReason::Removed => ExitCode::SUCCESS,
    })
}
