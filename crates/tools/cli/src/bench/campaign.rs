//! A campaign: rounds on a machine, kept as they are finished, and the results in files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ring3_bench::disk::{Event, Plan};
use ring3_bench::journal::Journal;
use ring3_bench::plot;
use ring3_bench::report::{Lab, Measurement, Report};
use ring3_bench::table::render;

use super::progress::Bar;

/// What is measured: a guest, or this machine.
pub trait Machine {
    /// Measures the rounds from `first` on and gives QEMU's version.
    fn measure(
        &mut self,
        plan: &Plan,
        first: u32,
        progress: &mut dyn FnMut(&Event),
    ) -> Result<String>;
}

/// How a report is shown as text.
pub type Look = fn(&Report) -> String;

/// Loads of all kinds: a table of the usual ones.
pub const LOADS: Look = render;

/// Has the rounds that `journal` does not have yet measured, from the first of them on, which gives
/// QEMU's version; `show` hears what is told. Where it ran, and what was measured in all rounds.
pub fn complete(
    journal: &mut Journal,
    rounds: u32,
    show: &mut dyn FnMut(&Event),
    measure: impl FnOnce(u32, &mut dyn FnMut(&Event)) -> Result<String>,
) -> Result<(Lab, Vec<Measurement>)> {
    let (mut lab, mut round, mut failure) = (Lab::default(), Vec::new(), None);
    let mut qemu = None;
    if journal.finished() < rounds {
        let measured = measure(journal.finished() + 1, &mut |event| {
            show(event);
            match event {
                // Also the second boot of a guest whose QEMU failed: it measures from the same
                // round on once more.
                Event::Begin(here) => {
                    lab = here.clone();
                    round.clear();
                }
                Event::Measured(measurement) => round.push(measurement.clone()),
                Event::Round { round: number } => {
                    let measured = std::mem::take(&mut round);
                    if *number > journal.finished() {
                        failure = failure.take().or(journal.add(lab.clone(), measured).err());
                    }
                }
                Event::Cell { .. } | Event::Window { .. } => {}
            }
        });
        // Where no round is finished, nothing is kept.
        let kept = journal.finished() > 0;
        qemu = Some(match measured {
            Err(error) if kept => {
                return Err(
                    error.context("finished rounds are kept; the same command goes on from there")
                );
            }
            measured => measured?,
        });
    }
    failure.map_or(Ok(()), Err)?;
    let (lab, measurements) = journal.results();
    Ok((Lab { qemu: qemu.unwrap_or_else(|| lab.qemu.clone()), ..lab }, measurements))
}

/// The results of one benchmark: a report for each machine and clock, and a figure of them all.
pub struct Campaign {
    figure: &'static str,
    look: Look,
    out: PathBuf,
    reports: Vec<Report>,
}

impl Campaign {
    /// Results go into `out`, which is made if it is not there.
    pub fn new(figure: &'static str, look: Look, out: &Path) -> Result<Self> {
        fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
        Ok(Self { figure, look, out: out.into(), reports: Vec::new() })
    }

    /// Measures `plan` on `machine`, from where an interrupted run of the same plan was, and writes
    /// the report called `name`.
    pub fn run(&mut self, name: &str, plan: &Plan, machine: &mut dyn Machine) -> Result<()> {
        let clock = if plan.instructions { "instructions" } else { "wall" };
        let mut journal = Journal::open(&self.out.join(format!("{name}-{clock}.rounds")), plan)?;
        let bar = Bar::new(plan, journal.finished());
        let (lab, measurements) = complete(
            &mut journal,
            plan.rounds,
            &mut |event| bar.show(event),
            |first, progress| machine.measure(plan, first, progress),
        )?;
        bar.finish();
        let lab = Lab { disk: plan.disk(), instruction_ns: plan.instruction_ns(), ..lab };
        self.write(Report::new(name, lab, &measurements))?;
        Ok(journal.close()?)
    }

    fn write(&mut self, report: Report) -> Result<()> {
        let name = match self.reports.iter().any(|other| other.bench == report.bench) {
            false => format!("{}.json", report.bench),
            true => format!("{}-{}.json", report.bench, report.lab.mode),
        };
        let path = self.out.join(name);
        report.write(&path)?;
        let Lab { kernel, qemu, mode, vcpus, disk, .. } = &report.lab;
        outln!(
            "\n{}: Linux {kernel}, QEMU {qemu}, {mode} clock, {vcpus} processors; {disk}",
            path.display()
        );
        outln!("\n{}", (self.look)(&report));
        self.reports.push(report);
        Ok(())
    }

    /// Draws what was measured.
    pub fn finish(self) -> Result<()> {
        let path = self.out.join(format!("{}.svg", self.figure));
        fs::write(&path, plot::draw(&self.reports)?)
            .with_context(|| format!("writing {}", path.display()))?;
        outln!("figure: {}", path.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ring3_bench::disk::{Controller, Study};

    use super::*;

    /// A guest whose QEMU aborts, or that stands still, in its second round, after one measurement
    /// of it, and is booted again.
    struct Failed;

    impl Machine for Failed {
        fn measure(
            &mut self,
            plan: &Plan,
            first: u32,
            progress: &mut dyn FnMut(&Event),
        ) -> Result<String> {
            let measured =
                |round| Event::Measured(Measurement::new(round, "w", "kernel").with("iops", 1.0));
            progress(&Event::Begin(Lab::default()));
            progress(&measured(first));
            progress(&Event::Round { round: first });
            progress(&measured(first + 1));
            progress(&Event::Begin(Lab::default()));
            for round in first..=plan.rounds {
                progress(&measured(round));
                progress(&Event::Round { round });
            }
            Ok("10.0".into())
        }
    }

    #[test]
    fn a_guest_that_is_booted_again_in_the_middle_of_a_round_adds_no_round_and_no_measurement() {
        let out = std::env::temp_dir().join(format!("ring3-campaign-{}", std::process::id()));
        let plan = Plan {
            study: Study::Loads { millis: 1, brief: false, workloads: vec![] },
            rounds: 2,
            placements: vec![],
            instructions: false,
            kernel: String::new(),
            translated: false,
            controller: Controller::Nvme,
            pace: None,
        };
        let mut campaign = Campaign::new("disk", LOADS, &out).unwrap();
        campaign.run("disk", &plan, &mut Failed).unwrap();
        assert_eq!(campaign.reports[0].get("w", "kernel", "iops").unwrap().rounds, 2);
        fs::remove_dir_all(&out).unwrap();
    }
}
