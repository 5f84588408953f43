//! What the driver of the 82574L does when its card does something wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_class::net::{Counters, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Bar, Device, Error};
use ring3_driver::e1000::{E1000, Options};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::{BAR, receive, transmit};

const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };
const PATIENCE: Duration = Duration::from_secs(20);

/// A card with an open queue and 32 buffers to receive into.
struct Rig {
    handle: E1000Handle,
    bar: Bar,
    queue: Box<dyn Queue>,
    nic: E1000,
}

fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0x52, 0x54, 0x00, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 9, 0x88, 0xb5];
    frame.resize(100, number);
    frame
}

impl Rig {
    fn new(options: &str) -> Self {
        let device = sim::open(&format!("sim:e1000{options}").parse().unwrap(), MEMORY).unwrap();
        let (handle, bar) = (device.handle(), device.bar(BAR).unwrap());
        let options = Options { hang: Duration::from_millis(200), ..Options::default() };
        let nic = E1000::open(Arc::new(device), options).unwrap();
        let settings = QueueSettings { rx_depth: 32, tx_depth: 32, ..QueueSettings::default() };
        let mut queue = nic.open_queues(1, &settings).unwrap().remove(0);
        let mut batch: Vec<Packet> = (0..32).map(|_| buffer(&nic)).collect();
        assert_eq!(queue.rx_provide(&mut batch).count, 32);
        Self { handle, bar, queue, nic }
    }

    /// The card writes `word` over the second word of descriptor `slot` of the ring whose registers
    /// these are.
    fn write_back(&self, low: u64, high: u64, slot: u64, word: u64) {
        let ring = u64::from(self.bar.read32(low)) | u64::from(self.bar.read32(high)) << 32;
        self.handle.with(|_, bus| bus.write(ring + slot * 16 + 8, &word.to_le_bytes()).unwrap());
    }

    fn write_received(&self, slot: u64, word: u64) {
        self.write_back(receive::ring_low(0).offset(), receive::ring_high(0).offset(), slot, word);
    }

    fn write_sent(&self, slot: u64, word: u64) {
        self.write_back(
            transmit::ring_low(0).offset(),
            transmit::ring_high(0).offset(),
            slot,
            word,
        );
    }

    fn send(&mut self, number: u8) {
        let mut packet = Packet { token: number.into(), ..buffer(&self.nic) };
        packet.fill(&frame(number)).unwrap();
        assert_eq!(self.queue.tx_provide(&mut [packet]).count, 1);
    }

