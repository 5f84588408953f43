//! `ring3 run` for drivers of disks.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use ring3_backend::Uri;
use ring3_broker::server::{self, Access};
use ring3_driver::registry::Settings;
use ring3_driver::{ata, nvme, virtio};
use ring3_export::ublk;
use ring3_host::attach::Source;
use ring3_host::open::Claim;
use ring3_host::serve::Shares;
use ring3_host::{DiskExportKind, ExitReason, Options, Ready};
use ring3_supervisor::manifest::User;

use super::held;
use crate::dde::{Class, Hosted, Name};
use crate::driving;
use crate::driving::Interrupt;
use crate::driving::Protection;
use crate::driving::QuirkArgs;
use crate::driving::Transfer;
use crate::serve;

/// Exit code of a run whose disks were taken away from their users.
pub(super) const FORCED: u8 = 3;

/// Exit code of a run whose driver has lost its device.
pub(super) const LOST: u8 = 4;

/// What `--help` says below the options.
const EXIT_CODES: &str = "Exit codes: 0 stopped as asked, 1 an error, 2 wrong options, 3 taken \
                          away from its users, 4 the driver has lost its device.";

/// How the disks are exported and the process is run.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// The kernel interface that makes block devices of the disks.
    #[arg(long, value_enum, default_value = "ublk")]
    export: Export,
    /// With --export vduse: the device's name below /dev/vduse (default r3disk0 and so on). If a
    /// killed process has left a device of that name, this process continues with it.
    #[arg(long, value_name = "NAME", value_parser = vduse_name)]
    name: Option<String>,
    /// N in /dev/ublkbN, for the first disk. Default: the kernel's choice.
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(ublk::MAX_ID)),
    )]
    id: Option<u32>,
    /// Run the driver in this process, for measurements. If it dies, its disks disappear. Default
    /// for sim:, qtest:, uio:, remote:, no device, --unprotected and --export vduse.
    #[arg(long, conflicts_with_all = ["user", "share"])]
    in_process: bool,
    /// Removed: see [`gone`].
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    recoverable: Option<String>,
    /// Removed: see [`gone`].
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    recover: Option<String>,
    /// Queues of each disk. Each has one thread and one hardware queue.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=128),
    )]
    queues: u16,
    /// Requests per queue.
    #[arg(
        long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    depth: u16,
    /// Longest request, in KiB. The kernel splits longer ones.
    #[arg(
        long, value_name = "KIB", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(4..=32768),
    )]
    max_io: u32,
    /// Microseconds that a queue polls before it sleeps, while polling pays. 0 never polls.
    #[arg(
        long, value_name = "US", default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(0..=1000),
    )]
    poll: u64,
    /// Microseconds that an idle queue polls for its next request, while requests arrive that
    /// soon. Needs a driver in this process (--in-process). Off, with a warning, without a spare
    /// processor.
    #[arg(
        long, value_name = "US", default_value_t = 0, conflicts_with_all = ["user", "share"],
        value_parser = clap::value_parser!(u64).range(0..=1000),
    )]
    idle_poll: u64,
    /// Fetch and complete many requests with one command, where the kernel can (Linux 7.2 can).
    /// Less work with many requests in flight, a little more with one.
    #[arg(long)]
    batch: bool,
    /// The kernel's I/O scheduler for each disk: auto, keep, none, mq-deadline, kyber or bfq. keep
    /// is the kernel's choice. auto is keep for a rotating disk and none for any other.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    scheduler: ublk::Scheduler,
    /// A socket at which clients register memory; their O_DIRECT requests there need no copy (Linux
    /// 7.1 and later; ring3 blk lend, ring3 blk bench --shared). Defaults: mode=600 for its file,
    /// memory=64 MiB for all clients together.
    #[arg(long, value_name = "PATH[,mode=OCTAL][,memory=MIB]", value_parser = shared_by)]
    share: Option<SharedBy>,
    /// Also serve the disk to other programs at this socket, with the terms of `ring3 serve disk`
    /// (docs/share.md). May be given several times.
    #[arg(long = "socket", value_name = "PATH[,KEY=VALUE]...")]
    sockets: Vec<String>,
    /// The user that the sandboxed driver process of a held device runs as (`ring3 sandbox show
    /// DRIVER`). Default: a user id that owns nothing.
    #[arg(long, value_name = "NAME")]
    user: Option<User>,
    /// Print what is exported as JSON, one line per disk.
    #[arg(long)]
    json: bool,
    /// Write the same JSON to this descriptor once the disks are there, then close it.
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<RawFd>,
    /// Write figures (start-up time, memory, requests) to this file at the end, and on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Export {
    /// A block device /dev/ublkbN.
    Ublk,
    /// A virtio disk /dev/vdX, by VDUSE. It outlives this process if that dies.
    Vduse,
}

