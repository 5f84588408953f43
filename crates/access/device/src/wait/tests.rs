use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::irq::IrqControl;

const NO_POLLING: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(5);

/// A vector whose masks are counted, and which signals at `unmask` what came while it was masked.
#[derive(Default)]
struct Vector {
    masks: AtomicU32,
    unmasks: AtomicU32,
}

impl IrqControl for Vector {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.masks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn unmask(&self, _: u16) -> Result<(), Error> {
        self.unmasks.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn waiter(kind: IrqKind, poll: Duration) -> (Waiter, OwnedFd, Arc<Vector>) {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let device = fd.try_clone().unwrap();
    let vector = Arc::new(Vector::default());
    let irq = Irq::new(fd, kind, 0, Some(vector.clone()));
    (Waiter::new(Some(Arc::new(irq)), poll), device, vector)
}

fn raise(device: &OwnedFd) {
    rustix::io::write(device, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn what_is_ready_costs_neither_a_sleep_nor_a_clock() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, NO_POLLING);
    assert!(waiter.wait(Deadline::after(LONG), || true).unwrap());
    assert_eq!(waiter.stats(), WaitStats { immediate: 1, to_polling: 1, ..WaitStats::default() });
}

/// How often the clock is read by `wait`, the making of its deadline not counted.
fn clock_reads(waiter: &mut Waiter, ready: impl FnMut() -> bool) -> u32 {
    let deadline = Deadline::after(LONG);
    let before = clock::reads();
    assert!(waiter.wait(deadline, ready).unwrap());
    clock::reads() - before
}

#[test]
fn a_wait_that_polling_ends_reads_the_clock_twice() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, LONG);
    let mut looks = 0;
    let soon = || {
        looks += 1;
        looks > 3
    };
    assert_eq!(clock_reads(&mut waiter, soon), 2);
    assert_eq!(waiter.stats().polled, 1);
}

#[test]
fn a_wait_that_a_message_ends_reads_the_clock_twice() {
    let (mut waiter, device, _) = waiter(IrqKind::MsiX, NO_POLLING);
    let mut looks = 0;
    let done = || {
        looks += 1;
        // The look before the sleep finds nothing; then the device is done.
        if looks == 2 {
            raise(&device);
        }
        looks > 2
    };
    assert_eq!(clock_reads(&mut waiter, done), 2);
    assert_eq!((waiter.stats().slept, waiter.stats().lost), (1, 0));
}

#[test]
fn what_is_ready_reads_no_clock() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, LONG);
    assert_eq!(clock_reads(&mut waiter, || true), 0);
}

#[test]
fn a_wait_for_nothing_ends_at_the_deadline() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, DEFAULT_POLL);
    let start = Instant::now();
    assert!(!waiter.wait(Deadline::after(Duration::from_millis(20)), || false).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20) && start.elapsed() < LONG);
}

#[test]
fn an_interrupt_ends_the_sleep() {
    let (mut waiter, device, _) = waiter(IrqKind::MsiX, NO_POLLING);
    let done = Arc::new(AtomicBool::new(false));
    let seen = done.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        done.store(true, Ordering::SeqCst);
        raise(&device);
    });
    assert!(waiter.wait(Deadline::after(LONG), || seen.load(Ordering::SeqCst)).unwrap());
    assert_eq!((waiter.stats().slept, waiter.stats().lost), (1, 0));
    thread.join().unwrap();
}

#[test]
fn polling_holds_the_interrupt_back_and_sleeping_opens_it() {
    let (mut waiter, _device, vector) = waiter(IrqKind::MsiX, Duration::from_millis(1));
    waiter.wait(Deadline::after(Duration::from_millis(5)), || false).unwrap();
    assert_eq!(
        (vector.masks.load(Ordering::SeqCst), vector.unmasks.load(Ordering::SeqCst)),
        (1, 1)
    );
}

#[test]
fn a_slow_device_costs_no_mask_per_wait() {
    let (mut waiter, _device, vector) = waiter(IrqKind::MsiX, NO_POLLING);
    for _ in 0..10 {
        waiter.wait(Deadline::after(Duration::from_millis(1)), || false).unwrap();
    }
    assert_eq!(
        (vector.masks.load(Ordering::SeqCst), vector.unmasks.load(Ordering::SeqCst)),
        (0, 0)
    );
}

#[test]
fn arming_looks_again_after_the_interrupt_is_open() {
    let (mut waiter, _device, vector) = waiter(IrqKind::Intx, NO_POLLING);
    let open_at_look = || vector.unmasks.load(Ordering::SeqCst) == 1;
    assert!(!waiter.arm(open_at_look).unwrap());
}

#[test]
fn a_vector_that_the_owner_before_has_held_back_is_opened_before_the_sleep() {
    for kind in [IrqKind::Msi, IrqKind::MsiX, IrqKind::Intx] {
        let (mut before, _device, vector) = waiter(kind, NO_POLLING);
        assert!(before.arm(|| false).unwrap());
        before.disarm().unwrap();
        let opened = vector.unmasks.load(Ordering::SeqCst);
        let mut after = Waiter::new(before.irq.clone(), NO_POLLING);
        drop(before);
        assert!(after.arm(|| false).unwrap());
        assert_eq!(vector.unmasks.load(Ordering::SeqCst), opened + 1, "{kind:?}");
    }
}

