//! What the model of the 82574L has of its own: its wires, its time and its faults.

mod raw_e1000;

use std::time::{Duration, Instant};

use raw_e1000::{Client, MAC, OTHER, frame, tcp};
use ring3_model::Timing;
use ring3_spec::e1000::general::{self, Control};
use ring3_spec::e1000::interrupt::{self, Causes, Throttle};
use ring3_spec::e1000::receive::{self, Extended, status};
use ring3_spec::e1000::transmit::{Context, command};
use ring3_spec::e1000::{phy, statistics};

fn running(options: &str) -> Client {
    Client::running(&format!("sim:e1000{options}"))
}

#[test]
fn a_test_injects_frames_and_takes_those_that_were_sent() {
    let mut client = running("");
    client.handle().inject(&frame(MAC, OTHER, 1514));
    assert_eq!(client.receive().unwrap().1, frame(MAC, OTHER, 1514));
    client.send(&frame(OTHER, MAC, 20), |data| data);
    // Padded to the shortest frame.
    let mut sent = frame(OTHER, MAC, 20);
    sent.resize(60, 0);
    assert_eq!(client.handle().sent(), [sent]);
    assert!(client.handle().sent().is_empty());
    client.is_blameless();
}

#[test]
fn a_mirror_answers_with_addresses_exchanged() {
    let mut client = running(",wire=mirror");
    client.send(&frame(OTHER, MAC, 100), |data| data);
    let answer = client.receive().unwrap().1;
    assert_eq!(
        (&answer[..12], &answer[12..]),
        (&[MAC, OTHER].concat()[..], &frame(OTHER, MAC, 100)[12..])
    );
}

#[test]
fn two_cards_on_a_cable_have_a_link_and_reach_each_other() {
    let mut one = Client::open("sim:e1000,wire=cable/model-test");
    one.set(general::CONTROL, Control(0).with_link_up(1));
    assert_eq!(one.get(general::STATUS).link(), 0);
    {
        let mut other = Client::open("sim:e1000,wire=cable/model-test,mac=02:00:00:00:00:09");
        other.set(general::CONTROL, Control(0).with_link_up(1));
        // Each start resets one card, which takes the link for a moment.
        other.wait_for(|client| client.get(general::STATUS).link() == 1);
        std::thread::scope(|scope| {
            scope.spawn(|| one.start());
            scope.spawn(|| other.start());
        });
        one.wait_for(|client| client.get(general::STATUS).link() == 1);
        one.send(&frame(OTHER, MAC, 500), |data| data);
        assert_eq!(other.await_frame().1, frame(OTHER, MAC, 500));
        other.send(&frame(MAC, OTHER, 501), |data| data);
        assert_eq!(one.await_frame().1, frame(MAC, OTHER, 501));
        one.is_blameless();
    }
    one.wait_for(|client| client.get(general::STATUS).link() == 0);
}

#[test]
fn frames_wait_for_descriptors_in_the_packet_buffer_and_what_finds_no_room_is_counted() {
    let mut client = running("");
    for len in 0..60 {
        client.handle().inject(&frame(MAC, OTHER, 1000 + len));
    }
    // 15 in descriptors, 20 KiB in the buffer.
    let missed = client.get(statistics::MISSED);
    assert!(missed > 10 && client.get(statistics::NO_BUFFER) > 0, "{missed}");
    let received = std::iter::from_fn(|| client.receive()).count();
    assert_eq!(received as u32 + missed, 60);
    assert_eq!(client.get(interrupt::CAUSE).overrun(), 1);
}

#[test]
fn a_long_frame_takes_several_descriptors_and_needs_long_packets() {
    let mut client = running("");
    client.handle().inject(&frame(MAC, OTHER, 5000));
    assert_eq!((client.get(statistics::OVERSIZE), client.receive()), (1, None));
    client.set(receive::CONTROL, client.get(receive::CONTROL).with_long_packets(1));
    client.handle().inject(&frame(MAC, OTHER, 5000));
    let parts: Vec<(Extended, Vec<u8>)> = std::iter::from_fn(|| client.receive()).collect();
    assert_eq!(parts.iter().map(|(_, bytes)| bytes.len()).collect::<Vec<_>>(), [2048, 2048, 904]);
    assert_eq!(
        parts.iter().map(|(word, _)| word.status() & status::END).collect::<Vec<_>>(),
        [0, 0, status::END]
    );
    assert_eq!(parts.concat_bytes(), frame(MAC, OTHER, 5000));
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<(Extended, Vec<u8>)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }
}

#[test]
fn only_the_last_frame_of_a_large_send_has_fin_and_psh() {
    let mut client = running("");
    client.context(
        Context(0).with_segmentation(1).with_headers(54).with_segment(1000).with_payload(2500),
    );
    client.send(&tcp(2500, 0), |data| data.with_command(data.command() | command::SEGMENTATION));
    let flags: Vec<u8> = client.handle().sent().iter().map(|frame| frame[47] & 9).collect();
    assert_eq!(flags, [0, 0, 9]);
}

#[test]
fn frames_of_other_vlans_do_not_pass_the_vlan_filter() {
    let mut client = running("");
    client.set(general::VLAN_TYPE, 0x8100);
    client.set(receive::CONTROL, client.get(receive::CONTROL).with_vlan_filter(1));
    client.set(receive::vlans(0), 1 << 7);
    let tagged = |id: u8| {
        let mut frame = frame(MAC, OTHER, 80);
        frame[12..16].copy_from_slice(&[0x81, 0, 0x20, id]);
        frame
    };
    client.handle().inject(&tagged(8));
    assert_eq!(client.receive(), None);
    client.handle().inject(&tagged(7));
    // It stays in the frame as long as CTRL.VME is off.
    assert_eq!(client.receive().unwrap().1, tagged(7));
}

