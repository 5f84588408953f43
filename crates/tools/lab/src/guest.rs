//! A guest: everything that one run needs, said in one place.

use crate::cache::Cache;
use crate::device::Device;
use crate::disk::Backing;
use crate::error::Error;
use crate::folder::Folder;
use crate::initramfs;
use crate::job::{self, Job};
use crate::kernel::{DEFAULT_KERNEL, Kernel};
use crate::limits;
use crate::machine::{Iommu, Machine};
use crate::outcome::{BEFORE, Event, Outcome};
use crate::qemu::{Qemu, Start};
use crate::session::{LOST_TIMER, Run, Session};
use crate::setup::{ARM64, Need, prepare};
use crate::snapshot::{self, Snapshot};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What QEMU says when it stumbles over its memory map, with SIGABRT.
const LOST_MAP: &str = "iotlb_to_section";
/// What a kernel says that hits the breakpoint by which it patches its own code, after it has
/// ended that patch. QEMU gives the processor the old code once more.
const PATCHED: &str = "Oops: int3";
/// What [`LOST_TIMER`] comes to.
const STOOD_STILL: &str = "QEMU lost a processor's timer and the guest stood still";
/// How often a guest is run again whose emulator has failed.
const RETRIES: u32 = 3;

/// The guest's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Real time, two processors on threads of their own.
    #[default]
    Wall,
    /// Instruction time: one processor (of more, if there are, one runs at a time), one instruction
    /// is one nanosecond, runs repeat to about 1 %.
    Instructions,
}

/// How a guest comes to its job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Boot {
    /// By booting, about 2 s.
    #[default]
    Plain,
    /// From a snapshot of the booted machine, taken at the first time, with its devices plugged in:
    /// about 0.5 s. For the wall clock, and up to four devices without namespaces, sound or an
    /// address of their own.
    Snapshot,
}

/// One command of a job.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What it is for, in a few words.
    pub name: String,
    /// Shell script. The rest of the job is left out when it fails.
    pub run: String,
    /// Text that must appear in its output.
    #[serde(default)]
    pub expect: Vec<String>,
    /// Seconds by the guest's clock after which it is killed.
    pub time_limit: Option<u32>,
}

/// A guest to be booted. Fields may be set one by one; the methods read better in tests.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Name of the run, for logs.
    pub name: String,
    /// Kernel by version prefix.
    pub kernel: String,
    /// The clock.
    pub mode: Mode,
    /// Where it begins.
    pub boot: Boot,
    /// Machine model.
    pub machine: Machine,
    /// IOMMU; the machine's usual one when not said.
    pub iommu: Option<Iommu>,
    /// Virtual processors; 2 by the wall clock, 1 by instructions when not said.
    pub vcpus: Option<u32>,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Huge pages of 2 MiB, set aside out of the memory while the kernel boots.
    pub hugepages: u32,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Kernel modules to load, with parameters after the name; what they need is loaded too.
    pub modules: Vec<String>,
    /// What it does.
    pub steps: Vec<Step>,
    /// Variables of the steps.
    pub variables: Vec<(String, String)>,
    /// Host programs: they are found by their file name in the guest, with their libraries.
    pub programs: Vec<PathBuf>,
    /// Host folders in which the programs' libraries are looked for before the usual places.
    pub libraries: Vec<PathBuf>,
    /// Host files: path in the guest, path on the host.
    pub files: Vec<(String, PathBuf)>,
    /// More words for the kernel's command line.
    pub kernel_arguments: Vec<String>,
    /// More arguments for QEMU.
    pub qemu_arguments: Vec<String>,
    /// An idle processor spins, so that instruction time is not warped to the next timer while a
    /// device works. When not said: for instruction time with disks or network cards.
    pub idle_poll: Option<bool>,
    /// In instruction time, an instruction is 2^N ns, and the clock follows the host's while the
    /// guest sleeps: for disks with a pace. When not said, it is 1 ns, and sleep is skipped.
    pub instruction_shift: Option<u32>,
    /// How often it is run again when its emulator has failed.
    pub retries: u32,
    /// Time after which the run is given up, on the host's clock.
    pub time_limit: Duration,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            name: "guest".into(),
            kernel: DEFAULT_KERNEL.into(),
            mode: Mode::default(),
            boot: Boot::default(),
            machine: Machine::default(),
            iommu: None,
            vcpus: None,
            memory_mib: 512,
            hugepages: 0,
            devices: Vec::new(),
            modules: Vec::new(),
            steps: Vec::new(),
            variables: Vec::new(),
            programs: Vec::new(),
            libraries: Vec::new(),
            files: Vec::new(),
            kernel_arguments: Vec::new(),
            qemu_arguments: Vec::new(),
            idle_poll: None,
            instruction_shift: None,
            retries: RETRIES,
            time_limit: Duration::from_secs(120),
        }
    }
}

