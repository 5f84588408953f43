//! How far a campaign is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ring3_bench::disk::{Event, Plan};
use ring3_bench::table::rounded;

/// A bar on a terminal, as long as the time that is to be measured; without one, a line for each
/// round.
pub struct Bar<'a> {
    bar: ProgressBar,
    plan: &'a Plan,
}

impl<'a> Bar<'a> {
    /// For all cells of `plan`, of which `finished` rounds are done.
    pub fn new(plan: &'a Plan, finished: u32) -> Self {
        let bar = ProgressBar::new(plan.total_millis());
        let style =
            ProgressStyle::with_template("{bar:30} {percent}% {elapsed} left {eta}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(plan.total_millis() / u64::from(plan.rounds.max(1)) * u64::from(finished));
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(500));
        if finished > 0 {
            bar.println(format!("{finished} finished rounds are there already"));
        }
        bar.set_message("starting");
        Self { bar, plan }
    }

    /// Shows a step.
    pub fn show(&self, event: &Event) {
        match event {
            Event::Begin(_) => self.bar.set_message("measuring"),
            Event::Cell { round, workload, placement } => {
                self.bar.set_message(format!("round {round}: {placement} {workload}"));
            }
            Event::Measured(measured) => {
                if let Ok(load) = measured.workload.parse() {
                    self.bar.inc(self.plan.millis(load));
                }
                if let Some(&iops) = measured.values.get("iops") {
                    self.bar.set_message(format!(
                        "{} {}: {} IOPS",
                        measured.placement,
                        measured.workload,
                        rounded(iops)
                    ));
                }
            }
            Event::Round { round } if self.bar.is_hidden() => {
                errln!("round {round} of {} is done", self.plan.rounds)
            }
            Event::Round { .. } | Event::Window { .. } => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
