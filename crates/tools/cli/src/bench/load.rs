//! `ring3 blk bench`: one load on one target.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_backend::{Uri, UriError};
use ring3_bench::cpu::{Cost, Meter, peak_memory};
use ring3_bench::disk::machine;
use ring3_bench::load::{
    Direct, File, FileOptions, Limit, Load, Outcome, Streaming, Target, run as run_load,
};
use ring3_bench::report::Report;
use ring3_bench::workload::Workload;
use ring3_broker::region::{Loan, SharedMemory};
use ring3_class::block::Disk;
use ring3_device::dma::{Mode, StreamStats};
use serde::Serialize;

use super::open::{LOAD, open_disk};
use crate::driving::{NvmeLimits, Protection};

/// Options of `ring3 blk bench`.
#[derive(clap::Args)]
pub struct Args {
    /// A device by its URI, which is driven in this process (sim:nvme, vfio:0000:01:00.0,
    /// remote:PATH); or the path of a block device or a file, which is used by io_uring.
    #[arg(long)]
    device: String,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    nvme: NvmeLimits,
    /// The load: (rand|seq)(read|write|rw)-SIZE-qdDEPTH, such as seqwrite-128k-qd8. May be
    /// repeated.
    #[arg(long = "workload", default_value = "randread-4k-qd1")]
    workloads: Vec<Workload>,
    /// Seconds of each load.
    #[arg(long, default_value_t = 2.0, value_parser = seconds, conflicts_with = "count")]
    seconds: f64,
    /// Requests of each load, instead of --seconds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Use only this many MiB from the start of the disk.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    region: Option<u64>,
    /// Seed of the random offsets. The same seed gives the same offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also measure the latency of each request. This reads the clock once per turn of the loop.
    #[arg(long)]
    latency: bool,
    /// Write blocks with stamps, and check what is read. Blocks that were not written with the same
    /// --seed count as wrong.
    #[arg(long)]
    verify: bool,
    /// Use the page cache instead of O_DIRECT, for files on a file system without direct access.
    #[arg(long)]
    buffered: bool,
    /// Share the memory of the data with the process that exports the block device, at its socket
    /// (ring3 run --share). Then nothing is copied.
    #[arg(long, value_name = "SOCKET", conflicts_with = "buffered")]
    shared: Option<PathBuf>,
    /// Allow loads that write. They destroy the content of the disk.
    #[arg(long)]
    overwrite: bool,
    /// Where the data lie, and how the device reaches them.
    #[arg(long, value_enum, default_value = "arena")]
    dma: Dma,
    /// With --dma zero-copy, lent or copy: pieces of each request that are not contiguous, from 1
    /// to 1024, and at most one per page.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    fragments: u16,
    /// With --dma zero-copy, lent or copy: number of buffers that are used by turns, from 1 to
    /// 4096. Default: one per request in flight.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    allocations: Option<u16>,
    /// With --dma zero-copy: size of the cache of DMA mappings, from 1 to 4096.
    #[arg(
        long, value_name = "N", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    mappings: u16,
    /// Print one JSON object for each load.
    #[arg(long)]
    json: bool,
}

/// Where the data of requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dma {
    /// In the DMA arena, which is mapped when the device is opened.
    Arena,
    /// In ordinary memory, mapped for the device at its first use and kept mapped.
    ZeroCopy,
    /// In one region of shared memory that is registered with the disk first; works with remote:
    /// too.
    Lent,
    /// In ordinary memory, copied through the DMA arena.
    Copy,
}

/// A number of seconds that makes sense.
fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if (0.001..=86_400.0).contains(&value) {
        Ok(value)
    } else {
        Err("it must be from 0.001 to 86400".into())
    }
}

/// What is printed of one load.
#[derive(Serialize)]
struct Line {
    device: String,
    workload: String,
    operations: u64,
    errors: u64,
    mismatches: u64,
    seconds: f64,
    iops: f64,
    mib_s: f64,
    latency_us_p50: Option<f64>,
    latency_us_p99: Option<f64>,
    cpu_percent: f64,
    cpu_us_per_op: f64,
    switches_per_op: f64,
    peak_memory_mib: Option<f64>,
    /// Sleeps in this process, and those of them that only their deadline of 100 ms ended though
    /// the device was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    sleeps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts_lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts_late: Option<u64>,
    /// What of memory outside of the arena was mapped and copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    streams: Option<StreamStats>,
}

