//! `ring3 faults --guest`: faults done from outside to drivers as users have them, in a guest of
//! the lab: ring3d, its sandbox, ublk and VFIO, with fio's verification on the disk.
//!
//! What is promised comes first, on disks to which nothing else has happened; the other kinds
//! follow, and fio begins anew. The guest says what it has seen after each fault. One in which a
//! device was lost is left, and the next one goes on.

mod faulty;
mod fio;
mod here;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use ring3_faults::symbols::Symbols;
use ring3_faults::{Kind, Model, Report, Spec, mutate};
use ring3_lab::{Backing, Cache, Device, Event, Guest, Outcome, Size};
use serde::{Deserialize, Serialize};

use super::campaign::{DRIVER, progress_bar, resumed};
use super::life::Orders;
use super::show;
use crate::bench::guest::{NAME, with_this_program};
use crate::bench::ring3d::{DRIVERS, RING3D, beside, with_supervisor};
use crate::job::Job;
use crate::{dde, leave};

pub use here::run as in_guest;

/// Faults, unless it is said; and of a quick campaign.
pub const COUNT: u64 = 300;
pub const QUICK: u64 = 24;
/// Bytes of each disk.
const SIZE: Size = Size(256 << 20);
/// Where the guest finds what is to be done.
const PLAN: &str = "/plan.json";
/// What a driver may do: hardly anything is given up here. A stalled host looks like a driver that
/// hangs, so that these times are longer than those of a campaign on models. No progress is seen
/// after twice `recovery_ms`.
const TERMS: &str = "burst = 1000000\\nwindow_s = 1\\nbackoff_ms = 1\\nbackoff_max_ms = \
                     50\\ndeadline_s = 100\\nheartbeat_ms = 5000\\nrecovery_ms = 10000";
/// What the guest does, with the job in its place.
const STEP: &str = r#"
describe ahci $AHCI '' "$TERMS" ${HOSTED:+dde:ahci}
supervise nvme $NVME '' "$TERMS" ${HOSTED:+dde:nvme} || exit 1
@JOB@ || { tail -n 100 /tmp/ring3d.log; exit 1; }
end_supervisor"#;
/// Linux's drivers of the two disks; so begin the names of their functions, too.
const NVME: &str = "nvme";
const AHCI: &str = "ahci";
/// Guests in a row in which no fault was done, before it is given up.
const TRIES: u32 = 2;
/// A guest's time: until its first fault, and for each, on a busy host.
const START: Duration = Duration::from_secs(300);
const EACH: Duration = Duration::from_secs(20);

/// Faults by what is promised after them: first those after which nothing may be lost.
type Phases = [Vec<Orders>; 2];

/// What a guest has seen of one fault, or at the end of a phase.
#[derive(Serialize, Deserialize)]
struct Line {
    phase: usize,
    /// Faults that are done by that.
    done: u64,
    report: Report,
}

/// A campaign in guests, as far as it is.
struct Campaign {
    report: Report,
    phases: Phases,
    path: Option<PathBuf>,
    bar: ProgressBar,
}

/// Does what of `new` is not in the file at `path` yet, and prints the report.
pub fn run(new: Report, path: Option<PathBuf>, form: show::Form) -> Result<ExitCode> {
    let phases =
        phases((0..new.count).map(|index| Spec::in_guest(new.seed, index, new.only)), new.hosted)?;
    let report = resumed(new, 1, path.as_deref())?;
    show::show(&Campaign::new(report, phases, path).run()?, form)
}

/// Does one fault again, in a guest of its own.
pub fn reproduce(spec: Spec, kernel: String, hosted: bool) -> Result<ExitCode> {
    outln!("{spec}");
    let mut report = Report::new(spec.seed, 1, Some(spec.kind), 1);
    (report.guest, report.hosted) = (Some(kernel), hosted);
    show::show(
        &Campaign::new(report, phases([spec].into_iter(), hosted)?, None).run()?,
        show::Form::default(),
    )
}

/// What is to be done for `specs`. Where code changes is looked up here: the lab takes the symbols
/// away from programs that it puts into a guest.
fn phases(specs: impl Iterator<Item = Spec>, hosted: bool) -> Result<Phases> {
    let [nvme, ahci] = if hosted {
        let symbols = |driver| symbols(dde::program(driver)?.path(), driver);
        [symbols(NVME)?, symbols(AHCI)?]
    } else {
        let own = symbols(&beside(DRIVERS)?, DRIVER)?;
        [own.clone(), own]
    };
    let code = |spec: &Spec| {
        let symbols = if spec.model == Model::Nvme { &nvme } else { &ahci };
        mutate::code_addresses(spec, |word| symbols.pick(word))
    };
    let orders = |spec: Spec| Orders {
        spec,
        code: if spec.kind == Kind::Code { code(&spec) } else { Vec::new() },
    };
    let (promised, others) = specs.map(orders).partition(|orders| orders.spec.kind.is_promised());
    Ok([promised, others])
}