/// A name that the kernel takes.
fn vduse_name(text: &str) -> Result<String, String> {
    let is_name = ring3_export::vduse::is_name(text);
    if is_name { Ok(text.into()) } else { Err("1 to 63 letters, digits, '-', '_' and '.'".into()) }
}

/// Where clients hand over memory, and on which terms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedBy {
    path: PathBuf,
    mode: u32,
    /// MiB that all clients together may hand over.
    memory: Option<u64>,
}

/// MiB that clients may hand over if nothing is said.
const SHARED_MIB: u64 = 64;

/// A socket, the rights of its file, and how much memory.
fn shared_by(text: &str) -> Result<SharedBy, String> {
    let wrong = || {
        "a path, and behind commas the rights of its file, as mode=660, and MiB of memory, as \
         memory=256"
            .to_owned()
    };
    let mut words = text.split(',');
    let path = words.next().filter(|path| !path.is_empty()).ok_or_else(wrong)?;
    let mut by = SharedBy { path: path.into(), mode: 0o600, memory: None };
    for word in words {
        match word.split_once('=') {
            Some(("mode", octal)) => {
                by.mode = u32::from_str_radix(octal, 8)
                    .ok()
                    .filter(|mode| *mode <= 0o777)
                    .ok_or_else(wrong)?
            }
            Some(("memory", mib)) => {
                by.memory = Some(
                    mib.parse().ok().filter(|mib| (1..=65_536).contains(mib)).ok_or_else(wrong)?,
                )
            }
            _ => return Err(wrong()),
        }
    }
    Ok(by)
}

/// A block size that the kernel knows on every machine.
fn block_size(text: &str) -> Result<u32, String> {
    let size = text
        .parse()
        .ok()
        .filter(|size: &u32| size.is_power_of_two() && (512..=4096).contains(size));
    size.ok_or_else(|| "512, 1024, 2048 or 4096".into())
}

/// Options of `ring3 run null`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct NullArgs {
    /// Size of the disk, in MiB.
    #[arg(
        long, value_name = "MIB", default_value_t = 1024,
        value_parser = clap::value_parser!(u64).range(1..=1 << 40),
    )]
    size: u64,
    /// Bytes of a block: 512, 1024, 2048 or 4096.
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = block_size)]
    block_size: u32,
    #[command(flatten)]
    export: ExportArgs,
}

/// Options of `ring3 run disk`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct RemoteArgs {
    /// remote:PATH, a disk that another process serves there (ring3 serve disk, ring3 dde run).
    /// With --driver, its controller: vfio:0000:01:00.0, qtest:nvme.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The controller's driver: dde:nvme, a driver of Linux in a separate process. It is built if
    /// necessary, and ends with this process.
    #[arg(long, value_name = "dde:NAME")]
    driver: Option<Name>,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    export: ExportArgs,
}

