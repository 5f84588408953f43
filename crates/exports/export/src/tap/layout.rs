//! How the buffers of a queue are cut.
//!
//! A buffer begins with room for the driver's header and the TAP's, of which each is written when
//! the other is of no use any more: the same bytes serve both. A packet that fits into a [`SMALL`]
//! buffer takes one. What is longer takes one of the few long ones beside it, because nobody knows
//! how long the next packet of a TAP is before it is read.

use ring3_class::dma::Arena;
use ring3_class::net::{ETHERNET_HEADER, Info, Packet, QueueSettings, VLAN_TAG};

use super::header;

/// Places of a batch. More than the pieces of the longest packet.
pub const BATCH: usize = 64;

/// Bytes of most buffers: more than a frame of the usual MTU. What is received into has as many
/// behind its headroom, as cards like it; what is sent lies within, so that two fill a page, and no
/// frame reaches from one into the next.
const SMALL: u32 = 2048;
/// Headroom comes in these, so that packets begin where a cache line does.
const LINE: u32 = 64;
/// Long buffers of a queue that sends.
const LONG: u16 = 32;
/// Buffers each way, if the card holds as many.
const DEPTH: u16 = 256;
/// Of a card that cuts, the longest packet that the kernel ever hands over, its Ethernet header and
/// a tag included.
const LONGEST: u32 = 65536 + ETHERNET_HEADER + VLAN_TAG;

/// By which a buffer that comes back is known.
pub const SMALL_TOKEN: u32 = 0;
/// The same of a long one.
pub const LONG_TOKEN: u32 = 1;
/// The same of one that vhost-net writes into.
pub const RING_TOKEN: u32 = 2;

/// Of these, how many vhost-net has; and how many more are received into, so that the card has its
/// own meanwhile.
const RING: u16 = super::vhost::SIZE;
/// Bytes of these buffers, with their headroom, where packets are long: the longest takes five at
/// most. The worker looks each of them up by itself, so that it pays for their number.
const PIECE: u32 = 16 << 10;

/// The buffers of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Where a packet begins in its buffer: what is before is for headers and for a tag.
    pub start: u32,
    /// Bytes of a small buffer from there on, for sending.
    pub small: u32,
    /// Bytes of a long one, if there are packets that need it.
    pub long: Option<u32>,
    /// Bytes of a buffer that vhost-net writes into, from there on. It takes as many as a packet
    /// needs.
    pub ring: u32,
    /// How the card's queue is opened.
    pub settings: QueueSettings,
}

impl Layout {
    /// For a card, at an MTU.
    pub fn new(info: &Info, mtu: u32) -> Self {
        let start = (header::BYTES as u32 + VLAN_TAG).max(info.headroom).next_multiple_of(LINE);
        let frame = mtu.saturating_add(ETHERNET_HEADER + VLAN_TAG);
        // One more byte: a packet that fills all of it was longer, and the rest is lost.
        let longest =
            if cuts(info) { LONGEST.min(info.max_segmented.max(frame)) } else { frame } + 1;
        let within = SMALL - start.min(SMALL / 2);
        let (small, long) = match longest {
            _ if longest <= within => (within, None),
            _ if info.max_pieces > 1 => (within, Some((longest - within).next_multiple_of(LINE))),
            _ => (longest.next_multiple_of(LINE), None),
        };
        let ring = if long.is_none() {
            small
        } else {
            longest.div_ceil(info.max_pieces.into()).next_multiple_of(LINE).max(PIECE - start)
        };
        let room =
            if info.receives_pieces { SMALL } else { frame.max(SMALL).next_multiple_of(LINE) };
        let depth = |most: u16| DEPTH.min(most);
        let settings = QueueSettings {
            rx_depth: depth(info.max_depth.0),
            tx_depth: depth(info.max_depth.1),
            mtu,
            rx_room: room,
        };
        Self { start, small, long, ring, settings }
    }

    /// Most bytes of a packet that can be sent.
    pub fn longest(&self) -> u32 {
        self.small + self.long.unwrap_or(0) - 1
    }

    /// Most bytes of a piece of what is received: a frame, or as much of it as a buffer holds.
    pub fn longest_piece(&self) -> u32 {
        self.settings.mtu.saturating_add(ETHERNET_HEADER + VLAN_TAG).min(self.settings.rx_room)
    }

    /// A buffer to receive into.
    pub fn receive_buffer(&self, arena: &Arena) -> Result<Packet, ring3_class::Error> {
        Ok(Packet::new(
            arena.alloc((self.start + self.settings.rx_room) as usize, LINE as usize)?,
            self.start,
        ))
    }

    /// The buffers to send of: small ones, and long ones.
    pub fn send_buffers(
        &self,
        arena: &Arena,
    ) -> Result<(Vec<Packet>, Vec<Packet>), ring3_class::Error> {
        let one = |bytes: u32, token| -> Result<Packet, ring3_class::Error> {
            Ok(Packet { token, ..self.buffer(arena, bytes)? })
        };
        let small = (0..self.settings.tx_depth)
            .map(|_| one(self.small, SMALL_TOKEN))
            .collect::<Result<_, _>>()?;
        let count = if self.long.is_some() { LONG.min(self.settings.tx_depth) } else { 0 };
        let long = (0..count)
            .map(|_| one(self.long.unwrap_or(0), LONG_TOKEN))
            .collect::<Result<_, _>>()?;
        Ok((small, long))
    }

