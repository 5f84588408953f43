//! Rings that were made before a process gave up the right to make one.
//!
//! An io_uring does by itself what system calls would do, so a filter of system calls says nothing
//! of it. A process in a sandbox makes no ring; it has those of a [`Pool`], and each of them takes
//! the operations that were named when it was made, and no other, whatever the process does later.
//! [io_uring_register(2), IORING_REGISTER_RESTRICTIONS]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode};

use crate::Reactor;
use crate::reactor::EXTRA;

/// Operations of io_uring_register that a ring of a pool takes. [io_uring_register(2)]
const ENABLE_RINGS: u8 = 12;
const REGISTER_RING_FDS: u8 = 20;
const UNREGISTER_RING_FDS: u8 = 21;
const REGISTER_PBUF_RING: u8 = 22;

/// Rings for reactors. As long as nobody has [filled](Self::filled) it, a reactor makes a ring of
/// its own.
#[derive(Clone, Default)]
pub struct Pool(Option<Arc<Mutex<Vec<IoUring>>>>);

impl Pool {
    /// `count` rings with room for `commands` of the user in one turn, which take what a reactor
    /// needs and the user's `operations`. Reactors of this pool have these and no others.
    pub fn filled(count: u16, commands: u32, operations: &[u8]) -> io::Result<Self> {
        Self::of(count, || restricted(commands + EXTRA, operations, false))
    }

    /// The same, and each can [provide](Reactor::provide) buffers.
    pub fn providing(count: u16, commands: u32, operations: &[u8]) -> io::Result<Self> {
        Self::of(count, || restricted(commands + EXTRA, operations, true))
    }

    fn of(count: u16, ring: impl Fn() -> io::Result<IoUring>) -> io::Result<Self> {
        let rings = (0..count).map(|_| ring()).collect::<Result<_, _>>()?;
        Ok(Self(Some(Arc::new(Mutex::new(rings)))))
    }

    /// The descriptors of the rings that are left.
    pub fn fds(&self) -> Vec<RawFd> {
        let rings = self.0.iter().map(|rings| rings.lock().unwrap_or_else(PoisonError::into_inner));
        rings.flat_map(|rings| rings.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>()).collect()
    }

    /// One of its rings as a pool of its own, for a thread that is about to start:
    /// [`trim`](Self::trim) leaves it alone, however late the thread takes it.
    pub fn one(&self) -> io::Result<Self> {
        let Some(rings) = &self.0 else { return Ok(Self::default()) };
        let ring = rings.lock().unwrap_or_else(PoisonError::into_inner).pop().ok_or_else(none)?;
        Ok(Self(Some(Arc::new(Mutex::new(vec![ring])))))
    }

    /// The ring of [`Reactor::new`] for the thread that calls, with room for `commands` at least if
    /// it is made now.
    pub fn reactor(&self, commands: u32, poll: Duration) -> io::Result<Reactor> {
        let Some(rings) = &self.0 else { return Reactor::new(commands, poll) };
        let taken = rings.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let ring = taken.ok_or_else(none)?;
        // Who enables it is its one user.
        ring.submitter().register_enable_rings()?;
        Ok(Reactor::over(ring, poll))
    }

    /// Gives all but `count` of those back that are left.
    pub fn trim(&self, count: usize) {
        if let Some(rings) = &self.0 {
            rings.lock().unwrap_or_else(PoisonError::into_inner).truncate(count);
        }
    }
}

fn none() -> io::Error {
    io::Error::other(
        "no ring is left of those that were made before the sandbox: serve fewer queues",
    )
}

