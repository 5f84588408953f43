//! `ring3 bench loopback`: two cards cabled together, with their drivers in the kernel, in the
//! measuring process, and DPDK's.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_backend::Uri;
use ring3_bench::cpu::Soaker;
use ring3_bench::disk::Event;
use ring3_bench::net::Method;
use ring3_bench::net::loopback::{
    ClassPort, LOOPBACK_PLACEMENTS, Loop, Pace, PacketSocket, Port, frame, run as measure,
};
use ring3_bench::report::Measurement;
use ring3_bench::table::render_loopback;
use ring3_class::net::Mac;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};
use ring3_lab::Guest;

use super::cards::dpdk::{self, Testpmd};
use super::cards::here::{link_up, method, rounds, tell};
use super::cards::stress::Competitor;
use super::cards::{Card, Choice, Options, Study, Task, guest};
use super::guest::NAME;
use crate::job::Job;
use crate::leave;

/// Bytes of the arena of a card.
const ARENA: usize = 8 << 20;
/// Until links are up that were set up.
const LINKS: Duration = Duration::from_secs(3);

/// Options of `ring3 bench loopback`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The cards in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    #[command(flatten)]
    choice: Choice<Loopback>,
}

/// What is measured.
#[derive(Clone)]
struct Loopback;

impl Study for Loopback {
    type Load = Loop;
    const LOADS: &'static str = "loop-60-stream (as fast as possible) or loop-60-paced (one packet \
        per millisecond), each also with -stress at its end (beside four tasks that never sleep). \
        Default: all of docs/papers/enea.md";
    const PLACEMENTS: &'static [&'static str] = &LOOPBACK_PLACEMENTS;
    const MILLIS: (u64, u64) = (1000, 500);

    fn loads(_: &Options) -> Vec<Loop> {
        Loop::all()
    }
}

/// The names of both pairs, and the number of the first card of each.
const PAIRS: [(&str, u8); 2] = [("kernel", 1), ("ring3", 3)];

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let guest = dpdk::with(pairs(args, folder.path()))?;
    let (options, prelude) = (&args.choice.options, format!("{NAME}{}{INTERFACES}", dpdk::ROOT));
    let command = |first| {
        let task = args.choice.task(first).and(Some("$other"), "vfio:$RING32");
        Ok(format!("{prelude}{}", Job::Loopback(task).command()?))
    };
    let report = guest::run("loopback", options, args.card, guest, &command, &|line| {
        serde_json::from_str(line).ok()
    })?;
    options.write(&report, true, render_loopback)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the interfaces of the kernel's cards, and names ring3's.
