//! The rounds on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;

use super::{Event, Export, Placement, Plan, Progress};
use crate::cpu::{Soaker, peak_memory, process_time};
use crate::load::{Direct, File, FileOptions, Limit, Load, Target, run};
use crate::measure::{Method, measure};
use crate::report::{Lab, Measurement};
use crate::workload::Workload;
use crate::{Error, fio};

/// How long an idle driver is watched.
const IDLE: Duration = Duration::from_secs(1);

/// The same in instructions: an idle guest spins, and a second of it takes its host ten.
const IDLE_INSTRUCTIONS: Duration = Duration::from_millis(100);

/// The load whose first request ends the start-up.
const FIRST: &str = "randread-4k-qd1";

/// Claims the device and gives its disk.
pub type OpenDisk<'a> = dyn Fn() -> Result<Arc<dyn Disk>, Error> + 'a;

/// What the placements are made of.
pub struct Programs<'a> {
    /// The disk that the kernel drives.
    pub kernel: Option<PathBuf>,
    /// The way to the disk in this process.
    pub open: Option<&'a OpenDisk<'a>>,
    /// Arguments of this program that export the disk.
    pub export: Option<Vec<String>>,
    /// Arguments of this program that export nothing.
    pub null: Option<Vec<String>>,
    /// This program.
    pub program: PathBuf,
}

/// Measures the rounds of `plan` from `first` on (the first is 1), and tells `progress` of every step.
pub fn run_here(plan: &Plan, first: u32, programs: &Programs, progress: &mut Progress) -> Result<(), Error> {
    let mut here = Here { plan, programs, method: method(plan)?, progress };
    (here.progress)(&Event::Begin(machine(plan.instructions)));
    for round in first..=plan.rounds {
        // Every other round goes the other way round, so that no placement always follows the same one.
        let mut placements = plan.placements.clone();
        if round % 2 == 0 {
            placements.reverse();
        }
        let mut turns = placements.chunk_by(|a, b| a.shares_driver_with(*b));
        turns.try_for_each(|turn| here.turn(round, turn))?;
        (here.progress)(&Event::Round { round });
    }
    Ok(())
}

impl Placement {
    /// Whether the driver goes on running from one to the other.
    fn shares_driver_with(self, other: Self) -> bool {
        let driver = |placement| match placement {
            Self::KernelFio => Self::Kernel,
            Self::ExportFio => Self::Export,
            other => other,
        };
        driver(self) == driver(other)
    }
}

fn method(plan: &Plan) -> Result<Method, Error> {
    let cpus = cpus();
    let soaker_step = plan.instructions.then(|| Soaker::calibrate(cpus)).transpose()?;
    Ok(Method { time: plan.time(), latency: true, soaker_step, cpus, seed: 1 })
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// This machine, measured by its clock or by counting instructions.
pub fn machine(instructions: bool) -> Lab {
    Lab {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        qemu: "none".into(),
        mode: if instructions { "instructions" } else { "wall" }.into(),
        vcpus: cpus() as u32,
    }
}

struct Here<'a> {
    plan: &'a Plan,
    programs: &'a Programs<'a>,
    method: Method,
    progress: &'a mut Progress<'a>,
}

