//! `ring3 bench dde`: a card by Linux's own driver, in the kernel and hosted in a process, side by
//! side, after Weisbach 2011.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::stand_back;
use ring3_bench::disk::Event;
use ring3_bench::net::hosted::{
    Extent, HOSTED_PLACEMENTS, HOSTED_USUAL, HostedLoad, Pinger, Services, measure_hosted,
};
use ring3_bench::plot::draw_distributions;
use ring3_bench::report::Measurement;
use ring3_bench::table::render_hosted;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, Requirements};
use ring3_lab::{Device, Guest};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use super::cards::here::{Interface, NAME, address, host, rounds, tell};
use super::cards::{Card, Choice, Options, Study, Task, guest};
use super::guest::NAME as PROGRAM;
use crate::dde::{Built, SONAME, build};
use crate::job::Job;
use crate::leave;

/// Bytes of the arena of the card that asks.
const ARENA: usize = 8 << 20;
/// The driver that is hosted, which is the thesis's.
const DRIVER: &str = "e1000e";
/// Where the guest has it.
const HOSTED: &str = "/job/hosted";

/// Options of `ring3 bench dde`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// Echo requests of each load, from 10 to 1,000,000; 128 with --quick. The thesis has the
    /// default.
    #[arg(
        long, conflicts_with = "quick", default_value_t = 1 << 14,
        value_parser = clap::value_parser!(u32).range(10..=1_000_000),
    )]
    samples: u32,
    #[command(flatten)]
    choice: Choice<Hosting>,
}

/// What is measured.
#[derive(Clone)]
struct Hosting;

impl Study for Hosting {
    type Load = HostedLoad;
    const LOADS: &'static str = "icmp-56 (one echo request at a time), udp-1472-echo, udp-1472-in, \
        tcp-1460-in or tcp-1460-out. Default: all of docs/bench.md";
    const PLACEMENTS: &'static [&'static str] = &HOSTED_PLACEMENTS;
    const USUAL_PLACEMENTS: &'static str = "Default: all that wait for interrupts. The \
        others poll; for them the guest has a second processor";
    const MILLIS: (u64, u64) = (500, 20);

    fn loads(_: &Options) -> Vec<HostedLoad> {
        HostedLoad::all()
    }

    fn placements() -> Vec<&'static str> {
        HOSTED_PLACEMENTS[..HOSTED_USUAL].to_vec()
    }
}

impl Args {
    fn samples(&self) -> u32 {
        if self.choice.options.quick { 128 } else { self.samples }
    }
}

fn is_polled(placement: &str) -> bool {
    placement.ends_with("-polled")
}

/// Microseconds after which a driver that polls would sleep: longer than anything is waited for
/// here.
const POLLED: &str = "1000000";

/// The numbers of the cards: the kernel's, the hosted one, and the one that asks.
const CARDS: [(&str, u8); 3] = [("kernel", 1), ("ring3", 2), ("peer", 3)];

/// Measures, and writes report and figures.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let Built { program, library, .. } = build(DRIVER, true)?;
    let guest = three_cards(args)
        .file(&format!("{HOSTED}/dde-{DRIVER}"), &program)
        .file(&format!("{HOSTED}/{SONAME}"), &library.join(SONAME));
    let options = &args.choice.options;
    let command = |first| {
        let task = args.choice.task(first).and(None, "vfio:$PEER");
        let job = Job::Hosted { samples: args.samples(), task }.command()?;
        Ok(format!("{PROGRAM}{}chmod +x {HOSTED}/*\n{job}", guest::INTERFACE))
    };
    let report = guest::run("dde", options, Card::E1000e, guest, &command, &|line| {
        serde_json::from_str(line).ok()
    })?;
    fs::write(options.out.join("dde-latencies.svg"), draw_distributions(&report)?)
        .context("writing dde-latencies.svg")?;
    options.write(&report, true, render_hosted)?;
    Ok(ExitCode::SUCCESS)
}

/// A guest with three cards on one wire within QEMU.
fn three_cards(args: &Args) -> Guest {
    let mut guest = Guest::new("dde").module(Card::E1000e.module()).module("tun");
    for (id, last) in CARDS {
        let device = Device { netdev: Some(json!("hub")), ..Device::new(id, Card::E1000e.model()) };
        let device = device.option("mac", guest::mac(last).to_string());
        guest = guest.device(if id == "kernel" { device } else { device.bound("vfio-pci") });
    }
    guest::on_one_processor(&mut guest, &args.choice.options);
    (guest.hugepages, guest.memory_mib) = (96, 1024.max(guest.memory_mib));
    if args.choice.placements().iter().any(|placement| is_polled(placement)) {
        // One of them never sleeps.
        guest.vcpus = Some(2);
    }
    let each = Duration::from_secs(20) + Duration::from_millis(4 * u64::from(args.samples()));
    guest.time_limit = args.choice.time_limit(Duration::from_secs(600), each);
    guest
}

