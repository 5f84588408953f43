//! A client that drives the simulated card register by register: enough to see what the model does,
//! and no more.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Bar, Device, OpenOptions, Uri};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::general::{self, Control, ControlExtended, ExpressControl, Mdi};
use ring3_spec::e1000::interrupt::{self, Causes, Vectors};
use ring3_spec::e1000::receive::{self, Extended};
use ring3_spec::e1000::transmit::{self, Arbitration, Context, ContextPlaces, Data, command};
use ring3_spec::e1000::{BAR, nvm};
use ring3_spec::register::{Reg, Value};

/// Descriptors of each ring.
pub const RING: u32 = 16;
/// Bytes of each receive buffer.
pub const BUFFER: usize = 2048;
pub const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];
pub const OTHER: [u8; 6] = [0x02, 0, 0, 0, 0, 9];

/// A card, its rings and their memory.
pub struct Client {
    pub device: Arc<dyn Device>,
    handle: Option<E1000Handle>,
    pub bar: Bar,
    pub irqs: Vec<Irq>,
    rx_ring: DmaBuffer,
    rx_data: DmaBuffer,
    tx_ring: DmaBuffer,
    pub tx_data: DmaBuffer,
    /// The next descriptor to be looked at.
    rx_next: u32,
    tx_next: u32,
}

/// A frame of `len` bytes with a payload that counts.
pub fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let head = [&to[..], &from[..], &[0x88, 0xb5]].concat();
    head.into_iter().chain((0..).map(|i: usize| i as u8)).take(len).collect()
}

