//! Frames of UDP over IPv4, and the answer to who asks for an address. No options, no fragments, no
//! tags. [RFC 768, 791, 826]

use std::net::Ipv4Addr;

use ring3_class::net::{Mac, sum};

/// Bytes of all headers of a UDP packet: 14 of Ethernet, 20 of IPv4, 8 of UDP.
pub const HEADERS: usize = 42;
const IP: usize = 14;
const UDP: usize = 34;
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
/// ARP over Ethernet for IPv4. [RFC 826]
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Somebody on the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its address on the wire.
    pub mac: Mac,
    /// Its address above.
    pub ip: Ipv4Addr,
}

/// Where a datagram comes from or goes to.
pub type Place = (Host, u16);

/// A datagram in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Who has sent it.
    pub from: Place,
    /// For whom it is.
    pub to: Place,
    /// What is in it.
    pub payload: &'a [u8],
}

/// Makes a frame of a datagram of less than 1,473 bytes. It has no UDP checksum, which IPv4 allows.
pub fn udp(from: Place, to: Place, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    let mut ip = [0; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(length + 28).to_be_bytes());
    // Not to be cut; hops; UDP.
    (ip[6], ip[8], ip[9]) = (0x40, 64, 17);
    ip[12..16].copy_from_slice(&from.0.ip.octets());
    ip[16..].copy_from_slice(&to.0.ip.octets());
    let check = !sum(&ip);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    let ports = [from.1, to.1, length + 8, 0].map(u16::to_be_bytes).concat();
    [&to.0.mac.0[..], &from.0.mac.0, &IPV4, &ip, &ports, payload].concat()
}

/// The datagram in `frame`, if there is one. The IP header's checksum must be right; that of UDP is
/// not looked at.
pub fn parse(frame: &[u8]) -> Option<Datagram<'_>> {
    let headers: &[u8; HEADERS] = frame.first_chunk()?;
    let ip = &headers[IP..UDP];
    let length = usize::from(u16::from_be_bytes([headers[38], headers[39]]));
    let is_udp = headers[12..14] == IPV4
        && ip[0] == 0x45
        && ip[9] == 17
        && u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
    if !is_udp || sum(ip) != 0xffff {
        return None;
    }
    let host = |mac: usize, at: usize| Host {
        mac: Mac(six(headers, mac)),
        ip: Ipv4Addr::from(four(headers, at)),
    };
    let port = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let payload = frame.get(HEADERS..UDP + length)?;
    Some(Datagram { from: (host(6, 26), port(34)), to: (host(0, 30), port(36)), payload })
}

/// Makes the headers of a datagram those of its answer: sums stay as they are.
#[inline]
pub fn turn_around(headers: &mut [u8; HEADERS]) {
    let mut swap = |one: usize, other: usize, bytes: usize| {
        (0..bytes).for_each(|at| headers.swap(one + at, other + at))
    };
    swap(0, 6, 6);
    swap(26, 30, 4);
    swap(34, 36, 2);
}

/// The answer of `mac` to a frame that asks who has an address: it has.
pub fn answer_arp(frame: &[u8], mac: Mac) -> Option<Vec<u8>> {
    let asked: &[u8; HEADERS] = frame.first_chunk()?;
    let (wanted, asker) = (four(asked, 38), four(asked, 28));
    if asked[12..14] != ARP
        || asked[14..20] != ARP_HEAD
        || asked[20..22] != [0, 1]
        || wanted == asker
    {
        return None;
    }
    let to = six(asked, 22);
    Some([&to[..], &mac.0, &ARP, &ARP_HEAD, &[0, 2], &mac.0, &wanted, &to, &asker].concat())
}

/// The answer to an echo request over IPv4. [RFC 792]
pub fn answer_ping(frame: &[u8]) -> Option<Vec<u8>> {
    let headers: &[u8; HEADERS] = frame.first_chunk()?;
    if headers[12..15] != [IPV4[0], IPV4[1], 0x45] || headers[23] != 1 || headers[34..36] != [8, 0]
    {
        return None;
    }
    let mut answer = frame.to_vec();
    let mut swap = |one: usize, other: usize, bytes: usize| {
        (0..bytes).for_each(|at| answer.swap(one + at, other + at))
    };
    swap(0, 6, 6);
    swap(26, 30, 4);
    answer[34] = 0;
    // The sum is of the complement: what has gone from the words is added.
    let sum = u32::from(u16::from_be_bytes([headers[36], headers[37]])) + 0x0800;
    answer[36..38].copy_from_slice(&((sum + (sum >> 16)) as u16).to_be_bytes());
    Some(answer)
}

/// Whether a frame is a datagram over IPv4.
pub fn is_udp(frame: &[u8]) -> bool {
    frame.get(12..15) == Some(&[IPV4[0], IPV4[1], 0x45]) && frame.get(23) == Some(&17)
}

fn six(bytes: &[u8; HEADERS], at: usize) -> [u8; 6] {
    std::array::from_fn(|index| bytes[at + index])
}

fn four(bytes: &[u8; HEADERS], at: usize) -> [u8; 4] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Host = Host { mac: Mac([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 9, 0, 1) };
    const OTHER: Host = Host { mac: Mac([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 9, 0, 2) };

    #[test]
    fn a_datagram_is_read_back_from_its_frame_with_padding_behind_it() {
        let mut frame = udp((ONE, 7), (OTHER, 4007), b"hello");
        frame.resize(60, 0);
        let wanted = Datagram { from: (ONE, 7), to: (OTHER, 4007), payload: b"hello" };
        assert_eq!(parse(&frame), Some(wanted));
    }

    #[test]
    fn a_frame_that_is_damaged_cut_or_of_something_else_is_no_datagram() {
        let frame = udp((ONE, 7), (OTHER, 4007), b"hello");
        for at in [12, 14, 23, 24, 26, 33] {
            let mut damaged = frame.clone();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged), None, "{at}");
        }
        assert_eq!((parse(&frame[..46]), parse(&[])), (None, None));
        let mut longer = frame;
        longer[38] = 0xff;
        assert_eq!(parse(&longer), None);
    }

    #[test]
    fn what_was_turned_around_goes_back_where_it_came_from() {
        let mut frame = udp((ONE, 7), (OTHER, 4007), b"hello");
        turn_around(frame.first_chunk_mut().unwrap());
        let wanted = Datagram { from: (OTHER, 4007), to: (ONE, 7), payload: b"hello" };
        assert_eq!(parse(&frame), Some(wanted));
    }

    #[test]
    fn who_asks_for_an_address_is_told_ours_and_an_announcement_is_not_answered() {
        let ask = |wanted: Ipv4Addr| {
            let to = Mac::BROADCAST.0;
            [
                &to[..],
                &ONE.mac.0,
                &ARP,
                &ARP_HEAD,
                &[0, 1],
                &ONE.mac.0,
                &ONE.ip.octets(),
                &[0; 6],
                &wanted.octets(),
            ]
            .concat()
        };
        let answer = answer_arp(&ask(OTHER.ip), OTHER.mac).unwrap();
        assert_eq!(
            (&answer[..6], &answer[20..22], &answer[22..28]),
            (&ONE.mac.0[..], &[0, 2][..], &OTHER.mac.0[..])
        );
        assert_eq!(
            (&answer[28..32], &answer[38..42]),
            (&OTHER.ip.octets()[..], &ONE.ip.octets()[..])
        );
        assert_eq!(answer_arp(&ask(ONE.ip), OTHER.mac), None);
    }
}
