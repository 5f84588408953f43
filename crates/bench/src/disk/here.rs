//! The rounds on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_device::wait::DEFAULT_POLL;

use super::leslie::Gauge;
use super::{Event, Export, Placement, Plan, Progress, Study};
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

/// How long a load polls before it sleeps, as long as that pays: it has nothing else to do, and a guest without KVM takes some
/// hundred microseconds for what hardware does in ten.
const POLL: Duration = Duration::from_millis(1);

/// How the driver in this process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It looks; there are no interrupts.
    Polled,
    /// By interrupt, after it has looked for at most so long, as long as that pays.
    Interrupt(Duration),
}

/// Claims the device and gives its disk.
pub type OpenDisk<'a> = dyn Fn(Waiting) -> Result<Arc<dyn Disk>, Error> + 'a;

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
    /// If both drive the same device: hands it to ring3 (true) or to the kernel.
    pub hand_over: Option<&'a HandOver<'a>>,
}

/// Hands the one device over, and returns when its new owner has it.
pub type HandOver<'a> = dyn Fn(bool) -> Result<(), Error> + 'a;

/// How a placement reaches its disk.
pub(super) enum Way<'a> {
    /// A block device, and its driver's process if it has one of its own.
    Path(&'a Path, Option<u32>),
    /// A disk of this process.
    Disk(&'a dyn Disk),
}

impl Way<'_> {
    /// The driver's process, if it is another one.
    pub(super) fn driver(&self) -> Option<u32> {
        match self {
            Self::Path(_, driver) => *driver,
            Self::Disk(_) => None,
        }
    }
}

/// Measures the rounds of `plan` from `first` on (the first is 1), and tells `progress` of every step.
pub fn run_here(plan: &Plan, first: u32, programs: &Programs, progress: &mut Progress) -> Result<(), Error> {
    let means = Means::of(plan)?;
    let mut here = Here { plan, programs, means, progress };
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

/// What a study measures with, calibrated once.
enum Means {
    Loads(Method),
    Leslie(Gauge),
    Timeline,
    Work(usize),
}

impl Means {
    fn of(plan: &Plan) -> Result<Self, Error> {
        let cpus = cpus();
        Ok(match &plan.study {
            Study::Loads { millis, .. } => {
                let soaker_step = plan.instructions.then(|| Soaker::calibrate(cpus)).transpose()?;
                Self::Loads(Method { time: Duration::from_millis(*millis), latency: true, soaker_step, cpus, seed: 1 })
            }
            Study::Leslie(_) => Self::Leslie(Gauge::of(plan, cpus)?),
            Study::Timeline(_) => Self::Timeline,
            Study::Work(_) => Self::Work(cpus),
        })
    }
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
        instruction_ns: u32::from(instructions),
        disk: String::new(),
    }
}

struct Here<'a> {
    plan: &'a Plan,
    programs: &'a Programs<'a>,
    means: Means,
    progress: &'a mut Progress<'a>,
}

impl Here<'_> {
    /// Measures placements that share a driver, while it runs.
    fn turn(&mut self, round: u32, turn: &[Placement]) -> Result<(), Error> {
        if let (Some(hand_over), Some(first)) = (self.programs.hand_over, turn.first()) {
            match first {
                Placement::Kernel | Placement::KernelFio => hand_over(false)?,
                Placement::UblkNull => {}
                _ => hand_over(true)?,
            }
        }
        match turn.first() {
            Some(Placement::Kernel | Placement::KernelFio) => {
                let path = self.programs.kernel.as_deref();
                let path = path.ok_or_else(|| missing("a disk that the kernel drives (--disk)"))?.to_owned();
                self.study(round, turn, &Way::Path(&path, None))
            }
            Some(&placement @ (Placement::Process | Placement::ProcessPolled | Placement::ProcessThreads)) => {
                self.process(round, placement)
            }
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

    /// All loads by one way under each of `turn`.
    fn study(&mut self, round: u32, turn: &[Placement], way: &Way) -> Result<(), Error> {
        for &placement in turn {
            for load in self.plan.loads() {
                (self.progress)(&Event::Cell { round, workload: load.to_string(), placement });
                let into = Measurement::new(round, load, placement);
                let measured = match (&self.means, &self.plan.study) {
                    (Means::Loads(method), _) => loads(way, load, placement.is_fio(), method, into)?,
                    (Means::Leslie(gauge), Study::Leslie(leslie)) => {
                        let gauge = if placement == Placement::UblkNull { gauge.without_disk() } else { *gauge };
                        leslie.measure(way, load, gauge, into)?
                    }
                    (_, Study::Timeline(timeline)) => timeline.measure(way, load, placement, into, self.progress)?,
                    (Means::Work(cpus), Study::Work(work)) => work.measure(way, load, placement, *cpus, into)?,
                    (Means::Leslie(_) | Means::Timeline | Means::Work(_), _) => into,
                };
                (self.progress)(&Event::Measured(measured));
            }
        }
        Ok(())
    }

    fn process(&mut self, round: u32, placement: Placement) -> Result<(), Error> {
        let open = self.programs.open.ok_or_else(|| missing("a device to claim (--device)"))?;
        let start = Instant::now();
        let disk = open(match (placement, &self.means) {
            (Placement::ProcessPolled, _) => Waiting::Polled,
            (_, Means::Loads(_)) => Waiting::Interrupt(POLL),
            (_, Means::Leslie(_) | Means::Work(_)) => Waiting::Interrupt(DEFAULT_POLL),
            (_, Means::Timeline) => Waiting::Interrupt(Duration::ZERO),
        })?;
        first_read(&mut Direct::open(&*disk, 1, 4096)?)?;
        let startup = start.elapsed();
        self.study(round, &[placement], &Way::Disk(&*disk))?;
        self.driver(round, placement, startup, std::process::id(), None);
        Ok(())
    }

    fn exported(&mut self, round: u32, turn: &[Placement], arguments: &[String]) -> Result<(), Error> {
        let start = Instant::now();
        let export = Export::start(&self.programs.program, arguments)?;
        first_read(&mut File::open(export.device(), 1, 4096, FileOptions { write: false, direct: true })?)?;
        let startup = start.elapsed();
        let idle = match self.means {
            Means::Loads(_) => idle_percent(export.pid(), if self.plan.instructions { IDLE_INSTRUCTIONS } else { IDLE }),
            Means::Leslie(_) | Means::Timeline | Means::Work(_) => None,
        };
        self.study(round, turn, &Way::Path(export.device(), Some(export.pid())))?;
        let placement = if turn.contains(&Placement::UblkNull) { Placement::UblkNull } else { Placement::Export };
        self.driver(round, placement, startup, export.pid(), idle);
        Ok(())
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
        (self.progress)(&Event::Measured(measured));
    }
}

/// A load for a time, by our generator or by fio.
fn loads(way: &Way, load: Workload, by_fio: bool, method: &Method, into: Measurement) -> Result<Measurement, Error> {
    match way {
        Way::Path(path, _) if by_fio => fio::measure(path, load, method.time, method.seed, into),
        Way::Path(path, driver) => {
            let mut target = File::open(path, load.depth, load.bytes, FileOptions { write: load.writes(), direct: true })?;
            measure(&mut target, load, method, *driver, into)
        }
        Way::Disk(disk) => measure(&mut Direct::open(*disk, load.depth, load.bytes)?, load, method, None, into),
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
