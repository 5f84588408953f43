//! Clients of a card that break the protocol, or want what is not theirs: each is cut off with a
//! reason, or hurts itself; others' traffic goes on, and no frame reaches who it is not for.

mod served;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring3_broker::frame::{self as entries, Piece};
use ring3_broker::protocol::{Answer, ClientRequest, OpenPort};
use ring3_broker::server::card::Options;
use ring3_class::Deadline;
use ring3_class::net::{Checksum, Kind, Mac, Meta, Multicast, Nic, Segmentation};
use ring3_conformance::net::Wire;
use ring3_device::ring::Words;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use served::card::{DEPTH, RawCard, ServedCard, User, frame};
use served::{HEAD, Raw, SOON};

/// Socket 0 is the offender's, sockets 1 and 2 somebody else's, of whom the last is in another
/// VLAN.
const TERMS: [&str; 4] = [",clients=2", "", "", ",vlan=7"];
const OUTSIDE: Mac = Mac([2, 0, 0, 0, 0, 0xee]);

/// Lets `attack` do what it likes while two others talk to each other without end: each must hear
/// all of what the other says, and nothing else.
fn beside(served: &ServedCard, attack: impl FnOnce(&ServedCard)) {
    let [mut one, mut other] = [1, 2].map(|socket| User::new(served.client(socket)));
    let mut apart = User::new(served.client(3));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = &over;
        let talk = scope.spawn(move || {
            let mut rounds = 0;
            while !over.load(Ordering::SeqCst) || rounds < 3 {
                one.say(other.mac(), rounds);
                assert_eq!(other.hears(), (one.mac(), rounds));
                other.say(one.mac(), rounds);
                assert_eq!(one.hears(), (other.mac(), rounds));
                rounds = (rounds + 1) % 200;
            }
            assert!(
                apart.receive_until(Deadline::after(Duration::ZERO)).is_none(),
                "another VLAN heard something"
            );
        });
        // Also of an attack that fails the test.
        let ends = Ends(over);
        attack(served);
        drop(ends);
        talk.join().unwrap();
    });
    // The place is somebody's again, and the wire as it was.
    let (mut user, mut peer) = (User::new(served.client(0)), served.peer());
    user.say(OUTSIDE, 9);
    assert_eq!(served::card::came_out(&mut peer), frame(OUTSIDE, user.mac(), 9));
}

/// Says that it is over, when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The same of one client, where the card reads its memory and where that is copied; it must be cut
/// off for a reason that holds `why`.
fn cut_off(why: &str, attack: impl Fn(&mut RawCard)) {
    for copy in [false, true] {
        let served = ServedCard::start(&TERMS, Options { copy, ..Options::default() });
        beside(&served, |served| {
            let mut client = RawCard::new(&served.path(0));
            attack(&mut client);
            let said = client.raw.ended();
            assert!(said.contains(why), "{said:?} has not {why:?}");
        });
    }
}

/// A piece of 100 bytes in the memory.
fn piece(tag: u32) -> Piece {
    Piece { tag, len: 100, meta: Meta::default(), offset: 0 }
}

#[test]
fn a_packet_beyond_its_memory_is_its_end() {
    for (offset, len) in [
        (64 << 10, 1),
        ((64 << 10) - 99, 100),
        (u64::MAX, 100),
        (u64::MAX - 50, 100),
        (0, u32::MAX),
        (0, 0),
    ] {
        cut_off("not in its memory", |client| {
            client.put(2, Piece { offset, len, ..piece(1) }.encode());
            client.show();
        });
    }
}

#[test]
fn one_bad_piece_among_good_ones_too_many_and_a_last_one_that_is_missing_are_its_end() {
    let more = Piece { meta: Meta::default().with_more(true), ..piece(1) };
    cut_off("not in its memory", |client| {
        client.put(2, more.encode());
        client.put(2, Piece { offset: 1 << 40, ..piece(2) }.encode());
        client.show();
    });
    cut_off("last piece", |client| {
        client.put(2, more.encode());
        client.show();
    });
}

