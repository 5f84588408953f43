//! The registers of a port. [AHCI 3.3]

use crate::ata::{ErrorBits, Status};
use crate::fields;
use crate::register::{Reg, Ro, Rw};

/// Bytes of a port's registers.
pub const STRIDE: u32 = 0x80;

macro_rules! port_registers {
    ($($(#[$meta:meta])* $name:ident: $t:ty, $access:ident @ $offset:literal;)*) => {$(
        $(#[$meta])*
        pub const fn $name(port: u8) -> Reg<$t, $access> {
            Reg::at(0x100 + port as u32 * STRIDE + $offset)
        }
    )*};
}

port_registers! {
    /// PxCLB: device address of the command list, low half. [AHCI 3.3.1]
    command_list: u32, Rw @ 0x00;
    /// PxCLBU: high half. [AHCI 3.3.2]
    command_list_high: u32, Rw @ 0x04;
    /// PxFB: device address of the received frames, low half. [AHCI 3.3.3]
    received: u32, Rw @ 0x08;
    /// PxFBU: high half. [AHCI 3.3.4]
    received_high: u32, Rw @ 0x0c;
    /// PxIS: what has happened; cleared by ones. [AHCI 3.3.5]
    interrupt_status: Interrupts, Rw @ 0x10;
    /// PxIE: which of it raises the interrupt. [AHCI 3.3.6]
    interrupt_enable: Interrupts, Rw @ 0x14;
    /// PxCMD: command and status. [AHCI 3.3.7]
    command: Command, Rw @ 0x18;
    /// PxTFD: the drive's status and error. [AHCI 3.3.8]
    task_file: TaskFileData, Ro @ 0x20;
    /// PxSIG: the drive's signature after a reset. [AHCI 3.3.9]
    signature: u32, Ro @ 0x24;
    /// PxSSTS: the link. [AHCI 3.3.10]
    sata_status: SataStatus, Ro @ 0x28;
    /// PxSCTL: link control. [AHCI 3.3.11]
    sata_control: SataControl, Rw @ 0x2c;
    /// PxSERR: errors of the link; cleared by ones. [AHCI 3.3.12]
    sata_error: SataError, Rw @ 0x30;
    /// PxSACT: queued commands that have not ended, a bit for each tag; set before PxCI. [AHCI
    /// 3.3.13]
    active: u32, Rw @ 0x34;
    /// PxCI: commands handed to the port, a bit for each slot; writing ones adds. [AHCI 3.3.14]
    issue: u32, Rw @ 0x38;
}

fields! {
    /// PxIS and PxIE. [AHCI 3.3.5]
    pub struct Interrupts(u32) {
        /// DHR: a register frame with the interrupt bit came: a command has ended.
        register_frame, with_register_frame: 0..=0;
        /// PS: a PIO set-up frame came.
        pio_frame, with_pio_frame: 1..=1;
        /// DS: a DMA set-up frame came.
        dma_frame, with_dma_frame: 2..=2;
        /// SDB: a set-device-bits frame came: queued commands have ended.
        device_bits, with_device_bits: 3..=3;
        /// UF: an unknown frame came.
        unknown_frame, with_unknown_frame: 4..=4;
        /// DP: a region with its interrupt bit was done.
        region_done, with_region_done: 5..=5;
        /// PC: a drive was plugged in or out; cleared by PxSERR.DIAG.X.
        connect_change, with_connect_change: 6..=6;
        /// PRC: the link became ready or not; cleared by PxSERR.DIAG.N.
        phy_change, with_phy_change: 22..=22;
        /// IPM: a frame from a port multiplier that was not asked.
        multiplier, with_multiplier: 23..=23;
        /// OF: more bytes than there is memory for.
        overflow, with_overflow: 24..=24;
        /// INF: an error on the link that was mended.
        interface_nonfatal, with_interface_nonfatal: 26..=26;
        /// IF: an error on the link; the port has stopped.
        interface_fatal, with_interface_fatal: 27..=27;
        /// HBD: an access to memory failed in its data (parity).
        memory_data, with_memory_data: 28..=28;
        /// HBF: an access to memory failed (abort); the port has stopped.
        memory_fatal, with_memory_fatal: 29..=29;
        /// TFE: the drive's status has ERR: the port has stopped.
        task_file_error, with_task_file_error: 30..=30;
        /// CPD: cold presence changed.
        presence, with_presence: 31..=31;
    }
}

impl Interrupts {
    /// What stops a port until it is started again. [AHCI 6.1.9]
    pub const FATAL: Self = Self(0)
        .with_task_file_error(1)
        .with_memory_fatal(1)
        .with_memory_data(1)
        .with_interface_fatal(1);
}

fields! {
    /// PxCMD. [AHCI 3.3.7]
    pub struct Command(u32) {
        /// ST: commands are taken from the list.
        start, with_start: 0..=0;
        /// SUD: the drive is spun up.
        spin_up, with_spin_up: 1..=1;
        /// POD: the drive has power.
        power_on, with_power_on: 2..=2;
        /// CLO: override BSY and DRQ; clears itself.
        override_busy, with_override_busy: 3..=3;
        /// FRE: frames are received.
        receive, with_receive: 4..=4;
        /// FR: receiving runs.
        receiving, with_receiving: 14..=14;
        /// CR: the list runs.
        running, with_running: 15..=15;
        /// ICC: state of the link asked for; 1 is active.
        link_state, with_link_state: 31..=28;
    }
}

fields! {
    /// PxTFD. [AHCI 3.3.8]
    pub struct TaskFileData(u32) {
        /// The drive's status register.
        status_bits, with_status_bits: 7..=0;
        /// The drive's error register.
        error_bits, with_error_bits: 15..=8;
    }
}

impl TaskFileData {
    /// The drive's status.
    pub const fn status(self) -> Status {
        Status(self.status_bits() as u8)
    }
    /// Why the last command failed.
    pub const fn error(self) -> ErrorBits {
        ErrorBits(self.error_bits() as u8)
    }
}

fields! {
    /// PxSSTS. [AHCI 3.3.10]
    pub struct SataStatus(u32) {
        /// DET: 0 nobody, 1 somebody without a link, 3 a drive with a link, 4 off.
        detection, with_detection: 3..=0;
        /// SPD: speed of the link.
        speed, with_speed: 7..=4;
        /// IPM: 1 is active.
        power, with_power: 11..=8;
    }
}

impl SataStatus {
    /// DET: a drive is there and the link is up.
    pub const LINKED: u32 = 3;
}

fields! {
    /// PxSCTL. [AHCI 3.3.11]
    pub struct SataControl(u32) {
        /// DET: 1 resets the link for as long as it stands, at least a millisecond; 4 switches it
        /// off.
        detection, with_detection: 3..=0;
        /// SPD: fastest speed allowed; 0 is any.
        speed, with_speed: 7..=4;
        /// IPM: power states that are forbidden; 3 forbids them all.
        power, with_power: 11..=8;
    }
}

fields! {
    /// PxSERR. [AHCI 3.3.12]
    pub struct SataError(u32) {
        /// ERR: what went wrong.
        errors, with_errors: 15..=0;
        /// DIAG: what it was about; bit 10 (X) a drive was exchanged, bit 0 (N) the link changed.
        diagnostics, with_diagnostics: 31..=16;
    }
}

/// PxCMD.CR and FR follow ST and FRE within this many milliseconds. [AHCI 10.1.2]
pub const STOP_MILLIS: u64 = 500;
