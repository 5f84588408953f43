//! virtio network cards that change hands while they go.

mod successor;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Instant;

use ring3_backend::OpenOptions;
use ring3_class::Saved;
use ring3_class::net::{Filter, Multicast, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Device, Error};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_driver::virtio::net::{Card, Options};
use ring3_model::virtio::net::{Misbehaviour, VirtioNetHandle, open};
use serde_json::json;
use successor::{Successor, altered, through_json};

const MEMORY: OpenOptions = OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };
const SETTINGS: QueueSettings = QueueSettings { rx_depth: 16, tx_depth: 16, mtu: 1500, rx_room: 1536 };
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 7];

/// What the first process has left: the device, its memory, and what it has written down.
struct Left {
    device: Arc<dyn Device>,
    handle: VirtioNetHandle,
    card: Saved,
    queue: Saved,
}

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0x00, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.resize(100, number);
    frame
}

fn buffer(nic: &dyn Nic) -> Packet {
    Packet::new(nic.dma().arena().alloc(1600, 64).unwrap(), 64)
}

/// A queue with 16 buffers to receive into, one packet that has come, and one that was sent and not returned.
fn left(options: &str) -> Left {
    left_after(options, |_, _, _| {})
}

/// The same after `before`.
fn left_after(options: &str, before: impl FnOnce(&Card, &VirtioNetHandle, &mut dyn Queue)) -> Left {
    let device = open(&format!("sim:virtio-net{options}").parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let nic = Card::open(device.clone(), Options::default()).unwrap();
    let mut queue = nic.open_queues(1, &SETTINGS).unwrap().remove(0);
    let mut batch: Vec<Packet> = (0..16).map(|_| buffer(&nic)).collect();
    assert_eq!(queue.rx_provide(&mut batch).count, 16);
    before(&nic, &handle, &mut *queue);
    handle.send(&frame(1));
    let mut packet = Packet { token: 5, ..buffer(&nic) };
    packet.fill(&frame(9)).unwrap();
    assert_eq!(queue.tx_provide(&mut [packet]).count, 1);
    assert!(matches!(nic.detach(), Err(Error::Busy(_))), "a card was left whose queue is open");
    let queue = through_json(&queue.detach().unwrap());
    let card = through_json(&nic.detach().unwrap());
    assert!(nic.link().is_err(), "a card that was left still answers");
    drop(nic);
    Left { device: Successor::of(&device), handle, card, queue }
}

fn received(queue: &mut dyn Queue) -> Vec<u8> {
    let mut batch: [Packet; 16] = Default::default();
    let count = queue.rx_return(&mut batch).unwrap();
    let last = |packet: &Packet| {
        let mut byte = [0];
        packet.read(packet.len - 1, &mut byte).unwrap();
        byte[0]
    };
    batch[..count].iter().map(last).collect()
}

#[test]
fn a_card_goes_on_in_the_next_process_with_what_came_and_went_and_is_never_reset() {
    for options in ["", ",packed=on", ",events=off"] {
        let left = left(options);
        let status = left.handle.status();
        left.handle.send(&frame(2));
        let opened = Driver::resume(left.device.clone(), &Settings::default(), &left.card).unwrap();
        let Offer::Nic(nic) = &opened.offers[0] else { panic!("a card is a card") };
        let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
        assert_eq!(left.device.dma().arena().unclaimed(), [], "{options}");
        assert_eq!((queue.held(), left.handle.status()), ((16, 1), status), "{options}");
        left.handle.send(&frame(3));
        assert_eq!(received(&mut *queue), [1, 2, 3], "{options}");
        let mut back = [Packet::default()];
        assert_eq!((queue.tx_return(&mut back).unwrap(), back[0].token), (1, 5));
        assert_eq!(queue.tx_provide(&mut back).count, 1);
        assert_eq!(left.handle.sent(), [frame(9), frame(9)], "{options}");
        assert_eq!(nic.counters().unwrap().rx_packets, 3);
        assert!(nic.resume_queues(from_ref(&left.queue)).is_err(), "a queue was resumed twice");
        assert_eq!(left.handle.fault_count(), 0);
    }
}

#[test]
fn filters_are_set_by_the_control_queue_that_was_left() {
    let left = left("");
    let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
    let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
    let groups = Multicast::Of(vec![ring3_class::net::Mac(GROUP)]);
    nic.set_filter(&Filter { multicast: groups, ..Filter::own(nic.info().mac) }).unwrap();
    let mut to_group = frame(4);
    to_group[..6].copy_from_slice(&GROUP);
    left.handle.send(&to_group);
    assert_eq!(received(&mut *queue), [1, 4]);
}

#[test]
fn buffers_that_the_card_has_given_back_out_of_order_change_hands_too() {
    for options in ["", ",packed=on"] {
        let left = left_after(options, |nic, handle, queue| {
            handle.send(&frame(7));
            handle.misbehave(Some(Misbehaviour::UsesOutOfOrder));
            handle.send(&frame(8));
            assert_eq!(received(queue), [7]);
            assert_eq!(received(queue), [8]);
            assert_eq!(queue.rx_provide(&mut [buffer(nic), buffer(nic)]).count, 2);
        });
        let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
        let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
        left.handle.misbehave(None);
        left.handle.send(&frame(2));
        let mut all = Vec::new();
        while all.len() < 2 {
            all.extend(received(&mut *queue));
        }
        assert_eq!((all, left.handle.fault_count()), (vec![1, 2], 0), "{options}");
    }
}

#[test]
fn a_card_that_was_reset_meanwhile_is_given_up_and_its_queue_opened_anew() {
    let left = left("");
    left.handle.need_reset();
    let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
    let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
    assert!(matches!(queue.tick(Instant::now()), Err(Error::Fatal(_))));
    drop(queue);
    let mut queue = nic.open_queues(1, &SETTINGS).unwrap().remove(0);
    assert_eq!(queue.rx_provide(&mut [buffer(&nic)]).count, 1);
    left.handle.send(&frame(4));
    assert_eq!(received(&mut *queue), [4]);
}

#[test]
fn a_queue_that_cannot_have_been_is_refused_and_its_memory_stays_taken() {
    let left = left("");
    let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
    let unclaimed = left.device.dma().arena().unclaimed();
    let refused = |what: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let queue = altered(&left.queue, change);
        let error = nic.resume_queues(from_ref(&queue)).err().unwrap_or_else(|| panic!("{what} was taken"));
        assert!(matches!(error, Error::Invalid(_)), "{what}: {error}");
        assert_eq!(left.device.dma().arena().unclaimed(), unclaimed, "{what}");
    };
    refused("another card's", &|state| state["mac"] = json!("02:00:00:00:00:01"));
    refused("smaller buffers than the card was told", &|state| state["settings"]["rx_room"] = json!(4096));
    refused("a ring that cannot be", &|state| state["receive"]["queue"]["state"]["split"]["offered"] = json!(4000));
    refused("a ring of another layout", &|state| {
        state["receive"]["queue"]["state"] =
            json!({ "packed": { "size": 16, "next": [0, true], "seen": [0, true], "chains": [] } });
    });
    refused("a slot that is not in a row", &|state| state["transmit"]["held"][0]["number"] = json!(7));
    refused("a slot beyond the ring", &|state| state["receive"]["held"][0]["number"] = json!(60000));
    refused("a slot twice", &|state| state["receive"]["held"][0] = state["receive"]["held"][1].clone());
    refused("a next piece that is none", &|state| state["transmit"]["held"][0]["next"] = json!(3));
    refused("a next descriptor beyond the ring", &|state| state["receive"]["next"] = json!(16));
    refused("a piece to be returned that is none", &|state| state["sent"] = json!(9));
    refused("a packet beyond its buffer", &|state| state["transmit"]["held"][0]["packet"]["len"] = json!(4096));
    refused("the ring of somebody else", &|state| {
        state["transmit"]["queue"]["memory"] = state["receive"]["queue"]["memory"].clone();
    });
    nic.resume_queues(from_ref(&left.queue)).unwrap();
}

#[test]
fn a_state_that_is_another_cards_is_refused() {
    let left = left("");
    let unclaimed = left.device.dma().arena().unclaimed();
    let refused = |what: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let resumed = Card::resume(left.device.clone(), None, &altered(&left.card, change));
        let error = resumed.err().unwrap_or_else(|| panic!("{what} was taken"));
        assert!(matches!(error, Error::Invalid(_)), "{what}: {error}");
        assert_eq!(left.device.dma().arena().unclaimed(), unclaimed, "{what}");
    };
    refused("another address", &|state| state["mac"] = json!("02:00:00:00:00:01"));
    refused("features that it has not", &|state| state["features"] = json!(u64::MAX));
    refused("other interrupts", &|state| state["vectors"] = json!(1));
    refused("a depth that is none", &|state| state["max_depth"][0] = json!(3));
    refused("another ring", &|state| state["going"]["receive"]["places"][0] = json!(0x1000));
    refused("a control queue without memory", &|state| {
        state["going"]["control"]["command"] = json!({ "region": 0, "offset": 0, "len": 8 })
    });
    Card::resume(left.device.clone(), None, &left.card).unwrap();
}
