//! Validation of packets before they reach the card.

use ring3_device::Error;

use super::packet::{ETHERNET_HEADER, VLAN_TAG};
use super::{Checksum, Info, Kind, Meta, Offloads, Packet, QueueSettings};

/// The smallest buffer for reception: the shortest frame, in one piece.
const MIN_ROOM: u32 = 64;

/// Why a packet, or a buffer for one, was not taken.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// A place without a buffer.
    #[error("there is no buffer")]
    Empty,
    /// The packet reaches beyond its buffer, or a buffer for reception is smaller than the queue
    /// was told.
    #[error("the packet is not within its buffer, or the buffer is smaller than rx_room")]
    OutOfBuffer,
    /// There is less room before the packet than [`Info::headroom`].
    #[error("too little headroom before the packet")]
    Headroom,
    /// Shorter than an Ethernet header.
    #[error("shorter than an Ethernet header")]
    TooShort,
    /// Longer than the MTU lets a packet be, or than the card cuts.
    #[error("longer than the MTU allows")]
    TooLong,
    /// More pieces than [`Info::max_pieces`], or more than the queue ever holds.
    #[error("in too many pieces")]
    TooManyPieces,
    /// The last place of the batch says that there are more.
    #[error("its last piece is missing")]
    Unterminated,
    /// A checksum that the card cannot make, or whose place is not in the first piece.
    #[error("no such checksum")]
    Checksum,
    /// A way of cutting that the card does not know, or that makes no frames.
    #[error("cannot be cut into frames like that")]
    Segmentation,
    /// A tag that the card cannot put in.
    #[error("tags are not put in by this card")]
    Vlan,
}

/// What one queue takes: a card's limits, as the queue was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    headroom: u32,
    max_frame: u32,
    max_segmented: u32,
    max_pieces: usize,
    rx_room: u32,
    offloads: Offloads,
}

impl Limits {
    /// Of a queue of the card that `info` describes. `tx_depth` is what it really holds.
    pub fn new(info: &Info, settings: &QueueSettings, tx_depth: u16) -> Self {
        Self {
            headroom: info.headroom,
            max_frame: settings.mtu.saturating_add(ETHERNET_HEADER + VLAN_TAG),
            max_segmented: info.max_segmented,
            max_pieces: info.max_pieces.min(tx_depth).into(),
            rx_room: settings.rx_room,
            offloads: info.offloads,
        }
    }

    /// Most bytes of a frame, with its Ethernet header and a tag.
    pub fn max_frame(&self) -> u32 {
        self.max_frame
    }

    /// Bytes of each buffer for reception, from its packet's start on.
    pub fn rx_room(&self) -> u32 {
        self.rx_room
    }

    /// Whether `packet` is a buffer to receive into.
    #[inline]
    pub fn check_buffer(&self, packet: &Packet) -> Result<(), Refused> {
        let Some(buffer) = &packet.buffer else { return Err(Refused::Empty) };
        if packet.start < self.headroom {
            return Err(Refused::Headroom);
        }
        let end = u64::from(packet.start) + u64::from(self.rx_room);
        if end > buffer.len() as u64 { Err(Refused::OutOfBuffer) } else { Ok(()) }
    }

    /// Whether `packet` is one piece that asks for nothing and can be sent, as most can. Of the
    /// others [`check`](Self::check) says what they are.
    #[inline]
    pub fn is_plain(&self, packet: &Packet) -> bool {
        self.is_plain_within(packet, self.max_frame)
    }

    /// The same with `longest` bytes at most, which are no more than
    /// [`max_frame`](Self::max_frame).
    #[inline]
    pub fn is_plain_within(&self, packet: &Packet, longest: u32) -> bool {
        let Some(buffer) = &packet.buffer else { return false };
        let end = u64::from(packet.start) + u64::from(packet.len);
        packet.meta.is_plain()
            & (packet.start >= self.headroom)
            // One comparison for both ends.
            & (packet.len.wrapping_sub(ETHERNET_HEADER) <= longest.saturating_sub(ETHERNET_HEADER))
            & (end <= buffer.len() as u64)
    }

    /// Bytes of `packet`, if it is one piece that asks for nothing, of `longest` bytes at most,
    /// which are no more than [`max_frame`](Self::max_frame). Where it lies is not looked at.
    #[inline]
    pub fn plain_len_within(packet: &Packet, longest: u32) -> Option<u32> {
        if !packet.meta.is_plain() {
            return None;
        }
        let len = packet.len;
        // One comparison for both ends.
        let fits = len.wrapping_sub(ETHERNET_HEADER) <= longest.saturating_sub(ETHERNET_HEADER);
        fits.then_some(len)
    }

