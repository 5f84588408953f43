//! The rounds, in the guest.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Meter;
use ring3_bench::disk::Event;
use ring3_bench::net::{Ask, Direct, Kind, Load, Method, Sockets, User, measure, shares_of};
use ring3_bench::report::Measurement;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};

use super::{ASK, DPDK, LOAD, ends};
use crate::bench::cards::Task;
use crate::bench::cards::dpdk::Testpmd;
use crate::bench::cards::here::{Interface, address, method, rounds, tell};
use crate::run::net::Engine;

/// Bytes of the arena of a card in this process.
const ARENA: usize = 8 << 20;

/// Until what was asked for outside of the guest has begun or ended.
const SETTLE: Duration = Duration::from_millis(300);

/// Asks the peer of ring3's card, which cannot be reached from here while DPDK has that.
fn ask(ask: &Ask) -> Result<()> {
    outln!("{ASK}{}", serde_json::to_string(ask)?);
    crate::output::flush();
    Ok(())
}

/// Measures all rounds, and tells each step as a line of JSON.
pub fn run(task: &Task) -> Result<()> {
    let mut here = Here { task, method: method(task)?, loads: task.loads()?, number: 0 };
    address(task.interface(0)?, ends("kernel").here)?;
    rounds(task, &mut |round, placement| here.turn(round, placement))
}

struct Here<'a> {
    task: &'a Task,
    method: Method,
    loads: Vec<Load>,
    /// Loads so far: the number of each.
    number: u32,
}

impl Here<'_> {
    fn turn(&mut self, round: u32, placement: &str) -> Result<()> {
        let ends = ends(placement);
        let interface = match placement {
            "kernel" => None,
            "process" => {
                let Attached { nics, driven, .. } = self.claim()?;
                let [nic] = &nics[..] else {
                    bail!("the device is no network card that ring3 drives")
                };
                self.study(
                    round,
                    placement,
                    &mut Direct::open(&**nic, ends.here, ends.peer)?,
                    None,
                )?;
                drop((nics, driven));
                return Ok(());
            }
            DPDK => return self.forwarded(round),
            "tap-null" => Some(Interface::null(Engine::Auto, ends.here)?),
            _ => Some(Interface::export(self.task, placement, ends.here)?),
        };
        let driver = interface.as_ref().map(Interface::process);
        self.study(round, placement, &mut Sockets::open(ends.here, ends.peer)?, driver)
    }

    /// DPDK has the card to itself, so that the peer is asked from outside.
    fn forwarded(&mut self, round: u32) -> Result<()> {
        let mut testpmd = Testpmd::start(&[self.task.device(0)?], &["--forward-mode=5tswap"])?;
        testpmd.say("start")?;
        for load in
            self.loads.iter().filter(|load| load.rate().is_some() || load.kind == Kind::Idle)
        {
            self.number += 1;
            ask(&Ask::Begin(self.number, *load))?;
            std::thread::sleep(SETTLE);
            let meter = Meter::start(Some(testpmd.process()));
            std::thread::sleep(self.method.time);
            let mut into = Measurement::new(round, load, DPDK);
            shares_of(&mut into, &self.method, &meter.read());
            ask(&Ask::Stop(self.number))?;
            std::thread::sleep(SETTLE);
            tell(&Event::Measured(into.with(LOAD, self.number.into())))?;
        }
        Ok(())
    }

    fn claim(&self) -> Result<Attached> {
        let claim = Claim { settings: Settings::default(), ..Claim::new(self.task.device(0)?) };
        // By interrupt: it sleeps at once, as the kernel does.
        let needs = Requirements {
            queues: 1,
            arena: ARENA,
            max_transfer: None,
            poll: Some(Duration::ZERO),
        };
        Ok(claim.open(&needs)?)
    }

    fn study(
        &mut self,
        round: u32,
        placement: &str,
        user: &mut dyn User,
        driver: Option<u32>,
    ) -> Result<()> {
        let measured = |load: &Load| placement != "tap-null" || load.rate().is_none();
        for load in self.loads.iter().filter(|load| measured(load)) {
            self.number += 1;
            let into = Measurement::new(round, load, placement);
            let measured = measure(user, load, self.number, &self.method, driver, into)
                .with_context(|| format!("{placement} {load}"))?;
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    }
}