/// Runs the loads one after the other. Fails if any request did, or if what was read was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    super::begin();
    if let Some(workload) =
        args.workloads.iter().find(|workload| workload.writes() && !args.overwrite)
    {
        bail!(
            "{workload} would destroy what is on {}: say --overwrite if that is meant",
            args.device
        );
    }
    let path = is_path(&args.device);
    if path && args.dma != Dma::Arena {
        bail!(
            "{} is driven by the kernel, which maps what it is given: --dma is for a device named \
            by its URI",
            args.device
        );
    }
    if !path && args.shared.is_some() {
        bail!(
            "--shared is for the block device of an export (/dev/ublkbN): a disk of this process \
            needs no copy as it is"
        );
    }
    let room =
        args.workloads.iter().map(|load| File::room(load.depth, load.bytes)).max().unwrap_or(0);
    // Lent as long as the loads last.
    let lent = args.shared.as_deref().map(|socket| register_memory(socket, room)).transpose()?;
    let disk = (!path)
        .then(|| {
            open_disk(&args.device, buffers(&args.workloads), LOAD, (args.protection, args.nvme))
        })
        .transpose()?;
    let mut bad = 0;
    for &workload in &args.workloads {
        let mut target: Box<dyn Target> = match &disk {
            Some(disk) => Box::new(open_direct(&**disk, workload, args)?),
            None => open_file(
                Path::new(&args.device),
                workload,
                lent.as_ref().map(|(memory, _)| memory),
                args,
            )?,
        };
        let (outcome, cost) = measure(&mut *target, workload, args)?;
        bad += outcome.errors + outcome.mismatches;
        let streams = target.stream_stats().filter(|_| args.dma != Dma::Arena);
        let waits = target.wait_stats();
        let (sleeps, lost, late) =
            (waits.map(|w| w.slept), waits.map(|w| w.lost), waits.map(|w| w.late));
        let line = line(args, workload, &outcome, &cost);
        print(
            &Line { streams, sleeps, interrupts_lost: lost, interrupts_late: late, ..line },
            args.json,
        )?;
    }
    Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether `device` is a path, which has a slash: the options of a device's name may have one, too.
fn is_path(device: &str) -> bool {
    device.contains('/') && matches!(device.parse::<Uri>(), Err(UriError::Scheme(_)))
}

/// Bytes of the largest load's buffers, and as much again for queues and page lists.
pub fn buffers(workloads: &[Workload]) -> usize {
    let largest = workloads
        .iter()
        .map(|load| usize::from(load.depth) * load.bytes.max(4096) as usize)
        .max()
        .unwrap_or(0);
    2 * largest + (2 << 20)
}

fn open_direct(disk: &dyn Disk, workload: Workload, args: &Args) -> Result<Direct> {
    let mode = match args.dma {
        Dma::Arena => return Ok(Direct::open(disk, workload.depth, workload.bytes)?),
        Dma::Lent => {
            let (depth, bytes) = (workload.depth, workload.bytes);
            let len = usize::from(depth) * bytes.next_multiple_of(4096) as usize;
            let lend = |memory: &SharedMemory| {
                anyhow::Ok(Direct::lent(disk, depth, bytes, memory.region().clone())?)
            };
            return Ok(SharedMemory::taken(len, lend)?.1);
        }
        Dma::ZeroCopy => Mode::ZeroCopy,
        Dma::Copy => Mode::Copy,
    };
    let streaming = Streaming {
        mode,
        allocations: args.allocations.unwrap_or(workload.depth).into(),
        fragments: args.fragments.into(),
        mappings: args.mappings.into(),
    };
    Ok(Direct::streaming(disk, workload.depth, workload.bytes, streaming)?)
}

