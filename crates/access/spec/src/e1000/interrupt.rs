//! Interrupt causes and what they do. [82574 7.4, 10.2.4; 8254x 13.4.17]

use crate::fields;
use crate::register::{ReadClears, Reg, Rw, Wo};

/// ICR: causes since the last look. Reading clears them; with MSI-X only what is written as one is
/// cleared. [82574 10.2.4]
pub const CAUSE: Reg<Causes, ReadClears> = Reg::at(0x00c0);
/// ICR, as a place where ones clear causes. [82574 10.2.4]
pub const ACKNOWLEDGE: Reg<Causes, Wo> = Reg::at(0x00c0);
/// ITR: shortest time between two interrupts, pin and MSI. [82574 10.2.4]
pub const THROTTLE: Reg<Throttle, Rw> = Reg::at(0x00c4);
/// ICS: sets causes, as if they had come. [82574 10.2.4]
pub const CAUSE_SET: Reg<Causes, Wo> = Reg::at(0x00c8);
/// IMS: which causes interrupt; ones add. [82574 10.2.4]
pub const MASK_SET: Reg<Causes, Rw> = Reg::at(0x00d0);
/// IMC: ones take causes out of the mask. [82574 10.2.4]
pub const MASK_CLEAR: Reg<Causes, Wo> = Reg::at(0x00d8);
/// EIAC: causes that their message clears. 82574L. [82574 10.2.4]
pub const AUTO_CLEAR: Reg<Causes, Rw> = Reg::at(0x00dc);
/// IAM: causes that are masked by themselves; see CTRL_EXT. [82574 10.2.4]
pub const AUTO_MASK: Reg<Causes, Rw> = Reg::at(0x00e0);
/// IVAR: which vector each cause has. 82574L. [82574 10.2.4]
pub const VECTORS: Reg<Vectors, Rw> = Reg::at(0x00e4);

/// EITR: shortest time between two messages of `vector`, 0 to 4. 82574L. [82574 10.2.4]
pub const fn vector_throttle(vector: u32) -> Reg<Throttle, Rw> {
    Reg::at(0x00e8 + 4 * vector)
}

fields! {
    /// ICR, ICS, IMS, IMC, EIAC, IAM. [82574 10.2.4]
    pub struct Causes(u32) {
        /// TXDW: a transmit descriptor was written back.
        sent, with_sent: 0..=0;
        /// TXQE: the transmit ring is empty.
        transmit_empty, with_transmit_empty: 1..=1;
        /// LSC: the link has changed.
        link, with_link: 2..=2;
        /// RXDMT0: few receive descriptors are left.
        receive_low, with_receive_low: 4..=4;
        /// RXO: a frame found no room and is lost.
        overrun, with_overrun: 6..=6;
        /// RXT0: frames were received.
        received, with_received: 7..=7;
        /// MDAC: an access to the PHY is done.
        mdi, with_mdi: 9..=9;
        /// RxQ0, RxQ1: frames were received in queues 0 and 1. 82574L.
        receive_queues, with_receive_queues: 21..=20;
        /// TxQ0, TxQ1: descriptors were written back in queues 0 and 1. 82574L.
        transmit_queues, with_transmit_queues: 23..=22;
        /// Other: some cause that is no queue's. 82574L.
        other, with_other: 24..=24;
        /// INT_ASSERTED: one of the causes is not masked. 82574L.
        asserted, with_asserted: 31..=31;
    }
}

impl Causes {
    /// None.
    pub const NONE: Self = Self(0);
    /// All: to mask and to clear.
    pub const ALL: Self = Self(u32::MAX);
    /// All that have the vector of other causes, and that itself: LSC, RXO, MDAC, SRPD (16), ACK
    /// (17), MNG (18), Other. 82574L. [82574 7.4.3]
    pub const OTHERS: Self = Self(1 << 2 | 1 << 6 | 1 << 9 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 24);
}

fields! {
    /// ITR and EITR. [82574 10.2.4]
    pub struct Throttle(u32) {
        /// Interval in units of [`Throttle::UNIT_NANOS`]; 0 is none.
        interval, with_interval: 15..=0;
    }
}

impl Throttle {
    /// Nanoseconds of a unit.
    pub const UNIT_NANOS: u64 = 256;
}

fields! {
    /// IVAR. [82574 10.2.4]
    pub struct Vectors(u32) {
        /// INT_Alloc: vector of receive queue 0, and in the highest bit whether it has one.
        receive0, with_receive0: 3..=0;
        /// The same of receive queue 1.
        receive1, with_receive1: 7..=4;
        /// The same of transmit queue 0.
        transmit0, with_transmit0: 11..=8;
        /// The same of transmit queue 1.
        transmit1, with_transmit1: 15..=12;
        /// The same of all other causes.
        other, with_other: 19..=16;
        /// Transmit descriptors interrupt at each write-back.
        each_write_back, with_each_write_back: 31..=31;
    }
}

impl Vectors {
    /// In each field: it has a vector.
    pub const VALID: u32 = 1 << 3;
}
