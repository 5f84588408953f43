//! `ring3 bench forward`: a card's packets forwarded by ring3 and by DPDK, in one guest, in turns.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Others;
use ring3_bench::net::{Circle, Forwarding};
use ring3_bench::report::{Lab, Measurement, Report};
use ring3_bench::table::render_forward;
use ring3_class::net::Mac;
use ring3_lab::{Cache, DEFAULT_KERNEL, Device, Event as LabEvent, Guest, Mode, Need, Outcome, prepare};
use serde_json::{Value, json};

use super::guest::{NAME, with_this_program};
use crate::leave;

/// An instruction is 2^4 ns: 62.5 million a second.
const SHIFT: u32 = 4;
const INSTRUCTION_NS: f64 = (1 << SHIFT) as f64;
/// Of 2 MiB, for DPDK's memory, which is in these alone, and for our arena.
const HUGE_PAGES: u32 = 96;
/// The card's address.
const CARD: Mac = Mac([0x52, 0x54, 0, 9, 0, 2]);

/// Options of `ring3 bench forward`.
#[derive(clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// The guest's kernel, by version prefix.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Rounds, in each of which both have their turn with each kind of forwarding.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds of a turn, by the guest's clock.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// One round of a second.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// Folder for forward.json.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// A card of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Card {
    /// The 82574L.
    E1000e,
    /// The 82576.
    Igb,
    /// virtio's.
    VirtioNet,
}

/// Functions of the step. A line that begins with `forwarded` is a turn's result.
const PRELUDE: &str = r#"set -e
mkdir -p /dpdk
tar -xf /dpdk.tar -C /dpdk
for folder in dev proc sys; do mkdir -p /dpdk/$folder; mount -o bind /$folder /dpdk/$folder; done
mkdir -p /dpdk/tmp /dpdk/var/run
mkfifo /tmp/say
# Both of testpmd's threads are on the one processor; that of its prompt sleeps.
dpdk() {
    chroot /dpdk /usr/bin/dpdk-testpmd --lcores '(0,1)@0' --no-telemetry --in-memory --iova-mode=va -m 64 -a $CARD -- \
        --forward-mode=$1 --record-core-cycles --total-num-mbufs=4096 --nb-cores=1 --rxd=256 --txd=256 -i </tmp/say >/tmp/pmd 2>&1 & pmd=$!
    # It writes when its buffer is full, and at its end: nothing can be waited for.
    { echo start; sleep 5; echo 'show port info 0'; echo 'clear fwd stats all'; echo 'show port stats 0'; sleep $2; echo 'show port stats 0'; echo stop; echo quit; } >/tmp/say
    wait $pmd && grep -q 'Link status: up' /tmp/pmd || { cat /tmp/pmd; return 1; }
    echo "forwarded dpdk $1 {\"packets_s\": $(sed -n 's/.*Rx-pps: *\([0-9]*\).*/\1/p' /tmp/pmd | tail -n 1), \"ticks_per_packet\": $(sed -n 's/.*CPU cycles\/packet=\([0-9.]*\) .*/\1/p' /tmp/pmd | tail -n 1)}"
}
ring3s() { echo "forwarded process-polled $1 $(ring3 net bench --device vfio:$CARD --irq poll --forward $1 --seconds $2 --json)"; }
"#;

impl Card {
    fn model(self) -> &'static str {
        match self {
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
            Self::VirtioNet => "virtio-net-pci",
        }
    }

    fn device(self, circle: &Circle) -> Device {
        let end = |path: &Path| json!({ "type": "unix", "path": path.display().to_string() });
        let netdev = json!({ "type": "dgram", "local": end(circle.theirs()), "remote": end(circle.ours()) });
        let device = Device { netdev: Some(netdev), ..Device::new("card", self.model()).bound("vfio-pci") };
        let device = device.option("mac", CARD.to_string());
        if self == Self::VirtioNet { device.option("iommu_platform", true) } else { device }
    }
}

