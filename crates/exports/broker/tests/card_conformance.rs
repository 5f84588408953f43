//! A card behind the broker is a card as any other: the suite of the network class, and what
//! sharing adds.

mod served;

use std::time::Duration;

use ring3_broker::client::{RemoteCard, RemoteDisk};
use ring3_broker::server::card::Options;
use ring3_class::net::{Checksum, Filter, Kind, Mac, Meta, Multicast, Nic, Packet, Segmentation};
use ring3_class::{Deadline, Error};
use ring3_conformance::net::{self as conformance, Report, Wire};
use served::card::{ServedCard, User, came_out, frame};
use served::{SOON, Served};

fn check(served: &ServedCard, index: usize) -> Report {
    let options = conformance::Options {
        packets: 320,
        patience: SOON,
        silence: Duration::from_millis(5),
        ..Default::default()
    };
    let report = conformance::run(&served.client(index), &mut served.peer(), &options);
    assert!(report.passed(), "{report}");
    report
}

fn copied() -> Options {
    Options { copy: true, ..Options::default() }
}

#[test]
fn a_remote_card_conforms_where_the_card_reads_its_memory() {
    let served = ServedCard::start(&[""], Options::default());
    assert!(served.client(0).is_mapped());
    // Cutting and tags, which a card of a cable, and a shared one, do not do; filters of VLANs; and
    // being left to another process, twice.
    assert_eq!(check(&served, 0).skipped(), 5);
}

#[test]
fn a_remote_card_conforms_where_the_server_copies() {
    let served = ServedCard::start(&[""], copied());
    assert!(!served.client(0).is_mapped());
    check(&served, 0);
}

#[test]
fn a_remote_card_conforms_on_models_of_cards() {
    for (uri, options) in
        [("e1000", Options::default()), ("virtio-net", Options::default()), ("e1000", copied())]
    {
        let served = ServedCard::model(uri, &["", ",vlan=7"], options);
        assert_eq!(served.client(0).info().offloads.tso4, !options.copy);
        check(&served, 0);
    }
}

/// A TCP segment of `payload` bytes in IPv4, to be cut into frames of 1,000.
fn segment(user: &User, to: Mac, payload: usize) -> Packet {
    cut(user, to, payload, 1000)
}

/// The same, to be cut into frames of `size`.
fn cut(user: &User, to: Mac, payload: usize, size: u16) -> Packet {
    let mut bytes = frame(to, user.mac(), 0)[..14].to_vec();
    bytes[12..14].copy_from_slice(&[8, 0]);
    let total = (40 + payload) as u16;
    bytes.extend(
        [
            &[0x45, 0][..],
            &total.to_be_bytes(),
            &[0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
        ]
        .concat(),
    );
    bytes.extend([0, 7, 0, 7, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|at| (at / 7) as u8));
    let mut packet = Packet::new(user.card.dma().arena().alloc(bytes.len(), 64).unwrap(), 0);
    packet.fill(&bytes).unwrap();
    packet.meta =
        Meta::default().with_network(14).with_checksum(Checksum::Partial { start: 34, offset: 16 });
    packet.meta =
        packet.meta.with_segmentation(Some(Segmentation { kind: Kind::Tcp4, size, headers: 54 }));
    packet
}

#[test]
fn what_the_card_would_cut_goes_to_another_client_whole_and_to_the_wire_in_frames_with_its_tag() {
    for (uri, terms) in
        [("e1000", ["", ""]), ("virtio-net", ["", ""]), ("e1000", [",vlan=7", ",vlan=7"])]
    {
        let served = ServedCard::model(uri, &terms, Options::default());
        let (mut one, mut other, mut peer) =
            (User::new(served.client(0)), User::new(served.client(1)), served.peer());
        let packet = segment(&one, other.mac(), 20_000);
        one.send_packet(packet);
        let (bytes, meta) = other.receive_until(Deadline::after(SOON)).unwrap();
        assert_eq!(
            (bytes.len(), meta.segmentation().map(|cut| (cut.size, cut.headers))),
            (20_054, Some((1000, 54)))
        );
        assert!(bytes[54..].iter().enumerate().all(|(at, &byte)| byte == (at / 7) as u8));
        let packet = segment(&one, Mac([2, 0, 0, 0, 0, 0xee]), 20_000);
        one.send_packet(packet);
        let skip = if terms[0].is_empty() { 0 } else { 4 };
        for number in 0..20 {
            let came = came_out(&mut peer);
            assert_eq!((came.len(), skip == 4), (1054 + skip, came[12..14] == [0x81, 0]));
            let payload = &came[54 + skip..];
            assert!(
                payload
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| byte == ((number * 1000 + at) / 7) as u8)
            );
        }
    }
}