/// Where the functions of `program` are whose names contain `part`.
fn symbols(program: &Path, part: &str) -> Result<Symbols> {
    let symbols = Symbols::read(program, part)
        .with_context(|| format!("reading the symbols of {}", program.display()))?;
    ensure!(
        symbols.bytes() > 0,
        "{} has no symbols, so that no fault of a driver's code can be placed: do not strip it",
        program.display()
    );
    Ok(symbols)
}

impl Campaign {
    fn new(mut report: Report, phases: Phases, path: Option<PathBuf>) -> Self {
        report.done.entry(1).or_insert_with(|| vec![0; phases.len()]);
        let bar = progress_bar(report.count, report.injected());
        Self { report, phases, path, bar }
    }

    fn run(mut self) -> Result<Report> {
        leave::nothing_behind()?;
        let mut vain = 0;
        while self.left().iter().any(|phase| !phase.is_empty()) {
            let before = self.report.injected();
            let outcome = self.boot()?;
            if !outcome.succeeded() {
                errln!(
                    "the guest has ended before all faults were done; it said:\n{}",
                    outcome.output()
                );
            }
            vain = if self.report.injected() > before { 0 } else { vain + 1 };
            ensure!(
                vain < TRIES,
                "no fault was done in {TRIES} guests; the last one ended with {}:\n{}\n{}",
                outcome.exit,
                outcome.output(),
                outcome.messages
            );
        }
        self.bar.finish_and_clear();
        Ok(self.report)
    }

    /// What is still to be done.
    fn left(&self) -> Phases {
        let done = |phase: usize| {
            self.report
                .done
                .get(&1)
                .and_then(|done| done.get(phase))
                .map_or(0, |done| *done as usize)
        };
        [0, 1].map(|phase| self.phases[phase].get(done(phase)..).unwrap_or_default().to_vec())
    }

    /// Does in one guest as much as goes.
    fn boot(&mut self) -> Result<Outcome> {
        let left = self.left();
        let mut plan = tempfile::NamedTempFile::new().context("making a file for the guest")?;
        plan.write_all(&serde_json::to_vec(&left)?)?;
        let devices = [
            Device::nvme("nvme", SIZE, Backing::Memory),
            Device::ahci("ahci", SIZE, Backing::Memory),
        ];
        let guest = with_supervisor(with_this_program(Guest::new("faults"))?)?
            .file(PLAN, plan.path())
            .variable("TERMS", TERMS);
        let mut guest =
            devices.into_iter().fold(guest, |guest, device| guest.device(device.bound("vfio-pci")));
        guest.kernel = self.report.guest.clone().unwrap_or(guest.kernel);
        guest.memory_mib = 1024;
        guest.modules = vec!["ublk_drv".into()];
        if self.report.hosted {
            guest = dde::enter(guest.variable("HOSTED", "yes"), &[NVME, AHCI].map(String::from))?;
        }
        guest.time_limit = START + EACH * left.iter().map(Vec::len).sum::<usize>() as u32;
        let step = STEP.replace("@JOB@", &Job::GuestFaults { plan: PLAN.into() }.command()?);
        let guest = guest.step("faults", &format!("{NAME}{RING3D}{step}"));
        let mut kept = Ok(());
        let outcome = guest.run(&Cache::open()?, &mut |event| match event {
            Event::Progress(line) => errln!("{line}"),
            Event::Line(line) => match serde_json::from_str(line) {
                Ok(line) if kept.is_ok() => kept = self.note(&line),
                _ => {}
            },
            _ => {}
        })?;
        kept.map(|()| outcome)
    }

    fn note(&mut self, line: &Line) -> Result<()> {
        self.report.absorb(&line.report);
        if let Some(done) = self.report.done.get_mut(&1).and_then(|done| done.get_mut(line.phase)) {
            *done += line.done;
        }
        let injected = self.report.injected();
        self.bar.set_position(injected);
        if self.bar.is_hidden() && injected.is_multiple_of(25) {
            errln!("{injected} of {} faults", self.report.count);
        }
        Ok(self.path.as_ref().map_or(Ok(()), |path| self.report.write(path))?)
    }
}
