use std::time::Duration;

use ring3_device::dma::{Foreign, Mode};

use super::super::{BlockQueue, Disk, Ram, open};
use super::*;

const SOON: Duration = Duration::from_secs(5);

fn disk() -> Ram {
    // At most 16 blocks in one request.
    Ram::new(512, 4096, 8 << 20).unwrap().with_info(|info| info.max_transfer = 8 << 10)
}

fn queue(disk: &Ram, depth: u16) -> BlockQueue {
    open(disk, depth, ForeignAccess::default()).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 7 + i) as u8).collect()
}

fn execute(queue: &mut BlockQueue, request: Request) -> Completion {
    queue.execute(request, Deadline::after(SOON)).unwrap()
}

fn write(queue: &mut BlockQueue, lba: u64, bytes: Vec<u8>) {
    let blocks = (bytes.len() / 512) as u32;
    assert_eq!(execute(queue, Request::write(1, lba, blocks, Foreign::from(bytes))).result, Ok(()));
}

fn read(queue: &mut BlockQueue, disk: &Ram, lba: u64, blocks: u32) -> Vec<u8> {
    let buffer = disk.dma().arena().alloc_pages(blocks as usize * 512).unwrap();
    let done = execute(queue, Request::read(2, lba, blocks, buffer));
    assert_eq!((done.token, done.result), (2, Ok(())));
    let mut bytes = vec![0; blocks as usize * 512];
    done.data.into_buffer().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_request_that_fits_passes_uncut() {
    let disk = disk();
    let mut queue = queue(&disk, 4);
    read(&mut queue, &disk, 0, 16);
    assert_eq!(queue.stats(), SplitterStats { passed: 1, ..SplitterStats::default() });
}

#[test]
fn a_long_request_is_cut_and_completes_once_with_its_data() {
    let disk = disk();
    let mut queue = queue(&disk, 4);
    write(&mut queue, 3, pattern(100 * 512));
    assert_eq!(read(&mut queue, &disk, 3, 100), pattern(100 * 512));
    assert_eq!(queue.stats().cut, 2);
    assert_eq!((queue.in_flight(), queue.reap_one().unwrap().is_none()), (0, true));
}

#[test]
fn a_request_with_more_parts_than_the_queue_is_deep_completes() {
    let disk = disk();
    let mut queue = queue(&disk, 1);
    write(&mut queue, 0, pattern(200 * 512));
    assert_eq!(read(&mut queue, &disk, 0, 200), pattern(200 * 512));
}

#[test]
fn several_long_requests_share_a_short_queue() {
    let disk = disk();
    let mut queue = queue(&disk, 3);
    for token in 0..3 {
        let bytes = Foreign::from(vec![token as u8 + 1; 64 * 512]);
        let request = Request::write(token, token * 64, 64, bytes);
        if let Err(rejected) = queue.submit(request) {
            assert_eq!(rejected.error, None);
        }
    }
    queue.ring();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        done.extend(queue.reap_one().unwrap().map(|completion| completion.token));
    }
    done.sort();
    assert!(!done.is_empty());
    for token in done {
        assert_eq!(read(&mut queue, &disk, token * 64, 64), vec![token as u8 + 1; 64 * 512]);
    }
}

#[test]
fn a_queue_holds_as_many_requests_as_it_says_however_long_they_are() {
    let disk = disk();
    let mut queue = queue(&disk, 2);
    let buffer = |blocks: usize| disk.dma().arena().alloc_pages(blocks * 512).unwrap();
    queue.submit(Request::read(1, 0, 48, buffer(48))).unwrap();
    for (token, blocks) in [(2, 40), (2, 8)] {
        queue.submit(Request::read(token, 100, blocks, buffer(blocks as usize))).unwrap();
        assert_eq!(queue.in_flight(), 2);
        queue.ring();
        let mut ended: Vec<_> = (0..2)
            .map(|_| super::super::next(&mut queue, Deadline::after(SOON)).unwrap().token)
            .collect();
        ended.sort_unstable();
        assert_eq!((ended, queue.in_flight()), (vec![1, 2], 0));
        queue.submit(Request::read(1, 0, 48, buffer(48))).unwrap();
    }
}

