//! The QEMU process: an empty machine whose processor halts at once, with one device under test.
//!
//! # Lifetime
//! A thread starts the process, waits for its end and says so. The thread lives as long as the
//! process, because the kernel ends the process (PR_SET_PDEATHSIG) with the *thread* that started
//! it; so QEMU dies with us even if we are killed. Dropping the [`Machine`] kills QEMU and reaps
//! it; one that has a file to finish is asked to end first, and has a moment for it.
//!
//! # Files
//! There are none: memory, firmware, disks and the error output are memfds, passed by descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_device::Error;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// How much of QEMU's error output is kept.
const WORDS_LIMIT: usize = 64 << 10;
/// The firmware's size: the last 64 KiB below 4 GiB, where the processor starts.
const FIRMWARE_SIZE: usize = 64 << 10;
/// How long a QEMU that was asked to end may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running QEMU.
pub(super) struct Machine {
    process: Arc<Process>,
    process_id: u32,
    keeper: Option<JoinHandle<()>>,
    words: File,
    /// Whether its end would be news.
    watched: Arc<AtomicBool>,
    /// Whether it is asked to end before it is killed.
    asked: bool,
}

/// A process that was started, until it is reaped: which happens under the lock, so that a signal
/// is never for another one.
///
/// A pidfd would do as well, but Debian 12's valgrind knows none.
#[derive(Default)]
struct Process {
    lives: Mutex<Option<Pid>>,
    ended: Condvar,
}

impl Process {
    fn lives(&self) -> MutexGuard<'_, Option<Pid>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was there to be told.
    fn signal(&self, signal: Signal) -> bool {
        self.lives().is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
    }

    /// Waits until it has ended, for a time.
    fn await_end(&self, limit: Duration) {
        drop(self.ended.wait_timeout_while(self.lives(), limit, |lives| lives.is_some()));
    }

    /// Waits until it ends, and reaps it.
    fn reap(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let id = WaitId::Pid(Pid::from_child(child));
        // Of a child that nobody else reaps it fails by a signal alone; the lock is not held while
        // the process lives.
        while let Err(Errno::INTR) =
            rustix::process::waitid(id.clone(), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {
        }
        let mut lives = self.lives();
        *lives = None;
        self.ended.notify_all();
        child.wait()
    }
}

impl Machine {
    /// Starts `program` with `args`, which may name the descriptors in `inherited`; calls `at_exit`
    /// when it has ended.
    pub(super) fn start(
        program: &Path,
        args: Vec<String>,
        inherited: Vec<OwnedFd>,
        at_exit: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let words = words()?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(duplicate(&words)?);
        // An interrupt from the terminal is ours to handle: the driver shuts the device down first.
        command.process_group(0);
        inherit(&mut command, inherited.iter().map(AsRawFd::as_raw_fd).collect());
        let watched = Arc::new(AtomicBool::new(false));
        let (news, last) = (watched.clone(), duplicate(&words)?);
        let failed = |error| Error::os(format!("starting {}", program.display()), error);
        let (send, receive) = mpsc::channel();
        let process = Arc::new(Process::default());
        let kept = process.clone();
        let keeper = std::thread::Builder::new()
            .name("ring3-qtest-qemu".into())
            .spawn(move || {
                let started = command.spawn();
                // QEMU has its own copies now. Ours must go: the socket ends when both are closed.
                drop((command, inherited));
                match started {
                    Ok(mut child) => {
                        *kept.lives() = Some(Pid::from_child(&child));
                        let _ = send.send(Ok(child.id()));
                        let status = kept.reap(&mut child);
                        at_exit();
                        if let (true, Ok(status)) = (news.load(Ordering::Acquire), status) {
                            tracing::warn!("QEMU ended, {status}. {}", read(&last));
                        }
                    }
                    Err(error) => drop(send.send(Err(error))),
                }
            })
            .map_err(failed)?;
        let process_id = receive
            .recv()
            .map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?
            .map_err(failed)?;
        Ok(Self { process, process_id, keeper: Some(keeper), words, watched, asked: false })
    }

    /// Its process id.
    pub(super) fn process_id(&self) -> u32 {
        self.process_id
    }

    /// Says so, with its last words, if the process ends from now on without being stopped.
    pub(super) fn watch(&self) {
        self.watched.store(true, Ordering::Release);
    }

    /// Asks it to end when that is wanted, so that it finishes what it writes.
    pub(super) fn ask_first(&mut self, wanted: bool) {
        self.asked = wanted;
    }

    /// Its error output.
    pub(super) fn stderr_text(&self) -> String {
        read(&self.words)
    }

    /// Ends the process, if it has not ended by itself, and returns what it said on its error
    /// output.
    pub(super) fn stop(&mut self) -> String {
        self.watched.store(false, Ordering::Release);
        if std::mem::take(&mut self.asked) && self.process.signal(Signal::TERM) {
            self.process.await_end(FAREWELL);
        }
        self.process.signal(Signal::KILL);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        read(&self.words)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Firmware that halts: `cli; hlt; jmp $-1` at the reset vector, in a ROM of halts.
pub(super) fn firmware() -> Result<OwnedFd, Error> {
    let mut rom = vec![0xf4; FIRMWARE_SIZE];
    rom[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    let file = File::from(memfd("ring3-firmware")?);
    file.write_all_at(&rom, 0).map_err(|error| Error::os("writing the firmware", error))?;
    Ok(file.into())
}

/// A new anonymous file.
pub(super) fn memfd(name: &str) -> Result<OwnedFd, Error> {
    rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|error| Error::os(format!("creating {name} (memfd)"), error))
}

/// The path by which QEMU opens a descriptor that it inherits.
pub(super) fn path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A file that takes the first words and refuses the rest, so that a QEMU that complains without
/// end fills no memory.
fn words() -> Result<File, Error> {
    let file = memfd("ring3-qemu-stderr")?;
    rustix::fs::ftruncate(&file, WORDS_LIMIT as u64)
        .and_then(|()| rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK))
        .map_err(|error| Error::os("preparing QEMU's error output", error))?;
    Ok(file.into())
}

fn duplicate(words: &File) -> Result<File, Error> {
    words.try_clone().map_err(|error| Error::os("duplicating QEMU's error output", error))
}

/// What has been said.
fn read(words: &File) -> String {
    let mut bytes = vec![0; WORDS_LIMIT];
    let n = words.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..n]).trim_matches('\0').trim().to_owned()
}

/// Lets the child keep `descriptors`, and die with the thread that started it.
fn inherit(command: &mut Command, descriptors: Vec<RawFd>) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl and getppid take no pointers here.
        let orphan = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                || libc::getppid() as u32 != parent
        };
        if orphan {
            return Err(io::Error::last_os_error());
        }
        for &fd in &descriptors {
            // SAFETY: fcntl with F_SETFD takes an integer; a bad descriptor is an error.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls and reads a vector made
    // before: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}
