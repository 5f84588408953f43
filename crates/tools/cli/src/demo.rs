//! `ring3 demo`: a disk out of the kernel, from the first register to a file system, and what it
//! costs; and a network card.

mod models;
mod network;
mod progress;
mod steps;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Result, bail};
use ring3_bench::disk::{Controller, Placement, Plan, Study};
use ring3_bench::load::{Direct, Limit, Load, run as run_load};
use ring3_lab::{Backing, Cache, DEFAULT_KERNEL, Device, Event, Guest, Need, Size, prepare};

use crate::bench::campaign::{Campaign, LOADS};
use crate::bench::guest::{self, NAME, with_this_program};
use crate::bench::open::{LOAD, open_disk};
use crate::bench::ring3d::{RING3D, with_supervisor};
use crate::leave;
use progress::Progress;

/// Bytes of each disk in the guest.
const DISK: Size = Size(512 << 20);

/// What stands side by side, and what that is to somebody who has read nothing yet.
const PLACEMENTS: [(Placement, &str); 7] = [
    (Placement::Kernel, "the kernel's driver, its disk as it comes"),
    (Placement::KernelNomultipath, "the same at its best: no scheduler, no multipath head"),
    (Placement::KernelPassthrough, "the same past the block layer: NVMe commands to /dev/ng0n1"),
    (
        Placement::Process,
        "ring3's driver within the program that reads, asleep until the interrupt",
    ),
    (Placement::ProcessPolled, "the same, never asleep (by the wall clock alone)"),
    (Placement::Export, "ring3's driver in a process of its own, behind /dev/ublkb0"),
    (Placement::Supervised, "the same, held, confined and watched by ring3d"),
];

/// One read after the other, many at once, and large ones.
const WORKLOADS: [&str; 3] = ["randread-4k-qd1", "randread-4k-qd32", "seqread-128k-qd8"];

/// Bytes that are written and read back over qtest.
const QTEST_BYTES: u64 = 4 << 20;

/// Options of `ring3 demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the reports. Created if it is missing.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Do not measure.
    #[arg(long)]
    no_bench: bool,
}