#[test]
fn foreign_pages_are_mapped_and_foreign_bytes_are_copied() {
    let disk = disk();
    let mut queue = queue(&disk, 4);
    let memory = Foreign::new(8192).unwrap();
    memory.write(0, &pattern(8192)).unwrap();
    assert_eq!(execute(&mut queue, Request::write(1, 0, 16, memory)).result, Ok(()));
    assert_eq!((queue.stream_stats().mapped, queue.stream_stats().copied), (1, 0));
    let memory = Foreign::from(vec![0; 8192]);
    assert_eq!(execute(&mut queue, Request::read(1, 0, 16, memory.clone())).result, Ok(()));
    assert_eq!(queue.stream_stats().copied, 1);
    let mut bytes = vec![0; 8192];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, pattern(8192));
}

#[test]
fn copying_needs_no_more_than_the_buffers_set_aside() {
    let disk = Ram::new(512, 4096, 64 << 10).unwrap().with_info(|info| info.max_transfer = 8 << 10);
    let access = ForeignAccess { mode: Mode::Copy, copies: 1, ..ForeignAccess::default() };
    let mut queue = open(&disk, 8, access).unwrap();
    let mut rest = Vec::new();
    while let Ok(buffer) = disk.dma().arena().alloc_pages(4096) {
        rest.push(buffer);
    }
    write(&mut queue, 0, pattern(128 * 512));
    drop(rest);
    assert_eq!(read(&mut queue, &disk, 0, 64), pattern(128 * 512)[..64 * 512]);
}

#[test]
fn long_discards_and_zeroes_are_cut_to_the_limits_of_the_device() {
    let disk = disk().with_info(|info| info.max_write_zeroes_blocks = 10);
    let mut queue = queue(&disk, 4);
    write(&mut queue, 0, pattern(64 * 512));
    assert_eq!(execute(&mut queue, Request::write_zeroes(5, 1, 62)).result, Ok(()));
    assert_eq!(queue.stats().parts, 4 + 7);
    let bytes = read(&mut queue, &disk, 0, 64);
    assert_eq!(
        (&bytes[..512], &bytes[63 * 512..]),
        (&pattern(64 * 512)[..512], &pattern(64 * 512)[63 * 512..])
    );
    assert!(bytes[512..63 * 512].iter().all(|&byte| byte == 0));
}

#[test]
fn a_request_that_makes_no_sense_is_refused_with_its_data() {
    let disk = disk();
    let mut queue = queue(&disk, 4);
    let rejected =
        queue.submit(Request::write(1, 4095, 2, Foreign::from(vec![0; 1024]))).unwrap_err();
    assert_eq!((rejected.error, rejected.request.data.len()), (Some(IoError::OutOfRange), 1024));
    assert_eq!((queue.stats().refused, queue.in_flight()), (1, 0));
}

#[test]
fn a_token_with_the_reserved_bit_is_refused() {
    let disk = disk();
    assert_eq!(
        queue(&disk, 4).submit(Request::flush(PART)).unwrap_err().error,
        Some(IoError::Invalid)
    );
}

/// A queue whose requests fail from the nth on, and which counts them.
struct Failing<Q> {
    inner: Q,
    good: u32,
    seen: u32,
}

impl<Q: Queue> Queue for Failing<Q> {
    fn info(&self) -> &Info {
        self.inner.info()
    }
    fn depth(&self) -> u16 {
        self.inner.depth()
    }
    fn in_flight(&self) -> u16 {
        self.inner.in_flight()
    }
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        self.inner.submit(request).inspect(|()| self.seen += 1)
    }
    fn ring(&mut self) {
        self.inner.ring();
    }
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let count = self.inner.reap(done)?;
        for completion in &mut done[..count] {
            self.good = self.good.saturating_sub(1);
            let error = if self.good == 0 { Err(IoError::Medium) } else { Ok(()) };
            completion.result = completion.result.and(error);
        }
        Ok(count)
    }
}

