//! The process that stops the device when its driver is gone, however it went.
//!
//! Forked when the device is opened, before it may start any transfer. It sleeps until the driver's
//! process has closed its end of a pipe: by giving the device up, by a panic, a signal, or kill -9.
//! Then it switches bus mastering off, reads that back, resets the function, and ends. Until that
//! moment it keeps the memory that the device may write to, and the lock on the function. See
//! docs/adr/0003.
//!
//! # Signals
//! Between `fork` and its end it makes system calls only, and takes no lock and no memory: other
//! threads of the forking process may have held the allocator's. It has a session of its own and
//! blocks every signal that can be blocked.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use ring3_device::{Deadline, Error};
use ring3_pci::WARDEN;
use ring3_spec::pci;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

/// How long it may take to end when the device was given up: a reset takes most of it, for which
/// PCI Express allows 1 s. [PCIe 2.3.1]
const END_LIMIT: Duration = Duration::from_secs(3);

/// What a warden holds beside the pipe.
pub(super) struct CleanupHandles<'a> {
    /// The function's configuration space, from its first byte on.
    pub(super) config: BorrowedFd<'a>,
    /// Whoever has it has the function.
    pub(super) lock: BorrowedFd<'a>,
    /// The memory that the device may write to.
    pub(super) memory: BorrowedFd<'a>,
    /// What resets the function when `1` is written to it, if the kernel can.
    pub(super) reset: Option<BorrowedFd<'a>>,
}

/// A warden on its post. Dropping this lets it do its work and waits for its end.
pub(super) struct Warden {
    pipe: Option<OwnedFd>,
    /// Readable when it has ended. Unlike its number, never another process'.
    process: OwnedFd,
}

impl Warden {
    /// Starts one.
    pub(super) fn start(post: &CleanupHandles<'_>) -> Result<Self, Error> {
        let failed = |error| {
            Error::os("starting the process that stops the device when its driver is gone", error)
        };
        let (watched, pipe) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let all = [
            post.config,
            post.lock,
            post.memory,
            watched.as_fd(),
            post.reset.unwrap_or(post.config),
        ];
        let mut orders = Orders {
            kept: all.map(|fd| fd.as_raw_fd()),
            config: post.config.as_raw_fd(),
            gone: watched.as_raw_fd(),
            reset: post.reset.map(|fd| fd.as_raw_fd()),
            name: name(),
        };
        orders.kept.sort_unstable();
        // SAFETY: the child makes system calls only, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(failed(std::io::Error::last_os_error())),
            0 => watch(&orders),
            child => {
                let process = Pid::from_raw(child)
                    .ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
                // If this fails, the end of the pipe ends it.
                let process = pidfd_open(process, PidfdFlags::empty())
                    .map_err(|error| failed(error.into()))?;
                Ok(Self { pipe: Some(pipe), process })
            }
        }
    }

    /// Whether it is there. Without it, nothing would stop the device if this process were killed.
    pub(super) fn is_alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let deadline = Deadline::after(limit);
        loop {
            let timeout = Timespec::try_from(deadline.remaining()).ok();
            match poll(&mut [PollFd::new(&self.process, PollFlags::IN)], timeout.as_ref()) {
                Err(Errno::INTR) => {}
                ended => return ended != Ok(0),
            }
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.pipe = None;
        if self.ends_within(END_LIMIT) {
            // So that no entry of it stays in the list of processes.
            let _ = waitid(
                WaitId::PidFd(self.process.as_fd()),
                WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
            );
        } else {
            tracing::warn!("{WARDEN} still tries to stop the device, and keeps its memory");
        }
    }
}

/// Its name, ended as C has it.
fn name() -> [u8; 16] {
    let mut name = [0; 16];
    name[..WARDEN.len()].copy_from_slice(WARDEN.as_bytes());
    name
}

/// What the warden needs to know, made before the fork.
struct Orders {
    /// The descriptors that it keeps, ascending, none missing.
    kept: [RawFd; 5],
    config: RawFd,
    gone: RawFd,
    reset: Option<RawFd>,
    name: [u8; 16],
}

/// The warden's life.
fn watch(orders: &Orders) -> ! {
    // SAFETY: system calls with numbers, and with pointers to what lives on this stack or was
    // copied with it.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, orders.name.as_ptr());
        libc::chdir(c"/".as_ptr());
        close_others(&orders.kept);
        let mut byte = 0u8;
        // Nothing is ever written: a byte or an end, it is over. Signals are blocked; an error
        // would leave nothing to wait for.
        libc::read(orders.gone, (&raw mut byte).cast(), 1);
        // Memory that the device may still write to is not given back, so there is no limit to
        // trying: each time a second.
        while !stop(orders.config) {
            libc::poll(std::ptr::null_mut(), 0, 1000);
        }
        if let Some(reset) = orders.reset {
            // Without effect on memory, so whether it succeeds is the next driver's business.
            libc::write(reset, c"1".as_ptr().cast(), 1);
        }
        libc::_exit(0)
    }
}

