//! The two ends of a cable, each a program's.

use std::ptr::null_mut;

use ring3_class::net::Cable;

use super::*;

const NOTHING: CardPacket =
    CardPacket { data: null_mut(), len: 0, room: 0, buffer: 0, checked: false, more: false };
const PATIENCE: u32 = 20_000;

fn ends() -> (Cable, CardQueue, CardQueue) {
    let (cable, one, other) = Cable::new(16 << 20).unwrap();
    let [one, other] = [one, other].map(|end| CardQueue::of(&end, 0, 64).unwrap());
    (cable, one, other)
}

/// Sends frames of `len` bytes to everybody, each filled with its number.
fn send(queue: &mut CardQueue, numbers: std::ops::Range<u8>, len: u32) -> c_int {
    let mut packets = [NOTHING; 64];
    let count = numbers.len();
    // SAFETY: so many places.
    let given = unsafe { ring3_card_queue_alloc(queue, packets.as_mut_ptr(), count) };
    assert_eq!(given, count as c_int);
    for (packet, number) in packets.iter_mut().zip(numbers) {
        assert!(packet.room >= 1518, "{}", packet.room);
        let bytes = packet.data.cast::<u8>();
        // SAFETY: the packet has room for so many. The first are the address of everybody.
        unsafe {
            bytes.write_bytes(number, len as usize);
            bytes.write_bytes(0xff, 6);
        }
        packet.len = len;
    }
    // SAFETY: so many packets.
    unsafe { ring3_card_queue_send(queue, packets.as_ptr(), count) }
}

/// Receives so many frames; the packets, which are the program's.
fn receive(queue: &mut CardQueue, count: usize) -> Vec<CardPacket> {
    let mut got = Vec::new();
    while got.len() < count {
        assert_eq!(ring3_card_queue_wait(queue, PATIENCE), 1);
        let mut packets = [NOTHING; 16];
        // SAFETY: so many places.
        let taken = unsafe { ring3_card_queue_receive(queue, packets.as_mut_ptr(), 16) };
        got.extend_from_slice(&packets[..taken as usize]);
    }
    got
}

fn number(packet: &CardPacket) -> u8 {
    // SAFETY: it has more bytes than that.
    unsafe { packet.data.cast::<u8>().add(14).read() }
}

#[test]
fn frames_come_in_order_and_their_buffers_serve_for_ever() {
    let (_cable, mut one, mut other) = ends();
    for round in 0..100 {
        assert_eq!(send(&mut one, 0..32, 60 + round), 32);
        let got = receive(&mut other, 32);
        let numbers: Vec<_> = got.iter().map(number).collect();
        assert_eq!(numbers, (0..32).collect::<Vec<_>>());
        assert!(got.iter().all(|packet| packet.len == 60 + round && !packet.more));
        // SAFETY: so many packets.
        unsafe { ring3_card_queue_release(&mut other, got.as_ptr(), got.len()) };
    }
}

#[test]
fn a_frame_that_was_received_is_sent_back_as_it_is() {
    let (_cable, mut one, mut other) = ends();
    for _ in 0..50 {
        assert_eq!(send(&mut one, 7..8, 64), 1);
        let got = receive(&mut other, 1);
        // SAFETY: so many packets.
        assert_eq!(unsafe { ring3_card_queue_send(&mut other, got.as_ptr(), 1) }, 1);
        let back = receive(&mut one, 1);
        assert_eq!((number(&back[0]), back[0].len), (7, 64));
        // SAFETY: as above.
        unsafe { ring3_card_queue_release(&mut one, back.as_ptr(), 1) };
    }
}

#[test]
fn a_frame_that_is_too_long_or_in_no_buffer_of_the_program_is_refused() {
    let (_cable, mut one, _other) = ends();
    let mut packet = NOTHING;
    // SAFETY: one place.
    assert_eq!(unsafe { ring3_card_queue_alloc(&mut one, &mut packet, 1) }, 1);
    let mut send = |packet: CardPacket| {
        // SAFETY: one packet.
        unsafe { ring3_card_queue_send(&mut one, &packet, 1) }
    };
    assert_eq!(send(CardPacket { len: 1600, ..packet }), -libc::EMSGSIZE);
    assert_eq!(send(CardPacket { len: packet.room + 1, ..packet }), -libc::EINVAL);
    assert_eq!(send(CardPacket { len: 60, buffer: 100_000, ..packet }), -libc::EINVAL);
    let before = packet.data.wrapping_byte_sub(4096);
    assert_eq!(send(CardPacket { len: 60, data: before, ..packet }), -libc::EINVAL);
    assert_eq!(send(CardPacket { len: 60, ..packet }), 1);
    // It is the card's now.
    assert_eq!(send(CardPacket { len: 60, ..packet }), -libc::EINVAL);
}

#[test]
fn a_buffer_that_is_released_twice_is_there_once() {
    let (_cable, mut one, _other) = ends();
    let mut all = [NOTHING; 1000];
    // SAFETY: so many places.
    let mut given = |queue: &mut CardQueue| unsafe {
        ring3_card_queue_alloc(queue, all.as_mut_ptr(), all.len())
    };
    let count = given(&mut one);
    let packets = all;
    for _ in 0..2 {
        // SAFETY: so many packets.
        unsafe { ring3_card_queue_release(&mut one, packets.as_ptr(), count as usize) };
    }
    let mut all = [NOTHING; 1000];
    // SAFETY: so many places.
    let again = unsafe { ring3_card_queue_alloc(&mut one, all.as_mut_ptr(), all.len()) };
    assert_eq!(again, count);
}