    /// Whether the first packet of `batch` can be sent; of how many pieces it is.
    #[inline]
    pub fn check(&self, batch: &[Packet]) -> Result<usize, Refused> {
        let Some(first) = batch.first() else { return Err(Refused::Empty) };
        if self.is_plain(first) {
            return Ok(1);
        }
        piece(first)?;
        if first.start < self.headroom {
            return Err(Refused::Headroom);
        }
        self.check_rare(first, batch)
    }

    /// What asks for something of the card, or has several pieces.
    fn check_rare(&self, first: &Packet, batch: &[Packet]) -> Result<usize, Refused> {
        let count =
            batch.iter().position(|piece| !piece.meta.more()).ok_or(Refused::Unterminated)? + 1;
        if count > self.max_pieces {
            return Err(Refused::TooManyPieces);
        }
        let mut bytes = 0;
        for part in &batch[..count] {
            piece(part)?;
            bytes += u64::from(part.len);
        }
        self.check_whole(&first.meta, first.len, bytes)?;
        Ok(count)
    }

    /// Whether a packet of `bytes`, of which its first piece has `in_first`, can be sent as `meta`
    /// asks, wherever it lies.
    pub fn check_whole(&self, meta: &Meta, in_first: u32, bytes: u64) -> Result<(), Refused> {
        self.length(
            bytes,
            if meta.segmentation().is_some() { self.max_segmented } else { self.max_frame },
        )?;
        if meta.vlan().is_some() && !self.offloads.vlan_insert {
            return Err(Refused::Vlan);
        }
        self.checksum(meta, in_first)?;
        self.segmentation(meta, in_first, bytes)
    }

    fn length(&self, bytes: u64, most: u32) -> Result<(), Refused> {
        if bytes < ETHERNET_HEADER.into() {
            return Err(Refused::TooShort);
        }
        if bytes > most.into() { Err(Refused::TooLong) } else { Ok(()) }
    }

    fn checksum(&self, meta: &Meta, in_first: u32) -> Result<(), Refused> {
        let Checksum::Partial { start, offset } = meta.checksum() else { return Ok(()) };
        let (start, offset) = (u32::from(start), u32::from(offset));
        let within = start >= ETHERNET_HEADER && start + offset + 2 <= in_first;
        if self.offloads.tx_checksum && within { Ok(()) } else { Err(Refused::Checksum) }
    }

    fn segmentation(&self, meta: &Meta, in_first: u32, bytes: u64) -> Result<(), Refused> {
        let Some(cut) = meta.segmentation() else { return Ok(()) };
        let (known, transport, field) = match cut.kind {
            Kind::Tcp4 => (self.offloads.tso4, 20, 16),
            Kind::Tcp6 => (self.offloads.tso6, 20, 16),
            Kind::Udp => (self.offloads.uso, 8, 6),
        };
        let Checksum::Partial { start, offset } = meta.checksum() else {
            return Err(Refused::Segmentation);
        };
        let (start, headers, network) =
            (u32::from(start), u32::from(cut.headers), u32::from(meta.network()));
        let layers = network >= ETHERNET_HEADER
            && network < start
            && offset == field
            && start + transport <= headers;
        let frames = cut.frames(bytes).is_some()
            && headers <= in_first
            && headers + u32::from(cut.size) <= self.max_frame;
        if known && layers && frames { Ok(()) } else { Err(Refused::Segmentation) }
    }
}

impl Info {
    /// Whether the card can open `count` queues as `settings` say; depths beyond its own are cut to
    /// them.
    pub fn check_settings(&self, count: u16, settings: &QueueSettings) -> Result<(), Error> {
        let (least, most) = self.mtu;
        let invalid = |text: String| Err(Error::Invalid(text));
        if count == 0 || count > self.max_queues {
            return invalid(format!("{count} queues of a card that has 1 to {}", self.max_queues));
        }
        if settings.rx_depth == 0 || settings.tx_depth == 0 {
            return invalid("a queue that holds no buffers: one at least each way".into());
        }
        if !(least..=most).contains(&settings.mtu) {
            return invalid(format!(
                "an MTU of {} on a card that takes {least} to {most}",
                settings.mtu
            ));
        }
        let room =
            if self.receives_pieces { MIN_ROOM } else { settings.mtu + ETHERNET_HEADER + VLAN_TAG };
        if settings.rx_room < room {
            return invalid(format!(
                "buffers with room for {} bytes: this card needs {room} at an MTU of {}",
                settings.rx_room, settings.mtu
            ));
        }
        Ok(())
    }
}

