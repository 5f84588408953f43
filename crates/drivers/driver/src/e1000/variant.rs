//! The members of the family, and where they differ.

use ring3_spec::e1000::{
    DEVICE_82540EM, DEVICE_82545EM, DEVICE_82574L, DEVICE_82576, MSIX_VECTORS,
};

/// What the driver drives, by device id.
pub(super) const DEVICES: [u16; 4] = [DEVICE_82540EM, DEVICE_82545EM, DEVICE_82574L, DEVICE_82576];

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
}

/// How a member is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// PCI, legacy descriptors to receive, one queue, one interrupt. [8254x]
    I8254x,
    /// PCI Express, extended descriptors to receive, MSI-X. Its second queue is not used. [82574]
    I82574,
    /// PCI Express, advanced descriptors both ways, registers and a vector for each queue. [82576]
    I82576,
}

impl Variant {
    /// The member with this device id.
    pub(super) fn of(device: u16) -> Option<Self> {
        let legacy = |model| Self { model, family: Family::I8254x, queues: 1, vectors: 0 };
        match device {
            DEVICE_82540EM => Some(legacy("82540EM")),
            DEVICE_82545EM => Some(legacy("82545EM")),
            DEVICE_82574L => Some(Self {
                model: "82574L",
                family: Family::I82574,
                queues: 1,
                vectors: MSIX_VECTORS.min(2),
            }),
            DEVICE_82576 => {
                Some(Self { model: "82576", family: Family::I82576, queues: 8, vectors: 9 })
            }
            _ => None,
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
