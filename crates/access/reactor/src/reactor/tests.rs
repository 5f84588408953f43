use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::*;

const NOW: Option<Duration> = Some(Duration::ZERO);
const LONG: Option<Duration> = Some(Duration::from_secs(20));

fn reactor() -> Reactor {
    Reactor::new(8, Duration::ZERO).unwrap()
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn raise(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// The tokens that are ready after one turn.
fn ready(reactor: &mut Reactor, limit: Option<Duration>) -> Vec<Token> {
    reactor.step(limit).unwrap();
    std::iter::from_fn(|| reactor.next_event())
        .filter_map(|event| match event {
            Event::Ready(token) => Some(token),
            Event::Lost(_, error) => panic!("{error}"),
            _ => None,
        })
        .collect()
}

/// Takes `count` timers, and the times at which they were found.
fn timers(reactor: &mut Reactor, count: usize) -> Vec<(Timer, Instant)> {
    let mut fired = Vec::new();
    while fired.len() < count {
        reactor.step(LONG).unwrap();
        fired.extend(std::iter::from_fn(|| reactor.next_event()).map(|event| match event {
            Event::Timer(timer, now) => (timer, now),
            other => panic!("{other:?}"),
        }));
    }
    fired
}

fn nop(reactor: &mut Reactor, name: u64) {
    // SAFETY: a command that does nothing.
    unsafe { reactor.push(&opcode::Nop::new().build().user_data(name)) }.unwrap();
}

#[test]
fn a_step_without_time_returns_at_once() {
    let (mut reactor, fd, start) = (reactor(), event(), Instant::now());
    reactor.add(fd.as_fd()).unwrap();
    reactor.set_timer(start + Duration::from_secs(3600));
    for _ in 0..100 {
        assert_eq!(ready(&mut reactor, NOW), []);
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_step_ends_at_its_time_limit_without_events() {
    let (mut reactor, start) = (reactor(), Instant::now());
    let turn = reactor.step(Some(Duration::from_millis(20))).unwrap();
    assert!(turn.slept && start.elapsed() >= Duration::from_millis(20));
    assert!(reactor.next_event().is_none());
}

#[test]
fn a_descriptor_is_said_to_be_ready_each_time_it_is_raised_though_nobody_reads_it() {
    let (mut reactor, fd) = (reactor(), event());
    let token = reactor.add(fd.as_fd()).unwrap();
    for _ in 0..3 {
        raise(&fd);
        assert_eq!(ready(&mut reactor, LONG), [token]);
        assert_eq!(ready(&mut reactor, NOW), []);
    }
}

#[test]
fn a_descriptor_that_is_removed_while_it_is_ready_is_not_heard_of_again_and_nor_is_the_next_at_its_place()
 {
    let (mut reactor, old, new) = (reactor(), event(), event());
    let token = reactor.add(old.as_fd()).unwrap();
    raise(&old);
    // The kernel has said it, and nobody has taken it yet.
    reactor.step(LONG).unwrap();
    reactor.remove(token).unwrap();
    let next = reactor.add(new.as_fd()).unwrap();
    raise(&old);
    assert_eq!(ready(&mut reactor, Some(Duration::from_millis(20))), []);
    raise(&new);
    assert_eq!(ready(&mut reactor, LONG), [next]);
}

#[test]
fn a_descriptor_that_is_removed_is_open_no_longer_for_the_ring() {
    for is_ready in [false, true] {
        let mut reactor = reactor();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let token = reactor.add(reader.as_fd()).unwrap();
        reactor.step(NOW).unwrap();
        if is_ready {
            rustix::io::write(&writer, b"x").unwrap();
        }
        reactor.remove(token).unwrap();
        drop(reader);
        assert_eq!(
            rustix::io::write(&writer, b"x"),
            Err(rustix::io::Errno::PIPE),
            "ready: {is_ready}"
        );
    }
}

#[test]
fn a_descriptor_that_is_raised_without_end_keeps_neither_others_nor_timers_from_their_turn() {
    let (mut reactor, storm, other) = (reactor(), event(), event());
    let stormy = reactor.add(storm.as_fd()).unwrap();
    let quiet = reactor.add(other.as_fd()).unwrap();
    let timer = reactor.set_timer(Instant::now() + Duration::from_millis(5));
    let (mut storms, mut heard, mut fired) = (0, false, false);
    for turn in 0..100_000 {
        raise(&storm);
        if turn == 10 {
            raise(&other);
        }
        reactor.step(NOW).unwrap();
        // A turn ends though the descriptor is raised while its events are taken.
        for taken in 0.. {
            assert!(taken < 10, "a turn without end");
            raise(&storm);
            match reactor.next_event() {
                Some(Event::Ready(token)) if token == stormy => storms += 1,
                Some(Event::Ready(token)) => heard |= token == quiet,
                Some(Event::Timer(found, _)) => fired |= found == timer,
                Some(event) => panic!("{event:?}"),
                None => break,
            }
        }
        if heard && fired {
            break;
        }
    }
    assert!(heard && fired && storms > 10, "{heard} {fired} {storms}");
}

#[test]
fn a_descriptor_that_cannot_be_watched_is_lost_with_its_reason() {
    let mut reactor = reactor();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let token = reactor.add(file.as_fd()).unwrap();
    reactor.step(LONG).unwrap();
    // A regular file is always ready: whichever the kernel says, it is said of this descriptor.
    let (Some(Event::Ready(named)) | Some(Event::Lost(named, _))) = reactor.next_event() else {
        panic!("nothing was said")
    };
    assert_eq!(named, token);
}

#[test]
fn timers_fire_in_the_order_of_their_times_and_never_early() {
    let mut reactor = reactor();
    let start = Instant::now();
    let dues = [30, 5, 20, 5, 10].map(|ms| start + Duration::from_millis(ms));
    let set = dues.map(|due| reactor.set_timer(due));
    let fired = timers(&mut reactor, 5);
    assert_eq!(
        fired.iter().map(|&(timer, _)| timer).collect::<Vec<_>>(),
        [1, 3, 4, 2, 0].map(|place| set[place])
    );
    for (timer, now) in fired {
        let place = set.iter().position(|&known| known == timer).unwrap();
        assert!(now >= dues[place], "timer {place} was early by {:?}", dues[place] - now);
    }
}

#[test]
fn a_timer_that_is_earlier_than_all_others_is_not_late_by_them() {
    let mut reactor = reactor();
    let start = Instant::now();
    reactor.set_timer(start + Duration::from_secs(3600));
    reactor.step(NOW).unwrap();
    let soon = reactor.set_timer(start + Duration::from_millis(5));
    assert_eq!(timers(&mut reactor, 1)[0].0, soon);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn thousands_of_timers_fire_once_each() {
    let mut reactor = reactor();
    let start = Instant::now();
    // In an order that is neither theirs nor its reverse.
    let due = |index: u64| start + Duration::from_micros(index * 7919 % 10_000 * 5);
    let set: Vec<_> = (0..10_000).map(|index| reactor.set_timer(due(index))).collect();
    set.iter().step_by(2).for_each(|&timer| reactor.cancel(timer));
    let fired = timers(&mut reactor, 5_000);
    assert!(fired.is_sorted_by_key(|&(timer, _)| timer));
    assert_eq!(fired.len(), 5_000);
    reactor.step(Some(Duration::from_millis(5))).unwrap();
    assert!(reactor.next_event().is_none());
}

#[test]
fn a_timer_that_is_set_anew_whenever_it_fires_does_not_hold_up_descriptors() {
    let (mut reactor, fd) = (reactor(), event());
    let token = reactor.add(fd.as_fd()).unwrap();
    raise(&fd);
    reactor.set_timer(Instant::now());
    for _ in 0..1000 {
        reactor.step(LONG).unwrap();
        for taken in 0.. {
            assert!(taken < 10, "a turn without end");
            match reactor.next_event() {
                Some(Event::Timer(_, now)) => drop(reactor.set_timer(now)),
                Some(Event::Ready(heard)) => return assert_eq!(heard, token),
                Some(event) => panic!("{event:?}"),
                None => break,
            }
        }
    }
    panic!("the descriptor was not heard");
}

#[test]
fn without_timers_and_events_it_costs_no_cpu() {
    let (mut reactor, fd) = (reactor(), event());
    reactor.add(fd.as_fd()).unwrap();
    let timer = reactor.set_timer(Instant::now() + Duration::from_secs(3600));
    reactor.cancel(timer);
    let clock = || {
        Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime))
            .unwrap()
    };
    let before = clock();
    let turn = reactor.step(Some(Duration::from_millis(300))).unwrap();
    assert!(turn.slept && reactor.next_event().is_none() && reactor.clock.is_none());
    let used = clock() - before;
    assert!(used < Duration::from_millis(5), "{used:?}");
}

#[test]
fn its_own_descriptor_tells_another_loop_of_descriptors_and_timers() {
    let (mut reactor, fd, start) =
        (Reactor::nested(8, Duration::ZERO).unwrap(), event(), Instant::now());
    let token = reactor.add(fd.as_fd()).unwrap();
    assert_eq!(ready(&mut reactor, NOW), []);
    let bell = reactor.descriptor().try_clone_to_owned().unwrap();
    let asleep = |ms: i64| {
        let limit = rustix::event::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit)))
            .unwrap()
            == 0
    };
    assert!(asleep(10));
    raise(&fd);
    assert!(!asleep(20_000));
    assert_eq!(ready(&mut reactor, NOW), [token]);
    assert!(asleep(10));
    reactor.set_timer(Instant::now() + Duration::from_millis(5));
    assert_eq!(ready(&mut reactor, NOW), []);
    assert!(start.elapsed() < Duration::from_secs(15) && !asleep(20_000));
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "it was found by its time limit and not by its descriptor"
    );
    reactor.step(NOW).unwrap();
    assert!(matches!(reactor.next_event(), Some(Event::Timer(..))));
}

