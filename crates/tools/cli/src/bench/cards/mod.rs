//! What all measurements of network cards in a guest have in common: options, the guest, and what
//! happens in it.

pub mod dpdk;
pub mod guest;
pub mod here;
pub mod null;
pub mod stress;

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use ring3_backend::Uri;
use ring3_bench::plot;
use ring3_bench::report::Report;
use ring3_lab::DEFAULT_KERNEL;
use serde::{Deserialize, Serialize};

/// The placement in which Linux's driver, unmodified, is in a process behind an interface.
pub const HOSTED: &str = "hosted";

/// Options of each of them.
#[derive(Clone, clap::Args)]
pub struct Options {
    /// What the guest's clock counts.
    #[arg(long, value_enum, default_value = "instructions")]
    pub mode: Mode,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    pub kernel: String,
    /// Rounds, from 1 to 1000. Each round measures every placement once.
    #[arg(
        long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    rounds: u32,
    /// Measure one short round only, as a trial.
    #[arg(long, conflicts_with = "rounds")]
    pub quick: bool,
    /// Folder for the report NAME.json and the figure NAME.svg. Created if it is missing.
    #[arg(long, default_value = "out")]
    pub out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// What a measurement of network cards has of its own.
pub trait Study: Clone + Send + Sync + 'static {
    /// What is done with a placement.
    type Load: Clone + Display + FromStr<Err: Display> + Send + Sync + 'static;
    /// The loads, for the help.
    const LOADS: &'static str;
    /// All placements.
    const PLACEMENTS: &'static [&'static str];
    /// More about them, for the help.
    const USUAL_PLACEMENTS: &'static str = "Default: all";
    /// Milliseconds of a load, and in the short form.
    const MILLIS: (u64, u64);
    /// Most of them, and fewest.
    const LIMITS: RangeInclusive<u64> = 10..=600_000;

    /// The loads of one who has chosen none.
    fn loads(options: &Options) -> Vec<Self::Load>;

    /// The same of placements.
    fn placements() -> Vec<&'static str> {
        Self::PLACEMENTS.to_vec()
    }
}

/// What is measured, and for how long.
#[derive(Clone, clap::Args)]
pub struct Choice<S: Study> {
    // clap's derive keeps one default for all studies, of the first one that is asked.
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(S::LIMITS),
        help = format!(
            "Milliseconds of each load, by the guest's clock, from {} to {}. Default: {}; {} with \
            --quick",
            S::LIMITS.start(), S::LIMITS.end(), S::MILLIS.0, S::MILLIS.1,
        ))]
    millis: Option<u64>,
    #[arg(long = "load", value_name = "NAME", value_parser = load::<S::Load>,
        help = format!("A load. May be repeated. {}", S::LOADS))]
    loads: Vec<S::Load>,
    #[arg(long = "placement", value_name = "NAME",
        value_parser = PossibleValuesParser::new(S::PLACEMENTS),
        help = format!("Where the driver is. May be repeated. {}", S::USUAL_PLACEMENTS))]
    placements: Vec<String>,
    #[command(flatten)]
    pub options: Options,
}

fn load<L: FromStr<Err: Display>>(text: &str) -> Result<L, String> {
    text.parse().map_err(|error: L::Err| error.to_string())
}

impl<S: Study> Choice<S> {
    pub fn millis(&self) -> u64 {
        if self.options.quick { S::MILLIS.1 } else { self.millis.unwrap_or(S::MILLIS.0) }
    }

    pub fn loads(&self) -> Vec<S::Load> {
        if self.loads.is_empty() { S::loads(&self.options) } else { self.loads.clone() }
    }

    pub fn placements(&self) -> Vec<String> {
        let usual = || S::placements().into_iter().map(str::to_owned).collect();
        if self.placements.is_empty() { usual() } else { self.placements.clone() }
    }

    /// The same, with these for one who has chosen none.
    pub fn or(&self, loads: &[S::Load], placements: &[&str]) -> Self {
        let mut choice = self.clone();
        if choice.loads.is_empty() {
            choice.loads = loads.to_vec();
        }
        if choice.placements.is_empty() {
            choice.placements = placements.iter().map(|&name| name.into()).collect();
        }
        choice
    }

