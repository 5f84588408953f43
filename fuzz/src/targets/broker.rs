//! The server of a shared disk: `ring3_broker::server`, as a state machine.
//!
//! The attacker is a client: it sends any message, with any memory, and writes anything into the
//! rings and tables that it shares with the server. The input is the order of what it does.
//! Beside it, a second client has its own part of the disk.
//!
//! Promises: no panic, and no error of the server; a request of a well kept ring ends at most once,
//! under its own tag; the other client's blocks stay what they are, and its requests go on to be
//! served; nothing is in flight when the offender is gone.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::Input;
use ring3_broker::memory::{Layout, QueueMemory};
use ring3_broker::protocol::{Answer, ClientRequest, OpenPort, VERSION};
use ring3_broker::server::{DiskServer, EmbeddedServer, Options};
use ring3_broker::wire::{MAX_SEGMENTS, Submission, place};
use ring3_class::block::{Operation, Ram};
use ring3_class::dma::Region;
use ring3_device::ring::Words;
use ring3_lease::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

/// The offender sees the first MiB, the witness the second.
const TERMS: [&str; 2] = [
    ",size=1M,memory=64K,depth=4,queues=2,clients=2",
    ",offset=1M,size=1M,memory=64K,depth=4,queues=1,clients=1",
];
const BLOCKS: u64 = 4096;
/// Blocks of the witness's pattern.
const PATTERN: u32 = 16;
/// Words of a ring: tail, head, the first entry.
const TAIL: usize = 0;
const HEAD: usize = 8;
const FIRST: usize = 24;
const OPERATIONS: [Operation; 5] = [
    Operation::Read,
    Operation::Write,
    Operation::Flush,
    Operation::WriteZeroes,
    Operation::Discard,
];

/// A ring pair of a client.
struct Ring {
    words: QueueMemory,
    kick: OwnedFd,
    _woken: OwnedFd,
    depth: u32,
    tail: u32,
    seen: u32,
    /// How many requests with each tag are under way.
    tags: BTreeMap<u32, u32>,
    /// The client has only written what a client should.
    kept: bool,
}

impl Ring {
    fn entry(&mut self, words: [u64; 4]) {
        let place = (self.tail % self.depth) as usize;
        self.words.submissions.store_entry(FIRST + 4 * place, &words);
        self.tail = self.tail.wrapping_add(1);
    }

    fn tell(&self, tail: u64) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.words.submissions.store(TAIL, tail);
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    /// Takes what has ended: tag and status.
    fn take(&mut self) -> Vec<(u32, u32)> {
        let (mut ends, tail) = (Vec::new(), self.words.completions.load(TAIL) as u32);
        if self.kept {
            assert!(tail.wrapping_sub(self.seen) <= self.depth, "more ends than the ring holds");
        }
        while self.kept && self.seen != tail {
            let word = self.words.completions.load(FIRST + (self.seen % self.depth) as usize);
            let tag = word as u32;
            let left = self.tags.get_mut(&tag).filter(|left| **left > 0);
            *left.expect("a request ends twice, or was not asked for") -= 1;
            ends.push((tag, (word >> 32) as u32));
            self.seen = self.seen.wrapping_add(1);
        }
        if self.kept {
            self.words.completions.store(HEAD, self.seen.into());
        }
        ends
    }

    fn under_way(&self) -> u32 {
        self.tags.values().sum()
    }

    fn is_full(&self) -> bool {
        self.under_way() >= self.depth
    }
}

/// A connected client.
struct Peer {
    channel: Channel,
    memory: Option<Region>,
    rings: Vec<Ring>,
}

