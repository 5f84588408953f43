//! A packet, or a piece of one.

use ring3_device::Error;
use ring3_device::dma::{DmaBuffer, Span};
use serde::{Deserialize, Serialize};

use super::Meta;

/// Bytes of an Ethernet header without a tag.
pub const ETHERNET_HEADER: u32 = 14;
/// Bytes of a VLAN tag in a frame.
pub const VLAN_TAG: u32 = 4;

/// A place in a batch: a buffer, where the packet is in it, and what is known about the packet.
///
/// A buffer that is provided for reception is one, too: `start` says where the packet shall begin,
/// and `len` means nothing. A packet is one piece or several in a row; all but the last have
/// [`more`](Meta::more), and what is known about the packet stands in the first.
// In this order, what moves together lies side by side.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Packet {
    /// The bytes. `None` is an empty place.
    pub buffer: Option<DmaBuffer>,
    /// The owner's name for the buffer; it comes back with it, unchanged.
    pub token: u32,
    /// Where the packet, or the piece, begins in its buffer. What is before is headroom.
    pub start: u32,
    /// Its bytes, from the Ethernet header on, without the check sequence at the end of a frame.
    pub len: u32,
    /// What is known about it.
    pub meta: Meta,
}

/// What is known about the checksum of TCP or UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    /// Received: nobody has looked. To be sent: the bytes are as they shall be.
    #[default]
    Unknown,
    /// Received: the card has found it right.
    Valid,
    /// Its field holds the sum of the pseudo header alone; the sum from `start` on to the end
    /// belongs there. To be sent: for the card to do. Received: the sender and this card share a
    /// machine, and nobody did.
    Partial {
        /// Where summing begins: the transport's header, counted from the packet's first byte.
        start: u16,
        /// Where the field is, counted from `start`.
        offset: u16,
    },
}

/// A packet of more bytes than a frame: to be cut into frames by the card, or put together by it of
/// frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segmentation {
    /// What is cut.
    pub kind: Kind,
    /// Bytes of payload of each frame but the last.
    pub size: u16,
    /// Bytes of all headers together, which each frame begins with.
    pub headers: u16,
}

/// Least payload of a TCP segment that is cut off. Linux cuts no shorter ones: its smallest maximum
/// segment is 48 bytes, of which options may take 40.
const MIN_SEGMENT: u16 = 8;
/// Most frames of one packet: 64 KiB in segments of 36 bytes, which are 48 bytes less a time stamp.
const MAX_FRAMES: u64 = 2048;

impl Segmentation {
    /// Frames that a packet of `bytes` makes, and bytes of all of them; `None` if no sender asks
    /// for that.
    pub fn frames(&self, bytes: u64) -> Option<(u64, u64)> {
        let least = if self.kind == Kind::Udp { 1 } else { MIN_SEGMENT };
        let (headers, payload) = (u64::from(self.headers), bytes.checked_sub(self.headers.into())?);
        let frames = payload.div_ceil(self.size.max(1).into()).max(1);
        (self.size >= least && frames <= MAX_FRAMES).then_some((frames, payload + frames * headers))
    }
}

/// A transport that can be cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of one flow, over IPv4 or IPv6.
    Udp,
}

impl Packet {
    /// `buffer` to receive into, from `start` on, or with `len` set to send of.
    pub fn new(buffer: DmaBuffer, start: u32) -> Self {
        Self { buffer: Some(buffer), start, ..Self::default() }
    }

    /// Bytes of its buffer from `start` on.
    #[inline]
    pub fn room(&self) -> u32 {
        let bytes =
            self.buffer.as_ref().map_or(0, |buffer| buffer.len().min(u32::MAX as usize) as u32);
        bytes.saturating_sub(self.start)
    }

    /// Where the device finds its first byte; of an empty place, nowhere.
    #[inline]
    pub fn iova(&self) -> Option<u64> {
        Some(self.buffer.as_ref()?.iova() + u64::from(self.start))
    }

