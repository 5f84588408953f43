use std::time::Duration;

use super::super::{Checksum, Filter, Meta, Packet, Provided, QueueSettings, Refused};
use super::*;
use ring3_device::Deadline;

struct Pair {
    cable: Cable,
    ends: [End; 2],
    queues: [Box<dyn Queue>; 2],
}

fn pair() -> Pair {
    let (cable, one, other) = Cable::new(1 << 20).unwrap();
    let open = |end: &End| {
        end.open_queues(1, &QueueSettings { rx_room: 256, ..QueueSettings::default() })
            .unwrap()
            .remove(0)
    };
    let queues = [open(&one), open(&other)];
    Pair { cable, ends: [one, other], queues }
}

impl Pair {
    fn buffer(&self, end: usize) -> Packet {
        Packet::new(self.ends[end].dma().arena().alloc(320, 64).unwrap(), 64)
    }

    fn provide(&mut self, end: usize, count: usize) {
        let mut batch: Vec<_> = (0..count).map(|_| self.buffer(end)).collect();
        assert_eq!(self.queues[end].rx_provide(&mut batch), Provided { count, refused: None });
    }

    fn packet(&self, from: usize, bytes: usize, last: u8) -> Packet {
        let mut packet = self.buffer(from);
        let mut frame = vec![last; bytes];
        frame[..6].copy_from_slice(&self.ends[1 - from].info().mac.0);
        frame[12..14].copy_from_slice(&[8, 0]);
        packet.fill(&frame).unwrap();
        packet
    }

    fn send(&mut self, from: usize, packet: Packet) {
        assert_eq!(
            self.queues[from].tx_provide(&mut [packet]),
            Provided { count: 1, refused: None }
        );
        assert_eq!(
            self.queues[from].tx_return(&mut [Packet::default(), Packet::default()]).unwrap(),
            1
        );
    }

    fn receive(&mut self, end: usize) -> Option<Packet> {
        let mut batch = [Packet::default()];
        (self.queues[end].rx_return(&mut batch).unwrap() == 1)
            .then(|| std::mem::take(&mut batch[0]))
    }
}

#[test]
fn a_packet_arrives_as_it_was_sent_and_padded_to_sixty_bytes() {
    let mut pair = pair();
    pair.provide(1, 1);
    let packet = pair.packet(0, 20, 7);
    pair.send(0, packet);
    let packet = pair.receive(1).unwrap();
    let mut bytes = [0xff; 60];
    packet.read(0, &mut bytes).unwrap();
    assert_eq!((packet.start, packet.len, bytes[19], bytes[20], bytes[59]), (64, 60, 7, 0, 0));
    assert!(pair.receive(1).is_none());
}

#[test]
fn what_finds_no_buffer_is_counted() {
    let mut pair = pair();
    pair.provide(1, 1);
    for last in 0..3 {
        let packet = pair.packet(0, 60, last);
        pair.send(0, packet);
    }
    let counters = pair.ends[1].counters().unwrap();
    assert_eq!((counters.rx_packets, counters.rx_missed), (1, 2));
}

#[test]
fn a_packet_longer_than_a_buffer_arrives_in_pieces() {
    let mut pair = pair();
    pair.provide(1, 3);
    let (mut first, second) = (pair.packet(0, 256, 1), pair.packet(0, 100, 2));
    first.meta.set_more(true);
    assert_eq!(pair.queues[0].tx_provide(&mut [first, second]).count, 2);
    let pieces = [pair.receive(1).unwrap(), pair.receive(1).unwrap()];
    assert_eq!(
        pieces.each_ref().map(|piece| (piece.len, piece.meta.more())),
        [(256, true), (100, false)]
    );
}

#[test]
fn tags_travel_beside_the_bytes_and_checksums_are_made() {
    let mut pair = pair();
    pair.provide(1, 1);
    let mut packet = pair.packet(0, 60, 0);
    packet.meta = Meta::default()
        .with_vlan(Some(0x2007))
        .with_checksum(Checksum::Partial { start: 34, offset: 6 });
    pair.send(0, packet);
    let packet = pair.receive(1).unwrap();
    let mut field = [0; 2];
    packet.read(40, &mut field).unwrap();
    assert_eq!(
        (packet.len, packet.meta.vlan(), packet.meta.checksum(), field),
        (60, Some(0x2007), Checksum::Valid, [0xff; 2])
    );
}

