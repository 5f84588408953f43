//! A host that takes bytes of TCP and does nothing with them: the least that can be at the other
//! end of a connection that sends.
//!
//! It keeps nothing: on a wire that loses nothing and keeps the order, the last segment that has
//! come says all that there is to answer. Whoever ends a connection is answered that it never was.

use ring3_class::net::{Mac, sum};

/// The headers of a segment without options: Ethernet's, IPv4's, TCP's. [RFC 791, 9293]
const HEADERS: usize = 54;
const IP: usize = 14;
const TCP: usize = 34;
/// TCP's flags.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// The options of the answer to a SYN: segments of 1460 bytes, windows in units of sixteen bytes.
/// [RFC 9293 3.2, 7323 2.2]
const OPTIONS: [u8; 8] = [2, 4, 0x05, 0xb4, 3, 3, 4, 0];

/// The answer of `mac` to the packet whose first bytes are `frame`; `None` if that is no segment of
/// TCP's over IPv4 without options of IP's, or wants no answer.
pub fn answer(frame: &[u8], mac: Mac) -> Option<Vec<u8>> {
    let came: &[u8; HEADERS] = frame.first_chunk()?;
    if came[12..15] != [0x08, 0x00, 0x45] || came[IP + 9] != 6 {
        return None;
    }
    let flags = came[TCP + 13];
    let headers = usize::from(came[TCP + 12] >> 4) * 4 + (TCP - IP);
    let payload =
        usize::from(u16::from_be_bytes([came[16], came[17]])).saturating_sub(headers) as u32;
    let counted = payload + u32::from(flags & (SYN | FIN) != 0);
    if flags & RST != 0 || counted == 0 {
        return None;
    }
    let sequence = u32::from_be_bytes([came[TCP + 4], came[TCP + 5], came[TCP + 6], came[TCP + 7]]);
    let (ours, said, options) = match flags {
        flags if flags & SYN != 0 => (0, SYN | ACK, &OPTIONS[..]),
        flags if flags & FIN != 0 => (1, RST | ACK, &[][..]),
        _ => (1, ACK, &[][..]),
    };
    Some(segment(came, mac, (ours, sequence.wrapping_add(counted), said), options))
}

/// A segment back to where `came` is from.
fn segment(
    came: &[u8; HEADERS],
    mac: Mac,
    (sequence, next, flags): (u32, u32, u8),
    options: &[u8],
) -> Vec<u8> {
    let length = (HEADERS - TCP + options.len()) as u16;
    let mut ip = [0; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(length + 20).to_be_bytes());
    (ip[6], ip[8], ip[9]) = (0x40, 64, 6);
    ip[12..16].copy_from_slice(&came[30..34]);
    ip[16..].copy_from_slice(&came[26..30]);
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let mut tcp = [
        &came[36..38],
        &came[34..36],
        &sequence.to_be_bytes(),
        &next.to_be_bytes(),
        &[0; 8],
        options,
    ]
    .concat();
    (tcp[12], tcp[13]) = ((length as u8 / 4) << 4, flags);
    tcp[14..16].fill(0xff);
    let pseudo = u32::from(sum(&ip[12..])) + 6 + u32::from(length) + u32::from(sum(&tcp));
    let folded = (pseudo & 0xffff) + (pseudo >> 16);
    let check = !((folded & 0xffff) + (folded >> 16)) as u16;
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
    [&came[6..12], &mac.0, &came[12..14], &ip, &tcp].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINK: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// A segment from 10.9.0.1, port 1000, of so many bytes.
    fn came(sequence: u32, flags: u8, payload: u16) -> Vec<u8> {
        let mut frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &[0; 40]].concat();
        (frame[14], frame[23], frame[46], frame[47]) = (0x45, 6, 0x50, flags);
        frame[16..18].copy_from_slice(&(payload + 40).to_be_bytes());
        frame[26..38].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2, 0x03, 0xe8, 0x0f, 0xa9]);
        frame[38..42].copy_from_slice(&sequence.to_be_bytes());
        frame
    }

    /// Flags, what is acknowledged.
    fn answered(frame: &[u8]) -> Option<(u8, u32)> {
        answer(frame, SINK)
            .map(|answer| (answer[47], u32::from_be_bytes(answer[42..46].try_into().unwrap())))
    }

    #[test]
    fn bytes_are_acknowledged_however_many_a_packet_has() {
        assert_eq!(answered(&came(u32::MAX, ACK, 65_160)), Some((ACK, 65_159)));
        assert_eq!(answered(&came(7, ACK, 1)), Some((ACK, 8)));
    }

    #[test]
    fn a_connection_is_taken_and_its_end_is_answered_with_a_reset() {
        assert_eq!(answered(&came(6, SYN, 0)), Some((SYN | ACK, 7)));
        assert_eq!(answered(&came(6, FIN | ACK, 0)), Some((RST | ACK, 7)));
    }

    #[test]
    fn what_wants_no_answer_has_none() {
        assert_eq!(answered(&came(6, ACK, 0)), None);
        assert_eq!(answered(&came(6, RST, 9)), None);
        assert_eq!(answered(&came(6, ACK, 9)[..53]), None);
        let mut udp = came(6, ACK, 9);
        udp[23] = 17;
        assert_eq!(answered(&udp), None);
    }

    #[test]
    fn an_answer_goes_back_where_the_segment_came_from_and_its_sums_are_right() {
        for frame in [came(6, SYN, 0), came(7, ACK, 1448)] {
            let answer = answer(&frame, SINK).unwrap();
            assert_eq!(
                (&answer[..12], sum(&answer[14..34])),
                (&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], 0xffff)
            );
            assert_eq!(answer[26..38], [10, 9, 0, 2, 10, 9, 0, 1, 0x0f, 0xa9, 0x03, 0xe8]);
            let length = (answer.len() - 34) as u16;
            let pseudo = [&answer[26..34], &[0, 6], &length.to_be_bytes(), &answer[34..]].concat();
            assert_eq!((sum(&pseudo), usize::from(answer[46] >> 4) * 4), (0xffff, length.into()));
        }
    }
}
