//! Packets that ask for something of the card: pieces, checksums, tags, cutting. [82574 7.2, 7.3;
//! 8254x 3.3; 82576 7.2]

use std::mem;

use ring3_class::net::{Checksum, Kind, Meta, Packet, Refused, Segmentation};
use ring3_device::Error;
use ring3_spec::e1000::advanced;
use ring3_spec::e1000::transmit::{Data, command};

use super::context;
use super::queue::CardQueue;
use crate::lifetime::lock;

/// Most bytes of a buffer that one descriptor carries: half of the smallest card's share for
/// transmission, so that the next is fetched meanwhile.
pub(super) const MAX_BUFFER: u32 = 8192;
/// No descriptor of a packet that goes this way reaches from one page into the next: pages that
/// follow each other for the card may lie apart behind the IOMMU, and QEMU's models drop a packet
/// without a word if a descriptor's bytes do. Only the headers of a large send may: a descriptor
/// has all of them. [8254x 3.5.6]
pub(super) const PAGE: u64 = 4096;
/// Places of fields in headers. [RFC 791, 8200, 9293]
const IPV4_LENGTH: u32 = 2;
const IPV4_CHECKSUM: u32 = 10;
const IPV6_LENGTH: u32 = 4;

impl CardQueue {
    /// Sends one packet of these pieces; how many pieces were taken: all, or none if there is no
    /// room.
    #[cold]
    pub(super) fn send_unusual(&mut self, pieces: &mut [Packet]) -> Result<usize, Refused> {
        if usize::from(self.tx.held) + pieces.len() > self.tx.depth.into() {
            return Ok(0);
        }
        if self.is_linkless() {
            self.lose(pieces);
            return Ok(pieces.len());
        }
        let meta = pieces[0].meta;
        let total = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let context = context::of(&meta, total, self.tx.advanced)?;
        let fresh = context.filter(|context| self.tx.context != Some(*context));
        let mut least = meta.segmentation().map_or(0, |cut| cut.headers.into());
        let mut needed = 0;
        for piece in pieces.iter() {
            needed += parts(piece.iova().unwrap_or(0), piece.len, mem::take(&mut least));
        }
        if self.tx.ring.space() < needed + u32::from(fresh.is_some()) {
            return Ok(0);
        }
        if let Some(cut) = meta.segmentation() {
            prepare(&mut pieces[0], &meta, cut).map_err(|_| Refused::OutOfBuffer)?;
        }
        if let Some(context) = fresh {
            self.tx.push_empty(&context, self.tx.advanced);
            // Cards keep one context for large sends and one for the rest; neither is relied on
            // across a large send.
            self.tx.context = meta.segmentation().is_none().then_some(context);
        }
        let count = pieces.len();
        let word = if self.tx.advanced { advanced_data(&meta, total) } else { data(&meta) };
        let mut least = meta.segmentation().map_or(0, |cut| cut.headers.into());
        for (number, piece) in pieces.iter_mut().enumerate() {
            self.push_piece(piece, word, mem::take(&mut least), number + 1 == count);
        }
        self.tx.held += count as u16;
        Ok(count)
    }

    /// One piece, in as many descriptors as it needs, the first of which has `least` bytes or more;
    /// its buffer is with the last. Where length and end stand is the same in all forms.
    fn push_piece(&mut self, piece: &mut Packet, word: u64, mut least: u32, last: bool) {
        let (Some(mut iova), mut left) = (piece.iova(), piece.len) else { return };
        while left > 0 {
            let length = part(iova, left, mem::take(&mut least));
            left -= length;
            let word = Data(word);
            let end = if last && left == 0 { command::END } else { 0 };
            let descriptor = [iova, word.with_command(word.command() | end).0 | u64::from(length)];
            if left > 0 {
                self.tx.push_empty(&descriptor, false);
            } else {
                self.tx.push_piece(&descriptor, piece);
            }
            iova += u64::from(length);
        }
    }

    /// Whether there is still no link, if there was none.
    fn is_linkless(&mut self) -> bool {
        if self.tx.linkless {
            self.tx.linkless =
                lock(&self.shared.card).status().is_ok_and(|status| status.link() == 0);
        }
        self.tx.linkless
    }

    /// A packet that nobody can send: its buffers come back behind those that are with the card.
    fn lose(&mut self, pieces: &mut [Packet]) {
        self.counters.tx_lost += 1;
        self.tx.held += pieces.len() as u16;
        self.tx.back.extend(pieces.iter_mut().map(mem::take));
        self.publish_counters();
    }
}

/// How many of `left` bytes at `iova` the next descriptor carries: up to the end of their page, and
/// no fewer than `least`.
fn part(iova: u64, left: u32, least: u32) -> u32 {
    left.min(((PAGE - iova % PAGE) as u32).max(least))
}

