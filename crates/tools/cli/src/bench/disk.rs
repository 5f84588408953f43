//! `ring3 bench disk`: what to measure, and where.

use std::any::Any;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_bench::Error;
use ring3_bench::disk::{
    Controller, Driver, Event, Placement, Plan, Programs, Qemu, Study, Supervisor, Tuning,
    block_facts, run_here,
};
use ring3_bench::workload::{STANDARD, Workload};
use ring3_broker::region::SharedMemory;
use ring3_export::vduse::devices as vduse;
use ring3_pci::{Address, Host, PassthroughDriver, bind, unbind};
use serde::{Deserialize, Serialize};

use super::campaign::{Campaign, LOADS, Machine};
use super::guest::Guest;
use super::load::buffers;
use super::open::open_disk;
use super::paper;
use super::restart::Supervised;
use super::ring3d::supervisor;
use crate::driving::{NvmeLimits, Protection};
use crate::leave;

/// How long the kernel may take to find the disk of a device that it was given back.
const HAND_OVER: Duration = Duration::from_secs(20);

/// Has an export driven in its own process, without a holder.
const HERE: &str = " --in-process";

/// How an export looks for what comes next that has a processor for that: longer than its device
/// and its user take.
const LOOKING: &str = "--poll 50 --idle-poll 100";

/// Options of `ring3 bench disk`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The clock: real time, or instructions of the guest, which are repeatable. Default: both;
    /// wall with --quick and with --here.
    #[arg(long, value_enum)]
    mode: Option<Clock>,
    /// Rounds, from 1 to 1000. Each round measures every placement once. The default depends on the
    /// load; at most 2 with --quick.
    #[arg(long, visible_alias = "runs", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Milliseconds of each measurement, from 10 to 600,000, by the clock of the measured machine.
    /// Default: 1000; 150 with --quick and by instructions.
    #[arg(long, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    millis: Option<u64>,
    /// A load: (rand|seq)(read|write|rw)-SIZE-qdDEPTH, such as randread-4k-qd32. May be repeated.
    /// Default: the four standard loads (docs/bench.md).
    #[arg(long = "workload")]
    workloads: Vec<Workload>,
    /// Where the driver is, and how it is used. May be repeated. Default: the usual ones
    /// (docs/bench.md).
    ///
    /// In the kernel: kernel, kernel-none (without an I/O scheduler; with --here only if named),
    /// kernel-none-huge (data in huge pages), kernel-nomultipath, kernel-passthrough,
    /// kernel-iopoll, kernel-passthrough-iopoll.
    ///
    /// In the application's process: process, process-polled, process-adaptive, process-threads.
    ///
    /// In a process behind ublk or VDUSE: export, export-polled, export-shared (memory is shared
    /// with the driver, --kernel 7.2), export-batch and export-shared-batch (many requests in one
    /// ublk command, --kernel 7.2), export-vduse, supervised, hosted (Linux's driver, built if
    /// necessary).
    ///
    /// Without a device, as baselines: ublk-null, ublk-null-polled, vduse-null. Of QEMU:
    /// qemu-vduse, qemu-img.
    ///
    /// With -fio at the end, fio makes the load: kernel, kernel-nomultipath, kernel-passthrough,
    /// kernel-iopoll, export, hosted.
    #[arg(long = "placement")]
    placements: Vec<Placement>,
    /// Also measure the kernel's driver with its best settings, and QEMU's NVMe driver, exported
    /// and in process. QEMU is the distribution's; with --here it is this machine's.
    #[arg(long, conflicts_with_all = ["placements", "figure", "timeline", "work"])]
    rivals: bool,
    #[command(flatten)]
    paper: paper::Options,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, default_value = ring3_lab::DEFAULT_KERNEL)]
    kernel: String,
    /// Let the IOMMU translate and check the transfers of the kernel's driver, as it always does
    /// for ring3's. Default: the guest runs with iommu=pt, and the kernel's driver is not checked.
    #[arg(long, conflicts_with = "here")]
    translated: bool,
    /// Folder for the report and the figures.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Measure two short rounds without fio, by the wall clock, as a trial.
    #[arg(long)]
    quick: bool,
    /// Measure throughput and its cost only, and not latency or the driver alone. With --mode
    /// instructions this is several times faster.
    #[arg(long, conflicts_with_all = ["figure", "timeline", "work"])]
    brief: bool,
    /// Measure a device of this machine instead of a guest's. Needs --disk or --device.
    #[arg(long)]
    here: bool,
    #[command(flatten)]
    target: Target,
    /// With --here: allow loads that write. They destroy the content of the disks.
    #[arg(long, requires = "here")]
    overwrite: bool,
}

