//! The suite that every network card passes, on the driver of the e1000 family over each backend
//! that needs no guest.

mod served;

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_class::net::{Filter, Mac, Meta, Nic, Packet, Queue, QueueSettings, Throttle};
use ring3_conformance::net::{self as conformance, Peer, Quirks, Report, Wire};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::e1000::{E1000, Options};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::BAR;
use ring3_spec::e1000::general::{self, Control};

const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };

fn by(interrupts: Interrupts) -> Options {
    Options { interrupts, ..Options::default() }
}

fn suite(packets: u32) -> conformance::Options {
    conformance::Options { packets, ..conformance::Options::default() }
}

fn passes(report: &Report) {
    assert!(report.passed(), "{report}");
}

/// A test at the other end of a model's wire.
struct Tester {
    handle: E1000Handle,
    sent: VecDeque<Vec<u8>>,
}

impl Wire for Tester {
    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.handle.inject(frame);
        Ok(())
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        loop {
            self.sent.extend(self.handle.sent());
            if !self.sent.is_empty() || deadline.expired() {
                return Ok(self.sent.pop_front());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn plug(&mut self, plugged: bool) -> bool {
        self.handle.set_link(plugged);
        true
    }
}

/// Runs the suite on `sim:e1000` with `options` of its URI.
fn conforms(options: &str, how: Options) {
    let device = sim::open(&format!("sim:e1000{options}").parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let card = E1000::open(Arc::new(device), how).unwrap();
    let mut wire = Tester { handle: handle.clone(), sent: VecDeque::new() };
    passes(&conformance::run(&card, &mut wire, &suite(1000)));
    drop(card);
    assert_eq!((handle.violations(), handle.faults()), (vec![], vec![]));
}

#[test]
fn the_simulated_card_conforms() {
    conforms("", Options::default());
}

#[test]
fn the_simulated_card_conforms_by_one_message_by_the_pin_and_by_looking() {
    conforms("", by(Interrupts::Only(IrqKind::Msi)));
    conforms(",vectors=0", by(Interrupts::Only(IrqKind::Intx)));
    conforms("", by(Interrupts::Polled));
}

#[test]
fn the_simulated_kin_of_the_82574_conform() {
    conforms(",card=82573l", Options::default());
    conforms(",card=82583v", Options::default());
}

#[test]
fn the_simulated_card_conforms_with_each_throttle() {
    for throttle in [Throttle::Fixed(Duration::from_micros(500)), Throttle::Adaptive] {
        conforms("", Options { throttle, poll: Duration::ZERO, ..Options::default() });
    }
}

#[test]
fn a_card_that_sends_late_conforms() {
    conforms(",delay=200us,ready=1ms", Options::default());
}

#[test]
fn the_card_behind_a_socket_conforms_with_another_one_at_its_cable() {
    served::served("sim:e1000,wire=cable/socket", |uri| {
        let peer: Arc<dyn Device> = Arc::new(
            sim::open(
                &"sim:e1000,wire=cable/socket,mac=52:54:00:12:34:57".parse().unwrap(),
                MEMORY,
            )
            .unwrap(),
        );
        let peer = E1000::open(peer, Options::default()).unwrap();
        let card = E1000::open(
            ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap(),
            Options::default(),
        )
        .unwrap();
        passes(&conformance::run(&card, &mut Peer::new(&peer, None).unwrap(), &suite(300)));
    });
}

/// The end of the wire of a card of QEMU's.
struct Socket {
    socket: UnixDatagram,
    card: PathBuf,
    /// A frame that the card did not take for a second was lost, and none was taken since.
    stalled: bool,
    quirks: Quirks,
}

impl Wire for Socket {
    fn quirks(&self) -> Quirks {
        self.quirks
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        // QEMU leaves frames in the socket while its card takes none: what does not fit there is
        // lost on the wire.
        let patience =
            if self.stalled { Duration::from_millis(20) } else { Duration::from_millis(1500) };
        self.socket.set_write_timeout(Some(patience)).unwrap();
        match self.socket.send_to(frame, &self.card) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                Err(Error::Invalid(format!("sending to QEMU's card: {error}")))
            }
            sent => {
                self.stalled = sent.is_err();
                Ok(())
            }
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        let mut frame = vec![0; 65536];
        self.socket
            .set_read_timeout(Some(deadline.remaining().max(Duration::from_millis(1))))
            .unwrap();
        Ok(self.socket.recv(&mut frame).ok().map(|len| frame[..len].to_vec()))
    }
}

/// A card of QEMU's and the other end of its wire, in a folder that goes with them.
struct Qemu {
    card: E1000,
    device: Arc<dyn Device>,
    wire: Socket,
    _folder: tempfile::TempDir,
}

impl Qemu {
    fn new(model: &str, how: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let socket = UnixDatagram::bind(&path).unwrap();
        let uri = format!("qtest:{model},wire={}", path.display());
        let device = ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap();
        let card = E1000::open(device.clone(), how).unwrap();
        await_link(&card);
        let wire = Socket {
            socket,
            card: folder.path().join("w.card"),
            stalled: false,
            quirks: Quirks::of_qemu(model),
        };
        Self { card, device, wire, _folder: folder }
    }

    fn conforms(mut self, options: conformance::Options) {
        passes(&conformance::run(&self.card, &mut self.wire, &options));
    }
}

fn await_link(card: &E1000) {
    let deadline = Deadline::after(Duration::from_secs(20));
    while !card.link().unwrap().up {
        assert!(!deadline.expired(), "the link does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn patient(packets: u32) -> conformance::Options {
    conformance::Options { patience: Duration::from_secs(5), ..suite(packets) }
}

#[test]
fn qemus_82574_conforms() {
    for how in [Options::default(), by(Interrupts::Only(IrqKind::Intx))] {
        Qemu::new("e1000e", how).conforms(patient(100));
    }
}

#[test]
fn qemus_82540_and_82545_conform() {
    let conforms = |model, how| {
        // QEMU's model takes nothing from the wire for a second after RCTL was written.
        let silence = Duration::from_millis(1500);
        Qemu::new(model, how).conforms(conformance::Options { silence, ..patient(100) });
    };
    // They sleep most of that time, so that both do at once.
    std::thread::scope(|scope| {
        scope.spawn(|| conforms("e1000", Options::default()));
        conforms("e1000-82545em", by(Interrupts::Polled));
    });
}

#[test]
fn qemus_82576_conforms() {
    let throttled =
        Options { throttle: Throttle::Adaptive, poll: Duration::ZERO, ..Options::default() };
    for how in [Options::default(), by(Interrupts::Polled), throttled] {
        Qemu::new("igb", how).conforms(patient(100));
    }
}

/// A segment of TCP over IPv4 for `to` that acknowledges and has no data.
fn acknowledgement(to: [u8; 6]) -> Vec<u8> {
    let mut frame = datagram(to, 1);
    frame[23] = 6;
    frame[24..26].fill(0);
    let sum = !ring3_class::net::sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..].fill(0);
    (frame[46], frame[47]) = (0x50, 0x10);
    ring3_class::net::complete(&mut frame[..60], 34, 16);
    frame
}

#[test]
fn the_links_vector_of_an_82574_does_not_fire_for_tcp_that_is_received() {
    let mut qemu = Qemu::new("e1000e", Options::default());
    let mut queues = open_with_buffers(&qemu, 1);
    let mut watch = qemu.card.link_watch().unwrap();
    watch.arm().unwrap();
    watch.irq().unwrap().take().unwrap();
    let mac = qemu.card.info().mac.0;
    for _ in 0..32 {
        qemu.wire.send(&acknowledgement(mac)).unwrap();
        receiver(&mut queues);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(watch.irq().unwrap().take().unwrap(), 0);
}

/// A datagram of UDP over IPv4 from port `port`, for `to`.
fn datagram(to: [u8; 6], port: u16) -> Vec<u8> {
    let mut frame = [&to[..], &[2, 0, 0, 0, 0, 9, 8, 0]].concat();
    let mut ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum = !ring3_class::net::sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([&port.to_be_bytes()[..], &[0, 7, 0, 26, 0, 0], &[0x5a; 18]].concat());
    frame
}

#[test]
fn an_82576_spreads_flows_over_its_queues_and_each_has_one() {
    let mut qemu = Qemu::new("igb", Options::default());
    let mut queues = open_with_buffers(&qemu, 4);
    let mac = qemu.card.info().mac.0;
    let mut of_flow = [None; 16];
    for round in 0..2 {
        for (flow, of_flow) in (0..).zip(&mut of_flow) {
            qemu.wire.send(&datagram(mac, 1000 + flow)).unwrap();
            let (queue, known) = receiver(&mut queues);
            let hash = known.hash().expect("a packet came to its queue by no hash");
            assert_eq!(
                hash as usize % 128 % 4,
                queue,
                "the hash is not the one by which the queue was chosen"
            );
            assert!(
                round == 0 || *of_flow == Some(queue),
                "flow {flow} went to queue {queue} after {of_flow:?}"
            );
            *of_flow = Some(queue);
        }
    }
    let used = (0..4).filter(|queue| of_flow.contains(&Some(*queue))).count();
    assert!(used > 1, "16 flows came through queues {of_flow:?}");
    each_sends(&mut qemu, &mut queues);
    // One that is dropped stops alone: the rest go on with what they have.
    queues.remove(3);
    assert!(matches!(qemu.card.open_queues(1, &SHORT), Err(Error::Busy(_))));
    each_sends(&mut qemu, &mut queues);
    drop(queues);
    qemu.card.open_queues(2, &SHORT).unwrap();
}

#[test]
fn after_a_reset_behind_the_drivers_back_each_queue_of_an_82576_starts_anew() {
    let mut qemu = Qemu::new("igb", Options::default());
    let mut queues = open_with_buffers(&qemu, 3);
    let bar = qemu.device.bar(BAR).unwrap();
    bar.write32(general::CONTROL.offset(), Control(0).with_reset(1).0);
    // The first that looks resets the card, and the others see that it was reset.
    for queue in &mut queues {
        queue.tick(Instant::now()).unwrap();
        assert_eq!(queue.outstanding(), (SHORT.rx_depth, 0));
    }
    await_link(&qemu.card);
    let mac = qemu.card.info().mac.0;
    (0..8).for_each(|flow| {
        qemu.wire.send(&datagram(mac, 1000 + flow)).unwrap();
        receiver(&mut queues);
    });
    each_sends(&mut qemu, &mut queues);
}

const SHORT: QueueSettings = QueueSettings { rx_depth: 64, tx_depth: 64, mtu: 1500, rx_room: 2048 };

/// Queues that are as full as they can be of buffers to receive into.
fn open_with_buffers(qemu: &Qemu, count: u16) -> Vec<Box<dyn Queue>> {
    let mut queues = qemu.card.open_queues(count, &SHORT).unwrap();
    let depth = SHORT.rx_depth.into();
    for queue in &mut queues {
        let mut batch: Vec<Packet> = (0..depth)
            .map(|_| Packet::new(qemu.card.dma().arena().alloc(2048, 64).unwrap(), 0))
            .collect();
        assert_eq!(queue.rx_provide(&mut batch).count, depth);
    }
    // A register that is read pushes the doorbells out: a frame that comes before them is lost.
    qemu.card.link().unwrap();
    queues
}

/// The queue that has received a packet, within a time, and what is known of that; its buffer goes
/// to the card again.
fn receiver(queues: &mut [Box<dyn Queue>]) -> (usize, Meta) {
    let deadline = Deadline::after(Duration::from_secs(10));
    loop {
        for (number, queue) in queues.iter_mut().enumerate() {
            let mut batch = [Packet::default()];
            if queue.rx_return(&mut batch).unwrap() == 1 {
                let meta = batch[0].meta;
                assert_eq!(queue.rx_provide(&mut batch).count, 1);
                return (number, meta);
            }
        }
        assert!(!deadline.expired(), "nothing comes");
    }
}

/// Each queue sends a packet, which comes out.
fn each_sends(qemu: &mut Qemu, queues: &mut [Box<dyn Queue>]) {
    for (number, queue) in (0..).zip(queues) {
        let mut packet = Packet::new(qemu.card.dma().arena().alloc(2048, 64).unwrap(), 0);
        let frame = datagram([2, 0, 0, 0, 0, 9], number);
        packet.fill(&frame).unwrap();
        assert_eq!(queue.tx_provide(&mut [packet]).count, 1);
        let deadline = Deadline::after(Duration::from_secs(10));
        assert_eq!(qemu.wire.receive(deadline).unwrap(), Some(frame));
        while queue.tx_return(&mut [Packet::default()]).unwrap() == 0 {
            assert!(!deadline.expired(), "it does not come back");
        }
    }
}

#[test]
fn a_change_of_the_filter_loses_no_frame_for_the_cards_own_address_or_another_that_stays() {
    let device = sim::open(&"sim:e1000".parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let card = E1000::open(Arc::new(device), Options::default()).unwrap();
    let settings = QueueSettings { rx_depth: 256, ..SHORT };
    let mut queue = card.open_queues(1, &settings).unwrap().remove(0);
    let mut batch: Vec<Packet> =
        (0..128).map(|_| Packet::new(card.dma().arena().alloc(2048, 64).unwrap(), 0)).collect();
    let own = card.info().mac;
    let [stays, first, second] = [1, 2, 3].map(|last| Mac([2, 0, 0, 0, 7, last]));
    let filter = |unicast: Vec<Mac>| Filter { unicast, ..Filter::own(own) };
    card.set_filter(&filter(vec![stays])).unwrap();
    for round in 0..200 {
        assert_eq!(queue.rx_provide(&mut batch).count, 128, "{round}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..64).for_each(|_| {
                    [own, stays].iter().for_each(|to| handle.inject(&datagram(to.0, 1)))
                })
            });
            for _ in 0..4 {
                card.set_filter(&filter(vec![first, stays])).unwrap();
                card.set_filter(&filter(vec![second, first, stays])).unwrap();
                card.set_filter(&filter(vec![stays])).unwrap();
            }
        });
        assert_eq!(
            queue.rx_return(&mut batch).unwrap(),
            128,
            "frames came through in round {round}"
        );
    }
}

#[test]
fn the_card_says_what_it_is() {
    let device = sim::open(&"sim:e1000,mac=02:00:00:00:00:07".parse().unwrap(), MEMORY).unwrap();
    let card = E1000::open(Arc::new(device), Options::default()).unwrap();
    assert_eq!(card.info().mac.to_string(), "02:00:00:00:00:07");
    let link = card.link().unwrap();
    assert_eq!((link.up, link.speed, link.full_duplex), (true, Some(1000), Some(true)));
}
