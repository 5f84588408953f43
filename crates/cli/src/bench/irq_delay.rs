//! `ring3 bench irq-delay`: how long an interrupt takes to a process.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_backend::{OpenOptions, Uri};
use ring3_bench::disk::{Event, machine};
use ring3_bench::irq_delay::Card;
use ring3_bench::net::{Ask, Load, Sockets, User};
use ring3_bench::plot::draw_delays;
use ring3_bench::report::{Lab, Measurement, Report};
use ring3_bench::table::render_delays;
use ring3_lab::DEFAULT_KERNEL;
use rustix::process::{Pid, setpriority_process};

use super::guest::{NAME, with_this_program};
use super::udp_echo::guest::{INTERFACE, follow, two_cards, wires};
use super::udp_echo::here::{address, tell};
use super::udp_echo::{Card as Model, ends};
use crate::leave;

/// Under what an interrupt comes: a name, and the niceness of a task that never sleeps.
const CONDITIONS: [(&str, Option<i32>); 5] =
    [("irq-idle", None), ("irq-traffic", None), ("irq-minimal", Some(19)), ("irq-normal", Some(0)), ("irq-maximal", Some(-20))];
/// The one with traffic on the kernel's card meanwhile, in Mb/s.
const TRAFFIC: (&str, u32) = ("irq-traffic", 5);

/// Options of `ring3 bench irq-delay`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The guest's clock.
    #[arg(long, value_enum, default_value = "instructions")]
    mode: Mode,
    /// The guest's kernel, by version prefix.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Rounds of all conditions.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Interrupts under each condition.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    runs: u32,
    /// One round of 50 interrupts.
    #[arg(long, conflicts_with_all = ["rounds", "runs"])]
    quick: bool,
    /// Folder for irq-delay.json and irq-delay.svg.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// In the guest: measure this machine.
    #[arg(long, hide = true, requires_all = ["interface", "device"])]
    here: bool,
    /// The interface of the kernel's card.
    #[arg(long, hide = true)]
    interface: Option<String>,
    /// The card whose interrupts are raised.
    #[arg(long, hide = true)]
    device: Option<Uri>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Real time.
    Wall,
    /// One processor, of which an instruction takes a nanosecond.
    Instructions,
}

impl Args {
    fn counts(&self) -> (u32, u32) {
        if self.quick { (1, 50) } else { (self.rounds, self.runs) }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.here {
        return here(args).map(|()| ExitCode::SUCCESS);
    }
    leave::nothing_behind()?;
    let report = measure(args)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let text = serde_json::to_string_pretty(&report)? + "\n";
    for (name, text) in [("irq-delay.json", &text), ("irq-delay.svg", &draw_delays(&report))] {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    crate::output::write(format_args!("{}", if args.json { text } else { render_delays(&report) }));
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let wires = wires(folder.path())?;
    let (rounds, runs) = args.counts();
    let instructions = args.mode == Mode::Instructions;
    let mut guest = with_this_program(two_cards("irq-delay", Model::E1000e, &wires))?;
    guest.kernel.clone_from(&args.kernel);
    if instructions {
        guest.mode = ring3_lab::Mode::Instructions;
        guest.instruction_shift = Some(0);
    }
    guest.time_limit = Duration::from_secs(300) + rounds * (Duration::from_secs(60) + runs * Duration::from_millis(60));
    let mode = if instructions { "instructions" } else { "wall" };
    let words = format!(
        "ring3 bench irq-delay --here --interface $card --device vfio:$RING3 --mode {mode} --rounds {rounds} --runs {runs}"
    );
    let (lab, measured) = follow(&guest.step("measure", &format!("{NAME}{INTERFACE}{words}")), rounds)?;
    let lab = Lab { disk: "e1000e".into(), instruction_ns: instructions.into(), ..lab };
    Ok(Report::new("irq-delay", lab, &measured))
}

/// The rounds, in the guest.
fn here(args: &Args) -> Result<()> {
    let device = args.device.as_ref().context("no device was named")?;
    let mut card = Card::open(ring3_backend::open(device, OpenOptions { arena: 1 << 20, ..OpenOptions::default() })?)?;
    if let Some(interface) = &args.interface {
        address(interface, ends("kernel").here)?;
    }
    tell(&Event::Begin(machine(args.mode == Mode::Instructions)))?;
    let (rounds, runs) = args.counts();
    for round in 1..=rounds {
        for (index, (name, nice)) in CONDITIONS.into_iter().enumerate() {
            let _competitor = nice.map(Competitor::start).transpose()?;
            let into = Measurement::new(round, name, "process");
            let id = round * CONDITIONS.len() as u32 + index as u32;
            let measured = if name == TRAFFIC.0 {
                with_traffic(id, || Ok(card.measure(runs, into)?))
            } else {
                Ok(card.measure(runs, into)?)
            };
            tell(&Event::Measured(measured.context(name)?))?;
        }
        let polled = card.measure_polled(runs, Measurement::new(round, "irq-idle", "process-polled"))?;
        tell(&Event::Measured(polled))?;
        tell(&Event::Round { round })?;
    }
    Ok(())
}

/// Does `work` while datagrams are echoed by way of the kernel's card; `id` is the load's number.
fn with_traffic<T>(id: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (ends, load, stop) = (ends("kernel"), Load::at(TRAFFIC.1), AtomicBool::new(false));
    let mut user = Sockets::open(ends.here, ends.peer)?;
    user.ask(&Ask::Begin(id, load))?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                user.work(&load, Duration::from_millis(100), &mut || {}, &mut || {})?;
            }
            user.ask(&Ask::Stop(id))
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        echo.join().map_err(|_| anyhow::anyhow!("the echo has panicked"))?.context("traffic on the kernel's card")?;
        done
    })
}

/// A task that never sleeps, until this is dropped.
struct Competitor(Child);

impl Competitor {
    fn start(nice: i32) -> Result<Self> {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        // From here on a failure ends it.
        let competitor = Self(child.context("starting a competing task (sh)")?);
        setpriority_process(Some(Pid::from_child(&competitor.0)), nice).context("setting the priority of a competing task")?;
        Ok(competitor)
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        // It does nothing but run: there is nothing to ask it for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
