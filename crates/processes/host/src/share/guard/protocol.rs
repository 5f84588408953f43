//! What an exporting process and its guard say to each other: an order, its answer, one after the
//! other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Of these messages: a guard may be older than who takes its devices over.
pub(super) const VERSION: u32 = 1;

/// A client's memory, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Its index.
    pub index: u16,
}

/// What the guard is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// First, by who has started it: the function that writes clients' memory, if it is one of this
    /// machine's; and where to hear the next exporting process, if its devices outlive this one.
    Watch { function: Option<String>, successors: Option<PathBuf> },
    /// First, by the next one.
    TakeOver { version: u32, function: Option<String> },
    /// What the one before has left: region number `place`.
    Region { place: usize },
    /// The same of clients.
    Client { place: usize },
    /// With `/dev/ublkcN`, which it keeps open.
    Hold { id: u32 },
    /// With memory that was checked.
    Register { id: u32, bytes: u64 },
    /// With the socket of a client that has heard that its memory is `keys`: it is kept for the
    /// next exporting process.
    Keep { keys: Vec<Key> },
    /// No request may lie there any more. A client that had it hears of no other process.
    Forget { key: Key },
    /// The devices are gone, in good order.
    Release,
}

/// What it answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Done,
    /// With these devices.
    TakenOver {
        ids: Vec<u32>,
    },
    /// With its descriptor.
    Region {
        key: Key,
    },
    /// With its socket.
    Client {
        keys: Vec<Key>,
    },
    Registered {
        index: u16,
    },
    Failed {
        reason: String,
    },
}
