//! What is put together, cut again by rules written down a second time, is what came.

use proptest::prelude::*;
use ring3_class::dma::{Arena, Region};
use ring3_class::net::{Checksum, Kind, Meta, Packet, Segmentation, complete, sum};

use super::super::layout::BATCH;
use super::CoalesceBatch;

/// A segment to be made.
#[derive(Clone, Debug)]
struct Made {
    six: bool,
    port: u16,
    id: u16,
    sequence: u32,
    flags: u8,
    options: Vec<u8>,
    payload: usize,
    window: u16,
    lifetime: u8,
    service: u8,
    fragment: u16,
    checksum: Checksum,
    vlan: Option<u16>,
    /// Bytes of each piece that it lies in.
    room: usize,
}

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

impl Made {
    fn new(six: bool) -> Self {
        let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let (checksum, payload) = (Checksum::Valid, 100);
        let (id, sequence, fragment) = (7, 1000, 0x4000);
        let (port, flags, window, lifetime, service) = (80, ACK, 500, 64, 0);
        Self {
            six,
            port,
            id,
            sequence,
            flags,
            options,
            payload,
            window,
            lifetime,
            service,
            fragment,
            checksum,
            vlan: None,
            room: 1 << 11,
        }
    }

    /// The one that follows.
    fn next(&self) -> Self {
        let sequence = self.sequence.wrapping_add(self.payload as u32);
        Self { id: self.id.wrapping_add(1), sequence, ..self.clone() }
    }

    /// As many as that, each behind the one before.
    fn train(&self, count: usize) -> Vec<Self> {
        std::iter::successors(Some(self.clone()), |last| Some(last.next())).take(count).collect()
    }

    fn transport(&self) -> usize {
        if self.six { 54 } else { 34 }
    }

