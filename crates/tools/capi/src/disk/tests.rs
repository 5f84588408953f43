//! A disk whose driver is this program and another program's, over the socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_broker::client::RemoteDisk;
use ring3_class::Deadline;
use ring3_class::block::{
    Data, Disk as _, ForeignAccess, IoError, Queue, Request, execute, next, open,
};
use ring3_class::dma::{Arena, Foreign, Piece, Region};
use ring3_conformance::block as conformance;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::dma::alloc;

const BLOCK: usize = 512;
const BLOCKS: usize = 4096;
const TRANSFER: u32 = 64 << 10;
const DEPTH: u16 = 16;
const MEMORY: usize = (DEPTH as usize + 1) * TRANSFER as usize;

/// The handle on a disk of [`BLOCKS`] blocks, and what its requests' bytes lie in.
fn made(change: impl FnOnce(&mut DiskInfo)) -> (Result<Box<Disk>, c_int>, Buffer) {
    let arena = Arena::new(Region::new(2 * MEMORY).unwrap(), 0x10_0000);
    let memory = alloc(&arena, MEMORY, 4096).unwrap();
    let mut info = DiskInfo {
        model: c"a program's disk ".as_ptr(),
        serial: c"1".as_ptr(),
        firmware: c"".as_ptr(),
        blocks: BLOCKS as u64,
        block_size: BLOCK as u32,
        max_transfer: TRANSFER,
        optimal_io: 0,
        max_write_zeroes_blocks: 1000,
        max_discard_blocks: 1000,
        discard_granularity: BLOCK as u32,
        depth: DEPTH,
        volatile_cache: true,
        fua: true,
        read_only: false,
        rotates: false,
    };
    change(&mut info);
    let mut disk = std::ptr::null_mut();
    // SAFETY: all of it is valid.
    let result = unsafe { ring3_disk_new(&info, &memory, 0, MEMORY, &mut disk) };
    // SAFETY: it was handed out just now.
    let disk = if result == 0 { Ok(unsafe { Box::from_raw(disk) }) } else { Err(result) };
    (disk, memory)
}

fn said() -> String {
    // SAFETY: it points to the text that this thread keeps.
    unsafe { CStr::from_ptr(crate::error::ring3_error()) }.to_str().unwrap().to_owned()
}

/// What a program answers to a request: an errno, or nothing if it keeps it for now.
type Answer = fn(&DiskRequest) -> Option<c_int>;

/// A program whose disk is in its memory.
struct Program {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<c_int>>,
}

impl Program {
    fn start(answer: Answer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let (started, has_started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (disk, _memory) = made(|_| {});
            let mut disk = disk.unwrap();
            disk.driven_mut().unwrap().serve(Access::new(path)).unwrap();
            started.send(()).unwrap();
            drive(&mut disk, answer, &asked)
        });
        has_started.recv().unwrap();
        Self { folder, stop, thread: Some(thread) }
    }

    fn client(&self) -> RemoteDisk {
        RemoteDisk::connect(&self.folder.path().join("disk"), 8 << 20).unwrap()
    }

    fn end(&mut self) -> c_int {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            assert_eq!(self.end(), -libc::ESHUTDOWN);
        }
    }
}

const NOTHING: DiskRequest = DiskRequest {
    tag: 0,
    lba: 0,
    data: std::ptr::null_mut(),
    blocks: 0,
    operation: u32::MAX,
    fua: false,
};

