//! What a packet is on the wire: its checksum made, cut into frames.

use ring3_spec::virtio::net::{self, Header};

/// The frames of a packet as its header says; the packet itself where the header makes no sense.
pub(super) fn on_wire(header: &Header, mut packet: Vec<u8>) -> Vec<Vec<u8>> {
    let (start, offset) = (usize::from(header.csum_start()), usize::from(header.csum_offset()));
    let partial = header.flags() & net::NEEDS_CSUM != 0 && start + offset + 2 <= packet.len();
    if partial && header.gso_type() == net::GSO_TCP4 {
        return cut(header, &packet).unwrap_or_default();
    }
    if partial {
        finish(&mut packet, start, offset);
    }
    vec![packet]
}

/// Cuts TCP over IPv4 into frames. [virtio 5.1.6.2]
fn cut(header: &Header, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (start, size) = (usize::from(header.csum_start()), usize::from(header.gso_size()));
    // The driver's word for the length of the headers is a hint only; TCP's own counts.
    let tcp = usize::from(packet.get(start + 12)? >> 4) * 4;
    let (headers, payload) = packet.split_at_checked(start + tcp)?;
    let (ip, whole) = (14, packet.len() - start);
    let number = u32::from_be_bytes(packet.get(start + 4..start + 8)?.try_into().ok()?);
    if size == 0 || start < ip + 20 || tcp < 20 {
        return None;
    }
    let mut frames = Vec::new();
    for (index, part) in payload.chunks(size).enumerate() {
        let mut frame = [headers, part].concat();
        let total = (frame.len() - ip) as u16;
        frame[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
        frame[ip + 10..ip + 12].fill(0);
        let sum = !sum(&frame[ip..start]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        frame[start + 4..start + 8].copy_from_slice(&number.wrapping_add((index * size) as u32).to_be_bytes());
        // The pseudo header has the length of all; it becomes that of this frame.
        let field = u16::from_be_bytes([frame[start + 16], frame[start + 17]]);
        let pseudo = fold(u64::from(field) + u64::from(!(whole as u16)) + (frame.len() - start) as u64);
        frame[start + 16..start + 18].copy_from_slice(&pseudo.to_be_bytes());
        finish(&mut frame, start, 16);
        frames.push(frame);
    }
    Some(frames)
}

/// Whether a frame is TCP or UDP over IPv4 with a right checksum.
pub(super) fn checksum_is_right(frame: &[u8]) -> bool {
    let Some(ip) = frame.get(14..34).filter(|ip| frame[12..14] == [8, 0] && ip[0] == 0x45 && matches!(ip[9], 6 | 17)) else {
        return false;
    };
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let Some(transport) = frame.get(34..14 + total) else { return false };
    let pseudo = u64::from(sum(&ip[12..20])) + u64::from(ip[9]) + transport.len() as u64;
    fold(pseudo + u64::from(sum(transport))) == 0xffff
}

fn finish(frame: &mut [u8], start: usize, offset: usize) {
    let sum = !sum(&frame[start..]);
    frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The sum of the Internet checksum. [RFC 1071 1]
fn sum(bytes: &[u8]) -> u16 {
    fold(bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low))).sum())
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
