//! Frames that say which they are, and whether they are whole.

use ring3_class::net::{Mac, sum};

/// An EtherType for local experiments. [IEEE 802, 9.2.4]
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];
/// Where the number of a frame is.
const NUMBER: usize = 14;
/// Addresses of the wire's end and of somebody else.
pub(super) const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xee]);
pub(super) const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 0xdd]);

/// Frame `number` of `len` bytes, 18 at least: its bytes follow from both.
pub(super) fn numbered(to: Mac, number: u32, len: usize) -> Vec<u8> {
    between(to, PEER, number, len)
}

/// The same from somebody else than the wire's end.
pub(super) fn between(to: Mac, from: Mac, number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &EXPERIMENT, &number.to_be_bytes()].concat();
    frame.extend(
        (frame.len()..len).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8),
    );
    frame
}

/// The number of a frame that [`numbered`] has made.
pub(super) fn number(frame: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(frame.get(NUMBER..NUMBER + 4)?.try_into().ok()?))
}

/// `frame` with a tag in it.
pub(super) fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tag.to_be_bytes(), &frame[12..]].concat()
}

/// A UDP datagram of `payload` bytes in IPv4, with the field of its checksum as the pseudo header
/// sums to. [RFC 768, RFC 791]
pub(super) fn udp(to: Mac, from: Mac, payload: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
    let len = (8 + payload) as u16;
    let mut datagram = [&[0, 7, 0, 7][..], &len.to_be_bytes(), &[0, 0], &bytes].concat();
    let pseudo = pseudo(17, len);
    datagram[6..8].copy_from_slice(&pseudo.to_be_bytes());
    ip((to, from), 17, &datagram)
}

/// A TCP segment of `payload` bytes in IPv4, with the field of its checksum as the pseudo header
/// sums to. [RFC 9293 3.1]
pub(super) fn tcp(to: Mac, from: Mac, payload: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..payload).map(|at| (at / 7) as u8).collect();
    let len = (20 + payload) as u16;
    let mut segment =
        [&[0, 7, 0, 7, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0][..], &bytes]
            .concat();
    segment[16..18].copy_from_slice(&pseudo(6, len).to_be_bytes());
    ip((to, from), 6, &segment)
}

const ADDRESSES: [u8; 8] = [10, 0, 0, 1, 10, 0, 0, 2];

fn pseudo(protocol: u8, len: u16) -> u16 {
    sum(&[&ADDRESSES[..], &[0, protocol], &len.to_be_bytes()].concat())
}

fn ip((to, from): (Mac, Mac), protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut header =
        [&[0x45, 0][..], &total.to_be_bytes(), &[0, 1, 0, 0, 64, protocol, 0, 0], &ADDRESSES]
            .concat();
    let sum = !sum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&to.0[..], &from.0, &[8, 0], &header, payload].concat()
}

/// Whether the transport's checksum of a frame of [`udp`] or [`tcp`] is right, with the header
/// checksum of IPv4.
pub(super) fn is_right(frame: &[u8]) -> bool {
    let (Some(header), Some(rest)) = (frame.get(14..34), frame.get(34..)) else { return false };
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let Some(transport) = total.checked_sub(20).and_then(|len| rest.get(..len)) else {
        return false;
    };
    let sums = u32::from(sum(transport)) + u32::from(pseudo(header[9], transport.len() as u16));
    sum(header) == 0xffff && (sums & 0xffff) + (sums >> 16) == 0xffff
}
