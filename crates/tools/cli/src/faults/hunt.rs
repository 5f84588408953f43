//! Thousands of devices that lie, each to a driver in this process, and of drivers that were left
//! damaged state: who panics, who hangs, who says that wrong data are right.

pub mod saved;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ring3_backend::Uri;
use ring3_bench::table::Table;
use ring3_faults::{Kind, Model, Spec, rules};

use super::lone::{self, Load};

/// Requests of each.
pub const REQUESTS: u64 = 96;
/// Accesses and commands among which the first that goes wrong lies, of one in two; of the others
/// it is among those of the start.
const SPREAD: u64 = 400;
const START: u64 = 60;
/// A driver without an end for so long is left; its own time-outs are longer, and are tested
/// elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);
/// A life that takes so long is said. The longest time-out that a driver has by itself is 30 s, and
/// it tries again.
const LONG: Duration = Duration::from_secs(20);
/// A life that takes so long does not end any more.
const ENDLESS: Duration = Duration::from_secs(600);
/// Kinds that are a device's doing.
const KINDS: [Kind; 3] = [Kind::Registers, Kind::Dma, Kind::Device];

/// What is hunted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bait {
    /// A fault of a device.
    Device(Kind),
    /// What the last driver has left is damaged.
    Saved,
    /// What the last driver has recorded, which was killed, is damaged.
    Killed,
}

impl FromStr for Bait {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(kind) if KINDS.contains(&kind) => Ok(Self::Device(kind)),
            _ if text == "saved" => Ok(Self::Saved),
            _ if text == "killed" => Ok(Self::Killed),
            _ => Err("registers, dma, device, saved or killed".into()),
        }
    }
}

/// Options of `ring3 faults hunt`.
#[derive(clap::Args)]
pub struct Args {
    /// Number of simulated devices.
    #[arg(long, default_value_t = 5000)]
    count: u64,
    /// Seed. The behaviour of each device depends on the seed and its own number alone.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One kind only: registers, dma, device, saved (damaged state of a driver that handed its
    /// device over) or killed (damaged record of a killed driver, from which the next one adopts
    /// the device). Default: registers, dma and device by turns.
    #[arg(long)]
    only: Option<Bait>,
    /// Drivers at the same time, from 1 to 256. Most of them wait.
    #[arg(long, default_value_t = 16)]
    jobs: usize,
}

/// The device that fault `index` of the hunt with `seed` is done by.
pub fn device(seed: u64, index: u64, only: Option<Kind>) -> Result<(Spec, Uri)> {
    // As the campaign has it, if that is a fault of a device.
    let drawn = Spec::of(seed, index, only).kind;
    let kind = Some(drawn)
        .filter(|kind| only.is_some() || KINDS.contains(kind))
        .unwrap_or(KINDS[(Spec::of(seed, index, Some(Kind::Dma)).word(7) % 3) as usize]);
    let spec = Spec::of(seed, index, Some(kind));
    let spread = if spec.word(8).is_multiple_of(2) { START } else { SPREAD };
    let option = rules::option(&spec, spread)
        .context("only registers, dma and device are a device's doing")?;
    Ok((spec, shape(&spec, &format!(",{option}")).parse()?))
}

/// The device of `spec`, one of twenty, with `options`.
fn shape(spec: &Spec, options: &str) -> String {
    let shapes: &[&str] = match spec.model {
        Model::Nvme => &[
            "sim:nvme",
            "sim:nvme,block=4096,namespaces=3",
            "sim:nvme,vectors=0,stride=2",
            "sim:nvme,mdts=1,entries=16",
            "sim:nvme,mpsmin=1,cache=off",
        ],
        Model::Ahci => &[
            "sim:ahci,ports=1",
            "sim:ahci,ports=4,disks=2",
            "sim:ahci,ports=1,ncq=off",
            "sim:ahci,ports=1,msi=off,lba48=off",
            "sim:ahci,ports=1,block=4096,depth=12",
        ],
        Model::Ide => &[
            "sim:ide",
            "sim:ide,chip=cmd646",
            "sim:ide,chip=piix3,disks=2",
            "sim:ide,dma=off",
            "sim:ide,lba48=off,multiple=1",
        ],
        Model::Virtio => &[
            "sim:virtio-blk",
            "sim:virtio-blk,packed=on",
            "sim:virtio-blk,structures=apart,vectors=0,packed=on",
            "sim:virtio-blk,indirect=off,segments=4,entries=32",
            "sim:virtio-blk,block=4096,queues=1,vectors=1",
        ],
    };
    format!("{},size=4M{options}", shapes[(spec.word(9) % shapes.len() as u64) as usize])
}

/// What was seen so far, of each kind and end: how often, and the longest life.
type Seen = Mutex<BTreeMap<(&'static str, &'static str), (u64, Duration)>>;

/// What each thread is at, and since when.
type Lanes = Vec<Mutex<Option<(Instant, String)>>>;

