//! What the user of a card can choose.

use std::time::Duration;

use ring3_class::net::Throttle;
use ring3_device::wait::DEFAULT_POLL;
use serde::{Deserialize, Serialize};

use crate::Interrupts;

/// How a card is driven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// How it signals.
    pub interrupts: Interrupts,
    /// How long a wait polls before it sleeps.
    pub poll: Duration,
    /// Shortest time between two interrupts of a queue. A queue that is polled has none.
    // Of its name there once was a time.
    #[serde(default, rename = "interrupt_throttle")]
    pub throttle: Throttle,
    /// How long the transmitter may make no progress with a link.
    pub hang: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interrupts: Interrupts::Auto,
            poll: DEFAULT_POLL,
            throttle: Throttle::Off,
            hang: Duration::from_secs(2),
        }
    }
}
