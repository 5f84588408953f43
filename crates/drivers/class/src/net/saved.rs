//! The saved state of packets that stay with the card during a hand-over.

use ring3_device::Error;
use ring3_device::dma::{Claims, Span};
use serde::{Deserialize, Serialize};

use super::{Meta, Packet};

/// A packet, or a buffer for one, with the name of its buffer in place of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPacket {
    /// The whole buffer.
    pub buffer: Span,
    /// See [`Packet::token`].
    pub token: u32,
    /// See [`Packet::start`].
    pub start: u32,
    /// See [`Packet::len`].
    pub len: u32,
    /// See [`Packet::meta`].
    pub meta: Meta,
}

impl Packet {
    /// What another process needs to go on with it; [`Error::Invalid`] of an empty place.
    pub fn save(&self) -> Result<SavedPacket, Error> {
        let buffer = self
            .buffer
            .as_ref()
            .ok_or_else(|| Error::Invalid("an empty place cannot be saved".into()))?
            .span();
        let Self { token, start, len, meta, .. } = *self;
        Ok(SavedPacket { buffer, token, start, len, meta })
    }

    /// Releases its buffer to the process that claims it as [saved](Self::save). The card goes on
    /// using it.
    pub fn release_to_successor(mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.release_to_successor();
        }
    }

    /// Gives its buffer up for good: a card that nobody could stop may still write there.
    pub fn abandon(mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.abandon();
        }
    }
}

impl SavedPacket {
    /// The packet, with its buffer. It is input: [`Error::Invalid`] unless its bytes are in the
    /// buffer.
    pub fn claim(&self, claims: &mut Claims) -> Result<Packet, Error> {
        let Self { buffer, token, start, len, meta } = *self;
        if buffer.part(start, len).is_none() {
            return Err(Error::Invalid(format!(
                "the saved packet {token:#x} is not within its buffer: open the card anew"
            )));
        }
        Ok(Packet { buffer: Some(claims.claim(buffer)?), token, start, len, meta })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ring3_device::dma::{Arena, Region};

    #[test]
    fn a_packet_that_was_released_is_claimed_once_and_with_its_bytes() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        let mut packet = Packet { token: 7, ..Packet::new(arena.alloc(2048, 64).unwrap(), 64) };
        packet.fill(b"a frame").unwrap();
        let saved = packet.save().unwrap();
        packet.release_to_successor();
        let mut claims = Claims::new(&arena);
        let claimed = saved.claim(&mut claims).unwrap();
        let mut bytes = [0; 7];
        claimed.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes, claimed.token, claimed.len), (b"a frame", 7, 7));
        assert!(saved.claim(&mut claims).is_err());
    }

    #[test]
    fn a_saved_packet_that_is_not_in_its_buffer_is_refused() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        let packet = Packet::new(arena.alloc(2048, 64).unwrap(), 64);
        let saved = SavedPacket { len: 2048, ..packet.save().unwrap() };
        packet.release_to_successor();
        assert!(
            saved
                .claim(&mut Claims::new(&arena))
                .err()
                .unwrap()
                .to_string()
                .contains("not within its buffer")
        );
    }
}
