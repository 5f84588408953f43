//! virtio network cards with several pairs of queues.

mod successor;

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::net::{Nic, Packet, Queue, QueueSettings};
use ring3_device::wait::Source as _;
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::virtio::net::{Card, Options};
use ring3_model::virtio::net::{InjectedFault, SimVirtioNet, VirtioNetHandle, open};
use successor::Successor;

const SETTINGS: QueueSettings =
    QueueSettings { rx_depth: 16, tx_depth: 16, mtu: 1500, rx_room: 1536 };
const LAYOUTS: [&str; 2] = ["off", "on"];

fn device(options: &str) -> SimVirtioNet {
    open(&format!("sim:virtio-net,queues=4{options}").parse().unwrap(), Default::default()).unwrap()
}

struct Rig {
    device: Arc<dyn Device>,
    handle: VirtioNetHandle,
    card: Card,
    queues: Vec<Box<dyn Queue>>,
}

/// A card with `count` of its four pairs open, each with four buffers to receive into.
fn rig(options: &str, count: u16) -> Rig {
    let device = device(options);
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let card = Card::open(device.clone(), Options::default()).unwrap();
    let mut queues = card.open_queues(count, &SETTINGS).unwrap();
    queues.iter_mut().for_each(|queue| provide(&card, &mut **queue));
    Rig { device, handle, card, queues }
}

fn buffer(card: &Card) -> Packet {
    Packet::new(card.dma().arena().alloc(1600, 64).unwrap(), 64)
}

fn provide(card: &Card, queue: &mut dyn Queue) {
    let mut batch: Vec<_> = (0..4).map(|_| buffer(card)).collect();
    assert_eq!(queue.rx_provide(&mut batch).count, 4);
}

/// A UDP datagram of flow `flow`: out of the card, or the answer.
fn datagram(card: &Card, flow: u16, out: bool) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[if out { 6..12 } else { 0..6 }].copy_from_slice(&card.info().mac.0);
    frame[if out { 0 } else { 6 }] = 2;
    (frame[12], frame[13], frame[14]) = (8, 0, 0x45);
    let (ours, theirs) = (if out { 34 } else { 36 }, if out { 36 } else { 34 });
    frame[ours..ours + 2].copy_from_slice(&(1000 + flow).to_be_bytes());
    frame[theirs..theirs + 2].copy_from_slice(&7u16.to_be_bytes());
    frame
}

fn send(card: &Card, queue: &mut dyn Queue, flow: u16) {
    let mut packet = Packet { token: flow.into(), ..buffer(card) };
    packet.fill(&datagram(card, flow, true)).unwrap();
    assert_eq!(queue.tx_provide(&mut [packet]).count, 1);
}

/// How many packets have come to each queue.
fn came(queues: &mut [Box<dyn Queue>]) -> Vec<usize> {
    let mut batch: [Packet; 8] = Default::default();
    queues.iter_mut().map(|queue| queue.rx_return(&mut batch).unwrap()).collect()
}

#[test]
fn each_answer_comes_to_the_pair_whose_flow_has_asked_and_the_card_counts_all_of_them() {
    for packed in LAYOUTS {
        let Rig { handle, card, mut queues, .. } = rig(&format!(",packed={packed}"), 4);
        assert_eq!((card.info().max_queues, queues.len()), (4, 4));
        (0..4).zip(&mut queues).for_each(|(flow, queue)| send(&card, &mut **queue, flow));
        assert_eq!(handle.sent().len(), 4, "{packed}");
        for flow in [0, 1, 1, 2, 3, 3, 3] {
            handle.send(&datagram(&card, flow, false));
        }
        let pending: Vec<_> = queues.iter().map(|queue| queue.pending()).collect();
        assert_eq!((pending, came(&mut queues)), (vec![true; 4], vec![1, 2, 1, 3]), "{packed}");
        let counters = card.counters().unwrap();
        assert_eq!(
            (counters.rx_packets, counters.tx_packets, handle.fault_count()),
            (7, 4, 0),
            "{packed}"
        );
    }
}

#[test]
fn a_card_with_pairs_of_which_one_is_opened_uses_that_one() {
    let Rig { handle, card, mut queues, .. } = rig("", 1);
    send(&card, &mut *queues[0], 3);
    handle.send(&datagram(&card, 3, false));
    assert_eq!(came(&mut queues), [1]);
    assert!(matches!(card.open_queues(2, &SETTINGS), Err(Error::Busy(_))));
    drop(queues);
    assert!(matches!(card.open_queues(5, &SETTINGS), Err(Error::Invalid(_))));
    assert_eq!(card.open_queues(2, &SETTINGS).unwrap().len(), 2);
}