impl Here<'_> {
    /// Measures placements that share a driver, while it runs.
    fn turn(&mut self, round: u32, turn: &[Placement]) -> Result<(), Error> {
        match turn.first() {
            Some(Placement::Kernel | Placement::KernelFio) => {
                let path = self.programs.kernel.as_deref();
                let path = path.ok_or_else(|| missing("a disk that the kernel drives (--disk)"))?.to_owned();
                self.files(round, turn, &path, None)
            }
            Some(Placement::Process) => self.process(round),
            Some(Placement::Export | Placement::ExportFio) => {
                let arguments = self.programs.export.clone().ok_or_else(|| missing("a device to claim (--device)"))?;
                self.exported(round, turn, &arguments)
            }
            Some(Placement::UblkNull) => {
                let arguments = self.programs.null.clone().ok_or_else(|| missing("the null export"))?;
                self.exported(round, turn, &arguments)
            }
            None => Ok(()),
        }
    }

    /// All loads on a block device under each of `turn`.
    fn files(&mut self, round: u32, turn: &[Placement], path: &Path, driver: Option<u32>) -> Result<(), Error> {
        for &placement in turn {
            for workload in self.plan.loads() {
                let into = self.begin(round, workload, placement);
                let measured = match placement.is_fio() {
                    true => fio::measure(path, workload, self.method.time, self.method.seed, into)?,
                    false => {
                        let options = FileOptions { write: workload.writes(), direct: true };
                        let mut target = File::open(path, workload.depth, workload.bytes, options)?;
                        measure(&mut target, workload, &self.method, driver, into)?
                    }
                };
                self.end(measured);
            }
        }
        Ok(())
    }

    fn process(&mut self, round: u32) -> Result<(), Error> {
        let open = self.programs.open.ok_or_else(|| missing("a device to claim (--device)"))?;
        let start = Instant::now();
        let disk = open()?;
        first_read(&mut Direct::open(&*disk, 1, 4096)?)?;
        let startup = start.elapsed();
        for workload in self.plan.loads() {
            let into = self.begin(round, workload, Placement::Process);
            let mut target = Direct::open(&*disk, workload.depth, workload.bytes)?;
            let measured = measure(&mut target, workload, &self.method, None, into)?;
            self.end(measured);
        }
        self.driver(round, Placement::Process, startup, std::process::id(), None);
        Ok(())
    }

    fn exported(&mut self, round: u32, turn: &[Placement], arguments: &[String]) -> Result<(), Error> {
        let start = Instant::now();
        let export = Export::start(&self.programs.program, arguments)?;
        first_read(&mut File::open(export.device(), 1, 4096, FileOptions { write: false, direct: true })?)?;
        let startup = start.elapsed();
        let idle = idle_percent(export.pid(), if self.plan.instructions { IDLE_INSTRUCTIONS } else { IDLE });
        self.files(round, turn, export.device(), Some(export.pid()))?;
        let placement = if turn.contains(&Placement::UblkNull) { Placement::UblkNull } else { Placement::Export };
        self.driver(round, placement, startup, export.pid(), idle);
        Ok(())
    }

    fn begin(&mut self, round: u32, workload: Workload, placement: Placement) -> Measurement {
        (self.progress)(&Event::Cell { round, workload: workload.to_string(), placement });
        Measurement::new(round, workload, placement)
    }

    fn end(&mut self, measured: Measurement) {
        (self.progress)(&Event::Measured(measured));
    }

    /// What is said of the driver and not of a load.
    fn driver(&mut self, round: u32, placement: Placement, startup: Duration, pid: u32, idle: Option<f64>) {
        let mut measured = Measurement::new(round, "driver", placement).with("startup_ms", startup.as_secs_f64() * 1e3);
        if let Some(bytes) = peak_memory(pid) {
            measured = measured.with("driver_peak_mib", bytes as f64 / f64::from(1 << 20));
        }
        if let Some(idle) = idle {
            measured = measured.with("driver_idle_cpu_percent", idle);
        }
        self.end(measured);
    }
}

fn missing(what: &str) -> Error {
    Error::Invalid(format!("the plan needs {what}"))
}

fn first_read(target: &mut dyn Target) -> Result<(), Error> {
    let workload: Workload = FIRST.parse().map_err(|error| Error::format("the first load", error))?;
    let outcome = run(target, &Load::new(workload, Limit::Count(1)), &mut || {})?;
    match outcome.errors {
        0 => Ok(()),
        _ => Err(Error::Invalid("the first read failed".into())),
    }
}

/// Processor time of an idle driver, in percent of one processor.
fn idle_percent(pid: u32, time: Duration) -> Option<f64> {
    // What the start left to do is done before the watch begins.
    std::thread::sleep(time / 5);
    let (before, start) = (process_time(pid)?, Instant::now());
    std::thread::sleep(time);
    let spent = process_time(pid)?.saturating_sub(before);
    Some(100.0 * spent.as_secs_f64() / start.elapsed().as_secs_f64())
}