/// What is measured of this machine.
#[derive(Clone, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// With --here: the block device that the kernel drives.
    #[arg(long, requires = "here")]
    pub disk: Option<PathBuf>,
    /// With --here: the device that ring3 drives, such as vfio:0000:01:00.0.
    #[arg(long, requires = "here")]
    pub device: Option<String>,
    /// With --here: --disk and --device are the same device, which is bound to the kernel's driver
    /// and to vfio-pci by turns.
    #[arg(long, requires = "disk", requires = "device")]
    pub shared: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub protection: Protection,
    /// In the lab's guest: a folder in which QEMU's programs are, with all that they need.
    #[arg(skip)]
    pub qemu_root: Option<PathBuf>,
    /// In the lab's guest: the modules from which the kernel's NVMe driver is loaded anew where a
    /// placement wants that.
    #[arg(skip)]
    pub modules: Option<PathBuf>,
}

/// The rounds of a plan from `first` on, in a guest: each step is a line of JSON.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turns {
    pub plan: Plan,
    pub first: u32,
    pub target: Target,
}

impl Turns {
    /// Measures them.
    pub fn run(&self) -> Result<()> {
        here(&self.target, &self.plan, self.first, &mut print_event)
    }
}

/// The clock of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Clock {
    /// Real time, on two processors.
    Wall,
    /// Instructions, one per nanosecond, on one processor. Repeatable.
    Instructions,
    /// First wall, then instructions.
    Both,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let clocks = clocks(args)?;
    if !args.here {
        leave::nothing_behind()?;
    }
    let (figure, look) = args.paper.figure().unwrap_or(("disk", LOADS));
    let mut campaign = Campaign::new(figure, look, &args.out)?;
    for controller in args.paper.controllers() {
        let name = if figure == "disk" {
            figure.into()
        } else {
            format!("{figure}-{}", controller.name())
        };
        for &instructions in clocks {
            let plan = plan(args, instructions, controller)?;
            match args.here {
                true => campaign.run(&name, &plan, &mut Here(args))?,
                false => campaign.run(&name, &plan, &mut Guest::new(&plan)?)?,
            }
        }
    }
    campaign.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// For each clock, whether it counts instructions.
fn clocks(args: &Args) -> Result<&'static [bool]> {
    let default = if args.quick || args.here { Clock::Wall } else { Clock::Both };
    let clocks: &[bool] = match args.mode.unwrap_or(default) {
        Clock::Wall => &[false],
        Clock::Instructions => &[true],
        Clock::Both => &[false, true],
    };
    if args.here && clocks.contains(&true) {
        bail!(
            "the instruction clock is QEMU's: --here measures by the wall clock, or leave --here \
            out"
        );
    }
    Ok(clocks)
}

fn plan(args: &Args, instructions: bool, controller: Controller) -> Result<Plan> {
    let (study, usual_rounds, usual) = match args.paper.study(args.quick, args.millis) {
        Some((study, rounds, placements)) => (study, rounds, placements.to_vec()),
        None if args.rivals => (loads(args, instructions)?, 5, Placement::rivals()),
        None => (loads(args, instructions)?, 5, Placement::loads()),
    };
    Ok(Plan {
        pace: args.paper.pace(args.here),
        study,
        rounds: args.rounds.unwrap_or(if args.quick { usual_rounds.min(2) } else { usual_rounds }),
        placements: placements(args, &usual, controller)?,
        instructions,
        kernel: if args.here { String::new() } else { args.kernel.clone() },
        translated: args.translated,
        controller,
    })
}

fn loads(args: &Args, instructions: bool) -> Result<Study> {
    let loads = match args.workloads.is_empty() {
        true => STANDARD.map(str::to_owned).to_vec(),
        false => args.workloads.iter().map(Workload::to_string).collect(),
    };
    let writing = |name: &String| name.parse().is_ok_and(|load: Workload| load.writes());
    let allowed = !args.here || args.overwrite;
    let workloads: Vec<_> = loads.into_iter().filter(|name| allowed || !writing(name)).collect();
    if workloads.is_empty() {
        bail!(
            "only loads that write were asked for, and they destroy what is on the disks: say \
            --overwrite if that is meant"
        );
    }
    let millis = args.millis.unwrap_or(if args.quick || instructions { 150 } else { 1000 });
    Ok(Study::Loads { millis, brief: args.brief, workloads })
}

