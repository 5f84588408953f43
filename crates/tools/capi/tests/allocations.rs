//! What a request of a program costs beside the device's work: no allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ring3::disk::opened::{ring3_disk_alloc, ring3_disk_open};
use ring3::disk::requests::{
    DiskCompletion, ring3_disk_queue_close, ring3_disk_queue_open, ring3_disk_queue_reap,
    ring3_disk_queue_ring, ring3_disk_queue_submit, ring3_disk_queue_wait,
};
use ring3::disk::{DiskRequest, RING3_READ, ring3_disk_close};
use ring3::dma::{ring3_dma_address, ring3_dma_release};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's, which it counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: usize = 16;

#[test]
fn a_request_allocates_nothing() {
    let (mut disk, mut queue, mut buffer) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: texts, places, and handles that were just opened.
    unsafe {
        assert_eq!(ring3_disk_open(c"sim:nvme".as_ptr(), std::ptr::null(), &mut disk), 0);
        assert_eq!(ring3_disk_queue_open(&*disk, DEPTH as u16, &mut queue), 0);
        assert_eq!(ring3_disk_alloc(&*disk, DEPTH * 4096, &mut buffer), 0);
    }
    // SAFETY: they are open until the end of this test.
    let (open, memory) = unsafe { (&mut *queue, ring3_dma_address(&*buffer)) };
    let requests: Vec<_> = (0..DEPTH)
        .map(|nth| DiskRequest {
            tag: nth as u64,
            lba: nth as u64 * 8,
            data: memory.wrapping_byte_add(nth * 4096),
            blocks: 8,
            operation: RING3_READ,
            fua: false,
        })
        .collect();
    let mut ends = vec![DiskCompletion::default(); DEPTH];
    let mut round = || {
        let mut left = DEPTH;
        // SAFETY: requests and places as many as are said, and bytes of a buffer that stays.
        assert_eq!(unsafe { ring3_disk_queue_submit(open, requests.as_ptr(), DEPTH) }, 16);
        ring3_disk_queue_ring(open);
        while left > 0 {
            assert_eq!(ring3_disk_queue_wait(open, 10_000), 1);
            // SAFETY: as above.
            let count = unsafe { ring3_disk_queue_reap(open, ends.as_mut_ptr(), DEPTH) };
            assert!(ends[..count as usize].iter().all(|end| end.error == 0));
            left -= count as usize;
        }
    };
    // What the waits need is made at the first sleep.
    (0..50).for_each(|_| round());
    let before = COUNT.get();
    (0..200).for_each(|_| round());
    assert_eq!(COUNT.get() - before, 0, "3,200 reads have allocated");
    // SAFETY: each was opened and is ended once.
    unsafe {
        ring3_disk_queue_close(queue);
        ring3_dma_release(buffer);
        ring3_disk_close(disk);
    }
}