#[test]
fn a_pin_is_opened_again_after_it_fired() {
    let (mut waiter, device, vector) = waiter(IrqKind::Intx, NO_POLLING);
    assert!(waiter.arm(|| false).unwrap());
    raise(&device);
    assert!(waiter.arm(|| false).unwrap());
    assert_eq!(vector.unmasks.load(Ordering::SeqCst), 2);
}

#[test]
fn an_interrupt_for_nothing_is_counted_and_the_wait_goes_on() {
    let (mut waiter, device, _) = waiter(IrqKind::MsiX, NO_POLLING);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        raise(&device);
    });
    assert!(!waiter.wait(Deadline::after(Duration::from_millis(30)), || false).unwrap());
    assert_eq!(waiter.stats().spurious, 1);
    thread.join().unwrap();
}

#[test]
fn a_lost_interrupt_is_found_at_the_deadline_and_counted() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, NO_POLLING);
    let start = Instant::now();
    let done = || start.elapsed() > Duration::from_millis(5);
    assert!(waiter.wait(Deadline::after(Duration::from_millis(15)), done).unwrap());
    assert_eq!(waiter.stats().lost, 1);
}

#[test]
fn an_interrupt_that_came_and_woke_nobody_in_time_is_late_and_not_lost() {
    let (mut waiter, device, _) = waiter(IrqKind::MsiX, NO_POLLING);
    let deadline = Deadline::after(Duration::from_millis(5));
    let mut looks = 0;
    let done = || {
        looks += 1;
        // Between the look and the sleep, the processor has other things to do.
        if looks == 1 {
            std::thread::sleep(Duration::from_millis(10));
            raise(&device);
        }
        looks > 1
    };
    let polled = Polled { start: clock::now(), end: clock::now() };
    assert!(waiter.sleep(polled, deadline, done).unwrap());
    assert_eq!((waiter.stats().late, waiter.stats().lost), (1, 0));
}

#[test]
fn a_queue_without_an_interrupt_loses_none() {
    let mut waiter = Waiter::new(None, NO_POLLING);
    let start = Instant::now();
    waiter
        .wait(Deadline::after(Duration::from_millis(5)), || {
            start.elapsed() > Duration::from_millis(8)
        })
        .unwrap();
    assert_eq!((waiter.stats().late, waiter.stats().lost), (0, 0));
}

#[test]
fn a_queue_without_an_interrupt_is_polled_and_cannot_be_armed() {
    let mut waiter = Waiter::new(None, DEFAULT_POLL);
    let mut looks = 0;
    assert!(!waiter.arm(|| false).unwrap());
    let later = || {
        looks += 1;
        looks > 100
    };
    assert!(waiter.wait(Deadline::after(LONG), later).unwrap());
}

#[test]
fn an_idle_queue_costs_no_cpu() {
    let (mut waiter, ..) = waiter(IrqKind::MsiX, DEFAULT_POLL);
    let clock = || {
        Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime))
            .unwrap()
    };
    let before = clock();
    waiter.wait(Deadline::after(Duration::from_millis(300)), || false).unwrap();
    let used = clock() - before;
    assert!(used < Duration::from_millis(5), "{used:?}");
}

#[test]
fn messages_whose_count_nobody_read_are_no_storm() {
    let (mut waiter, device, vector) = waiter(IrqKind::MsiX, NO_POLLING);
    for _ in 0..2 {
        // Far more than a storm's limit, and each with something to find.
        rustix::io::write(&device, &100_000u64.to_ne_bytes()).unwrap();
        let mut looks = 0;
        let late = || {
            looks += 1;
            looks > 2
        };
        assert!(waiter.wait(Deadline::after(LONG), late).unwrap());
    }
    raise(&device);
    assert!(!waiter.wait(Deadline::after(Duration::from_millis(5)), || false).unwrap());
    assert_eq!((waiter.stats().spurious, vector.masks.load(Ordering::SeqCst)), (1, 0));
}

#[test]
fn messages_for_nothing_that_come_too_fast_are_held_back() {
    let (mut waiter, device, vector) = waiter(IrqKind::MsiX, NO_POLLING);
    let mut looks = 0;
    let storm = || {
        looks += 1;
        // The device raises it while the waiter looks, again and again.
        rustix::io::write(&device, &10_000u64.to_ne_bytes()).unwrap();
        looks > 20
    };
    assert!(waiter.wait(Deadline::after(LONG), storm).unwrap());
    assert!(vector.masks.load(Ordering::SeqCst) > 0);
}

#[test]
fn the_message_of_what_was_found_without_sleeping_ends_the_next_sleep_once() {
    let (mut waiter, device, _) = waiter(IrqKind::Msi, NO_POLLING);
    assert!(!waiter.wait(Deadline::after(Duration::from_millis(1)), || false).unwrap());
    raise(&device);
    assert!(waiter.wait(Deadline::after(LONG), || true).unwrap());
    let start = Instant::now();
    assert!(!waiter.wait(Deadline::after(Duration::from_millis(20)), || false).unwrap());
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(waiter.stats().spurious, 1);
}