    /// How long all loads may take, if `each` takes so long and ten times its milliseconds.
    pub fn time_limit(&self, start: Duration, each: Duration) -> Duration {
        let turns =
            self.loads().len() as u32 * self.placements().len() as u32 * self.options.rounds();
        start + turns * (each + 10 * Duration::from_millis(self.millis()))
    }

    /// That, for the guest, from round `first` on.
    pub fn task(&self, first: u32) -> Task {
        Task {
            millis: self.millis(),
            loads: self.loads().iter().map(ToString::to_string).collect(),
            placements: self.placements(),
            ..Task::new(&self.options, first)
        }
    }
}

/// What a guest does with its cards.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Whether its clock counts instructions.
    pub instructions: bool,
    /// The last round, and the one to begin with.
    pub rounds: u32,
    pub first: u32,
    /// Of a load.
    pub millis: u64,
    loads: Vec<String>,
    pub placements: Vec<String>,
    /// The interfaces of cards that the kernel drives.
    interfaces: Vec<String>,
    /// Cards that processes drive.
    devices: Vec<String>,
    /// The driver of Linux's of the placement [`HOSTED`], as `ring3 run net --driver` takes it.
    #[serde(default)]
    hosted: String,
}

impl Task {
    /// Of a guest with a card of each kind, whose names its shell knows.
    pub fn new(options: &Options, first: u32) -> Self {
        let (instructions, rounds) = (options.instructions(), options.rounds());
        let (interfaces, devices) = (vec!["$card".into()], vec!["vfio:$RING3".into()]);
        Self { instructions, rounds, first, interfaces, devices, ..Self::default() }
    }

    /// With one more of each.
    pub fn and(mut self, interface: Option<&str>, device: &str) -> Self {
        self.interfaces.extend(interface.map(Into::into));
        self.devices.push(device.into());
        self
    }

    /// With the driver of Linux's for `card`, which is hosted where a placement says so.
    pub fn of(mut self, card: Card) -> Self {
        self.hosted = format!("dde:{}", card.module());
        self
    }

    /// The loads.
    pub fn loads<L: FromStr<Err: Display>>(&self) -> Result<Vec<L>> {
        self.loads.iter().map(|name| load(name).map_err(anyhow::Error::msg)).collect()
    }

    /// An interface of the kernel's.
    pub fn interface(&self, number: usize) -> Result<&str> {
        let name = self.interfaces.get(number).filter(|name| !name.is_empty());
        name.map(String::as_str).context("the kernel's card has no interface")
    }

    /// A card of a process.
    pub fn device(&self, number: usize) -> Result<Uri> {
        Ok(self.devices.get(number).context("no card was named")?.parse()?)
    }
}

/// The clock of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Real time.
    Wall,
    /// Instructions, each of the same time, on one processor. Repeatable.
    Instructions,
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        if self == Self::Wall { "wall" } else { "instructions" }
    }
}

/// A card of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Card {
    /// The 82540EM.
    E1000,
    /// The 82574L.
    E1000e,
    /// The 82576.
    Igb,
    /// The network card of virtual machines.
    VirtioNet,
}

impl Options {
    /// Rounds.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    /// Whether the clock counts instructions.
    pub fn instructions(&self) -> bool {
        self.mode == Mode::Instructions
    }

    /// Writes the report, and its figure if it `has_figure`, and prints the report, as `table` has
    /// it or as JSON.
    pub fn write(
        &self,
        report: &Report,
        has_figure: bool,
        table: impl FnOnce(&Report) -> String,
    ) -> Result<()> {
        report.write(&self.out.join(format!("{}.json", report.bench)))?;
        if has_figure {
            let path = self.out.join(format!("{}.svg", report.bench));
            let figure = plot::draw(std::slice::from_ref(report))?;
            fs::write(&path, figure).with_context(|| format!("writing {}", path.display()))?;
        }
        let text = if self.json { report.text()? } else { format!("\n{}", table(report)) };
        crate::output::write(format_args!("{text}"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn each_benchmark_has_its_own_default_of_milliseconds() {
        let mut command = crate::Cli::command();
        command.build();
        let benchmarks = command.find_subcommand_mut("bench").unwrap();
        for (name, default) in [("dde", 500), ("loopback", 1000), ("ping", 2000)] {
            let benchmark = benchmarks.find_subcommand_mut(name).unwrap();
            let help = benchmark.render_long_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains(&format!("Default: {default}; ")), "{name}: {help}");
        }
    }
}
