//! What the headers of a frame say to whoever puts TCP together. [RFC 791 3.1; RFC 8200 3; RFC 9293
//! 3.1]

use ring3_class::net::{Checksum, Kind, Meta, sum};

/// Where the network's header begins, in a frame without a tag.
const NETWORK: usize = 14;
/// Bytes of IPv4's header without options, of IPv6's, and of TCP's without and with all options.
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const LONGEST_TCP: usize = 60;
/// Most bytes of all headers of a segment.
pub const HEADERS: usize = NETWORK + IPV6 + LONGEST_TCP;

/// Ethernet's words for what is in a frame. [IEEE 802 9.2]
const IS_IPV4: [u8; 2] = [0x08, 0x00];
const IS_IPV6: [u8; 2] = [0x86, 0xdd];
/// IP's word for TCP, and IPv6's for headers behind which there may be some. [IANA
/// protocol-numbers]
const IS_TCP: u8 = 6;
const EXTENSIONS: [u8; 6] = [0, 43, 44, 51, 60, 135];
/// Fragments: more of them, or not the first. [RFC 791 3.1]
const FRAGMENT: u16 = 0x3fff;
/// TCP's flags, and the field of its sum. [RFC 9293 3.1]
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FLAGS: usize = 13;
const SUM: usize = 16;

/// What a frame is.
pub enum Frame {
    /// No TCP.
    Other,
    /// TCP of a flow that cannot be told here.
    Unclear,
    Segment(Segment),
}

/// A segment of TCP behind a plain header of IP.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Its headers, with zeroes where segments of one train differ, and behind them.
    common: [u8; HEADERS],
    /// Where TCP's header begins.
    transport: u8,
    /// Bytes of all headers.
    pub headers: u8,
    /// IPv4's identification.
    pub id: u16,
    /// Of its first byte.
    pub sequence: u32,
    /// Whether its last byte is to be handed on at once.
    pub push: bool,
    /// Bytes behind the headers.
    pub payload: u16,
    /// Whether it can be a part of a train at all.
    pub plain: bool,
}

impl Segment {
    /// Reads `bytes`, the first of a frame of `len`; [`HEADERS`] of them suffice.
    pub fn read(bytes: &[u8], len: u32, meta: &Meta) -> Frame {
        let Some(kind) = bytes.get(NETWORK - 2..NETWORK) else { return Frame::Other };
        let (transport, total, protocol) = match [kind[0], kind[1]] {
            IS_IPV4 if bytes.len() >= NETWORK + IPV4 => {
                (NETWORK + IPV4, word(bytes, 16).into(), bytes[23])
            }
            IS_IPV6 if bytes.len() >= NETWORK + IPV6 => {
                (NETWORK + IPV6, usize::from(word(bytes, 18)) + IPV6, bytes[20])
            }
            _ => return Frame::Other,
        };
        let is_ipv4 = transport == NETWORK + IPV4;
        if protocol != IS_TCP {
            return if !is_ipv4 && EXTENSIONS.contains(&protocol) {
                Frame::Unclear
            } else {
                Frame::Other
            };
        }
        if is_ipv4 && (bytes[14] != 0x45 || word(bytes, 20) & FRAGMENT != 0)
            || bytes.len() < transport + TCP
        {
            return Frame::Unclear;
        }
        let headers = transport + usize::from(bytes[transport + 12] >> 4) * 4;
        if headers < transport + TCP || headers > bytes.len() {
            return Frame::Unclear;
        }
        let payload = (total + NETWORK).saturating_sub(headers);
        let flags = bytes[transport + FLAGS];
        let summed = match meta.checksum() {
            Checksum::Valid => true,
            Checksum::Partial { start, offset } => {
                usize::from(start) == transport && usize::from(offset) == SUM
            }
            Checksum::Unknown => false,
        };
        let plain = summed
            && meta.segmentation().is_none()
            && payload > 0
            // Bytes behind the packet (a short frame is filled up) would get into the stream.
            && total + NETWORK == len as usize
            && flags & !PSH == ACK
            && (!is_ipv4 || sum(&bytes[NETWORK..transport]) == 0xffff);
        let mut segment = Self {
            common: [0; HEADERS],
            transport: transport as u8,
            headers: headers as u8,
            id: if is_ipv4 { word(bytes, 18) } else { 0 },
            sequence: u32::from(word(bytes, transport + 4)) << 16
                | u32::from(word(bytes, transport + 6)),
            push: flags & PSH != 0,
            payload: payload.min(u16::MAX.into()) as u16,
            plain,
        };
        segment.common[..headers].copy_from_slice(&bytes[..headers]);
        segment.clear();
        Frame::Segment(segment)
    }

