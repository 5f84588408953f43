//! General registers. [82574 10.2.2; 8254x 13.4]

use crate::fields;
use crate::register::{Reg, Ro, Rw};

/// CTRL: device control. [82574 10.2.2]
pub const CONTROL: Reg<Control, Rw> = Reg::at(0x0000);
/// STATUS: link and state of the device. [82574 10.2.2]
pub const STATUS: Reg<Status, Ro> = Reg::at(0x0008);
/// EEC: what the NVM is and who reads it. [82574 10.2.2]
pub const NVM_CONTROL: Reg<NvmControl, Rw> = Reg::at(0x0010);
/// EERD: reads a word of the NVM; [`nvm`](super::nvm) has its fields, which differ. [82574 10.2.2;
/// 8254x 13.4.4]
pub const NVM_READ: Reg<u32, Rw> = Reg::at(0x0014);
/// CTRL_EXT: more of device control. [82574 10.2.2]
pub const CONTROL_EXTENDED: Reg<ControlExtended, Rw> = Reg::at(0x0018);
/// MDIC: an access to a register of the PHY. [82574 10.2.2]
pub const MDI: Reg<Mdi, Rw> = Reg::at(0x0020);
/// FCAL: destination of pause frames, low half. [82574 10.2.2]
pub const FLOW_ADDRESS_LOW: Reg<u32, Rw> = Reg::at(0x0028);
/// FCAH: high half.
pub const FLOW_ADDRESS_HIGH: Reg<u32, Rw> = Reg::at(0x002c);
/// FCT: type of pause frames.
pub const FLOW_TYPE: Reg<u32, Rw> = Reg::at(0x0030);
/// VET: type of VLAN frames, 0x8100. [82574 10.2.2]
pub const VLAN_TYPE: Reg<u32, Rw> = Reg::at(0x0038);
/// EXTCNF_CTRL: who has the PHY and the NVM, driver or firmware. 82573, 82574, 82583. [82574
/// 10.2.2]
pub const EXTENDED_CONFIGURATION: Reg<ExtendedConfiguration, Rw> = Reg::at(0x0f00);
/// GCR: how the card uses PCI Express. [82574 10.2.2]
pub const EXPRESS_CONTROL: Reg<ExpressControl, Rw> = Reg::at(0x5b00);
/// SWSM: held while [`RESOURCES`] is changed, and on the 82573 while PHY and NVM are used. 82573,
/// 82576. [82576 8.16.1; Linux, e1000_get_hw_semaphore_82571]
pub const SEMAPHORE: Reg<Semaphore, Rw> = Reg::at(0x5b50);
/// SW_FW_SYNC: who has what ports and firmware share. 82576. [82576 8.16.2]
pub const RESOURCES: Reg<Resources, Rw> = Reg::at(0x5b5c);
/// GCR2: more of it. 82574, 82583. The data sheet does not have it. [Linux,
/// e1000_initialize_hw_bits]
pub const EXPRESS_CONTROL2: Reg<ExpressControl2, Rw> = Reg::at(0x5b64);
/// PBA: KiB of the packet buffer that are the receiver's; the rest is the transmitter's. [82574
/// 10.2.2]
pub const PACKET_BUFFER: Reg<PacketBuffer, Rw> = Reg::at(0x1000);
/// EEMNGCTL: the PHY has its configuration from the NVM when `CONFIGURED` is set. 82574L. [82574
/// 10.2.2]
pub const MANAGEMENT_CONTROL: Reg<u32, Rw> = Reg::at(0x1010);

/// `MANAGEMENT_CONTROL`: configuration done.
pub const CONFIGURED: u32 = 1 << 18;

fields! {
    /// CTRL. [82574 10.2.2]
    pub struct Control(u32) {
        /// FD: full duplex, if it is forced.
        full_duplex, with_full_duplex: 0..=0;
        /// GIO Master Disable: start no more transfers. 82574L. [82574 5.2]
        master_disable, with_master_disable: 2..=2;
        /// LRST: resets the link. 8254x.
        link_reset, with_link_reset: 3..=3;
        /// ASDE: the speed is what the PHY has found.
        auto_speed, with_auto_speed: 5..=5;
        /// SLU: the MAC may have a link.
        link_up, with_link_up: 6..=6;
        /// ILOS: the PHY's loss of signal is inverted.
        invert_loss, with_invert_loss: 7..=7;
        /// SPEED: forced speed: 10, 100, 1000 Mb/s.
        speed, with_speed: 9..=8;
        /// FRCSPD: the speed is forced.
        force_speed, with_force_speed: 11..=11;
        /// FRCDPLX: the duplex is forced.
        force_duplex, with_force_duplex: 12..=12;
        /// RST: resets all but the PHY; clears itself. [82574 4.6.2]
        reset, with_reset: 26..=26;
        /// RFCE: received pause frames stop the transmitter.
        receive_pause, with_receive_pause: 27..=27;
        /// TFCE: a full packet buffer sends pause frames.
        send_pause, with_send_pause: 28..=28;
        /// VME: VLAN tags are taken out of what is received, and put in where a descriptor says so.
        vlan, with_vlan: 30..=30;
        /// PHY_RST: resets the PHY for as long as it stands.
        phy_reset, with_phy_reset: 31..=31;
    }
}

