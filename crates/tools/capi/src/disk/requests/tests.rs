//! A disk that ring3 drives for a program.

use std::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::opened::{ring3_disk_alloc, ring3_disk_open, ring3_disk_register};
use super::super::{ring3_disk_close, ring3_disk_fd, ring3_disk_turn};
use super::*;
use crate::dma::{Buffer, ring3_dma_address, ring3_dma_len, ring3_dma_release};

const DEPTH: u16 = 8;
const BLOCK: usize = 512;
const PATIENCE: u32 = 20_000;

/// A disk with a queue, and a buffer of a block for each of its requests.
struct Opened {
    disk: *mut Disk,
    queue: *mut DiskQueue,
    buffer: *mut Buffer,
}

impl Opened {
    fn new(uri: &CStr) -> Self {
        let (mut disk, mut queue, mut buffer) = (null_mut(), null_mut(), null_mut());
        // SAFETY: a text, places, and a disk that was just opened.
        unsafe {
            assert_eq!(ring3_disk_open(uri.as_ptr(), std::ptr::null(), &mut disk), 0, "{}", said());
            assert_eq!(ring3_disk_queue_open(&*disk, DEPTH, &mut queue), 0, "{}", said());
            assert_eq!(ring3_disk_alloc(&*disk, 1 << 20, &mut buffer), 0, "{}", said());
        }
        Self { disk, queue, buffer }
    }

    fn disk(&self) -> &Disk {
        // SAFETY: it is open until this is dropped.
        unsafe { &*self.disk }
    }

    fn queue(&mut self) -> &mut DiskQueue {
        // SAFETY: as above, and nobody else has it.
        unsafe { &mut *self.queue }
    }

    fn at(&self, offset: usize) -> *mut c_void {
        // SAFETY: as above.
        ring3_dma_address(unsafe { &*self.buffer }).wrapping_byte_add(offset)
    }

    fn submit(&mut self, requests: &[DiskRequest]) -> c_int {
        // SAFETY: so many, whose bytes are the buffer's or refused.
        unsafe { ring3_disk_queue_submit(self.queue(), requests.as_ptr(), requests.len()) }
    }

    fn execute(&mut self, request: DiskRequest) -> c_int {
        // SAFETY: its bytes are the buffer's or refused.
        unsafe { ring3_disk_queue_execute(self.queue(), &request, PATIENCE) }
    }

    fn reap(&mut self) -> Vec<DiskCompletion> {
        let mut ends = [DiskCompletion::default(); DEPTH as usize];
        // SAFETY: so many places.
        let count = unsafe { ring3_disk_queue_reap(self.queue(), ends.as_mut_ptr(), ends.len()) };
        assert!(count >= 0, "{}", said());
        ends[..count as usize].to_vec()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: each is ended once; in the order that a program may choose worst.
        unsafe {
            ring3_disk_close(self.disk);
            ring3_disk_queue_close(self.queue);
            ring3_dma_release(self.buffer);
        }
    }
}

fn said() -> String {
    // SAFETY: it points to the text that this thread keeps.
    unsafe { CStr::from_ptr(crate::error::ring3_error()) }.to_str().unwrap().to_owned()
}

fn request(operation: u32, lba: u64, data: *mut c_void) -> DiskRequest {
    DiskRequest { tag: lba, lba, data, blocks: 1, operation, fua: false }
}

#[test]
fn what_was_written_is_read_elsewhere_in_the_buffer() {
    let mut opened = Opened::new(c"sim:nvme");
    // SAFETY: a block of the buffer.
    unsafe { opened.at(512).write_bytes(0x5a, BLOCK) };
    assert_eq!(opened.execute(request(RING3_WRITE, 7, opened.at(512))), 0, "{}", said());
    assert_eq!(opened.execute(request(RING3_READ, 7, opened.at(9 * 512))), 0, "{}", said());
    // SAFETY: as above.
    let byte = unsafe { opened.at(9 * 512 + 511).cast::<u8>().read() };
    assert_eq!(byte, 0x5a);
    assert_eq!(opened.execute(request(RING3_FLUSH, 0, null_mut())), 0, "{}", said());
}