/// The program's loop, which knows C's calls alone; what has ended it.
fn drive(disk: &mut Disk, answer: Answer, asked: &AtomicBool) -> c_int {
    let mut medium = vec![0u8; BLOCKS * BLOCK];
    let (mut ended, mut kept) = (0, Vec::new());
    loop {
        if asked.load(Ordering::Relaxed) {
            ring3_disk_stop(disk);
        }
        let turn = ring3_disk_turn(disk);
        if turn < 0 {
            return turn;
        }
        let mut request = NOTHING;
        // SAFETY: it is a place for one.
        while unsafe { ring3_disk_take(disk, &mut request) } == 1 {
            kept.push(request);
        }
        kept.retain(|request| {
            let Some(errno) = answer(request) else { return true };
            if errno == 0 {
                perform(request, &mut medium);
            }
            ring3_disk_end(disk, request.tag, errno);
            ended += 1;
            false
        });
        if turn == 0 && std::mem::take(&mut ended) == 0 {
            // SAFETY: it is the disk's, which is not closed meanwhile.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(ring3_disk_fd(disk)) };
            let _ = poll(
                &mut [PollFd::new(&fd, PollFlags::IN)],
                Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }),
            );
        }
    }
}

fn perform(request: &DiskRequest, medium: &mut [u8]) {
    let (first, len) = (request.lba as usize * BLOCK, request.blocks as usize * BLOCK);
    let blocks = &mut medium[first..first + len];
    match request.operation {
        RING3_FLUSH | RING3_DISCARD => {}
        RING3_WRITE_ZEROES => blocks.fill(0),
        // SAFETY: so many bytes lie there.
        RING3_READ => unsafe { request.data.cast::<u8>().copy_from(blocks.as_ptr(), len) },
        // SAFETY: as above.
        RING3_WRITE => unsafe { request.data.cast::<u8>().copy_to(blocks.as_mut_ptr(), len) },
        other => panic!("operation {other}"),
    }
}

fn well(_: &DiskRequest) -> Option<c_int> {
    Some(0)
}

#[test]
fn another_program_finds_a_disk_that_conforms() {
    let program = Program::start(well);
    let disk = program.client();
    assert_eq!(
        (disk.info().model.as_str(), disk.info().blocks),
        ("a program's disk", BLOCKS as u64)
    );
    let report =
        conformance::run(&disk, &conformance::Options { requests: 1000, ..Default::default() });
    assert!(report.passed(), "{report}");
}

#[test]
fn several_clients_have_the_disk_at_once() {
    let program = Program::start(well);
    std::thread::scope(|scope| {
        for client in 0..4u64 {
            let disk = program.client();
            scope.spawn(move || {
                let mut queue = open(&disk, 8, ForeignAccess::default()).unwrap();
                for round in 0..200 {
                    let (lba, byte) =
                        (client * 100 + round % 100, (client * 50 + round % 50) as u8);
                    let deadline = Deadline::after(Duration::from_secs(20));
                    let written = Request::write(1, lba, 1, Foreign::from(vec![byte; BLOCK]));
                    queue.execute(written, deadline).unwrap().result.unwrap();
                    let found = Foreign::from(vec![0; BLOCK]);
                    queue
                        .execute(Request::read(2, lba, 1, found.clone()), deadline)
                        .unwrap()
                        .result
                        .unwrap();
                    let mut bytes = [0; BLOCK];
                    found.read(0, &mut bytes).unwrap();
                    assert_eq!(bytes, [byte; BLOCK]);
                }
            });
        }
    });
}

#[test]
fn bytes_in_memory_that_a_client_lends_are_copied_by_the_program_alone() {
    let program = Program::start(well);
    let (disk, file) = (program.client(), ring3_broker::memory::make(8192).unwrap());
    let memory = Foreign::from(Region::from_fd(file).unwrap());
    disk.register_region(memory.region()).unwrap();
    memory.write(0, &[0x5b; 4096]).unwrap();
    let mut queue = open(&disk, 4, ForeignAccess::default()).unwrap();
    let piece = |offset| Piece { memory: memory.clone(), offset, len: 4096 };
    for request in [Request::write(1, 8, 8, piece(0)), Request::read(2, 8, 8, piece(4096))] {
        assert_eq!(queue.execute(request, soon()).unwrap().result, Ok(()));
    }
    let mut bytes = [0; 4096];
    memory.read(4096, &mut bytes).unwrap();
    assert_eq!((bytes, queue.stream_stats().mapped), ([0x5b; 4096], 2));
}

