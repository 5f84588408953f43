//! The suite that every network card passes, on the driver of the 82574L over each backend that needs no guest.

mod served;

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_class::net::Nic;
use ring3_conformance::net::{self as conformance, Peer, Report, Wire};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::e1000::{E1000, Options};
use ring3_model::e1000::{self as sim, E1000Handle};

const MEMORY: OpenOptions = OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };

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
    assert_eq!((handle.complaints(), handle.faults()), (vec![], vec![]));
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
fn a_card_that_sends_late_conforms() {
    conforms(",delay=200us,ready=1ms", Options::default());
}

#[test]
fn the_card_behind_a_socket_conforms_with_another_one_at_its_cable() {
    served::served("sim:e1000,wire=cable/socket", |uri| {
        let peer: Arc<dyn Device> =
            Arc::new(sim::open(&"sim:e1000,wire=cable/socket,mac=52:54:00:12:34:57".parse().unwrap(), MEMORY).unwrap());
        let peer = E1000::open(peer, Options::default()).unwrap();
        let card = E1000::open(ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap(), Options::default()).unwrap();
        passes(&conformance::run(&card, &mut Peer::new(&peer, None).unwrap(), &suite(300)));
    });
}

/// The end of the wire of a card of QEMU's.
struct Socket {
    socket: UnixDatagram,
    card: PathBuf,
}

impl Wire for Socket {
    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        // QEMU leaves frames in the socket while its card has no buffers: what does not fit there is lost on the wire.
        match self.socket.send_to(frame, &self.card) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                Err(Error::Invalid(format!("sending to QEMU's card: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        let mut frame = vec![0; 65536];
        self.socket.set_read_timeout(Some(deadline.remaining().max(Duration::from_millis(1)))).unwrap();
        Ok(self.socket.recv(&mut frame).ok().map(|len| frame[..len].to_vec()))
    }
}

#[test]
fn qemus_card_conforms() {
    for how in [Options::default(), by(Interrupts::Only(IrqKind::Intx))] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let uri = format!("qtest:e1000e,wire={}", path.display());
        let card = E1000::open(ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap(), how).unwrap();
        let mut wire = Socket { socket, card: folder.path().join("w.card") };
        let report = conformance::run(&card, &mut wire, &conformance::Options { patience: Duration::from_secs(5), ..suite(100) });
        // The one that QEMU's card cannot pass: it never loses a frame, as it takes none from the socket without a buffer.
        let failed: Vec<_> = report.failures().map(|finding| finding.name).collect();
        assert!(failed.iter().all(|name| name.contains("without a buffer")), "{report}");
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
