//! Queues of several disks in one reactor: an application with a thread for all of them, without
//! any export.

#[allow(clippy::duplicate_mod, reason = "both have the same owner")]
mod ahci;
mod disks;
mod nvme;

use std::time::{Duration, Instant};

use ring3_class::block::{Disk, Queue, Request};
use ring3_device::irq::IrqKind;
use ring3_driver::{Interrupts, ata, nvme::Options};
use ring3_model::fault::{Action, Rule};
use ring3_reactor::{Event, Reactor, Registered, Registration};
use ring3_spec::nvme::opcode::nvm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LONG: Duration = Duration::from_secs(60);

/// A queue with the reads that it is still to do.
struct Reader {
    queue: Box<dyn Queue>,
    registration: Registration,
    left: u64,
}

impl Reader {
    fn new(reactor: &mut Reactor, disk: &dyn Disk, reads: u64, at_once: u64) -> Self {
        let mut queue = disk.open_queue(8).unwrap();
        for token in 0..at_once {
            let buffer = disk.dma().arena().alloc_pages(4096).unwrap();
            queue.submit(Request::read(token, token * 8, 8, buffer)).unwrap();
        }
        queue.ring();
        let registration = Registration::new(reactor, &*queue).unwrap();
        Self { queue, registration, left: reads }
    }

    /// Takes what has ended and starts as much again.
    fn drive(&mut self, reactor: &mut Reactor) {
        while let Some(done) = self.queue.reap_one().unwrap() {
            assert_eq!(done.result, Ok(()));
            self.left -= 1;
            if self.left > self.queue.in_flight().into() {
                self.queue.submit(Request::read(done.token, done.token * 8, 8, done.data)).unwrap();
            }
        }
        self.queue.ring();
        if self.queue.in_flight() > 0 && self.registration.timer().is_none() {
            self.registration.tick(reactor, &mut *self.queue, Instant::now()).unwrap();
        }
    }

    fn hear(&mut self, reactor: &mut Reactor, event: &Event) {
        match event {
            Event::Timer(timer, now) if self.registration.timer() == Some(*timer) => {
                self.registration.tick(reactor, &mut *self.queue, *now).unwrap();
            }
            Event::Lost(_, error) => panic!("{error}"),
            _ => {}
        }
    }
}

/// Turns `reactor` until all is read; `sleep` is done before each turn, and says how long the turn
/// may take.
fn read_all(
    reactor: &mut Reactor,
    readers: &mut [Reader],
    mut sleep: impl FnMut() -> Option<Duration>,
) {
    let start = Instant::now();
    let mut limit = Some(Duration::ZERO);
    while readers.iter().any(|reader| reader.left > 0) {
        assert!(
            start.elapsed() < LONG,
            "{:?} reads never ended",
            readers.iter().map(|reader| reader.left).collect::<Vec<_>>()
        );
        readers.iter_mut().for_each(|reader| reader.drive(reactor));
        let busy = readers.iter_mut().filter(|reader| reader.queue.in_flight() > 0);
        let mut sources: Vec<Registered<'_>> = busy
            .map(|Reader { queue, registration, .. }| (&*registration, &mut **queue as _))
            .collect();
        if sources.is_empty() {
            return;
        }
        reactor.wait(&mut sources, limit).unwrap();
        let mut any = false;
        while let Some(event) = reactor.next_event() {
            any = true;

            readers.iter_mut().for_each(|reader| reader.hear(reactor, &event));
        }
        if !any && readers.iter().all(|reader| !reader.queue.pending()) {
            limit = sleep();
        }
    }
}

fn disks(delay: &str) -> (nvme::Bench, ahci::Bench) {
    let options = Options {
        poll: Duration::ZERO,
        interrupts: Interrupts::Only(IrqKind::MsiX),
        ..Options::default()
    };
    let second = ata::Options {
        poll: Duration::ZERO,
        interrupts: Interrupts::Only(IrqKind::Msi),
        ..ata::Options::default()
    };
    (nvme::bench_with(delay, options), ahci::bench_with(delay, second))
}

#[test]
fn two_queues_of_two_disks_share_one_thread() {
    for poll in [Duration::ZERO, Duration::from_micros(50)] {
        let (first, second) = disks("");
        let mut reactor = Reactor::new(8, poll).unwrap();
        let mut readers = [
            Reader::new(&mut reactor, &*first.disk(), 2000, 8),
            Reader::new(&mut reactor, second.disk(), 1000, 4),
        ];
        read_all(&mut reactor, &mut readers, || None);
        assert!(readers.iter().all(|reader| reader.left == 0 && reader.queue.in_flight() == 0));
    }
}

#[test]
fn the_same_in_a_loop_of_another_kind_by_the_reactors_descriptor() {
    let (first, second) = disks(",delay=1ms");
    let mut reactor = Reactor::nested(8, Duration::ZERO).unwrap();
    let bell = reactor.descriptor().try_clone_to_owned().unwrap();
    let mut readers = [
        Reader::new(&mut reactor, &*first.disk(), 40, 4),
        Reader::new(&mut reactor, second.disk(), 20, 2),
    ];
    let mut late = 0;
    let sleep = || {
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        let sleep = || poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&limit));
        late += i32::from(rustix::io::retry_on_intr(sleep).unwrap() == 0);
        Some(Duration::ZERO)
    };
    read_all(&mut reactor, &mut readers, sleep);
    assert_eq!(late, 0, "the descriptor did not tell");
}

#[test]
fn a_lost_interrupt_is_found_by_the_queues_tick() {
    let (first, _second) = disks(",delay=2ms");
    first.handle.plan().add(Rule::io(Action::LoseInterrupt, nvm::READ));
    let mut reactor = Reactor::new(8, Duration::ZERO).unwrap();
    let mut readers = [Reader::new(&mut reactor, &*first.disk(), 1, 1)];
    read_all(&mut reactor, &mut readers, || None);
    assert_eq!((readers[0].left, first.handle.plan().fired()), (0, 1));
}

#[test]
fn a_queue_with_nothing_in_flight_has_no_timer_and_costs_no_cpu() {
    let (first, _second) = disks("");
    let mut reactor = Reactor::new(8, Duration::ZERO).unwrap();
    let mut readers = [Reader::new(&mut reactor, &*first.disk(), 100, 8)];
    read_all(&mut reactor, &mut readers, || None);
    let Reader { queue, registration, .. } = &mut readers[0];
    registration.tick(&mut reactor, &mut **queue, Instant::now()).unwrap();
    assert_eq!(registration.timer(), None);
    // What the kernel's one timer was set for is over.
    reactor.step(Some(Duration::from_millis(200))).unwrap();
    while reactor.next_event().is_some() {}
    let clock = || {
        Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime))
            .unwrap()
    };
    let before = clock();
    let turn = reactor.step(Some(Duration::from_millis(300))).unwrap();
    let used = clock() - before;
    assert!(
        turn.slept && reactor.next_event().is_none() && used < Duration::from_millis(5),
        "{used:?}"
    );
}