impl Guest {
    /// A guest with the default kernel and no devices; `name` stands in logs.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a device.
    pub fn device(mut self, device: Device) -> Self {
        self.devices.push(device);
        self
    }

    /// Adds a module to load.
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.into());
        self
    }

    /// Adds a step: a shell script under a name.
    pub fn step(mut self, name: &str, run: &str) -> Self {
        self.steps.push(Step { name: name.into(), run: run.into(), ..Step::default() });
        self
    }

    /// Adds a host program, found in the guest by its file name.
    pub fn program(mut self, path: &Path) -> Self {
        self.programs.push(path.into());
        self
    }

    /// Adds a host folder with libraries of the programs.
    pub fn libraries(mut self, folder: &Path) -> Self {
        self.libraries.push(folder.into());
        self
    }

    /// Adds the programs of [`Need::Network`], so far as the cache has them.
    pub fn network_programs(self, cache: &Cache) -> Self {
        let folders = ["usr/bin", "bin", "usr/sbin", "sbin"];
        let find = |name| {
            folders
                .map(|folder| cache.path(format!("network/{folder}/{name}")))
                .into_iter()
                .find(|path| path.is_file())
        };
        ["iperf3", "curl", "ip", "ethtool"]
            .into_iter()
            .filter_map(find)
            .fold(self, |guest, path| guest.program(&path))
    }

    /// Adds a host file at an absolute path in the guest.
    pub fn file(mut self, guest: &str, host: &Path) -> Self {
        self.files.push((guest.into(), host.into()));
        self
    }

    /// Adds a variable for the steps.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The IOMMU that it has.
    pub(crate) fn iommu(&self) -> Iommu {
        self.iommu.unwrap_or(self.machine.usual_iommu())
    }

    /// What must be in the cache before this guest can boot.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Tools, Need::Kernel(self.kernel_of_machine())];
        needs.extend(self.machine.is_arm64().then_some(Need::Arm64));
        needs
    }

    /// Its kernel with that machine's name, if it is not this one's.
    fn kernel_of_machine(&self) -> String {
        format!("{}{}", self.kernel, if self.machine.is_arm64() { ARM64 } else { "" })
    }

    /// What this guest can boot without. Most jobs do without fio, and it is the one thing that
    /// wants a compiler; who makes a btrfs loads its module.
    fn extras(&self) -> Vec<Need> {
        let makes_btrfs = self.modules.iter().any(|module| module == "btrfs");
        [Need::Fio].into_iter().chain(makes_btrfs.then_some(Need::Btrfs)).collect()
    }

    /// Fetches what is missing, boots, runs the steps and brings back what they left. Ends at the
    /// time limit, in any case.
    ///
    /// A step that fails is no error: see [`Outcome::exit`].
    ///
    /// QEMU 10.0 sometimes aborts (`iotlb_to_section: Assertion`), when one processor changes the
    /// memory map while another walks it, and with several processors it sometimes loses the timer
    /// of one, so that the guest stands still. A kernel sometimes dies while it boots, of a
    /// breakpoint of its own (`Oops: int3`). None of these says anything about the job, and a guest
    /// keeps nothing: it is run again, three times at most (once, if it stood still), from its
    /// first step, with fresh disks.
    ///
    /// `watch` and [`Outcome::retried`] are told. Not if one of its disks is an image, in which a
    /// job that began may have written.
    pub fn run(&self, cache: &Cache, watch: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
        let (mut began, mut left, mut retried) = (false, self.retries, None);
        let outcome = loop {
            let outcome = self.attempt(cache, &mut |event| {
                began |= event == Event::Started;
                watch(event);
            });
            // What stands still twice does so by itself.
            let again = retried.is_some() && matches!(outcome, Err(Error::StoodStill { .. }));
            let may_retry = left > 0 && !again && !(began && self.writes_images());
            let Some(fault) = outcome.as_ref().err().and_then(emulator_fault).filter(|_| may_retry)
            else {
                break outcome;
            };
            watch(Event::Progress(&format!("{fault}; the guest is run again, from the start")));
            left -= 1;
            retried = Some(fault);
        };
        let outcome = outcome.map(|outcome| Outcome { retried, ..outcome });
        outcome.map_err(|error| error.advise(cache))
    }

    fn writes_images(&self) -> bool {
        self.devices
            .iter()
            .flat_map(Device::disks)
            .any(|disk| matches!(disk.backing, Backing::Image(_)))
    }

    fn attempt(&self, cache: &Cache, watch: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
        if let (Boot::Snapshot, Some(why)) = (self.boot, snapshot::objection(self)) {
            return Err(Error::Request(format!(
                "{} cannot start from a snapshot: {why}",
                self.name
            )));
        }
        let prepared = self.prepare(cache, watch)?;
        let saved = match self.boot {
            Boot::Plain => None,
            Boot::Snapshot => {
                Some(Snapshot::of(&prepared.qemu, cache, &prepared.kernel, prepared.iommu)?)
            }
        };
        let names: Vec<String> = self.steps.iter().map(|step| step.name.clone()).collect();
        let run = Run {
            cache,
            limit: self.time_limit,
            started: Instant::now(),
            steps: &names,
            says_its_end: self.machine.says_its_end(),
        };
        let (kernel, qemu) = (prepared.kernel.release().to_string(), prepared.qemu.version.clone());
        let mut session = match saved {
            None => prepared.start(Start::Whole)?,
            Some(saved) => saved.restore(&run, &prepared.qemu, prepared.folder, &prepared.job)?,
        };
        let outcome = session.finish(&run, watch)?;
        Ok(self.judge(Outcome { kernel, qemu, ..outcome }))
    }

    /// Boots to an interactive shell on this terminal, with devices and modules as the steps would
    /// find them.
    pub fn shell(&self, cache: &Cache, watch: &mut dyn FnMut(Event)) -> Result<(), Error> {
        let guest = Self {
            variables: [self.variables.clone(), vec![("LAB_SHELL".into(), "1".into())]].concat(),
            ..self.clone()
        };
        let start = |watch| guest.prepare(cache, watch)?.start(Start::Terminal);
        let mut session = start(watch).map_err(|error| error.advise(cache))?;
        let run = Run {
            cache,
            limit: Duration::MAX,
            started: Instant::now(),
            steps: &[],
            says_its_end: true,
        };
        match session.finish(&run, &mut |_| {}) {
            // QEMU's own key (control-A x) ends the machine too.
            Ok(_) | Err(Error::Died { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    fn prepare(&self, cache: &Cache, watch: &mut dyn FnMut(Event)) -> Result<Prepared, Error> {
        let mut progress = |line: &str| watch(Event::Progress(line));
        limits::check(self)?;
        prepare(cache, &self.needs(), &mut progress)?;
        for extra in self.extras() {
            if let Err(error) = prepare(cache, std::slice::from_ref(&extra), &mut progress) {
                progress(&format!("this guest has no {}: {error}", extra.name()));
            }
        }
        let kernel = Kernel::get(cache, &self.kernel_of_machine(), &mut progress)?;
        let job = Job::new(self)?.archive(cache, &kernel)?;
        let folder = Folder::new(cache, &self.name)?;
        let qemu = Qemu::of(self, cache, &kernel, &folder)?;
        let base = initramfs::base(cache, self.machine)?;
        Ok(Prepared { qemu, kernel, iommu: self.iommu(), base, job, folder })
    }

    /// Compares the output with what was expected.
    fn judge(&self, mut outcome: Outcome) -> Outcome {
        for (step, done) in self.steps.iter().zip(&mut outcome.steps) {
            done.missed =
                step.expect.iter().filter(|text| !done.output.contains(*text)).cloned().collect();
            if !done.missed.is_empty() && outcome.exit == 0 {
                outcome.exit = 1;
            }
        }
        outcome
    }
}

/// What QEMU itself did wrong, if `error` shows a fault of its that comes and goes.
fn emulator_fault(error: &Error) -> Option<String> {
    let aborted = |text: &str| text.contains("SIGABRT") && text.contains(LOST_MAP);
    match error {
        Error::Qemu { status, message } if aborted(&format!("{status} {message}")) => {
            Some(format!("QEMU aborted ({LOST_MAP})"))
        }
        Error::Died { how, .. } if aborted(how) => {
            let when = how.split(", QEMU's").next().unwrap_or_default();
            Some(format!("QEMU aborted {when} ({LOST_MAP})"))
        }
        Error::StoodStill { when, .. } => Some(format!("{STOOD_STILL} {when}")),
        // Its init gave up to wait for what a processor without a timer was to do.
        Error::Died { how, console, .. }
            if how.contains(BEFORE) && console.contains(LOST_TIMER) =>
        {
            Some(STOOD_STILL.into())
        }
        Error::Died { how, console, .. } if how.contains(BEFORE) && console.contains(PATCHED) => {
            Some(format!("the kernel died of its own code patching ({PATCHED})"))
        }
        Error::TimeLimit { console, .. } if console.contains(LOST_TIMER) => {
            Some(STOOD_STILL.into())
        }
        _ => None,
    }
}

/// Everything that a run consists of.
struct Prepared {
    qemu: Qemu,
    kernel: Kernel,
    iommu: Iommu,
    base: PathBuf,
    job: Vec<u8>,
    folder: Folder,
}

impl Prepared {
    /// Boots with the job in the initramfs.
    fn start(self, start: Start) -> Result<Session, Error> {
        let initrd = self.folder.path().join("initrd");
        job::join(
            &self.base,
            &[&job::boot_archive(&self.kernel, self.iommu)?, &self.job],
            &initrd,
        )?;
        Session::start(&self.qemu.arguments(&initrd, start)?, self.folder, start == Start::Terminal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_loads_btrfs_gets_the_program_that_makes_one() {
        assert_eq!(Guest::new("t").extras(), [Need::Fio]);
        assert_eq!(Guest::new("t").module("btrfs").extras(), [Need::Fio, Need::Btrfs]);
    }

    #[test]
    fn only_the_known_faults_of_qemu_are_its_own() {
        let died = |how: &str| Error::Died { how: how.into(), console: String::new(), log: None };
        let abort = "signal: 6 (SIGABRT) (core dumped) physmem.c:2419: iotlb_to_section: Assertion \
                     `x' failed.";
        let fault = emulator_fault(&died(&format!("in step 'load', QEMU's {abort}")));
        assert_eq!(fault.unwrap(), "QEMU aborted in step 'load' (iotlb_to_section)");
        let booting = |how: &str| Error::Died {
            how: format!("{how}, QEMU's exit status: 253"),
            console: format!("rcu: {LOST_TIMER} on cpu=1"),
            log: None,
        };
        assert_eq!(emulator_fault(&booting(BEFORE)).as_deref(), Some(STOOD_STILL));
        assert_eq!(emulator_fault(&booting("in step 'load'")), None);
        let patching = |how: &str| Error::Died {
            how: format!("{how}, QEMU's exit status: 253"),
            console: format!("{PATCHED}: 0000 [#1] PREEMPT SMP NOPTI"),
            log: None,
        };
        assert!(emulator_fault(&patching(BEFORE)).is_some());
        assert_eq!(emulator_fault(&patching("in step 'load'")), None);
        let early = Error::Qemu {
            status: "signal: 6 (SIGABRT)".into(),
            message: "iotlb_to_section: Assertion".into(),
        };
        assert!(emulator_fault(&early).is_some());
        assert!(
            emulator_fault(&died(
                "in step 'load', QEMU's signal: 6 (SIGABRT) nvme_map_prp: Assertion"
            ))
            .is_none()
        );
        assert!(emulator_fault(&died("in step 'load', QEMU's exit status: 0")).is_none());
    }
}