/// Descriptors that `len` bytes at `iova` take, of which the first has `least` or more.
fn parts(iova: u64, len: u32, least: u32) -> u32 {
    let first = part(iova, len, least);
    let (at, left) = (iova + u64::from(first), u64::from(len - first));
    u32::from(len > 0) + if left == 0 { 0 } else { (at % PAGE + left).div_ceil(PAGE) as u32 }
}

/// What is asked of the card for each piece, in all forms.
fn asked(meta: &Meta) -> u64 {
    let vlan = if meta.vlan().is_some() { command::VLAN } else { 0 };
    command::EXTENDED | command::FCS | command::REPORT | vlan
}

/// Second word of each data descriptor, but for length and end. [82574 7.2; 8254x 3.3.7]
fn data(meta: &Meta) -> u64 {
    let cut = if meta.segmentation().is_some() { command::SEGMENTATION } else { 0 };
    let word = Data(0)
        .with_kind(Data::TYPE)
        .with_vlan(meta.vlan().unwrap_or(0).into())
        .with_command(asked(meta) | cut);
    word.with_insert_transport((meta.checksum() != Checksum::Unknown).into())
        .with_insert_ip(makes_ip_checksums(meta))
        .0
}

/// The same in the advanced form, of a packet of `total` bytes. [82576 7.2.2.3]
fn advanced_data(meta: &Meta, total: u64) -> u64 {
    let (cut, headers) = match meta.segmentation() {
        Some(cut) => (advanced::Data::SEGMENTATION, cut.headers),
        None => (0, 0),
    };
    let word = advanced::Data(0).with_kind(advanced::Data::TYPE).with_command(asked(meta) | cut);
    let word = word.with_payload(total.saturating_sub(headers.into()));
    word.with_insert_transport((meta.checksum() != Checksum::Unknown).into())
        .with_insert_ip(makes_ip_checksums(meta))
        .0
}

fn makes_ip_checksums(meta: &Meta) -> u64 {
    meta.segmentation().is_some_and(|cut| cut.kind == Kind::Tcp4).into()
}

/// Makes the headers of a large send what the card wants: lengths of zero, and a pseudo header
/// without a length, as each frame has its own. [82574 7.3]
fn prepare(packet: &mut Packet, meta: &Meta, cut: Segmentation) -> Result<(), Error> {
    let (network, Checksum::Partial { start, .. }) = (u32::from(meta.network()), meta.checksum())
    else {
        return Ok(());
    };
    let (start, ipv4) = (u32::from(start), cut.kind == Kind::Tcp4);
    let addresses = if ipv4 { network + 12..network + 20 } else { network + 8..network + 40 };
    let mut bytes = [0; 32];
    let bytes = &mut bytes[..addresses.len()];
    packet.read(addresses.start, bytes)?;
    let sum = u32::from(ring3_class::net::sum(bytes)) + TCP;
    let pseudo = (sum & 0xffff) + (sum >> 16);
    packet.write(start + TCP_CHECKSUM, &(pseudo as u16).to_be_bytes())?;
    if ipv4 {
        packet.write(network + IPV4_CHECKSUM, &[0; 2])?;
    }
    packet.write(network + if ipv4 { IPV4_LENGTH } else { IPV6_LENGTH }, &[0; 2])
}

/// TCP's protocol number, and where its checksum is. [RFC 9293]
const TCP: u32 = 6;
const TCP_CHECKSUM: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_descriptor_reaches_into_another_page_and_together_they_carry_all() {
        for (start, len) in [
            (0x1000, 4096),
            (0x1040, 2048),
            (0x1fff, 2),
            (0x1840, 65_536),
            (0x1ff0, 16),
            (0x2000, 1),
        ] {
            let (mut iova, mut left, mut count) = (start, len, 0);
            while left > 0 {
                let bytes = part(iova, left, 0);
                assert!(
                    bytes > 0 && iova / PAGE == (iova + u64::from(bytes) - 1) / PAGE,
                    "{iova:#x}+{bytes}"
                );
                (iova, left, count) = (iova + u64::from(bytes), left - bytes, count + 1);
            }
            assert_eq!(
                (iova, count),
                (start + u64::from(len), parts(start, len, 0)),
                "{start:#x}+{len}"
            );
        }
        assert_eq!(parts(0x1040, 0, 0), 0);
    }

    #[test]
    fn the_headers_of_a_large_send_are_in_its_first_descriptor_whatever_page_they_end_in() {
        for (start, headers, descriptors) in
            [(0x1fc0, 66, 17), (0x1fff, 54, 17), (0x1040, 66, 17), (0x1f00, 66, 17)]
        {
            let first = part(start, 65_536, headers);
            assert!(first >= headers, "{start:#x}: {first}");
            let rest = start + u64::from(first);
            assert_eq!(rest.is_multiple_of(PAGE), first > headers, "{start:#x}: {first}");
            assert_eq!(parts(start, 65_536, headers), descriptors, "{start:#x}");
        }
        assert_eq!((part(0x1fc0, 40, 66), parts(0x1fc0, 40, 66)), (40, 1));
    }
}