#[test]
fn words_that_are_no_packet_are_its_end() {
    for word in [2, 3 << 8, 1 << 56, u64::MAX] {
        cut_off("no packet", |client| {
            let [first, _, other, offset] = piece(1).encode();
            client.put(2, [first, word, other, offset]);
            client.show();
        });
    }
    cut_off("no packet", |client| {
        let [first, one, _, offset] = piece(1).encode();
        client.put(2, [first, one, 4, offset]);
        client.show();
    });
}

#[test]
fn a_tail_that_jumps_is_its_end() {
    for tail in [u64::from(DEPTH) + 1, u64::from(u32::MAX), 1 << 31] {
        cut_off("index", |client| client.tell(0, tail));
    }
}

#[test]
fn ends_that_it_never_takes_are_its_end() {
    cut_off("more packets are in flight than its queue holds", |client| {
        for tag in 0..=u32::from(DEPTH) {
            let own = frame(client.port.info.mac, client.port.info.mac, 1);
            client.send(tag, &own);
            if tag < u32::from(DEPTH) {
                client.wait_for(u64::from(tag) + 1);
            }
        }
    });
}

#[test]
fn heads_that_jump_are_its_end() {
    cut_off("index", |client| {
        client.took(5);
        let own = frame(client.port.info.mac, client.port.info.mac, 1);
        client.send(1, &own);
    });
}

/// What is sent to a client with such buffers ends it.
fn bad_buffers(why: &str, attack: impl Fn(&mut RawCard)) {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let mut client = RawCard::new(&served.path(0));
        attack(&mut client);
        served.peer().send(&frame(client.port.info.mac, OUTSIDE, 1)).unwrap();
        let said = client.raw.ended();
        assert!(said.contains(why), "{said:?} has not {why:?}");
    });
}

#[test]
fn a_buffer_beyond_its_memory_is_its_end_and_nothing_is_written() {
    for (offset, room) in [(64 << 10, 1), (u64::MAX, 100), (0, u32::MAX), (0, 0)] {
        bad_buffers("not in its memory", |client| {
            client.put(0, entries::buffer(1, room, offset));
            client.show();
        });
    }
    bad_buffers("index", |client| client.tell(100, 0));
}

#[test]
fn more_buffers_than_its_queue_holds_are_its_end() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let (mut client, mut peer) = (RawCard::new(&served.path(0)), served.peer());
        // It takes nothing of what has come, and provides on.
        for number in 0..u64::from(DEPTH) {
            client.provide(number as u32);
            client.show();
            peer.send(&frame(client.port.info.mac, OUTSIDE, 1)).unwrap();
            let deadline = Deadline::after(SOON);
            while client.received() <= number {
                assert!(!deadline.expired());
                std::thread::yield_now();
            }
        }
        client.provide(99);
        client.show();
        peer.send(&frame(client.port.info.mac, OUTSIDE, 1)).unwrap();
        let said = client.raw.ended();
        assert!(said.contains("more buffers than its queue holds"), "{said}");
    });
}

#[test]
fn a_frame_from_anothers_address_with_a_tag_or_for_the_cable_reaches_nobody_and_is_lost() {
    for copy in [false, true] {
        let served = ServedCard::start(&TERMS, Options { copy, ..Options::default() });
        let mut peer = served.peer();
        let (mut victim, mut apart) = (User::new(served.client(1)), User::new(served.client(3)));
        let mut client = RawCard::new(&served.path(0));
        let own = client.port.info.mac;
        let tagged = |to: Mac| [&to.0[..], &own.0, &[0x81, 0, 0, 7], &[0; 82]].concat();
        let frames = [
            frame(victim.mac(), apart.mac(), 1),
            frame(victim.mac(), victim.mac(), 2),
            frame(OUTSIDE, victim.mac(), 3),
            frame(Mac::BROADCAST, Mac::BROADCAST, 4),
            tagged(apart.mac()),
            tagged(Mac::BROADCAST),
            // A pause of the cable. [IEEE 802.3 31B]
            [&[1, 0x80, 0xc2, 0, 0, 1][..], &own.0, &[0x88, 8, 0, 1, 0xff, 0xff], &[0; 42]]
                .concat(),
            vec![0; 13],
        ];
        for (number, bytes) in frames.iter().enumerate() {
            client.send(number as u32, bytes);
            client.wait_for(number as u64 + 1);
        }
        assert_eq!(
            (0..8).map(|at| client.rings[3].load(24 + at) >> 32).sum::<u64>(),
            8,
            "not all are said to be lost"
        );
        // What is for another VLAN's client goes to the wire alone, without a tag.
        client.took(8);
        client.send(9, &frame(apart.mac(), own, 5));
        assert_eq!(served::card::came_out(&mut peer), frame(apart.mac(), own, 5));
        victim.heard_nothing(&mut peer);
        assert!(apart.receive_until(Deadline::after(Duration::ZERO)).is_none());
        assert!(peer.receive(Deadline::after(Duration::ZERO)).unwrap().is_none());
    }
}