impl<Q: Queue> Source for Failing<Q> {
    fn irq(&self) -> Option<&Irq> {
        None
    }
    fn pending(&self) -> bool {
        self.inner.pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        self.inner.arm()
    }
    fn disarm(&mut self) -> Result<(), Error> {
        self.inner.disarm()
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.inner.tick(now)
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        self.inner.wait(deadline)
    }
}

#[test]
fn the_first_error_ends_a_long_request_and_starts_no_further_part() {
    let disk = disk();
    let failing = Failing { inner: disk.open_queue(1).unwrap(), good: 3, seen: 0 };
    let mut queue = Splitter::new(failing);
    let buffer = disk.dma().arena().alloc_pages(160 * 512).unwrap();
    let done = queue.execute(Request::read(9, 0, 160, buffer), Deadline::after(SOON)).unwrap();
    assert_eq!((done.token, done.result, done.data.len()), (9, Err(IoError::Medium), 160 * 512));
    assert_eq!((queue.inner().seen, queue.in_flight()), (3, 0));
}

#[test]
fn a_splitter_without_a_way_to_foreign_memory_refuses_it() {
    let disk = disk();
    let mut queue = Splitter::new(disk.open_queue(1).unwrap());
    let rejected = queue.submit(Request::write(1, 0, 1, Foreign::from(vec![0; 512]))).unwrap_err();
    assert_eq!(rejected.error, Some(IoError::Invalid));
}

#[test]
fn an_invented_part_is_an_error_and_the_queue_lives() {
    let disk = disk();
    let mut queue = queue(&disk, 4);
    let stray = Completion { token: PART | 0x1_0001, result: Ok(()), data: Data::None };
    assert!(matches!(queue.part_done(stray), Err(Error::Protocol(_))));
    write(&mut queue, 0, pattern(64 * 512));
}

/// A queue whose device nobody can stop: it gives all data up.
struct Unstoppable(Box<dyn Queue>);

impl Queue for Unstoppable {
    fn info(&self) -> &Info {
        self.0.info()
    }
    fn depth(&self) -> u16 {
        self.0.depth()
    }
    fn in_flight(&self) -> u16 {
        self.0.in_flight()
    }
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        self.0.submit(request)
    }
    fn ring(&mut self) {
        self.0.ring();
    }
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let count = self.0.reap(done)?;
        for completion in &mut done[..count] {
            std::mem::forget(std::mem::take(&mut completion.data));
            completion.result = Err(IoError::Transport);
        }
        Ok(count)
    }
}

impl Source for Unstoppable {
    fn irq(&self) -> Option<&Irq> {
        None
    }
    fn pending(&self) -> bool {
        self.0.pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        self.0.arm()
    }
    fn disarm(&mut self) -> Result<(), Error> {
        self.0.disarm()
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.0.tick(now)
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        self.0.wait(deadline)
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        self.ring();
        while let Ok(Some(_)) = self.reap_one() {}
    }
}

#[test]
fn memory_that_the_driver_gives_up_comes_back_neither_with_the_request_nor_with_the_queue() {
    let disk = disk();
    let arena = disk.dma().arena();
    let buffer = || arena.alloc_pages(64 * 512).unwrap();
    let mut queue = Splitter::new(Unstoppable(disk.open_queue(8).unwrap()));
    let before = arena.free_bytes();
    let done = queue.execute(Request::read(1, 0, 64, buffer()), Deadline::after(SOON)).unwrap();
    assert_eq!((done.result, done.data.len()), (Err(IoError::Transport), 0));
    queue.submit(Request::read(2, 0, 64, buffer())).unwrap();
    drop(queue);
    assert_eq!(arena.free_bytes(), before - 2 * 64 * 512);
}

#[test]
fn mapped_memory_that_the_driver_gives_up_stays_mapped() {
    let disk = disk();
    let inner = Unstoppable(disk.open_queue(8).unwrap());
    let mut queue =
        Splitter::new(inner).with_foreign(disk.dma(), ForeignAccess::default()).unwrap();
    let done = queue
        .execute(Request::read(1, 0, 16, Foreign::new(8192).unwrap()), Deadline::after(SOON))
        .unwrap();
    assert_eq!(done.data.len(), 0);
    drop(queue);
    assert_eq!(disk.mappings(), 2);
}
