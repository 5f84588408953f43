//! An application of a network card: it provides buffers and packets as the input says.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ring3_class::net::{Nic, Packet, Provided, Queue, QueueSettings};
use ring3_device::Error;
use ring3_driver::registry::{Controller, Driver, Offer, Opened};

use crate::{Input, clock, disk};

/// Operations of one input.
const MOST: usize = 32;
/// Bytes of each buffer.
const BUFFER: usize = 2048;
/// Packets of one batch.
const BATCH: usize = 4;

/// The card that was opened.
pub fn of(opened: &Opened) -> Option<&dyn Nic> {
    opened.offers.iter().find_map(|offer| match offer {
        Offer::Nic(nic) => Some(&**nic),
        Offer::Disk(_) => None,
    })
}

/// One queue, and the buffers that it holds.
pub struct User<'a> {
    nic: &'a dyn Nic,
    queue: Box<dyn Queue>,
    received: BTreeSet<u32>,
    sent: BTreeSet<u32>,
    next: u32,
    /// Packets that came back from being sent.
    pub returned: u32,
}

impl<'a> User<'a> {
    /// Of a queue of `nic`, if it gives one.
    pub fn new(nic: &'a dyn Nic, settings: &QueueSettings) -> Result<Self, Error> {
        let mut queues = nic.open_queues(1, settings)?;
        let queue = queues.pop().ok_or_else(|| Error::Invalid("no queue was opened".into()))?;
        let (received, sent) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { nic, queue, received, sent, next: 0, returned: 0 })
    }

    /// Does what `input` says.
    pub fn act(&mut self, input: &mut Input<'_>, controller: &dyn Controller) {
        for _ in 0..input.below(MOST) {
            match input.u8() % 16 {
                0..=3 => self.provide(input, false),
                4..=7 => self.provide(input, true),
                8 | 9 => self.take(false),
                10 | 11 => self.take(true),
                12 => drop(self.queue.tick(Instant::now())),
                13 => clock::advance(Duration::from_millis(input.u16().into())),
                14 => drop((self.nic.link(), self.nic.counters())),
                _ => drop(controller.poll_events()),
            }
            self.check();
        }
        for _ in 0..4 {
            self.take(false);
            self.take(true);
            drop(self.queue.tick(Instant::now()));
            clock::advance(Duration::from_secs(3));
            self.check();
        }
    }

    fn provide(&mut self, input: &mut Input<'_>, send: bool) {
        let headroom = self.nic.info().headroom;
        let (count, mut batch) = (1 + input.below(BATCH), Vec::new());
        for _ in 0..count {
            let Ok(buffer) = self.nic.dma().arena().alloc(BUFFER, 64) else { return };
            let mut packet = Packet::new(buffer, headroom);
            packet.token = self.next;
            packet.len = if send { u32::from(input.u16() % 1600) } else { 0 };
            self.next += 1;
            batch.push(packet);
        }
        let Provided { count: taken, .. } = if send {
            self.queue.tx_provide(&mut batch)
        } else {
            self.queue.rx_provide(&mut batch)
        };
        assert!(taken <= batch.len());
        let first = self.next - count as u32;
        for (token, packet) in (first..).zip(&batch[..taken]) {
            assert!(packet.buffer.is_none(), "a buffer was taken and is still there");
            (if send { &mut self.sent } else { &mut self.received }).insert(token);
        }
        assert!(batch[taken..].iter().all(|packet| packet.buffer.is_some()), "a buffer is lost");
    }

    fn take(&mut self, send: bool) {
        let mut batch: [Packet; BATCH] = Default::default();
        let taken =
            if send { self.queue.tx_return(&mut batch) } else { self.queue.rx_return(&mut batch) };
        let Ok(count) = taken else { return };
        let held = if send { &mut self.sent } else { &mut self.received };
        for packet in &batch[..count] {
            let token = packet.token;
            assert!(held.remove(&token), "buffer {token} comes back and was not with the card");
            let bytes = packet.buffer.as_ref().map(|buffer| buffer.len() as u64);
            let bytes = bytes.unwrap_or_else(|| panic!("packet {token} comes back without bytes"));
            let end = u64::from(packet.start) + u64::from(packet.len);
            assert!(end <= bytes, "packet {token} ends at byte {end} of a buffer of {bytes}");
            self.returned += u32::from(send);
        }
    }

    fn check(&self) {
        let (received, sent) = self.queue.outstanding();
        let held = (self.received.len(), self.sent.len());
        assert!(
            usize::from(received) <= held.0 && usize::from(sent) <= held.1,
            "the queue says that it holds {received} and {sent} buffers of {held:?}"
        );
    }
}

/// Opens one of `shapes`, a card's model that the rest of `data` changes, with the driver that fits
/// it, and uses one queue.
pub fn drive(shapes: &[&str], data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.choose(shapes);
    let settings = disk::settings(input.u8());
    let queues = QueueSettings { rx_depth: 8, tx_depth: 8, ..QueueSettings::default() };
    let len = input.u8().into();
    let mut actions = Input::new(input.bytes(len));
    let events = input.rest();
    disk::bounded(shape, events, |device, deeds| {
        let opened = match Driver::open(device, None, &settings) {
            Ok(opened) => opened,
            Err(error) => {
                // Not every model has the interrupts that the user may ask for.
                let asked = matches!(error, Error::Unsupported(_));
                assert!(deeds.has_changed() || asked, "{shape} is refused: {error}");
                return;
            }
        };
        let Some(nic) = of(&opened) else { panic!("{shape} is no card") };
        match User::new(nic, &queues) {
            Ok(mut user) => user.act(&mut actions, &*opened.controller),
            Err(error) => assert!(deeds.has_changed(), "{shape} opens no queue: {error}"),
        }
    });
}
