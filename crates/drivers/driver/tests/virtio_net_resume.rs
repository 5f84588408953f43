//! virtio network cards that change hands while they go.

mod cards;
mod successor;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Instant;

use cards::{MEMORY, frame, leave, received, sends_again};
use ring3_class::net::{Filter, Mac, Multicast, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Device, Error};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_driver::virtio::net::{Card, Options};
use ring3_model::virtio::net::{InjectedFault, VirtioNetHandle, open};
use ring3_spec::virtio::net;
use serde_json::json;
use successor::{altered, refuses};

const SETTINGS: QueueSettings =
    QueueSettings { rx_depth: 16, tx_depth: 16, mtu: 1500, rx_room: 1536 };
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 7];

type Left = cards::Left<VirtioNetHandle>;

fn buffer(nic: &dyn Nic) -> Packet {
    Packet::new(nic.dma().arena().alloc(1600, 64).unwrap(), 64)
}

/// A queue with 16 buffers to receive into, one packet that has come, and one that was sent and not
/// returned.
fn left(options: &str) -> Left {
    left_after(options, |_, _, _| {})
}

/// The same after `before`.
fn left_after(options: &str, before: impl FnOnce(&Card, &VirtioNetHandle, &mut dyn Queue)) -> Left {
    let device = open(&format!("sim:virtio-net{options}").parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let nic = Card::open(device.clone(), Options::default()).unwrap();
    let mut queue = cards::queue(&nic, &SETTINGS, || buffer(&nic));
    before(&nic, &handle, &mut *queue);
    handle.send(&frame(1));
    let packet = buffer(&nic);
    leave(&device, handle, nic, queue, packet, Card::detach)
}

/// Sends a packet of three pieces, whose tokens are 10 to 12.
fn send_pieces(nic: &dyn Nic, queue: &mut dyn Queue) {
    let mut pieces = [10, 11, 12].map(|token| Packet { token, ..buffer(nic) });
    for piece in &mut pieces {
        piece.fill(&frame(9)).unwrap();
        piece.meta.set_more(piece.token < 12);
    }
    assert_eq!(queue.tx_provide(&mut pieces).count, 3);
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
        assert_eq!((queue.outstanding(), left.handle.status()), ((16, 1), status), "{options}");
        left.handle.send(&frame(3));
        assert_eq!(received(&mut *queue), [1, 2, 3], "{options}");
        sends_again(&mut *queue);
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
    let groups = Multicast::Of(vec![Mac(GROUP)]);
    nic.set_filter(&Filter { multicast: groups, ..Filter::own(nic.info().mac) }).unwrap();
    let mut to_group = frame(4);
    to_group[..6].copy_from_slice(&GROUP);
    left.handle.send(&to_group);
    assert_eq!(received(&mut *queue), [1, 4]);
}

#[test]
fn a_card_whose_address_was_set_changes_hands_and_has_its_own_back_when_it_is_opened_anew() {
    let set = Mac([2, 0, 0, 0, 0, 0x77]);
    let left = left_after("", |nic, _, _| nic.set_filter(&Filter::own(set)).unwrap());
    let another =
        altered(&left.card, |state| state["filter"]["address"] = json!("02:00:00:00:00:78"));
    assert!(
        matches!(Card::resume(left.device.clone(), None, &another), Err(Error::Invalid(_))),
        "an address that nobody has set"
    );
    let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
    let own = nic.info().mac;
    assert_eq!((&own.0[..], own == set), (&frame(0)[..6], false));
    let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
    let mut to_set = frame(4);
    to_set[..6].copy_from_slice(&set.0);
    left.handle.send(&to_set);
    assert_eq!(received(&mut *queue), [4]);
    drop((queue, nic));
    assert_eq!(Card::open(left.device.clone(), Options::default()).unwrap().info().mac, own);
}

#[test]
fn a_packet_that_has_come_back_in_part_comes_back_to_its_end_in_the_next_process() {
    for options in ["", ",packed=on"] {
        let left = left_after(options, |nic, _, queue| {
            send_pieces(nic, queue);
            let mut back = [Packet::default()];
            assert_eq!((queue.tx_return(&mut back).unwrap(), back[0].token), (1, 10), "{options}");
        });
        let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
        let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
        let mut back: [Packet; 8] = Default::default();
        assert_eq!(
            (queue.tx_return(&mut back).unwrap(), queue.outstanding().1),
            (3, 0),
            "{options}"
        );
        assert_eq!(back.each_ref().map(|packet| packet.token)[..3], [11, 12, 5], "{options}");
    }
}

#[test]
fn links_that_no_packets_have_are_refused() {
    // A packet of three pieces, of which the card may have all; then one of a single piece.
    for (begun, next) in [(false, 3), (true, 2)] {
        let left = left_after("", |nic, _, queue| {
            send_pieces(nic, queue);
            if begun {
                assert_eq!(queue.tx_return(&mut [Packet::default()]).unwrap(), 1);
            }
        });
        let nic = Card::resume(left.device.clone(), None, &left.card).unwrap();
        let refused =
            refuses(&*left.device, &left.queue, |queue| nic.resume_queues(from_ref(queue)));
        let held = left.queue.state["transmit"]["held"].as_array().unwrap();
        assert_eq!((held.len(), &held[next]["number"]), (next + 1, &json!(3)), "{held:?}");
        refused("a piece that follows itself", &|state| {
            state["transmit"]["held"][next - 1]["next"] = json!(2)
        });
        refused("pieces in a circle", &|state| {
            state["transmit"]["held"][next - 1]["next"] = json!(1)
        });
        refused("a piece of two packets", &|state| {
            state["transmit"]["held"][next]["next"] = json!(2)
        });
        refused("a piece of no packet", &|state| {
            state["transmit"]["held"][next - 2]["next"] = json!(65535)
        });
        refused("a packet behind another", &|state| {
            state["transmit"]["held"][next - 1]["next"] = json!(3)
        });
        refused("a packet that the card has, as one that came back", &|state| {
            state["sent"] = json!(3)
        });
        refused("a packet that came back within another", &|state| state["sent"] = json!(2));
        refused("a packet that came back, without its first piece", &|state| {
            state["transmit"]["held"][next]["later"] = json!(true);
        });
        refused("a buffer to receive into that is a later piece", &|state| {
            state["receive"]["held"][0]["next"] = json!(1);
            state["receive"]["held"][1]["later"] = json!(true);
        });
        nic.resume_queues(from_ref(&left.queue)).unwrap();
    }
}

#[test]
fn buffers_that_the_card_has_given_back_out_of_order_change_hands_too() {
    for options in ["", ",packed=on"] {
        let left = left_after(options, |nic, handle, queue| {
            handle.send(&frame(7));
            handle.misbehave(Some(InjectedFault::UsesOutOfOrder));
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
    let refused = refuses(&*left.device, &left.queue, |queue| nic.resume_queues(from_ref(queue)));
    refused("another card's", &|state| state["mac"] = json!("02:00:00:00:00:01"));
    refused("smaller buffers than the card was told", &|state| {
        state["settings"]["rx_room"] = json!(4096)
    });
    refused("a ring that cannot be", &|state| {
        state["receive"]["queue"]["state"]["split"]["offered"] = json!(4000)
    });
    refused("a ring of another layout", &|state| {
        state["receive"]["queue"]["state"] =
            json!({ "packed": { "size": 16, "next": [0, true], "seen": [0, true], "chains": [] } });
    });
    refused("a slot that is not in a row", &|state| {
        state["transmit"]["held"][0]["number"] = json!(7)
    });
    refused("a slot beyond the ring", &|state| {
        state["receive"]["held"][0]["number"] = json!(60000)
    });
    refused("a slot twice", &|state| {
        state["receive"]["held"][0] = state["receive"]["held"][1].clone()
    });
    refused("a next piece that is none", &|state| state["transmit"]["held"][0]["next"] = json!(3));
    refused("a next descriptor beyond the ring", &|state| state["receive"]["next"] = json!(16));
    refused("a piece to be returned that is none", &|state| state["sent"] = json!(9));
    refused("a packet beyond its buffer", &|state| {
        state["transmit"]["held"][0]["packet"]["len"] = json!(4096)
    });
    refused("the ring of somebody else", &|state| {
        state["transmit"]["queue"]["memory"] = state["receive"]["queue"]["memory"].clone();
    });
    nic.resume_queues(from_ref(&left.queue)).unwrap();
}

#[test]
fn a_state_that_is_another_cards_is_refused() {
    let left = left("");
    let refused =
        refuses(&*left.device, &left.card, |card| Card::resume(left.device.clone(), None, card));
    // One that has the address which its filter wants may have been given it.
    refused("another address", &|state| {
        state["mac"] = json!("02:00:00:00:00:01");
        state["filter"]["address"] = json!("02:00:00:00:00:01");
    });
    refused("another address of its own, of a card that cannot be given one", &|state| {
        state["mac"] = json!("02:00:00:00:00:01");
        state["features"] = json!(state["features"].as_u64().unwrap() & !net::CTRL_MAC_ADDR);
    });
    refused("features that it has not", &|state| state["features"] = json!(u64::MAX));
    refused("fewer features than were agreed upon", &|state| {
        state["features"] = json!(state["features"].as_u64().unwrap() & !net::MRG_RXBUF);
    });
    refused("other interrupts", &|state| state["vectors"] = json!(1));
    refused("a depth that is none", &|state| state["max_depth"][0] = json!(3));
    refused("no control queue", &|state| state["going"]["control"] = json!(null));
    refused("another ring", &|state| state["going"]["receive"]["places"][0] = json!(0x1000));
    refused("a control queue without memory", &|state| {
        state["going"]["control"]["command"] = json!({ "region": 0, "offset": 0, "len": 8 })
    });
    Card::resume(left.device.clone(), None, &left.card).unwrap();
}

#[test]
fn a_control_queue_that_is_not_where_the_card_has_it_is_refused() {
    // What either side is to be told has the same size, so that a queue can be made of them the
    // other way round.
    let left = left(",packed=on");
    let unclaimed = left.device.dma().arena().unclaimed();
    let swapped = altered(&left.card, |state| {
        state["going"]["control"]["queue"]["memory"].as_array_mut().unwrap().swap(1, 2);
    });
    let error = Card::resume(left.device.clone(), None, &swapped).err().expect("it is refused");
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert_eq!(left.device.dma().arena().unclaimed(), unclaimed);
    Card::resume(left.device.clone(), None, &left.card).unwrap();
}
