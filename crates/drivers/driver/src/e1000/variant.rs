//! The members of the family, and where they differ.

use ring3_spec::e1000::{
    DEVICE_82540EM, DEVICE_82545EM, DEVICE_82573E, DEVICE_82573L, DEVICE_82574L, DEVICE_82574LA,
    DEVICE_82576, DEVICE_82583V, MSIX_VECTORS,
};

/// What the driver drives, by device id.
pub(super) const DEVICES: [u16; 8] = [
    DEVICE_82540EM,
    DEVICE_82545EM,
    DEVICE_82573E,
    DEVICE_82573L,
    DEVICE_82574L,
    DEVICE_82574LA,
    DEVICE_82583V,
    DEVICE_82576,
];

/// The largest MTU of which frames fit into the card with a tag and their FCS. [82574 10.2.5]
const JUMBO: u32 = 9000;
/// The MTU of cards that take no longer frames. [Linux, e1000_82573_info]
const STANDARD: u32 = 1500;

/// One member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Its maker's name for it.
    pub(super) model: &'static str,
    /// How it is programmed.
    pub(super) family: Family,
    /// Queues of which the driver uses each for both directions.
    pub(super) queues: u16,
    /// MSI-X vectors that the driver uses at most.
    pub(super) vectors: u16,
    /// The largest MTU.
    pub(super) mtu: u32,
    /// How it is shared with firmware and with the other port.
    pub(super) ownership: Ownership,
    /// What its errata take.
    pub(super) errata: Errata,
}

/// How a member is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// PCI, legacy descriptors to receive, one queue, one interrupt. [8254x]
    I8254x,
    /// PCI Express, extended descriptors to receive; the 82574 has MSI-X. Its second queue is not
    /// used. [82574]
    I82574,
    /// PCI Express, advanced descriptors both ways, registers and a vector for each queue. [82576]
    I82576,
}

/// How a driver gets PHY and NVM for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// They are the driver's.
    Always,
    /// EXTCNF_CTRL, held meanwhile. [82574 10.2.2]
    Configuration,
    /// SWSM, held meanwhile. [Linux, e1000_get_hw_semaphore_82571]
    Semaphore,
    /// SW_FW_SYNC, changed under SWSM. [82576 4.7]
    Resources,
}

/// Bits that a member wants beside what the others have, and what it must not be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Errata {
    /// GCR, GCR2 and TARC0 as Linux sets them: otherwise completions get lost, and the transmitter
    /// hangs. [Linux, e1000_initialize_hw_bits]
    pub(super) loses_completions: bool,
    /// IPv6 extension headers that are malformed hang the receiver: it must not read them. [Linux,
    /// e1000_initialize_hw_bits]
    pub(super) hangs_by_extensions: bool,
    /// Linux never leaves the headers of a large send alone in their descriptor, as this driver
    /// does: the card cuts nothing. [Linux, e1000_xmit_frame]
    pub(super) hangs_by_headers: bool,
    /// Firmware looks at SWSM for a driver, not at CTRL_EXT. [Linux, FLAG_HAS_SWSM_ON_LOAD]
    pub(super) loaded_in_semaphore: bool,
}

impl Variant {
    /// The member with this device id.
    pub(super) fn of(device: u16) -> Option<Self> {
        Some(match device {
            DEVICE_82540EM => Self::of_8254x("82540EM"),
            DEVICE_82545EM => Self::of_8254x("82545EM"),
            DEVICE_82573E => Self::of_82573("82573E/V"),
            DEVICE_82573L => Self::of_82573("82573L"),
            DEVICE_82574L => Self::of_82574("82574L", MSIX_VECTORS.min(2)),
            DEVICE_82574LA => Self::of_82574("82574LA", MSIX_VECTORS.min(2)),
            // It has no MSI-X. [Linux, e1000_82583_info]
            DEVICE_82583V => Self::of_82574("82583V", 0),
            DEVICE_82576 => Self {
                model: "82576",
                family: Family::I82576,
                queues: 8,
                vectors: 9,
                mtu: JUMBO,
                ownership: Ownership::Resources,
                errata: Errata::default(),
            },
            _ => return None,
        })
    }

    fn of_8254x(model: &'static str) -> Self {
        Self {
            model,
            family: Family::I8254x,
            queues: 1,
            vectors: 0,
            mtu: JUMBO,
            ownership: Ownership::Always,
            errata: Errata::default(),
        }
    }

    /// It takes no longer frames than those of the standard MTU. [Linux, e1000_82573_info]
    fn of_82573(model: &'static str) -> Self {
        Self {
            model,
            family: Family::I82574,
            queues: 1,
            vectors: 0,
            mtu: STANDARD,
            ownership: Ownership::Semaphore,
            errata: Errata {
                hangs_by_extensions: true,
                hangs_by_headers: true,
                loaded_in_semaphore: true,
                ..Errata::default()
            },
        }
    }

    fn of_82574(model: &'static str, vectors: u16) -> Self {
        Self {
            model,
            family: Family::I82574,
            queues: 1,
            vectors,
            mtu: JUMBO,
            ownership: Ownership::Configuration,
            errata: Errata { loses_completions: true, ..Errata::default() },
        }
    }
}

impl Family {
    /// It can be told to begin no transfer, says when the last has ended, and when its NVM was
    /// read: CTRL.GIO_MASTER_DISABLE, EEC.Auto_RD.
    pub(super) fn is_express(self) -> bool {
        self != Self::I8254x
    }

    /// DD in the second word of a received descriptor.
    pub(super) fn received_bit(self) -> u32 {
        if self == Self::I8254x { 32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_id_is_a_member() {
        assert!(DEVICES.iter().all(|device| Variant::of(*device).is_some()));
        assert_eq!(Variant::of(0x10d4), None);
    }
}
