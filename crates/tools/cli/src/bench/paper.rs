//! `ring3 bench disk --figure`, `--timeline` and `--work`: their options.

use ring3_bench::disk::leslie::{self, BYTES, FEW, SECTORS};
use ring3_bench::disk::{Controller, Leslie, Pace, Placement, Study, Timeline, Work, timeline};
use ring3_lab::Size;

use super::campaign::Look;
use super::look;

/// Most requests of a timeline: what the kernel's buffer of events holds.
const REQUESTS: u64 = 5000;

/// Bytes of a run of the short form, and its most requests.
const QUICK: (u64, u64) = (8 << 20, 400);

/// Options of the figure.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "The papers' figures")]
pub struct Options {
    /// Regenerate a figure of the papers: leslie, sequential reads by size (64 MiB for each of 64
    /// sizes, ten runs).
    #[arg(long, value_enum)]
    figure: Option<Figure>,
    /// Show the steps of one request with their times, and its system calls, context switches,
    /// interrupts and register accesses.
    #[arg(long, conflicts_with = "figure")]
    timeline: bool,
    /// Compare distributions of the driver's work over threads, at 1000 and 5000 requests per
    /// second and at full speed.
    #[arg(long, conflicts_with_all = ["figure", "timeline"])]
    work: bool,
    /// The disk's controller. May be repeated. Default: nvme; with --figure ahci, the controller of
    /// such disks today.
    #[arg(long = "controller", value_enum, value_name = "NAME")]
    controllers: Vec<ControllerName>,
    /// Sizes of a transfer in sectors of 512 bytes, from 1 to 32768: a list such as 1,8,128.
    /// Default: the paper's 64 sizes.
    #[arg(
        long, value_delimiter = ',', value_name = "LIST",
        value_parser = clap::value_parser!(u32).range(1..=32768),
    )]
    sizes: Vec<u32>,
    /// Bytes of each run, such as 64M.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    bytes: Option<u64>,
    /// Maximum number of requests of each run, which limits the time of small sizes. With
    /// --timeline: number of requests that are recorded.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Commands per second that the lab's disk is limited to, from 1 to 1,000,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    commands: Option<u64>,
    /// Bytes per second that the lab's disk is limited to, such as 50M.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    rate: Option<u64>,
    /// Do not limit the lab's disk. The result is then the cost of the software alone.
    #[arg(long, conflicts_with_all = ["commands", "rate"])]
    unpaced: bool,
}

/// A figure of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// Leslie et al. 2005, Figure 2.
    Leslie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ControllerName {
    /// NVMe.
    Nvme,
    /// AHCI (ich9-ahci).
    Ahci,
    /// PCI IDE (PIIX).
    Ide,
}

impl From<ControllerName> for Controller {
    fn from(name: ControllerName) -> Self {
        match name {
            ControllerName::Nvme => Self::Nvme,
            ControllerName::Ahci => Self::Ahci,
            ControllerName::Ide => Self::Ide,
        }
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let Size(bytes) = text.parse()?;
    if bytes > 0 { Ok(bytes) } else { Err("it must be more than nothing".into()) }
}

impl Options {
    /// The figure that was asked for, and how it looks; `None` for the ordinary loads.
    pub fn figure(&self) -> Option<(&'static str, Look)> {
        match (self.figure, self.timeline, self.work) {
            (Some(Figure::Leslie), ..) => Some(("leslie", look::CURVES)),
            (None, true, _) => Some(("timeline", look::STEPS)),
            (None, false, true) => Some(("work", look::WORK)),
            (None, false, false) => None,
        }
    }

    /// What is done for it, how often, and in which placements; `None` for the ordinary loads.
    pub fn study(
        &self,
        quick: bool,
        millis: Option<u64>,
    ) -> Option<(Study, u32, &'static [Placement])> {
        use Placement::{
            Export, Kernel, Process, ProcessAdaptive, ProcessPolled, ProcessThreads, UblkNull,
        };
        match (self.figure, self.timeline, self.work) {
            (Some(Figure::Leslie), ..) => Some((
                Study::Leslie(self.leslie(quick)),
                10,
                &[Kernel, ProcessAdaptive, Export, UblkNull],
            )),
            (None, true, _) => {
                let requests =
                    self.requests.unwrap_or(if quick { 100 } else { 500 }).min(REQUESTS) as u32;
                Some((
                    Study::Timeline(Timeline { requests }),
                    3,
                    &[Kernel, Process, ProcessPolled, Export],
                ))
            }
            (None, false, true) => {
                let work = Work { millis: millis.unwrap_or(if quick { 200 } else { 2000 }) };
                Some((Study::Work(work), 5, &[ProcessPolled, ProcessThreads, ProcessAdaptive]))
            }
            (None, false, false) => None,
        }
    }

    /// The controllers, one after the other.
    pub fn controllers(&self) -> Vec<Controller> {
        match self.controllers.is_empty() {
            true => vec![self.controller()],
            false => self.controllers.iter().map(|&name| name.into()).collect(),
        }
    }

    /// The first of them.
    pub fn controller(&self) -> Controller {
        let usual = if self.figure.is_some() { Controller::Ahci } else { Controller::Nvme };
        self.controllers.first().map_or(usual, |&name| name.into())
    }

    fn leslie(&self, quick: bool) -> Leslie {
        let usual = if quick { FEW.to_vec() } else { SECTORS.to_vec() };
        let sectors = if self.sizes.is_empty() { usual } else { self.sizes.clone() };
        let bytes = self.bytes.unwrap_or(if quick { QUICK.0 } else { BYTES });
        Leslie { sectors, bytes, requests: self.requests.or(quick.then_some(QUICK.1)) }
    }

    /// What limits the lab's disk. This machine's disk has limits of its own; within the lab, they
    /// are said.
    pub fn pace(&self, here: bool) -> Option<Pace> {
        let said = self.commands.is_some() || self.rate.is_some();
        let usual = if self.timeline { timeline::PACE } else { leslie::PACE };
        let pace = Pace {
            commands: self.commands.unwrap_or(usual.commands),
            bytes: self.rate.unwrap_or(usual.bytes),
        };
        let wanted = self.figure.is_some() || self.timeline;
        (wanted && (said || !(here || self.unpaced))).then_some(pace)
    }
}
