//! A guest with two cards of one model, and who is at the other end of their cables.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_bench::cpu::Others;
use ring3_bench::disk::Event;
use ring3_bench::net::Wire;
use ring3_bench::report::{Lab, Measurement, Report};
use ring3_class::net::Mac;
use ring3_lab::{Cache, Device, Event as LabEvent, Guest};
use serde_json::json;

use super::{Args, Card, Mode};
use crate::bench::guest::{NAME, with_this_program};

/// An instruction is 2^4 ns: 62.5 million a second, about as many as a host emulates beside a card's work, so that the clocks of a guest that sleeps between packets and of who sends them keep together.
const SHIFT: u32 = 4;
/// The same in nanoseconds.
pub const INSTRUCTION_NS: u32 = 1 << SHIFT;
/// For the arena.
const HUGE_PAGES: u32 = 64;

/// Finds the interface of the kernel's card: `$card`.
pub const INTERFACE: &str = r#"
for path in /sys/bus/pci/devices/$KERNEL/net/* /sys/bus/pci/devices/$KERNEL/virtio*/net/*; do [ -e "$path" ] && card=$(basename "$path"); done
"#;

impl Card {
    /// QEMU's model, and the module of the kernel's driver.
    fn model(self) -> (&'static str, &'static str) {
        match self {
            Self::E1000e => ("e1000e", "e1000e"),
            Self::VirtioNet => ("virtio-net-pci", "virtio_net"),
        }
    }

    fn device(self, id: &str, last: u8, wire: &Wire) -> Device {
        let (model, _) = self.model();
        let end = |path: &Path| json!({ "type": "unix", "path": path.display().to_string() });
        let netdev = json!({ "type": "dgram", "local": end(wire.theirs()), "remote": end(wire.ours()) });
        let device = Device { netdev: Some(netdev), ..Device::new(id, model) };
        let device = device.option("mac", Mac([0x52, 0x54, 0, 9, 0, last]).to_string());
        if self == Self::VirtioNet { device.option("iommu_platform", true) } else { device }
    }
}

/// Boots, measures, and makes a report of it.
pub fn measure(args: &Args) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let wires = wires(folder.path())?;
    let guest = with_this_program(guest(args, &wires))?.step("measure", &command(args));
    let (lab, measured) = follow(&guest, args.rounds())?;
    let instruction_ns = if args.mode == Mode::Instructions { INSTRUCTION_NS } else { 0 };
    let lab = Lab { disk: args.card.model().0.into(), instruction_ns, ..lab };
    Ok(Report::new("udp-echo", lab, &measured))
}

/// The peers at the other ends of the two cards' cables, whose sockets are in `folder`.
pub fn wires(folder: &Path) -> Result<[Wire; 2]> {
    let wire = |name, last| Wire::new(folder, name, Mac([2, 0, 0, 9, 0, last]));
    Ok([wire("kernel", 1)?, wire("ring3", 2)?])
}

/// Runs `guest`, which tells its steps as lines of JSON: where it ran, and what was measured.
pub fn follow(guest: &Guest, rounds: u32) -> Result<(Lab, Vec<Measurement>)> {
    let (mut lab, mut measured, mut others) = (Lab::default(), Vec::new(), None);
    let outcome = guest.run(&Cache::open()?, &mut |event| match event {
        LabEvent::Progress(line) => errln!("{line}"),
        LabEvent::Line(line) => match serde_json::from_str(line) {
            // Also the second boot of a guest whose QEMU failed.
            Ok(Event::Begin(here)) => (lab, measured, others) = (here, Vec::new(), Others::start()),
            Ok(Event::Measured(one)) => measured.push(one),
            Ok(Event::Round { round }) => {
                errln!("round {round} of {rounds} is done");
                let busy = others.as_mut().and_then(Others::percent);
                measured.extend(busy.map(|busy| Measurement::new(round, "host", "host").with("others_percent", busy)));
            }
            _ => {}
        },
        _ => {}
    })?;
    if !outcome.succeeded() {
        let said: Vec<_> = outcome.output().lines().filter(|line| !line.starts_with('{')).map(str::to_owned).collect();
        bail!("the measurement in the guest failed (exit code {}):\n{}\n{}", outcome.exit, said.join("\n"), outcome.messages);
    }
    Ok((Lab { qemu: outcome.qemu, ..lab }, measured))
}

/// A guest called `name` with one processor and two cards: `$KERNEL` for the kernel's driver, `$RING3` for ring3's.
pub fn two_cards(name: &str, card: Card, [kernel, ring3]: &[Wire; 2]) -> Guest {
    let mut guest = Guest::new(name)
        .device(card.device("kernel", 1, kernel))
        .device(card.device("ring3", 2, ring3).bound("vfio-pci"))
        .module(card.model().1)
        .module("tun");
    guest.hugepages = HUGE_PAGES;
    // All that others do is done by this processor, as in the papers.
    guest.vcpus = Some(1);
    // The kernel's driver skips the IOMMU; what VFIO claims is behind it all the same.
    guest.kernel_arguments = vec!["iommu=pt".into()];
    guest
}

fn guest(args: &Args, wires: &[Wire; 2]) -> Guest {
    let mut guest = two_cards("udp-echo", args.card, wires);
    guest.kernel.clone_from(&args.kernel);
    if args.mode == Mode::Instructions {
        guest.mode = ring3_lab::Mode::Instructions;
        guest.instruction_shift = Some(SHIFT);
    }
    let loads = args.loads().len() as u32 * args.placements().len() as u32 * args.rounds();
    guest.time_limit = Duration::from_secs(300) + loads * (Duration::from_secs(3) + 6 * Duration::from_millis(args.millis()));
    guest
}

fn command(args: &Args) -> String {
    let mode = if args.mode == Mode::Instructions { "instructions" } else { "wall" };
    let mut words = format!("ring3 bench udp-echo --here --interface $card --device vfio:$RING3 --mode {mode}");
    words += &format!(" --rounds {} --millis {}", args.rounds(), args.millis());
    args.loads().iter().for_each(|load| words += &format!(" --load {load}"));
    args.placements().iter().for_each(|placement| words += &format!(" --placement {placement}"));
    format!("{NAME}{INTERFACE}{words}")
}
