//! System calls that wait, brought to [`clock`](crate::clock).
//!
//! The crates wait by rustix, which in the workspace's build makes system calls itself: no function
//! of the C library stands between, which [`clock`](crate::clock) could replace. The option of
//! rustix that changes this (`use-libc`, which libFuzzer's build has) would compile all crates once
//! more. So a filter of seccomp(2) turns these calls into SIGSYS, whose handler calls
//! [`clock`](crate::clock). A call from the C library's syscall(2), by which the clock itself makes
//! them, passes the filter.

/// Brings the waits of this thread, and of threads that it starts, to the virtual clock.
#[cfg(not(target_arch = "x86_64"))]
pub fn install() -> std::io::Result<()> {
    use std::io;

    // The handler reads registers by name.
    Err(io::Error::new(io::ErrorKind::Unsupported, "targets are replayed on x86-64 alone"))
}

#[cfg(target_arch = "x86_64")]
pub use x86_64::install;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::ffi::{c_int, c_long, c_void};
    use std::{io, mem, ptr};

    use libc::{sock_filter, sock_fprog, ucontext_t};

    use crate::clock;

    /// The system calls that are trapped.
    const WAITS: [c_long; 5] = [
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
    ];
    /// Bytes of the C library's syscall(2), at least. glibc's has 0x33.
    const SYSCALL_LEN: u32 = 64;
    /// Offsets in `struct seccomp_data`. [linux/seccomp.h]
    const NUMBER: u32 = 0;
    const ADDRESS_LOW: u32 = 8;
    const ADDRESS_HIGH: u32 = 12;

    /// A step of a filter: goes on `yes` or `no` steps behind the next one.
    fn step(code: u32, yes: usize, no: usize, k: u32) -> sock_filter {
        sock_filter { code: code as u16, jt: yes as u8, jf: no as u8, k }
    }

    fn filter() -> Vec<sock_filter> {
        let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
        let end = |action| step(libc::BPF_RET | libc::BPF_K, 0, 0, action);
        let jump = |kind, yes, no, k| step(libc::BPF_JMP | kind | libc::BPF_K, yes, no, k);
        let own = libc::syscall as *const () as u64;
        let mut steps = vec![load(NUMBER)];
        for (index, &number) in WAITS.iter().enumerate() {
            // Behind the other numbers and the end of those that are not in the list.
            let wait = WAITS.len() - index;
            steps.push(jump(libc::BPF_JEQ, wait, 0, number as u32));
        }
        steps.push(end(libc::SECCOMP_RET_ALLOW));
        steps.push(load(ADDRESS_HIGH));
        steps.push(jump(libc::BPF_JEQ, 0, 3, (own >> 32) as u32));
        steps.push(load(ADDRESS_LOW));
        steps.push(step(libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K, 0, 0, own as u32));
        steps.push(jump(libc::BPF_JGE, 0, 1, SYSCALL_LEN));
        steps.push(end(libc::SECCOMP_RET_TRAP));
        steps.push(end(libc::SECCOMP_RET_ALLOW));
        steps
    }

    /// Does the system call that a thread was about to make.
    extern "C" fn handle(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO the registers of the thread, which
        // nobody else has meanwhile.
        let registers = unsafe { &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs };
        let argument = |register: c_int| registers[register as usize];
        // The first four arguments; the number of the call is where the result goes. [man syscall]
        let [a, b, c, d] =
            [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10].map(argument);
        let number = argument(libc::REG_RAX);
        // SAFETY: `errno` is the thread's. Who made the system call does not expect it to change.
        let errno = unsafe { &mut *libc::__errno_location() };
        let before = *errno;
        // SAFETY: whoever makes the system call promises what the kernel needs, and the clock's
        // functions pass it on.
        let result = unsafe {
            match number {
                libc::SYS_poll => clock::poll(a as _, b as _, c as c_int),
                libc::SYS_ppoll => clock::ppoll(a as _, b as _, c as _, d as _),
                libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
                    clock::epoll_wait(a as c_int, b as _, c as c_int, d as c_int)
                }
                _ => clock::epoll_pwait2(a as c_int, b as _, c as c_int, d as _, ptr::null()),
            }
        };
        // The kernel's result: an error is a negative number.
        let result = if result < 0 { -*errno } else { result };
        *errno = before;
        registers[libc::REG_RAX as usize] = result.into();
    }

    /// Brings the waits of this thread, and of threads that it starts, to the virtual clock.
    pub fn install() -> io::Result<()> {
        let mut steps = filter();
        let program = sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        let check = |result: c_int| match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: all zero is a valid `sigaction`, and the handler has the signature that
        // SA_SIGINFO says. The filter is read before prctl(2) returns.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            check(libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()))?;
            // Without this, a filter needs CAP_SYS_ADMIN. [man seccomp]
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            let mode = libc::SECCOMP_MODE_FILTER;
            check(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program))
        }
    }
}