#[test]
fn messages_are_not_closer_than_their_interval() {
    let mut client = running("");
    client.vectors();
    // 50 ms less a little.
    client.set(interrupt::vector_throttle(0), Throttle(0).with_interval(0xffff));
    let interval = Duration::from_nanos(0xffff * Throttle::UNIT_NANOS);
    let start = Instant::now();
    let mut came = 0;
    while start.elapsed() < interval * 4 {
        client.handle().inject(&frame(MAC, OTHER, 64));
        while client.receive().is_some() {}
        came += client.irqs[0].take().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let most = start.elapsed().as_nanos() / interval.as_nanos() + 1;
    assert!(came >= 1 && u128::from(came) <= most, "{came} in {most} intervals");
}

#[test]
fn software_raises_causes_and_the_pin_stays_until_they_are_read() {
    let client = running("");
    client.set(interrupt::MASK_CLEAR, Causes::ALL);
    client.get(interrupt::CAUSE);
    client.set(interrupt::CAUSE_SET, Causes::NONE.with_link(1));
    assert_eq!(client.get(interrupt::CAUSE), Causes::NONE.with_link(1));
    client.set(interrupt::MASK_SET, Causes::NONE.with_link(1));
    client.set(interrupt::CAUSE_SET, Causes::NONE.with_link(1));
    let pending = |client: &Client| client.device.config_read(6, 2) & 8 != 0;
    assert!(pending(&client));
    assert_eq!(client.get(interrupt::CAUSE), Causes::NONE.with_link(1).with_asserted(1));
    assert!(!pending(&client));
}

#[test]
fn a_link_that_goes_is_a_cause_and_stops_the_transmitter_until_it_is_back() {
    let mut client = running("");
    client.get(interrupt::CAUSE);
    client.handle().set_link(false);
    assert_eq!((client.get(interrupt::CAUSE).link(), client.get(general::STATUS).link()), (1, 0));
    client.send(&frame(OTHER, MAC, 64), |data| data);
    assert!(!client.is_sent());
    client.handle().set_link(true);
    assert!(client.is_sent());
    assert_eq!(client.handle().sent().len(), 1);
    // The loss stays in the PHY's status until it is read.
    let link = |client: &Client| phy::Status(client.phy(phy::STATUS).data() as u16).link();
    assert_eq!((link(&client), link(&client)), (0, 1));
}

#[test]
fn sending_can_be_held_back_and_released() {
    let mut client = running("");
    client.handle().set_timing(Timing::Held);
    client.send(&frame(OTHER, MAC, 64), |data| data);
    assert!(!client.is_sent() && client.handle().sent().is_empty());
    assert_eq!(client.handle().release(), 1);
    assert!(client.is_sent());
}

#[test]
fn a_transmitter_hangs_until_a_reset() {
    let mut client = running(",fault=hang:send:2");
    client.send(&frame(OTHER, MAC, 64), |data| data);
    assert!(client.is_sent());
    client.send(&frame(OTHER, MAC, 65), |data| data);
    assert!(!client.is_sent());
    client.start();
    client.send(&frame(OTHER, MAC, 66), |data| data);
    assert!(client.is_sent());
    assert_eq!(client.handle().sent().len(), 2);
}

#[test]
fn a_faulty_card_writes_back_what_cannot_be() {
    let mut client = running(
        ",fault=wrong-length/0x4000:receive:1+garbage:receive:2+drop:receive:3+corrupt:receive:4",
    );
    (0..4).for_each(|_| client.handle().inject(&frame(MAC, OTHER, 100)));
    assert_eq!(client.receive().unwrap().0.length(), 0x4064);
    assert_eq!(client.receive().unwrap().0, Extended(u64::MAX));
    assert_eq!(client.receive(), None);
}

#[test]
fn interrupts_are_lost_or_late() {
    let mut client = running(",fault=lose-interrupt:receive:1+late-interrupt/20ms:receive:2");
    client.vectors();
    client.handle().inject(&frame(MAC, OTHER, 100));
    assert_eq!(client.irqs[0].take().unwrap(), 0);
    let start = Instant::now();
    client.handle().inject(&frame(MAC, OTHER, 100));
    client.wait_for(|client| client.irqs[0].take().unwrap() > 0);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_reset_takes_its_time_or_never_ends() {
    let client = Client::open("sim:e1000,ready=5ms,fault=stuck-ready:enable:2");
    let start = Instant::now();
    client.reset();
    assert!(start.elapsed() >= Duration::from_millis(5));
    client.set(general::CONTROL, Control(0).with_reset(1));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(client.get(general::CONTROL).reset(), 1);
}

#[test]
fn a_driver_that_breaks_rules_is_told_so() {
    let client = running("");
    client.set(receive::tail(0), 99);
    client.set(receive::ring_low(0), 0);
    client.bar.write16(0, 0);
    let violations = client.handle().violations();
    assert_eq!(violations.len(), 3, "{violations:?}");
}

#[test]
fn memory_that_cannot_be_reached_stops_the_receiver_and_is_reported() {
    let mut client = running("");
    client.device.set_bus_master(false).unwrap();
    client.handle().inject(&frame(MAC, OTHER, 100));
    assert_eq!(client.receive(), None);
    assert!(client.handle().fault_count() > 0);
}