#[test]
fn bytes_outside_of_the_disks_memory_are_refused_and_say_so() {
    let mut opened = Opened::new(c"sim:nvme");
    let mut own = [0u8; BLOCK];
    let mine = own.as_mut_ptr().cast();
    assert_eq!(opened.submit(&[request(RING3_READ, 0, mine)]), -libc::EFAULT);
    assert!(said().contains("not in a buffer of the disk"), "{}", said());
    assert_eq!(opened.execute(request(RING3_READ, 0, null_mut())), -libc::EFAULT);
    assert_eq!(
        opened.submit(&[DiskRequest { operation: 9, ..request(0, 0, mine) }]),
        -libc::EINVAL
    );
}

#[test]
fn a_batch_ends_before_what_makes_no_sense_and_says_why_at_the_next_call() {
    let mut opened = Opened::new(c"sim:nvme");
    let good = request(RING3_READ, 1, opened.at(0));
    let beyond = DiskRequest { lba: 1 << 40, ..request(RING3_READ, 2, opened.at(512)) };
    assert_eq!(opened.submit(&[good, beyond, good]), 1);
    assert_eq!(opened.submit(&[beyond, good]), -libc::EINVAL);
    assert!(said().contains("beyond the end of the disk"), "{}", said());
}

#[test]
fn a_full_queue_takes_fewer_and_all_of_them_end() {
    let mut opened = Opened::new(c"sim:nvme");
    let depth = ring3_disk_queue_depth(opened.queue());
    let all: Vec<_> =
        (0..100).map(|nth| request(RING3_READ, nth, opened.at(nth as usize * BLOCK))).collect();
    let (mut begun, mut ended) = (0, Vec::new());
    while ended.len() < all.len() {
        let count = opened.submit(&all[begun..]);
        assert!((0..=depth.into()).contains(&count), "{count} of {depth}: {}", said());
        begun += count as usize;
        ring3_disk_queue_ring(opened.queue());
        assert_eq!(ring3_disk_queue_wait(opened.queue(), PATIENCE), 1, "{}", said());
        ended.extend(opened.reap().into_iter().map(|end| (end.tag, end.error, end.lost)));
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..100).map(|tag| (tag, 0, false)).collect::<Vec<_>>());
    assert_eq!(ring3_disk_queue_in_flight(opened.queue()), 0);
}

#[test]
fn a_request_may_be_longer_than_the_device_takes() {
    let mut opened = Opened::new(c"sim:nvme");
    let blocks = (1 << 20) / BLOCK as u32;
    // SAFETY: all of the buffer.
    unsafe { opened.at(0).write_bytes(0x33, 1 << 20) };
    let whole = |operation| DiskRequest { blocks, ..request(operation, 0, null_mut()) };
    let at = opened.at(0);
    assert_eq!(opened.execute(DiskRequest { data: at, ..whole(RING3_WRITE) }), 0, "{}", said());
    // SAFETY: as above.
    unsafe { opened.at(0).write_bytes(0, 1 << 20) };
    assert_eq!(opened.execute(DiskRequest { data: at, ..whole(RING3_READ) }), 0, "{}", said());
    // SAFETY: as above.
    let last = unsafe { opened.at((1 << 20) - 1).cast::<u8>().read() };
    assert_eq!(last, 0x33);
}

#[test]
fn a_wait_without_a_request_ends_with_its_time() {
    let mut opened = Opened::new(c"sim:nvme");
    assert_eq!(ring3_disk_queue_wait(opened.queue(), 5), 0);
}

#[test]
fn the_descriptor_is_readable_when_something_has_ended() {
    let mut opened = Opened::new(c"sim:nvme");
    let fd = ring3_disk_queue_fd(opened.queue());
    assert!(fd >= 0, "{}", said());
    for round in 0..20 {
        let read = request(RING3_READ, round, opened.at(0));
        assert_eq!(opened.submit(&[read]), 1);
        ring3_disk_queue_ring(opened.queue());
        let mut timeout = 0;
        // SAFETY: a number.
        while unsafe { ring3_disk_queue_arm(opened.queue(), &mut timeout) } == 1 {
            // SAFETY: it is the queue's, and open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(woken, 1, "round {round}: nothing has woken the loop");
        }
        assert_eq!(opened.reap().len(), 1);
    }
}