/// Those that were asked for, or all of `usual` that are possible.
fn placements(args: &Args, usual: &[Placement], controller: Controller) -> Result<Vec<Placement>> {
    let possible = |placement: Placement| {
        let needs = match placement.driver() {
            // On this machine, what changes its disk has to be asked for.
            Driver::Kernel(tuning) if args.here => {
                args.target.disk.is_some() && tuning == Tuning::AsItComes
            }
            Driver::Kernel(tuning) => {
                tuning <= Tuning::NoScheduler || controller == Controller::Nvme
            }
            Driver::Process => !args.here || args.target.device.is_some(),
            Driver::Export
            | Driver::ExportPolled
            | Driver::Shared
            | Driver::Batch
            | Driver::SharedBatch
            | Driver::Hosted => !args.here || (args.target.device.is_some() && ublk()),
            // Ports of a leased function are messages: IDE would be measured by those.
            Driver::Supervised if controller == Controller::Ide || supervisor().is_err() => false,
            Driver::Supervised => !args.here || (args.target.device.is_some() && ublk()),
            Driver::Null | Driver::NullPolled => !args.here || ublk(),
            Driver::Vduse => !args.here || (args.target.device.is_some() && by_vduse()),
            Driver::VduseNull => !args.here || by_vduse(),
            Driver::QemuVduse | Driver::QemuImg if controller != Controller::Nvme => false,
            Driver::QemuVduse => !args.here || (function(&args.target).is_some() && by_vduse()),
            Driver::QemuImg => !args.here || function(&args.target).is_some(),
        };
        needs
            && !(placement.is_fio() && (args.quick || (args.here && !ring3_bench::fio::present())))
    };
    let asked = if args.placements.is_empty() { usual.to_vec() } else { args.placements.clone() };
    let chosen: Vec<_> = match args.placements.is_empty() {
        true => asked.into_iter().filter(|&placement| possible(placement)).collect(),
        false => asked,
    };
    if chosen.is_empty() {
        bail!(
            "nothing to measure: say --disk /dev/PATH for the kernel's driver, --device URI for \
            ring3's, or both"
        );
    }
    Ok(chosen)
}

/// The address of the function that --device names, if it is behind VFIO, as QEMU's driver wants
/// it.
fn function(target: &Target) -> Option<String> {
    let address = target.device.as_deref()?.strip_prefix("vfio:")?.split(',').next()?;
    address.parse::<Address>().ok().map(|address| address.to_string())
}

fn ublk() -> bool {
    Path::new("/dev/ublk-control").exists()
}

fn by_vduse() -> bool {
    Path::new("/dev/vduse/control").exists()
}

/// Measures this machine.
struct Here<'a>(&'a Args);

impl Machine for Here<'_> {
    fn measure(
        &mut self,
        plan: &Plan,
        first: u32,
        progress: &mut dyn FnMut(&Event),
    ) -> Result<String> {
        say_what_was_found(&self.0.target, plan);
        here(&self.0.target, plan, first, progress)?;
        Ok("none".into())
    }
}

/// A disk that could be faster is measured as it is, but not without a word.
fn say_what_was_found(target: &Target, plan: &Plan) {
    let Some(disk) =
        target.disk.as_deref().filter(|_| plan.placements.contains(&Placement::Kernel))
    else {
        return;
    };
    let facts = block_facts(disk);
    if let Some(scheduler) = facts.get("scheduler").filter(|scheduler| *scheduler != "none") {
        errln!(
            "ring3: {} has the scheduler {scheduler} and is measured with it; --placement \
            kernel-none measures it without one, and puts it back",
            disk.display()
        );
    }
}

