//! How much memory an input makes the code under test allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(isize::MAX) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends has no counters any more.
    let held = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        held.get()
    });
    if held.is_ok_and(|held| bytes > 0 && MOST.try_with(Cell::get).is_ok_and(|most| held > most)) {
        exceed(bytes);
    }
}

/// Ends the process at the allocation that is too much: an allocator must not panic.
#[cold]
fn exceed(bytes: isize) {
    MOST.set(isize::MAX);
    eprintln!("panicked at an allocation of {bytes} bytes:");
    eprintln!("more memory is held than the target allows\n{}", Backtrace::force_capture());
    std::process::abort();
}

// SAFETY: everything is the system's allocator; the counters are of the thread, and allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does `job`, and fails if this thread has at any time more than `most` bytes beside those that it
/// had before.
pub fn bounded<T>(most: usize, job: impl FnOnce() -> T) -> T {
    let before = MOST.replace(HELD.get() + most as isize);
    let done = job();
    MOST.set(before);
    done
}