#[test]
fn commands_end_by_their_names_and_more_than_the_ring_holds_are_not_lost() {
    let mut reactor = reactor();
    // Nobody takes an end meanwhile: the kernel keeps what the ring has no room for, and says EBUSY
    // where it takes no more.
    for name in 0..1000 {
        nop(&mut reactor, name);
    }
    let mut seen = Vec::new();
    while seen.len() < 1000 {
        reactor.step(LONG).unwrap();
        while let Some(event) = reactor.next_event() {
            let Event::Command { name, result: 0, .. } = event else { panic!("{event:?}") };
            seen.push(name);
        }
    }
    seen.sort();
    assert!(seen.into_iter().eq(0..1000));
}

#[test]
fn a_watch_that_the_kernel_has_ended_for_want_of_room_goes_on() {
    let (mut reactor, fd) = (reactor(), event());
    let token = reactor.add(fd.as_fd()).unwrap();
    (0..100).for_each(|name| nop(&mut reactor, name));
    reactor.step(NOW).unwrap();
    raise(&fd);
    reactor.step(NOW).unwrap();
    let mut heard = 0;
    for _ in 0..50 {
        heard += usize::from(ready(&mut reactor, NOW).contains(&token));
    }
    assert!(heard > 0);
    raise(&fd);
    assert_eq!(ready(&mut reactor, LONG), [token]);
}