#[test]
fn a_remote_card_conforms_beside_others_that_have_opened_theirs() {
    let served = ServedCard::start(&["", ",vlan=7", ""], Options::default());
    let (mut one, mut other) = (User::new(served.client(0)), User::new(served.client(1)));
    check(&served, 2);
    // What the suite sends to everybody came to the one in its VLAN.
    assert!(one.receive_until(Deadline::after(SOON)).is_some());
    assert!(other.receive_until(Deadline::after(Duration::ZERO)).is_none());
}

#[test]
fn each_client_has_an_address_of_its_own_and_gets_what_is_for_it() {
    let served = ServedCard::start(&[",mac=02:00:00:00:00:71", ""], Options::default());
    let (mut one, mut other, mut peer) =
        (User::new(served.client(0)), User::new(served.client(1)), served.peer());
    assert_eq!(one.mac(), Mac([2, 0, 0, 0, 0, 0x71]));
    let outside = Mac([2, 0, 0, 0, 0, 0xee]);
    peer.send(&frame(one.mac(), outside, 1)).unwrap();
    peer.send(&frame(other.mac(), outside, 2)).unwrap();
    peer.send(&frame(Mac::BROADCAST, outside, 3)).unwrap();
    assert_eq!([one.hears(), one.hears()], [(outside, 1), (outside, 3)]);
    assert_eq!([other.hears(), other.hears()], [(outside, 2), (outside, 3)]);
    one.say(outside, 4);
    assert_eq!(came_out(&mut peer), frame(outside, one.mac(), 4));
}

#[test]
fn clients_of_one_card_talk_to_each_other_without_the_wire() {
    for options in [Options::default(), copied()] {
        let served = ServedCard::start(&["", ""], options);
        let (mut one, mut other, mut peer) =
            (User::new(served.client(0)), User::new(served.client(1)), served.peer());
        one.say(other.mac(), 1);
        assert_eq!(other.hears(), (one.mac(), 1));
        one.say(Mac::BROADCAST, 2);
        assert_eq!(other.hears(), (one.mac(), 2));
        // On the wire, only what was for everybody; and nothing came back.
        assert_eq!(came_out(&mut peer), frame(Mac::BROADCAST, one.mac(), 2));
        one.heard_nothing(&mut peer);
    }
}

#[test]
fn a_long_packet_between_clients_arrives_whole() {
    let served = ServedCard::start(&["", ""], Options::default());
    let (mut one, mut other) = (User::new(served.client(0)), User::new(served.client(1)));
    // More than what is looked at.
    let mut bytes = frame(other.mac(), one.mac(), 9);
    bytes.extend((0..1400u32).map(|at| at as u8));
    one.send(&bytes);
    assert!(other.receive() == bytes);
}

#[test]
fn a_checksum_that_nobody_has_made_is_said_to_a_client_and_made_for_the_wire() {
    let served = ServedCard::start(&["", ""], Options::default());
    let (mut one, mut other, mut peer) =
        (User::new(served.client(0)), User::new(served.client(1)), served.peer());
    let partial = Meta::default().with_checksum(Checksum::Partial { start: 34, offset: 6 });
    let outside = Mac([2, 0, 0, 0, 0, 0xee]);
    for to in [other.mac(), outside] {
        let bytes = frame(to, one.mac(), 0);
        let mut packet = Packet::new(one.card.dma().arena().alloc(bytes.len(), 64).unwrap(), 0);
        packet.fill(&bytes).unwrap();
        packet.meta = partial;
        one.send_packet(packet);
    }
    assert_eq!(
        other.receive_until(Deadline::after(SOON)).unwrap().1.checksum(),
        partial.checksum()
    );
    let came = came_out(&mut peer);
    assert!(came[..6] == outside.0 && came[40..42] == [0xff, 0xff]);
}

