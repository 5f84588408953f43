//! Which packets of a batch go to the kernel together.

use ring3_class::net::{Packet, Segmentation};

use super::super::layout::BATCH;
use super::segment::{Frame, HEADERS, Segment};

/// Flows that trains are put together of at a time; one more ends the train that has waited
/// longest.
const FLOWS: usize = 8;
/// Most bytes of a packet from the network's header on. [RFC 791 3.1]
const LONGEST: u32 = 65535;
/// No packet.
const NONE: u8 = u8::MAX;

/// A packet of a batch.
#[derive(Clone, Copy)]
struct Member {
    /// Its pieces in the batch.
    from: u8,
    to: u8,
    /// Bytes of its first piece that are not said again: of the first of a train, none.
    skip: u8,
    /// The packet behind it in its train.
    next: u8,
    /// Packets of the train that begins with it; 0 if it does not begin one.
    packets: u8,
}

/// A train that may grow.
#[derive(Clone, Copy)]
struct Open {
    /// The headers of its first segment.
    first: Segment,
    vlan: Option<u16>,
    /// Its first and its last packet.
    head: u8,
    tail: u8,
    packets: u8,
    payload: u32,
    push: bool,
}

/// The packets of a batch, in the order in which the kernel takes them.
pub struct CoalesceBatch {
    members: Box<[Member; BATCH]>,
    count: usize,
    /// Whether anything is put together at all.
    joins: bool,
    open: [Option<Open>; FLOWS],
    /// The one that ends next for want of room.
    oldest: usize,
}

/// What one write hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalescedPacket {
    head: u8,
    /// Packets that the card has received.
    pub packets: u8,
}

impl CoalesceBatch {
    /// Packets stay as they came unless it `joins` them.
    pub fn new(joins: bool) -> Self {
        let none = Member { from: 0, to: 0, skip: 0, next: NONE, packets: 0 };
        Self { members: Box::new([none; BATCH]), count: 0, joins, open: [None; FLOWS], oldest: 0 }
    }

    /// Puts together what belongs together of `batch`, all of whose packets are whole. The first of
    /// each train says what the train is afterwards.
    pub fn plan(&mut self, batch: &mut [Packet]) {
        self.count = 0;
        let mut at = 0;
        while let Some(last) = batch[at..].iter().position(|piece| !piece.meta.more()) {
            let next = at + last + 1;
            // A batch is not longer than a byte counts, and the only packet of one has nothing to
            // be put to.
            let member = Member { from: at as u8, to: next as u8, skip: 0, next: NONE, packets: 1 };
            self.members[self.count] = member;
            if self.joins && (at > 0 || next < batch.len()) {
                self.join(self.count, batch);
            }
            self.count += 1;
            at = next;
        }
        self.end_all(batch);
    }

    /// The next of what was planned, in the order of what came first, from packet `at` on, which is
    /// behind it then.
    #[inline]
    pub fn after(&self, at: &mut usize) -> Option<CoalescedPacket> {
        let head = (*at..self.count).find(|&head| self.members[head].packets > 0)?;
        *at = head + 1;
        Some(CoalescedPacket { head: head as u8, packets: self.members[head].packets })
    }

    /// The pieces of `train`: where each is in the batch, and how many of its first bytes are left
    /// out.
    pub fn pieces(&self, train: CoalescedPacket) -> impl Iterator<Item = (usize, u32)> + Clone {
        let next = |member: &&Member| self.members.get(usize::from(member.next));
        let members = std::iter::successors(self.members.get(usize::from(train.head)), next);
        members.flat_map(|member| {
            let skip = move |piece: u8| if piece == member.from { member.skip.into() } else { 0 };
            (member.from..member.to).map(move |piece| (usize::from(piece), skip(piece)))
        })
    }

    /// Puts packet `number` to its train, or begins one with it if it can be the first.
    fn join(&mut self, number: usize, batch: &mut [Packet]) {
        let Member { from, to, .. } = self.members[number];
        let pieces = &batch[usize::from(from)..usize::from(to)];
        let segment = match read(pieces) {
            Frame::Other => return,
            Frame::Unclear => return self.end_all(batch),
            Frame::Segment(segment) => segment,
        };
        let vlan = pieces[0].meta.vlan();
        let known = self
            .open
            .iter()
            .position(|open| open.as_ref().is_some_and(|open| open.first.is_of(&segment)));
        if let Some(place) = known {
            if self.append(place, number, &segment, vlan) {
                return;
            }
            self.end(place, batch);
        }
        if segment.plain && !segment.push {
            let place =
                known.or_else(|| self.open.iter().position(Option::is_none)).unwrap_or_else(|| {
                    self.oldest = (self.oldest + 1) % FLOWS;
                    self.oldest
                });
            self.end(place, batch);
            let (head, payload) = (number as u8, segment.payload.into());
            self.open[place] = Some(Open {
                first: segment,
                vlan,
                head,
                tail: head,
                packets: 1,
                payload,
                push: false,
            });
        }
    }

    /// Whether packet `number` is the next of an open train, which has it then.
    fn append(
        &mut self,
        place: usize,
        number: usize,
        segment: &Segment,
        vlan: Option<u16>,
    ) -> bool {
        let Some(open) = &mut self.open[place] else { return false };
        let (first, payload) = (&open.first, u32::from(segment.payload));
        let follows = segment.plain
            && !open.push
            && vlan == open.vlan
            && segment.sequence == first.sequence.wrapping_add(open.payload)
            && segment.id == first.id_after(open.packets)
            && segment.payload <= first.payload
            // Only the last of a train is shorter.
            && open.payload == u32::from(first.payload) * u32::from(open.packets)
            && first.total(open.payload + payload) <= LONGEST
            && segment.is_like(first);
        if !follows {
            return false;
        }
        self.members[usize::from(open.tail)].next = number as u8;
        (self.members[number].packets, self.members[number].skip) = (0, segment.headers);
        (open.tail, open.packets, open.payload) =
            (number as u8, open.packets + 1, open.payload + payload);
        open.push = segment.push;
        true
    }

    fn end_all(&mut self, batch: &mut [Packet]) {
        (0..FLOWS).for_each(|place| self.end(place, batch));
    }

    /// Ends a train: its first packet says what it is.
    fn end(&mut self, place: usize, batch: &mut [Packet]) {
        let Some(open) = self.open[place].take().filter(|open| open.packets > 1) else { return };
        let head = &mut self.members[usize::from(open.head)];
        head.packets = open.packets;
        let (first, packet) = (&open.first, &mut batch[usize::from(head.from)]);
        let headers = first.headers(open.payload, open.push);
        // Its headers were read there.
        let _ = packet.write(0, &headers[..first.headers.into()]);
        packet.meta = packet.meta.with_checksum(first.checksum());
        packet.meta = packet.meta.with_network(first.network());
        packet.meta = packet.meta.with_segmentation(Some(Segmentation {
            kind: first.kind(),
            size: first.payload,
            headers: first.headers.into(),
        }));
    }
}

/// What the packet of these pieces is. What lies behind its first piece is no header of a train's.
fn read(pieces: &[Packet]) -> Frame {
    let mut bytes = [0; HEADERS];
    let first = &pieces[0];
    let count = HEADERS.min(first.len as usize);
    if first.read(0, &mut bytes[..count]).is_err() {
        return Frame::Other;
    }
    let len = pieces.iter().map(|piece| piece.len).fold(0, u32::saturating_add);
    Segment::read(&bytes[..count], len, &first.meta)
}
