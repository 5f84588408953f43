//! Checksums, and large sends cut into frames. [82574 7.1.10, 7.2.5, 7.3]

use ring3_spec::e1000::transmit::{Context, ContextPlaces};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
/// TCP: FIN and PSH, which only the last segment carries. [82574 7.3]
const LAST_FLAGS: u8 = 0x09;

/// The ones' complement sum of `bytes`, folded.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut total = words.fold(u64::from(start), |sum, word| sum + u64::from(word));
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// What a look at a received frame found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// IPv4: whether the header's checksum is right.
    pub(super) ip: Option<bool>,
    /// TCP or UDP: which, and whether its checksum is right.
    pub(super) transport: Option<(u8, bool)>,
}

/// Checks the checksums of a frame without a tag. [82574 7.1.10]
pub(super) fn check(frame: &[u8]) -> Checked {
    parse(frame).unwrap_or_default()
}

fn parse(frame: &[u8]) -> Option<Checked> {
    let packet = frame.get(14..)?;
    match u16::from_be_bytes([frame[12], frame[13]]) {
        IPV4 => {
            let header = packet
                .get(..usize::from(packet.first()? & 15) * 4)
                .filter(|header| header.len() >= 20)?;
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let ip = Some(sum(header, 0) == 0xffff);
            let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let payload = packet.get(header.len()..length).filter(|_| !fragment);
            let transport =
                payload.and_then(|payload| check_transport(payload, header[9], &header[12..20]));
            Some(Checked { ip, transport })
        }
        IPV6 => {
            let header = packet.get(..40)?;
            let payload =
                packet.get(40..40 + usize::from(u16::from_be_bytes([header[4], header[5]])))?;
            Some(Checked {
                ip: None,
                transport: check_transport(payload, header[6], &header[8..40]),
            })
        }
        _ => None,
    }
}

fn check_transport(payload: &[u8], protocol: u8, addresses: &[u8]) -> Option<(u8, bool)> {
    let least = match protocol {
        TCP => 20,
        // UDP over IPv4 can go without.
        UDP if payload.get(6..8)? != [0, 0] => 8,
        _ => return None,
    };
    let pseudo = u32::from(sum(addresses, 0)) + u32::from(protocol) + payload.len() as u32;
    (payload.len() >= least).then(|| (protocol, sum(payload, pseudo) == 0xffff))
}

/// Puts a checksum in: over `start` to `end` (both within; an end of 0 is the frame's), at
/// `offset`. False if it does not lie within the frame.
pub(super) fn insert(frame: &mut [u8], start: usize, offset: usize, end: usize) -> bool {
    let end = if end == 0 { frame.len() } else { (end + 1).min(frame.len()) };
    let Some(bytes) = frame.get(start..end) else { return false };
    let value = !sum(bytes, 0);
    let Some(place) = frame.get_mut(offset..offset + 2) else { return false };
    place.copy_from_slice(&value.to_be_bytes());
    true
}

/// Cuts a large send into frames, with what differs between their headers. `None` if the context
/// describes no such send.
pub(super) fn segment(
    whole: &[u8],
    places: ContextPlaces,
    context: Context,
) -> Option<Vec<Vec<u8>>> {
    let (headers, size) = (context.headers() as usize, context.segment() as usize);
    let (header, payload) = whole.split_at_checked(headers)?;
    let (ip, transport) = (places.ip_start() as usize, places.transport_start() as usize);
    let fits = ip < transport && transport + 20 <= headers && size > 0 && context.tcp() != 0;
    if !fits || payload.len() as u64 != context.payload() {
        return None;
    }
    let count = payload.len().div_ceil(size);
    let frame = |(number, bytes): (usize, &[u8])| {
        let mut frame = [header, bytes].concat();
        let length = (frame.len() - ip) as u16;
        if context.ipv4() != 0 {
            frame[ip + 2..ip + 4].copy_from_slice(&length.to_be_bytes());
            add(&mut frame[ip + 4..ip + 6], number as u32);
        } else {
            frame[ip + 4..ip + 6].copy_from_slice(&length.saturating_sub(40).to_be_bytes());
        }
        let sequence: [u8; 4] = frame[transport + 4..transport + 8].try_into().unwrap_or_default();
        let sequence = u32::from_be_bytes(sequence).wrapping_add((number * size) as u32);
        frame[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
        if number + 1 < count {
            frame[transport + 13] &= !LAST_FLAGS;
        }
        // The driver's pseudo header leaves the length out, as each frame has its own. [82574 7.3]
        let length = (frame.len() - transport) as u32;
        let place = places.transport_offset() as usize;
        let pseudo = frame.get(place..place + 2).map_or(0, |bytes| sum(bytes, length));
        if let Some(bytes) = frame.get_mut(place..place + 2) {
            bytes.copy_from_slice(&pseudo.to_be_bytes());
        }
        frame
    };
    Some(payload.chunks(size).enumerate().map(frame).collect())
}

/// Adds to a 16-bit number in network order.
fn add(bytes: &mut [u8], by: u32) {
    let value = u32::from(u16::from_be_bytes([bytes[0], bytes[1]])) + by;
    bytes.copy_from_slice(&(value as u16).to_be_bytes());
}

/// The frame check sequence. [802.3 3.2.9]
pub(super) fn fcs(frame: &[u8]) -> [u8; 4] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 }
        })
    });
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_check_sequence_is_that_of_the_standard() {
        // The check value that is known of this polynomial.
        assert_eq!(u32::from_le_bytes(fcs(b"123456789")), 0xcbf4_3926);
    }

    #[test]
    fn an_inserted_checksum_makes_the_whole_sum_ones() {
        let mut bytes = [1, 2, 3, 4, 0, 0, 7];
        assert!(insert(&mut bytes, 0, 4, 0));
        assert_eq!(sum(&bytes, 0), 0xffff);
        assert!(!insert(&mut bytes, 9, 4, 0) && !insert(&mut bytes, 0, 6, 0));
    }

    #[test]
    fn a_send_that_is_not_as_long_as_it_says_is_none() {
        let context = Context(0).with_headers(54).with_segment(10).with_tcp(1).with_payload(30);
        let places =
            ContextPlaces(0).with_ip_start(14).with_transport_start(34).with_transport_offset(50);
        assert_eq!(segment(&[0; 84], places, context).map(|frames| frames.len()), Some(3));
        assert_eq!(segment(&[0; 85], places, context), None);
        assert_eq!(segment(&[0; 20], places, context), None);
    }
}