#[test]
fn a_card_that_is_looked_at_has_as_many_pairs() {
    let options = Options { interrupts: Interrupts::Polled, ..Options::default() };
    let card = Card::open(Arc::new(device("")), options).unwrap();
    assert_eq!((card.info().max_queues, card.open_queues(4, &SETTINGS).unwrap().len()), (4, 4));
}

#[test]
fn what_comes_for_a_pair_that_has_ended_hurts_nobody_and_its_memory_returns_with_the_last_one() {
    for packed in LAYOUTS {
        let Rig { handle, card, mut queues, .. } = rig(&format!(",packed={packed}"), 2);
        let before = handle.status();
        drop(queues.remove(0));
        assert_eq!(handle.status(), before, "{packed}: the card has stopped under the other pair");
        // Whoever gets memory now does not get what the card may still write to.
        let others: Vec<_> = (0..64).map(|_| card.dma().arena().alloc(1600, 64).unwrap()).collect();
        others.iter().for_each(|other| other.fill(0x55));
        (0..3).for_each(|_| handle.send(&datagram(&card, 9, false)));
        let mut bytes = vec![0; 1600];
        for other in &others {
            other.read(0, &mut bytes).unwrap();
            assert!(
                bytes.iter().all(|byte| *byte == 0x55),
                "{packed}: the card has written into memory that was given back"
            );
        }
        send(&card, &mut *queues[0], 1);
        handle.send(&datagram(&card, 1, false));
        assert_eq!((came(&mut queues), handle.fault_count()), (vec![1], 0), "{packed}");
        drop(queues);
        assert_eq!(handle.status(), 0, "{packed}: the card goes on without a queue");
        drop(others);
        assert!(card.open_queues(4, &SETTINGS).is_ok(), "{packed}");
    }
}

#[test]
fn pairs_that_are_not_agreed_to_are_an_error_and_the_card_is_stopped() {
    let device = device("");
    let handle = device.handle();
    let card = Card::open(Arc::new(device), Options::default()).unwrap();
    handle.misbehave(Some(InjectedFault::IgnoresControl));
    assert!(card.open_queues(2, &SETTINGS).is_err());
    assert_eq!(handle.status(), 0);
    handle.misbehave(None);
    assert_eq!(card.open_queues(2, &SETTINGS).unwrap().len(), 2);
}

#[test]
fn all_pairs_change_hands_together_and_go_on_each_with_its_own() {
    for packed in LAYOUTS {
        let Rig { device, handle, card, mut queues } = rig(&format!(",packed={packed}"), 3);
        (0..3).zip(&mut queues).for_each(|(flow, queue)| send(&card, &mut **queue, flow));
        (0..3).for_each(|flow| handle.send(&datagram(&card, flow, false)));
        let saved: Vec<Saved> = queues.iter_mut().map(|queue| queue.detach().unwrap()).collect();
        let left = card.detach().unwrap();
        drop((queues, card));
        let status = handle.status();
        let card = Card::resume(Successor::of(&device), None, &left).unwrap();
        assert!(
            card.resume_queues(&saved[..2]).is_err(),
            "{packed}: two of three pairs were resumed"
        );
        let swapped: Vec<_> = [1, 0, 2].map(|at: usize| saved[at].clone()).into();
        assert!(
            card.resume_queues(&swapped).is_err(),
            "{packed}: pairs were resumed in another order"
        );
        let mut queues = card.resume_queues(&saved).unwrap();
        assert_eq!(
            (queues.len(), handle.status(), came(&mut queues)),
            (3, status, vec![1, 1, 1]),
            "{packed}"
        );
        for (flow, queue) in (0..3).zip(&mut queues) {
            let mut back = [Packet::default()];
            assert_eq!((queue.tx_return(&mut back).unwrap(), back[0].token), (1, flow), "{packed}");
        }
        (1..3).for_each(|flow| handle.send(&datagram(&card, flow, false)));
        assert_eq!((came(&mut queues), handle.fault_count()), (vec![0, 1, 1], 0), "{packed}");
    }
}

#[test]
fn a_card_of_which_a_pair_has_ended_cannot_be_left() {
    let Rig { card, mut queues, .. } = rig("", 2);
    drop(queues.remove(0));
    let _saved = queues[0].detach().unwrap();
    assert!(matches!(card.detach(), Err(Error::Unsupported(_))));
}
