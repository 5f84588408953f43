//! What a client and the server say to each other, beside the rings: JSON objects in packets of a
//! socket that keeps their boundaries (SOCK_SEQPACKET), descriptors beside them.
//!
//! The client asks, the server answers, one after the other; [`Answer::Ended`] alone comes unasked,
//! and last.

use ring3_class::block::Info;
use ring3_class::net::{self, Multicast};
use serde::{Deserialize, Serialize};

/// The version of messages, rings and entries. Both sides have the same, or part.
pub const VERSION: u32 = 2;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientRequest {
    /// First: the disk, and memory for the data of requests.
    Hello {
        /// The client's [`VERSION`].
        version: u32,
        /// Bytes of memory; it gets as many, or what it may have.
        memory: u64,
    },
    /// A queue.
    Open {
        /// Requests that it shall hold at once; it gets a power of two, at most as many as it may
        /// have.
        depth: u16,
    },
    /// Takes a queue back: answered when nothing of it is in flight any more.
    Close {
        /// Which.
        queue: u16,
    },
    /// With one descriptor: a [region](crate::region) of the client's own. A server of a disk gives
    /// it the next number of the client's memory, whose 0 is what it has made itself, and keeps it
    /// until the client goes; to who exports block devices it is the first word.
    Offer {
        /// The client's [`VERSION`].
        version: u32,
        /// Bytes of it.
        bytes: u64,
    },
    /// Of an export: takes the region back. Answered when nothing that is in flight lies there any
    /// more, and the device does not reach it.
    Revoke,
    /// Of a card: its queue.
    OpenPort(OpenPort),
    /// Of a card: the groups whose packets it wants.
    Filter {
        /// These.
        multicast: Multicast,
    },
}

/// How the queue of a card is opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenPort {
    /// Buffers for reception that it shall hold; it gets a power of two, at most as many as it may
    /// have.
    pub rx_depth: u16,
    /// The same of buffers to send.
    pub tx_depth: u16,
    /// Most bytes of a packet that is received, without its Ethernet header.
    pub mtu: u32,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`ClientRequest::Hello`] of a disk, with the descriptor of the memory.
    Welcome(Box<DiskDescription>),
    /// To [`ClientRequest::Hello`] of a card, with three descriptors: the memory, the
    /// [board](crate::memory::StatusPage), a pipe that the server writes to when the link changes.
    Port(Box<Port>),
    /// To [`ClientRequest::OpenPort`], with descriptors as of [`Opened`](Self::Opened).
    PortOpened {
        /// Buffers for reception that it holds.
        rx_depth: u16,
        /// Buffers to send.
        tx_depth: u16,
    },
    /// To [`ClientRequest::Filter`].
    Filtered,
    /// To [`ClientRequest::Open`], with three descriptors: the rings' memory
    /// ([`Layout`](crate::memory::Layout)), an eventfd that the client raises, a pipe that the
    /// server writes to.
    Opened {
        /// Its number.
        queue: u16,
        /// Its depth.
        depth: u16,
    },
    /// To [`ClientRequest::Close`].
    Closed {
        /// Which.
        queue: u16,
    },
    /// To [`ClientRequest::Offer`]: requests may lie there.
    Shared {
        /// Of these disks.
        disks: Vec<String>,
    },
    /// To [`ClientRequest::Revoke`]: they may not any more. Another region may be offered.
    Revoked,
    /// What was asked for is not to be had; nothing has changed.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The server parts with the client.
    Ended {
        /// Why.
        reason: String,
    },
}

/// What a client is told of its part of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The server's [`VERSION`].
    pub version: u32,
    /// What the server calls the card.
    pub card: String,
    /// The card as this client has it, with an address of its own.
    pub info: net::Info,
    /// Bytes of memory that it has.
    pub memory: u64,
    /// Whether the card reads what is sent from the client's memory by itself; otherwise the server
    /// copies.
    pub mapped: bool,
}

/// What a client is told of its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskDescription {
    /// The server's [`VERSION`].
    pub version: u32,
    /// What the server calls the disk.
    pub disk: String,
    /// The disk as this client has it: its own range of blocks, from 0 on.
    pub info: Info,
    /// Bytes of memory that it has.
    pub memory: u64,
    /// Queues that it may have open at the same time.
    pub queues: u16,
    /// Whether the device reaches the client's memory by itself; otherwise the server copies.
    pub mapped: bool,
}
