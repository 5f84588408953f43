//! A guest with two cards of one model, and who is at the other end of their cables.

use std::path::Path;

use anyhow::Result;
use ring3_bench::disk::Event;
use ring3_bench::journal::Journal;
use ring3_bench::net::{Wire, peer, streams};
use ring3_bench::report::{Lab, Report};
use ring3_class::net::Mac;
use ring3_lab::{Device, Guest};
use serde_json::json;

use super::here::{host, network};
use super::{Card, HOSTED, Options};
use crate::bench::campaign::complete;
use crate::bench::guest::{NAME, follow, with_this_program};
use crate::dde;
use crate::job::Job;

/// An instruction is 2^4 ns: 62.5 million a second, about as many as a host emulates beside a
/// card's work, so that the clocks of a guest that sleeps between packets and of who sends them
/// keep together.
pub const SHIFT: u32 = 4;
/// The same in nanoseconds.
pub const INSTRUCTION_NS: u32 = 1 << SHIFT;
/// For the arena.
const HUGE_PAGES: u32 = 64;

/// Finds the interface of the kernel's card: `$card`.
pub const INTERFACE: &str = r#"
for path in /sys/bus/pci/devices/$KERNEL/net/* /sys/bus/pci/devices/$KERNEL/virtio*/net/*; do
    [ -e "$path" ] && card=$(basename "$path")
done
"#;

impl Card {
    /// QEMU's model.
    pub fn model(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
            Self::VirtioNet => "virtio-net-pci",
        }
    }

    /// The module of the kernel's driver.
    pub fn module(self) -> &'static str {
        match self {
            Self::E1000 => "e1000",
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
            Self::VirtioNet => "virtio_net",
        }
    }

    /// A card called `id` on the near end of `wire`.
    pub fn device(self, id: &str, mac: Mac, wire: &Wire) -> Device {
        self.between(id, mac, wire.theirs(), wire.ours())
    }

    /// A card whose end of the cable is the socket `here`, and the other one's is `there`.
    pub fn between(self, id: &str, mac: Mac, here: &Path, there: &Path) -> Device {
        let end = |path: &Path| json!({ "type": "unix", "path": path.display().to_string() });
        let netdev = json!({ "type": "dgram", "local": end(here), "remote": end(there) });
        let device = Device { netdev: Some(netdev), ..Device::new(id, self.model()) };
        let device = device.option("mac", mac.to_string());
        if self == Self::VirtioNet { device.option("iommu_platform", true) } else { device }
    }
}

/// The address of the card whose number is `last`.
pub fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 9, 0, last])
}

/// The peers at the other ends of the two cards' cables, whose sockets are in `folder`.
pub fn peers(folder: &Path) -> Result<[Wire; 2]> {
    let wire = |name, last| peer(folder, name, Mac([2, 0, 0, 9, 0, last]));
    Ok([wire("kernel", 1)?, wire("ring3", 2)?])
}

/// Hosts that speak TCP and answer pings, at the other ends of the two cards' cables.
pub fn hosts(folder: &Path) -> Result<[Wire; 2]> {
    let wire = |name| {
        let number = network(name);
        streams(folder, name, Mac([2, 0, 0, 9, 1, number]), host(number, 2))
    };
    Ok([wire("kernel")?, wire("ring3")?])
}

/// A guest with one processor and two cards: `$KERNEL` for the kernel's driver, `$RING3` for
/// ring3's.
pub fn two_cards(name: &str, card: Card, options: &Options, [kernel, ring3]: &[Wire; 2]) -> Guest {
    let mut guest = Guest::new(name)
        .device(card.device("kernel", mac(1), kernel))
        .device(card.device("ring3", mac(2), ring3).bound("vfio-pci"))
        .module(card.module());
    guest = ["tun", "vhost_net", "vduse", "virtio_vdpa", "virtio_net"]
        .iter()
        .fold(guest, |guest, module| guest.module(module));
    on_one_processor(&mut guest, options);
    guest
}

/// With Linux's driver for `card` as a program, if it is among the placements. It is built if need
/// be, and has an arena of its own.
pub fn with_hosted(guest: Guest, card: Card, placements: &[String]) -> Result<Guest> {
    if !placements.iter().any(|name| name == HOSTED) {
        return Ok(guest);
    }
    let mut guest = dde::enter(guest, &[card.module().to_owned()])?;
    (guest.hugepages, guest.memory_mib) = (96, 1024.max(guest.memory_mib));
    Ok(guest)
}

/// A guest whose only processor does everything, by the clock of `options`.
pub fn on_one_processor(guest: &mut Guest, options: &Options) {
    guest.hugepages = guest.hugepages.max(HUGE_PAGES);
    // All that others do is done by this processor, as in the papers.
    guest.vcpus = Some(1);
    // The kernel's driver skips the IOMMU; what VFIO claims is behind it all the same.
    // What a kernel sends by itself to find its neighbours would be work of an idle card.
    guest.kernel_arguments = ["iommu=pt", "ipv6.disable=1"].map(Into::into).to_vec();
    guest.kernel.clone_from(&options.kernel);
    if options.instructions() {
        (guest.mode, guest.instruction_shift) = (ring3_lab::Mode::Instructions, Some(SHIFT));
    }
}

/// The benchmark called `bench` in `guest`, by the job that begins with a round, from where an
/// interrupted run of the same was.
pub fn measure(
    bench: &str,
    options: &Options,
    card: Card,
    guest: Guest,
    job: &dyn Fn(u32) -> Job,
) -> Result<Report> {
    let command = |first| Ok(format!("{NAME}{INTERFACE}{}", job(first).command()?));
    run(bench, options, card, guest, &command, &|line| serde_json::from_str(line).ok())
}

/// The same by `command`, which is made for the first round that is missing, and whose lines `read`
/// reads.
pub fn run(
    bench: &str,
    options: &Options,
    card: Card,
    guest: Guest,
    command: &dyn Fn(u32) -> Result<String>,
    read: &dyn Fn(&str) -> Option<Event>,
) -> Result<Report> {
    std::fs::create_dir_all(&options.out)?;
    let rounds = options.rounds();
    let plan = [options.kernel.clone(), card.model().into(), command(1)?];
    let mut journal =
        Journal::open(&options.out.join(format!("{bench}-{}.rounds", options.mode.name())), &plan)?;
    if journal.finished() > 0 {
        errln!("{} finished rounds are there already", journal.finished());
    }
    let guest = with_this_program(guest)?;
    let instruction_ns =
        guest.instruction_shift.filter(|_| options.instructions()).map_or(0, |shift| 1 << shift);
    let mut done = |event: &Event| {
        if let Event::Round { round } = event {
            errln!("round {round} of {rounds} is done");
        }
    };
    let (lab, measured) = complete(&mut journal, rounds, &mut done, |first, progress| {
        follow(&guest.step("measure", &command(first)?), &mut |line| read(line), progress)
    })?;
    let lab = Lab { disk: card.model().into(), instruction_ns, quick: options.quick, ..lab };
    let report = Report::new(bench, lab, &measured);
    journal.close()?;
    Ok(report)
}
