//! A card on a cable that a thread serves, for clients in this process.
#![allow(dead_code, reason = "each test file uses its part")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use ring3_backend::OpenOptions;
use ring3_broker::client::RemoteCard;
use ring3_broker::frame::{PIECE, Piece};
use ring3_broker::memory;
use ring3_broker::protocol::{Answer, ClientRequest, OpenPort, Port, VERSION};
use ring3_broker::server::card::{CardServer, Options};
use ring3_class::dma::{DmaBuffer, Region};
use ring3_class::net::{Cable, Mac, Meta, Nic, Packet, Queue, QueueSettings};
use ring3_class::{Deadline, Error};
use ring3_conformance::net::{Peer, Wire};
use ring3_device::ring::Words;
use ring3_driver::registry::{Controller, Driver, Offer, Settings};
use ring3_driver::virtio::net::Card;
use ring3_model::virtio::net::InjectedFault;
use rustix::event::{EventfdFlags, eventfd};

use super::{HEAD, Raw, SOON, TAIL};

/// A card that is served until this is dropped.
pub struct ServedCard {
    folder: tempfile::TempDir,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    pub cable: Option<Cable>,
    /// The card at the other end.
    pub other: Arc<dyn Nic>,
    controllers: Vec<Box<dyn Controller>>,
}

impl ServedCard {
    /// A card in memory, with a socket `0`, `1` and so on for each of `terms`.
    pub fn start(terms: &[&str], options: Options) -> Self {
        let (cable, card, other) = Cable::new(16 << 20).unwrap();
        let mut served = Self::over((Arc::new(card), Arc::new(other)), terms, options);
        served.cable = Some(cable);
        served
    }

    /// A model's card on a cable of its own to a second one of its kind.
    pub fn model(uri: &str, terms: &[&str], options: Options) -> Self {
        static CABLES: AtomicU32 = AtomicU32::new(0);
        let cable = CABLES.fetch_add(1, Ordering::Relaxed);
        let open = |last: u8| {
            let uri =
                format!("sim:{uri},wire=cable/{cable},mac=52:54:00:00:00:0{last}").parse().unwrap();
            let device = ring3_backend::open(
                &uri,
                OpenOptions { arena: 32 << 20, ..OpenOptions::default() },
            )
            .unwrap();
            let opened =
                Driver::open(device, None, &Settings { queues: 1, ..Settings::default() }).unwrap();
            let nic = opened.offers.into_iter().find_map(|offer| match offer {
                Offer::Nic(nic) => Some(nic),
                Offer::Disk(_) => None,
            });
            (nic.unwrap(), opened.controller)
        };
        let ((card, first), (other, second)) = (open(1), open(2));
        let mut served = Self::over((card, other), terms, options);
        served.controllers.extend([first, second]);
        served
    }

    /// A virtio card whose wire takes nothing.
    pub fn full(terms: &[&str], options: Options) -> Self {
        let opened = OpenOptions { arena: 32 << 20, ..OpenOptions::default() };
        let device =
            ring3_model::virtio::net::open(&"sim:virtio-net".parse().unwrap(), opened).unwrap();
        device.handle().misbehave(Some(InjectedFault::WireIsFull));
        let card = Card::open(Arc::new(device), Default::default()).unwrap();
        let (_, _, other) = Cable::new(1 << 20).unwrap();
        Self::over((Arc::new(card), Arc::new(other)), terms, options)
    }

    fn over((card, other): (Arc<dyn Nic>, Arc<dyn Nic>), terms: &[&str], options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let access = |(index, terms): (usize, &&str)| {
            format!("{}/{index}{terms}", folder.path().display()).parse().unwrap()
        };
        let server =
            CardServer::bind(card, terms.iter().enumerate().map(access).collect(), options)
                .unwrap();
        assert_eq!(server.is_mapped(), !options.copy);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let call = stop.clone();
        let thread = std::thread::spawn(move || server.run(&[call.as_fd()], || true));
        Self { folder, stop, thread: Some(thread), cable: None, other, controllers: Vec::new() }
    }

