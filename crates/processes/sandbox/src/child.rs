//! The child between its birth and its program: system calls and nothing else.
//!
//! # Trust
//! The child of a process with threads may find any lock taken for ever, the memory allocator's
//! among them. So nothing here allocates, locks, formats or panics; all memory was made before.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use libc::{c_char, c_int, c_uint, c_ulong};

/// What a child needs, made before it is born.
pub(crate) struct Plan<'a> {
    /// The program.
    pub(crate) program: RawFd,
    /// For execve: ends with a null pointer each.
    pub(crate) argv: &'a [*const c_char],
    pub(crate) envp: &'a [*const c_char],
    /// A descriptor, and where the child has it.
    pub(crate) fds: &'a mut [(RawFd, RawFd)],
    /// Behind all of those places.
    pub(crate) high: RawFd,
    /// Resources with the most of them.
    pub(crate) limits: &'a [(c_uint, u64)],
    /// Takes the number of the error that ends it.
    pub(crate) report: RawFd,
}

/// How a clone is made, and what came of it.
pub(crate) struct CloneArgs {
    pub(crate) flags: u64,
    /// The folder of a control group, if `flags` say so.
    pub(crate) group: RawFd,
}

/// Closes the descriptors `first` to `last`.
pub(crate) fn close(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: they belong to nobody who uses them afterwards: the caller confines a process that
    // keeps no others, or is a child that has copied what it needs.
    match unsafe {
        libc::syscall(libc::SYS_close_range, first as c_ulong, last as c_ulong, 0 as c_ulong)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Starts a child that does what `plan` says: its process number and its descriptor.
pub(crate) fn start(birth: &CloneArgs, plan: &mut Plan<'_>) -> io::Result<(u32, RawFd)> {
    let mut pidfd: c_int = -1;
    // SAFETY: the structure is plain numbers, for all of which zero means nothing.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = birth.flags | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = birth.group as u64;
    // SAFETY: without CLONE_VM the child has a copy of all memory, and on its stack it goes on from
    // here; it makes nothing but system calls (`run`).
    match unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) } {
        0 => run(plan),
        pid if pid > 0 => Ok((pid as u32, pidfd)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// In the child: executes the program, or ends.
fn run(plan: &mut Plan<'_>) -> ! {
    // SAFETY: each call takes numbers, or memory of the plan, which was made before and is this
    // process's own copy now.
    unsafe {
        let error = prepare(plan).err().unwrap_or_else(|| {
            libc::syscall(
                libc::SYS_execveat,
                plan.program,
                c"".as_ptr(),
                plan.argv.as_ptr(),
                plan.envp.as_ptr(),
                libc::AT_EMPTY_PATH,
            );
            *libc::__errno_location()
        });
        libc::write(plan.report, (&raw const error).cast(), size_of::<c_int>());
        libc::_exit(127)
    }
}

/// # Safety
/// In the child only: its descriptors become others.
unsafe fn prepare(plan: &mut Plan<'_>) -> Result<(), c_int> {
    // SAFETY: as in `run`.
    unsafe {
        let number = || *libc::__errno_location();
        let check = |result: c_int| if result < 0 { Err(number()) } else { Ok(result) };
        // The usual effect of every signal, and none held back, whatever the parent does with its
        // own.
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()))?;
        for &(resource, most) in plan.limits {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            check(libc::setrlimit(resource, &limit))?;
        }
        // Out of the way first, so that no place is taken before its descriptor was copied. Copies,
        // and all that was inherited, end with the execution.
        plan.program = check(libc::fcntl(plan.program, libc::F_DUPFD_CLOEXEC, plan.high))?;
        plan.report = check(libc::fcntl(plan.report, libc::F_DUPFD_CLOEXEC, plan.high))?;
        for (fd, _) in &mut *plan.fds {
            *fd = check(libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, plan.high))?;
        }
        let flag = libc::CLOSE_RANGE_CLOEXEC as c_ulong;
        check(
            libc::syscall(libc::SYS_close_range, 0 as c_ulong, u32::MAX as c_ulong, flag) as c_int
        )?;
        for &(fd, place) in &*plan.fds {
            check(libc::dup2(fd, place))?;
        }
        Ok(())
    }
}

/// Pointers to `texts`, and the null pointer that ends them.
pub(crate) fn pointers<T: AsRef<CStr>>(texts: &[T]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ref().as_ptr()).chain([std::ptr::null()]).collect()
}
