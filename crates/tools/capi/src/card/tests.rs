//! A card whose driver is this program and another program's, over the socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_broker::client::RemoteCard;
use ring3_class::net::{Cable, Nic, Packet, Queue, QueueSettings};
use ring3_conformance::net::{self as conformance, Peer};

use super::*;

/// A program whose card is one end of a cable in memory; the other end is the peer's.
struct Program {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    other: ring3_class::net::End,
}

/// Who serves the program's card.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// Its own loop.
    Program,
    /// Somebody else with a thread of his own, as ring3d does with a card that is lent; the program
    /// does not look at its card for a while first.
    Other(Duration),
}

impl Program {
    fn start(serves: Serves) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (_cable, end, other) = Cable::new(16 << 20).unwrap();
        let access =
            Access { mac: Some(end.info().mac), ..Access::new(folder.path().join("card")) };
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut card = made(end.info().mac);
            ring3_card_set_link(&card, true, 1000, true);
            match serves {
                Serves::Program => {
                    card.driven_mut().unwrap().serve(access).unwrap();
                    ready.send(None).unwrap();
                }
                Serves::Other(busy) => {
                    let server = CardServer::bind(
                        card.driven().unwrap().nic.clone(),
                        vec![access],
                        Options::default(),
                    )
                    .unwrap();
                    let stop =
                        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
                    ready.send(Some((server, stop))).unwrap();
                    std::thread::sleep(busy);
                }
            }
            drive(&mut card, &end, &asked);
        });
        let mut threads = vec![thread];
        if let Some((server, call)) = is_ready.recv().unwrap() {
            let asked = stop.clone();
            threads.push(std::thread::spawn(move || {
                let stopping = std::thread::spawn({
                    let call = call.try_clone().unwrap();
                    move || {
                        while !asked.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        rustix::io::write(&call, &1u64.to_ne_bytes()).unwrap();
                    }
                });
                server.run(&[call.as_fd()], || true).unwrap();
                stopping.join().unwrap();
            }));
        }
        Self { folder, stop, threads, other }
    }
}

/// A card of a program's.
fn made(mac: Mac) -> Box<Card> {
    let info = CardInfo {
        model: c"a program's card".as_ptr(),
        mac: mac.0,
        mtu_min: 68,
        mtu_max: 1500,
        checksums: false,
        segmented_max: 0,
    };
    let mut card = std::ptr::null_mut();
    // SAFETY: all of it is valid.
    assert_eq!(unsafe { ring3_card_new(&info, &mut card) }, 0);
    // SAFETY: it was handed out just now.
    unsafe { Box::from_raw(card) }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok());
        }
    }
}