#[test]
fn what_is_for_others_comes_through_when_everything_does() {
    let mut pair = pair();
    pair.provide(1, 2);
    let packet = || pair.packet(0, 60, 0);
    let (one, other) = (packet(), packet());
    [&one, &other].iter().for_each(|packet| packet.write(0, &[2, 0, 0, 0, 0, 9]).unwrap());
    pair.send(0, one);
    assert!(pair.receive(1).is_none());
    let filter = Filter { promiscuous: true, ..Filter::own(pair.ends[1].info().mac) };
    pair.ends[1].set_filter(&filter).unwrap();
    pair.send(0, other);
    assert!(pair.receive(1).is_some());
}

#[test]
fn a_pulled_cable_is_heard_of_and_loses_packets_but_no_buffer() {
    let mut pair = pair();
    pair.provide(1, 1);
    let mut watch = pair.ends[0].link_watch().unwrap();
    assert!(pair.ends[0].link_watch().is_err());
    pair.cable.plug(false);
    assert!(watch.wait(Deadline::after(Duration::from_secs(5))).unwrap());
    assert!(!pair.ends[0].link().unwrap().up && !watch.pending());
    let packet = pair.packet(0, 60, 0);
    pair.send(0, packet);
    assert_eq!(pair.queues[0].counters().tx_lost, 1);
    pair.cable.plug(true);
    assert!(watch.pending() && pair.ends[0].link().unwrap().up);
    let packet = pair.packet(0, 60, 0);
    pair.send(0, packet);
    assert!(pair.receive(1).is_some());
}

#[test]
fn a_queue_that_is_full_takes_no_more_and_keeps_what_it_was_given() {
    let (_cable, one, _other) = Cable::new(1 << 20).unwrap();
    let settings = QueueSettings { rx_depth: 2, tx_depth: 2, ..QueueSettings::default() };
    let mut queue = one.open_queues(1, &settings).unwrap().remove(0);
    let mut batch: [Packet; 3] = [(); 3]
        .map(|()| Packet { len: 60, ..Packet::new(one.dma().arena().alloc(2048, 64).unwrap(), 0) });
    assert_eq!(queue.tx_provide(&mut batch), Provided { count: 2, refused: None });
    assert!(batch[0].buffer.is_none() && batch[2].buffer.is_some());
    assert_eq!(queue.outstanding(), (0, 2));
    let refused = queue.rx_provide(&mut [Packet::default()]);
    assert_eq!(refused, Provided { count: 0, refused: Some(Refused::Empty) });
}

#[test]
fn a_dropped_queue_gives_every_buffer_back() {
    let mut pair = pair();
    let free = |pair: &Pair| pair.ends[0].dma().arena().free_bytes();
    let before = free(&pair);
    pair.provide(0, 5);
    let packet = pair.packet(1, 60, 0);
    pair.send(1, packet);
    let Pair { cable, ends, queues } = pair;
    drop(queues);
    assert_eq!(ends[0].dma().arena().free_bytes(), before);
    drop((cable, ends[0].open_queues(1, &QueueSettings::default()).unwrap()));
}

#[test]
fn a_detached_queue_goes_on_receiving_for_who_resumes_it() {
    let mut pair = pair();
    pair.provide(1, 2);
    let packet = Packet { token: 9, ..pair.packet(1, 60, 0) };
    assert_eq!(pair.queues[1].tx_provide(&mut [packet]).count, 1);
    let saved = pair.queues[1].detach().unwrap();
    let packet = pair.packet(0, 77, 3);
    pair.send(0, packet);
    assert!(pair.ends[1].open_queues(1, &QueueSettings::default()).is_err());
    pair.queues[1] = pair.ends[1].resume_queues(std::slice::from_ref(&saved)).unwrap().remove(0);
    assert_eq!(pair.receive(1).unwrap().len, 77);
    let mut batch = [Packet::default()];
    assert_eq!((pair.queues[1].tx_return(&mut batch).unwrap(), batch[0].token), (1, 9));
    assert!(pair.ends[1].resume_queues(&[saved]).is_err());
}

#[test]
fn a_packet_wakes_its_receiver_and_a_returned_buffer_whoever_asked_for_it() {
    let mut pair = pair();
    pair.provide(1, 1);
    assert!(pair.queues[1].arm().unwrap());
    assert_eq!(pair.queues[1].irq().unwrap().take().unwrap(), 0);
    let packet = pair.packet(0, 60, 0);
    assert_eq!(pair.queues[0].tx_provide(&mut [packet]).count, 1);
    assert!(pair.queues[1].irq().unwrap().take().unwrap() > 0 && pair.queues[1].pending());
    assert!(!pair.queues[0].pending());
    pair.queues[0].wake_on_tx(true);
    assert!(pair.queues[0].pending() && !pair.queues[0].arm().unwrap());
}
