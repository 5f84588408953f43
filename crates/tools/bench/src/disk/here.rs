//! The rounds on this machine.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_device::dma::Region;
use ring3_device::wait::DEFAULT_POLL;

use super::kernel::{KernelDisk, block_facts};
use super::leslie::Gauge;
use super::qemu::{self, Qemu};
use super::{Driver, Event, Export, Placement, Plan, Progress, Study, Tuning};
use crate::cpu::{Soaker, peak_memory, process_time};
use crate::load::{Direct, File, FileOptions, Limit, Load, Passthrough, Target, run};
use crate::measure::{Method, measure};
use crate::report::{Lab, Measurement};
use crate::workload::Workload;
use crate::{Error, fio};

/// How long an idle driver is watched. A supervisor looks each three seconds at a disk that nobody
/// uses: in less, a look counts several times, or not at all.
const IDLE: Duration = Duration::from_secs(6);

/// The same in instructions: an idle guest spins, and a second of it takes its host ten.
const IDLE_INSTRUCTIONS: Duration = Duration::from_millis(100);

/// The load whose first request ends the start-up.
const FIRST: &str = "randread-4k-qd1";

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

/// Memory of so many bytes that is lent to a driver as long as the value beside it lives.
pub type LendMemory<'a> = dyn Fn(usize) -> Result<Lent, Error> + 'a;

/// See [`LendMemory`].
pub type Lent = (Arc<Region>, Box<dyn Any>);

/// What the placements are made of.
pub struct Programs<'a> {
    /// The disk that the kernel drives.
    pub kernel: Option<PathBuf>,
    /// A folder with the modules of its NVMe driver, if that may be loaded anew.
    pub modules: Option<PathBuf>,
    /// The way to the disk in this process.
    pub open: Option<&'a OpenDisk<'a>>,
    /// Arguments of this program that export the disk.
    pub export: Option<Vec<String>>,
    /// The same, and clients may lend it memory.
    pub shared: Option<Vec<String>>,
    /// By which they do.
    pub lend: Option<&'a LendMemory<'a>>,
    /// The same as `export`, with commands for many requests at once.
    pub batch: Option<Vec<String>>,
    /// Both.
    pub shared_batch: Option<Vec<String>>,
    /// The same as `export`, where its process looks for the next request before it sleeps.
    pub export_polled: Option<Vec<String>>,
    /// The same as `export` by VDUSE.
    pub vduse: Option<Vec<String>>,
    /// Arguments that export the disk of a hosted driver.
    pub hosted: Option<Vec<String>>,
    /// A supervisor that has the disk.
    pub supervisor: Option<Supervisor>,
    /// Arguments of this program that export nothing.
    pub null: Option<Vec<String>>,
    /// The same, where its process looks for the next request.
    pub null_polled: Option<Vec<String>>,
    /// The same as `null` by VDUSE.
    pub vduse_null: Option<Vec<String>>,
    /// QEMU's programs with the disk.
    pub qemu: Option<Qemu>,
    /// This program.
    pub program: PathBuf,
    /// If both drive the same device: hands it to ring3 (true) or to the kernel.
    pub hand_over: Option<&'a HandOver<'a>>,
}

/// A supervisor that has the disk.
pub struct Supervisor {
    /// Its program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its link to the block device.
    pub link: PathBuf,
    /// Returns when the next driver waits: until then, its start is in every measurement.
    pub settled: Box<dyn Fn() -> Result<(), Error>>,
}

/// Hands the one device over, and returns when its new owner has it.
pub type HandOver<'a> = dyn Fn(bool) -> Result<(), Error> + 'a;

