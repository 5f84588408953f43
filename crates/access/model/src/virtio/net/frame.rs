//! What a packet is on the wire: its checksum made, cut into frames.

use ring3_spec::virtio::net::{self, Header};

/// TCP: FIN and PSH, which only the last segment carries, in their byte of its header. [RFC 9293
/// 3.1]
const LAST_ONLY: u8 = 1 << 0 | 1 << 3;
const FLAGS: usize = 13;

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
    let identification = u16::from_be_bytes(packet.get(ip + 4..ip + 6)?.try_into().ok()?);
    let number = u32::from_be_bytes(packet.get(start + 4..start + 8)?.try_into().ok()?);
    if size == 0 || start < ip + 20 || tcp < 20 {
        return None;
    }
    let (mut frames, last) = (Vec::new(), payload.len().saturating_sub(1) / size);
    for (index, part) in payload.chunks(size).enumerate() {
        let mut frame = [headers, part].concat();
        let total = (frame.len() - ip) as u16;
        frame[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
        // Each is a packet of its own. [RFC 6864 4]
        frame[ip + 4..ip + 6]
            .copy_from_slice(&identification.wrapping_add(index as u16).to_be_bytes());
        frame[start + FLAGS] &= if index < last { !LAST_ONLY } else { u8::MAX };
        frame[ip + 10..ip + 12].fill(0);
        let sum = !sum(&frame[ip..start]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        frame[start + 4..start + 8]
            .copy_from_slice(&number.wrapping_add((index * size) as u32).to_be_bytes());
        // The pseudo header has the length of all; it becomes that of this frame.
        let field = u16::from_be_bytes([frame[start + 16], frame[start + 17]]);
        let pseudo =
            fold(u64::from(field) + u64::from(!(whole as u16)) + (frame.len() - start) as u64);
        frame[start + 16..start + 18].copy_from_slice(&pseudo.to_be_bytes());
        finish(&mut frame, start, 16);
        frames.push(frame);
    }
    Some(frames)
}

/// Whether a frame is TCP or UDP over IPv4 with a right checksum.
pub(super) fn checksum_is_right(frame: &[u8]) -> bool {
    let Some(ip) = frame
        .get(14..34)
        .filter(|ip| frame[12..14] == [8, 0] && ip[0] == 0x45 && matches!(ip[9], 6 | 17))
    else {
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
    fold(
        bytes
            .chunks(2)
            .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u64::from(low)))
            .sum(),
    )
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_cut_packet_are_numbered_and_only_the_last_is_pushed() {
        let mut packet = vec![0; 54 + 250];
        (packet[14], packet[46], packet[47]) = (0x45, 0x50, 0x18);
        packet[18..20].copy_from_slice(&u16::MAX.to_be_bytes());
        let mut header = Header::zeroed();
        header
            .set_flags(net::NEEDS_CSUM)
            .set_csum_start(34)
            .set_csum_offset(16)
            .set_gso_type(net::GSO_TCP4)
            .set_gso_size(100);
        let frames = on_wire(&header, packet);
        let said: Vec<_> =
            frames.iter().map(|frame| (frame.len(), frame[18..20].to_vec(), frame[47])).collect();
        assert_eq!(
            said,
            [(154, vec![255, 255], 0x10), (154, vec![0, 0], 0x10), (104, vec![0, 1], 0x18)]
        );
    }
}