    /// Time passes until `done`, or the card is given up.
    fn pass(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come");
            self.queue.tick(Instant::now())?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The numbers of the packets that came; their buffers go to the card again.
    fn receive(&mut self) -> Vec<u8> {
        let mut batch: [Packet; 32] = Default::default();
        let count = self.queue.rx_return(&mut batch).unwrap();
        let numbers = batch[..count].iter().map(|packet| {
            let mut byte = [0];
            packet.read(packet.len - 1, &mut byte).unwrap();
            byte[0]
        });
        let numbers = numbers.collect();
        assert_eq!(self.queue.rx_provide(&mut batch[..count]).count, count);
        numbers
    }

    /// The tokens of the packets that were sent, or not.
    fn returned(&mut self) -> Vec<u32> {
        let mut batch: [Packet; 32] = Default::default();
        let count = self.queue.tx_return(&mut batch).unwrap();
        batch[..count].iter().map(|packet| packet.token).collect()
    }

    fn counters(&self) -> Counters {
        self.queue.counters()
    }

    /// Both directions work.
    fn works(&mut self) {
        self.handle.sent();
        self.send(77);
        assert_eq!((self.returned(), self.handle.sent().len()), (vec![77], 1));
        self.handle.inject(&frame(78));
        assert_eq!(self.receive(), [78]);
        assert_eq!(self.handle.violations(), Vec::<String>::new());
    }
}

fn buffer(nic: &E1000) -> Packet {
    Packet::new(nic.dma().arena().alloc(2048, 64).unwrap(), 0)
}

#[test]
fn a_transmitter_that_hangs_is_reset_and_what_it_had_comes_back_as_lost() {
    let mut rig = Rig::new(",fault=hang:send:2");
    (1..=3).for_each(|number| rig.send(number));
    assert_eq!(rig.returned(), [1]);
    let resets = rig.handle.counters().resets;
    rig.pass(|rig| rig.handle.counters().resets > resets).unwrap();
    assert_eq!((rig.returned(), rig.queue.outstanding()), (vec![2, 3], (32, 0)));
    assert_eq!((rig.counters().tx_packets, rig.counters().tx_lost), (1, 2));
    rig.works();
}

#[test]
fn a_send_that_is_never_written_back_is_taken_back_by_a_reset() {
    let mut rig = Rig::new(",fault=drop:send");
    rig.send(1);
    assert!(rig.returned().is_empty());
    rig.pass(|rig| rig.counters().tx_lost == 1).unwrap();
    assert_eq!(rig.returned(), [1]);
    rig.works();
}

#[test]
fn a_receiver_that_leaves_a_descriptor_behind_is_reset_and_keeps_its_buffers() {
    let mut rig = Rig::new(",fault=drop:receive");
    (1..=3).for_each(|number| rig.handle.inject(&frame(number)));
    assert!(rig.receive().is_empty());
    let resets = rig.handle.counters().resets;
    rig.pass(|rig| rig.handle.counters().resets > resets).unwrap();
    assert_eq!(rig.queue.outstanding(), (32, 0));
    rig.works();
}

#[test]
fn a_write_back_that_cannot_be_is_an_error_and_its_buffer_goes_to_the_card_again() {
    for fault in ["wrong-length/0x4000", "garbage"] {
        let mut rig = Rig::new(&format!(",fault={fault}:receive"));
        rig.handle.inject(&frame(1));
        let error = rig.queue.rx_return(&mut [Packet::default()]).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        assert_eq!((rig.counters().rx_errors, rig.queue.outstanding()), (1, (32, 0)));
        rig.works();
    }
}

#[test]
fn a_descriptor_of_all_ones_is_a_damaged_packet_and_its_buffer_goes_to_the_card_again() {
    let mut rig = Rig::new("");
    rig.write_received(0, u64::MAX);
    let returned = rig.queue.rx_return(&mut [Packet::default()]);
    assert!(matches!(returned, Ok(0) | Err(Error::Protocol(_))), "{returned:?}");
    assert_eq!((rig.counters().rx_errors, rig.queue.outstanding()), (1, (32, 0)));
}

#[test]
fn a_descriptor_that_is_done_and_was_never_the_cards_is_nothing() {
    let mut rig = Rig::new("");
    let done = receive::status::DONE | receive::status::END | 100 << 32;
    (32..64).for_each(|slot| rig.write_received(slot, done));
    (0..8).for_each(|slot| rig.write_sent(slot, u64::MAX));
    assert!(!rig.queue.pending());
    assert_eq!((rig.receive(), rig.returned()), (vec![], vec![]));
    assert_eq!((rig.counters(), rig.queue.outstanding()), (Counters::default(), (32, 0)));
    rig.works();
}

#[test]
fn an_empty_packet_and_one_longer_than_its_buffer_are_errors() {
    for length in [0u64, 13, 2049, 0xffff] {
        let mut rig = Rig::new("");
        rig.write_received(0, receive::status::DONE | receive::status::END | length << 32);
        let error = rig.queue.rx_return(&mut [Packet::default()]).unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{length}: {error}");
        assert_eq!((rig.counters().rx_errors, rig.queue.outstanding()), (1, (32, 0)));
    }
}

#[test]
fn pieces_without_an_end_are_no_more_than_a_packet_can_be() {
    let mut rig = Rig::new("");
    let endless = receive::status::DONE | 2048 << 32;
    (0..32).for_each(|slot| rig.write_received(slot, endless));
    for _ in 0..64 {
        let _ = rig.queue.rx_return(&mut [Packet::default()]);
    }
    assert_eq!((rig.counters().rx_packets, rig.queue.outstanding()), (0, (32, 0)));
}

#[test]
fn what_came_before_a_write_back_that_cannot_be_is_returned_first() {
    let mut rig = Rig::new(",fault=garbage:receive:2");
    (1..=3).for_each(|number| rig.handle.inject(&frame(number)));
    assert_eq!(rig.receive(), [1]);
    assert!(rig.queue.rx_return(&mut [Packet::default()]).is_err());
    assert_eq!(rig.receive(), [3]);
}

#[test]
fn a_send_whose_write_back_is_garbage_is_done() {
    let mut rig = Rig::new(",fault=garbage:send");
    rig.send(1);
    assert_eq!(rig.returned(), [1]);
    rig.works();
}

#[test]
fn a_card_that_was_reset_behind_the_drivers_back_is_started_again() {
    let mut rig = Rig::new("");
    rig.handle.reset_function();
    rig.send(1);
    let resets = rig.handle.counters().resets;
    rig.pass(|rig| rig.handle.counters().resets > resets).unwrap();
    assert_eq!(rig.returned(), [1]);
    rig.works();
}

#[test]
fn without_a_link_packets_are_lost_and_come_back_and_with_it_they_are_sent() {
    let mut rig = Rig::new("");
    rig.handle.set_link(false);
    rig.send(1);
    rig.pass(|rig| rig.counters().tx_lost == 1).unwrap();
    rig.send(2);
    assert_eq!(
        (rig.returned(), rig.counters().tx_lost, rig.queue.outstanding().1),
        (vec![1, 2], 2, 0)
    );
    assert!(!rig.nic.link().unwrap().up);
    rig.handle.set_link(true);
    assert!(rig.nic.link().unwrap().up);
    rig.works();
}

#[test]
fn a_lost_interrupt_is_found_at_the_deadline() {
    let mut rig = Rig::new(",fault=lose-interrupt:receive");
    rig.handle.inject(&frame(1));
    assert!(rig.queue.wait(ring3_device::Deadline::after(Duration::from_millis(50))).unwrap());
    assert_eq!(rig.receive(), [1]);
}

#[test]
fn a_storm_of_interrupts_is_survived() {
    let mut rig = Rig::new(",fault=storm:receive");
    rig.handle.inject(&frame(1));
    assert_eq!(rig.receive(), [1]);
    assert!(!rig.queue.wait(ring3_device::Deadline::after(Duration::from_millis(20))).unwrap());
    rig.works();
}

#[test]
fn a_card_that_is_gone_is_said_to_be_and_its_buffers_return() {
    let mut rig = Rig::new("");
    let free = rig.nic.dma().arena().free_bytes();
    rig.handle.remove();
    let start = Instant::now();
    let gone = rig.pass(|_| start.elapsed() > PATIENCE);
    assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
    assert!(matches!(rig.nic.link(), Err(Error::Gone)) && rig.queue.pending());
    assert!(matches!(rig.queue.rx_return(&mut [Packet::default()]), Err(Error::Gone)));
    let Rig { queue, nic, .. } = rig;
    drop(queue);
    assert!(nic.dma().arena().free_bytes() > free);
}

#[test]
fn a_card_that_does_not_reset_is_stopped_by_its_function() {
    let device = sim::open(&"sim:e1000,fault=stuck-ready".parse().unwrap(), MEMORY).unwrap();
    // The function's reset has ended it; the second opening finds a card that obeys.
    let handle = device.handle();
    let first = E1000::open(Arc::new(device), Options::default());
    drop(first);
    let device = handle.claim().unwrap();
    E1000::open(Arc::new(device), Options::default()).unwrap();
}

#[test]
fn a_damaged_nvm_is_refused_with_what_to_do() {
    let device = sim::open(&"sim:e1000,nvm=bad".parse().unwrap(), MEMORY).unwrap();
    let error = E1000::open(Arc::new(device), Options::default()).err().unwrap().to_string();
    assert!(error.contains("NVM is damaged") && error.contains("write it again"), "{error}");
}

/// The address of the card `options`, and the rules that its opening has broken.
fn opened(options: &str) -> (String, Vec<String>) {
    let device = sim::open(&format!("sim:e1000,{options}").parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let nic = E1000::open(Arc::new(device), Options::default()).unwrap();
    (nic.info().mac.to_string(), handle.violations())
}

#[test]
fn each_port_of_a_card_has_its_own_address() {
    assert_eq!(opened("port=0").0, "52:54:00:12:34:56");
    assert_eq!(opened("port=1").0, "52:54:00:12:34:57");
}

#[test]
fn an_nvm_that_reads_wrongly_once_is_read_again() {
    assert_eq!(opened("nvm=flaky").0, "52:54:00:12:34:56");
}

#[test]
fn firmware_that_has_nvm_and_phy_is_waited_for() {
    let start = Instant::now();
    assert_eq!(opened("firmware=60ms").1, Vec::<String>::new());
    assert!(start.elapsed() >= Duration::from_millis(60));
}

#[test]
fn firmware_that_never_gives_nvm_and_phy_back_does_not_keep_the_card() {
    let (address, broken) = opened("firmware=60s");
    assert_eq!(address, "52:54:00:12:34:56");
    assert!(broken.iter().any(|rule| rule.contains("MDIO_SW")), "{broken:?}");
}

#[test]
fn the_registry_finds_the_card_by_its_ids() {
    let device = Arc::new(sim::open(&"sim:e1000".parse().unwrap(), MEMORY).unwrap());
    assert_eq!(Driver::of(&*device, None).unwrap().name, "e1000");
    let opened = Driver::open(device, None, &Settings::default()).unwrap();
    assert!(matches!(&opened.offers[..], [Offer::Nic(nic)] if nic.info().model == "82574L"));
}
