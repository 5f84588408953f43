//! The rounds, in the guest.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Meter;
use ring3_bench::disk::Event;
use ring3_bench::net::{Ask, Direct, Kind, Load, Method, Sockets, User, measure, shares_of};
use ring3_bench::report::Measurement;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};

use super::{ASK, Args, DPDK, LOAD, ends};
use crate::bench::cards::dpdk::Testpmd;
use crate::bench::cards::here::{Interface, NAME, address, method, rounds, tell};

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
pub fn run(args: &Args) -> Result<()> {
    let method = method(&args.options, args.millis())?;
    let mut here = Here { args, method, loads: 0 };
    if let Some(interface) = &args.options.interface {
        address(interface, ends("kernel").here)?;
    }
    rounds(&args.options, &args.placements(), &mut |round, placement| here.turn(round, placement))
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
            "tap-null" => {
                Some(Interface::start(&["bench", "udp-echo", "--null", NAME], ends.here)?)
            }
            _ => Some(Interface::export(&self.args.options, placement, ends.here)?),
        };
        let driver = interface.as_ref().map(Interface::process);
        self.study(round, placement, &mut Sockets::open(ends.here, ends.peer)?, driver)
    }

    /// DPDK has the card to itself, so that the peer is asked from outside.
    fn forwarded(&mut self, round: u32) -> Result<()> {
        let device = self.args.options.device.clone().context("no device was named")?;
        let mut testpmd = Testpmd::start(&[device], &["--forward-mode=5tswap"])?;
        testpmd.say("start")?;
        for load in
            self.args.loads().iter().filter(|load| load.rate().is_some() || load.kind == Kind::Idle)
        {
            self.loads += 1;
            ask(&Ask::Begin(self.loads, *load))?;
            std::thread::sleep(SETTLE);
            let meter = Meter::start(Some(testpmd.process()));
            std::thread::sleep(self.method.time);
            let mut into = Measurement::new(round, load, DPDK);
            shares_of(&mut into, &self.method, &meter.read());
            ask(&Ask::Stop(self.loads))?;
            std::thread::sleep(SETTLE);
            tell(&Event::Measured(into.with(LOAD, self.loads.into())))?;
        }
        Ok(())
    }

    fn claim(&self) -> Result<Attached> {
        let device = self.args.options.device.clone().context("no device was named")?;
        let claim = Claim { settings: Settings::default(), ..Claim::new(device) };
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
        for load in self.args.loads().iter().filter(|load| measured(load)) {
            self.loads += 1;
            let into = Measurement::new(round, load, placement);
            let measured = measure(user, load, self.loads, &self.method, driver, into)
                .with_context(|| format!("{placement} {load}"))?;
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    }
}