/// The program's driver, which knows C's calls alone.
fn drive(card: &mut Card, end: &ring3_class::net::End, asked: &AtomicBool) {
    let mut queue = end.open_queues(1, &QueueSettings::default()).unwrap().pop().unwrap();
    let buffer = || Packet::new(end.dma().arena().alloc(2048, 64).unwrap(), 0);
    let mut batch: Vec<Packet> = (0..256).map(|_| buffer()).collect();
    let _ = queue.rx_provide(&mut batch);
    let mut frame = [0u8; 2048];
    while !asked.load(Ordering::Relaxed) {
        let mut filter = CardFilter {
            promiscuous: false,
            all_groups: false,
            unicast: std::ptr::null(),
            groups: std::ptr::null(),
            unicast_count: 0,
            group_count: 0,
        };
        ring3_card_heard(card);
        assert!(ring3_card_turn(card) >= 0);
        // SAFETY: it is a place for one.
        if unsafe { ring3_card_filter(card, &mut filter) } == 1 {
            let groups = match filter.group_count {
                0 => &[][..],
                // SAFETY: as many as there are.
                count => unsafe { std::slice::from_raw_parts(filter.groups, count) },
            };
            let groups = if filter.all_groups {
                Multicast::All
            } else {
                Multicast::Of(groups.iter().copied().map(Mac).collect())
            };
            let own = ring3_class::net::Filter {
                multicast: groups,
                ..ring3_class::net::Filter::own(end.info().mac)
            };
            end.set_filter(&own).unwrap();
            ring3_card_filtered(card);
        }
        while let len @ 1.. =
            // SAFETY: the room is as it is said.
            unsafe { ring3_card_take(card, frame.as_mut_ptr().cast(), frame.len()) }
        {
            let mut packet = buffer();
            packet.fill(&frame[..len as usize]).unwrap();
            let mut batch = [packet];
            while queue.tx_provide(&mut batch).count == 0 {
                queue.tx_return(&mut [Packet::default()]).unwrap();
            }
            queue.tx_return(&mut batch).unwrap();
        }
        let mut got = [Packet::default()];
        while queue.rx_return(&mut got).unwrap() == 1 {
            let mut len = got[0].len as usize;
            got[0].read(0, &mut frame[..len]).unwrap();
            if let Some(tag) = got[0].meta.vlan() {
                frame.copy_within(12..len, 16);
                frame[12..16].copy_from_slice(&[[0x81, 0], tag.to_be_bytes()].concat());
                len += 4;
            }
            // SAFETY: as many bytes as it is said.
            unsafe { ring3_card_receive(card, frame.as_ptr().cast(), len, false) };
            let _ = queue.rx_provide(&mut got);
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

fn conforms(serves: Serves, packets: u32) {
    let program = Program::start(serves);
    let card = RemoteCard::connect(&program.folder.path().join("card"), 4 << 20).unwrap();
    let mut peer = Peer::new(&program.other, None).unwrap();
    let options = conformance::Options { packets, ..conformance::Options::default() };
    let report = conformance::run(&card, &mut peer, &options);
    assert!(report.passed(), "{report}");
}

#[test]
fn another_program_finds_a_card_that_conforms_in_the_loop_of_its_program() {
    conforms(Serves::Program, 500);
}

#[test]
fn a_card_that_is_lent_conforms() {
    conforms(Serves::Other(Duration::ZERO), 200);
}

#[test]
fn a_program_that_is_busy_for_long_keeps_its_users() {
    conforms(Serves::Other(state::FILTERING + Duration::from_secs(1)), 10);
}

#[test]
fn a_program_that_is_to_end_hears_it() {
    let card = made(Mac([2, 0, 0, 0, 0, 1]));
    let driven = card.driven().unwrap();
    driven.shared.stop();
    assert_eq!(rustix::io::read(driven.shared.wanted(), &mut [0; 8]), Ok(8));
    let mut frame = [0u8; 64];
    assert_eq!(
        // SAFETY: the room is as it is said.
        unsafe { ring3_card_take(&card, frame.as_mut_ptr().cast(), frame.len()) },
        -libc::ESHUTDOWN
    );
}

#[test]
fn in_the_programs_loop_a_filter_is_set_when_the_program_has_set_it() {
    let shared = CardShared::new(Mac([2, 0, 0, 0, 0, 1])).unwrap();
    shared.nest();
    let wanted = ring3_class::net::Filter {
        multicast: Multicast::All,
        ..ring3_class::net::Filter::own(Mac([2, 0, 0, 0, 0, 1]))
    };
    assert!(matches!(shared.set_filter(&wanted), Err(Error::Busy(_))));
    assert_eq!(shared.filter(), Some(wanted.clone()));
    assert!(matches!(shared.set_filter(&wanted), Err(Error::Busy(_))));
    assert_eq!(shared.filter(), None, "it is asked for once");
    shared.filter_set();
    assert!(shared.set_filter(&wanted).is_ok());
}

#[test]
fn terms_that_are_none_are_refused_with_what_there_is() {
    let mut card = made(Mac([2, 0, 0, 0, 0, 1]));
    assert_eq!(
        // SAFETY: it was handed out just now, and the text is one.
        unsafe { ring3_card_serve(&mut card, c"/nowhere,colour=red".as_ptr()) },
        -libc::EINVAL
    );
    // SAFETY: it points to the text that this thread keeps.
    let text = unsafe { CStr::from_ptr(crate::error::ring3_error()) }.to_str().unwrap();
    assert!(text.contains("memory"), "{text}");
}

#[test]
fn a_frame_for_which_there_is_no_room_is_lost_and_the_next_is_not() {
    let shared = Arc::new(CardShared::new(Mac([2, 0, 0, 0, 0, 1])).unwrap());
    let description = Description {
        model: "card".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: (68, 1500),
        checksums: false,
        segmented: 0,
    };
    let nic = HostedNic::new(description, shared.clone()).unwrap();
    shared.set_link(Link { up: true, ..Link::default() });
    let mut queue = nic.open_queues(1, &QueueSettings::default()).unwrap().pop().unwrap();
    let packet = |len: usize| {
        let mut packet = Packet::new(nic.dma().arena().alloc(2048, 64).unwrap(), 0);
        packet.fill(&vec![7; len]).unwrap();
        packet
    };
    assert_eq!(queue.tx_provide(&mut [packet(600), packet(60)]).count, 2);
    let mut room = [0; 512];
    assert!(shared.take(&mut room).is_err());
    assert_eq!((shared.take(&mut room).unwrap(), shared.take(&mut room).unwrap()), (60, 0));
    assert_eq!(nic.counters().unwrap().tx_lost, 1);
    assert_eq!(
        queue.tx_return(&mut [Packet::default(), Packet::default(), Packet::default()]).unwrap(),
        2
    );
}

#[test]
fn what_is_next_is_told_with_what_is_asked_for_and_what_is_lost_is_counted() {
    let shared = Arc::new(CardShared::new(Mac([2, 0, 0, 0, 0, 1])).unwrap());
    let description = Description {
        model: "card".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: (68, 1500),
        checksums: true,
        segmented: 16384,
    };
    let nic = Arc::new(HostedNic::new(description, shared.clone()).unwrap());
    shared.set_link(Link { up: true, ..Link::default() });
    let mut queue = nic.open_queues(1, &QueueSettings::default()).unwrap().pop().unwrap();
    let packet = |len: usize| {
        let mut packet = Packet::new(nic.dma().arena().alloc(4096, 64).unwrap(), 0);
        packet.fill(&vec![7; len]).unwrap();
        packet
    };
    let mut head = packet(60);
    let cut = ring3_class::net::Segmentation { kind: Kind::Tcp4, size: 1400, headers: 54 };
    head.meta =
        head.meta.with_network(14).with_checksum(Checksum::Partial { start: 34, offset: 16 });
    head.meta = head.meta.with_segmentation(Some(cut)).with_more(true);
    let taken = queue.tx_provide(&mut [head, packet(3000), packet(61)]);
    assert_eq!(taken.count, 3, "{:?}", taken.refused);
    let card = Card::of(DrivenCard {
        shared: shared.clone(),
        nic: nic.clone(),
        server: None,
        filter: Kept::default(),
    });
    let mut next = CardFrame::default();
    // SAFETY: it is a place for one.
    assert_eq!(unsafe { ring3_card_next(&card, &mut next) }, 1);
    assert_eq!((next.len, next.checksum_start, next.checksum_offset), (3060, 34, 16));
    assert_eq!((next.segment, next.headers, next.ipv6), (1400, 54, false));
    ring3_card_lose(&card);
    assert_eq!(nic.counters().unwrap().tx_lost, 1);
    // SAFETY: as before.
    assert_eq!(unsafe { ring3_card_next(&card, &mut next) }, 1);
    assert_eq!((next.len, next.checksum_start, next.segment), (61, 0, 0));
    assert_eq!((shared.take(&mut [0; 61]).unwrap(), nic.counters().unwrap().tx_packets), (61, 1));
    // SAFETY: as before.
    assert_eq!(unsafe { ring3_card_next(&card, &mut next) }, 0);
    assert_eq!(
        queue
            .tx_return(&mut [
                Packet::default(),
                Packet::default(),
                Packet::default(),
                Packet::default()
            ])
            .unwrap(),
        3
    );
}

#[test]
fn what_the_device_has_lost_is_counted_with_what_its_users_have_and_never_falls() {
    let shared = Arc::new(CardShared::new(Mac([2, 0, 0, 0, 0, 1])).unwrap());
    let description = Description {
        model: "card".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: (68, 1500),
        checksums: false,
        segmented: 0,
    };
    let nic = HostedNic::new(description, shared.clone()).unwrap();
    let _queue = nic.open_queues(1, &QueueSettings::default()).unwrap();
    assert!(!shared.receive(&[7; 60], false));
    shared.set_missed(11);
    assert_eq!(nic.counters().unwrap().rx_missed, 12);
    shared.set_missed(3);
    assert_eq!(nic.counters().unwrap().rx_missed, 12);
}
