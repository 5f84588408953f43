//! Servers that break the protocol, or die: a client tells its user what is wrong, gives no memory
//! back that a device may still reach, and does not wait for what will not come.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use ring3_broker::client::{RemoteCard, RemoteDisk};
use ring3_broker::memory::{self, Layout, StatusPage};
use ring3_broker::protocol::{Answer, ClientRequest, DiskDescription, Port, VERSION};
use ring3_broker::wire::{COMPLETION, SUBMISSION, Submission, completion};
use ring3_class::block::{self, Completion, Data, Disk, Operation, Request};
use ring3_class::dma::{DmaBuffer, SegmentRules};
use ring3_class::net::{Cable, Nic, Packet, Queue, QueueSettings};
use ring3_class::{Deadline, Error};
use ring3_device::ring::{Consumer, Producer};
use ring3_lease::Channel;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};

const LONG: Duration = Duration::from_secs(20);
const DEPTH: u16 = 8;
const MEMORY: usize = 8192;

/// The server's end, told what to answer.
struct Server {
    channel: Channel,
    /// What it would wake the client by.
    pipes: Vec<OwnedFd>,
}

/// The server's half of a queue.
struct Rings {
    submissions: Consumer<DmaBuffer, SUBMISSION>,
    completions: Producer<DmaBuffer, COMPLETION>,
}

/// Has `serve` serve whoever connects to the path that `with` is given.
fn served(serve: impl FnOnce(&mut Server) + Send, with: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let channel = Channel::new(accept(&listener).unwrap(), LONG, true).unwrap();
            serve(&mut Server { channel, pipes: Vec::new() });
        });
        with(&path);
    });
}

impl Server {
    /// The next question; `None` at the end of the client.
    fn asked(&self) -> Option<ClientRequest> {
        self.channel.receive().unwrap().map(|(ask, _)| ask)
    }

    fn answer(&self, answer: &Answer, fds: &[&OwnedFd]) {
        self.channel.send(answer, &fds.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>()).unwrap();
    }

    /// Memory, an eventfd and a pipe for a queue.
    fn descriptors(&mut self, bytes: usize) -> [OwnedFd; 3] {
        let (woken, waker) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        self.pipes.push(waker);
        [
            memory::make(bytes).unwrap(),
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            woken,
        ]
    }

    /// Makes the client welcome to a disk of 64 blocks.
    fn welcome(&self) {
        assert!(matches!(self.asked(), Some(ClientRequest::Hello { .. })));
        let info = block::Info {
            model: "none".into(),
            serial: "0".into(),
            firmware: String::new(),
            block_size: 512,
            blocks: 64,
            max_transfer: 4096,
            segments: SegmentRules::PAGES,
            optimal_io: 512,
            boundary: 0,
            volatile_cache: false,
            fua: false,
            max_write_zeroes_blocks: 0,
            discard: None,
            read_only: false,
            rotates: false,
        };
        let welcome = DiskDescription {
            version: VERSION,
            disk: "none".into(),
            info,
            memory: MEMORY as u64,
            queues: 2,
            mapped: false,
        };
        self.answer(&Answer::Welcome(Box::new(welcome)), &[&memory::make(MEMORY).unwrap()]);
    }

    /// Opens a queue.
    fn open(&mut self, queue: u16) -> Rings {
        assert!(matches!(self.asked(), Some(ClientRequest::Open { .. })));
        let layout = Layout::new(DEPTH);
        let fds = self.descriptors(layout.bytes());
        self.answer(&Answer::Opened { queue, depth: DEPTH }, &fds.each_ref());
        let parts = layout.map(fds[0].as_fd()).unwrap();
        Rings {
            submissions: Consumer::new(parts.submissions, DEPTH).unwrap(),
            completions: Producer::new(parts.completions, DEPTH).unwrap(),
        }
    }
}

impl Rings {
    /// Waits for a request; its tag.
    fn tag(&mut self) -> u32 {
        let until = Instant::now() + LONG;
        loop {
            if let Some(entry) = self.submissions.pop().unwrap() {
                return Submission::decode(entry).unwrap().tag;
            }
            assert!(Instant::now() < until, "no request comes");
            std::thread::yield_now();
        }
    }
}

fn read(disk: &RemoteDisk) -> Request {
    let data = Data::Buffer(disk.dma().arena().alloc(4096, 4096).unwrap());
    Request { operation: Operation::Read, fua: false, blocks: 8, lba: 0, token: 7, data }
}

#[test]
fn what_has_ended_well_is_told_before_the_end_that_makes_no_sense() {
    let serve = |server: &mut Server| {
        server.welcome();
        let mut rings = server.open(0);
        let tag = rings.tag();
        rings.completions.push(&completion(tag, Ok(())));
        rings.completions.push(&completion(tag, Ok(())));
        rings.completions.publish();
        rustix::io::write(&server.pipes[0], &[0; 8]).unwrap();
        while server.asked().is_some() {
            server.answer(&Answer::Closed { queue: 0 }, &[]);
        }
    };
    served(serve, |path| {
        let disk = RemoteDisk::connect(path, MEMORY).unwrap();
        let mut queue = disk.open_queue(DEPTH).unwrap();
        queue.submit(read(&disk)).unwrap();
        queue.ring();
        let mut done: Vec<_> = (0..DEPTH).map(|_| Completion::default()).collect();
        assert!(queue.wait(Deadline::after(LONG)).unwrap());
        assert_eq!((queue.reap(&mut done).unwrap(), done[0].token, done[0].result), (1, 7, Ok(())));
        assert!(queue.pending(), "there is something to be told");
        assert!(matches!(queue.reap(&mut done), Err(Error::Protocol(_))));
        assert_eq!((queue.reap(&mut done).unwrap(), queue.in_flight()), (0, 0));
    });
}

