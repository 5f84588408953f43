//! In the guest: interfaces of both drivers, and what is told.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Soaker;
use ring3_bench::disk::{Event, machine};
use ring3_bench::net::Method;
use rustix::process::{Pid, Signal, kill_process};

use super::guest::INSTRUCTION_NS;
use super::{HOSTED, Task};
use crate::job::Job;
use crate::run::net::Engine;

/// What an interface of ours is called.
pub const NAME: &str = "echo0";

/// Calibrates what counts instructions.
pub fn method(task: &Task) -> Result<Method> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let soaker_step = task.instructions.then(|| Soaker::calibrate(cpus)).transpose()?;
    let instruction_ns = task.instructions.then_some(f64::from(INSTRUCTION_NS));
    Ok(Method { time: Duration::from_millis(task.millis), instruction_ns, soaker_step, cpus })
}

/// Has every placement take its `turn` in each round, and tells where it begins and when a round is
/// done.
pub fn rounds(task: &Task, turn: &mut dyn FnMut(u32, &str) -> Result<()>) -> Result<()> {
    tell(&Event::Begin(machine(task.instructions)))?;
    for round in task.first..=task.rounds {
        // Every other round goes the other way round, so that no placement always follows the same
        // one.
        let mut placements = task.placements.clone();
        if round % 2 == 0 {
            placements.reverse();
        }
        for placement in &placements {
            turn(round, placement).with_context(|| placement.clone())?;
        }
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

/// The number of a placement's network: the kernel's card has one, and ring3's another.
pub fn network(placement: &str) -> u8 {
    u8::from(placement != "kernel")
}

/// The host whose last byte is `last` in a network.
pub fn host(network: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, network, last)
}

/// Gives an interface its address and sets it up.
pub fn address(interface: &str, address: Ipv4Addr) -> Result<()> {
    ip(&["address", "add", &format!("{address}/24"), "dev", interface])?;
    link_up(interface)
}

/// Sets an interface up.
pub fn link_up(interface: &str) -> Result<()> {
    ip(&["link", "set", interface, "up"])
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("starting ip (iproute2)")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// How `ring3 run net` is told what an export of that name is; `None` if it is none.
pub fn export(placement: &str) -> Option<&'static [&'static str]> {
    Some(match placement {
        "export" => &[],
        "export-adaptive" => &["--throttle", "adaptive"],
        "export-tap" => &["--engine", "tap"],
        "export-vhost" => &["--engine", "vhost"],
        "export-vduse" => &["--export", "vduse"],
        "export-tap-ordinary" => &["--engine", "tap", "--priority", "ordinary"],
        "export-tap-real-time" => &["--engine", "tap", "--priority", "real-time"],
        "export-tap-confined" => &["--engine", "tap", "--user", "nobody"],
        "export-vduse-ordinary" => &["--export", "vduse", "--priority", "ordinary"],
        "export-vduse-real-time" => &["--export", "vduse", "--priority", "real-time"],
        "export-uncoalesced" => &["--engine", "tap", "--no-coalescing"],
        _ => return None,
    })
}

/// A process that is an interface, called [`NAME`] if it is a TAP, until this is dropped.
pub struct Interface {
    process: Child,
    name: String,
}

impl Interface {
    /// The card of `task`, exported as `placement` says, with the address `here`.
    pub fn export(task: &Task, placement: &str, here: Ipv4Addr) -> Result<Self> {
        let device = task.device(0)?.to_string();
        let hosted = ["--driver", &task.hosted];
        let more = match placement {
            HOSTED => &hosted[..],
            _ => export(placement).with_context(|| format!("{placement} is no export"))?,
        };
        Self::start(
            &[&["run", "net", "--json", "--name", NAME, "--device", &device], more].concat(),
            here,
        )
    }

    /// An interface of `engine` without a card, which answers itself.
    pub fn null(engine: Engine, here: Ipv4Addr) -> Result<Self> {
        let words = Job::Null { name: NAME.into(), engine }.words()?;
        Self::start(&words.each_ref().map(String::as_str), here)
    }

    /// Starts this program with `words`, and returns when its interface is there.
    pub fn start(words: &[&str], here: Ipv4Addr) -> Result<Self> {
        let program =
            std::env::current_exe().context("finding this program, which is to be an interface")?;
        let child =
            Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        // From here on a failure stops the child.
        let process = child.with_context(|| format!("starting ring3 {}", words.join(" ")))?;
        let mut interface = Self { process, name: String::new() };
        let mut line = String::new();
        let stdout = interface.process.stdout.as_mut().context("its output is not here")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let said: Option<serde_json::Value> = serde_json::from_str(&line).ok();
        let Some(name) = said.as_ref().and_then(|said| said["interface"].as_str()) else {
            bail!("ring3 {}: no interface, but {line:?}", words.join(" "));
        };
        interface.name = name.into();
        address(name, here)?;
        Ok(interface)
    }

    /// The process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Interface {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}
