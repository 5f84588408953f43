//! `ring3 serve disk --device URI --socket PATH`: one disk for several programs.

use std::os::fd::RawFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use ring3_backend::Uri;
use ring3_broker::server::Access;
use ring3_driver::registry::Settings;
use ring3_host::open::Claim;
use ring3_host::serve::{self, Options};
use ring3_host::{Ending, Ready};

use crate::driving::{Interrupt, Protection, Transfer};

/// Exit code of a server whose device was taken away.
const FORCED: u8 = 3;

/// What `ring3 serve` serves.
#[derive(clap::Subcommand)]
pub enum Command {
    /// A disk: who may connect to a socket uses it as --device remote:PATH.
    Disk(DiskArgs),
}

/// Options of `ring3 serve disk`.
#[derive(clap::Args)]
#[command(
    after_help = "Each --socket takes terms behind its path, as in /run/a,offset=1G,size=1G,access=ro,iops=1000,rate=100M,depth=32,queues=4,\
        memory=64M,weight=2,clients=4,mode=660. Limits are each client's. docs/share.md has them all.\n\n\
        Exit codes: 0 stopped as asked, 1 an error, 2 wrong options, 3 the system wanted the device back."
)]
pub struct DiskArgs {
    /// The device: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:nvme, vfio-user:PATH, sim:nvme or sim:ahci, or remote:PATH, a part of what another one serves.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// The namespace of an NVMe controller; needed if it has several.
    #[arg(long, value_name = "ID", conflicts_with = "drive")]
    namespace: Option<u32>,
    /// The drive of an IDE or AHCI controller, by its place; needed if it has several.
    #[arg(long, value_name = "PLACE")]
    drive: Option<u32>,
    /// How the controller signals.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    /// The best way in which an ATA drive's data may move.
    #[arg(long, value_enum, default_value = "queued")]
    transfer: Transfer,
    /// Where clients connect, and on which terms. May be there several times.
    #[arg(long = "socket", value_name = "PATH[,KEY=VALUE]...", required = true)]
    sockets: Vec<String>,
    /// Requests of all clients together that the disk has at once.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Microseconds for which the server polls before it sleeps, as long as that pays; 0 never polls.
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1000))]
    poll: u64,
    /// Copy clients' bytes, also where the device could reach their memory.
    #[arg(long)]
    copy: bool,
    /// Say what is served as a JSON object.
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this descriptor once the sockets are there, then close it.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<RawFd>,
}

/// Serves until a signal ends it.
pub fn run(command: Command) -> Result<ExitCode> {
    let Command::Disk(args) = command;
    // SAFETY: a number of the command line, taken once, and before anything of this process is opened that is kept.
    let ready = args.ready_fd.map(|fd| unsafe { Ready::inherit(fd) }).transpose()?;
    let accesses = args.sockets.iter().map(|text| text.parse().map_err(|error| anyhow::anyhow!("--socket {text}: {error}")));
    let accesses = accesses.collect::<Result<Vec<Access>>>()?;
    let places: usize = accesses.iter().map(|access| usize::from(access.clients)).sum();
    ensure!(places <= 256, "--socket: {places} clients in all, and 256 at most can be served: grant fewer (clients=N)");
    let claim = Claim {
        unprotected: args.protection.unprotected,
        settings: Settings {
            part: args.namespace.or(args.drive),
            interrupts: args.irq.into(),
            level: args.transfer.into(),
            ..Settings::default()
        },
        ..Claim::new(args.device)
    };
    let poll = Duration::from_micros(args.poll);
    let options = Options { accesses, depth: args.depth, poll, copy: args.copy, json: args.json, ready };
    Ok(match serve::run(&claim, options)? {
        Ending::Forced => ExitCode::from(FORCED),
        Ending::Stopped | Ending::Removed => ExitCode::SUCCESS,
    })
}
