//! A disk that a thread serves, for clients in this process, and a client that writes what it
//! likes.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod card;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_broker::client::RemoteDisk;
use ring3_broker::memory::{Layout, QueueMemory};
use ring3_broker::protocol::{Answer, ClientRequest, DiskDescription, VERSION};
use ring3_broker::server::{DiskServer, Options};
use ring3_broker::wire::Submission;
use ring3_class::block::{
    Completion, Disk, Info, Operation, Queue, Ram, Rejected, Request, execute,
};
use ring3_class::dma::{Dma, Region};
use ring3_class::irq::Irq;
use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};
use ring3_device::ring::Words;
use ring3_lease::Channel;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// A disk that is served until this is dropped.
pub struct Served {
    folder: tempfile::TempDir,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Served {
    /// `disk` on a socket `0`, `1` and so on for each of `terms`.
    pub fn start(disk: Arc<dyn Disk>, terms: &[&str], options: Options) -> Self {
        Self::start_after(disk, terms, options, |_| {})
    }

    /// The same, after what comes to the sockets in a folder `before` anybody hears it.
    pub fn start_after(
        disk: Arc<dyn Disk>,
        terms: &[&str],
        options: Options,
        before: impl FnOnce(&Path),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let access = |(index, terms): (usize, &&str)| {
            format!("{}/{index}{terms}", folder.path().display()).parse().unwrap()
        };
        let server =
            DiskServer::bind(disk, terms.iter().enumerate().map(access).collect(), options)
                .unwrap();
        assert_eq!(server.is_mapped(), !options.copy);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let call = stop.clone();
        before(folder.path());
        let thread = std::thread::spawn(move || server.run(&[call.as_fd()], || true));
        Self { folder, stop, thread: Some(thread) }
    }

    /// A disk of 8 MiB in memory, for all.
    pub fn ram(terms: &[&str]) -> Self {
        Self::start(Arc::new(ram()), terms, Options::default())
    }

    pub fn path(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    pub fn client(&self, index: usize) -> RemoteDisk {
        RemoteDisk::connect(&self.path(index), 8 << 20).unwrap()
    }

    /// Ends it, and says how that went.
    pub fn stop(&mut self) -> Result<(), Error> {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.stop().unwrap();
        }
    }
}

/// A disk whose requests end only while its gate is open, and that remembers in which order it got
/// them.
pub struct Gated {
    pub ram: Ram,
    gate: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<u64>>>,
}

struct GatedQueue {
    queue: Box<dyn Queue>,
    gate: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<u64>>>,
}

impl Gated {
    pub fn new() -> Self {
        Self { ram: ram(), gate: Arc::new(AtomicBool::new(true)), log: Arc::default() }
    }

    pub fn set(&self, open: bool) {
        self.gate.store(open, Ordering::SeqCst);
    }

