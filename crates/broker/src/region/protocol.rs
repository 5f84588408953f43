//! What a client and the server say to each other: JSON objects in packets of a socket that keeps their boundaries (SOCK_SEQPACKET), descriptors beside them.
//!
//! The client asks, the server answers, one after the other; [`Answer::Ended`] alone comes unasked, and last.

use serde::{Deserialize, Serialize};

/// The version of the messages. Both sides have the same, or part.
pub const VERSION: u32 = 1;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// First, with one descriptor: memory to be shared.
    Offer {
        /// The client's [`VERSION`].
        version: u32,
        /// Bytes of it.
        bytes: u64,
    },
    /// Takes it back: answered when nothing that is in flight lies there any more, and the device does not reach it.
    Revoke,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Ask::Offer`]: requests may lie there.
    Shared {
        /// Of these block devices.
        disks: Vec<String>,
    },
    /// To [`Ask::Revoke`]: they may not any more. Another region may be offered.
    Revoked,
    /// To either: it is not so, and why. Nothing has changed.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The server parts.
    Ended {
        /// Why.
        reason: String,
    },
}
