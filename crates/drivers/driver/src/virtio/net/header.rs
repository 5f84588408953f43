//! What is known about a packet, in virtio's words. [virtio 5.1.6]

use ring3_class::net::{Checksum, ETHERNET_HEADER, Kind, Meta, Packet};
use ring3_spec::virtio::net::{self, HEADER, Header};

/// Bytes before a packet that are the driver's: the header, up to a whole word.
pub(super) const HEADROOM: u32 = 16;

/// The header as two words, the first of which has it in its upper half.
fn words(header: &Header) -> [u64; 2] {
    let word = |at: usize| {
        u64::from_le_bytes(std::array::from_fn(
            |i| if at + i < 4 { 0 } else { header.0[at + i - 4] },
        ))
    };
    [word(0), word(8)]
}

/// Writes the header of a packet that makes sense before it.
pub(super) fn write(packet: &Packet) {
    store(packet, words(&of(&packet.meta)));
}

fn store(packet: &Packet, words: [u64; 2]) {
    let Some(buffer) = &packet.buffer else { return };
    if !buffer.set_words_at(packet.start.wrapping_sub(HEADROOM) as usize, words) {
        store_bytes(packet, &words);
    }
}

/// The same where a packet does not begin as words do.
#[cold]
fn store_bytes(packet: &Packet, words: &[u64; 2]) {
    let Some(buffer) = &packet.buffer else { return };
    let bytes: [u8; 16] = std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]);
    // Its place was checked: the packet has the headroom.
    let _ = buffer.write((packet.start - HEADER) as usize, &bytes[4..]);
}

fn of(meta: &Meta) -> Header {
    let mut header = Header::zeroed();
    if let Checksum::Partial { start, offset } = meta.checksum() {
        header.set_flags(net::NEEDS_CSUM).set_csum_start(start).set_csum_offset(offset);
    }
    if let Some(cut) = meta.segmentation() {
        let kind = match cut.kind {
            Kind::Tcp4 => net::GSO_TCP4,
            Kind::Tcp6 => net::GSO_TCP6,
            // Never offered, so that it is refused before.
            Kind::Udp => net::GSO_NONE,
        };
        header.set_gso_type(kind).set_gso_size(cut.size).set_header_len(cut.headers);
    }
    header
}

/// The flags of a packet of which its header says nothing but that it is in one buffer, and whether
/// the card has found its checksum right; `None` if it says more, or does not lie as words do. Of a
/// card that never `merges` buffers the number is not looked at.
#[inline]
pub(super) fn read_plain(packet: &Packet, merges: bool) -> Option<u32> {
    const {
        assert!(Meta::VALID_BIT == net::DATA_VALID as u32, "what is known is what the header says");
    };
    // The header is the last three quarters of the pair: flags, type and bytes of headers are a
    // half, and the number of buffers is its last two bytes.
    let pair = packet.buffer.as_ref()?.words_before(packet.start)?;
    let head = u32::from_le(pair.u32_at::<1>());
    // No other flag, no segmentation, one buffer.
    let plain = head & !u32::from(net::DATA_VALID) == 0
        && (!merges || u16::from_le(pair.u16_at::<7>()) == 1);
    plain.then_some(head)
}

/// Reads the header that the card has written before a packet of `len` bytes: how many buffers it
/// took, and what is known of it; `None` if that makes no sense. Of a card that never `merges`
/// buffers the number is not looked at: QEMU's leaves it at zero. [virtio 5.1.6.4.2]
pub(super) fn read(packet: &Packet, len: u32, merges: bool) -> Option<(u16, Meta)> {
    let mut raw = [0; HEADER as usize];
    packet.buffer.as_ref()?.read(packet.start.checked_sub(HEADER)? as usize, &mut raw).ok()?;
    let header = Header(raw);
    let checksum = match header.flags() {
        flags if flags & net::NEEDS_CSUM != 0 => {
            let (start, offset) = (header.csum_start(), header.csum_offset());
            let within = u32::from(start) >= ETHERNET_HEADER
                && u32::from(start) + u32::from(offset) + 2 <= len;
            within.then_some(Checksum::Partial { start, offset })?
        }
        flags if flags & net::DATA_VALID != 0 => Checksum::Valid,
        _ => Checksum::Unknown,
    };
    // Putting frames together was not agreed upon. [virtio 5.1.6.4]
    let buffers = if merges { header.buffers() } else { 1 };
    let sensible = header.gso_type() == net::GSO_NONE && buffers > 0;
    sensible.then(|| (buffers, Meta::default().with_checksum(checksum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::net::Segmentation;
    use ring3_device::dma::{Arena, Region};

    fn packet(start: u32) -> Packet {
        let arena = Arena::new(Region::new(1 << 12).unwrap(), 0x1000);
        Packet::new(arena.alloc(2048, 64).unwrap(), start)
    }

    #[test]
    fn a_header_lies_just_before_its_packet_wherever_that_begins() {
        for start in [16, 64, 61, 68] {
            let checksum = Checksum::Partial { start: 34, offset: 16 };
            let segmentation = Some(Segmentation { kind: Kind::Tcp4, size: 1460, headers: 54 });
            let mut packet = packet(start);
            packet.meta = Meta::default().with_checksum(checksum).with_segmentation(segmentation);
            write(&packet);
            let mut bytes = [0; 12];
            packet.buffer.as_ref().unwrap().read(start as usize - 12, &mut bytes).unwrap();
            assert_eq!(bytes, [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0], "{start}");
            packet.meta = Meta::default();
            write(&packet);
            packet.buffer.as_ref().unwrap().read(start as usize - 12, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 12], "{start}");
        }
    }

    #[test]
    fn what_the_card_says_is_read_wherever_the_packet_begins_and_believed_if_it_makes_sense() {
        for start in [16, 64, 61, 68] {
            let packet = packet(start);
            let says = |bytes: [u8; 12], merges| {
                packet.buffer.as_ref().unwrap().write(start as usize - 12, &bytes).unwrap();
                read(&packet, 60, merges)
            };
            let known = |checksum| Meta::default().with_checksum(checksum);
            assert_eq!(
                says([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0], true),
                Some((3, Meta::default())),
                "{start}"
            );
            assert_eq!(
                says([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], true),
                Some((1, known(Checksum::Valid)))
            );
            let partial = known(Checksum::Partial { start: 34, offset: 6 });
            assert_eq!(says([1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 1, 0], true), Some((1, partial)));
            assert_eq!(says([1, 0, 0, 0, 0, 0, 34, 0, 25, 0, 1, 0], true), None);
            assert_eq!(says([0, 1, 0, 0, 9, 9, 0, 0, 0, 0, 1, 0], true), None);
            assert_eq!(says([0; 12], true), None);
            assert_eq!(says([0; 12], false), Some((1, Meta::default())));
            assert_eq!(
                says([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0], false),
                Some((1, known(Checksum::Valid)))
            );
        }
    }
}