    fn bytes(&self) -> Vec<u8> {
        let length = 20 + self.options.len() + self.payload;
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.six {
            bytes.extend([0x86, 0xdd, 0x60 | self.service >> 4, self.service << 4, 0, 9]);
            bytes.extend((length as u16).to_be_bytes());
            bytes.extend([6, self.lifetime]);
            bytes.extend([[0xfd; 16], [0xfc; 16]].concat());
        } else {
            bytes.extend([0x08, 0, 0x45, self.service]);
            [(length + 20) as u16, self.id, self.fragment]
                .iter()
                .for_each(|word| bytes.extend(word.to_be_bytes()));
            bytes.extend([self.lifetime, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        bytes.extend([self.port, 9999].map(u16::to_be_bytes).concat());
        bytes.extend([self.sequence, 77].map(u32::to_be_bytes).concat());
        bytes.extend([(5 + self.options.len() as u8 / 4) << 4, self.flags]);
        bytes.extend([self.window, 0, 0].map(u16::to_be_bytes).concat());
        bytes.extend(&self.options);
        bytes.extend((0..self.payload).map(|at| (self.sequence as usize + at) as u8));
        sums(&mut bytes);
        bytes
    }

    /// The same in a batch.
    fn pieces(&self, arena: &Arena) -> Vec<Packet> {
        let bytes = self.bytes();
        let pieces = bytes.chunks(self.room);
        let last = pieces.len() - 1;
        let piece = |(index, part): (usize, &[u8])| {
            let mut piece = Packet::new(arena.alloc(64 + part.len(), 64).unwrap(), 64);
            piece.fill(part).unwrap();
            let known = Meta::default().with_checksum(self.checksum).with_vlan(self.vlan);
            piece.meta = (if index == 0 { known } else { Meta::default() }).with_more(index < last);
            piece
        };
        pieces.enumerate().map(piece).collect()
    }
}

/// Makes both sums of a segment right.
fn sums(bytes: &mut [u8]) {
    let six = bytes[12] == 0x86;
    let transport = if six { 54 } else { 34 };
    if !six {
        bytes[24..26].fill(0);
        let header = !sum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&header.to_be_bytes());
    }
    let pseudo = pseudo(bytes, transport);
    bytes[transport + 16..transport + 18].copy_from_slice(&pseudo.to_be_bytes());
    complete(bytes, transport as u16, 16);
}

/// The sum of the pseudo header of a segment. [RFC 9293 3.1; RFC 8200 8.1]
fn pseudo(bytes: &[u8], transport: usize) -> u16 {
    let addresses = if transport == 54 { &bytes[22..54] } else { &bytes[26..34] };
    sum(&[addresses, &((bytes.len() - transport) as u32).to_be_bytes(), &[0, 0, 0, 6]].concat())
}

/// What the kernel is handed of a batch: for each packet what is said of it, and its bytes.
fn handed(batch: &[Made]) -> Vec<(Meta, Vec<u8>)> {
    let arena = Arena::new(Region::new(1 << 20).unwrap(), 0x1000);
    let mut places: Vec<Packet> = batch.iter().flat_map(|made| made.pieces(&arena)).collect();
    assert!(places.len() <= BATCH, "{} pieces", places.len());
    let (mut trains, mut at, mut handed) = (CoalesceBatch::new(true), 0, Vec::new());
    trains.plan(&mut places);
    while let Some(train) = trains.after(&mut at) {
        let (mut bytes, mut meta) = (Vec::new(), None);
        for (piece, skip) in trains.pieces(train) {
            meta.get_or_insert(places[piece].meta);
            let mut part = vec![0; (places[piece].len - skip) as usize];
            places[piece].read(skip, &mut part).unwrap();
            bytes.extend(part);
        }
        handed.push((meta.unwrap(), bytes));
    }
    handed
}

/// Cuts what was put together, as a kernel does that forwards it. [virtio 5.1.6.2]
fn cut((meta, bytes): &(Meta, Vec<u8>)) -> Vec<Vec<u8>> {
    let Some(Segmentation { kind, size, headers }) = meta.segmentation() else {
        return vec![bytes.clone()];
    };
    let (six, headers) = (kind == Kind::Tcp6, usize::from(headers));
    let transport = if six { 54 } else { 34 };
    assert_eq!(meta.checksum(), Checksum::Partial { start: transport as u16, offset: 16 });
    assert_eq!(bytes[transport + 16..transport + 18], pseudo(bytes, transport).to_be_bytes());
    assert!(six || sum(&bytes[14..34]) == 0xffff);
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(
        usize::from(word(if six { 18 } else { 16 })),
        bytes.len() - if six { 54 } else { 14 }
    );
    let parts = bytes[headers..].chunks(size.into());
    let last = parts.len() - 1;
    let segment = |(index, part): (usize, &[u8])| {
        let mut frame = [&bytes[..headers], part].concat();
        let total = (frame.len() - if six { 54 } else { 14 }) as u16;
        if six {
            frame[18..20].copy_from_slice(&total.to_be_bytes());
        } else {
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[18..20].copy_from_slice(&word(18).wrapping_add(index as u16).to_be_bytes());
        }
        let sequence = u32::from(word(transport + 4)) << 16 | u32::from(word(transport + 6));
        let sequence = sequence.wrapping_add((index * usize::from(size)) as u32);
        frame[transport + 4..transport + 8].copy_from_slice(&sequence.to_be_bytes());
        if index < last {
            frame[transport + 13] &= !PSH;
        }
        frame[transport + 16..transport + 18].fill(0);
        sums(&mut frame);
        frame
    };
    parts.enumerate().map(segment).collect()
}

/// Packets that the kernel is handed of a batch.
fn count(batch: &[Made]) -> usize {
    handed(batch).len()
}

/// What cannot be put to the two segments before it: the second begins no train of its own with
/// them.
#[track_caller]
fn apart(change: impl Fn(&mut Made)) {
    for six in [false, true] {
        let mut train = Made::new(six).train(3);
        change(&mut train[2]);
        assert_eq!(count(&train), 2, "six: {six}, {:?}", train[2]);
        let back: Vec<_> = handed(&train).iter().flat_map(cut).collect();
        assert_eq!(back, train.iter().map(Made::bytes).collect::<Vec<_>>());
    }
}

#[test]
fn a_train_of_one_flow_is_one_packet() {
    for six in [false, true] {
        let whole = handed(&Made::new(six).train(40));
        let (meta, bytes) = &whole[0];
        let headers = Made::new(six).transport() as u16 + 32;
        let kind = if six { Kind::Tcp6 } else { Kind::Tcp4 };
        assert_eq!((whole.len(), bytes.len()), (1, usize::from(headers) + 4000));
        assert_eq!(meta.segmentation(), Some(Segmentation { kind, size: 100, headers }));
    }
}

#[test]
fn a_packet_alone_is_as_it_came() {
    let alone = Made::new(false);
    let whole = handed(std::slice::from_ref(&alone));
    assert_eq!(whole[0].0, Meta::default().with_checksum(Checksum::Valid));
    assert_eq!(whole[0].1, alone.bytes());
}

#[test]
fn headers_that_differ_begin_another_packet() {
    apart(|made| made.window += 1);
    apart(|made| made.lifetime -= 1);
    apart(|made| made.service = 0x10);
    apart(|made| made.options[7] = 9);
    apart(|made| made.options.truncate(8));
    apart(|made| made.port += 1);
    apart(|made| made.vlan = Some(5));
}

#[test]
fn what_does_not_follow_begins_another_packet() {
    apart(|made| made.sequence += 1);
    apart(|made| made.sequence -= 100);
    apart(|made| made.payload = 101);
}

#[test]
fn an_identification_that_does_not_rise_by_one_begins_another_packet() {
    let mut train = Made::new(false).train(3);
    train[2].id = train[1].id;
    assert_eq!(count(&train), 2);
}

#[test]
fn only_data_with_nothing_but_an_acknowledgement_is_put_together() {
    for flags in [0x11, 0x12, 0x14, 0x30, 0x50, 0x90, 0x00] {
        apart(|made| made.flags = flags);
    }
    apart(|made| made.payload = 0);
}

#[test]
fn what_nobody_has_summed_is_left_alone() {
    apart(|made| made.checksum = Checksum::Unknown);
    apart(|made| made.checksum = Checksum::Partial { start: made.transport() as u16, offset: 6 });
    let train = Made::new(false).train(3);
    let partial = Checksum::Partial { start: 34, offset: 16 };
    let of_a_neighbour: Vec<_> =
        train.into_iter().map(|made| Made { checksum: partial, ..made }).collect();
    assert_eq!(count(&of_a_neighbour), 1);
}

#[test]
fn a_header_whose_own_sum_is_wrong_is_left_alone() {
    let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
    let mut places: Vec<Packet> =
        Made::new(false).train(2).iter().flat_map(|made| made.pieces(&arena)).collect();
    places[1].write(24, &[0, 0]).unwrap();
    let mut trains = CoalesceBatch::new(true);
    trains.plan(&mut places);
    let mut at = 0;
    assert_eq!(trains.after(&mut at).map(|train| train.packets), Some(1));
}

#[test]
fn a_frame_that_is_longer_than_its_packet_is_left_alone() {
    let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
    let mut places: Vec<Packet> =
        Made::new(true).train(2).iter().flat_map(|made| made.pieces(&arena)).collect();
    places[1].len -= 1;
    let mut trains = CoalesceBatch::new(true);
    trains.plan(&mut places);
    assert_eq!(trains.after(&mut 0).map(|train| train.packets), Some(1));
}

#[test]
fn a_short_segment_and_one_that_is_handed_on_at_once_end_a_train() {
    for end in [|made: &mut Made| made.payload = 40, |made: &mut Made| made.flags = ACK | PSH] {
        let mut train = Made::new(false).train(3);
        end(&mut train[2]);
        let last = train[2].clone();
        train.extend(last.next().train(2).into_iter().map(|made| Made {
            payload: 10,
            flags: ACK,
            ..made
        }));
        train[4].sequence = train[3].sequence + 10;
        assert_eq!(count(&train), 2);
        let back: Vec<_> = handed(&train).iter().flat_map(cut).collect();
        assert_eq!(back, train.iter().map(Made::bytes).collect::<Vec<_>>());
    }
}

#[test]
fn two_flows_that_alternate_are_two_packets() {
    let [one, other] = [80, 81].map(|port| Made { port, ..Made::new(false) }.train(10));
    let batch: Vec<_> = one.into_iter().zip(other).flat_map(|(one, other)| [one, other]).collect();
    assert_eq!(count(&batch), 2);
}

#[test]
fn more_flows_than_are_followed_lose_nothing() {
    let flows: Vec<_> = (0..20).map(|port| Made { port, ..Made::new(false) }.train(3)).collect();
    let batch: Vec<_> =
        (0..3).flat_map(|step| flows.iter().map(move |flow| flow[step].clone())).collect();
    let mut back: Vec<_> = handed(&batch).iter().flat_map(cut).collect();
    back.sort();
    let mut sent: Vec<_> = batch.iter().map(Made::bytes).collect();
    sent.sort();
    assert_eq!(back, sent);
}

#[test]
fn a_fragment_ends_every_train() {
    let train = Made::new(false).train(4);
    let fragment = Made { fragment: 0x2000, port: 5, ..Made::new(false) };
    let batch = [&train[..2], &[fragment], &train[2..]].concat();
    assert_eq!(count(&batch), 3);
}

#[test]
fn no_packet_is_longer_than_ip_can_say() {
    for six in [false, true] {
        let train = Made { payload: 1448, ..Made::new(six) }.train(60);
        let whole = handed(&train);
        assert_eq!(whole.len(), 2, "six: {six}");
        assert!(whole[0].1.len() - 14 <= 65535 && whole[0].1.len() > 60_000);
        assert_eq!(
            whole.iter().flat_map(cut).collect::<Vec<_>>(),
            train.iter().map(Made::bytes).collect::<Vec<_>>()
        );
    }
}

#[test]
fn what_the_card_has_put_together_passes_as_it_is() {
    let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
    let mut places: Vec<Packet> =
        Made::new(false).train(2).iter().flat_map(|made| made.pieces(&arena)).collect();
    let cut = Some(Segmentation { kind: Kind::Tcp4, size: 50, headers: 66 });
    places[0].meta = places[0].meta.with_segmentation(cut);
    let mut trains = CoalesceBatch::new(true);
    trains.plan(&mut places);
    assert_eq!(trains.after(&mut 0).map(|train| train.packets), Some(1));
    assert_eq!(places[0].meta.segmentation(), cut);
}

/// A change that real traffic has, or that a train must not outlive.
fn change() -> impl Strategy<Value = (usize, usize, u16)> {
    (0..BATCH, 0..14usize, any::<u16>())
}

fn apply(made: &mut Made, what: usize, value: u16) {
    match what {
        0 => made.flags = value as u8,
        1 => made.flags |= PSH,
        2 => made.payload = usize::from(value % 200),
        3 => made.sequence = made.sequence.wrapping_add(value.into()),
        4 => made.id = value,
        5 => made.options = vec![1; usize::from(value % 11) * 4],
        6 => made.window = value,
        7 => made.lifetime = value as u8,
        8 => made.service = value as u8,
        9 => made.fragment = value,
        10 => made.checksum = Checksum::Unknown,
        11 => made.vlan = (value & 1 == 1).then_some(value >> 4),
        12 => made.port = value % 3,
        _ => made.room = usize::from(value % 150) + 40,
    }
}

proptest! {
    /// Of each flow, and so of each direction of a connection, in the order in which it came.
    #[test]
    fn whatever_comes_cut_again_it_is_byte_for_byte_what_came(
        flows in
            prop::collection::vec((any::<bool>(), any::<u32>(), any::<u16>(), 1usize..200), 1..4),
        choices in prop::collection::vec(0usize..4, 1..24),
        changes in prop::collection::vec(change(), 0..5),
    ) {
        let begin = |(number, &(six, sequence, id, payload)): (usize, &(bool, u32, u16, usize))| {
            Made { port: number as u16, sequence, id, payload, ..Made::new(six) }
        };
        let mut flows: Vec<_> = flows.iter().enumerate().map(begin).collect();
        let mut batch = Vec::new();
        for choice in choices {
            let flow = choice % flows.len();
            batch.push(flows[flow].clone());
            flows[flow] = flows[flow].next();
        }
        let length = batch.len();
        changes.iter().for_each(|&(at, what, value)| apply(&mut batch[at % length], what, value));
        let mut left = BATCH;
        batch.retain(|made| {
            let pieces = made.bytes().len().div_ceil(made.room);
            let fits = pieces <= left;
            left -= if fits { pieces } else { 0 };
            fits
        });
        let handed = handed(&batch);
        let back: Vec<_> = handed
            .iter()
            .flat_map(|whole| cut(whole).into_iter().map(|frame| (whole.0.vlan(), frame)))
            .collect();
        let sent: Vec<_> = batch.iter().map(|made| (made.vlan, made.bytes())).collect();
        // Ports, behind whichever network's header.
        let flow = |(_, frame): &(Option<u16>, Vec<u8>)| {
            let six = frame[12] == 0x86;
            (six, if six { frame[54..58].to_vec() } else { frame[34..38].to_vec() })
        };
        let mut all: Vec<_> = sent.iter().map(flow).collect();
        all.dedup();
        for wanted in all {
            let of = |frames: &[(Option<u16>, Vec<u8>)]| {
                frames.iter().filter(|frame| flow(frame) == wanted).cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(of(&back), of(&sent));
        }
        prop_assert_eq!(back.len(), sent.len());
    }

    #[test]
    fn bytes_that_mean_nothing_are_never_put_together_wrongly(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..10),
        start in any::<bool>(),
    ) {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        let mut places: Vec<Packet> = frames.iter().map(|bytes| {
            let mut bytes = bytes.clone();
            if let (true, Some(kind)) = (start, bytes.get_mut(12..16)) {
                kind.copy_from_slice(&[8, 0, 0x45, 0]);
            }
            let mut packet = Packet::new(arena.alloc(256, 64).unwrap(), 64);
            packet.fill(&bytes).unwrap();
            packet.meta = packet.meta.with_checksum(Checksum::Valid);
            packet
        }).collect();
        let mut trains = CoalesceBatch::new(true);
        trains.plan(&mut places);
        let (mut at, mut packets) = (0, 0);
        while let Some(train) = trains.after(&mut at) {
            packets += usize::from(train.packets);
        }
        prop_assert_eq!(packets, places.len());
    }
}
