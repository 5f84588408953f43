//! How often the cards' queues interrupt.

mod successor;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_class::net::{Nic, Packet, Queue, QueueSettings, Throttle};
use ring3_device::{Bar, Deadline, Device};
use ring3_driver::Interrupts;
use ring3_driver::e1000::{E1000, Options};
use ring3_driver::registry::{Driver, Settings};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::general::{self, Control};
use ring3_spec::e1000::{BAR, interrupt};
use successor::{Successor, through_json};

const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };
const PATIENCE: Duration = Duration::from_secs(20);

/// A card with an open queue that sleeps for each packet.
struct Rig {
    handle: E1000Handle,
    bar: Bar,
    queue: Box<dyn Queue>,
    nic: E1000,
    device: Arc<dyn Device>,
}

fn options(throttle: Throttle) -> Options {
    Options { throttle, poll: Duration::ZERO, ..Options::default() }
}

fn frame() -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0x00, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.resize(100, 0);
    frame
}

impl Rig {
    fn new(throttle: Throttle) -> Self {
        let device = sim::open(&"sim:e1000".parse().unwrap(), MEMORY).unwrap();
        let handle = device.handle();
        let device: Arc<dyn Device> = Arc::new(device);
        let nic = E1000::open(device.clone(), options(throttle)).unwrap();
        let mut queue = nic
            .open_queues(
                1,
                &QueueSettings { rx_depth: 32, tx_depth: 32, ..QueueSettings::default() },
            )
            .unwrap()
            .remove(0);
        let mut batch: Vec<Packet> =
            (0..32).map(|_| Packet::new(nic.dma().arena().alloc(2048, 64).unwrap(), 0)).collect();
        assert_eq!(queue.rx_provide(&mut batch).count, 32);
        Self { handle, bar: device.bar(BAR).unwrap(), queue, nic, device }
    }

    /// What the vector's register says.
    fn interval(&self) -> u32 {
        self.bar.read32(interrupt::vector_throttle(0).offset())
    }

    /// A burst of `frames` comes, and wakes the queue.
    fn burst(&mut self, frames: usize) {
        (0..frames).for_each(|_| self.handle.inject(&frame()));
        let mut left = frames;
        while left > 0 {
            assert!(self.queue.wait(Deadline::after(PATIENCE)).unwrap(), "nothing comes");
            let mut batch: [Packet; 32] = Default::default();
            let count = self.queue.rx_return(&mut batch).unwrap();
            assert_eq!(self.queue.rx_provide(&mut batch[..count]).count, count);
            left -= count;
        }
        // The look before a sleep, and a sleep in vain.
        self.queue.wait(Deadline::after(Duration::from_micros(10))).unwrap();
    }

    /// Bursts come until the register says what `wanted` wants.
    fn bursts_until(&mut self, wanted: impl Fn(u32) -> bool) {
        let start = Instant::now();
        while !wanted(self.interval()) {
            assert!(start.elapsed() < PATIENCE, "the throttle stays {}", self.interval());
            self.burst(4);
        }
    }
}

#[test]
fn a_fixed_throttle_is_in_the_queues_register_and_not_in_the_links() {
    let rig = Rig::new(Throttle::Fixed(Duration::from_micros(256)));
    assert_eq!((rig.interval(), rig.bar.read32(interrupt::vector_throttle(1).offset())), (1000, 0));
}

#[test]
fn a_fixed_throttle_is_in_the_cards_register_where_all_share_one_interrupt() {
    let device = sim::open(&"sim:e1000,vectors=0".parse().unwrap(), MEMORY).unwrap();
    let bar = device.bar(BAR).unwrap();
    let _card =
        E1000::open(Arc::new(device), options(Throttle::Fixed(Duration::from_micros(64)))).unwrap();
    assert_eq!(bar.read32(interrupt::THROTTLE.offset()), 250);
}

#[test]
fn a_fixed_throttle_is_there_again_after_a_reset() {
    let mut rig = Rig::new(Throttle::Fixed(Duration::from_micros(256)));
    rig.bar.write32(general::CONTROL.offset(), Control(0).with_reset(1).0);
    assert_eq!(rig.interval(), 0, "the model's reset has left it");
    rig.queue.tick(Instant::now()).unwrap();
    assert_eq!(rig.interval(), 1000);
}

#[test]
fn without_a_throttle_no_traffic_makes_one() {
    let mut rig = Rig::new(Throttle::Off);
    (0..300).for_each(|_| rig.burst(4));
    assert_eq!(rig.interval(), 0);
}

#[test]
fn an_adaptive_throttle_begins_at_none_and_tries_a_longer_one() {
    let mut rig = Rig::new(Throttle::Adaptive);
    assert_eq!(rig.interval(), 0);
    rig.bursts_until(|interval| interval > 0);
}

#[test]
fn an_adaptive_throttle_does_not_keep_what_gathers_no_more() {
    // Each burst waits for the one before: a longer interval only delays it.
    let mut rig = Rig::new(Throttle::Adaptive);
    rig.bursts_until(|interval| interval > 0);
    rig.bursts_until(|interval| interval == 0);
}

#[test]
fn an_adaptive_throttle_begins_anew_after_a_reset() {
    let mut rig = Rig::new(Throttle::Adaptive);
    rig.bursts_until(|interval| interval > 0);
    rig.bar.write32(general::CONTROL.offset(), Control(0).with_reset(1).0);
    rig.queue.tick(Instant::now()).unwrap();
    assert_eq!(rig.interval(), 0);
    rig.bursts_until(|interval| interval > 0);
}

#[test]
fn an_interval_that_the_last_process_has_left_ends_with_the_first_sample_of_the_next() {
    let mut rig = Rig::new(Throttle::Adaptive);
    rig.bursts_until(|interval| interval > 0);
    let (queue, card) =
        (through_json(&rig.queue.detach().unwrap()), through_json(&rig.nic.detach().unwrap()));
    let Rig { handle, bar, nic, device, queue: detached } = rig;
    drop((detached, nic));
    let device = Successor::of(&device);
    let nic = E1000::resume(device.clone(), None, &card).unwrap();
    let queue = nic.resume_queues(from_ref(&queue)).unwrap().remove(0);
    let mut rig = Rig { handle, bar, queue, nic, device };
    assert!(rig.interval() > 0, "it was reset");
    rig.bursts_until(|interval| interval == 0);
}

#[test]
fn a_driver_without_throttles_refuses_one() {
    let card: Arc<dyn Device> = Arc::new(
        ring3_model::virtio::net::open(&"sim:virtio-net".parse().unwrap(), MEMORY).unwrap(),
    );
    let disk: Arc<dyn Device> =
        Arc::new(ring3_model::nvme::open(&"sim:nvme".parse().unwrap(), MEMORY).unwrap());
    for device in [card, disk] {
        let settings = Settings {
            throttle: Some(Throttle::Off),
            interrupts: Interrupts::Polled,
            ..Settings::default()
        };
        let error = Driver::open(device, None, &settings).err().expect("it was taken").to_string();
        assert!(error.contains("--throttle") && error.contains("leave it out"), "{error}");
    }
}
