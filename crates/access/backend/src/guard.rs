//! Mappings of device memory that outlive the device.
//!
//! A BAR whose memory space was disabled, or whose function was removed, raises SIGBUS at the next
//! access. A bus in a machine answers all ones instead, and that is what drivers check for; so a
//! handler here puts ordinary memory where the BAR was, marks the mapping gone, and lets the access
//! happen again.
//!
//! # Trust
//! Only faults within mappings made here are answered. Every other SIGBUS goes to whoever handled
//! it before, or ends the process as it would have.
//!
//! # Signals
//! The handler touches atomics and makes one `mmap` call without libc, so it leaves `errno` alone
//! and may run anywhere.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

use ring3_device::{Access, Bar, Error};

/// Mappings that can be guarded at once. A further one is refused, and its BAR is then reached by
/// system calls.
const SLOTS: usize = 256;

/// One guarded mapping.
///
/// # Ordering
/// Where it lies is one word, because the handler reads it while other threads take and free slots:
/// start and length of two mappings, the one before and the one after, would be a range that
/// belongs to neither. What the handler finds around the address that faulted is a mapping that is
/// alive, as the access to it is not over, and so stays what it is until the handler is done.
struct GuardSlot {
    span: AtomicU64,
    gone: AtomicBool,
}

/// Whole pages: the first one's number in the upper bits, how many in the lower ones. 0 is no
/// mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(u64);

/// Bits of [`Span`] that count pages: 64 GiB less one page. Addresses of 52 bits remain, of which a
/// process without five-level page tables, or one that does not ask for them by a hint, has 47.
/// [Linux, Documentation/arch/x86/x86_64/5level-paging.rst]
const COUNT_BITS: u32 = 24;
const PAGE: usize = 4096;

impl Span {
    const NONE: Self = Self(0);

    /// `len` bytes from `start` on; `None` if they are not whole pages or too many.
    fn new(start: usize, len: usize) -> Option<Self> {
        let (page, count) = ((start / PAGE) as u64, (len / PAGE) as u64);
        let fits = start.is_multiple_of(PAGE)
            && len.is_multiple_of(PAGE)
            && count >> COUNT_BITS == 0
            && page >> (64 - COUNT_BITS) == 0;
        fits.then_some(Self(page << COUNT_BITS | count))
    }

    fn range(self) -> Range<usize> {
        let (page, count) =
            ((self.0 >> COUNT_BITS) as usize, (self.0 & ((1 << COUNT_BITS) - 1)) as usize);
        page * PAGE..(page + count) * PAGE
    }
}

static TABLE: [GuardSlot; SLOTS] =
    [const { GuardSlot { span: AtomicU64::new(Span::NONE.0), gone: AtomicBool::new(false) } };
        SLOTS];
/// Held to take and to free a slot; the handler never does either.
static CHANGES: Mutex<()> = Mutex::new(());
/// What handled SIGBUS before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A shared mapping of a file, of which each access may fail without harm.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    slot: &'static GuardSlot,
}

// SAFETY: the memory is only accessed by volatile reads and writes, which a device's registers
// allow from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on; `offset` is a multiple of the page size.
    pub(crate) fn new(file: impl AsFd, offset: u64, len: usize) -> Result<Self, Error> {
        install_handler()?;
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = TABLE.iter().find(|slot| slot.span() == Span::NONE);
        let slot = slot.ok_or_else(|| {
            Error::Unsupported(format!("more than {SLOTS} mapped BARs in one process"))
        })?;
        let len = len.next_multiple_of(rustix::param::page_size());
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                offset,
            )
        };
        let base =
            base.map_err(|error| Error::os(format!("mapping {len} bytes of a BAR"), error))?;
        let Some((base, span)) = NonNull::new(base.cast::<u8>()).zip(Span::new(base as usize, len))
        else {
            // SAFETY: the range was mapped above, and nobody has seen it.
            let _ = unsafe { rustix::mm::munmap(base, len) };
            return Err(Error::Unsupported(format!("guarding {len} bytes of a BAR at {base:?}")));
        };
        slot.gone.store(false, Ordering::Relaxed);
        slot.span.store(span.0, Ordering::Release);
        Ok(Self { base, len, slot })
    }

    /// Reads `width` (1, 2, 4 or 8) bytes at byte `at`; all ones if they are not within the
    /// mapping, not aligned, or the device is gone.
    pub(crate) fn read(&self, at: usize, width: usize) -> u64 {
        match width {
            1 => self.read_word::<u8>(at),
            2 => self.read_word::<u16>(at),
            4 => self.read_word::<u32>(at),
            _ => self.read_word::<u64>(at),
        }
    }

    /// Writes `width` bytes at byte `at`, or nothing, as for [`read`](Self::read).
    pub(crate) fn write(&self, at: usize, width: usize, value: u64) {
        match width {
            1 => self.write_word(at, value as u8),
            2 => self.write_word(at, value as u16),
            4 => self.write_word(at, value as u32),
            _ => self.write_word(at, value),
        }
    }

    fn read_word<T: Into<u64>>(&self, at: usize) -> u64 {
        let Some(word) = self.word::<T>(at) else { return u64::MAX };
        // SAFETY: within the mapping and aligned; a fault is answered by the handler.
        let value = unsafe { word.read_volatile() };
        // Pairs with the release in `GuardSlot::vanish`: whoever read from what stands in for the
        // device also sees the mark.
        fence(Ordering::Acquire);
        if self.slot.gone.load(Ordering::Relaxed) { u64::MAX } else { value.into() }
    }

    fn write_word<T>(&self, at: usize, value: T) {
        if let Some(word) = self.word::<T>(at) {
            // SAFETY: within the mapping and aligned; a fault is answered by the handler.
            unsafe { word.write_volatile(value) };
        }
    }

    fn word<T>(&self, at: usize) -> Option<*mut T> {
        let fits = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len)
            && at.is_multiple_of(size_of::<T>());
        // SAFETY: `at` is within the mapping.
        fits.then(|| unsafe { self.base.as_ptr().add(at).cast() })
    }
}

