//! Cards that change hands while they run.

mod cards;
mod successor;

use std::slice::from_ref;
use std::sync::Arc;

use cards::{MEMORY, frame, leave, received, sends_again};
use ring3_class::net::{Nic, Packet, Queue, QueueSettings};
use ring3_device::Device;
use ring3_driver::e1000::{E1000, Options};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::nvm;
use serde_json::json;
use successor::refuses;

const SETTINGS: QueueSettings =
    QueueSettings { rx_depth: 16, tx_depth: 16, mtu: 1500, rx_room: 2048 };

type Left = cards::Left<E1000Handle>;

fn buffer(nic: &dyn Nic) -> Packet {
    Packet::new(nic.dma().arena().alloc(2048, 64).unwrap(), 0)
}

/// A queue with 16 buffers to receive into, one packet that has come, and one that was sent and not
/// returned.
fn left() -> Left {
    left_of("sim:e1000")
}

fn left_of(uri: &str) -> Left {
    let device = sim::open(&uri.parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let nic = E1000::open(device.clone(), Options::default()).unwrap();
    let queue = cards::queue(&nic, &SETTINGS, || buffer(&nic));
    handle.inject(&frame(1));
    let packet = buffer(&nic);
    leave(&device, handle, nic, queue, packet, E1000::detach)
}

#[test]
fn the_second_port_of_a_card_goes_on_in_the_next_process() {
    let left = left_of("sim:e1000,port=1");
    let opened = Driver::resume(left.device.clone(), &Settings::default(), &left.card).unwrap();
    let Offer::Nic(nic) = &opened.offers[0] else { panic!("a card is a card") };
    assert_eq!(nic.info().mac.to_string(), "52:54:00:12:34:57");
}

#[test]
fn a_card_goes_on_in_the_next_process_with_what_came_and_went_and_is_never_reset() {
    let left = left();
    let (resets, writes) = (left.handle.counters().resets, left.handle.counters().writes);
    left.handle.inject(&frame(2));
    let opened = Driver::resume(left.device.clone(), &Settings::default(), &left.card).unwrap();
    let Offer::Nic(nic) = &opened.offers[0] else { panic!("a card is a card") };
    let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
    assert_eq!(left.device.dma().arena().unclaimed(), []);
    // Only EERD is written, to see that it is the same card, and who has the NVM, before and after.
    let asked = left.handle.counters().writes - writes;
    assert_eq!(
        (queue.outstanding(), asked),
        ((16, 1), u64::from(nvm::CHECKED_WORDS) + 2),
        "somebody wrote a register"
    );
    left.handle.inject(&frame(3));
    assert_eq!(received(&mut *queue), [1, 2, 3]);
    sends_again(&mut *queue);
    assert_eq!(left.handle.sent(), [frame(9), frame(9)]);
    assert_eq!((nic.counters().unwrap().rx_packets, left.handle.counters().resets), (3, resets));
    assert!(nic.resume_queues(from_ref(&left.queue)).is_err(), "a queue was resumed twice");
    assert_eq!(left.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_card_that_was_reset_meanwhile_starts_anew_and_its_queue_with_it() {
    let left = left();
    left.handle.reset_function();
    let nic = E1000::resume(left.device.clone(), None, &left.card).unwrap();
    let mut queue = nic.resume_queues(from_ref(&left.queue)).unwrap().remove(0);
    left.device.set_bus_master(true).unwrap();
    queue.tick(std::time::Instant::now()).unwrap();
    assert_eq!(queue.outstanding().0, 16);
    left.handle.inject(&frame(4));
    assert_eq!(received(&mut *queue), [4]);
}

#[test]
fn a_queue_that_cannot_have_been_is_refused_and_its_memory_stays_taken() {
    let left = left();
    let nic = E1000::resume(left.device.clone(), None, &left.card).unwrap();
    let refused = refuses(&*left.device, &left.queue, |queue| nic.resume_queues(from_ref(queue)));
    refused("another number", &|state| state["index"] = json!(1));
    refused("another card's", &|state| state["mac"] = json!("02:00:00:00:00:01"));
    refused("a generation that is none", &|state| state["generation"] = json!(u32::MAX));
    refused("a deeper queue", &|state| state["settings"]["rx_depth"] = json!(60000));
    refused("smaller buffers than the card's", &|state| state["settings"]["rx_room"] = json!(256));
    refused("a ring that cannot be", &|state| state["receive"]["state"]["tail"] = json!(4000));
    refused("a slot that is not held", &|state| state["receive"]["held"][0]["slot"] = json!(31));
    refused("a slot beyond the ring", &|state| {
        state["receive"]["held"][0]["slot"] = json!(u32::MAX)
    });
    refused("a slot twice", &|state| {
        state["receive"]["held"][0] = state["receive"]["held"][1].clone()
    });
    refused("a buffer that is missing", &|state| {
        drop(state["receive"]["held"].as_array_mut().unwrap().pop())
    });
    refused("a packet beyond its buffer", &|state| {
        state["transmit"]["held"][0]["packet"]["len"] = json!(4096)
    });
    refused("the ring of somebody else", &|state| {
        state["transmit"]["memory"] = state["receive"]["memory"].clone()
    });
    nic.resume_queues(from_ref(&left.queue)).unwrap();
}

#[test]
fn a_state_that_is_another_cards_is_refused() {
    let left = left();
    let refused =
        refuses(&*left.device, &left.card, |card| E1000::resume(left.device.clone(), None, card));
    refused("another address", &|state| state["mac"] = json!("02:00:00:00:00:01"));
    refused("another model", &|state| state["model"] = json!("82576"));
    refused("other interrupts", &|state| state["vectors"] = json!(1));
    refused("a queue that the card has not", &|state| state["queues"][0]["index"] = json!(9));
    refused("another ring", &|state| state["queues"][0]["receive"][0] = json!(0x1000));
    E1000::resume(left.device.clone(), None, &left.card).unwrap();
}
