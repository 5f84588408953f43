//! The suite that every network card passes, on the driver of virtio cards over each backend that
//! needs no guest, with both layouts of virtqueues.

mod served;

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_class::net::Nic as _;
use ring3_conformance::net::{self as conformance, Peer, Quirks, Report, Wire};
use ring3_device::{Deadline, Device, Error, poll_until};
use ring3_driver::Interrupts;
use ring3_driver::e1000::E1000;
use ring3_driver::registry::{DRIVERS, Driver, Settings};
use ring3_driver::virtio::Layout;
use ring3_driver::virtio::net::{Card, Options};
use ring3_lease::Quiesce;
use ring3_model::virtio::net::{VirtioNetHandle, open};

const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };

fn suite(packets: u32) -> conformance::Options {
    conformance::Options {
        packets,
        silence: Duration::from_millis(2),
        ..conformance::Options::default()
    }
}

fn passes(report: &Report) {
    assert!(report.passed(), "{report}");
}

/// The wire of a model, and the options that the card was made with.
struct Port(VirtioNetHandle, VecDeque<Vec<u8>>, String);

impl Wire for Port {
    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.0.send(frame);
        Ok(())
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        let Self(handle, sent, _) = self;
        let next = || {
            sent.extend(handle.sent());
            Ok(sent.pop_front())
        };
        match poll_until(deadline, "a frame", next) {
            Err(Error::Timeout { .. }) => Ok(None),
            frame => frame.map(Some),
        }
    }

    fn plug(&mut self, plugged: bool) -> bool {
        // Nobody sees it at a card that does not say how its link is.
        let seen = !self.2.contains("status=off");
        if seen {
            self.0.plug(plugged);
        }
        seen
    }

    fn quirks(&self) -> Quirks {
        Quirks { keeps_address: self.2.contains("ctrl_mac_addr=off"), ..Quirks::default() }
    }
}

/// Runs the suite on `sim:virtio-net` with `options` of its URI.
fn conforms(options: &str, how: Options) {
    conforms_but(options, how, 3);
}

/// The same of a card that cannot show `skipped` of the checks.
fn conforms_but(options: &str, how: Options, skipped: usize) {
    let device = open(&format!("sim:virtio-net{options}").parse().unwrap(), MEMORY).unwrap();
    let handle = device.handle();
    let card = Card::open(Arc::new(device), how).unwrap();
    let mut port = Port(handle.clone(), VecDeque::new(), options.into());
    let report = conformance::run(&card, &mut port, &suite(640));
    passes(&report);
    // Missed packets are not counted by a card, and VLANs are left to the user.
    assert_eq!(report.skipped(), skipped, "{report}");
    assert_eq!(handle.fault_count(), 0, "{:?}", handle.faults());
}

#[test]
fn the_simulated_card_conforms_with_interrupts_and_without() {
    conforms("", Options::default());
    conforms("", Options { interrupts: Interrupts::Polled, ..Options::default() });
}

/// Each feature that a card may lack, and how many checks such a card cannot show.
const WITHOUT: [(&str, usize); 10] = [
    ("mrg_rxbuf", 4),
    ("csum", 5),
    ("guest_csum", 3),
    ("host_tso4", 4),
    ("status", 4),
    ("ctrl_vq", 7),
    ("ctrl_rx", 7),
    ("ctrl_mac_addr", 4),
    ("events", 3),
    ("packed", 3),
];

#[test]
fn a_card_that_lacks_any_one_feature_conforms_with_one_pair_of_queues_and_with_four() {
    for (feature, skipped) in WITHOUT {
        for more in ["", ",packed=on", ",queues=4"]
            .into_iter()
            .filter(|more| feature != "packed" || !more.contains("packed"))
        {
            println!("{feature}=off{more}");
            conforms_but(&format!(",{feature}=off{more}"), Options::default(), skipped);
        }
    }
}

#[test]
fn packed_virtqueues_conform_and_are_left_alone_if_nobody_wants_them() {
    conforms(",packed=on", Options::default());
    conforms(
        ",packed=on",
        Options { layout: Layout::Split, interrupts: Interrupts::Polled, ..Options::default() },
    );
}

#[test]
fn a_card_with_split_virtqueues_that_is_told_by_flags_alone_conforms() {
    conforms(",events=off", Options::default());
}

#[test]
fn a_card_with_four_pairs_of_queues_conforms_by_one_of_them() {
    for packed in ["off", "on"] {
        conforms(&format!(",queues=4,packed={packed}"), Options::default());
    }
}

#[test]
fn a_card_whose_structures_lie_in_four_bars_conforms() {
    conforms(",structures=apart", Options::default());
}

#[test]
fn a_card_behind_a_socket_conforms_with_another_one_at_its_cable() {
    for packed in ["off", "on"] {
        let name = format!("sim:virtio-net,wire=cable/virtio-{packed},packed={packed}");
        served::served(&name, |uri| {
            let peer = Arc::new(
                open(&format!("{name},mac=52:54:00:12:34:57").parse().unwrap(), MEMORY).unwrap(),
            );
            let peer = Card::open(peer, Options::default()).unwrap();
            let card = ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap();
            let card = Card::open(card, Options::default()).unwrap();
            passes(&conformance::run(&card, &mut Peer::new(&peer, None).unwrap(), &suite(300)));
        });
    }
}