/// How a placement reaches its disk.
pub(super) enum Way<'a> {
    /// A block device, and its driver's process if it has one of its own.
    Path(&'a Path, Option<u32>),
    /// The block device of an NVMe disk that takes commands past it.
    Passthrough(&'a Path),
    /// A disk of this process.
    Disk(&'a dyn Disk),
    /// A disk of QEMU's own generator.
    Qemu(&'a Qemu),
}

impl Way<'_> {
    /// The driver's process, if it is another one.
    pub(super) fn driver(&self) -> Option<u32> {
        match self {
            Self::Path(_, driver) => *driver,
            Self::Passthrough(_) | Self::Disk(_) | Self::Qemu(_) => None,
        }
    }

    /// Commands past the block layer are for loads alone, and so is what QEMU's own generator does.
    pub(super) fn no_figure() -> Error {
        Error::Invalid(
            "kernel-passthrough and qemu-img are for loads: a figure reads block devices".into(),
        )
    }
}

/// Measures the rounds of `plan` from `first` on (the first is 1), and tells `progress` of every
/// step.
pub fn run_here(
    plan: &Plan,
    first: u32,
    programs: &Programs,
    progress: &mut Progress,
) -> Result<(), Error> {
    let means = Means::of(plan)?;
    let kernel =
        programs.kernel.as_deref().map(|path| KernelDisk::new(path, programs.modules.as_deref()));
    let mut here = Here { plan, programs, kernel, means, progress };
    (here.progress)(&Event::Begin(machine(plan.instructions)));
    for round in first..=plan.rounds {
        // Every other round goes the other way round, so that no placement always follows the same
        // one.
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
            Study::Loads { millis, brief, .. } => {
                let soaker_step = plan.instructions.then(|| Soaker::calibrate(cpus)).transpose()?;
                Self::Loads(Method {
                    time: Duration::from_millis(*millis),
                    latency: !brief,
                    soaker_step,
                    cpus,
                    seed: 1,
                })
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
        quick: false,
    }
}

struct Here<'a> {
    plan: &'a Plan,
    programs: &'a Programs<'a>,
    kernel: Option<KernelDisk>,
    means: Means,
    progress: &'a mut Progress<'a>,
}

impl Here<'_> {
    /// Measures placements that share a driver, while it runs.
    fn turn(&mut self, round: u32, turn: &[Placement]) -> Result<(), Error> {
        let Some(&first) = turn.first() else { return Ok(()) };
        let driver = first.driver();
        if let Some(hand_over) = self.programs.hand_over.filter(|_| !first.is_null()) {
            hand_over(!matches!(driver, Driver::Kernel(_)))?;
        }
        match driver {
            Driver::Kernel(tuning) => self.kernels(round, turn, tuning),
            Driver::Process => self.process(round, first),
            Driver::Export => {
                self.exported_by(round, turn, &self.programs.export, "a device to claim (--device)")
            }
            Driver::Shared => {
                self.exported_by(round, turn, &self.programs.shared, "a device to claim (--device)")
            }
            Driver::Batch => {
                self.exported_by(round, turn, &self.programs.batch, "a device to claim (--device)")
            }
            Driver::SharedBatch => self.exported_by(
                round,
                turn,
                &self.programs.shared_batch,
                "a device to claim (--device)",
            ),
            Driver::ExportPolled => self.exported_by(
                round,
                turn,
                &self.programs.export_polled,
                "a device to claim (--device)",
            ),
            Driver::Vduse => {
                self.exported_by(round, turn, &self.programs.vduse, "a device to claim (--device)")
            }
            Driver::Hosted => {
                self.exported_by(round, turn, &self.programs.hosted, "a device to claim (--device)")
            }
            Driver::Null => self.exported_by(round, turn, &self.programs.null, "the null export"),
            Driver::NullPolled => {
                self.exported_by(round, turn, &self.programs.null_polled, "the null export")
            }
            Driver::VduseNull => {
                self.exported_by(round, turn, &self.programs.vduse_null, "the null export")
            }
            Driver::QemuVduse => {
                let programs = self.programs;
                let qemu = programs.qemu.as_ref().ok_or_else(|| missing(qemu::WANTED))?;
                self.exported(round, turn, || qemu.export(), &|| Ok(()))
            }
            Driver::QemuImg => {
                let programs = self.programs;
                let qemu = programs.qemu.as_ref().ok_or_else(|| missing(qemu::WANTED))?;
                match self.study(round, turn, &Way::Qemu(qemu)) {
                    // It may wait for its device for ever, and what the others show is not to be
                    // lost with it.
                    Err(error) if self.plan.placements.len() > turn.len() => {
                        self.facts(
                            round,
                            turn,
                            &BTreeMap::from([("left out".into(), error.to_string())]),
                        );
                        Ok(())
                    }
                    ended => ended,
                }
            }
            Driver::Supervised => {
                let programs = self.programs;
                let supervisor = programs.supervisor.as_ref();
                let supervisor = supervisor
                    .ok_or_else(|| missing("ring3d beside this program, and a device to claim"))?;
                let start = || {
                    Export::supervised(&supervisor.program, &supervisor.arguments, &supervisor.link)
                };
                self.exported(round, turn, start, &supervisor.settled)
            }
        }
    }

    /// By this program with `arguments`, which are not there if `what` is not.
    fn exported_by(
        &mut self,
        round: u32,
        turn: &[Placement],
        arguments: &Option<Vec<String>>,
        what: &str,
    ) -> Result<(), Error> {
        let arguments = arguments.as_ref().ok_or_else(|| missing(what))?;
        self.exported(round, turn, || Export::start(&self.programs.program, arguments), &|| Ok(()))
    }

    fn kernels(&mut self, round: u32, turn: &[Placement], tuning: Tuning) -> Result<(), Error> {
        let disk = self
            .kernel
            .as_mut()
            .ok_or_else(|| missing("a disk that the kernel drives (--disk)"))?;
        disk.tune(tuning)?;
        let (path, facts) = (disk.path().to_owned(), disk.facts(tuning));
        self.facts(round, turn, &facts);
        let way = if tuning.is_past_the_block_layer() {
            Way::Passthrough(&path)
        } else {
            Way::Path(&path, None)
        };
        self.study(round, turn, &way)
    }

    /// What is so of the placements of a turn.
    fn facts(&mut self, round: u32, turn: &[Placement], facts: &BTreeMap<String, String>) {
        for placement in turn {
            let measured = Measurement {
                facts: facts.clone(),
                ..Measurement::new(round, "driver", placement)
            };
            (self.progress)(&Event::Measured(measured));
        }
    }

    /// All loads by one way under each of `turn`.
    fn study(&mut self, round: u32, turn: &[Placement], way: &Way) -> Result<(), Error> {
        for &placement in turn {
            for load in self.plan.loads() {
                (self.progress)(&Event::Cell { round, workload: load.to_string(), placement });
                let into = Measurement::new(round, load, placement);
                let measured = match (&self.means, &self.plan.study) {
                    (Means::Loads(method), _) => {
                        let memory = memory(self.programs, load, placement)?;
                        loads(way, (load, placement), memory, method, into)?
                    }
                    (Means::Leslie(gauge), Study::Leslie(leslie)) => {
                        let gauge = if placement.is_null() { gauge.without_disk() } else { *gauge };
                        leslie.measure(way, load, gauge, into)?
                    }
                    (_, Study::Timeline(timeline)) => {
                        timeline.measure(way, load, placement, into, self.progress)?
                    }
                    (Means::Work(cpus), Study::Work(work)) => {
                        work.measure(way, load, placement, *cpus, into)?
                    }
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
        let disk = open(match placement {
            Placement::ProcessPolled => Waiting::Polled,
            Placement::Process => Waiting::Interrupt(Duration::ZERO),
            _ => Waiting::Interrupt(DEFAULT_POLL),
        })?;
        first_read(&mut Direct::open(&*disk, 1, 4096)?)?;
        let startup = start.elapsed();
        self.study(round, &[placement], &Way::Disk(&*disk))?;
        self.driver(round, placement, startup, std::process::id(), None);
        Ok(())
    }

    fn exported(
        &mut self,
        round: u32,
        turn: &[Placement],
        start: impl FnOnce() -> Result<Export, Error>,
        settled: &dyn Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let export = start()?;
        first_read(&mut File::open(
            export.device(),
            1,
            4096,
            FileOptions { write: false, direct: true },
        )?)?;
        let startup = began.elapsed();
        settled()?;
        let idle = match self.means {
            Means::Loads(_) if !self.plan.is_brief() => idle_percent(
                export.pid(),
                if self.plan.instructions { IDLE_INSTRUCTIONS } else { IDLE },
            ),
            _ => None,
        };
        self.facts(round, turn, &block_facts(export.device()));
        self.study(round, turn, &Way::Path(export.device(), Some(export.pid())))?;
        // Of a supervised disk, what is said here is said of the supervisor, and of a hosted
        // driver's of the process that uses it.
        let own = turn.iter().copied().find(|placement| !placement.is_fio());
        self.driver(round, own.unwrap_or(Placement::Export), startup, export.pid(), idle);
        Ok(())
    }

    /// What is said of the driver and not of a load.
    fn driver(
        &mut self,
        round: u32,
        placement: Placement,
        startup: Duration,
        pid: u32,
        idle: Option<f64>,
    ) {
        if self.plan.is_brief() {
            return;
        }
        let mut measured = Measurement::new(round, "driver", placement)
            .with("startup_ms", startup.as_secs_f64() * 1e3);
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
fn loads(
    way: &Way,
    (load, placement): (Workload, Placement),
    memory: Option<Lent>,
    method: &Method,
    into: Measurement,
) -> Result<Measurement, Error> {
    match way {
        Way::Path(path, _) if placement.is_fio() => {
            let engine = if placement.is_iopoll() {
                fio::Engine::Polled(path)
            } else {
                fio::Engine::Block(path)
            };
            fio::measure(engine, load, method, into)
        }
        Way::Passthrough(path) if placement.is_fio() => {
            fio::measure(fio::Engine::Passthrough(path), load, method, into)
        }
        Way::Path(path, _) if placement.is_iopoll() => measure(
            &mut File::polled(path, load.depth, load.bytes, load.writes())?,
            load,
            method,
            None,
            into,
        ),
        Way::Path(path, driver) => {
            let options = FileOptions { write: load.writes(), direct: true };
            let mut target = match &memory {
                Some((region, _)) => {
                    File::open_in(region.clone(), path, (load.depth, load.bytes), options)?
                }
                None => File::open(path, load.depth, load.bytes, options)?,
            };
            measure(&mut target, load, method, *driver, into)
        }
        Way::Passthrough(path) => {
            let open = if placement.is_iopoll() { Passthrough::polled } else { Passthrough::open };
            measure(
                &mut open(path, load.depth, load.bytes, load.writes())?,
                load,
                method,
                None,
                into,
            )
        }
        Way::Qemu(qemu) => qemu.measure(load, method, into),
        Way::Disk(disk) => {
            let polled = placement == Placement::ProcessPolled;
            measure(
                &mut Direct::open(*disk, load.depth, load.bytes)?.polling(polled),
                load,
                method,
                None,
                into,
            )
        }
    }
}

/// Where the data of a load's requests lie, if not anywhere.
fn memory(
    programs: &Programs,
    load: Workload,
    placement: Placement,
) -> Result<Option<Lent>, Error> {
    let bytes = File::room(load.depth, load.bytes);
    match placement {
        Placement::ExportShared | Placement::ExportSharedBatch => {
            programs.lend.ok_or_else(|| missing("memory to lend"))?(bytes).map(Some)
        }
        Placement::KernelNoneHuge => {
            let region = Region::new(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
            Ok(Some((Arc::new(region), Box::new(()))))
        }
        _ => Ok(None),
    }
}

fn missing(what: &str) -> Error {
    Error::Invalid(format!("the plan needs {what}"))
}

fn first_read(target: &mut dyn Target) -> Result<(), Error> {
    let workload: Workload =
        FIRST.parse().map_err(|error| Error::format("the first load", error))?;
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