/// Runs the demonstration.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let cache = Cache::open()?;
    let mut parts = vec!["kill", "faults", "fetch", "qtest", "guest", "network"];
    parts.extend((!args.no_bench).then_some("measure"));
    let mut progress = Progress::new(parts, cache.path("logs/demo.times"));
    let mut next = |text: &str| outln!("\n{}", progress.next(text));
    // What the guests need is fetched while the models are driven, which need nothing.
    let fetching = fetch(&cache, &args.kernel)?;
    next("A model of an NVMe disk: 50 drivers are killed under load, and every block is read back");
    models::kill()?;
    next("300 faults in drivers and devices: what does an application lose?");
    models::faults()?;
    next("What the guests need is fetched into a cache; nothing is installed");
    match fetching.join() {
        Ok(fetched) => fetched?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    next("The driver on QEMU's NVMe controller over qtest: no guest, no root, no kernel driver");
    over_qtest()?;
    next(
        "A guest with two identical NVMe disks: one for the kernel's driver, the other claimed \
        through VFIO behind the IOMMU",
    );
    in_guest(args, &cache)?;
    next(
        "A guest with three network cards at one hub: the kernel's, ring3's, and the one that \
        both talk to",
    );
    network(args, &cache)?;
    if !args.no_bench {
        next(
            "Both disks measured with nothing behind them, by two clocks; each ratio (x) is to \
            the kernel's best (*)",
        );
        measure(args)?;
    }
    let report = if args.no_bench {
        String::new()
    } else {
        format!("; the report is in {}", args.out.display())
    };
    outln!("\nring3 demo: all done in {:.0} s{report}", progress.finish().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

/// Fetches what is missing, in a thread of its own.
fn fetch(cache: &Cache, kernel: &str) -> Result<JoinHandle<Result<()>>> {
    let needs =
        [Need::Tools, Need::Network, Need::Kernel(kernel.to_owned()), Need::Tree, Need::Fio];
    let cache = cache.clone();
    let work = move || Ok(prepare(&cache, &needs, &mut |line| outln!("   [{line}]"))?);
    Ok(std::thread::Builder::new().name("ring3-fetch".into()).spawn(work)?)
}

/// Writes the start of the disk with stamps, reads it back in random order and checks it.
fn over_qtest() -> Result<()> {
    let start = Instant::now();
    let disk = open_disk("qtest:nvme,size=64M", 8 << 20, LOAD, Default::default())?;
    let info = disk.info();
    outln!(
        "   {}: {} with {} MiB, blocks of {} bytes",
        disk.name(),
        info.model.trim(),
        info.capacity() >> 20,
        info.block_size
    );
    for (name, requests) in [("seqwrite-64k-qd8", QTEST_BYTES >> 16), ("randread-4k-qd32", 1000)] {
        let workload = name.parse()?;
        let load = Load {
            verify: true,
            region: Some(QTEST_BYTES),
            ..Load::new(workload, Limit::Count(requests))
        };
        let mut target = Direct::open(&*disk, workload.depth, workload.bytes)?;
        let outcome = run_load(&mut target, &load, &mut || {})?;
        outln!(
            "   {name}: {} requests, {} errors, {} mismatches, {:.0} per second",
            outcome.operations,
            outcome.errors,
            outcome.mismatches,
            outcome.iops()
        );
        if outcome.errors + outcome.mismatches > 0 {
            bail!("the disk over qtest did not give back what was written");
        }
    }
    outln!("   done in {:.1} s, QEMU's start included", start.elapsed().as_secs_f64());
    Ok(())
}

fn in_guest(args: &Args, cache: &Cache) -> Result<()> {
    let guest = with_supervisor(with_this_program(Guest::new("demo"))?)?;
    let mut guest = guest.file("/tree.tar.bz2", &cache.path("tree/tree.tar.bz2"));
    guest.kernel = args.kernel.clone();
    guest.memory_mib = 768;
    guest.modules = ["nvme", "ublk_drv", "ext4", "xfs"].map(Into::into).to_vec();
    guest.devices = vec![
        Device::nvme("kernel", DISK, Backing::Memory),
        Device::nvme("ring3", DISK, Backing::Memory).bound("vfio-pci"),
    ];
    guest.time_limit = steps::TIME_LIMIT;
    let guest = steps::STEPS.iter().fold(guest, |guest, (name, script)| {
        guest.step(name, &format!("{NAME}{RING3D}{}{script}", steps::PRELUDE))
    });
    run_guest(&guest, cache)
}

fn network(args: &Args, cache: &Cache) -> Result<()> {
    let guest = with_this_program(Guest::new("demo-network"))?.network_programs(cache);
    run_guest(&network::guest(guest, &args.kernel), cache)
}

fn run_guest(guest: &Guest, cache: &Cache) -> Result<()> {
    let outcome = guest.run(cache, &mut |event| follow(&event))?;
    if !outcome.succeeded() {
        bail!("the guest's job failed with exit code {}: {}", outcome.exit, outcome.messages);
    }
    outln!(
        "   done in {:.0} s on Linux {}, QEMU {}",
        outcome.seconds.1,
        outcome.kernel,
        outcome.qemu
    );
    Ok(())
}

fn follow(event: &Event) {
    match event {
        Event::Step(name) => outln!("   - {name}"),
        Event::Line(line) => outln!("       {line}"),
        Event::Progress(line) => outln!("   {line}"),
        _ => {}
    }
}

/// First by the clock that does not mind what else the host does, then by the one that everybody
/// knows.
fn measure(args: &Args) -> Result<()> {
    for (placement, words) in PLACEMENTS {
        outln!("   {:<18}  {words}", placement.name());
    }
    let plan = |instructions, rounds, millis| Plan {
        study: Study::Loads {
            millis,
            brief: instructions,
            workloads: WORKLOADS.map(str::to_owned).to_vec(),
        },
        rounds,
        // Who polls is charged for its looks, and how many they are is the host's doing.
        placements: PLACEMENTS
            .into_iter()
            .map(|(placement, _)| placement)
            .filter(|&placement| !(instructions && placement == Placement::ProcessPolled))
            .collect(),
        instructions,
        kernel: args.kernel.clone(),
        translated: false,
        controller: Controller::Nvme,
        pace: None,
    };
    let mut campaign = Campaign::new("demo", LOADS, &args.out)?;
    // Ten times slower than the disk, and steady after a few milliseconds.
    let counted = (
        "By a clock that counts the guest's instructions, a nanosecond each: how long the path is",
        plan(true, 1, 30),
    );
    let timed = (
        "By the wall clock: what is left of that under this host's emulation",
        plan(false, 3, 200),
    );
    for (what, plan) in [counted, timed] {
        outln!("\n   {what}");
        campaign.run("demo", &plan, &mut guest::Guest::new(&plan)?)?;
    }
    campaign.finish()
}
