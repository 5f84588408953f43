//! What all measurements of network cards in a guest have in common: options, the guest, and what
//! happens in it.

pub mod dpdk;
pub mod guest;
pub mod here;
pub mod null;
pub mod stress;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ring3_backend::Uri;
use ring3_bench::report::Report;
use ring3_lab::DEFAULT_KERNEL;

/// Options of each of them.
#[derive(Clone, clap::Args)]
pub struct Options {
    /// The guest's clock.
    #[arg(long, value_enum, default_value = "instructions")]
    pub mode: Mode,
    /// The guest's kernel, by version prefix.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    pub kernel: String,
    /// Rounds, in each of which every placement has its turn; three if it is not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// One short round.
    #[arg(long, conflicts_with = "rounds")]
    pub quick: bool,
    /// Folder for the report and the figure, NAME.json and NAME.svg.
    #[arg(long, default_value = "out")]
    pub out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// In the guest: measure this machine, whose other end of the cables is there already.
    #[arg(long, hide = true, requires_all = ["interface", "device"])]
    pub here: bool,
    /// The interface of the card that the kernel drives.
    #[arg(long, hide = true)]
    pub interface: Option<String>,
    /// The card that ring3 drives.
    #[arg(long, hide = true)]
    pub device: Option<Uri>,
    /// The round to begin with.
    #[arg(long, hide = true, default_value_t = 1)]
    pub first: u32,
}

/// The clock of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Real time.
    Wall,
    /// One processor, of which each instruction takes the same time.
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
    /// The 82574L.
    E1000e,
    /// The 82576.
    Igb,
    /// virtio's.
    VirtioNet,
}

impl Options {
    /// Rounds.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds.unwrap_or(3) }
    }

    /// Whether the clock counts instructions.
    pub fn instructions(&self) -> bool {
        self.mode == Mode::Instructions
    }

    /// Writes report and figure, and prints the report, as `table` has it or as JSON.
    pub fn write(
        &self,
        report: &Report,
        figure: Option<String>,
        table: impl FnOnce(&Report) -> String,
    ) -> Result<()> {
        fs::create_dir_all(&self.out).with_context(|| format!("making {}", self.out.display()))?;
        let text = serde_json::to_string_pretty(report)? + "\n";
        for (kind, text) in [("json", Some(&text)), ("svg", figure.as_ref())] {
            let path = self.out.join(format!("{}.{kind}", report.bench));
            text.map_or(Ok(()), |text| fs::write(&path, text))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        crate::output::write(format_args!(
            "{}",
            if self.json { text } else { format!("\n{}", table(report)) }
        ));
        Ok(())
    }
}
