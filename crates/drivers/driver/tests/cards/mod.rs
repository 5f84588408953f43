//! A network card that goes from one process to the next.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::net::{Nic, Packet, Queue, QueueSettings};
use ring3_device::{Device, Error, OpenOptions};

use super::successor::{Successor, through_json};

pub const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };

/// What the first process has left: the device, its memory, and what it has written down.
pub struct Left<H> {
    pub device: Arc<dyn Device>,
    pub handle: H,
    pub card: Saved,
    pub queue: Saved,
}

pub fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0x00, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.resize(100, number);
    frame
}

/// A queue with 16 buffers to receive into.
pub fn queue(
    nic: &dyn Nic,
    settings: &QueueSettings,
    buffer: impl Fn() -> Packet,
) -> Box<dyn Queue> {
    let mut queue = nic.open_queues(1, settings).unwrap().remove(0);
    let mut batch: Vec<Packet> = (0..16).map(|_| buffer()).collect();
    assert_eq!(queue.rx_provide(&mut batch).count, 16);
    queue
}

/// Leaves a card whose queue has sent one packet, `packet`, that is not returned.
pub fn leave<N: Nic, H>(
    device: &Arc<dyn Device>,
    handle: H,
    nic: N,
    mut queue: Box<dyn Queue>,
    packet: Packet,
    detach: fn(&N) -> Result<Saved, Error>,
) -> Left<H> {
    let mut packet = Packet { token: 5, ..packet };
    packet.fill(&frame(9)).unwrap();
    assert_eq!(queue.tx_provide(&mut [packet]).count, 1);
    assert!(matches!(detach(&nic), Err(Error::Busy(_))), "a card was left whose queue is open");
    let queue = through_json(&queue.detach().unwrap());
    let card = through_json(&detach(&nic).unwrap());
    assert!(nic.link().is_err(), "a card that was left still answers");
    drop(nic);
    Left { device: Successor::of(device), handle, card, queue }
}

/// The last bytes of the packets that have come.
pub fn received(queue: &mut dyn Queue) -> Vec<u8> {
    let mut batch: [Packet; 16] = Default::default();
    let count = queue.rx_return(&mut batch).unwrap();
    let last = |packet: &Packet| {
        let mut byte = [0];
        packet.read(packet.len - 1, &mut byte).unwrap();
        byte[0]
    };
    batch[..count].iter().map(last).collect()
}

/// The packet that was sent before comes back and is sent again.
pub fn sends_again(queue: &mut dyn Queue) {
    let mut back = [Packet::default()];
    assert_eq!((queue.tx_return(&mut back).unwrap(), back[0].token), (1, 5));
    assert_eq!(queue.tx_provide(&mut back).count, 1);
}