    /// The name of its bytes in the arena; `None` if the buffer does not have them.
    pub fn span(&self) -> Option<Span> {
        self.buffer.as_ref()?.span().part(self.start, self.len)
    }

    /// Copies bytes of the packet out, from its byte `offset` on.
    pub fn read(&self, offset: u32, bytes: &mut [u8]) -> Result<(), Error> {
        self.of_buffer()?.read(self.start as usize + offset as usize, bytes)
    }

    /// Copies `bytes` in, from the packet's byte `offset` on. The packet is as long as before.
    pub fn write(&self, offset: u32, bytes: &[u8]) -> Result<(), Error> {
        self.of_buffer()?.write(self.start as usize + offset as usize, bytes)
    }

    /// Has destination and source change places, as who sends a packet back does.
    #[inline]
    pub fn swap_addresses(&self) -> Result<(), Error> {
        let (buffer, at) = (self.of_buffer()?, self.start as usize);
        if let Some(words) = buffer.words_at(at) {
            let [first, second] = words.map(u64::from_le);
            let (low, rest) = (
                first >> 48 | second << 32 >> 16 | first << 48,
                second >> 32 << 32 | first << 16 >> 32,
            );
            if buffer.set_words_at(at, [low, rest].map(u64::to_le)) {
                return Ok(());
            }
        }
        self.swap_bytes()
    }

    /// The same of a packet that does not lie as words do.
    #[cold]
    fn swap_bytes(&self) -> Result<(), Error> {
        let mut addresses = [0; 12];
        self.read(0, &mut addresses)?;
        addresses.rotate_left(6);
        self.write(0, &addresses)
    }

    /// Makes `bytes` the packet, and forgets what was known about the last one.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write(0, bytes)?;
        self.len = bytes.len() as u32;
        self.meta = Meta::default();
        Ok(())
    }

    /// Moves the buffer here from `other`, with its name and where its packet is; `other` is empty
    /// then, and what was known of a packet here stays. False, and nothing is moved, if there is a
    /// buffer here already.
    ///
    /// For drivers, whose slots keep no more while a buffer is with the card.
    #[inline]
    #[must_use]
    pub fn take_buffer(&mut self, other: &mut Self) -> bool {
        if self.buffer.is_some() {
            return false;
        }
        self.swap_buffer(other);
        true
    }

    /// As [`take_buffer`](Self::take_buffer), for who knows that there is no buffer here; if there
    /// is one, it is in `other` then.
    #[inline]
    pub fn swap_buffer(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.buffer, &mut other.buffer);
        (self.token, self.start, self.len) = (other.token, other.start, other.len);
    }

    /// The same of a buffer to receive into, which has no packet: its length stays.
    #[inline]
    pub fn swap_place(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.buffer, &mut other.buffer);
        (self.token, self.start) = (other.token, other.start);
    }

    fn of_buffer(&self) -> Result<&DmaBuffer, Error> {
        self.buffer
            .as_ref()
            .ok_or_else(|| Error::Invalid("an empty place of a batch has no bytes".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_device::dma::{Arena, Region};

    #[test]
    fn addresses_change_places_and_nothing_else_wherever_the_packet_begins_and_ends() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        for (start, len) in [(64, 60), (61, 60), (66, 14), (72, 14), (0, 14), (56, 12)] {
            let packet = Packet {
                len,
                ..Packet::new(arena.alloc((start + len) as usize, 64).unwrap(), start)
            };
            let bytes: Vec<u8> = (1..=len as u8).collect();
            packet.write(0, &bytes).unwrap();
            packet.swap_addresses().unwrap();
            let mut after = vec![0; len as usize];
            packet.read(0, &mut after).unwrap();
            assert_eq!(after, [&bytes[6..12], &bytes[..6], &bytes[12..]].concat(), "{start} {len}");
        }
        let short = Packet::new(arena.alloc(72, 64).unwrap(), 64);
        assert!(short.swap_addresses().is_err() && Packet::default().swap_addresses().is_err());
    }
}