#[test]
fn a_signal_ends_a_sleep_and_nothing_else() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, without SA_RESTART, for a signal that nobody else uses.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
    }
    // SAFETY: names the calling thread.
    let (me, done) = (
        unsafe { libc::pthread_self() } as usize,
        std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)),
    );
    let seen = done.clone();
    let thread = std::thread::spawn(move || {
        while !seen.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
            // SAFETY: the thread waits for this one before it ends.
            unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR2) };
        }
    });
    let mut reactor = reactor();
    let start = Instant::now();
    reactor.step(None).unwrap();
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    thread.join().unwrap();
    assert!(reactor.next_event().is_none() && start.elapsed() < Duration::from_secs(20));
}

#[test]
fn only_errors_that_the_next_turn_recovers_from_are_ignored() {
    for errno in [libc::EINTR, libc::ETIME, libc::EBUSY, libc::EAGAIN] {
        ignore_transient(io::Error::from_raw_os_error(errno)).unwrap();
    }
    for errno in [libc::EBADF, libc::EINVAL, libc::EEXIST, libc::ENXIO] {
        assert_eq!(
            ignore_transient(io::Error::from_raw_os_error(errno)).unwrap_err().raw_os_error(),
            Some(errno)
        );
    }
}

#[test]
fn a_command_fills_a_buffer_that_the_kernel_chooses_and_finds_them_all_again_when_they_were_looked_at()
 {
    let (mut reactor, (reader, writer)) = (reactor(), std::io::pipe().unwrap());
    reactor.provide(2, 8).unwrap();
    let read = || {
        io_uring::opcode::Read::new(
            io_uring::types::Fd(reader.as_raw_fd()),
            std::ptr::null_mut(),
            8,
        )
        .buf_group(0)
        .build()
    };
    for turn in 0..5u8 {
        rustix::io::write(&writer, &[turn, turn + 1]).unwrap();
        // SAFETY: the memory is the reactor's.
        unsafe { reactor.push(&read().flags(io_uring::squeue::Flags::BUFFER_SELECT)) }.unwrap();
        reactor.step(LONG).unwrap();
        let Some(Event::Command { result: 2, flags, .. }) = reactor.next_event() else {
            panic!("nothing was read")
        };
        let mut seen = Vec::new();
        reactor.provided(flags, 2, |bytes| seen.extend_from_slice(bytes));
        assert_eq!((seen, Reactor::more(flags)), (vec![turn, turn + 1], false));
    }
}

#[test]
fn a_command_for_which_no_buffer_is_left_ends_with_an_error() {
    let (mut reactor, (reader, writer)) = (reactor(), std::io::pipe().unwrap());
    reactor.provide(1, 1).unwrap();
    rustix::io::write(&writer, &[1, 2]).unwrap();
    let read = io_uring::opcode::Read::new(
        io_uring::types::Fd(reader.as_raw_fd()),
        std::ptr::null_mut(),
        1,
    )
    .buf_group(0)
    .build();
    let read = read.flags(io_uring::squeue::Flags::BUFFER_SELECT);
    let results = [1, -libc::ENOBUFS].map(|_| {
        // SAFETY: the memory is the reactor's.
        unsafe { reactor.push(&read) }.unwrap();
        reactor.step(LONG).unwrap();
        match reactor.next_event() {
            Some(Event::Command { result, .. }) => result,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(results, [1, -libc::ENOBUFS]);
}

#[test]
fn buffers_that_the_kernel_has_are_not_taken_away_for_others() {
    let mut reactor = reactor();
    reactor.provide(2, 8).unwrap();
    assert!(reactor.provide(2, 8).unwrap_err().to_string().contains("already"));
}