/// A BAR with its mapping.
pub(crate) trait Mapped: Access {
    /// The mapping that holds the BAR's first byte, where in it that is (a multiple of 8), and how
    /// many bytes of the BAR follow there.
    fn window(&self) -> Option<(&Mapping, usize, u64)>;
}

/// The BAR that `memory` has, without a call where it is mapped.
pub(crate) fn bar<M: Mapped>(memory: Arc<M>) -> Bar {
    let window = memory.window().filter(|&(mapping, start, len)| {
        start.is_multiple_of(8)
            && len.checked_add(start as u64).is_some_and(|end| end <= mapping.len as u64)
    });
    match window.map(|(mapping, start, len)| (mapping.base, &mapping.slot.gone, start, len)) {
        // SAFETY: the mapping belongs to `memory`, which the BAR keeps; the handler answers faults
        // in it, with `gone` set first.
        Some((base, gone, start, len)) => unsafe {
            Bar::mapped(memory, base.add(start), len, gone)
        },
        None => Bar::new(memory),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The slot is freed first: once unmapped, the addresses may belong to another mapping, not
        // ours to guard.
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.span.store(Span::NONE.0, Ordering::Release);
        // SAFETY: the range was mapped by `new`, and nobody uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl GuardSlot {
    fn span(&self) -> Span {
        Span(self.span.load(Ordering::Acquire))
    }

    /// Puts memory in the place of the mapping if `address` lies within it. Runs in the signal
    /// handler.
    fn vanish(&self, address: usize) -> bool {
        let range = self.span().range();
        if !range.contains(&address) {
            return false;
        }
        // Before the memory appears, so that no reader takes its zeros for the device's.
        self.gone.store(true, Ordering::Release);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is a whole mapping made by `Mapping::new`, alive because an access to
        // it has just faulted.
        unsafe {
            rustix::mm::mmap_anonymous(
                range.start as *mut _,
                range.len(),
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }
        .is_ok()
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to a handler with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && TABLE.iter().any(|slot| slot.vanish(address)) {
        return;
    }
    match PREVIOUS.get() {
        Some(previous)
            if previous.sa_sigaction != libc::SIG_DFL && previous.sa_sigaction != libc::SIG_IGN =>
        {
            // SAFETY: a handler's address, as its installer gave it to the kernel, called as the
            // kernel would.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    type Handler =
                        extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                    std::mem::transmute::<usize, Handler>(previous.sa_sigaction)(
                        signal, info, context,
                    );
                } else {
                    std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(previous.sa_sigaction)(
                        signal,
                    );
                }
            }
        }
        // Nobody else: with the default action back in place, the access faults again and ends the
        // process.
        _ => {
            // SAFETY: `signal` is SIGBUS; restoring the default action is allowed in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Installs the handler once in the life of the process.
fn install_handler() -> Result<(), Error> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let installed = *INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction` (default action, empty mask).
        let (mut previous, mut ours): (libc::sigaction, libc::sigaction) =
            unsafe { std::mem::zeroed() };
        ours.sa_sigaction = on_sigbus as *const () as usize;
        // On the alternate stack, where Rust and other runtimes expect fault handlers to run.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to valid structs. The previous action is read before ours is set, so
        // that it is there to be called.
        unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) != 0 {
                return false;
            }
            let _ = PREVIOUS.set(previous);
            libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) == 0
        }
    });
    if installed {
        Ok(())
    } else {
        Err(Error::os("handling SIGBUS", std::io::Error::last_os_error()))
    }
}

#[cfg(test)]
mod tests;
