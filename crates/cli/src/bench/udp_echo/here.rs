//! The rounds, in the guest.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Soaker;
use ring3_bench::disk::{Event, machine};
use ring3_bench::net::{Direct, Load, Method, Sockets, User, measure};
use ring3_bench::report::Measurement;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};
use rustix::process::{Pid, Signal, kill_process};

use super::guest::INSTRUCTION_NS;
use super::{Args, Mode, ends};

/// Bytes of the arena of a card in this process.
const ARENA: usize = 8 << 20;
/// What an interface of ours is called.
const NAME: &str = "echo0";

/// Measures all rounds, and tells each step as a line of JSON.
pub fn run(args: &Args) -> Result<()> {
    let instructions = args.mode == Mode::Instructions;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let soaker_step = instructions.then(|| Soaker::calibrate(cpus)).transpose()?;
    let instruction_ns = instructions.then_some(f64::from(INSTRUCTION_NS));
    let method = Method { time: Duration::from_millis(args.millis()), instruction_ns, soaker_step, cpus };
    let mut here = Here { args, method, loads: 0 };
    if let Some(interface) = &args.interface {
        address(interface, ends("kernel").here)?;
    }
    tell(&Event::Begin(machine(instructions)))?;
    for round in 1..=args.rounds() {
        // Every other round goes the other way round, so that no placement always follows the same one.
        let mut placements = args.placements();
        if round % 2 == 0 {
            placements.reverse();
        }
        placements.iter().try_for_each(|placement| here.turn(round, placement))?;
        tell(&Event::Round { round })?;
    }
    Ok(())
}

/// Tells a step as a line of JSON.
pub fn tell(event: &Event) -> Result<()> {
    outln!("{}", serde_json::to_string(event)?);
    crate::output::flush();
    Ok(())
}

/// Gives an interface its address and sets it up.
pub fn address(interface: &str, address: Ipv4Addr) -> Result<()> {
    ip(&["address", "add", &format!("{address}/24"), "dev", interface])?;
    ip(&["link", "set", interface, "up"])
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("starting ip (iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

struct Here<'a> {
    args: &'a Args,
    method: Method,
    /// Loads so far: the number of each.
    loads: u32,
}

impl Here<'_> {
    fn turn(&mut self, round: u32, placement: &str) -> Result<()> {
        let ends = ends(placement);
        match placement {
            "kernel" => self.study(round, placement, &mut Sockets::open(ends.here, ends.peer)?, None),
            "process" => {
                let Attached { nics, driven, .. } = self.claim()?;
                let [nic] = &nics[..] else { bail!("the device is no network card that ring3 drives") };
                self.study(round, placement, &mut Direct::open(&**nic, ends.here, ends.peer)?, None)?;
                drop((nics, driven));
                Ok(())
            }
            _ => {
                let device = self.device()?;
                let words = match placement {
                    "export" => vec!["run", "net", "--json", "--name", NAME, "--device", &device],
                    _ => vec!["bench", "udp-echo", "--null", NAME],
                };
                let export = Interface::start(&words)?;
                address(NAME, ends.here)?;
                self.study(round, placement, &mut Sockets::open(ends.here, ends.peer)?, Some(export.0.id()))
            }
        }
    }

    fn device(&self) -> Result<String> {
        Ok(self.args.device.as_ref().context("no device was named")?.to_string())
    }

    fn claim(&self) -> Result<Attached> {
        let claim = Claim { settings: Settings::default(), ..Claim::new(self.device()?.parse()?) };
        // By interrupt: it sleeps at once, as the kernel does.
        let needs = Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: Some(Duration::ZERO) };
        Ok(claim.open(&needs)?)
    }

    fn study(&mut self, round: u32, placement: &str, user: &mut dyn User, driver: Option<u32>) -> Result<()> {
        let measured = |load: &Load| placement != "tap-null" || load.rate().is_none();
        for load in self.args.loads().iter().filter(|load| measured(load)) {
            self.loads += 1;
            let into = Measurement::new(round, load, placement);
            let measured =
                measure(user, load, self.loads, &self.method, driver, into).with_context(|| format!("{placement} {load}"))?;
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    }
}

/// A process that is an interface, until this is dropped.
struct Interface(Child);

impl Interface {
    /// Starts this program with `words`, and returns when it says that its interface is there.
    fn start(words: &[&str]) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program, which is to be an interface")?;
        let child = Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        // From here on a failure stops the child.
        let mut interface = Self(child.with_context(|| format!("starting ring3 {}", words.join(" ")))?);
        let mut line = String::new();
        let stdout = interface.0.stdout.as_mut().context("its output is not here")?;
        BufReader::new(stdout).read_line(&mut line)?;
        match line.contains("\"interface\"") {
            true => Ok(interface),
            false => bail!("ring3 {}: no interface, but {line:?}", words.join(" ")),
        }
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}