/// Bytes of the arena that can be had after a queue with a request in flight is dropped, whose end
/// the server answers so.
fn room_after(answer: Answer) -> bool {
    let mut room = false;
    let serve = |server: &mut Server| {
        server.welcome();
        server.open(0).tag();
        assert!(matches!(server.asked(), Some(ClientRequest::Close { queue: 0 })));
        server.answer(&answer, &[]);
        while server.asked().is_some() {}
    };
    served(serve, |path| {
        let disk = RemoteDisk::connect(path, MEMORY).unwrap();
        let mut queue = disk.open_queue(DEPTH).unwrap();
        queue.submit(read(&disk)).unwrap();
        queue.ring();
        drop(queue);
        room = disk.dma().arena().alloc(MEMORY, 4096).is_ok();
    });
    room
}

#[test]
fn only_the_answer_that_a_queue_is_closed_gives_its_memory_back() {
    assert!(room_after(Answer::Closed { queue: 0 }));
    for other in
        [Answer::Closed { queue: 1 }, Answer::Filtered, Answer::Refused { reason: "no".into() }]
    {
        assert!(!room_after(other.clone()), "{other:?}");
    }
}

#[test]
fn every_queue_is_told_why_the_server_has_parted() {
    let serve = |server: &mut Server| {
        server.welcome();
        let (mut one, mut other) = (server.open(0), server.open(1));
        one.tag();
        other.tag();
        server.answer(&Answer::Ended { reason: "the disk is sold".into() }, &[]);
        server.channel.close();
    };
    served(serve, |path| {
        let disk = RemoteDisk::connect(path, MEMORY).unwrap();
        let mut queues = [disk.open_queue(DEPTH).unwrap(), disk.open_queue(DEPTH).unwrap()];
        for queue in &mut queues {
            queue.submit(read(&disk)).unwrap();
            queue.ring();
        }
        for queue in &mut queues {
            let until = Instant::now() + LONG;
            let why = loop {
                if let Err(error) = queue.tick(Instant::now()) {
                    break error.to_string();
                }
                assert!(Instant::now() < until, "nobody says anything");
                std::thread::sleep(Duration::from_millis(2));
            };
            assert!(why.contains("the disk is sold"), "{why}");
        }
    });
}

/// Bytes of memory that a client of a card has.
const CARD_MEMORY: usize = 1 << 16;

impl Server {
    /// Makes the client welcome to a card's part, and opens its queue.
    fn port(&mut self) {
        assert!(matches!(self.asked(), Some(ClientRequest::Hello { .. })));
        let info = Cable::new(4096).unwrap().1.info().clone();
        let info = ring3_class::net::Info { max_queues: 1, shared: true, ..info };
        let [board, _, woken] = self.descriptors(StatusPage::BYTES);
        let port = Port {
            version: VERSION,
            card: "none".into(),
            info,
            memory: CARD_MEMORY as u64,
            mapped: false,
        };
        self.answer(
            &Answer::Port(Box::new(port)),
            &[&memory::make(CARD_MEMORY).unwrap(), &board, &woken],
        );
        assert!(matches!(self.asked(), Some(ClientRequest::OpenPort(_))));
        let fds = self.descriptors(memory::port(DEPTH, DEPTH).bytes());
        self.answer(&Answer::PortOpened { rx_depth: DEPTH, tx_depth: DEPTH }, &fds.each_ref());
    }
}

fn card(path: &Path) -> (RemoteCard, Box<dyn Queue>) {
    let card = RemoteCard::connect(path, CARD_MEMORY).unwrap();
    let settings = QueueSettings { rx_depth: DEPTH, tx_depth: DEPTH, ..QueueSettings::default() };
    let queue = card.open_queues(1, &settings).unwrap().remove(0);
    (card, queue)
}

/// Whether all of a client's memory can be had after a queue that has a buffer to receive into is
/// dropped, whose end the server answers so.
fn room_after_receiving(answer: Answer) -> bool {
    let mut room = false;
    let serve = |server: &mut Server| {
        server.port();
        assert!(matches!(server.asked(), Some(ClientRequest::Close { queue: 0 })));
        server.answer(&answer, &[]);
        while server.asked().is_some() {}
    };
    served(serve, |path| {
        let (card, mut queue) = card(path);
        let mut buffer = [Packet::new(card.dma().arena().alloc(4096, 4096).unwrap(), 0)];
        assert_eq!(queue.rx_provide(&mut buffer).count, 1);
        drop(queue);
        room = card.dma().arena().alloc(CARD_MEMORY, 4096).is_ok();
    });
    room
}

#[test]
fn only_the_answer_that_a_cards_queue_is_closed_gives_back_what_it_may_receive_into() {
    assert!(room_after_receiving(Answer::Closed { queue: 0 }));
    assert!(!room_after_receiving(Answer::Refused { reason: "no".into() }));
}

#[test]
fn a_card_whose_server_has_died_says_so_at_once() {
    let serve = |server: &mut Server| {
        server.port();
        std::thread::sleep(Duration::from_millis(50));
    };
    served(serve, |path| {
        let (_card, mut queue) = card(path);
        let since = Instant::now();
        assert!(queue.wait(Deadline::after(LONG)).unwrap(), "there is something to be told");
        assert!(since.elapsed() < LONG / 2, "{:?}", since.elapsed());
        assert!(matches!(queue.rx_return(&mut [Packet::default()]), Err(Error::Fatal(_))));
    });
}