#[test]
fn an_idle_queue_may_be_slept_on_without_an_end() {
    let mut opened = Opened::new(c"sim:nvme");
    let mut timeout = 0;
    // SAFETY: a number.
    assert_eq!(unsafe { ring3_disk_queue_arm(opened.queue(), &mut timeout) }, 1);
    assert_eq!(timeout, -1);
}

#[test]
fn memory_that_a_program_has_made_is_registered_and_read_into_without_a_copy() {
    let mut opened = Opened::new(c"sim:nvme");
    let file = rustix::fs::memfd_create("mine", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let mut lent = null_mut();
    // SAFETY: a place.
    let result =
        unsafe { ring3_disk_register(opened.disk(), file.as_raw_fd(), 0, 8192, &mut lent) };
    assert_eq!(result, 0, "{}", said());
    // SAFETY: it was just registered.
    let (data, len) = unsafe { (ring3_dma_address(&*lent), ring3_dma_len(&*lent)) };
    assert_eq!(len, 8192);
    // SAFETY: a block of the buffer.
    unsafe { opened.at(0).write_bytes(0x77, BLOCK) };
    assert_eq!(opened.execute(request(RING3_WRITE, 3, opened.at(0))), 0, "{}", said());
    let last = data.wrapping_byte_add(8192 - BLOCK);
    assert_eq!(opened.execute(request(RING3_READ, 3, last)), 0, "{}", said());
    let mut found = [0; BLOCK];
    rustix::io::pread(&file, &mut found, 8192 - BLOCK as u64).unwrap();
    assert_eq!(found, [0x77; BLOCK]);
    // SAFETY: it is ended once.
    unsafe { ring3_dma_release(lent) };
    // It stays registered.
    assert_eq!(opened.execute(request(RING3_READ, 3, data)), 0, "{}", said());
}

#[test]
fn a_descriptor_that_is_none_and_half_a_page_are_refused() {
    let opened = Opened::new(c"sim:nvme");
    let file = rustix::fs::memfd_create("mine", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 8192).unwrap();
    let mut lent = null_mut();
    // SAFETY: a place.
    let mut register =
        |fd, len| unsafe { ring3_disk_register(opened.disk(), fd, 0, len, &mut lent) };
    assert_eq!(register(-1, 4096), -libc::EBADF);
    assert_eq!(register(1 << 20, 4096), -libc::EBADF);
    assert_eq!(register(file.as_raw_fd(), 100), -libc::EINVAL);
    assert_eq!(register(file.as_raw_fd(), 16384), -libc::EINVAL);
}

#[test]
fn an_opened_disk_is_nothing_to_serve() {
    let mut opened = Opened::new(c"sim:nvme");
    assert_eq!(ring3_disk_fd(opened.disk()), -libc::EINVAL);
    // SAFETY: it is open.
    assert_eq!(ring3_disk_turn(unsafe { &mut *opened.disk }), -libc::EINVAL);
    assert!(said().contains("opened by ring3_disk_open"), "{}", said());
    assert_eq!(opened.reap().len(), 0);
}

#[test]
fn a_disk_of_several_is_chosen_by_its_number() {
    let mut disk = null_mut();
    let uri = c"sim:nvme,namespaces=2".as_ptr();
    // SAFETY: a text and a place.
    assert_eq!(unsafe { ring3_disk_open(uri, std::ptr::null(), &mut disk) }, -libc::EINVAL);
    assert!(said().contains("namespace 2"), "{}", said());
    let options = super::super::opened::DiskOptions { choose: true, part: 2, ..Default::default() };
    // SAFETY: as above.
    unsafe {
        assert_eq!(ring3_disk_open(uri, &options, &mut disk), 0, "{}", said());
        ring3_disk_close(disk);
    }
}