    pub fn path(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    pub fn client(&self, index: usize) -> RemoteCard {
        RemoteCard::connect(&self.path(index), 4 << 20).unwrap()
    }

    pub fn peer(&self) -> Peer<'_> {
        Peer::new(&*self.other, self.cable.as_ref()).unwrap()
    }

    /// Ends it, and says how that went.
    pub fn stop(&mut self) -> Result<(), Error> {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap())
    }
}

impl Drop for ServedCard {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.stop().unwrap();
        }
    }
}

/// A client with its queue open, as a user of one has it.
pub struct User {
    pub queue: Box<dyn Queue>,
    pub card: RemoteCard,
}

/// An EtherType for local experiments. [IEEE 802, 9.2.4]
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// A frame of 100 bytes that says `what`.
pub fn frame(to: Mac, from: Mac, what: u8) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &EXPERIMENT].concat();
    frame.resize(100, what);
    frame
}

impl User {
    pub fn new(card: RemoteCard) -> Self {
        let settings = QueueSettings { rx_depth: 64, tx_depth: 64, ..QueueSettings::default() };
        let mut queue = card.open_queues(1, &settings).unwrap().remove(0);
        for _ in 0..64 {
            assert_eq!(
                queue
                    .rx_provide(&mut [Packet::new(card.dma().arena().alloc(2048, 64).unwrap(), 0)])
                    .count,
                1
            );
        }
        Self { queue, card }
    }

    pub fn mac(&self) -> Mac {
        self.card.info().mac
    }

    /// Sends `bytes`, and waits until the buffer has come back.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut packet = Packet::new(self.card.dma().arena().alloc(bytes.len(), 64).unwrap(), 0);
        packet.fill(bytes).unwrap();
        self.send_packet(packet);
    }

    pub fn send_packet(&mut self, packet: Packet) {
        assert_eq!(self.queue.tx_provide(&mut [packet]).count, 1);
        let deadline = Deadline::after(SOON);
        self.queue.wake_on_tx(true);
        while self.queue.tx_return(&mut [Packet::default()]).unwrap() == 0 {
            assert!(!deadline.expired(), "a buffer has not come back");
            self.queue.wait(Deadline::after(std::time::Duration::from_millis(5))).unwrap();
        }
        self.queue.wake_on_tx(false);
    }

    /// Sends a frame that says `what`.
    pub fn say(&mut self, to: Mac, what: u8) {
        self.send(&frame(to, self.mac(), what));
    }

    /// The next packet, with what is known of it; `None` at `deadline`.
    pub fn receive_until(&mut self, deadline: Deadline) -> Option<(Vec<u8>, Meta)> {
        let (mut bytes, mut first) = (Vec::new(), None);
        loop {
            let mut batch = [Packet::default()];
            if self.queue.rx_return(&mut batch).unwrap() == 0 {
                if !self.queue.wait(deadline).unwrap() {
                    return None;
                }
                continue;
            }
            let (at, meta) = (bytes.len(), batch[0].meta);
            bytes.resize(at + batch[0].len as usize, 0);
            batch[0].read(0, &mut bytes[at..]).unwrap();
            first.get_or_insert(meta);
            assert_eq!(self.queue.rx_provide(&mut batch).count, 1);
            if !meta.more() {
                return first.map(|meta| (bytes, meta));
            }
        }
    }

    pub fn receive(&mut self) -> Vec<u8> {
        self.receive_until(Deadline::after(SOON)).expect("nothing was received").0
    }

    /// What the next frame says, and who.
    pub fn hears(&mut self) -> (Mac, u8) {
        let frame = self.receive();
        (Mac(frame[6..12].try_into().unwrap()), frame[99])
    }

    /// Everything that was sent before has been looked at by the server, and nothing of it came
    /// here.
    pub fn heard_nothing(&mut self, peer: &mut dyn Wire) {
        let own = frame(self.mac(), Mac([2, 0, 0, 0, 0, 0xee]), 0xff);
        peer.send(&own).unwrap();
        assert_eq!(self.receive(), own, "something else was received");
    }
}