fn here(target: &Target, plan: &Plan, first: u32, progress: &mut dyn FnMut(&Event)) -> Result<()> {
    let room = buffers(&plan.loads());
    let device = target.device.clone();
    let open = |waiting| {
        let uri = device.as_deref().unwrap_or_default();
        open_disk(uri, room, waiting, (target.protection, NvmeLimits::default()))
            .map_err(|error| ring3_bench::Error::Invalid(format!("{error:#}")))
    };
    let driver = if plan.controller == Controller::Nvme { "nvme" } else { "ata" };
    let hand_over = |to_ring3| {
        let handed = handed_over(
            target.device.as_deref().unwrap_or_default(),
            target.disk.as_deref(),
            to_ring3,
        );
        handed.map_err(|error| ring3_bench::Error::Invalid(format!("{error:#}")))
    };
    // A timeline shows the way by interrupt.
    let poll = if matches!(plan.study, Study::Timeline(_)) { " --poll 0" } else { "" };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let manifest = tempfile::tempdir().context("making a folder for the supervisor's manifest")?;
    let socket = manifest.path().join("share");
    let lend = |bytes| {
        let (memory, loan) = SharedMemory::taken(bytes, |memory| memory.register(&socket))
            .map_err(|error| Error::Invalid(error.to_string()))?;
        Ok((memory.region().clone(), Box::new(loan) as Box<dyn Any>))
    };
    // Without a holder, but where clients' memory is lent, which needs one.
    let exported = |way: &str, uri: &str, holder: &str| {
        words(&format!(
            "run {driver} --export {way}{holder} --json --device {uri}{}{poll}",
            target.protection.words()
        ))
    };
    let share = ["--share".to_string(), socket.display().to_string()];
    let programs = Programs {
        kernel: target.disk.clone(),
        modules: target.modules.clone(),
        open: device.is_some().then_some(&open),
        export: device.as_ref().map(|uri| exported("ublk", uri, HERE)),
        shared: device.as_ref().map(|uri| [exported("ublk", uri, ""), share.to_vec()].concat()),
        batch: device.as_ref().map(|uri| [exported("ublk", uri, HERE), words("--batch")].concat()),
        shared_batch: device
            .as_ref()
            .map(|uri| [exported("ublk", uri, ""), words("--batch"), share.to_vec()].concat()),
        lend: Some(&lend),
        export_polled: device
            .as_ref()
            .map(|uri| [exported("ublk", uri, HERE), words(LOOKING)].concat()),
        vduse: device.as_ref().map(|uri| exported("vduse", uri, HERE)),
        hosted: device.as_ref().map(|uri| {
            words(&format!(
                "run disk --driver dde:{} --export ublk --json --device {uri}",
                linuxs(plan.controller)
            ))
        }),
        supervisor: device
            .as_deref()
            .zip(supervisor().ok())
            .map(|(uri, program)| supervised(uri, program, manifest.path()))
            .transpose()?,
        null: Some(words("run null --export ublk --json")),
        null_polled: Some([words("run null --export ublk --json"), words(LOOKING)].concat()),
        vduse_null: Some(words("run null --export vduse --json")),
        qemu: function(target).map(|device| Qemu {
            root: target.qemu_root.clone(),
            device,
            attach: attach_disk,
            detach: detach_disk,
        }),
        program: std::env::current_exe()
            .context("finding this program, which serves the exports")?,
        hand_over: target.shared.then_some(&hand_over),
    };
    Ok(run_here(plan, first, &programs, progress)?)
}

/// Linux's driver of a controller, as `ring3 dde list` has it.
pub fn linuxs(controller: Controller) -> &'static str {
    match controller {
        Controller::Nvme => "nvme",
        Controller::Ahci => "ahci",
        Controller::Ide => "ata_piix",
    }
}

fn attach_disk(name: &str) -> Result<Option<PathBuf>, Error> {
    vduse::attach_disk(name).map_err(|error| Error::Invalid(error.to_string()))
}

fn detach_disk(name: &str) -> Result<(), Error> {
    vduse::detach(name).map_err(|error| Error::Invalid(error.to_string()))
}

/// A supervisor of `device`, whose manifest and socket are in `folder`.
fn supervised(device: &str, program: PathBuf, folder: &Path) -> Result<Supervisor> {
    let name = format!("bench-{}", std::process::id());
    let manifest = folder.join("bench.toml");
    let text = format!(
        "[device.{name}]\nmatch = {{ device = {device:?} }}\n[device.{name}.export]\nkind = \
        \"ublk\"\nlink = {name:?}\n"
    );
    std::fs::write(&manifest, text).with_context(|| format!("writing {}", manifest.display()))?;
    let socket = folder.join("socket");
    let arguments =
        [OsStr::new("--config"), manifest.as_os_str(), OsStr::new("--socket"), socket.as_os_str()];
    let arguments = arguments.map(|word| word.to_string_lossy().into_owned()).to_vec();
    let link = Path::new("/dev/ring3").join(&name);
    let settled = move || {
        Supervised::connect(&socket, &name)
            .map(drop)
            .map_err(|error| Error::Invalid(format!("{error:#}")))
    };
    Ok(Supervisor { program, arguments, link, settled: Box::new(settled) })
}

/// Hands the function that `device` names to the driver of its way, or back to the kernel's, and
/// waits for its `disk`.
fn handed_over(device: &str, disk: Option<&Path>, to_ring3: bool) -> Result<()> {
    let (way, address) = device
        .split_once(':')
        .with_context(|| format!("{device:?} names no function of this machine"))?;
    let address: Address = address.split(',').next().unwrap_or_default().parse()?;
    let host = Host::this();
    if to_ring3 {
        bind(
            &host,
            address,
            if way == "uio" { PassthroughDriver::Uio } else { PassthroughDriver::Vfio },
            None,
        )?;
        return Ok(());
    }
    unbind(&host, address)?;
    let start = Instant::now();
    while disk.is_some_and(|disk| File::open(disk).is_err()) {
        if start.elapsed() > HAND_OVER {
            bail!("{address} went back to the kernel's driver, but its disk did not appear");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn print_event(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        outln!("{line}");
    }
}
