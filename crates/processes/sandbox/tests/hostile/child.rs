//! The hostile process.

use std::os::fd::RawFd;

use ring3_sandbox::{Sandbox, enter};

/// Goes on as a process with one thread, which the test's is not. Its end is this one's: by a
/// signal, 128 and its number.
fn alone() {
    // SAFETY: the test's other thread waits and holds nothing; the C library makes its own locks
    // fit.
    let child = unsafe { libc::fork() };
    if child != 0 {
        let mut status = 0;
        // SAFETY: the number is this function's.
        unsafe { libc::waitpid(child, &mut status, 0) };
        std::process::exit(if libc::WIFSIGNALED(status) {
            128 + libc::WTERMSIG(status)
        } else {
            libc::WEXITSTATUS(status)
        });
    }
}

/// Confines this process as an NVMe driver's.
pub fn confine() {
    confine_with(&[]);
}

/// The same, which keeps `fds`, too.
pub fn confine_with(fds: &[RawFd]) {
    alone();
    let mut sandbox = Sandbox::new(ring3_manifest::drivers(Some("nvme")), "lease").unwrap();
    sandbox.keep.extend([3].iter().chain(fds));
    if let Err(error) = enter(&sandbox) {
        println!("{error}");
        std::process::exit(2);
    }
}

/// Confines this process as the driver of a network card that uses vhost-net.
pub fn confine_for_vhost() {
    alone();
    let mut sandbox = Sandbox::new(ring3_manifest::drivers(Some("e1000")), "lease").unwrap();
    sandbox.keep.push(3);
    sandbox.vhost = true;
    if let Err(error) = enter(&sandbox) {
        println!("{error}");
        std::process::exit(2);
    }
}

/// Confines this process, makes a system call, and says what came of it.
pub fn call(number: libc::c_long, arguments: [usize; 6]) -> ! {
    confine();
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel is expected to refuse it; pointers among the arguments are of memory that
    // lives.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    println!("let through: {result} {}", std::io::Error::last_os_error());
    std::process::exit(1)
}
