//! Registers of the PHY that every PHY has, reached through [MDIC](super::general::MDI). [802.3
//! 22.2.4]

use crate::fields;

/// Control. [802.3 22.2.4.1]
pub const CONTROL: u8 = 0;
/// Status. [802.3 22.2.4.2]
pub const STATUS: u8 = 1;
/// Identifier, high half. [802.3 22.2.4.3]
pub const ID_HIGH: u8 = 2;
/// Identifier, low half: model and revision.
pub const ID_LOW: u8 = 3;
/// What is offered to the partner. [802.3 28.2.4.1.3]
pub const ADVERTISEMENT: u8 = 4;
/// What the partner offers.
pub const PARTNER: u8 = 5;
/// Control of 1000BASE-T. [802.3 40.5.1.1]
pub const GIGABIT_CONTROL: u8 = 9;
/// Status of 1000BASE-T.
pub const GIGABIT_STATUS: u8 = 10;

fields! {
    /// Control. [802.3 22.2.4.1]
    pub struct Control(u16) {
        /// Full duplex, without negotiation.
        full_duplex, with_full_duplex: 8..=8;
        /// Negotiate again; clears itself.
        restart, with_restart: 9..=9;
        /// Power down.
        power_down, with_power_down: 11..=11;
        /// Negotiate.
        negotiate, with_negotiate: 12..=12;
        /// Reset; clears itself.
        reset, with_reset: 15..=15;
    }
}

fields! {
    /// Status. [802.3 22.2.4.2]
    pub struct Status(u16) {
        /// Link: stays 0 after a loss until it is read.
        link, with_link: 2..=2;
        /// It can negotiate.
        negotiates, with_negotiates: 3..=3;
        /// Negotiation is done.
        negotiated, with_negotiated: 5..=5;
        /// There is extended status: 1000BASE-T.
        extended, with_extended: 8..=8;
    }
}

/// A reset of the PHY ends within this, in milliseconds. [802.3 22.2.4.1.1]
pub const RESET_MILLIS: u64 = 500;
