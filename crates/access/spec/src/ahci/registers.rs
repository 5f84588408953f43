//! The controller's own registers. [AHCI 3.1]

use crate::fields;
use crate::register::{Reg, Ro, Rw};

/// What the controller can. [AHCI 3.1.1]
pub const CAPABILITIES: Reg<Capabilities, Rw> = Reg::at(0x00);
/// Global control. [AHCI 3.1.2]
pub const CONTROL: Reg<Control, Rw> = Reg::at(0x04);
/// A bit for each port with an interrupt pending; cleared by a one, after the port's own status.
/// [AHCI 3.1.3]
pub const INTERRUPT_STATUS: Reg<u32, Rw> = Reg::at(0x08);
/// A bit for each port that there is. [AHCI 3.1.4]
pub const PORTS: Reg<u32, Rw> = Reg::at(0x0c);
/// Version, for example 0x0001_0301. [AHCI 3.1.5]
pub const VERSION: Reg<u32, Ro> = Reg::at(0x10);
/// What else it can. [AHCI 3.1.10]
pub const CAPABILITIES2: Reg<Capabilities2, Ro> = Reg::at(0x24);
/// Who owns it, firmware or system. [AHCI 3.1.11]
pub const HANDOFF: Reg<Handoff, Rw> = Reg::at(0x28);
/// Registers up to the first port's.
pub const LEN: u64 = 0x100;

fields! {
    /// CAP. [AHCI 3.1.1]
    pub struct Capabilities(u32) {
        /// NP: ports, less one.
        ports_0based, with_ports_0based: 4..=0;
        /// NCS: command slots of each port, less one.
        slots_0based, with_slots_0based: 12..=8;
        /// SPM: port multipliers can be attached.
        port_multiplier, with_port_multiplier: 17..=17;
        /// SAM: it is AHCI only; else GHC.AE switches it on.
        ahci_only, with_ahci_only: 18..=18;
        /// ISS: fastest speed: 1 is 1.5, 2 is 3, 3 is 6 Gbit/s.
        speed, with_speed: 23..=20;
        /// SCLO: a port's busy bit can be overridden (PxCMD.CLO).
        override_busy, with_override_busy: 24..=24;
        /// SSS: drives are spun up one by one.
        staggered, with_staggered: 27..=27;
        /// SNCQ: queued commands.
        queued, with_queued: 30..=30;
        /// S64A: addresses have 64 bits.
        wide, with_wide: 31..=31;
    }
}

fields! {
    /// GHC. [AHCI 3.1.2]
    pub struct Control(u32) {
        /// HR: reset; clears itself within a second. [AHCI 10.4.3]
        reset, with_reset: 0..=0;
        /// IE: interrupts reach the system.
        interrupts, with_interrupts: 1..=1;
        /// MRSM: several messages were asked for and it sends only one.
        single_message, with_single_message: 2..=2;
        /// AE: it is AHCI.
        enabled, with_enabled: 31..=31;
    }
}

fields! {
    /// CAP2. [AHCI 3.1.10]
    pub struct Capabilities2(u32) {
        /// BOH: the handoff register is there.
        handoff, with_handoff: 0..=0;
    }
}

fields! {
    /// BOHC. [AHCI 3.1.11]
    pub struct Handoff(u32) {
        /// BOS: firmware owns it.
        firmware, with_firmware: 0..=0;
        /// OOS: the system owns it, or asks for it.
        system, with_system: 1..=1;
        /// BB: firmware is busy with it.
        firmware_busy, with_firmware_busy: 4..=4;
    }
}

/// GHC.HR clears within this many milliseconds, or the controller is hung. [AHCI 10.4.3]
pub const RESET_MILLIS: u64 = 1000;