/// The rounds, in the guest.
pub fn here(samples: u32, task: &Task) -> Result<()> {
    let claim = Claim { settings: Settings::default(), ..Claim::new(task.device(1)?) };
    let needs =
        Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: Some(Duration::ZERO) };
    let Attached { nics, driven: _driven, .. } = claim.open(&needs)?;
    let [nic] = &nics[..] else { bail!("the device is no network card that ring3 drives") };
    let mut pinger = Pinger::open(&**nic)?;
    address(task.interface(0)?, host(place("kernel"), 1))?;
    let _services = Services::start()?;
    let extent = Extent {
        samples: samples as usize,
        time: Duration::from_millis(task.millis),
        instruction_ns: task.instructions.then_some(f64::from(guest::INSTRUCTION_NS)),
        driver: None,
    };
    rounds(task, &mut |round, placement| turn(task, &extent, &mut pinger, (round, placement)))
}

/// The number of a placement's network: each has its own.
fn place(placement: &str) -> u8 {
    HOSTED_PLACEMENTS.iter().position(|name| *name == placement).unwrap_or_default() as u8
}

fn turn(
    task: &Task,
    extent: &Extent,
    pinger: &mut Pinger<'_>,
    (round, placement): (u32, &str),
) -> Result<()> {
    let loads = task.loads::<HostedLoad>()?;
    let network = place(placement);
    let lwip = format!("{}/24", host(network, 1));
    let start = |words: &[&str]| Hosted::start(task, &[words, &["--arena", "32"]].concat());
    let socket = tempfile::tempdir()?;
    let path = socket.path().join("card");
    let (hosted, _interface) = match placement {
        "kernel" => (None, None),
        "hosted-raw" => (Some(start(&["--reflect"])?), None),
        "hosted-raw-copy" => (Some(start(&["--reflect", "--dma", "copy"])?), None),
        "hosted-raw-msi" => (Some(start(&["--reflect", "--no-msix"])?), None),
        "hosted-lwip" => (Some(start(&["--lwip", &lwip])?), None),
        "hosted-lwip-copy" => (Some(start(&["--lwip", &lwip, "--dma", "copy"])?), None),
        "hosted-raw-polled" => (Some(start(&["--reflect", "--no-msix", "--poll", POLLED])?), None),
        "hosted-lwip-polled" => {
            (Some(start(&["--lwip", &lwip, "--no-msix", "--poll", POLLED])?), None)
        }
        "hosted-lwip-msi" => (Some(start(&["--lwip", &lwip, "--no-msix"])?), None),
        _ => {
            let socket = path.display().to_string();
            let polled =
                if is_polled(placement) { &["--no-msix", "--poll", POLLED][..] } else { &[] };
            let hosted = start(&[&["--socket", &socket][..], polled].concat())?;
            let card = format!("remote:{socket}");
            let words = ["run", "net", "--json", "--name", NAME, "--device", &card];
            (Some(hosted), Some(on_processor(0, || Interface::start(&words, host(network, 1)))?))
        }
    };
    let extent = Extent { driver: hosted.as_ref().map(|hosted| hosted.0.id()), ..*extent };
    let card = CARDS[usize::from(placement != "kernel")].1;
    // In a thread of its own, as who has stood back cannot come forward again.
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            stand_back(0);
            pinger.point(host(network, 2), (guest::mac(card), host(network, 1)))?;
            for load in loads.iter().filter(|load| load.suits(placement)) {
                let into = Measurement::new(round, load, placement);
                let measured = measure_hosted(pinger, load, &extent, into)
                    .with_context(|| load.to_string())?;
                tell(&Event::Measured(measured))?;
            }
            Ok(())
        });
        asking.join().map_err(|_| anyhow::anyhow!("the thread that asks has panicked"))?
    })
}

/// Has whoever `starts` is started run on one processor: a process has those of the thread that
/// starts it. With a second processor, that is the driver's alone.
fn on_processor<T: Send>(number: usize, starts: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let starting = scope.spawn(|| {
            let mut own = CpuSet::new();
            own.set(number);
            sched_setaffinity(None, &own)?;
            starts()
        });
        starting.join().unwrap_or_else(|_| bail!("the thread that starts it has panicked"))
    })
}

/// A hosted driver, until this is dropped.
struct Hosted(Child);

impl Hosted {
    /// Starts it, and returns when its link is up.
    fn start(task: &Task, words: &[&str]) -> Result<Self> {
        let device = task.device(0)?;
        let program = PathBuf::from(HOSTED).join(format!("dde-{DRIVER}"));
        let mut command = Command::new(&program);
        command.args(["--device", &device.to_string()]).args(words).env("LD_LIBRARY_PATH", HOSTED);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let child = on_processor(last, || Ok(command.spawn()?));
        // From here on a failure ends it.
        let mut hosted = Self(child.with_context(|| format!("starting {}", program.display()))?);
        let lines = hosted.0.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            if line.contains(r#""link":true"#) {
                return Ok(hosted);
            }
        }
        bail!("the hosted driver has ended before its link was up");
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // Fails only if it has ended already, which is what is wanted.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}