#[test]
fn a_card_and_one_of_another_kind_on_one_cable_conform_either_way() {
    let e1000 = ring3_model::e1000::open(
        &"sim:e1000,wire=cable/mixed,mac=02:00:00:00:00:01".parse().unwrap(),
        MEMORY,
    )
    .unwrap();
    let virtio =
        open(&"sim:virtio-net,wire=cable/mixed,mac=02:00:00:00:00:02".parse().unwrap(), MEMORY)
            .unwrap();
    let e1000 = E1000::open(Arc::new(e1000) as Arc<dyn Device>, Default::default()).unwrap();
    let virtio = Card::open(Arc::new(virtio), Options::default()).unwrap();
    passes(&conformance::run(&virtio, &mut Peer::new(&e1000, None).unwrap(), &suite(300)));
    passes(&conformance::run(&e1000, &mut Peer::new(&virtio, None).unwrap(), &suite(300)));
}

#[test]
fn two_cards_on_a_cable_hear_of_each_others_end() {
    let end = |mac: &str| {
        let uri = format!("sim:virtio-net,wire=cable/ends,mac={mac}");
        Card::open(Arc::new(open(&uri.parse().unwrap(), MEMORY).unwrap()), Options::default())
            .unwrap()
    };
    let (card, other) = (end("02:00:00:00:00:01"), end("02:00:00:00:00:02"));
    let mut watch = card.link_watch().unwrap();
    assert!(card.link().unwrap().up);
    drop(other);
    assert!(watch.wait(Deadline::after(Duration::from_secs(5))).unwrap());
    assert!(!card.link().unwrap().up);
}

/// The end of the wire of a card of QEMU's, which waits while the socket is full: a thread takes
/// what comes at once.
struct Socket {
    socket: UnixDatagram,
    card: PathBuf,
    came: mpsc::Receiver<Vec<u8>>,
}

impl Socket {
    fn new(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let (reader, (sender, came)) = (socket.try_clone().unwrap(), mpsc::channel());
        std::thread::spawn(move || {
            let mut frame = vec![0; 65536];
            while reader
                .recv(&mut frame)
                .is_ok_and(|len| len > 0 && sender.send(frame[..len].to_vec()).is_ok())
            {
            }
        });
        Self { socket, card: path.with_extension("card"), came }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Ends the thread.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Wire for Socket {
    fn quirks(&self) -> Quirks {
        Quirks::of_qemu("virtio-net-pci")
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        // QEMU leaves frames in the socket while its card has no buffers: what does not fit there
        // is lost on the wire.
        match self.socket.send_to(frame, &self.card) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                Err(Error::Invalid(format!("sending to QEMU's card: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.came.recv_timeout(deadline.remaining()).ok())
    }
}

#[test]
fn qemus_card_conforms_with_both_layouts_and_without_merged_buffers_and_filters() {
    for more in ["packed=off", "packed=on", "packed=off,mrg_rxbuf=off", "packed=off,ctrl_rx=off"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let mut wire = Socket::new(&path);
        let uri = format!("qtest:virtio-net-pci,{more},wire={}", path.display());
        let card = Card::open(
            ring3_backend::open(&uri.parse().unwrap(), MEMORY).unwrap(),
            Options::default(),
        )
        .unwrap();
        let options = conformance::Options { patience: Duration::from_secs(5), ..suite(100) };
        passes(&conformance::run(&card, &mut wire, &options));
    }
}

#[test]
fn the_fence_resets_a_card_wherever_its_structures_lie() {
    let driver = DRIVERS.into_iter().find(|driver| driver.name == "virtio-net").unwrap();
    let fence = Quiesce::from_manifest(driver.manifest).unwrap();
    for structures in ["together", "apart"] {
        served::served(&format!("sim:virtio-net,structures={structures}"), |uri| {
            let claim = ring3_backend::claim(&uri.parse().unwrap(), MEMORY).unwrap();
            let device = ring3_backend::attach(claim.lease().unwrap(), None).unwrap();
            let card = Card::open(device, Options::default()).unwrap();
            let queues = card.open_queues(1, &Default::default()).unwrap();
            std::mem::forget((queues, card));
            assert!(!claim.quiesce(fence.as_ref()).unwrap().reset, "{structures}");
        });
    }
}

#[test]
fn a_transitional_card_is_refused_with_what_to_do() {
    let device =
        ring3_backend::open(&"qtest:virtio-net-pci,disable-legacy=off".parse().unwrap(), MEMORY)
            .unwrap();
    let error = Driver::open(device, None, &Settings::default()).err().unwrap().to_string();
    assert!(error.contains("1af4:1000") && error.contains("disable-legacy=on"), "{error}");
}