#[test]
fn what_the_program_says_went_wrong_its_user_hears() {
    let program = Program::start(|request| {
        Some(match request.lba {
            1 => libc::ENODATA,
            2 => libc::ETIMEDOUT,
            3 => libc::ENODEV,
            4 => libc::EIO,
            _ => 0,
        })
    });
    let disk = program.client();
    let mut queue = disk.open_queue(4).unwrap();
    let wrong = [
        Ok(()),
        Err(IoError::Medium),
        Err(IoError::Timeout),
        Err(IoError::Gone),
        Err(IoError::Transport),
    ];
    for (lba, expected) in (0..).zip(wrong) {
        let data = disk.dma().arena().alloc_pages(BLOCK).unwrap();
        let done = execute(
            &mut *queue,
            Request::read(lba, lba, 1, data),
            Deadline::after(Duration::from_secs(20)),
        )
        .unwrap();
        assert_eq!((done.result, done.data.len()), (expected, BLOCK));
    }
}

#[test]
fn an_end_of_nothing_that_the_program_has_changes_nothing() {
    let (disk, _memory) = made(|_| {});
    let disk = disk.unwrap();
    let driven = disk.driven().unwrap();
    let mut queue = driven.disk.open_queue(4).unwrap();
    let buffer = driven.disk.dma().arena().alloc_pages(BLOCK).unwrap();
    queue.submit(Request::read(7, 0, 1, buffer)).unwrap();
    queue.ring();
    let mut request = NOTHING;
    // SAFETY: it is a place for one.
    assert_eq!(unsafe { ring3_disk_take(&disk, &mut request) }, 1);
    for stray in [request.tag + 1, request.tag + (1 << 32), u64::MAX] {
        ring3_disk_end(&disk, stray, 0);
        assert!(queue.reap_one().is_err(), "{stray:#x}");
    }
    ring3_disk_end(&disk, request.tag, 0);
    assert_eq!(queue.reap_one().unwrap().unwrap().token, 7);
    ring3_disk_end(&disk, request.tag, 0);
    assert!(queue.reap_one().is_err());
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_disk_that_is_stopped_ends_first_what_its_program_has() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    static HELD: AtomicBool = AtomicBool::new(true);
    let mut program = Program::start(|_| {
        SEEN.store(true, Ordering::Relaxed);
        if HELD.load(Ordering::Relaxed) { None } else { Some(0) }
    });
    let disk = program.client();
    let mut queue = disk.open_queue(2).unwrap();
    queue.submit(Request::flush(1)).unwrap();
    queue.ring();
    while !SEEN.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    program.stop.store(true, Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!program.thread.as_ref().unwrap().is_finished());
    HELD.store(false, Ordering::Relaxed);
    assert_eq!(program.end(), -libc::ESHUTDOWN);
    assert_eq!(next(&mut *queue, Deadline::after(Duration::from_secs(20))).unwrap().result, Ok(()));
}

#[test]
fn a_disk_that_makes_no_sense_or_has_no_room_is_refused_with_what_is_wanted() {
    for (change, errno, says) in [
        (
            (|info: &mut DiskInfo| info.block_size = 500) as fn(&mut DiskInfo),
            libc::EINVAL,
            "500 bytes",
        ),
        (|info| info.blocks = 0, libc::EINVAL, "0 blocks"),
        (|info| info.depth = 0, libc::EINVAL, "0 requests"),
        (|info| info.max_transfer = 100, libc::EINVAL, "100 move"),
        (|info| info.depth = 17, libc::ENOMEM, "bytes"),
    ] {
        let (disk, _memory) = made(change);
        assert_eq!(disk.err(), Some(-errno));
        assert!(said().contains(says), "{}", said());
    }
}