fields! {
    /// STATUS. [82574 10.2.2]
    pub struct Status(u32) {
        /// FD: the link is full duplex.
        full_duplex, with_full_duplex: 0..=0;
        /// LU: the link is up.
        link, with_link: 1..=1;
        /// LAN ID: which port of the card it is. 82576. [82576 8.2.2]
        port, with_port: 3..=2;
        /// TXOFF: a pause frame has stopped the transmitter.
        paused, with_paused: 4..=4;
        /// SPEED: of the link; 2 and 3 are 1000 Mb/s.
        speed, with_speed: 7..=6;
        /// PHYRA: the PHY has been reset since software cleared this.
        phy_was_reset, with_phy_was_reset: 10..=10;
        /// GIO Master Enable Status: transfers are under way or may begin. 82574L. [82574 5.2]
        master, with_master: 19..=19;
    }
}

impl Status {
    /// Mb/s of the link.
    pub const fn megabits(self) -> u32 {
        match self.speed() {
            0 => 10,
            1 => 100,
            _ => 1000,
        }
    }
}

fields! {
    /// EEC. [82574 10.2.2]
    pub struct NvmControl(u32) {
        /// EE_PRES: there is an NVM with a valid signature.
        present, with_present: 8..=8;
        /// Auto_RD: the controller has read what it needs after a reset. 82574L.
        auto_read_done, with_auto_read_done: 9..=9;
        /// NVM type: [`NvmControl::FLASH`] where the NVM is a Flash. 82573, 82574, 82583. [Linux,
        /// e1000_init_nvm_params_82571]
        kind, with_kind: 16..=15;
        /// AUPDEN: the controller updates the Flash by itself. [Linux,
        /// e1000_init_nvm_params_82571]
        auto_update, with_auto_update: 20..=20;
    }
}

impl NvmControl {
    /// NVM type: a Flash, of which the controller keeps a copy.
    pub const FLASH: u32 = 3;
}

fields! {
    /// CTRL_EXT. [82574 10.2.2]
    pub struct ControlExtended(u32) {
        /// EE_RST: read the NVM as after power-on.
        nvm_reset, with_nvm_reset: 13..=13;
        /// Reserved: one in a card that runs. 82573, 82574, 82583. [Linux,
        /// e1000_initialize_hw_bits]
        reserved_one, with_reserved_one: 22..=22;
        /// Reserved: zero in a card that runs. 82573, 82574, 82583. [Linux,
        /// e1000_initialize_hw_bits]
        reserved_zero, with_reserved_zero: 23..=23;
        /// EIAME: a message masks its causes that IAM names. 82574L. [82574 7.4.5]
        auto_mask, with_auto_mask: 24..=24;
        /// IAME: reading or writing ICR masks the causes that IAM names. [82574 7.4.5]
        mask_on_read, with_mask_on_read: 27..=27;
        /// DRV_LOAD: a driver has the device; firmware looks at it.
        driver_loaded, with_driver_loaded: 28..=28;
        /// PBA_support: a message clears its pending bit itself. 82574L.
        pending_clear, with_pending_clear: 31..=31;
    }
}

fields! {
    /// EXTCNF_CTRL. [82574 10.2.2]
    pub struct ExtendedConfiguration(u32) {
        /// MDIO SW ownership: a driver has the PHY and the NVM. It stays zero while firmware has
        /// them.
        software_owns, with_software_owns: 5..=5;
    }
}

fields! {
    /// GCR. [82574 10.2.2]
    pub struct ExpressControl(u32) {
        /// Reserved: one in a card that runs. 82574L. [Linux, e1000_initialize_hw_bits]
        reserved_one, with_reserved_one: 22..=22;
    }
}

fields! {
    /// GCR2. [Linux, e1000_initialize_hw_bits]
    pub struct ExpressControl2(u32) {
        /// Completions do not get lost. Without it they may, above all with ASPM, and the
        /// transmitter hangs then.
        keep_completions, with_keep_completions: 0..=0;
    }
}

