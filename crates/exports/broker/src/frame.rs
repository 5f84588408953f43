//! Entries of the rings of a network card.
//!
//! A buffer to receive into has two words: tag (32) and room (32); offset in the client's memory.
//! What was received into one has three: tag and bytes, and two about the packet. A piece to send
//! has four: tag and bytes, two about the packet, offset; one that was sent, or lost, one: tag (32)
//! and which (1).
//!
//! The words about a packet: flags (8; 1: the next entry is of this packet, too), checksum (8: 0
//! not known, 1 valid, 2 partial), where its sum begins (16), its field from there (16), network
//! header (8); kind of segmentation (8: 0 none), bytes of each frame (16), bytes of headers (16).
//! Tags and hashes are not there.

use ring3_class::net::{Checksum, Kind, Meta, Segmentation};

/// Words of a buffer to receive into.
pub const BUFFER: usize = 2;
/// Words of what was received.
pub const RECEIVED: usize = 3;
/// Words of a piece to send.
pub const PIECE: usize = 4;
/// Words of one that was sent.
pub const SENT: usize = 1;

const KINDS: [Kind; 3] = [Kind::Tcp4, Kind::Tcp6, Kind::Udp];

/// A piece of a packet, as it stands in an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The client's name for it.
    pub tag: u32,
    /// Its bytes.
    pub len: u32,
    /// What is known of it.
    pub meta: Meta,
    /// Where it is in the client's memory.
    pub offset: u64,
}

/// The words of a buffer of `room` bytes at `offset`.
#[inline]
pub fn buffer(tag: u32, room: u32, offset: u64) -> [u64; BUFFER] {
    [pair(tag, room), offset]
}

/// Tag, room and offset of a buffer.
#[inline]
pub fn read_buffer([first, offset]: [u64; BUFFER]) -> (u32, u32, u64) {
    (first as u32, (first >> 32) as u32, offset)
}

impl Piece {
    /// Its words, to be sent.
    #[inline]
    pub fn encode(&self) -> [u64; PIECE] {
        let [one, other] = words(&self.meta);
        [pair(self.tag, self.len), one, other, self.offset]
    }

    /// What words say; `None` if they say nothing that a client of this version writes.
    #[inline]
    pub fn decode([first, one, other, offset]: [u64; PIECE]) -> Option<Self> {
        Some(Self {
            tag: first as u32,
            len: (first >> 32) as u32,
            meta: meta([one, other])?,
            offset,
        })
    }

    /// Its words, as it was received; its offset is the buffer's.
    #[inline]
    pub fn received(&self) -> [u64; RECEIVED] {
        let [one, other] = words(&self.meta);
        [pair(self.tag, self.len), one, other]
    }

    /// The same way back.
    #[inline]
    pub fn read_received([first, one, other]: [u64; RECEIVED]) -> Option<Self> {
        Self::decode([first, one, other, 0])
    }
}

/// The word of a piece that was sent, or `lost`.
#[inline]
pub fn sent(tag: u32, lost: bool) -> [u64; SENT] {
    [pair(tag, lost.into())]
}

/// Tag, and whether it was lost.
#[inline]
pub fn read_sent([word]: [u64; SENT]) -> (u32, bool) {
    (word as u32, word >> 32 != 0)
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn words(meta: &Meta) -> [u64; 2] {
    let (checksum, start, offset) = match meta.checksum() {
        Checksum::Unknown => (0, 0, 0),
        Checksum::Valid => (1, 0, 0),
        Checksum::Partial { start, offset } => (2, start.into(), offset.into()),
    };
    let one = u64::from(meta.more())
        | checksum << 8
        | start << 16
        | offset << 32
        | u64::from(meta.network()) << 48;
    let other = meta.segmentation().map_or(0, |cut| {
        let kind = 1 + KINDS.iter().position(|&kind| kind == cut.kind).unwrap_or(0) as u64;
        kind | u64::from(cut.size) << 16 | u64::from(cut.headers) << 32
    });
    [one, other]
}

#[inline]
fn meta([one, other]: [u64; 2]) -> Option<Meta> {
    let checksum = match (one >> 8) as u8 {
        0 => Checksum::Unknown,
        1 => Checksum::Valid,
        2 => Checksum::Partial { start: (one >> 16) as u16, offset: (one >> 32) as u16 },
        _ => return None,
    };
    let segmentation = match other as u8 {
        0 => None,
        kind => Some(Segmentation {
            kind: *KINDS.get(usize::from(kind) - 1)?,
            size: (other >> 16) as u16,
            headers: (other >> 32) as u16,
        }),
    };
    let flags = one as u8;
    let meta = Meta::default().with_more(flags == 1).with_network((one >> 48) as u8);
    let meta = meta.with_checksum(checksum).with_segmentation(segmentation);
    (flags < 2 && one >> 56 == 0).then_some(meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_say_what_was_encoded(tag: u32, len: u32, offset: u64, more: bool, network: u8, sum in 0u8..3, start: u16, at: u16, kind in 0usize..4, size: u16, headers: u16) {
            let partial = Checksum::Partial { start, offset: at };
            let checksum = [Checksum::Unknown, Checksum::Valid, partial][usize::from(sum)];
            let segmentation =
                (kind > 0).then(|| Segmentation { kind: KINDS[kind - 1], size, headers });
            let meta = Meta::default()
                .with_more(more)
                .with_network(network)
                .with_checksum(checksum)
                .with_segmentation(segmentation);
            let piece = Piece { tag, len, offset, meta };
            prop_assert_eq!(Piece::decode(piece.encode()), Some(piece));
            let received = Piece::read_received(piece.received());
            prop_assert_eq!(received, Some(Piece { offset: 0, ..piece }));
            prop_assert_eq!(read_buffer(buffer(tag, len, offset)), (tag, len, offset));
            prop_assert_eq!(read_sent(sent(tag, more)), (tag, more));
        }

        #[test]
        fn any_words_are_a_piece_or_none(words: [u64; 4]) {
            let bare = |meta: Meta| meta.vlan().is_none() && meta.hash().is_none();
            prop_assert!(Piece::decode(words).is_none_or(|piece| bare(piece.meta)));
        }
    }
}