/// Options of `ring3 run nvme`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct NvmeArgs {
    /// The controller: vfio:0000:01:00.0, qtest:nvme, vfio-user:PATH or sim:nvme.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// The namespace to export. Default: every usable one, as a disk each.
    #[arg(long, value_name = "NSID")]
    namespace: Option<u32>,
    /// How the controller raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    #[command(flatten)]
    quirks: QuirkArgs,
    #[command(flatten)]
    nvme: driving::NvmeLimits,
    #[command(flatten)]
    export: ExportArgs,
}

/// Options of `ring3 run virtio`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct VirtioArgs {
    /// The disk: vfio:0000:01:00.0, qtest:virtio-blk-pci, vfio-user:PATH or sim:virtio-blk.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// How the disk raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    #[command(flatten)]
    export: ExportArgs,
}

/// Options of `ring3 run ata`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct AtaArgs {
    /// The controller: vfio:0000:01:00.0, uio:0000:00:01.1, qtest:ich9-ahci, qtest:piix3-ide,
    /// vfio-user:PATH, sim:ahci or sim:ide.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// The drive to export. Default: every usable one, as a disk each.
    #[arg(long, value_name = "PLACE")]
    drive: Option<u32>,
    /// How the controller raises interrupts.
    #[arg(long, value_enum, default_value = "auto")]
    irq: Interrupt,
    /// The fastest transfer mode that the driver may use.
    #[arg(long, value_enum, default_value = "queued")]
    transfer: Transfer,
    #[command(flatten)]
    export: ExportArgs,
}

/// Drives an IDE or AHCI controller.
pub fn run_ata(args: AtaArgs) -> anyhow::Result<ExitCode> {
    let claim = Claim {
        unprotected: args.protection.unprotected,
        family: Some(ata::AHCI.family),
        settings: Settings {
            part: args.drive,
            interrupts: args.irq.into(),
            level: args.transfer.into(),
            ..Settings::default()
        },
        ..Claim::new(args.device)
    };
    run(&Source::Device(Box::new(claim)), args.export)
}

/// Drives an NVMe controller.
pub fn run_nvme(args: NvmeArgs) -> anyhow::Result<ExitCode> {
    let claim = Claim {
        unprotected: args.protection.unprotected,
        family: Some(nvme::DRIVER.family),
        settings: args.nvme.apply(Settings {
            part: args.namespace,
            interrupts: args.irq.into(),
            quirks: args.quirks.into(),
            ..Settings::default()
        }),
        ..Claim::new(args.device)
    };
    run(&Source::Device(Box::new(claim)), args.export)
}

/// Drives a virtio disk.
pub fn run_virtio(args: VirtioArgs) -> anyhow::Result<ExitCode> {
    let claim = Claim {
        unprotected: args.protection.unprotected,
        family: Some(virtio::blk::DRIVER.family),
        settings: Settings { interrupts: args.irq.into(), ..Settings::default() },
        ..Claim::new(args.device)
    };
    run(&Source::Device(Box::new(claim)), args.export)
}

/// Serves a disk that another process drives.
pub fn run_remote(args: RemoteArgs) -> anyhow::Result<ExitCode> {
    if args.export.user.is_some() {
        anyhow::bail!(
            "--user: the disk's driver is a process already, which serves it: leave --user out"
        );
    }
    let hosted =
        |name| Hosted::start(name, Class::Block, &args.device, args.protection.unprotected);
    // Ends after the export.
    let hosted = args.driver.as_ref().map(hosted).transpose()?;
    let device = hosted.as_ref().map_or(&args.device, Hosted::device).clone();
    if device.scheme != "remote" {
        anyhow::bail!(
            "{device}: ring3 run disk is for remote:PATH, or for a driver of Linux (--driver \
            dde:nvme); ring3's own are ring3 run nvme, ata and virtio"
        );
    }
    run(&Source::Device(Box::new(Claim::new(device))), args.export)
}