#[test]
fn packets_that_ask_for_what_cannot_be_are_lost_and_it_stays() {
    let served = ServedCard::model("e1000", &TERMS, Options::default());
    // Before anything is sent: a card without a queue receives nothing.
    let (mut client, mut peer) = (RawCard::new(&served.path(0)), served.peer());
    let own = client.port.info.mac;
    client.memory.write(0, &frame(OUTSIDE, own, 1)).unwrap();
    let partial = |start, offset| Checksum::Partial { start, offset };
    let cut = |size, headers| Some(Segmentation { kind: Kind::Tcp4, size, headers });
    let wrong = [
        Meta::default().with_checksum(partial(u16::MAX, u16::MAX)),
        Meta::default().with_checksum(partial(99, 0)),
        Meta::default().with_segmentation(cut(1460, 54)),
        Meta::default()
            .with_segmentation(cut(1, u16::MAX))
            .with_checksum(partial(34, 16))
            .with_network(14),
        Meta::default()
            .with_segmentation(cut(u16::MAX, 54))
            .with_checksum(partial(34, 16))
            .with_network(255),
    ];
    for (tag, meta) in (0..).zip(wrong) {
        client.put(2, Piece { meta, ..piece(tag) }.encode());
    }
    // Longer than a frame, and in the whole memory.
    client.put(2, Piece { len: 64 << 10, ..piece(5) }.encode());
    client.show();
    client.wait_for(6);
    assert_eq!(
        (0..6).map(|at| client.rings[3].load(24 + at) >> 32).sum::<u64>(),
        6,
        "not all are said to be lost"
    );
    client.send(7, &frame(OUTSIDE, own, 7));
    assert_eq!(served::card::came_out(&mut peer), frame(OUTSIDE, own, 7));
}

#[test]
fn a_packet_longer_than_any_is_lost_and_nobody_waits_until_it_could_be_afforded() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let mut client = RawCard::new(&served.path(0));
        for tag in 0..u32::from(DEPTH) {
            let meta = Meta::default().with_more(tag + 1 < DEPTH.into());
            client.put(2, Piece { tag, len: 64 << 10, meta, offset: 0 }.encode());
        }
        client.show();
        client.wait_for(DEPTH.into());
        assert_eq!(client.rings[3].load(24) >> 32, 1, "it is not said to be lost");
    });
}

#[test]
fn headers_that_change_after_they_were_looked_at_are_sent_as_they_were() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let (mut client, mut peer) = (RawCard::new(&served.path(0)), served.peer());
        let own = client.port.info.mac;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (memory, over) = (&client.file, &over);
            let memory = ring3_class::dma::Region::from_fd(memory.try_clone().unwrap()).unwrap();
            // Its sender's address is another one half of the time.
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    memory.write((32 << 10) + 6, &OUTSIDE.0).unwrap();
                    memory.write((32 << 10) + 6, &own.0).unwrap();
                }
            });
            let _ends = Ends(over);
            for number in 0..500u64 {
                client.send(number as u32, &frame(OUTSIDE, own, 1));
                client.wait_for(number + 1);
                client.took(number + 1);
                while let Some(came) = peer.receive(Deadline::after(Duration::ZERO)).unwrap() {
                    assert_eq!(came[6..12], own.0, "a frame from another address came out");
                }
            }
        });
    });
}

