//! Virtual time.
//!
//! The drivers wait by the monotonic clock: they sleep, poll, and give up at deadlines of up to two
//! minutes. Within [`run`], this module answers instead of the C library: a sleep moves the clock
//! forward and returns at once. Each look at the clock moves it, too, so that a loop that only
//! polls reaches its deadline.
//!
//! # Limits
//! Waits on a futex (locks, condition variables, a parked thread) take real time. So do the sleeps
//! of all threads but the one that called [`run`].

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{clockid_t, epoll_event, nfds_t, pollfd, sigset_t, timespec};

static VIRTUAL: AtomicBool = AtomicBool::new(false);
thread_local! {
    /// Whether the sleeps of this thread are virtual.
    static SLEEPLESS: Cell<bool> = const { Cell::new(false) };
}
/// Nanoseconds by which the virtual clock is ahead of the clock at the start of the process.
static AHEAD: AtomicU64 = AtomicU64::new(0);
/// Looks at the clock since the last sleep.
static LOOKS: AtomicU64 = AtomicU64::new(0);
/// Virtual sleeps so far.
static SLEEPS: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds of the first looks.
const LOOK: u64 = 1_000;
/// A loop that never sleeps is moved by more and more, up to this.
const LONGEST_LOOK: u64 = 1_000_000;

/// Does `job` in virtual time.
pub fn run<T>(job: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            SLEEPLESS.set(false);
            VIRTUAL.store(false, Ordering::SeqCst);
        }
    }
    VIRTUAL.store(true, Ordering::SeqCst);
    SLEEPLESS.set(true);
    let _end = End;
    job()
}

/// Moves the virtual clock forward.
pub fn advance(time: Duration) {
    move_by(time.as_nanos().min(u128::from(u64::MAX)) as u64);
}

/// The virtual time since the start of the process.
pub fn elapsed() -> Duration {
    Duration::from_nanos(AHEAD.load(Ordering::SeqCst))
}

fn move_by(nanoseconds: u64) {
    LOOKS.store(0, Ordering::Relaxed);
    AHEAD.fetch_add(nanoseconds, Ordering::SeqCst);
}

/// Whether this thread sleeps in virtual time.
fn is_sleepless() -> bool {
    // A thread that ends has no flag any more.
    SLEEPLESS.try_with(Cell::get).unwrap_or(false)
}

fn nanoseconds(time: timespec) -> u64 {
    (time.tv_sec.max(0) as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec.max(0) as u64)
}

/// Sleeps without sleeping.
fn sleep(nanoseconds: u64) {
    // Other threads have their turn now and then. On a busy machine a turn takes milliseconds.
    if SLEEPS.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) {
        // SAFETY: the call has no arguments.
        unsafe { libc::sched_yield() };
    }
    move_by(nanoseconds);
}

/// The system call `number`, with `errno` set as the C library does.
macro_rules! call {
    ($number:expr, $($argument:expr),+) => {
        // SAFETY: the caller of the C function that is replaced promises what the kernel needs.
        unsafe { libc::syscall($number, $($argument),+) as c_int }
    };
}

/// Replaces clock_gettime(2).
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if clock != libc::CLOCK_MONOTONIC || !VIRTUAL.load(Ordering::Relaxed) {
        return call!(libc::SYS_clock_gettime, clock as c_long, time);
    }
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
    let step = (LOOK * (1 + looks / 16)).min(LONGEST_LOOK);
    // A year ahead of the real clock: what was read from that is in the past.
    let now = (365 << 40u64) + AHEAD.fetch_add(step, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe {
        *time = timespec {
            tv_sec: (now / 1_000_000_000) as i64,
            tv_nsec: (now % 1_000_000_000) as i64,
        };
    }
    0
}

/// Replaces nanosleep(2).
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !is_sleepless() {
        return call!(libc::SYS_nanosleep, time, left);
    }
    // SAFETY: the caller's promise.
    sleep(nanoseconds(unsafe { *time }));
    0
}

/// Replaces clock_nanosleep(2), which returns its error.
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !is_sleepless() || flags & libc::TIMER_ABSTIME != 0 {
        let result = call!(libc::SYS_clock_nanosleep, clock as c_long, flags as c_long, time, left);
        // SAFETY: `errno` is the thread's.
        return if result == 0 { 0 } else { unsafe { *libc::__errno_location() } };
    }
    // SAFETY: the caller's promise.
    sleep(nanoseconds(unsafe { *time }));
    0
}

/// Looks at descriptors once by `look`, which does not sleep, and sleeps `limit` nanoseconds of
/// virtual time if nothing is there.
fn wait(limit: u64, look: impl Fn() -> c_int) -> c_int {
    let found = look();
    if found != 0 || limit == 0 {
        return found;
    }
    sleep(limit);
    look()
}

/// Replaces poll(2). A wait without a limit is real.
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, limit: c_int) -> c_int {
    let limit = (limit >= 0).then(|| timespec {
        tv_sec: i64::from(limit) / 1000,
        tv_nsec: i64::from(limit) % 1000 * 1_000_000,
    });
    // SAFETY: the caller's promise.
    unsafe { ppoll(fds, count, limit.as_ref().map_or(ptr::null(), ptr::from_ref), ptr::null()) }
}

/// Replaces ppoll(2). A wait without a limit is real.
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let poll = |limit: *const timespec| {
        // The kernel writes what is left of the limit.
        // SAFETY: the caller's promise.
        let mut left = (!limit.is_null()).then(|| unsafe { *limit });
        let left = left.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        call!(libc::SYS_ppoll, fds, count, left, mask, size_of::<u64>())
    };
    if !is_sleepless() || limit.is_null() {
        return poll(limit);
    }
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the caller's promise.
    wait(nanoseconds(unsafe { *limit }), || poll(&raw const none))
}

/// Replaces epoll_wait(2). A wait without a limit is real.
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: c_int,
) -> c_int {
    let look = |limit: c_int| {
        let mask: *const c_void = ptr::null();
        call!(libc::SYS_epoll_pwait, epoll, events, most, limit as c_long, mask, size_of::<u64>())
    };
    if !is_sleepless() || limit < 0 {
        return look(limit);
    }
    wait(limit as u64 * 1_000_000, || look(0))
}

/// Replaces epoll_pwait2(2). A wait without a limit is real.
///
/// # Safety
/// As of the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let look = |limit: *const timespec| {
        call!(libc::SYS_epoll_pwait2, epoll, events, most, limit, mask, size_of::<u64>())
    };
    if !is_sleepless() || limit.is_null() {
        return look(limit);
    }
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the caller's promise.
    wait(nanoseconds(unsafe { *limit }), || look(&raw const none))
}
