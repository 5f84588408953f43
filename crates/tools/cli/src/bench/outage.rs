//! `ring3 bench outage`: for how long an interface is silent when its card's driver is killed.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::net::watch;
use ring3_bench::report::{Lab, Report};
use ring3_bench::restart::{outages, percentile};
use ring3_bench::table::render_figures;
use ring3_lab::{Cache, DEFAULT_KERNEL, Event, Guest};
use serde::{Deserialize, Serialize};

use super::cards::Card;
use super::cards::guest::{hosts, mac};
use super::cards::here::{address, host};
use super::guest::{NAME, with_this_program};
use super::restart::Supervised;
use super::ring3d::with_supervisor;
use crate::dde;
use crate::job::Job;
use crate::leave;

/// The interface, and the device's name in the manifest.
const INTERFACE: &str = "lan";
/// The number of the cable's network.
const NETWORK: u8 = 1;
/// From one kill to the next, at least: a driver that is there again has served for a while.
const INTERVAL: Duration = Duration::from_secs(1);

/// Has ring3d keep the card, and returns when its interface is there.
const SUPERVISE: &str = r#"
mkdir -p /etc/ring3
{
    printf '[device.lan]\nmatch = { address = "%s" }\n' $CARD
    [ -z "$DRIVER" ] || printf 'driver = "%s"\n' $DRIVER
    printf '[device.lan.export]\nkind = "tap"\n'
    printf '[device.lan.restart]\nburst = 1000000\nwindow_s = 1\nbackoff_ms = 1\n'
} >/etc/ring3/lan.toml
ring3d >/tmp/ring3d.log 2>&1 & RING3D=$!
for try in $(seq 600); do [ -d /sys/class/net/lan ] && break; sleep 0.05; done
"#;

/// Options of `ring3 bench outage`.
#[derive(clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// Host Linux's driver of that card in the process that is killed, in the place of ring3's own.
    /// It is built if necessary.
    #[arg(long)]
    hosted: bool,
    /// Number of drivers to kill, from 1 to 10,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Kill 3 drivers only, as a trial.
    #[arg(long, conflicts_with = "kills")]
    quick: bool,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Folder for the report outage.json. Created if it is missing.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// What the guest is asked for.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    kills: u32,
}

/// What was seen. docs/bench.md describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The running kernel's release.
    pub kernel: String,
    /// Drivers that were killed.
    pub kills: u32,
    /// Pings, one each 10 ms.
    pub sent: u64,
    /// Of these, those that were answered within a second.
    pub answered: u64,
    /// Milliseconds from a kill to the first answer after the silence that it caused: the median.
    pub outage_ms_p50: f64,
    /// 99 % took no longer.
    pub outage_ms_p99: f64,
    /// None took longer.
    pub outage_ms_max: f64,
    /// Milliseconds of these from the supervisor's seeing the death to the interface being served
    /// again, without the link's negotiation: the median.
    pub driver_ms_p50: f64,
}

/// Measures, and writes the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let folder = tempfile::tempdir().context("making a folder for the cable")?;
    let [_, wire] = hosts(folder.path())?;
    let card = args.card.device("card", mac(2), &wire).bound("vfio-pci");
    let mut guest = with_supervisor(with_this_program(Guest::new("outage"))?)?.device(card);
    let kills = if args.quick { 3 } else { args.kills };
    let driver = if args.hosted { format!("dde:{}", args.card.module()) } else { String::new() };
    if args.hosted {
        guest = dde::enter(guest, &[args.card.module().to_owned()])?;
    }
    guest = ["tun", "vhost_net"].iter().fold(guest, |guest, module| guest.module(module));
    guest.kernel.clone_from(&args.kernel);
    guest.memory_mib = 1024;
    guest.hugepages = 64;
    guest.time_limit = Duration::from_secs(300) + Duration::from_secs(40) * kills;
    let job = Job::Outage(Task { kills }).command()?;
    let guest = guest.variable("DRIVER", &driver).step(
        "measure",
        &format!("{NAME}{SUPERVISE}{job} || {{ tail -n 40 /tmp/ring3d.log; exit 1; }}"),
    );
    let outcome = guest.run(&Cache::open()?, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) if !line.starts_with('{') => errln!("{line}"),
        _ => {}
    })?;
    let output = outcome.output();
    let found = output.lines().filter(|line| line.starts_with('{'));
    let found: Option<Outcome> = found.rev().find_map(|line| serde_json::from_str(line).ok());
    let Some(found) = found.filter(|_| outcome.succeeded()) else {
        bail!(
            "the measurement in the guest failed (exit code {}):\n{output}\n{}",
            outcome.exit,
            outcome.messages
        )
    };
    let lab = Lab {
        kernel: found.kernel.clone(),
        qemu: outcome.qemu.clone(),
        mode: "wall".into(),
        vcpus: 2,
        disk: args.card.model().into(),
        ..Lab::default()
    };
    let placement = if args.hosted { "hosted" } else { "supervised" };
    let report = Report::of("outage", lab, ("ping", placement), &found)?;
    report.write(&args.out.join("outage.json"))?;
    let text = if args.json { report.text()? } else { render_figures(&report) };
    crate::output::write(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

/// Kills and watches, in the guest.
pub fn here(task: &Task) -> Result<()> {
    address(INTERFACE, host(NETWORK, 1))?;
    let peer: Ipv4Addr = host(NETWORK, 2);
    let socket = std::path::Path::new(ring3_control::admin::SOCKET);
    let mut device = Supervised::connect(socket, INTERFACE)?;
    let (seen, killed) = watch(peer, || kill_each(&mut device, task.kills))?;
    let (times, driver_ms) = killed?;
    let outages = outages(&seen.pauses, &times);
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&outages, share));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let outcome = Outcome {
        kernel: kernel.trim().into(),
        kills: task.kills,
        sent: seen.sent,
        answered: seen.answered,
        outage_ms_p50: p50,
        outage_ms_p99: p99,
        outage_ms_max: max,
        driver_ms_p50: percentile(&driver_ms, 0.5),
    };
    outln!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// When each of the drivers was killed, and how long the supervisor says that each restart took.
fn kill_each(device: &mut Supervised, kills: u32) -> Result<(Vec<u64>, Vec<f64>)> {
    let (mut times, mut took) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        let status = device.ready(0)?;
        std::thread::sleep(INTERVAL);
        times.push(device.kill(&status)?);
        device.ready(status.restarts + status.upgrades + 1)?;
        took.extend(device.outage()?.and_then(|outage| outage.total_ms));
        // The link of a card needs some seconds to be negotiated; pings are answered after that.
        std::thread::sleep(INTERVAL * 3);
    }
    Ok((times, took))
}