fn register_memory(socket: &Path, bytes: usize) -> Result<(SharedMemory, Loan)> {
    Ok(SharedMemory::taken(bytes, |memory| memory.register(socket))?)
}

fn open_file(
    path: &Path,
    workload: Workload,
    lent: Option<&SharedMemory>,
    args: &Args,
) -> Result<Box<dyn Target>> {
    let options = FileOptions { write: workload.writes(), direct: !args.buffered };
    if let Some(memory) = lent {
        return Ok(Box::new(File::open_in(
            memory.region().clone(),
            path,
            (workload.depth, workload.bytes),
            options,
        )?));
    }
    Ok(Box::new(File::open(&PathBuf::from(path), workload.depth, workload.bytes, options)?))
}

fn measure(target: &mut dyn Target, workload: Workload, args: &Args) -> Result<(Outcome, Cost)> {
    let limit = args.count.map_or(Limit::Time(Duration::from_secs_f64(args.seconds)), Limit::Count);
    let region = args.region.map(|mib| mib << 20);
    let load = Load {
        workload,
        limit,
        region,
        seed: args.seed,
        latency: args.latency,
        verify: args.verify,
    };
    let (meter, mut cost) = (Meter::start(None), Cost::default());
    let outcome = run_load(target, &load, &mut || cost = meter.read())?;
    Ok((outcome, cost))
}

fn line(args: &Args, workload: Workload, outcome: &Outcome, cost: &Cost) -> Line {
    let (operations, cpu) = (outcome.operations.max(1) as f64, cost.process.as_secs_f64());
    Line {
        device: args.device.clone(),
        workload: workload.to_string(),
        operations: outcome.operations,
        errors: outcome.errors,
        mismatches: outcome.mismatches,
        seconds: outcome.elapsed.as_secs_f64(),
        iops: outcome.iops(),
        mib_s: outcome.iops() * f64::from(workload.bytes) / f64::from(1 << 20),
        latency_us_p50: outcome.latency.map(|latency| latency.p50),
        latency_us_p99: outcome.latency.map(|latency| latency.p99),
        cpu_percent: 100.0 * cpu / cost.elapsed.as_secs_f64().max(1e-9),
        cpu_us_per_op: cpu * 1e6 / operations,
        switches_per_op: cost.switches as f64 / operations,
        peak_memory_mib: peak_memory(std::process::id())
            .map(|bytes| bytes as f64 / f64::from(1 << 20)),
        sleeps: None,
        interrupts_lost: None,
        interrupts_late: None,
        streams: None,
    }
}

fn print(line: &Line, json: bool) -> Result<()> {
    if json {
        let whose = (&line.workload[..], &line.device[..]);
        let report = Report::of("blk", machine(false), whose, line)?;
        outln!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let latency = match (line.latency_us_p50, line.latency_us_p99) {
        (Some(p50), Some(p99)) => format!(", latency p50 {p50:.1} us, p99 {p99:.1} us"),
        _ => String::new(),
    };
    outln!(
        "{}: {:.0} IOPS, {:.1} MiB/s{latency}, {:.2} us CPU per request ({} requests in {:.2} s, \
        {} errors, {} mismatches)",
        line.workload,
        line.iops,
        line.mib_s,
        line.cpu_us_per_op,
        line.operations,
        line.seconds,
        line.errors,
        line.mismatches
    );
    if let (Some(lost), Some(late)) = (line.interrupts_lost, line.interrupts_late)
        && lost + late > 0
    {
        outln!("  interrupts: {lost} lost, {late} too late: sleeps that took 100 ms for nothing");
    }
    if let Some(streams) = &line.streams {
        outln!(
            "  foreign memory: {} requests mapped in {} segments ({} hits, {} misses, {} \
            evictions, {} MiB mapped), {} copied ({} MiB; {} misfits, {} unmappable)",
            streams.mapped,
            streams.segments,
            streams.hits,
            streams.misses,
            streams.evictions,
            streams.mapped_bytes >> 20,
            streams.copied,
            streams.copied_bytes >> 20,
            streams.misfits,
            streams.unmappable
        );
    }
    Ok(())
}