    /// First blocks, in order.
    pub fn log(&self) -> Vec<u64> {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the disk has got so many requests in all.
    pub fn wait_for(&self, count: usize) {
        let deadline = Deadline::after(SOON);
        while self.log().len() < count {
            assert!(!deadline.expired(), "the disk got {} requests of {count}", self.log().len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Disk for Gated {
    fn name(&self) -> String {
        "gated".into()
    }
    fn info(&self) -> &Info {
        self.ram.info()
    }
    fn dma(&self) -> &Dma {
        self.ram.dma()
    }
    fn max_queues(&self) -> u16 {
        self.ram.max_queues()
    }
    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let queue = self.ram.open_queue(depth)?;
        Ok(Box::new(GatedQueue { queue, gate: self.gate.clone(), log: self.log.clone() }))
    }
}

impl GatedQueue {
    fn is_open(&self) -> bool {
        self.gate.load(Ordering::SeqCst)
    }
}

impl Queue for GatedQueue {
    fn info(&self) -> &Info {
        self.queue.info()
    }
    fn depth(&self) -> u16 {
        self.queue.depth()
    }
    fn in_flight(&self) -> u16 {
        self.queue.in_flight()
    }
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let lba = request.lba;
        self.queue.submit(request)?;
        self.log.lock().unwrap().push(lba);
        Ok(())
    }
    fn ring(&mut self) {
        self.queue.ring();
    }
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if self.is_open() { self.queue.reap(done) } else { Ok(0) }
    }
}

impl Source for GatedQueue {
    fn irq(&self) -> Option<&Irq> {
        None
    }
    fn pending(&self) -> bool {
        self.is_open() && self.queue.pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        Ok(Some(now + Duration::from_millis(10)))
    }
    fn wait(&mut self, _: Deadline) -> Result<bool, Error> {
        Ok(self.pending())
    }
}

pub fn ram() -> Ram {
    Ram::new(512, 16384, 8 << 20).unwrap()
}

pub const SOON: Duration = Duration::from_secs(10);

/// Writes `byte` all over a block and reads it back.
pub fn round_trip(disk: &dyn Disk, lba: u64, byte: u8) {
    let mut queue = disk.open_queue(4).unwrap();
    let buffer = || disk.dma().arena().alloc_pages(512).unwrap();
    let data = buffer();
    data.fill(byte);
    let done =
        execute(&mut *queue, Request::write(1, lba, 1, data), Deadline::after(SOON)).unwrap();
    assert_eq!(done.result, Ok(()));
    assert_eq!(read(disk, lba), [byte; 512]);
}

/// What a block holds.
pub fn read(disk: &dyn Disk, lba: u64) -> [u8; 512] {
    let mut queue = disk.open_queue(1).unwrap();
    let buffer = disk.dma().arena().alloc_pages(512).unwrap();
    let done =
        execute(&mut *queue, Request::read(1, lba, 1, buffer), Deadline::after(SOON)).unwrap();
    assert_eq!(done.result, Ok(()));
    let mut bytes = [0; 512];
    done.data.into_buffer().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

/// A client that has the protocol's means and none of its manners.
pub struct Raw {
    pub channel: Channel,
    pub welcome: Option<DiskDescription>,
    pub file: Option<OwnedFd>,
    pub memory: Option<Region>,
}

/// A queue of one.
pub struct RawQueue {
    pub words: QueueMemory,
    pub kick: OwnedFd,
    pub woken: OwnedFd,
    pub file: OwnedFd,
    pub number: u16,
    pub depth: u16,
    tail: u32,
}

/// Where the words of a ring are: tail, head, and the first entry.
pub const TAIL: usize = 0;
pub const HEAD: usize = 8;
const FIRST: usize = 24;

impl Raw {
    /// Connected, and silent.
    pub fn silent(path: &Path) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self {
            channel: Channel::new(socket, SOON, true).unwrap(),
            welcome: None,
            file: None,
            memory: None,
        }
    }

    /// With memory of 64 KiB.
    pub fn new(path: &Path) -> Self {
        let mut raw = Self::silent(path);
        let (answer, mut fds) =
            raw.ask(&ClientRequest::Hello { version: VERSION, memory: 64 << 10 });
        let Answer::Welcome(welcome) = answer else { panic!("{answer:?}") };
        let file = fds.pop().unwrap();
        raw.memory = Some(Region::from_fd(file.try_clone().unwrap()).unwrap());
        (raw.welcome, raw.file) = (Some(*welcome), Some(file));
        raw
    }

    pub fn ask(&self, ask: &ClientRequest) -> (Answer, Vec<OwnedFd>) {
        self.channel.send(ask, &[]).unwrap();
        self.channel.receive().unwrap().unwrap()
    }

    pub fn open(&self, depth: u16) -> RawQueue {
        let (answer, fds) = self.ask(&ClientRequest::Open { depth });
        let Answer::Opened { queue, depth } = answer else { panic!("{answer:?}") };
        let [file, kick, woken] = <[OwnedFd; 3]>::try_from(fds).unwrap();
        let words = Layout::new(depth).map(file.as_fd()).unwrap();
        RawQueue { words, kick, woken, file, number: queue, depth, tail: 0 }
    }

    /// Any bytes as a message.
    pub fn throw(&self, bytes: &[u8]) {
        let _ = rustix::net::send(&self.channel, bytes, rustix::net::SendFlags::NOSIGNAL);
    }

    /// Waits until the server has parted, and returns why.
    pub fn ended(&self) -> String {
        let mut why = String::new();
        // A reset comes before what was said last, and an end after it.
        let mut ends = 0;
        while ends < 2 {
            match self.channel.receive::<Answer>() {
                Ok(Some((Answer::Ended { reason } | Answer::Refused { reason }, _))) => {
                    why = reason
                }
                Ok(Some(_)) => {}
                Ok(None) => ends += 1,
                Err(error) => return format!("{why}, and then {error}"),
            }
        }
        why
    }

    /// Whether the server has parted by now.
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    }
}

/// How long the close of a [`lingering`] socket waits.
pub const LINGER: Duration = Duration::from_secs(20);

/// A TCP socket over loopback with bytes that nobody reads, and who does not.
pub fn lingering() -> (OwnedFd, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    set_socket_linger(&stream, Some(LINGER)).unwrap();
    (stream.into(), listener)
}

/// A read of one block into the memory's begin.
pub fn read_of(tag: u32, only: (u64, u32)) -> Submission {
    Submission { operation: Operation::Read, fua: false, segments: 1, tag, lba: 0, blocks: 1, only }
}

impl RawQueue {
    /// Writes words as the next entry.
    pub fn put(&mut self, words: [u64; 4]) {
        let place = (self.tail % u32::from(self.depth)) as usize;
        self.words.submissions.store_entry(FIRST + 4 * place, &words);
        self.tail += 1;
    }

    /// Says that there is one more, and wakes the server.
    pub fn show(&self) {
        self.tell(self.tail.into());
    }

    /// Says that there are as many as `tail`.
    pub fn tell(&self, tail: u64) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.words.submissions.store(TAIL, tail);
        self.kick();
    }

    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Waits until so many requests have ended; false if that does not happen soon.
    pub fn wait_for(&self, ends: u64) -> bool {
        let deadline = Deadline::after(SOON);
        while self.words.completions.load(TAIL) < ends {
            if deadline.expired() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Tag and status of an end.
    pub fn end(&self, index: usize) -> (u32, u32) {
        let word = self.words.completions.load(FIRST + index % usize::from(self.depth));
        (word as u32, (word >> 32) as u32)
    }
}