    /// Forgets what segments of a train differ in.
    fn clear(&mut self) {
        let transport = usize::from(self.transport);
        let lengths = if self.is_ipv4() { 16..20 } else { 18..20 };
        self.common[lengths].fill(0);
        if self.is_ipv4() {
            self.common[24..26].fill(0);
        }
        self.common[transport + 4..transport + 8].fill(0);
        self.common[transport + FLAGS] &= !PSH;
        self.common[transport + SUM..transport + SUM + 2].fill(0);
    }

    fn is_ipv4(&self) -> bool {
        usize::from(self.transport) == NETWORK + IPV4
    }

    /// Both addresses, and both ports behind them.
    fn flow(&self) -> &[u8] {
        let transport = usize::from(self.transport);
        &self.common[transport - if self.is_ipv4() { 8 } else { 32 }..transport + 4]
    }

    /// Whether `other` is of the same connection, in the same direction.
    pub fn is_of(&self, other: &Self) -> bool {
        self.flow() == other.flow()
    }

    /// Whether the headers are the same but for what may differ.
    pub fn is_like(&self, other: &Self) -> bool {
        self.common == other.common
    }

    /// The identification that the segment has whose headers are these and who is `count` behind
    /// it.
    pub fn id_after(&self, count: u8) -> u16 {
        if self.is_ipv4() { self.id.wrapping_add(count.into()) } else { 0 }
    }

    /// Bytes of a packet of `payload` bytes from the network's header on.
    pub fn total(&self, payload: u32) -> u32 {
        u32::from(self.headers) - NETWORK as u32 + payload
    }

    /// What is cut.
    pub fn kind(&self) -> Kind {
        if self.is_ipv4() { Kind::Tcp4 } else { Kind::Tcp6 }
    }

    /// The checksum of a packet that was put together: left to whoever takes it.
    pub fn checksum(&self) -> Checksum {
        Checksum::Partial { start: self.transport.into(), offset: SUM as u16 }
    }

    /// Where the network's header begins.
    pub fn network(&self) -> u8 {
        NETWORK as u8
    }

    /// The headers of this segment with `payload` bytes, the last of which is to be handed on at
    /// once if `push`; of TCP's sum that of the pseudo header alone. [RFC 9293 3.1]
    pub fn headers(&self, payload: u32, push: bool) -> [u8; HEADERS] {
        let (transport, total) = (usize::from(self.transport), self.total(payload));
        let mut bytes = self.common;
        let mut put =
            |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
        if self.is_ipv4() {
            put(16, total as u16);
            put(18, self.id);
        } else {
            put(18, (total - IPV6 as u32) as u16);
        }
        put(transport + 4, (self.sequence >> 16) as u16);
        put(transport + 6, self.sequence as u16);
        bytes[transport + FLAGS] |= if push { PSH } else { 0 };
        if self.is_ipv4() {
            let sum = !sum(&bytes[NETWORK..transport]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let length = total - (transport - NETWORK) as u32;
        let addresses = &self.flow()[..self.flow().len() - 4];
        let pseudo = fold(u32::from(sum(addresses)) + u32::from(IS_TCP) + length);
        bytes[transport + SUM..transport + SUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        bytes
    }
}

/// A sum of 16-bit words. [RFC 1071 1]
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// A word of `bytes`, which has it.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