#[test]
fn vlans_are_put_on_and_taken_off_and_see_nothing_of_each_other() {
    for options in [Options::default(), copied()] {
        let served = ServedCard::start(&[",vlan=7", ",vlan=8", ""], options);
        let mut users: Vec<_> = (0..3).map(|index| User::new(served.client(index))).collect();
        let mut peer = served.peer();
        let outside = Mac([2, 0, 0, 0, 0, 0xee]);
        let tagged = |frame: &[u8], tag: u16| {
            [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
        };
        let (own, next) = (users[0].mac(), users[1].mac());
        for to in [outside, next, Mac::BROADCAST] {
            users[0].say(to, 1);
            assert_eq!(came_out(&mut peer), tagged(&frame(to, own, 1), 7));
        }
        peer.send(&tagged(&frame(own, outside, 2), 0xe007)).unwrap();
        assert_eq!(users[0].receive(), frame(own, outside, 2));
        for tag in [7, 9, 0xfff] {
            peer.send(&tagged(&frame(next, outside, 3), tag)).unwrap();
        }
        peer.send(&frame(next, outside, 4)).unwrap();
        peer.send(&tagged(&frame(Mac::BROADCAST, outside, 5), 8)).unwrap();
        assert_eq!(users[1].receive(), frame(Mac::BROADCAST, outside, 5));
        users[2].heard_nothing(&mut peer);
    }
}

#[test]
fn groups_are_each_clients_own_wish() {
    let served = ServedCard::start(&["", ""], Options::default());
    let (mut one, mut other, mut peer) =
        (User::new(served.client(0)), User::new(served.client(1)), served.peer());
    let group = Mac([1, 0, 0x5e, 0, 0, 9]);
    one.card
        .set_filter(&Filter { multicast: Multicast::Of(vec![group]), ..Filter::own(one.mac()) })
        .unwrap();
    peer.send(&frame(group, Mac([2, 0, 0, 0, 0, 0xee]), 1)).unwrap();
    assert_eq!(one.hears().1, 1);
    other.heard_nothing(&mut peer);
    let error = other
        .card
        .set_filter(&Filter { promiscuous: true, ..Filter::own(other.mac()) })
        .unwrap_err();
    assert!(matches!(&error, Error::Unsupported(why) if why.contains("shared")), "{error}");
}

#[test]
fn a_client_is_held_to_its_packets_and_bytes_and_the_other_is_not() {
    let served = ServedCard::start(&[",pps=200", ",rate=100K", ""], Options::default());
    let users = [(0, 100), (1, 1000), (2, 1000)]
        .map(|(index, count)| (User::new(served.client(index)), count));
    std::thread::scope(|scope| {
        let threads = users.map(|(mut user, count)| {
            scope.spawn(move || {
                let start = std::time::Instant::now();
                // To nobody inside or outside: its own address.
                (0..count).for_each(|_| user.say(user.mac(), 1));
                start.elapsed()
            })
        });
        let took = threads.map(|thread| thread.join().unwrap());
        // 100 of 200, and 100,000 of 102,400 bytes, in a second, less a twentieth of a second's
        // worth.
        assert!(
            took[0] > Duration::from_millis(400) && took[1] > Duration::from_millis(850),
            "{took:?}"
        );
    });
}

#[test]
fn a_packet_that_is_cut_counts_as_its_frames_and_their_bytes() {
    let served = ServedCard::model("e1000", &[",pps=1000", ",rate=100K"], Options::default());
    for (index, size) in [(0, 100), (1, 100)] {
        let mut user = User::new(served.client(index));
        let start = std::time::Instant::now();
        // 600 frames each, of 92,400 bytes in all: what goes beyond a twentieth of a second's worth
        // is waited for.
        for _ in 0..4 {
            let packet = cut(&user, user.mac(), 15_000, size);
            user.send_packet(packet);
        }
        assert!(
            start.elapsed() > Duration::from_millis(380),
            "{:?} for client {index}",
            start.elapsed()
        );
    }
}

#[test]
fn a_packet_that_would_be_cut_into_more_frames_than_any_sender_asks_for_is_lost() {
    let served = ServedCard::model("e1000", &[""], Options::default());
    let mut user = User::new(served.client(0));
    let packet = cut(&user, user.mac(), 15_000, 7);
    let provided = user.queue.tx_provide(&mut [packet]);
    assert!(provided.refused.is_some(), "{provided:?}");
    let packet = cut(&user, user.mac(), 15_000, 8);
    user.send_packet(packet);
}

#[test]
fn a_client_whose_wire_is_full_keeps_nobody_from_talking_to_another_client() {
    for options in [Options::default(), copied()] {
        let served = ServedCard::full(&["", "", ""], options);
        let [mut flood, mut one, mut other] =
            [0, 1, 2].map(|index| User::new(served.client(index)));
        let outside = frame(Mac([2, 0, 0, 0, 0, 0xee]), flood.mac(), 1);
        let packet = || {
            let mut packet = Packet::new(flood.card.dma().arena().alloc(128, 64).unwrap(), 0);
            packet.fill(&outside).unwrap();
            packet
        };
        // Short frames are copied, and so come back at once for as long as the wire has room, which
        // is less than these.
        flood.queue.wake_on_tx(true);
        let (mut sent, mut waits) = (0, 0);
        while sent < 2000 && waits < 10 {
            sent += flood.queue.tx_provide(&mut [packet()]).count;
            let mut back: [Packet; 64] = std::array::from_fn(|_| Packet::default());
            if flood.queue.tx_return(&mut back).unwrap() == 0 && flood.queue.outstanding().1 == 64 {
                flood.queue.wait(Deadline::after(Duration::from_millis(50))).unwrap();
                waits += 1;
            }
        }
        assert!(
            sent < 2000 && flood.queue.outstanding().1 > 0,
            "the wire is not full after {sent} packets"
        );
        for what in 0..8 {
            one.say(other.mac(), what);
            assert_eq!(other.hears(), (one.mac(), what));
        }
    }
}

#[test]
fn a_link_that_goes_is_heard_of_by_all_and_clients_still_talk_to_each_other() {
    let served = ServedCard::start(&["", ""], Options::default());
    let (mut one, mut other) = (User::new(served.client(0)), User::new(served.client(1)));
    for up in [false, true, false] {
        served.cable.as_ref().unwrap().plug(up);
        for user in [&mut one, &mut other] {
            let mut watch = user.card.link_watch().unwrap();
            let deadline = Deadline::after(SOON);
            while user.card.link().unwrap().up != up {
                assert!(!deadline.expired());
                watch.wait(Deadline::after(Duration::from_millis(50))).unwrap();
            }
        }
    }
    one.say(other.mac(), 1);
    assert_eq!(other.hears(), (one.mac(), 1));
    one.say(Mac([2, 0, 0, 0, 0, 0xee]), 2);
    assert_eq!((one.queue.counters().tx_packets, one.queue.counters().tx_lost), (1, 1));
}

#[test]
fn a_server_that_stops_says_so() {
    let mut served = ServedCard::start(&[""], Options::default());
    let mut user = User::new(served.client(0));
    served.stop().unwrap();
    assert!(user.queue.wait(Deadline::after(SOON)).unwrap(), "there is something to be told");
    assert!(user.queue.rx_return(&mut [Packet::default()]).is_err());
    let error = user.card.link().unwrap_err();
    assert!(matches!(error, Error::Fatal(_)), "{error}");
}

#[test]
fn a_disk_is_no_card_and_a_card_no_disk() {
    let (disk, card) = (Served::ram(&[""]), ServedCard::start(&[""], Options::default()));
    assert!(
        RemoteCard::connect(&disk.path(0), 4096)
            .err()
            .unwrap()
            .to_string()
            .contains("a disk is served there")
    );
    assert!(
        RemoteDisk::connect(&card.path(0), 4096)
            .err()
            .unwrap()
            .to_string()
            .contains("a network card is served there")
    );
}

/// What would be cut, of a card that does not cut, is refused before anybody is told.
#[test]
fn what_the_card_does_not_do_is_not_offered() {
    let served = ServedCard::start(&[""], Options::default());
    let mut user = User::new(served.client(0));
    let bytes = frame(user.mac(), user.mac(), 0);
    let mut packet = Packet::new(user.card.dma().arena().alloc(bytes.len(), 64).unwrap(), 0);
    packet.fill(&bytes).unwrap();
    packet.meta = packet.meta.with_segmentation(Some(Segmentation {
        kind: Kind::Tcp4,
        size: 10,
        headers: 54,
    }));
    assert!(user.queue.tx_provide(&mut [packet]).refused.is_some());
}