/// Closes every descriptor that is not in `kept`, which ascends: standard output above all, whose
/// reader waits for its end.
///
/// # Safety
/// For a process that has just been forked, where nobody owns them.
unsafe fn close_others(kept: &[RawFd; 5]) {
    let mut next = 0;
    for &fd in kept {
        // One may be there twice.
        if fd > next {
            // SAFETY: the caller's.
            unsafe { libc::syscall(libc::SYS_close_range, next, fd - 1, 0) };
        }
        next = next.max(fd + 1);
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_close_range, next, libc::c_uint::MAX, 0) };
}

/// Switches bus mastering off; true once the function says so, or is gone.
fn stop(config: RawFd) -> bool {
    let mut command = 0u8;
    let at = pci::COMMAND as libc::off_t;
    // The byte below the one in which the kernel masks the pin, so nothing of others is written
    // back.
    let mut read = || {
        // SAFETY: one byte to and from this stack.
        unsafe { libc::pread(config, (&raw mut command).cast(), 1, at) == 1 && command != u8::MAX }
            .then_some(command)
    };
    // No answer, or all ones: gone, and its transfers with it.
    let Some(before) = read() else { return true };
    let off = before & !(pci::COMMAND_BUS_MASTER as u8);
    // SAFETY: as above.
    let written = unsafe { libc::pwrite(config, (&raw const off).cast(), 1, at) } == 1;
    // The read also waits until what the function had sent has arrived. [PCI 3.2.5]
    read().is_none_or(|after| written && after & pci::COMMAND_BUS_MASTER as u8 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use ring3_device::poll_until;

    use super::*;

    /// A file that stands for configuration space, with bus mastering on.
    fn config() -> std::fs::File {
        let fd = rustix::fs::memfd_create("config", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.write_all_at(&[0x36, 0x1b, 0x10, 0x00, 0x07, 0x04, 0x10, 0x00], 0).unwrap();
        file
    }

    fn command(config: &std::fs::File) -> u16 {
        let mut bytes = [0; 2];
        config.read_exact_at(&mut bytes, 4).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn start(config: &std::fs::File, memory: &OwnedFd) -> Warden {
        Warden::start(&CleanupHandles {
            config: config.as_fd(),
            lock: config.as_fd(),
            memory: memory.as_fd(),
            reset: None,
        })
        .unwrap()
    }

    /// Its number.
    fn process(warden: &Warden) -> u32 {
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", warden.process.as_raw_fd()))
                .unwrap();
        info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).unwrap()
    }

    fn memory() -> OwnedFd {
        rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn as_long_as_the_driver_lives_nothing_is_touched() {
        let config = config();
        let warden = start(&config, &memory());
        std::thread::sleep(Duration::from_millis(20));
        assert!(warden.is_alive());
        assert_eq!(command(&config), 0x0407);
    }

    #[test]
    fn when_the_driver_is_gone_bus_mastering_is_off_and_nothing_else_changed() {
        let config = config();
        drop(start(&config, &memory()));
        assert_eq!(command(&config), 0x0403);
    }

    #[test]
    fn after_the_transfers_the_function_is_reset() {
        let (config, reset, memory) = (config(), memory(), memory());
        let post = CleanupHandles {
            config: config.as_fd(),
            lock: config.as_fd(),
            memory: memory.as_fd(),
            reset: Some(reset.as_fd()),
        };
        drop(Warden::start(&post).unwrap());
        let mut written = [0; 2];
        assert_eq!(std::fs::File::from(reset).read_at(&mut written, 0).unwrap(), 1);
        assert_eq!(written[0], b'1');
    }

    #[test]
    fn it_keeps_the_memory_the_lock_the_function_and_the_pipe_and_nothing_else() {
        let (config, memory) = (config(), memory());
        let warden = start(&config, &memory);
        let held = || {
            let links = std::fs::read_dir(format!("/proc/{}/fd", process(&warden))).unwrap();
            // It closes what it does not need while it is looked at.
            let held = links.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
            let mut held: Vec<_> = held.map(|target| target.display().to_string()).collect();
            held.sort();
            held
        };
        let settled = poll_until(Deadline::after(END_LIMIT), "its start", || {
            Ok((held().len() <= 4).then(held))
        })
        .unwrap();
        assert!(
            settled[0].starts_with("/memfd:config")
                && settled.iter().any(|link| link.starts_with("/memfd:memory")),
            "{settled:?}"
        );
        assert!(settled.last().unwrap().starts_with("pipe:"), "{settled:?}");
    }

    #[test]
    fn one_that_was_killed_is_noticed() {
        let warden = start(&config(), &memory());
        rustix::process::pidfd_send_signal(&warden.process, rustix::process::Signal::KILL).unwrap();
        assert!(warden.ends_within(END_LIMIT) && !warden.is_alive());
    }
}
