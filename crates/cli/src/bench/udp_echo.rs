//! `ring3 bench udp-echo`: UDP through a network card, its driver in the kernel, in the application's process, and behind an interface.

pub mod guest;
pub mod here;
mod null;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_bench::net::{Load, PLACEMENTS, SWEEP};
use ring3_bench::plot::draw_echo;
use ring3_bench::report::Report;
use ring3_bench::table::render_packets;
use ring3_lab::DEFAULT_KERNEL;

use crate::leave;

/// Rates of the short form, in Mb/s.
const FEW: [u32; 2] = [10, 60];

/// Options of `ring3 bench udp-echo`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// The guest's clock.
    #[arg(long, value_enum, default_value = "instructions")]
    mode: Mode,
    /// The guest's kernel, by version prefix.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Rounds, in each of which every placement has its turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Milliseconds of a load, by the guest's clock.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    millis: u64,
    /// One round of 100 ms for each load, and of the rates two.
    #[arg(long, conflicts_with_all = ["rounds", "millis"])]
    quick: bool,
    /// A load: udp-64-out, udp-64-in, udp-64-echo-qd1, udp-1024-echo-at60 (Mb/s). May be repeated; without it, all of the figure.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Load>,
    /// A placement. May be repeated; without it, all.
    #[arg(long = "placement", value_name = "NAME", value_parser = PLACEMENTS)]
    placements: Vec<String>,
    /// Folder for udp-echo.json and udp-echo.svg.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// In the guest: measure this machine, whose other end of the cables is there already.
    #[arg(long, hide = true, requires_all = ["interface", "device"])]
    here: bool,
    /// The interface of the card that the kernel drives.
    #[arg(long, hide = true)]
    interface: Option<String>,
    /// The card that ring3 drives.
    #[arg(long, hide = true)]
    device: Option<Uri>,
    /// Be an interface that answers itself, of this name, until it is killed.
    #[arg(long, hide = true, value_name = "NAME")]
    null: Option<String>,
}

/// A card of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Card {
    /// The 82574L.
    E1000e,
    /// virtio's.
    VirtioNet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Real time.
    Wall,
    /// One processor of 62.5 million instructions a second.
    Instructions,
}

/// A host on a cable, and who is at its other end.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The host.
    pub here: Ipv4Addr,
    /// The peer.
    pub peer: Ipv4Addr,
}

/// Each placement is a network of its own.
pub fn ends(placement: &str) -> Ends {
    let net = PLACEMENTS.iter().position(|name| *name == placement).unwrap_or_default() as u8;
    Ends { here: Ipv4Addr::new(10, 9, net, 1), peer: Ipv4Addr::new(10, 9, net, 2) }
}

impl Args {
    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    fn millis(&self) -> u64 {
        if self.quick { 100 } else { self.millis }
    }

    fn loads(&self) -> Vec<Load> {
        let rates: &[u32] = if self.quick { &FEW } else { &SWEEP };
        let usual = Load::closed().into_iter().chain(rates.iter().map(|&mbit| Load::at(mbit)));
        if self.loads.is_empty() { usual.collect() } else { self.loads.clone() }
    }

    fn placements(&self) -> Vec<String> {
        let all = || PLACEMENTS.map(str::to_owned).to_vec();
        if self.placements.is_empty() { all() } else { self.placements.clone() }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(name) = &args.null {
        return null::run(name);
    }
    if args.here {
        return here::run(args).map(|()| ExitCode::SUCCESS);
    }
    if args.loads().iter().all(|load| load.rate().is_some()) && args.placements() == ["tap-null"] {
        bail!("tap-null has no rates: its peer would take the processor that is measured");
    }
    leave::nothing_behind()?;
    let report = guest::measure(args)?;
    write(&args.out, &report)?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&report)?),
        false => outln!("\n{}", render_packets(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn write(out: &Path, report: &Report) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let text = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [("udp-echo.json", text), ("udp-echo.svg", draw_echo(std::slice::from_ref(report)))] {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