fields! {
    /// SWSM. [82576 8.16.1]
    pub struct Semaphore(u32) {
        /// SMBI: a driver has it. Reading it sets it.
        driver, with_driver: 0..=0;
        /// SWESMBI: drivers have it. It stays zero while firmware has it.
        software, with_software: 1..=1;
        /// DRV_LOAD: a driver has the device; firmware looks at it. 82573. [Linux,
        /// e1000e_get_hw_control]
        driver_loaded, with_driver_loaded: 3..=3;
    }
}

fields! {
    /// SW_FW_SYNC. [82576 8.16.2]
    pub struct Resources(u32) {
        /// What drivers have: [`nvm_and_phy`](Self::nvm_and_phy).
        software, with_software: 15..=0;
        /// The same of firmware.
        firmware, with_firmware: 31..=16;
    }
}

impl Resources {
    /// The NVM, and the PHY of `port`.
    pub const fn nvm_and_phy(port: u32) -> u32 {
        1 | 2 << (port & 1)
    }
}

fields! {
    /// MDIC. [82574 10.2.2]
    pub struct Mdi(u32) {
        /// DATA: to write, or as read.
        data, with_data: 15..=0;
        /// REGADD: the PHY's register.
        register, with_register: 20..=16;
        /// PHYADD: which PHY; the internal one is [`Mdi::INTERNAL`].
        phy, with_phy: 25..=21;
        /// OP: [`Mdi::WRITE`] or [`Mdi::READ`].
        operation, with_operation: 27..=26;
        /// R: the access is done; cleared when one begins.
        ready, with_ready: 28..=28;
        /// I: interrupt at its end.
        interrupt, with_interrupt: 29..=29;
        /// E: the access failed.
        error, with_error: 30..=30;
    }
}

impl Mdi {
    /// OP: write.
    pub const WRITE: u32 = 1;
    /// OP: read.
    pub const READ: u32 = 2;
    /// PHYADD of the PHY in the controller.
    pub const INTERNAL: u32 = 1;
}

fields! {
    /// PBA. [82574 10.2.2]
    pub struct PacketBuffer(u32) {
        /// RXA: KiB for what is received.
        receive_kib, with_receive_kib: 15..=0;
        /// TXA: KiB for what is sent; follows from the other.
        transmit_kib, with_transmit_kib: 31..=16;
    }
}

/// No register may be touched for this long after CTRL.RST, in microseconds. [82574 4.6.2]
pub const RESET_QUIET_MICROS: u64 = 1;
/// A reset and the reading of the NVM behind it are done within this, in milliseconds. The data
/// sheet names no longest time; typical is some milliseconds. [82574 4.6.2]
pub const RESET_MILLIS: u64 = 100;
/// What is under way over PCI has ended this long after both directions were switched off, in
/// milliseconds: cards without CTRL.GIO_MASTER_DISABLE cannot say. 8254x. A frame takes 0.1 ms at
/// most at 1000 Mb/s.
pub const SETTLE_MILLIS: u64 = 10;
/// The EEPROM was read this long after CTRL.RST, in milliseconds, by cards without EEC.Auto_RD.
/// 8254x. [8254x 14.4]
pub const AUTO_READ_MILLIS: u64 = 5;
/// Firmware gives the PHY up for a reset within this, in milliseconds. [Linux,
/// MDIO_OWNERSHIP_TIMEOUT]
pub const RESET_OWNERSHIP_MILLIS: u64 = 40;
/// The controller is quiet for this long after CTRL.RST before CTRL_EXT.EE_RST has it read a Flash,
/// in microseconds. [Linux, e1000_reset_hw_82571]
pub const FLASH_QUIET_MICROS: u64 = 20;
/// The PHY has its configuration this long after EEC.Auto_RD, in milliseconds. 82573, 82574, 82583.
/// [Linux, e1000_reset_hw_82571]
pub const PHY_CONFIGURATION_MILLIS: u64 = 25;
/// Transfers that are under way end within this after CTRL.GIO_MASTER_DISABLE, in milliseconds.
/// [82574 5.2]
pub const MASTER_MILLIS: u64 = 100;
/// Others have the NVM or the PHY no longer than this, in milliseconds. [82576 4.7; as long as
/// Linux waits]
pub const OWNERSHIP_MILLIS: u64 = 1000;
/// An access to the PHY ends within this, in microseconds: 64 bits at 2.5 MHz, many times over.
/// [82574 10.2.2]
pub const MDI_MICROS: u64 = 10_000;