#[test]
fn terms_that_are_none_are_refused_and_what_is_not_served_has_no_turn() {
    let (disk, _memory) = made(|_| {});
    let mut disk = disk.unwrap();
    assert_eq!(
        (ring3_disk_turn(&mut disk), ring3_disk_fd(&disk)),
        (-libc::ENOTCONN, -libc::ENOTCONN)
    );
    assert_eq!(
        // SAFETY: the text is one.
        unsafe { ring3_disk_serve(&mut disk, c"/nowhere,colour=red".as_ptr()) },
        -libc::EINVAL
    );
    assert!(said().contains("there are: mode"), "{}", said());
}

/// A disk that ring3d's threads use, and its program's loop until it is told to end.
fn lent(run: impl FnOnce(&HostedDisk, &Arc<DiskShared>) + Send) {
    let (disk, _memory) = made(|_| {});
    let mut disk = disk.unwrap();
    let driven = disk.driven().unwrap();
    driven.shared.lent.set(Lent::new().unwrap()).ok().unwrap();
    let (hosted, shared) = (driven.disk.clone(), driven.shared.clone());
    std::thread::scope(|scope| {
        let user = scope.spawn(move || {
            run(&hosted, &shared);
            shared.lent.get().unwrap().stop();
        });
        assert_eq!(drive(&mut disk, well, &AtomicBool::new(false)), -libc::ESHUTDOWN);
        user.join().unwrap();
    });
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

#[test]
fn a_disk_that_is_lent_wakes_its_program_and_who_waits_for_it() {
    lent(|disk, _| {
        let mut queue = disk.open_queue(DEPTH).unwrap();
        let begin = std::time::Instant::now();
        for round in 0..2000u64 {
            let data = disk.dma().arena().alloc_pages(BLOCK).unwrap();
            data.write(0, &[round as u8; BLOCK]).unwrap();
            execute(&mut *queue, Request::write(round, round % 100, 1, data), soon())
                .unwrap()
                .result
                .unwrap();
            let data = disk.dma().arena().alloc_pages(BLOCK).unwrap();
            let read =
                execute(&mut *queue, Request::read(round, round % 100, 1, data), soon()).unwrap();
            read.result.unwrap();
            let Data::Buffer(data) = read.data else { panic!("another memory has come back") };
            let mut bytes = [0; BLOCK];
            data.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [round as u8; BLOCK]);
        }
        // The loop looks by itself 50 times a second: that is not what has ended 4,000 requests.
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "nobody was woken: {:?}",
            begin.elapsed()
        );
    });
}

#[test]
fn the_queue_of_a_disk_that_is_lent_is_opened_again_once_nothing_is_in_flight() {
    lent(|disk, _| {
        let queue = disk.open_queue(DEPTH).unwrap();
        assert!(matches!(disk.open_queue(DEPTH).err(), Some(Error::Busy(_))));
        drop(queue);
        let mut queue = disk.open_queue(4).unwrap();
        execute(&mut *queue, Request::flush(1), soon()).unwrap().result.unwrap();
    });
}

#[test]
fn a_disk_that_is_lent_takes_no_memory_that_its_device_does_not_reach() {
    lent(|disk, _| {
        let mut queue = disk.open_queue(4).unwrap();
        let rejected =
            queue.submit(Request::read(1, 0, 1, Foreign::from(vec![0; BLOCK]))).unwrap_err();
        assert_eq!(rejected.error, Some(IoError::Invalid));
    });
}

#[test]
fn a_program_that_has_lost_its_disk_says_so_to_who_looks_after_the_queue() {
    lent(|disk, shared| {
        let mut queue = disk.open_queue(4).unwrap();
        assert_eq!(queue.tick(std::time::Instant::now()).unwrap(), None);
        shared.lent.get().unwrap().lose();
        assert!(matches!(queue.tick(std::time::Instant::now()), Err(Error::Gone)));
    });
}