impl Peer {
    fn connect(path: &Path) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
        let channel = Channel::new(socket, Duration::from_secs(1), true).ok()?;
        Some(Self { channel, memory: None, rings: Vec::new() })
    }

    fn say(&self, request: &ClientRequest, file: Option<OwnedFd>) {
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        let _ = self.channel.send(request, &files);
    }

    /// Takes all answers.
    fn hear(&mut self) {
        let ready = |channel: &Channel| {
            let mut fds = [PollFd::new(channel, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        while ready(&self.channel) {
            let Ok(Some((answer, files))) = self.channel.receive::<Answer>() else { return };
            match answer {
                Answer::Welcome(_) => {
                    let [file] = <[OwnedFd; 1]>::try_from(files).expect("a welcome without memory");
                    self.memory = Some(Region::from_fd(file).unwrap());
                }
                Answer::Opened { depth, .. } => {
                    let files = <[OwnedFd; 3]>::try_from(files).expect("an open without memory");
                    let [file, kick, _woken] = files;
                    let words = Layout::new(depth).map(file.as_fd()).unwrap();
                    let (depth, tags) = (depth.into(), BTreeMap::new());
                    let [tail, seen] = [0; 2];
                    self.rings.push(Ring {
                        words,
                        kick,
                        _woken,
                        depth,
                        tail,
                        seen,
                        tags,
                        kept: true,
                    });
                }
                _ => {}
            }
        }
    }
}

struct Bench {
    server: EmbeddedServer,
    paths: [PathBuf; 2],
    offender: Option<Peer>,
    witness: Peer,
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

fn turn(server: &mut EmbeddedServer) {
    for _ in 0..4 {
        server.run_once().expect("the server fails");
    }
}

impl Bench {
    fn new(copy: bool) -> Self {
        let paths = ["0", "1"].map(|name| folder().join(name));
        let access = |index: usize| format!("{}{}", paths[index].display(), TERMS[index]);
        let accesses = [0, 1].map(|index| access(index).parse().unwrap()).into();
        let options = Options { depth: 8, poll: Duration::ZERO, copy };
        let disk = Arc::new(Ram::new(512, BLOCKS, 256 << 10).unwrap());
        let mut server = DiskServer::bind(disk, accesses, options).unwrap().nested().unwrap();
        let mut witness = Peer::connect(&paths[1]).unwrap();
        witness.say(&ClientRequest::Hello { version: VERSION, memory: 64 << 10 }, None);
        turn(&mut server);
        witness.say(&ClientRequest::Open { depth: 4 }, None);
        turn(&mut server);
        witness.hear();
        let mut bench = Self { server, paths, offender: None, witness };
        bench.fill(0x5a);
        bench.witness(Operation::Write);
        bench
    }

    fn fill(&self, byte: u8) {
        let memory = self.witness.memory.as_ref().expect("the witness is not welcome");
        memory.write(0, &[byte; PATTERN as usize * 512]).unwrap();
    }

    /// Has the witness move its blocks, which must go well.
    fn witness(&mut self, operation: Operation) {
        let ring = self.witness.rings.first_mut().expect("the witness gets no queue");
        let only = (place(0, 0), PATTERN * 512);
        let (fua, tag) = (false, ring.tail);
        let entry = Submission { operation, fua, segments: 1, tag, lba: 0, blocks: PATTERN, only };
        ring.entry(entry.encode());
        ring.tags.insert(tag, 1);
        ring.tell(ring.tail.into());
        for _ in 0..8 {
            turn(&mut self.server);
            let ends = ring.take();
            if !ends.is_empty() {
                assert_eq!(ends, [(tag, 0)], "the other client's request fails");
                return;
            }
        }
        panic!("the other client is not served any more");
    }

    /// A message of the offender's.
    fn message(&mut self, input: &mut Input<'_>) {
        let Some(peer) = &self.offender else { return };
        let version = if input.u8() < 240 { VERSION } else { input.u32() };
        let mut file = None;
        let request = match input.u8() % 12 {
            0..=2 => {
                ClientRequest::Hello { version, memory: input.near(&[65536, 0, 4096, u64::MAX]) }
            }
            3..=6 => ClientRequest::Open { depth: u16::from(input.u8()) },
            7 => ClientRequest::Close { queue: u16::from(input.u8() % 4) },
            8 | 9 => {
                let (bytes, seals) = (4096 * u64::from(1 + input.u8() % 4), input.u8());
                let made = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
                let made = made.unwrap();
                ftruncate(&made, bytes).unwrap();
                let mut wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
                if seals & 0xc0 == 0xc0 {
                    wanted = SealFlags::from_bits_truncate(seals.into());
                }
                let _ = fcntl_add_seals(&made, wanted);
                file = Some(made);
                ClientRequest::Offer { version, bytes: bytes + u64::from(seals / 255) }
            }
            10 => ClientRequest::Revoke,
            _ => ClientRequest::OpenPort(OpenPort { rx_depth: 1, tx_depth: 1, mtu: 1500 }),
        };
        peer.say(&request, file);
    }

    /// A request in a ring, by the rules but for its fields.
    fn submit(&mut self, input: &mut Input<'_>) {
        let which = usize::from(input.u8());
        let Some(peer) = &mut self.offender else { return };
        let rings = peer.rings.len().max(1);
        let Some(ring) = peer.rings.get_mut(which % rings).filter(|ring| !ring.is_full()) else {
            return;
        };
        let segments = match input.u8() {
            byte @ 0..=63 => u16::from(byte % 4),
            64..=247 => 1,
            _ => input.near(&[MAX_SEGMENTS as u64]) as u16,
        };
        let entry = Submission {
            operation: input.choose(&OPERATIONS),
            fua: input.u8() & 1 != 0,
            segments,
            tag: input.u8().into(),
            lba: match input.u8() {
                lba @ 0..=199 => lba.into(),
                _ => input.near(&[2048, 0, u64::MAX]),
            },
            blocks: match input.u8() {
                blocks @ 0..=229 => u32::from(blocks % 17),
                _ => input.near(&[128, 256, u32::MAX.into()]) as u32,
            },
            only: Self::segment(input),
        };
        let slot = (ring.tail % ring.depth) as usize * MAX_SEGMENTS * 2;
        for index in 0..usize::from(segments.min(4)) {
            let (at, len) = Self::segment(input);
            ring.words.tables.store(slot + 2 * index, at);
            ring.words.tables.store(slot + 2 * index + 1, len.into());
        }
        ring.entry(entry.encode());
        *ring.tags.entry(entry.tag).or_default() += 1;
        ring.tell(ring.tail.into());
    }

    fn segment(input: &mut Input<'_>) -> (u64, u32) {
        let at = match input.u8() {
            at @ 0..=199 => place(0, u64::from(at) * 512),
            at @ 200..=239 => place(u32::from(at % 4), u64::from(at % 8) * 512),
            _ => place(input.u8().into(), input.near(&[65536, 0, (1 << 48) - 1]) & ((1 << 48) - 1)),
        };
        let len = match input.u8() {
            len @ 0..=229 => u32::from(len % 17) * 512,
            _ => input.near(&[65536, u32::MAX.into()]) as u32,
        };
        (at, len)
    }

    /// Words anywhere in the shared memory.
    fn scribble(&mut self, input: &mut Input<'_>) {
        let (which, part) = (usize::from(input.u8()), input.u8());
        let Some(peer) = &mut self.offender else { return };
        let rings = peer.rings.len().max(1);
        let Some(ring) = peer.rings.get_mut(which % rings) else { return };
        let words = match part % 3 {
            0 => &ring.words.submissions,
            1 => &ring.words.completions,
            _ => &ring.words.tables,
        };
        let at = usize::from(input.u16());
        let at = if part & 0x80 == 0 { input.choose(&[TAIL, HEAD, 16, FIRST]) } else { at };
        let value = if part & 0x40 == 0 { u64::from(input.u8()) } else { input.u64() };
        words.store(at % words.count(), value);
        ring.kept &= part % 3 == 2;
        ring.tell(ring.words.submissions.load(TAIL));
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.u8() % 16 {
            0..=3 => self.message(input),
            4..=9 => self.submit(input),
            10 | 11 => self.scribble(input),
            12 => {
                let len = usize::from(input.u8());
                let bytes = input.bytes(len);
                if let Some(peer) = &self.offender {
                    let _ = send(&peer.channel, bytes, SendFlags::NOSIGNAL);
                }
            }
            13 => {
                self.offender = None;
                turn(&mut self.server);
            }
            14 if self.offender.is_none() => self.begin(),
            _ => {}
        }
        turn(&mut self.server);
        if let Some(peer) = &mut self.offender {
            peer.hear();
            peer.rings.iter_mut().for_each(|ring| drop(ring.take()));
        }
    }

    /// An offender that has said hello and has a queue.
    fn begin(&mut self) {
        self.offender = Peer::connect(&self.paths[0]);
        if let Some(peer) = &mut self.offender {
            peer.say(&ClientRequest::Hello { version: VERSION, memory: 64 << 10 }, None);
            peer.say(&ClientRequest::Open { depth: 4 }, None);
            turn(&mut self.server);
            peer.hear();
        }
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let mut bench = Bench::new(flags & 1 != 0);
    if flags & 2 == 0 {
        bench.begin();
    } else {
        bench.offender = Peer::connect(&bench.paths[0]);
    }
    for _ in 0..48 {
        if input.is_empty() {
            break;
        }
        bench.act(&mut input);
    }
    bench.offender = None;
    bench.fill(0);
    bench.witness(Operation::Read);
    assert_eq!(bench.server.left(), 0, "requests of nobody are in flight");
    let mut bytes = [0; PATTERN as usize * 512];
    bench.witness.memory.as_ref().unwrap().read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0x5a), "the other client's blocks have changed");
}