/// Serves a disk that does nothing.
pub fn run_null(args: NullArgs) -> anyhow::Result<ExitCode> {
    let source = Source::Null { bytes: args.size << 20, block_size: args.block_size };
    run(&source, args.export)
}

/// What the disks become, if the options fit that.
fn way(args: &ExportArgs) -> anyhow::Result<DiskExportKind> {
    let of_ublk = [
        ("--id", args.id.is_some()),
        ("--user", args.user.is_some()),
        ("--share", args.share.is_some()),
        ("--socket", !args.sockets.is_empty()),
        ("--idle-poll", args.idle_poll > 0),
        ("--batch", args.batch),
    ];
    match args.export {
        Export::Ublk if args.name.is_some() => {
            anyhow::bail!("--name is of --export vduse: a ublk device has a number, --id")
        }
        Export::Ublk => Ok(DiskExportKind::Ublk),
        Export::Vduse => match of_ublk.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                anyhow::bail!(
                    "{option} is of --export ublk: a VDUSE device has a --name, and is gone on \
                    with by that"
                )
            }
            None => Ok(DiskExportKind::Vduse(args.name.clone())),
        },
    }
}

/// The same as a supervisor has it, which may run elsewhere than where it was started.
fn held_share(SharedBy { path, mode, memory }: SharedBy) -> anyhow::Result<held::Share> {
    let socket =
        std::path::absolute(&path).with_context(|| format!("--share {}", path.display()))?;
    Ok(held::Share { socket, mode: format!("{mode:o}"), memory_mib: memory.unwrap_or(SHARED_MIB) })
}

/// What of `args` is no more, and what is in its place.
fn gone(args: &ExportArgs) -> anyhow::Result<()> {
    if args.recoverable.is_none() && args.recover.is_none() {
        return Ok(());
    }
    anyhow::bail!(
        "--recoverable and --recover are no more: ring3 run holds a device (vfio:, vfio-user:) and \
        starts its driver again when it dies, by itself. ring3d --hold has disks outlive their \
        holder as well (docs/supervisor.md)"
    )
}

/// Whether this process holds the device of `claim`, for a driver in a process of its own.
fn is_held(claim: &Claim, args: &ExportArgs) -> bool {
    let usual = matches!(claim.device.scheme.as_str(), "vfio" | "vfio-user")
        && !claim.unprotected
        && args.export == Export::Ublk
        && !args.in_process;
    usual || args.user.is_some() || args.share.is_some()
}

/// What a driver in a process of its own cannot be told.
fn check_held(claim: &Claim, args: &ExportArgs) -> anyhow::Result<()> {
    let of_one_process = [
        ("--idle-poll", args.idle_poll > 0),
        ("--transfer", claim.settings.level != Settings::default().level),
    ];
    match of_one_process.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => anyhow::bail!(
            "{option} is of a driver in this process, which nobody starts again when it dies: say \
            --in-process, too"
        ),
        None => Ok(()),
    }
}

fn run(source: &Source, args: ExportArgs) -> anyhow::Result<ExitCode> {
    gone(&args)?;
    let way = way(&args)?;
    // SAFETY: a number of the command line, taken once, and before anything of this process is
    // opened that is kept.
    let ready = args.ready_fd.map(|fd| unsafe { Ready::inherit(fd) }).transpose()?;
    let accesses = serve::accesses(&args.sockets, |access: &Access| access.clients)?;
    match source {
        Source::Device(claim) if is_held(claim, &args) => run_held(claim, args, (accesses, ready)),
        Source::Null { .. } if args.user.is_some() || args.share.is_some() => {
            let option = if args.user.is_some() { "--user" } else { "--share" };
            anyhow::bail!("{option}: a disk without a device needs no driver: leave it out")
        }
        _ => run_here(source, args, way, (accesses, ready)),
    }
}