/// A TCP segment over IPv4 with `payload` bytes; its IP checksum is right, the TCP checksum holds
/// what `sum` says.
pub fn tcp(payload: usize, sum: u16) -> Vec<u8> {
    let mut frame = [&MAC[..], &OTHER[..], &[8, 0]].concat();
    let total = (40 + payload) as u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum_ip = !ones(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum_ip.to_be_bytes());
    frame.extend([0x10, 0x01, 0x20, 0x02, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 0x19, 0x01, 0]);
    frame.extend(sum.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

/// The folded ones' complement sum.
pub fn ones(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What the pseudo header of `frame`, TCP over IPv4, sums to with `length` in it.
pub fn pseudo(frame: &[u8], length: u16) -> u16 {
    ones(&[&frame[26..34], &[0, 6], &length.to_be_bytes()[..]].concat())
}

/// Whether the TCP checksum of an IPv4 frame is right.
pub fn is_sound(frame: &[u8]) -> bool {
    let length = (frame.len() - 34) as u16;
    let sum = ones(&[&pseudo(frame, length).to_be_bytes()[..], &frame[34..]].concat());
    sum == 0xffff && ones(&frame[14..34]) == 0xffff
}

impl Client {
    pub fn open(uri: &str) -> Self {
        let uri: Uri = uri.parse().unwrap();
        let options = OpenOptions { arena: 1 << 20, ..OpenOptions::default() };
        let (device, handle): (Arc<dyn Device>, _) = if uri.scheme == "sim" {
            let device = sim::open(&uri, options).unwrap();
            let handle = device.handle();
            (Arc::new(device), Some(handle))
        } else {
            (ring3_backend::open(&uri, options).unwrap(), None)
        };
        device.set_bus_master(true).unwrap();
        let pages = |bytes| device.dma().arena().alloc_pages(bytes).unwrap();
        let (rx_ring, rx_data) = (pages(4096), pages(RING as usize * BUFFER));
        let (tx_ring, tx_data) = (pages(4096), pages(128 << 10));
        let bar = device.bar(BAR).unwrap();
        Self {
            device,
            handle,
            bar,
            irqs: Vec::new(),
            rx_ring,
            rx_data,
            tx_ring,
            tx_data,
            rx_next: 0,
            tx_next: 0,
        }
    }

    /// With both directions running and its link up.
    pub fn running(uri: &str) -> Self {
        let mut client = Self::open(uri);
        client.start();
        client
    }

    pub fn handle(&self) -> &E1000Handle {
        self.handle.as_ref().expect("the simulated card")
    }

    pub fn get<T: Value<Raw = u32>, A>(&self, register: Reg<T, A>) -> T {
        T::from_raw(self.bar.read32(register.offset()))
    }

    pub fn set<T: Value<Raw = u32>, A>(&self, register: Reg<T, A>, value: T) {
        self.bar.write32(register.offset(), value.into_raw());
    }

    pub fn wait_for(&self, ready: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !ready(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn reset(&self) {
        self.set(general::CONTROL, self.get(general::CONTROL).with_reset(1));
        self.wait_for(|client| client.get(general::CONTROL).reset() == 0);
    }

    pub fn start(&mut self) {
        self.reset();
        self.set(
            general::CONTROL,
            Control(0).with_full_duplex(1).with_link_up(1).with_auto_speed(1),
        );
        self.wait_for(|client| client.get(general::STATUS).link() != 0);
        self.set(receive::FILTER_CONTROL, receive::FilterControl(0).with_extended(1));
        self.set(receive::CHECKSUM, receive::Checksum(0).with_ip(1).with_transport(1).with_hash(1));
        let (rx, tx) = (self.rx_ring.iova(), self.tx_ring.iova());
        self.set(receive::ring_low(0), rx as u32);
        self.set(receive::ring_high(0), (rx >> 32) as u32);
        self.set(receive::ring_bytes(0), RING * 16);
        self.set(transmit::ring_low(0), tx as u32);
        self.set(transmit::ring_high(0), (tx >> 32) as u32);
        self.set(transmit::ring_bytes(0), RING * 16);
        (self.rx_next, self.tx_next) = (0, 0);
        self.set(
            receive::CONTROL,
            receive::Control(0).with_enable(1).with_broadcast(1).with_strip_fcs(1),
        );
        let express = general::ExpressControl2(0).with_keep_completions(1);
        self.set(general::EXPRESS_CONTROL2, express);
        self.set(general::EXPRESS_CONTROL, ExpressControl(0).with_reserved_one(1));
        // It also enables the queue.
        let arbitration = Arbitration(self.bar.read32(transmit::arbitration(0).offset()));
        self.set(transmit::arbitration(0), arbitration.with_reserved_one(1));
        self.set(general::CONTROL_EXTENDED, ControlExtended(0).with_reserved_one(1));
        let control = receive::DescriptorControl(0).with_granularity(1).with_count(1);
        (0..2).for_each(|queue| self.set(transmit::descriptor_control(queue), control));
        self.set(transmit::CONTROL, transmit::Control(0).with_enable(1).with_pad(1));
        self.provide(RING - 1);
    }

    /// The first `count` receive descriptors are the card's.
    pub fn provide(&self, count: u32) {
        for index in 0..count {
            self.arm(index);
        }
        self.set(receive::tail(0), count);
    }

    fn arm(&self, index: u32) {
        let words = [self.rx_data.iova() + u64::from(index) * BUFFER as u64, 0];
        for (word, value) in words.into_iter().enumerate() {
            self.rx_ring.write(index as usize * 16 + word * 8, &value.to_le_bytes()).unwrap();
        }
    }

    fn word(ring: &DmaBuffer, index: u32, word: usize) -> u64 {
        let mut bytes = [0; 8];
        ring.read(index as usize * 16 + word * 8, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// The next received descriptor and its bytes; the descriptor goes back to the card.
    pub fn receive(&mut self) -> Option<(Extended, Vec<u8>)> {
        let index = self.rx_next % RING;
        let word = Extended(Self::word(&self.rx_ring, index, 1));
        if word.status() & receive::status::DONE == 0 {
            return None;
        }
        let mut bytes = vec![0; (word.length() as usize).min(BUFFER)];
        self.rx_data.read(index as usize * BUFFER, &mut bytes).unwrap();
        self.arm((index + RING - 1) % RING);
        self.rx_next += 1;
        self.set(receive::tail(0), index);
        Some((word, bytes))
    }

    /// As [`receive`](Self::receive), waiting for it.
    pub fn await_frame(&mut self) -> (Extended, Vec<u8>) {
        let start = Instant::now();
        loop {
            if let Some(got) = self.receive() {
                return got;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no frame comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn push(&mut self, words: [u64; 2]) {
        let index = self.tx_next % RING;
        for (word, value) in words.into_iter().enumerate() {
            self.tx_ring.write(index as usize * 16 + word * 8, &value.to_le_bytes()).unwrap();
        }
        self.tx_next += 1;
    }

    pub fn ring(&self) {
        self.set(transmit::tail(0), self.tx_next % RING);
    }

    /// Whether the descriptor that was pushed last is done.
    pub fn is_sent(&self) -> bool {
        Data(Self::word(&self.tx_ring, (self.tx_next + RING - 1) % RING, 1)).done() != 0
    }

    /// Sends a frame by one data descriptor, changed by `with`.
    pub fn send(&mut self, frame: &[u8], with: impl Fn(Data) -> Data) {
        self.tx_data.write(0, frame).unwrap();
        let command = command::END | command::FCS | command::REPORT | command::EXTENDED;
        let data =
            Data(0).with_length(frame.len() as u64).with_kind(Data::TYPE).with_command(command);
        self.push([self.tx_data.iova(), with(data).0]);
        self.ring();
    }

    /// A context for TCP over IPv4 without a tag.
    pub fn context(&mut self, context: Context) {
        let places = ContextPlaces(0).with_ip_start(14).with_ip_offset(24).with_ip_end(33);
        let places = places.with_transport_start(34).with_transport_offset(50);
        self.push([places.0, context.with_tcp(1).with_ipv4(1).with_extended(1).0]);
    }

    /// NVM and PHY are the driver's until the next reset.
    fn own(&self) {
        let owned = general::ExtendedConfiguration(0).with_software_owns(1);
        self.set(general::EXTENDED_CONFIGURATION, owned);
    }

    pub fn nvm(&self, word: u16) -> u16 {
        self.own();
        self.set(general::NVM_READ, nvm::Read(0).with_start(1).with_address(word.into()).0);
        self.wait_for(|client| nvm::Read(client.get(general::NVM_READ)).done() != 0);
        nvm::Read(self.get(general::NVM_READ)).data() as u16
    }

    pub fn phy(&self, register: u8) -> Mdi {
        self.own();
        let access =
            Mdi(0).with_phy(Mdi::INTERNAL).with_register(register.into()).with_operation(Mdi::READ);
        self.set(general::MDI, access);
        self.wait_for(|client| client.get(general::MDI).ready() != 0);
        self.get(general::MDI)
    }

    /// Enables vectors 0 for reception, 1 for transmission, 2 for the rest.
    pub fn vectors(&mut self) {
        self.irqs = self.device.irqs(IrqKind::MsiX, 3).unwrap();
        self.irqs.iter().for_each(|irq| irq.unmask().unwrap());
        let vector = |number: u32| Vectors::VALID | number;
        let vectors =
            Vectors(0).with_receive0(vector(0)).with_transmit0(vector(1)).with_other(vector(2));
        self.set(interrupt::VECTORS, vectors.with_each_write_back(1));
        let extended = ControlExtended(0).with_reserved_one(1).with_pending_clear(1);
        self.set(general::CONTROL_EXTENDED, extended);
        self.set(
            interrupt::AUTO_CLEAR,
            Causes::NONE.with_receive_queues(1).with_transmit_queues(1).with_other(1),
        );
        let causes =
            Causes::NONE.with_receive_queues(1).with_transmit_queues(1).with_other(1).with_link(1);
        self.set(interrupt::MASK_SET, causes);
    }

    pub fn is_blameless(&self) {
        if let Some(handle) = &self.handle {
            assert_eq!((handle.violations(), handle.faults()), (vec![], vec![]));
        }
    }
}
