//! The header before each packet of a TAP, which is virtio's: what is known about checksum and
//! segmentation, both ways. [virtio 5.1.6; linux/virtio_net.h]

use ring3_class::net::{
    Checksum, ETHERNET_HEADER, Kind, Meta, Packet, Segmentation, VLAN_TAG, complete,
};

/// Bytes of it: virtio's newer form, whose last field a TAP leaves alone, so that the packet behind
/// it is aligned as words are.
pub const BYTES: usize = 12;

/// `flags`: the checksum is partial, or known to be right. [virtio 5.1.6]
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
/// `gso_type`. [virtio 5.1.6]
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// With `gso_type`: the first frame alone says that the network is congested. Nobody is told that
/// we could, so that it is never asked for.
const GSO_ECN: u8 = 0x80;

/// Bytes of UDP's header. [RFC 768]
const UDP_HEADER: u16 = 8;
/// Where TCP's header says how long it is, in its upper four bits, in words. [RFC 9293 3.1]
const TCP_DATA_OFFSET: u16 = 12;
/// EtherTypes of what has a tag before its own. [IEEE 802.1Q 9.6]
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// The header of a packet that the card has received.
#[inline]
pub fn encode(meta: &Meta) -> [u8; BYTES] {
    let mut header = [0; BYTES];
    // The tag is put back into the bytes before: see `receive`.
    let tag = if meta.vlan().is_some() { VLAN_TAG as u16 } else { 0 };
    match meta.checksum() {
        Checksum::Unknown => {}
        Checksum::Valid => header[0] = DATA_VALID,
        Checksum::Partial { start, offset } => {
            header[0] = NEEDS_CSUM;
            put(&mut header, 6, start.saturating_add(tag));
            put(&mut header, 8, offset);
        }
    }
    if let Some(cut) = meta.segmentation() {
        header[1] = match cut.kind {
            Kind::Tcp4 => GSO_TCPV4,
            Kind::Tcp6 => GSO_TCPV6,
            Kind::Udp => GSO_UDP_L4,
        };
        put(&mut header, 2, cut.headers.saturating_add(tag));
        put(&mut header, 4, cut.size);
    }
    header
}

/// What the kernel asks of the card for a packet; `byte` reads one of the packet's first piece,
/// `None` beyond it. `None` if it makes no sense, or is nothing that was offered.
#[inline]
fn decode(header: &[u8; BYTES], byte: impl Fn(u16) -> Option<u8>) -> Option<Meta> {
    let mut meta = Meta::default();
    let (start, offset) = (get(header, 6), get(header, 8));
    if header[0] & NEEDS_CSUM != 0 {
        meta = meta.with_checksum(Checksum::Partial { start, offset });
    }
    let kind = match header[1] & !GSO_ECN {
        GSO_NONE => return Some(meta),
        GSO_TCPV4 => Kind::Tcp4,
        GSO_TCPV6 => Kind::Tcp6,
        GSO_UDP_L4 => Kind::Udp,
        _ => return None,
    };
    // `hdr_len` is a hint of how much of the packet lies together, not where its headers end: they
    // say it themselves.
    let transport = match kind {
        Kind::Tcp4 | Kind::Tcp6 => u16::from(byte(start.checked_add(TCP_DATA_OFFSET)?)? >> 4) * 4,
        Kind::Udp => UDP_HEADER,
    };
    let tag =
        |at: u16| byte(at).zip(byte(at + 1)).is_some_and(|(high, low)| TAGS.contains(&[high, low]));
    let tags = if !tag(12) { 0 } else { 1 + u32::from(tag(16)) };
    meta = meta.with_network((ETHERNET_HEADER + tags * VLAN_TAG) as u8);
    meta = meta.with_segmentation(Some(Segmentation {
        kind,
        size: get(header, 4),
        headers: start.checked_add(transport)?,
    }));
    Some(meta)
}

/// What the header before `start` of a packet's buffer asks of the card; `None` as [`decode`] has
/// it.
#[inline]
pub fn of(packet: &Packet, start: u32) -> Option<Meta> {
    let mut bytes = [0; BYTES];
    packet.buffer.as_ref()?.read((start as usize).checked_sub(BYTES)?, &mut bytes).ok()?;
    decode(&bytes, |at| {
        let mut byte = [0];
        packet.read(at.into(), &mut byte).ok().map(|()| byte[0])
    })
}

/// Where a transport's header begins at least behind two tags, and IPv4.
const BEHIND_TAGS: u16 = (ETHERNET_HEADER + 2 * VLAN_TAG) as u16 + 20;

/// What the card is asked for a packet of `pieces`, of which the kernel asks `meta`. Behind two
/// tags the checksum is made here: the kernel has a card insert the outer one, a TAP puts it into
/// the bytes, and QEMU's cards get a checksum behind both wrong.
#[inline]
pub fn finish(pieces: &[Packet], meta: Meta) -> Meta {
    match meta.checksum() {
        Checksum::Partial { start, offset }
            if start >= BEHIND_TAGS && meta.segmentation().is_none() =>
        {
            if finish_behind_tags(pieces, start, offset) {
                meta.with_checksum(Checksum::Unknown)
            } else {
                meta
            }
        }
        _ => meta,
    }
}