    /// The buffers that vhost-net writes into.
    pub fn ring_buffers(&self, arena: &Arena) -> Result<Vec<Packet>, ring3_class::Error> {
        let one = |_| Ok(Packet { token: RING_TOKEN, ..self.buffer(arena, self.ring)? });
        (0..RING).map(one).collect()
    }

    /// One to send of, with room for so many bytes.
    fn buffer(&self, arena: &Arena, bytes: u32) -> Result<Packet, ring3_class::Error> {
        Ok(Packet::new(arena.alloc((self.start + bytes) as usize, SMALL as usize)?, self.start))
    }

    /// Buffers to receive into beside those that the card has, for what vhost-net has of them.
    pub fn more_receive_buffers(&self, arena: &Arena) -> Result<Vec<Packet>, ring3_class::Error> {
        (0..RING).map(|_| self.receive_buffer(arena)).collect()
    }

    /// Bytes of DMA memory that queues of any card and MTU need, with what its driver takes for
    /// rings.
    pub fn arena_bytes(queues: u16) -> usize {
        let each = usize::from(DEPTH) * (2 * (16 << 10))
            + usize::from(LONG) * (68 << 10)
            + usize::from(RING) * (12 << 10);
        usize::from(queues.max(1)) * each + (2 << 20)
    }
}

/// Whether the card cuts packets into frames.
pub fn cuts(info: &Info) -> bool {
    let able = info.offloads;
    info.max_segmented > 0 && able.tx_checksum && (able.tso4 || able.tso6 || able.uso)
}

#[cfg(test)]
mod tests {
    use ring3_class::dma::Region;
    use ring3_class::net::{Cable, Nic, Offloads};

    use super::*;

    fn info() -> Info {
        Cable::new(4096).unwrap().1.info().clone()
    }

    fn cutting() -> Info {
        let offloads = Offloads { tx_checksum: true, tso4: true, ..Offloads::default() };
        Info { max_segmented: 65535, offloads, ..info() }
    }

    #[test]
    fn a_frame_of_the_usual_mtu_needs_no_long_buffer() {
        let layout = Layout::new(&info(), 1500);
        assert_eq!(
            (layout.start, layout.small, layout.long, layout.settings.rx_room),
            (64, 1984, None, 2048)
        );
    }

    #[test]
    fn a_card_that_cuts_has_room_for_the_longest_packet_and_a_byte_more() {
        let layout = Layout::new(&cutting(), 1500);
        assert!(layout.longest() >= 65535 && layout.long.is_some(), "{layout:?}");
        assert!(
            Layout::new(&Info { offloads: Offloads::default(), ..cutting() }, 1500).long.is_none()
        );
    }

    #[test]
    fn long_frames_take_two_pieces_or_a_long_buffer_where_a_card_knows_no_pieces() {
        let pieces = Layout::new(&info(), 9000);
        assert!(
            pieces.small == 1984 && pieces.longest() >= 9018 && pieces.settings.rx_room == 2048,
            "{pieces:?}"
        );
        let whole = Layout::new(&Info { max_pieces: 1, receives_pieces: false, ..info() }, 9000);
        assert!(
            whole.long.is_none() && whole.small > 9018 && whole.settings.rx_room >= 9018,
            "{whole:?}"
        );
    }

    #[test]
    fn the_longest_packet_takes_no_more_of_vhosts_buffers_than_the_card_takes_pieces() {
        for pieces in [1, 2, 16, 18, 32] {
            for info in
                [Info { max_pieces: pieces, ..info() }, Info { max_pieces: pieces, ..cutting() }]
            {
                for mtu in [68, 1500, 9000] {
                    let layout = Layout::new(&info, mtu);
                    assert!(
                        layout.longest().div_ceil(layout.ring) <= pieces.into(),
                        "{pieces} {mtu} {layout:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_longest_packet_takes_five_of_vhosts_buffers_at_most() {
        let layout = Layout::new(&Info { max_pieces: 32, ..cutting() }, 1500);
        assert!(layout.longest().div_ceil(layout.ring) <= 5, "{layout:?}");
    }

    #[test]
    fn buffers_of_both_engines_fit_into_the_memory_of_a_queue() {
        for info in [info(), cutting(), Info { receives_pieces: false, ..cutting() }] {
            for mtu in [1500, 9000] {
                let layout = Layout::new(&info, mtu);
                let arena = Arena::new(Region::new(Layout::arena_bytes(1)).unwrap(), 0x10_0000);
                let received: Result<Vec<_>, _> =
                    (0..layout.settings.rx_depth).map(|_| layout.receive_buffer(&arena)).collect();
                let all = (
                    received,
                    layout.send_buffers(&arena),
                    layout.ring_buffers(&arena),
                    layout.more_receive_buffers(&arena),
                );
                assert!(
                    all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok(),
                    "{mtu} {layout:?}"
                );
            }
        }
    }

    #[test]
    fn no_frame_of_the_usual_mtu_that_is_sent_reaches_from_one_page_into_the_next() {
        for info in [info(), cutting()] {
            let layout = Layout::new(&info, 1500);
            let arena = Arena::new(Region::new(Layout::arena_bytes(1)).unwrap(), 0x10_0000);
            let (small, _) = layout.send_buffers(&arena).unwrap();
            let ring = layout.ring_buffers(&arena).unwrap();
            for packet in small.iter().chain(&ring) {
                assert!(packet.iova().unwrap() % 4096 + 1514 <= 4096, "{layout:?}");
            }
        }
    }

    #[test]
    fn a_driver_with_a_large_header_finds_room_for_it() {
        assert_eq!(Layout::new(&Info { headroom: 65, ..info() }, 1500).start, 128);
    }
}