/// Measures, and writes the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let report = measure(args)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let text = serde_json::to_string_pretty(&report)?;
    let path = args.out.join("forward.json");
    std::fs::write(&path, format!("{text}\n")).with_context(|| format!("writing {}", path.display()))?;
    if args.json {
        outln!("{text}")
    } else {
        outln!("\n{}", render_forward(&report))
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args) -> Result<Report> {
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Dpdk], &mut |line| errln!("{line}"))?;
    let folder = tempfile::tempdir()?;
    let circle = Circle::new(folder.path(), CARD)?;
    let (rounds, seconds) = if args.quick { (1, 1) } else { (args.rounds, args.seconds) };
    let guest = with_this_program(guest(args, &circle, &cache, rounds * seconds))?;
    let guest = guest.step("measure", &format!("{NAME}{PRELUDE}{}", turns(rounds, seconds)));
    let (mut measured, mut others) = (Vec::new(), Others::start());
    let outcome = guest.run(&cache, &mut |event| match event {
        LabEvent::Progress(line) => errln!("{line}"),
        LabEvent::Line(line) => measured.extend(turn(line, rounds)),
        _ => {}
    })?;
    drop(circle);
    check(&outcome, &measured)?;
    let busy = others.as_mut().and_then(Others::percent);
    measured.extend(busy.map(|busy| Measurement::new(1, "host", "host").with("others_percent", busy)));
    let (kernel, qemu) = (outcome.kernel, outcome.qemu);
    let (mode, disk) = ("instructions".into(), args.card.model().into());
    let lab = Lab { kernel, qemu, mode, vcpus: 1, instruction_ns: INSTRUCTION_NS as u32, disk };
    Ok(Report::new("forward", lab, &measured))
}

fn guest(args: &Args, circle: &Circle, cache: &Cache, seconds: u32) -> Guest {
    let mut guest = Guest::new("forward").device(args.card.device(circle)).file("/dpdk.tar", &cache.path("dpdk/dpdk.tar"));
    guest.kernel.clone_from(&args.kernel);
    guest.memory_mib = 768;
    guest.hugepages = HUGE_PAGES;
    guest.vcpus = Some(1);
    (guest.mode, guest.instruction_shift) = (Mode::Instructions, Some(SHIFT));
    // A second of the guest's may take several of the host's.
    guest.time_limit = Duration::from_secs(600) + seconds * Duration::from_secs(40);
    guest
}

/// Every other round goes the other way round, so that nobody always follows the same one.
fn turns(rounds: u32, seconds: u32) -> String {
    let each = |round: u32| {
        let who = if round % 2 == 1 { ["ring3s", "dpdk"] } else { ["dpdk", "ring3s"] };
        Forwarding::ALL.map(|forwarding| who.map(|who| format!("{who} {} {seconds}\n", forwarding.name())).concat()).concat()
    };
    (1..=rounds).map(each).collect()
}

/// What a line of the guest's says of a turn.
fn turn(line: &str, rounds: u32) -> Option<Measurement> {
    let mut words = line.strip_prefix("forwarded ")?.splitn(3, ' ');
    let (placement, forwarding) = (words.next()?, words.next()?);
    let said: Value = serde_json::from_str(words.next()?).ok()?;
    let (packets, ticks) = (said["packets_s"].as_f64()?, said["ticks_per_packet"].as_f64()?);
    errln!("{forwarding}, {placement}: {:.0} instructions per packet, {packets:.0} packets a second", ticks / INSTRUCTION_NS);
    // By this clock the counter of time stamps counts nanoseconds.
    let measured = Measurement::new(rounds, forwarding, placement).with("packets_s", packets);
    Some(measured.with("instructions_per_op", ticks / INSTRUCTION_NS))
}

fn check(outcome: &Outcome, measured: &[Measurement]) -> Result<()> {
    if !outcome.succeeded() || measured.is_empty() {
        bail!("the measurement in the guest failed (exit code {}):\n{}{}", outcome.exit, outcome.output(), outcome.messages);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turns_line_is_read_and_others_are_none() {
        let one = turn("forwarded dpdk io {\"packets_s\": 1000, \"ticks_per_packet\": 1600.5}", 1).unwrap();
        assert_eq!((one.placement.as_str(), one.workload.as_str()), ("dpdk", "io"));
        assert_eq!((one.values["packets_s"], one.values["instructions_per_op"]), (1000.0, 1600.5 / 16.0));
        for line in ["", "forwarded", "forwarded dpdk io {}", "forwarded dpdk io {\"packets_s\": , }", "else dpdk io {}"] {
            assert!(turn(line, 1).is_none(), "{line}");
        }
    }

    #[test]
    fn both_begin_equally_often() {
        assert_eq!(
            turns(2, 3),
            "ring3s io 3\ndpdk io 3\nring3s macswap 3\ndpdk macswap 3\ndpdk io 3\nring3s io 3\ndpdk macswap 3\nring3s macswap 3\n"
        );
    }
}
