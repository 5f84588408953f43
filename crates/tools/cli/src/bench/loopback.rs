//! `ring3 bench loopback`: two cards cabled together, with their drivers in the kernel, in the
//! measuring process, and DPDK's.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_bench::cpu::Soaker;
use ring3_bench::disk::Event;
use ring3_bench::net::Method;
use ring3_bench::net::loopback::{
    ClassPort, LOOPBACK_PLACEMENTS, Loop, Pace, PacketSocket, Port, frame, run as measure,
};
use ring3_bench::plot::draw_loopback;
use ring3_bench::report::Measurement;
use ring3_bench::table::render_loopback;
use ring3_class::net::Mac;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};
use ring3_lab::Guest;

use super::cards::dpdk::{self, Testpmd};
use super::cards::here::{link_up, method, rounds, tell};
use super::cards::stress::Competitor;
use super::cards::{Card, Options, guest};
use super::guest::NAME;
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
    /// Milliseconds of a load, by the guest's clock; 1,000 if it is not given.
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    millis: Option<u64>,
    /// A load: loop-60-stream (as fast as it is taken), loop-60-paced (one each millisecond), each
    /// with -stress behind it (beside four tasks that never sleep). May be repeated; without it,
    /// all of the page.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Loop>,
    /// A placement. May be repeated; without it, all.
    #[arg(long = "placement", value_name = "NAME", value_parser = LOOPBACK_PLACEMENTS)]
    placements: Vec<String>,
    /// The other interface of the kernel's pair.
    #[arg(long, hide = true)]
    other_interface: Option<String>,
    /// The other card of ring3's pair.
    #[arg(long, hide = true)]
    other_device: Option<Uri>,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn millis(&self) -> u64 {
        if self.options.quick { 100 } else { self.millis.unwrap_or(1000) }
    }

    fn loads(&self) -> Vec<Loop> {
        if self.loads.is_empty() { Loop::all() } else { self.loads.clone() }
    }

    fn placements(&self) -> Vec<String> {
        let all = || LOOPBACK_PLACEMENTS.map(str::to_owned).to_vec();
        if self.placements.is_empty() { all() } else { self.placements.clone() }
    }
}

/// The names of both pairs, and the number of the first card of each.
const PAIRS: [(&str, u8); 2] = [("kernel", 1), ("ring3", 3)];

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.options.here {
        return here(args).map(|()| ExitCode::SUCCESS);
    }
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let guest = dpdk::with(pairs(args, folder.path()))?;
    let words = words(args);
    let command = |first| {
        format!("{NAME}{}{INTERFACES}{}", dpdk::ROOT, guest::here(&args.options, &words, first))
    };
    let report = guest::run("loopback", &args.options, args.card, guest, &command, &|line| {
        serde_json::from_str(line).ok()
    })?;
    args.options.write(&report, Some(draw_loopback(&report)), render_loopback)?;
    Ok(ExitCode::SUCCESS)
}

/// Finds the interfaces of the kernel's cards, and names ring3's.
const INTERFACES: &str = r#"
interface() { for path in /sys/bus/pci/devices/$1/net/* /sys/bus/pci/devices/$1/virtio*/net/*; do [ -e "$path" ] && basename "$path"; done; }
card=$(interface $KERNEL1) other=$(interface $KERNEL2) RING3=$RING31
"#;

fn words(args: &Args) -> String {
    let words = format!(
        "loopback --other-interface $other --other-device vfio:$RING32 --millis {}",
        args.millis()
    );
    words + &guest::chosen(&args.loads(), &args.placements())
}

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
    guest::on_one_processor(&mut guest, &args.options);
    let loads = (args.loads().len() * args.placements().len()) as u32 * args.options.rounds();
    guest.time_limit = Duration::from_secs(600)
        + loads * (Duration::from_secs(60) + 10 * Duration::from_millis(args.millis()));
    guest
}

/// The rounds, in the guest.
fn here(args: &Args) -> Result<()> {
    let method = method(&args.options, args.millis())?;
    let interfaces = [&args.options.interface, &args.other_interface]
        .map(|name| name.as_deref().unwrap_or_default());
    interfaces.iter().try_for_each(|name| link_up(name))?;
    std::thread::sleep(LINKS);
    let devices = [&args.options.device, &args.other_device]
        .map(|device| device.clone().context("two cards are needed"));
    let [one, other] = devices;
    let devices = [one?, other?];
    let mut loads = 0;
    rounds(&args.options, &args.placements(), &mut |round, placement| match placement {
        "kernel" => {
            let [mut from, mut to] =
                [PacketSocket::open(interfaces[0])?, PacketSocket::open(interfaces[1])?];
            let ends = (guest::mac(PAIRS[0].1), guest::mac(PAIRS[0].1 + 1));
            study(args, (round, placement), &method, &mut loads, (&mut from, &mut to), ends)
        }
        "process" => {
            let [from, to] = [claim(&devices[0])?, claim(&devices[1])?];
            let ([one], [other]) = (&from.nics[..], &to.nics[..]) else {
                bail!("the devices are no network cards that ring3 drives")
            };
            let [mut out, mut into] = [ClassPort::open(&**one)?, ClassPort::open(&**other)?];
            std::thread::sleep(LINKS);
            let ends = (one.info().mac, other.info().mac);
            study(args, (round, placement), &method, &mut loads, (&mut out, &mut into), ends)
        }
        _ => args.loads().iter().try_for_each(|load| forwarded(round, load, &devices, method.time)),
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
    args: &Args,
    (round, placement): (u32, &str),
    method: &Method,
    number: &mut u32,
    (from, to): (&mut dyn Port, &mut dyn Port),
    ends: (Mac, Mac),
) -> Result<()> {
    for load in args.loads() {
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