#[test]
fn who_takes_no_frames_loses_its_own_and_only_those() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let (client, mut peer) = (served.client(0), served.peer());
        // An open queue without a buffer.
        let _queue = client.open_queues(1, &ring3_class::net::QueueSettings::default()).unwrap();
        for _ in 0..50 {
            peer.send(&frame(client.info().mac, OUTSIDE, 1)).unwrap();
        }
        let deadline = Deadline::after(SOON);
        while client.counters().unwrap().rx_missed < 50 {
            assert!(!deadline.expired(), "{:?}", client.counters());
            std::thread::yield_now();
        }
    });
}

#[test]
fn one_who_dies_in_flight_hurts_nobody() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        for _ in 0..30 {
            let mut client = RawCard::new(&served.path(0));
            let own = client.port.info.mac;
            // Longer than what is looked at: the card has the rest of the memory itself.
            let long = [frame(OUTSIDE, own, 1), vec![1; 1200]].concat();
            for tag in 0..4 {
                client.provide(tag);
                client.send(tag, &long);
            }
        }
    });
}

#[test]
fn right_words_at_the_wrong_time_are_its_end() {
    let again = ClientRequest::Hello { version: ring3_broker::protocol::VERSION, memory: 4096 };
    for (ask, why) in [
        (again, "twice"),
        (ClientRequest::Close { queue: 1 }, "not open"),
        (ClientRequest::Open { depth: 1 }, "for a disk"),
    ] {
        cut_off(why, |client| client.raw.channel.send(&ask, &[]).unwrap());
    }
    let served = ServedCard::start(&TERMS, Options::default());
    let raw = Raw::silent(&served.path(0));
    raw.channel
        .send(&ClientRequest::OpenPort(OpenPort { rx_depth: 1, tx_depth: 1, mtu: 1500 }), &[])
        .unwrap();
    assert!(raw.ended().contains("before it says hello"));
}

#[test]
fn more_groups_than_are_told_apart_are_all_and_more_than_one_queue_is_refused() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let client = RawCard::new(&served.path(0));
        let groups = (0..1000u16)
            .map(|group| Mac([1, 0, 0x5e, 0, group.to_be_bytes()[0], group.to_be_bytes()[1]]));
        let (answer, _) =
            client.raw.ask(&ClientRequest::Filter { multicast: Multicast::Of(groups.collect()) });
        assert_eq!(answer, Answer::Filtered);
        let (answer, _) = client.raw.ask(&ClientRequest::OpenPort(OpenPort {
            rx_depth: 1,
            tx_depth: 1,
            mtu: 1500,
        }));
        assert!(matches!(answer, Answer::Refused { .. }));
    });
}

#[test]
fn memory_can_be_neither_shrunk_nor_grown_and_a_hole_in_it_is_zeroes() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let mut client = RawCard::new(&served.path(0));
        assert!(ftruncate(&client.file, 0).is_err() && ftruncate(&client.file, 1 << 20).is_err());
        fallocate(
            &client.file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            64 << 10,
        )
        .unwrap();
        client.provide(1);
        // From no address: lost.
        client.put(2, piece(2).encode());
        client.show();
        client.wait_for(1);
    });
}

#[test]
fn random_words_in_every_ring_hurt_nobody() {
    let served = ServedCard::start(&TERMS, Options::default());
    beside(&served, |served| {
        let mut peer = served.peer();
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..100 {
            let client = RawCard::new(&served.path(0));
            for words in &client.rings {
                (1..words.count().min(60))
                    .for_each(|word| words.store(word, next() >> (next() % 64)));
            }
            client.rings[3].store(HEAD, 0);
            client.rings[1].store(HEAD, 0);
            client.tell(next() % 10, next() % 10);
            // What is for it is put into whatever it has provided.
            let _ = peer.send(&frame(client.port.info.mac, OUTSIDE, 1));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