#[cold]
fn finish_behind_tags(pieces: &[Packet], start: u16, offset: u16) -> bool {
    let Some(first) = pieces.first() else { return false };
    let mut bytes = vec![0; pieces.iter().map(|piece| piece.len as usize).sum()];
    let mut at = 0;
    for piece in pieces {
        let end = at + piece.len as usize;
        if piece.read(0, &mut bytes[at..end]).is_err() {
            return false;
        }
        at = end;
    }
    let tag =
        |at: usize| bytes.get(at..at + 2).is_some_and(|kind| TAGS.iter().any(|tag| tag == kind));
    let field = usize::from(start) + usize::from(offset);
    if !tag(12)
        || !tag(16)
        || field + 2 > first.len as usize
        || !complete(&mut bytes, start, offset)
    {
        return false;
    }
    let Some(buffer) = &first.buffer else { return false };
    buffer.write(first.start as usize + field, &bytes[field..field + 2]).is_ok()
}

#[inline]
fn put(header: &mut [u8; BYTES], at: usize, value: u16) {
    header[at..at + 2].copy_from_slice(&value.to_ne_bytes());
}

#[inline]
fn get(header: &[u8; BYTES], at: usize) -> u16 {
    u16::from_ne_bytes([header[at], header[at + 1]])
}

#[cfg(test)]
mod tests {
    use ring3_class::dma::{Arena, Region};

    use super::*;

    const PARTIAL: Checksum = Checksum::Partial { start: 34, offset: 16 };

    fn cut(kind: Kind, headers: u16) -> Option<Segmentation> {
        Some(Segmentation { kind, size: 1448, headers })
    }

    /// Reads a frame whose transport's header begins at 34, and is 32 bytes if it is TCP's.
    fn frame(at: u16) -> Option<u8> {
        (at < 66).then_some(if at == 46 { 0x80 } else { 0 })
    }

    #[test]
    fn what_a_card_knows_comes_back_as_it_was_said() {
        for (checksum, segmentation) in [
            (Checksum::Unknown, None),
            (PARTIAL, None),
            (PARTIAL, cut(Kind::Tcp4, 66)),
            (PARTIAL, cut(Kind::Tcp6, 66)),
            (PARTIAL, cut(Kind::Udp, 42)),
        ] {
            let network = if segmentation.is_some() { 14 } else { 0 };
            let meta = Meta::default()
                .with_checksum(checksum)
                .with_segmentation(segmentation)
                .with_network(network);
            assert_eq!(decode(&encode(&meta), frame), Some(meta));
        }
        assert_eq!(encode(&Meta::default().with_checksum(Checksum::Valid))[0], DATA_VALID);
    }

    #[test]
    fn headers_end_where_the_packet_says_and_not_where_the_kernel_hints() {
        let mut header = encode(
            &Meta::default().with_checksum(PARTIAL).with_segmentation(cut(Kind::Tcp4, 1500)),
        );
        assert_eq!(decode(&header, frame).unwrap().segmentation(), cut(Kind::Tcp4, 66));
        header[1] |= GSO_ECN;
        assert_eq!(decode(&header, frame).unwrap().segmentation(), cut(Kind::Tcp4, 66));
    }

    #[test]
    fn a_tag_in_the_bytes_moves_the_network_header() {
        let header =
            encode(&Meta::default().with_checksum(PARTIAL).with_segmentation(cut(Kind::Udp, 42)));
        let tagged = |at| if at == 12 { Some(0x81) } else { frame(at) };
        assert_eq!(decode(&header, tagged).unwrap().network(), 18);
        let vlan = Meta::default().with_checksum(PARTIAL).with_vlan(Some(7));
        assert_eq!(
            decode(&encode(&vlan), frame).unwrap().checksum(),
            Checksum::Partial { start: 38, offset: 16 }
        );
        let cut = vlan.with_segmentation(cut(Kind::Tcp4, 66));
        assert_eq!(get(&encode(&cut), 2), 70);
    }

    #[test]
    fn a_checksum_behind_two_tags_is_made_here_and_one_behind_fewer_is_the_cards() {
        let arena = Arena::new(Region::new(1 << 14).unwrap(), 0x1000);
        let piece = |bytes: &[u8]| {
            let mut packet = Packet::new(arena.alloc(2048, 64).unwrap(), 64);
            packet.fill(bytes).unwrap();
            packet
        };
        for (kinds, made) in [
            ([[0x81, 0], [0x81, 0]], true),
            ([[0x88, 0xa8], [0x81, 0]], true),
            ([[0x81, 0], [8, 0]], false),
        ] {
            let mut frame = vec![0x5a; 100];
            frame[12..14].copy_from_slice(&kinds[0]);
            frame[16..18].copy_from_slice(&kinds[1]);
            let asked = Meta::default().with_checksum(Checksum::Partial { start: 42, offset: 6 });
            for pieces in [vec![piece(&frame)], vec![piece(&frame[..70]), piece(&frame[70..])]] {
                let left = finish(&pieces, asked);
                assert_eq!(left, if made { Meta::default() } else { asked });
                let mut whole = frame.clone();
                assert!(!made || complete(&mut whole, 42, 6));
                let mut first = vec![0; pieces[0].len as usize];
                pieces[0].read(0, &mut first).unwrap();
                assert_eq!(first, whole[..first.len()]);
            }
        }
    }

    #[test]
    fn a_header_that_makes_no_sense_is_no_packet() {
        let with = |kind: u8, start: u16| {
            let mut header = [NEEDS_CSUM, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            put(&mut header, 6, start);
            decode(&header, frame)
        };
        assert_eq!(with(3, 34), None);
        assert_eq!(with(GSO_TCPV4, 60), None);
        assert_eq!(with(GSO_TCPV4, u16::MAX), None);
        assert_eq!(with(GSO_UDP_L4, u16::MAX), None);
    }
}