/// The next frame at the wire's end.
pub fn came_out(peer: &mut dyn Wire) -> Vec<u8> {
    peer.receive(Deadline::after(SOON)).unwrap().expect("nothing came out of the card")
}

/// A client that has the protocol's means and none of its manners, with its queue open.
pub struct RawCard {
    pub raw: Raw,
    pub port: Port,
    pub memory: Region,
    pub file: OwnedFd,
    /// Rings: buffers, received, pieces, sent.
    pub rings: [DmaBuffer; 4],
    kick: OwnedFd,
    _woken: OwnedFd,
    tail: [u64; 2],
}

/// Where entries begin, and how many there are.
const FIRST: usize = 24;
pub const DEPTH: u16 = 8;

impl RawCard {
    /// With 64 KiB of memory.
    pub fn new(path: &std::path::Path) -> Self {
        let raw = Raw::silent(path);
        let (answer, mut fds) =
            raw.ask(&ClientRequest::Hello { version: VERSION, memory: 64 << 10 });
        let Answer::Port(port) = answer else { panic!("{answer:?}") };
        let file = fds.remove(0);
        let memory = Region::from_fd(file.try_clone().unwrap()).unwrap();
        let (answer, fds) = raw.ask(&ClientRequest::OpenPort(OpenPort {
            rx_depth: DEPTH,
            tx_depth: DEPTH,
            mtu: 1500,
        }));
        assert_eq!(answer, Answer::PortOpened { rx_depth: DEPTH, tx_depth: DEPTH });
        let [words, kick, woken] = <[OwnedFd; 3]>::try_from(fds).unwrap();
        let rings = memory::port(DEPTH, DEPTH).map(words.as_fd()).unwrap();
        Self { raw, port: *port, memory, file, rings, kick, _woken: woken, tail: [0, 0] }
    }

    /// Writes words as the next entry of ring `ring`: 0 of buffers, 2 of pieces.
    pub fn put<const N: usize>(&mut self, ring: usize, words: [u64; N]) {
        let tail = &mut self.tail[ring / 2];
        self.rings[ring].store_entry(FIRST + N * (*tail as usize % usize::from(DEPTH)), &words);
        *tail += 1;
    }

    /// Says how many entries there are in either ring, and wakes the server.
    pub fn show(&self) {
        self.tell(self.tail[0], self.tail[1]);
    }

    pub fn tell(&self, buffers: u64, pieces: u64) {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.rings[0].store(TAIL, buffers);
        self.rings[2].store(TAIL, pieces);
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Provides a buffer of the first 2 KiB.
    pub fn provide(&mut self, tag: u32) {
        self.put(0, ring3_broker::frame::buffer(tag, 2048, 0));
    }

    /// Sends `bytes`, which stand in the memory's second half, as one piece.
    pub fn send(&mut self, tag: u32, bytes: &[u8]) {
        self.memory.write(32 << 10, bytes).unwrap();
        self.put::<PIECE>(
            2,
            Piece { tag, len: bytes.len() as u32, offset: 32 << 10, meta: Meta::default() }
                .encode(),
        );
        self.show();
    }

    /// Waits until so many pieces have ended.
    pub fn wait_for(&self, ends: u64) {
        let deadline = Deadline::after(SOON);
        while self.rings[3].load(TAIL) < ends {
            assert!(
                !deadline.expired(),
                "of {ends} pieces {} have ended",
                self.rings[3].load(TAIL)
            );
            std::thread::yield_now();
        }
    }

    /// Says that it has taken so many ends of pieces.
    pub fn took(&self, ends: u64) {
        self.rings[3].store(HEAD, ends);
    }

    /// Frames that it has received.
    pub fn received(&self) -> u64 {
        self.rings[1].load(TAIL)
    }
}
