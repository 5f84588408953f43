//! What the user and the peer say to each other, over the cable that is measured.
//!
//! Questions and answers are JSON in datagrams of their own ports. Every packet of a load begins
//! with a mark: the load's number, the packet's number, and the peer's time.

use serde::{Deserialize, Serialize};

use super::load::Load;

/// Where the user has its end of a load.
pub const USER_DATA: u16 = 7;
/// Where the user gets its answers.
pub const USER_TALK: u16 = 8;
/// Where the peer has its end of a load.
pub const PEER_DATA: u16 = 4007;
/// Where the peer is asked.
pub const PEER_TALK: u16 = 4008;

/// Bytes of the mark of a packet.
pub const MARK: usize = 24;

/// Packets that the peer sends ahead of what the user has told that it has received.
pub const AHEAD: u64 = 192;
/// After so many packets the user tells.
pub const TELL: u64 = 64;

/// What the user asks. Each is answered with the [`Tally`] of the load so far, and may be asked
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// To begin a load, which has a number that no other of the peer's life has.
    Begin(u32, Load),
    /// To send nothing more for it.
    Stop(u32),
    /// How it went.
    Tell(u32),
}

impl Ask {
    /// The number of the load.
    pub fn id(&self) -> u32 {
        match *self {
            Self::Begin(id, _) | Self::Stop(id) | Self::Tell(id) => id,
        }
    }
}

/// What the peer has seen of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// The load's number.
    pub id: u32,
    /// Packets that were meant for the user.
    pub sent: u64,
    /// Packets that have come from it.
    pub received: u64,
    /// From a packet's start to its return: half were faster, by the peer's clock, in microseconds.
    pub p50_us: f64,
    /// 99 % were.
    pub p99_us: f64,
}

/// The mark of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The load's number.
    pub id: u32,
    /// The packet's, from 0 on; of what a user tells, how many it has received.
    pub number: u64,
    /// Nanoseconds since the load began, by the peer's clock.
    pub at: u64,
}

const MAGIC: [u8; 4] = *b"r3ue";

impl Mark {
    /// Its bytes.
    pub fn bytes(&self) -> [u8; MARK] {
        let mut bytes = [0; MARK];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.id.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_be_bytes());
        bytes[16..].copy_from_slice(&self.at.to_be_bytes());
        bytes
    }

    /// The mark at the start of `payload`, if there is one.
    #[inline]
    pub fn of(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; MARK] = payload.first_chunk()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        let id = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
        (bytes[..4] == MAGIC).then_some(Self { id, number: word(8)?, at: word(16)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_anything_else_is_none() {
        let mark = Mark { id: 7, number: u64::MAX - 1, at: 5 };
        assert_eq!(Mark::of(&[&mark.bytes()[..], b"more"].concat()), Some(mark));
        assert_eq!(Mark::of(&mark.bytes()[..23]), None);
        assert_eq!(Mark::of(&[0; 64]), None);
    }
}