/// A ring that waits to be enabled, by the thread that will use it. Whether it `provides` buffers.
fn restricted(entries: u32, operations: &[u8], provides: bool) -> io::Result<IoUring> {
    let ring = IoUring::builder()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| {
            IoUring::builder()
                .setup_r_disabled()
                .setup_coop_taskrun()
                .setup_taskrun_flag()
                .build(entries)
        })
        .or_else(|_| IoUring::builder().setup_r_disabled().build(entries))?;
    let own = [
        opcode::PollAdd::CODE,
        opcode::AsyncCancel::CODE,
        opcode::Timeout::CODE,
        opcode::TimeoutRemove::CODE,
    ];
    let registers = [ENABLE_RINGS, REGISTER_RING_FDS, UNREGISTER_RING_FDS].into_iter();
    let registers =
        registers.chain(provides.then_some(REGISTER_PBUF_RING)).map(Restriction::register_op);
    let operations = own.iter().chain(operations).map(|&operation| Restriction::sqe_op(operation));
    let buffers = if provides { Flags::BUFFER_SELECT } else { Flags::empty() };
    let flags = Restriction::sqe_flags_allowed((Flags::SKIP_SUCCESS | buffers).bits());
    let mut all: Vec<_> = registers.chain(operations).chain([flags]).collect();
    ring.submitter().register_restrictions(&mut all)?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::Event;

    fn result(reactor: &mut Reactor, entry: &io_uring::squeue::Entry) -> i32 {
        // SAFETY: no memory is involved, or a constant.
        unsafe { reactor.push(entry) }.unwrap();
        reactor.step(Some(Duration::from_secs(10))).unwrap();
        match reactor.next_event() {
            Some(Event::Command { result, .. }) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_ring_of_a_pool_takes_the_operations_that_were_named_and_no_others() {
        let mut reactor =
            Pool::filled(1, 4, &[opcode::Nop::CODE]).unwrap().reactor(4, Duration::ZERO).unwrap();
        assert_eq!(result(&mut reactor, &opcode::Nop::new().build()), 0);
        let open = opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"/".as_ptr()).build();
        assert_eq!(result(&mut reactor, &open), -libc::EACCES);
        let (file, mut byte) = (std::fs::File::open("/dev/null").unwrap(), [0]);
        let read =
            opcode::Read::new(io_uring::types::Fd(file.as_raw_fd()), byte.as_mut_ptr(), 1).build();
        assert_eq!(result(&mut reactor, &read), -libc::EACCES);
        assert_eq!(
            result(&mut reactor, &opcode::Nop::new().build().flags(Flags::ASYNC)),
            -libc::EACCES
        );
    }

    #[test]
    fn a_reactor_over_it_waits_for_descriptors_and_timers_in_a_thread_of_its_own() {
        let pool = Pool::filled(2, 4, &[]).unwrap();
        let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let thread = std::thread::spawn(move || {
            let mut reactor = pool.reactor(4, Duration::ZERO).unwrap();
            let token = reactor.add(event.as_fd()).unwrap();
            reactor.step(None).unwrap();
            assert!(matches!(reactor.next_event(), Some(Event::Ready(ready)) if ready == token));
            reactor.set_timer(std::time::Instant::now() + Duration::from_millis(5));
            reactor.step(None).unwrap();
            assert!(matches!(reactor.next_event(), Some(Event::Timer(..))));
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_pool_that_is_empty_is_an_error_and_one_that_was_never_filled_makes_rings() {
        let pool = Pool::filled(2, 4, &[]).unwrap();
        pool.trim(1);
        assert!(pool.reactor(4, Duration::ZERO).is_ok());
        let error = pool.reactor(4, Duration::ZERO).err().unwrap().to_string();
        assert!(error.contains("no ring is left"), "{error}");
        assert!(Pool::default().reactor(4, Duration::ZERO).is_ok());
    }

    #[test]
    fn a_ring_that_was_taken_for_a_thread_is_not_trimmed_before_the_thread_has_it() {
        let pool = Pool::filled(2, 4, &[]).unwrap();
        let its = pool.one().unwrap();
        pool.trim(0);
        assert!(pool.one().is_err());
        assert!(std::thread::spawn(move || its.reactor(4, Duration::ZERO).is_ok()).join().unwrap());
        assert!(Pool::default().one().unwrap().reactor(4, Duration::ZERO).is_ok());
    }
}