const INTERFACES: &str = r#"
interface() {
    for path in /sys/bus/pci/devices/$1/net/* /sys/bus/pci/devices/$1/virtio*/net/*; do
        [ -e "$path" ] && basename "$path"
    done
}
card=$(interface $KERNEL1) other=$(interface $KERNEL2) RING3=$RING31
"#;

/// A guest with two pairs of cards, each of which is one cable.
fn pairs(args: &Args, folder: &Path) -> Guest {
    let mut guest = Guest::new("loopback").module(args.card.module());
    for (name, first) in PAIRS {
        let ends = [1, 2].map(|end| (format!("{name}{end}"), folder.join(format!("{name}{end}"))));
        for (at, (id, here)) in ends.iter().enumerate() {
            let device = args.card.between(id, guest::mac(first + at as u8), here, &ends[1 - at].1);
            guest = guest.device(if name == "ring3" { device.bound("vfio-pci") } else { device });
        }
    }
    guest::on_one_processor(&mut guest, &args.choice.options);
    guest.time_limit = args.choice.time_limit(Duration::from_secs(600), Duration::from_secs(60));
    guest
}

/// The rounds, in the guest.
pub fn here(task: &Task) -> Result<()> {
    let (method, all) = (method(task)?, task.loads::<Loop>()?);
    let interfaces = [task.interface(0)?, task.interface(1)?];
    interfaces.iter().try_for_each(|name| link_up(name))?;
    std::thread::sleep(LINKS);
    let devices = [task.device(0)?, task.device(1)?];
    let mut loads = 0;
    rounds(task, &mut |round, placement| match placement {
        "kernel" => {
            let [mut from, mut to] =
                [PacketSocket::open(interfaces[0])?, PacketSocket::open(interfaces[1])?];
            let ends = (guest::mac(PAIRS[0].1), guest::mac(PAIRS[0].1 + 1));
            study(&all, (round, placement), &method, &mut loads, (&mut from, &mut to), ends)
        }
        "process" => {
            let [from, to] = [claim(&devices[0])?, claim(&devices[1])?];
            let ([one], [other]) = (&from.nics[..], &to.nics[..]) else {
                bail!("the devices are no network cards that ring3 drives")
            };
            let [mut out, mut into] = [ClassPort::open(&**one)?, ClassPort::open(&**other)?];
            std::thread::sleep(LINKS);
            let ends = (one.info().mac, other.info().mac);
            study(&all, (round, placement), &method, &mut loads, (&mut out, &mut into), ends)
        }
        _ => all.iter().try_for_each(|load| forwarded(round, load, &devices, method.time)),
    })
}

fn claim(device: &Uri) -> Result<Attached> {
    let claim = Claim { settings: Settings::default(), ..Claim::new(device.clone()) };
    // By interrupt: it sleeps at once, as the kernel does.
    Ok(claim.open(&Requirements {
        queues: 1,
        arena: ARENA,
        max_transfer: None,
        poll: Some(Duration::ZERO),
    })?)
}

/// All loads by a pair of ports.
fn study(
    loads: &[Loop],
    (round, placement): (u32, &str),
    method: &Method,
    number: &mut u32,
    (from, to): (&mut dyn Port, &mut dyn Port),
    ends: (Mac, Mac),
) -> Result<()> {
    for &load in loads {
        *number += 1;
        let _stress: Vec<_> =
            (0..load.stress).map(|_| Competitor::start(0)).collect::<Result<_>>()?;
        // What else runs leaves nothing to count, and who waits for the next millisecond costs
        // nothing.
        let counted = load.stress == 0 && load.pace == Pace::Stream;
        let soaker =
            method.soaker_step.filter(|_| counted).map(|step| Soaker::start(method.cpus, step));
        let before = soaker.as_ref().map_or(0, Soaker::count);
        let ran = measure(
            &load,
            *number,
            &mut frame(&load, ends.0, ends.1),
            (&mut *from, &mut *to),
            method.time,
        )?;
        let mut into = ran.fill(&load, Measurement::new(round, load, placement));
        if let (Some(soaker), Some(nanos)) = (&soaker, method.instruction_ns) {
            let busy = soaker.busy(ran.elapsed, soaker.count() - before);
            into = into.with(
                "instructions_per_op",
                busy.as_nanos() as f64 / nanos / ran.received.max(1) as f64,
            );
        }
        tell(&Event::Measured(into))?;
    }
    Ok(())
}

/// What DPDK's testpmd can say of a load: how many packets it receives while it sends as fast as it
/// can both ways, or how often one packet goes round, which is how long it takes.
fn forwarded(round: u32, load: &Loop, devices: &[Uri], time: Duration) -> Result<()> {
    let bytes = format!("--txpkts={}", load.bytes);
    let options = match load.pace {
        Pace::Stream => vec!["--forward-mode=flowgen", &bytes],
        Pace::Paced => vec!["--forward-mode=io", "--burst=1", &bytes],
    };
    let mut testpmd = Testpmd::start(devices, &options)?;
    testpmd.say(if load.pace == Pace::Stream { "start" } else { "start tx_first 1" })?;
    let _stress: Vec<_> = (0..load.stress).map(|_| Competitor::start(0)).collect::<Result<_>>()?;
    let rate = testpmd.received(time)?;
    let into = Measurement::new(round, load, "dpdk");
    tell(&Event::Measured(match load.pace {
        Pace::Stream => {
            into.with("packets_s", rate).with("mbit_s", rate * load.bytes as f64 * 8.0 / 1e6)
        }
        // One packet has begun at each card.
        Pace::Paced => into.with("latency_us_mean", 2e6 / rate.max(1e-9)),
    }))
}
