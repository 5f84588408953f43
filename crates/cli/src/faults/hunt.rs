//! Thousands of devices that lie, each to a driver in this process: who panics, who hangs, who says that wrong data are right.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ring3_backend::Uri;
use ring3_faults::{Kind, Model, Spec, rules};

use super::lone::{self, Load};

/// Requests of each.
pub const REQUESTS: u64 = 96;
/// Accesses and commands among which the first that goes wrong lies, of one in two; of the others it is among those of the start.
const SPREAD: u64 = 400;
const START: u64 = 60;
/// A driver without an end for so long is left; its own time-outs are longer, and are tested elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);
/// Kinds that are a device's doing.
const KINDS: [Kind; 3] = [Kind::Registers, Kind::Dma, Kind::Device];

/// Options of `ring3 faults hunt`.
#[derive(clap::Args)]
pub struct Args {
    /// Devices.
    #[arg(long, default_value_t = 5000)]
    count: u64,
    /// Each follows from this number and its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// This kind only: registers, dma or device.
    #[arg(long)]
    only: Option<Kind>,
    /// Drivers at the same time: most of them wait.
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
    let option = rules::option(&spec, spread).context("only registers, dma and device are a device's doing")?;
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
        Model::Ide => {
            &["sim:ide", "sim:ide,chip=cmd646", "sim:ide,chip=piix3,disks=2", "sim:ide,dma=off", "sim:ide,lba48=off,multiple=1"]
        }
    };
    let text = format!("{},size=4M", shapes[(spec.word(9) % shapes.len() as u64) as usize]);
    Ok((spec, format!("{text},{option}").parse()?))
}

/// Hunts; no success if a driver has panicked.
pub fn run(args: &Args) -> Result<ExitCode> {
    ensure!((1..=256).contains(&args.jobs), "--jobs is from 1 to 256");
    let (next, seen) = (AtomicU64::new(0), Mutex::new(BTreeMap::<(Kind, &str), u64>::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= args.count {
                        return;
                    }
                    let Ok((spec, uri)) = device(args.seed, index, args.only) else { return };
                    let what = meet(&spec, &uri);
                    *seen.lock().unwrap_or_else(PoisonError::into_inner).entry((spec.kind, what)).or_default() += 1;
                }
            });
        }
    });
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    seen.iter().for_each(|((kind, what), count)| outln!("{kind:<12} {what:<10} {count:>8}"));
    let panics: u64 = seen.iter().filter(|((_, what), _)| *what == "panic").map(|(_, count)| count).sum();
    Ok(if panics == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a driver makes of it.
fn meet(spec: &Spec, uri: &Uri) -> &'static str {
    match catch_unwind(AssertUnwindSafe(|| {
        lone::drive(uri, &Load { seed: spec.random, requests: REQUESTS, wide: true, patience: PATIENCE })
    })) {
        Err(_) => {
            errln!("panic: {}:{} {uri} --wide --seed {}", spec.seed, spec.index, spec.random);
            "panic"
        }
        Ok(Ok(lone::Ends { wrong: 0, failed: 0, .. })) => "nothing",
        Ok(Ok(lone::Ends { wrong: 0, .. })) => "error",
        Ok(Ok(_)) => {
            if spec.kind != Kind::Dma {
                errln!("wrong: {}:{} {uri} --wide --seed {}", spec.seed, spec.index, spec.random);
            }
            "stamp"
        }
        Ok(Err(error)) if format!("{error:#}").contains("no request has ended") => "progress",
        Ok(Err(_)) => "exit",
    }
}

/// Records a driver of the device that does fault `index`, alone and in a process of its own, since it may crash.
pub fn record(seed: u64, index: u64, only: Option<Kind>, file: &Path) -> Result<ExitCode> {
    let (spec, uri) = device(seed, index, only)?;
    let program = std::env::current_exe().context("finding this program")?;
    let (random, requests) = (spec.random.to_string(), REQUESTS.to_string());
    let mut command = Command::new(program);
    command.args(["record", "--output"]).arg(file);
    command.args(["--", "faults", "lone", "--wide", "--seed", &random, "--requests", &requests, "--device", &uri.to_string()]);
    outln!("{spec}: {uri}");
    let status = command.status().context("starting the driver that is recorded")?;
    outln!("its driver: {status}; ring3 replay {} goes through it again", file.display());
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
