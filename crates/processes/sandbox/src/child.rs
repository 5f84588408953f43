//! The child between its birth and its program: system calls and nothing else.
//!
//! # Trust
//! The child of a process with threads may find any lock taken for ever, the memory allocator's
//! among them. So nothing here allocates, locks, formats or panics; all memory was made before.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use libc::{c_char, c_int, c_uint, c_ulong, c_void};

use crate::spawn::INTO_CGROUP;

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
///
/// Where clone3 is answered with ENOSYS, it is clone: filters of system calls cannot see clone3's
/// flags, so those that restrict namespaces (systemd's `RestrictNamespaces=`) refuse it whole.
pub(crate) fn start(birth: &CloneArgs, plan: &mut Plan<'_>) -> io::Result<(u32, RawFd)> {
    match start_by_clone3(birth, plan) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => start_by_clone(birth, plan),
        started => started,
    }
}

fn start_by_clone3(birth: &CloneArgs, plan: &mut Plan<'_>) -> io::Result<(u32, RawFd)> {
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

/// The same by the older call, whose flags have 32 bits. What is above these the child does itself:
/// it moves to its control group, and gives signals their usual effect. Signals are held back from
/// before its birth until it has done so, because no handler of the parent's may run in it.
fn start_by_clone(birth: &CloneArgs, plan: &mut Plan<'_>) -> io::Result<(u32, RawFd)> {
    let mut pidfd: c_int = -1;
    let flags = (birth.flags & u64::from(u32::MAX)) | (libc::CLONE_PIDFD | libc::SIGCHLD) as u64;
    let group = (birth.flags & INTO_CGROUP != 0).then_some(birth.group);
    // SAFETY: plain memory for the kernel to fill; the mask is put back before this returns. As to
    // the child: as in `start_by_clone3`. Its stack is the parent's copy, as after fork.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let pid = libc::syscall(
            libc::SYS_clone,
            flags as c_ulong,
            std::ptr::null_mut::<c_void>(),
            &raw mut pidfd,
            std::ptr::null_mut::<c_int>(),
            0 as c_ulong,
        );
        if pid == 0 {
            reset_handlers();
            if let Some(error) = group.and_then(|group| join(group).err()) {
                fail(plan, error);
            }
            run(plan);
        }
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid > 0 { Ok((pid as u32, pidfd)) } else { Err(error) }
    }
}

/// Gives each signal that has a handler its usual effect; what is ignored stays so, as with
/// CLONE_CLEAR_SIGHAND.
///
/// # Safety
/// In the child only: the parent wants its handlers.
unsafe fn reset_handlers() {
    // SAFETY: plain structures; the C library refuses the numbers that are its own.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &mut action) != 0
                || action.sa_sigaction == libc::SIG_IGN
            {
                continue;
            }
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Moves this process into the control group whose folder is `group`.
///
/// # Safety
/// In the child only.
unsafe fn join(group: RawFd) -> Result<(), c_int> {
    // SAFETY: the name and the text are constants; the descriptor is this function's own.
    unsafe {
        let flags = libc::O_WRONLY | libc::O_CLOEXEC;
        let processes = libc::openat(group, c"cgroup.procs".as_ptr(), flags);
        if processes < 0 {
            return Err(*libc::__errno_location());
        }
        // The writer, in whatever namespace of processes it is. [Linux,
        // Documentation/admin-guide/cgroup-v2.rst]
        let written = libc::write(processes, c"0".as_ptr().cast(), 1);
        let error = *libc::__errno_location();
        libc::close(processes);
        if written == 1 { Ok(()) } else { Err(error) }
    }
}

/// In the child: reports `error` and ends.
fn fail(plan: &Plan<'_>, error: c_int) -> ! {
    // SAFETY: the number is this function's own.
    unsafe {
        libc::write(plan.report, (&raw const error).cast(), size_of::<c_int>());
        libc::_exit(127)
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
        fail(plan, error)
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Where clone3 is filtered, it is this call that starts each driver.
    #[test]
    fn a_child_of_the_older_call_executes_its_program_and_holds_back_no_signal() {
        let shell = File::open("/bin/sh").unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let argv = [c"sh", c"-c", c"kill -TERM $$; exit 7"];
        let mut plan = Plan {
            program: shell.as_raw_fd(),
            argv: &pointers(&argv),
            envp: &pointers::<&CStr>(&[]),
            fds: &mut [],
            high: 0,
            limits: &[(libc::RLIMIT_CORE, 0)],
            report: write.as_raw_fd(),
        };
        let (_, pidfd) = start_by_clone(&CloneArgs { flags: 0, group: -1 }, &mut plan).unwrap();
        drop(write);
        // SAFETY: the kernel has just made it for this test.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let mut error = [0; 4];
        assert_eq!(rustix::io::read(&read, &mut error), Ok(0), "{error:?}");
        let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(libc::SIGTERM));
        // And the parent holds back none that it did not before.
        assert!(Command::new("true").status().unwrap().success());
    }

    #[test]
    fn a_control_group_that_cannot_be_joined_ends_the_child_with_the_reason() {
        let shell = File::open("/bin/sh").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let folder = File::open(folder.path()).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut plan = Plan {
            program: shell.as_raw_fd(),
            argv: &pointers(&[c"sh", c"-c", c"exit 0"]),
            envp: &pointers::<&CStr>(&[]),
            fds: &mut [],
            high: 0,
            limits: &[],
            report: write.as_raw_fd(),
        };
        let birth = CloneArgs { flags: INTO_CGROUP, group: folder.as_raw_fd() };
        let (_, pidfd) = start_by_clone(&birth, &mut plan).unwrap();
        drop(write);
        // SAFETY: the kernel has just made it for this test.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        let mut error = [0; 4];
        assert_eq!(rustix::io::read(&read, &mut error), Ok(4));
        assert_eq!(i32::from_ne_bytes(error), libc::ENOENT);
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
    }
}
