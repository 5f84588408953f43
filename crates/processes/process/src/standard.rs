//! Whether standard output was there when the program was started.
//!
//! The standard library opens `/dev/null` in the place of a closed standard descriptor before
//! `main`, so that no other file gets its number. What is printed then goes nowhere, and nothing
//! fails. The descriptor is therefore looked at before that, by a function that the loader calls.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions of this type. The loader calls each once, before
// `main` and on the only thread.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: the call reads a flag of a descriptor, whether that is open or not.
        let answer = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(answer < 0, Ordering::Relaxed);
    }
    look
};

/// Whether the program was started without a standard output.
pub fn output_was_closed() -> bool {
    // Keeps the linker from dropping the function.
    black_box(&LOOK);
    CLOSED.load(Ordering::Relaxed)
}