/// Holds the device of `claim`, for a driver in a process of its own.
fn run_held(
    claim: &Claim,
    args: ExportArgs,
    (accesses, ready): (Vec<Access>, Option<Ready>),
) -> anyhow::Result<ExitCode> {
    check_held(claim, &args)?;
    let export = held::ExportConfig {
        id: args.id,
        queues: args.queues,
        depth: args.depth,
        max_io_kib: args.max_io,
        poll_us: args.poll,
        share: args.share.map(held_share).transpose()?,
        scheduler: args.scheduler,
        batch: args.batch,
        ..Default::default()
    };
    let terms = server::Options { poll: Duration::from_micros(args.poll), ..Default::default() };
    let shares = Shares::Disk { accesses, depth: terms.depth };
    let beside = (!args.sockets.is_empty())
        .then(|| serve::share::Share::bind(&shares, &args.sockets, (args.poll, terms.copy)))
        .transpose()?;
    let (user, json, stats) = (args.user, args.json, args.stats);
    held::run(claim, None, export, beside, held::HeldOptions { user, json, ready, stats })
}

/// Drives `source` in this process.
fn run_here(
    source: &Source,
    args: ExportArgs,
    way: DiskExportKind,
    (sockets, ready): (Vec<Access>, Option<Ready>),
) -> anyhow::Result<ExitCode> {
    let options = Options {
        way,
        ublk: ublk::Options {
            id: args.id,
            queues: args.queues,
            depth: args.depth,
            max_bytes: args.max_io << 10,
            poll: Duration::from_micros(args.poll),
            idle_poll: Duration::from_micros(args.idle_poll),
            scheduler: args.scheduler,
            batches: args.batch,
        },
        sockets,
        json: args.json,
        ready,
        stats: args.stats,
    };
    match ring3_host::run(source, options) {
        Ok(ExitReason::Stopped | ExitReason::Removed) => Ok(ExitCode::SUCCESS),
        Ok(ExitReason::Forced) => Ok(ExitCode::from(FORCED)),
        Err(error) if error.is_loss() => {
            errln!("ring3: {error}");
            Ok(ExitCode::from(LOST))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_handed_over_at_a_path_on_terms_behind_commas_and_what_nobody_knows_is_refused() {
        let by = |path: &str, mode, memory| Ok(SharedBy { path: path.into(), mode, memory });
        assert_eq!(shared_by("/run/x"), by("/run/x", 0o600, None));
        assert_eq!(shared_by("/run/x,mode=660"), by("/run/x", 0o660, None));
        assert_eq!(shared_by("/run/x,memory=256,mode=666"), by("/run/x", 0o666, Some(256)));
        for wrong in [
            "",
            ",mode=660",
            "/run/x,mode=888",
            "/run/x,mode=1777",
            "/run/x,memory=0",
            "/run/x,memory=64M",
            "/run/x,user=1",
        ] {
            assert!(shared_by(wrong).is_err(), "{wrong}");
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: NvmeArgs,
    }

    #[test]
    fn what_can_be_held_is_held_unless_the_user_or_an_option_wants_it_in_one_process() {
        let held = |words: &str| {
            let words = ["run", "--device"].into_iter().chain(words.split(' '));
            let Line { args } = clap::Parser::try_parse_from(words).unwrap();
            let unprotected = args.protection.unprotected;
            is_held(&Claim { unprotected, ..Claim::new(args.device) }, &args.export)
        };
        for words in [
            "vfio:0000:01:00.0",
            "vfio-user:/run/x --socket /run/y",
            "vfio:0000:01:00.0 --share /run/x --batch",
            "sim:nvme --user nobody",
            "sim:nvme --share /run/x",
        ] {
            assert!(held(words), "{words}");
        }
        for words in [
            "vfio:0000:01:00.0 --in-process",
            "vfio:0000:01:00.0 --export vduse",
            "vfio:0000:01:00.0 --unprotected",
            "uio:0000:01:00.0 --unprotected",
            "sim:nvme",
            "qtest:nvme",
        ] {
            assert!(!held(words), "{words}");
        }
    }
}