/// Hunts; no success if a driver has panicked or does not end.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!((1..=256).contains(&args.jobs), "--jobs is from 1 to 256");
    let (next, seen) = (AtomicU64::new(0), Seen::default());
    let lanes: Lanes = (0..args.jobs).map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            lanes.iter().map(|lane| scope.spawn(|| hunt(args, &next, lane, &seen))).collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if let Some(life) = lanes.iter().find_map(endless) {
                errln!("hang: {life}");
                // Nothing ends its thread.
                std::process::exit(1);
            }
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut table = Table::new("kind", ["", "lives", "longest, s"]).left(&[1]);
    for ((kind, what), (count, longest)) in &seen {
        let longest = format!("{:.1}", longest.as_secs_f64());
        table.line(kind, [(*what).to_string(), count.to_string(), longest]);
    }
    crate::output::write(format_args!("{}", table.text()));
    let panics: u64 =
        seen.iter().filter(|((_, what), _)| *what == "panic").map(|(_, (count, _))| count).sum();
    Ok(if panics == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn endless(lane: &Mutex<Option<(Instant, String)>>) -> Option<String> {
    let life = lane.lock().unwrap_or_else(PoisonError::into_inner);
    life.as_ref().filter(|(since, _)| since.elapsed() > ENDLESS).map(|(_, life)| life.clone())
}

/// One thread's lives.
fn hunt(args: &Args, next: &AtomicU64, lane: &Mutex<Option<(Instant, String)>>, seen: &Seen) {
    let set = |life| *lane.lock().unwrap_or_else(PoisonError::into_inner) = life;
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= args.count {
            return;
        }
        let Ok((kind, spec, uri)) = quarry(args, index) else { return };
        let (began, name) = (
            Instant::now(),
            format!("{kind} {}:{} {uri} --wide --seed {}", spec.seed, spec.index, spec.random),
        );
        set(Some((began, name.clone())));
        let what = meet(kind, &spec, &uri, &name);
        set(None);
        let took = began.elapsed();
        if took > LONG {
            errln!("long: {:.1} s: {name}", took.as_secs_f64());
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, longest) = seen.entry((kind, what)).or_default();
        (*count, *longest) = (*count + 1, took.max(*longest));
    }
}

/// What the driver of life `index` meets.
fn quarry(args: &Args, index: u64) -> Result<(&'static str, Spec, Uri)> {
    match args.only {
        Some(bait @ (Bait::Saved | Bait::Killed)) => {
            let spec = saved::spec(args.seed, index);
            Ok((
                if bait == Bait::Saved { "saved" } else { "killed" },
                spec,
                shape(&spec, "").parse()?,
            ))
        }
        Some(Bait::Device(kind)) => {
            device(args.seed, index, Some(kind)).map(|(spec, uri)| (kind.name(), spec, uri))
        }
        None => device(args.seed, index, None).map(|(spec, uri)| (spec.kind.name(), spec, uri)),
    }
}

/// What a driver makes of it.
fn meet(kind: &str, spec: &Spec, uri: &Uri, name: &str) -> &'static str {
    let load = Load { seed: spec.random, requests: REQUESTS, wide: true, patience: PATIENCE };
    let ran = catch_unwind(AssertUnwindSafe(|| match kind {
        "saved" => saved::drive(spec, uri, &load),
        "killed" => saved::adopt(spec, uri, &load),
        _ => lone::drive(uri, &load),
    }));
    match ran {
        Err(_) => {
            errln!("panic: {name}");
            "panic"
        }
        Ok(Ok(lone::Ends { wrong: 0, failed: 0, .. })) => "nothing",
        Ok(Ok(lone::Ends { wrong: 0, .. })) => "error",
        Ok(Ok(_)) => {
            // Whoever is told of other requests than were made does those.
            if !["dma", "saved", "killed"].contains(&kind) {
                errln!("wrong: {name}");
            }
            "stamp"
        }
        Ok(Err(error)) if format!("{error:#}").contains("no request has ended") => "progress",
        Ok(Err(error)) => {
            tracing::debug!("{name}: {error:#}");
            "exit"
        }
    }
}

/// Records a driver of the device that does fault `index`, alone and in a process of its own, since
/// it may crash.
pub fn record(seed: u64, index: u64, only: Option<Kind>, file: &Path) -> Result<ExitCode> {
    let (spec, uri) = device(seed, index, only)?;
    let program = std::env::current_exe().context("finding this program")?;
    let (random, requests) = (spec.random.to_string(), REQUESTS.to_string());
    let mut command = Command::new(program);
    command.args(["record", "--output"]).arg(file);
    command.args([
        "--",
        "faults",
        "lone",
        "--wide",
        "--seed",
        &random,
        "--requests",
        &requests,
        "--device",
        &uri.to_string(),
    ]);
    outln!("{spec}: {uri}");
    let status = command.status().context("starting the driver that is recorded")?;
    outln!("its driver: {status}; ring3 replay {} goes through it again", file.display());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
