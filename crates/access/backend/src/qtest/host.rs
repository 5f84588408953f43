//! The machines that a device under test can sit in: whose QEMU, and where it has configuration
//! space, ports and memory.
//!
//! # References
//! - `[ICH9]` Intel I/O Controller Hub 9, 316972, and the 3 Series MCH, 316966: configuration
//!   window
//! - `[21272]` Tsunami/Typhoon 21272 Chipset Hardware Reference Manual, EC-RE72A-TE, October 1999:
//!   chapters 10 and 11

use ring3_device::Error;

use super::wire::Wire;

/// Where q35's configuration window is put: a megabyte per bus. [PCIe 7.2.2]
const ECAM: u64 = 0xb000_0000;
/// The registers of configuration access by ports, and in the host bridge's space the one that
/// places the window.
const CONFIG_ADDRESS: u64 = 0xcf8;
const CONFIG_DATA: u64 = 0xcfc;
const PCIEXBAR: u64 = 0x60;
/// First window of the Typhoon's Pchip 0: base and enable bit, mask, and where in memory it leads.
/// [21272 10.2.5]
const WINDOW_BASE: u64 = 0x801_8000_0000;
const WINDOW_MASK: u64 = WINDOW_BASE + 0x100;
const WINDOW_TARGET: u64 = WINDOW_BASE + 0x200;

/// One machine.
pub(super) struct Host {
    /// File name of its QEMU, the variable that names another, and the package that has it.
    pub(super) program: &'static str,
    pub(super) variable: &'static str,
    pub(super) package: &'static str,
    /// What `lab/setup.sh` calls it: argument and folder in the cache.
    pub(super) need: &'static str,
    /// What `-machine` says.
    pub(super) machine: &'static str,
    /// The slot of the device under test on bus 0.
    pub(super) slot: u8,
    /// Configuration space of slot 0, shift from a slot to its own, and bytes of one function.
    pub(super) config: (u64, u32, u64),
    /// Where ports appear in memory; `None` if the processor has instructions for them.
    pub(super) ports: Option<u64>,
    /// Whether interrupts can be seen: an I/O APIC for the pins, and a doorbell for the messages.
    /// Its processor then runs firmware that halts; without, the processor does not run at all.
    pub(super) interrupts: bool,
    /// What is to be written when it has started or was reset: verb, address, value.
    setup: &'static [(&'static str, u64, u64)],
}

/// The PC: for every device that QEMU can plug in.
pub(super) const Q35: Host = Host {
    program: "qemu-system-x86_64",
    variable: "RING3_QEMU",
    package: "qemu-system-x86",
    need: "tools",
    machine: "q35,hpet=off,smm=off,vmport=off",
    slot: 4,
    config: (ECAM, 15, 4096),
    ports: None,
    interrupts: true,
    setup: &[("outl", CONFIG_ADDRESS, 1 << 31 | PCIEXBAR), ("outl", CONFIG_DATA, ECAM | 1)],
};

/// The AlphaServer DS20: its own IDE controller is a CMD646, which no QEMU has as a device to plug
/// into a PC.
pub(super) const CLIPPER: Host = Host {
    program: "qemu-system-alpha",
    variable: "RING3_QEMU_ALPHA",
    package: "qemu-system-misc",
    need: "alpha",
    machine: "clipper",
    slot: 1,
    config: (0x801_fe00_0000, 11, 256),
    ports: Some(0x801_fc00_0000),
    interrupts: false,
    // Device addresses below 2 GiB are memory.
    setup: &[
        ("writeq", WINDOW_BASE, 1),
        ("writeq", WINDOW_MASK, 0x7ff0_0000),
        ("writeq", WINDOW_TARGET, 0),
    ],
};

impl Host {
    /// Makes configuration space and memory reachable; once after the start and after a reset.
    pub(super) fn set_up(&self, wire: &Wire) -> Result<(), Error> {
        self.setup.iter().try_for_each(|(verb, at, value)| {
            wire.ask(format_args!("{verb} {at:#x} {value:#x}")).map(drop)
        })
    }
}