#[inline]
fn piece(packet: &Packet) -> Result<(), Refused> {
    if packet.buffer.is_none() {
        return Err(Refused::Empty);
    }
    if packet.len == 0 {
        return Err(Refused::TooShort);
    }
    if packet.len > packet.room() { Err(Refused::OutOfBuffer) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::{Cable, Nic, Segmentation};
    use super::*;

    const SETTINGS: QueueSettings =
        QueueSettings { rx_depth: 8, tx_depth: 8, mtu: 1500, rx_room: 2048 };

    fn info() -> Info {
        let offloads =
            Offloads { tx_checksum: true, tso4: true, vlan_insert: true, ..Offloads::default() };
        Info {
            headroom: 12,
            max_pieces: 3,
            max_segmented: 4000,
            offloads,
            ..Cable::new(4096).unwrap().1.info().clone()
        }
    }

    fn limits() -> Limits {
        Limits::new(&info(), &SETTINGS, 8)
    }

    fn packet(len: u32, meta: Meta) -> Packet {
        let (_, end, _) = Cable::new(1 << 16).unwrap();
        Packet { len, meta, ..Packet::new(end.dma().arena().alloc(4096, 64).unwrap(), 64) }
    }

    fn more(len: u32) -> Packet {
        packet(len, Meta::default().with_more(true))
    }

    #[test]
    fn a_packet_is_an_ethernet_header_at_least_and_a_tagged_frame_of_the_mtu_at_most() {
        let check = |len| limits().check(&[packet(len, Meta::default())]);
        assert_eq!((check(14), check(1518)), (Ok(1), Ok(1)));
        assert_eq!(
            (check(0), check(13), check(1519)),
            (Err(Refused::TooShort), Err(Refused::TooShort), Err(Refused::TooLong))
        );
        assert_eq!(check(u32::MAX), Err(Refused::OutOfBuffer));
    }

    #[test]
    fn a_plain_packet_is_one_piece_that_asks_for_nothing_and_can_be_sent() {
        let plain = |meta| limits().is_plain(&packet(60, meta));
        assert!(
            plain(Meta::default())
                && plain(Meta::default().with_hash(Some(7)).with_checksum(Checksum::Valid))
        );
        let asks = [
            Meta::default().with_more(true),
            Meta::default().with_vlan(Some(1)),
            Meta::default().with_checksum(Checksum::Partial { start: 34, offset: 16 }),
            Meta::default().with_segmentation(Some(Segmentation {
                kind: Kind::Udp,
                size: 1,
                headers: 42,
            })),
        ];
        assert!(asks.into_iter().all(|meta| !plain(meta)));
        let of_length = |len| limits().is_plain(&packet(len, Meta::default()));
        assert_eq!(
            [13, 14, 1518, 1519, u32::MAX].map(of_length),
            [false, true, true, false, false]
        );
        let at = |start| limits().is_plain(&Packet { start, ..packet(60, Meta::default()) });
        assert_eq!([11, 12, 4036, 4037, u32::MAX].map(at), [false, true, true, false, false]);
        assert!(!limits().is_plain(&Packet { len: 60, start: 64, ..Packet::default() }));
    }

    #[test]
    fn a_place_that_is_no_packet_is_refused() {
        let place = |start| Packet { start, ..packet(60, Meta::default()) };
        assert_eq!(limits().check(&[]), Err(Refused::Empty));
        assert_eq!(limits().check(&[Packet { len: 60, ..Packet::default() }]), Err(Refused::Empty));
        assert_eq!(limits().check(&[place(11)]), Err(Refused::Headroom));
        assert_eq!(limits().check(&[place(4037)]), Err(Refused::OutOfBuffer));
        assert_eq!(limits().check(&[place(u32::MAX)]), Err(Refused::OutOfBuffer));
    }

    #[test]
    fn pieces_are_one_packet_up_to_the_first_without_more() {
        let last = || packet(60, Meta::default());
        assert_eq!(limits().check(&[more(60), more(1), last(), last()]), Ok(3));
        assert_eq!(limits().check(&[more(60), more(60)]), Err(Refused::Unterminated));
        assert_eq!(
            limits().check(&[more(60), more(60), more(60), last()]),
            Err(Refused::TooManyPieces)
        );
        assert_eq!(limits().check(&[more(60), more(0), last()]), Err(Refused::TooShort));
        assert_eq!(
            limits().check(&[more(1000), packet(519, Meta::default())]),
            Err(Refused::TooLong)
        );
    }

    #[test]
    fn a_checksum_lies_in_the_first_piece() {
        let check = |start, offset| {
            limits().check(&[packet(
                60,
                Meta::default().with_checksum(Checksum::Partial { start, offset }),
            )])
        };
        assert_eq!((check(34, 16), check(34, 24)), (Ok(1), Ok(1)));
        for (start, offset) in [(34, 25), (13, 16), (u16::MAX, u16::MAX), (60, 0)] {
            assert_eq!(check(start, offset), Err(Refused::Checksum), "{start} {offset}");
        }
    }

    fn cut() -> Meta {
        Meta::default()
            .with_network(14)
            .with_checksum(Checksum::Partial { start: 34, offset: 16 })
            .with_segmentation(Some(Segmentation { kind: Kind::Tcp4, size: 1460, headers: 54 }))
    }

    #[test]
    fn a_packet_to_be_cut_says_where_its_headers_are() {
        let check = |meta| limits().check(&[packet(3900, meta)]);
        assert_eq!(check(cut()), Ok(1));
        let with = |kind, size, headers| {
            cut().with_segmentation(Some(Segmentation { kind, size, headers }))
        };
        let wrong = [
            with(Kind::Tcp4, 0, 54),
            with(Kind::Tcp4, 7, 54),
            with(Kind::Tcp4, 1460, 53),
            with(Kind::Tcp4, 1500, 54),
            with(Kind::Tcp4, 1, 3901),
            with(Kind::Tcp6, 1460, 54),
            with(Kind::Udp, 1460, 54),
            cut().with_network(13),
            cut().with_network(34),
            cut().with_checksum(Checksum::Unknown),
            cut().with_checksum(Checksum::Partial { start: 34, offset: 6 }),
        ];
        for meta in wrong {
            assert_eq!(check(meta), Err(Refused::Segmentation), "{meta:?}");
        }
        let long = [
            Packet { meta: cut().with_more(true), ..packet(3900, cut()) },
            packet(101, Meta::default()),
        ];
        assert_eq!(limits().check(&long), Err(Refused::TooLong));
    }

    #[test]
    fn what_a_card_does_not_do_is_refused() {
        let plain = Limits::new(&Info { offloads: Offloads::default(), ..info() }, &SETTINGS, 8);
        let tagged = Meta::default().with_vlan(Some(1));
        assert_eq!(limits().check(&[packet(60, tagged)]), Ok(1));
        assert_eq!(plain.check(&[packet(60, tagged)]), Err(Refused::Vlan));
        assert_eq!(plain.check(&[packet(3900, cut())]), Err(Refused::Checksum));
    }

    #[test]
    fn a_buffer_for_reception_has_the_room_that_the_queue_was_told() {
        let buffer = |start| Packet { start, ..packet(0, Meta::default()) };
        assert_eq!(limits().check_buffer(&buffer(2048)), Ok(()));
        assert_eq!(limits().check_buffer(&buffer(2049)), Err(Refused::OutOfBuffer));
        assert_eq!(limits().check_buffer(&buffer(11)), Err(Refused::Headroom));
        assert_eq!(limits().check_buffer(&Packet::default()), Err(Refused::Empty));
    }

    #[test]
    fn settings_that_a_card_does_not_have_are_named() {
        let says = |count, settings: QueueSettings, what: &str| {
            let error = Info { receives_pieces: false, ..info() }
                .check_settings(count, &settings)
                .unwrap_err()
                .to_string();
            assert!(error.contains(what), "{error}");
        };
        says(2, SETTINGS, "1 to 1");
        says(0, SETTINGS, "1 to 1");
        says(1, QueueSettings { tx_depth: 0, ..SETTINGS }, "one at least");
        says(1, QueueSettings { mtu: 9001, ..SETTINGS }, "68 to 9000");
        says(1, QueueSettings { rx_room: 1517, ..SETTINGS }, "needs 1518");
    }
}
