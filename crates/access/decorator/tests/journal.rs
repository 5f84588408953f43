//! A driver that can be repeated, over our model of the teaching device: what came to it, and when,
//! comes to it again.

mod paper;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use paper::{Paper, recording};
use ring3_backend::OpenOptions;
use ring3_decorator::recording::Event;
use ring3_decorator::{Record, Replay};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::journal::{Journal, Journaled, Wake};
use ring3_device::{Bar, Device, Error};
use ring3_driver::edu::REACH;
use ring3_spec::edu;
use rustix::event::{EventfdFlags, eventfd};

const LEN: usize = 4096;
const SHORT: Duration = Duration::from_millis(2);

/// A driver and its world.
struct Life {
    device: Arc<dyn Device>,
    bar: Bar,
    irq: Irq,
    outside: OwnedFd,
}

impl Life {
    fn begin(device: Arc<dyn Device>) -> Self {
        device.journal().unwrap().begin();
        device.set_bus_master(true).unwrap();
        let irq = device.irqs(IrqKind::Msi, 1).unwrap().remove(0);
        let outside = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Self { bar: device.bar(0).unwrap(), irq, outside, device }
    }

    fn journal(&self) -> &dyn Journal {
        self.device.journal().unwrap()
    }

    fn wait(&self, limit: Duration) -> Result<Wake, Error> {
        self.journal().wait(self.outside.as_fd(), Some(limit))
    }

    fn raise(&self, value: u32) {
        self.bar.write32(edu::INTERRUPT_RAISE.offset(), value);
    }

    /// The device copies `count` bytes between `memory` and its own buffer, and says so.
    fn transfer(&self, memory: u64, count: u64, command: u64) {
        let (from, to) = if command == 0 { (memory, edu::BUFFER) } else { (edu::BUFFER, memory) };
        self.bar.write64(edu::DMA_SOURCE.offset(), from);
        self.bar.write64(edu::DMA_DESTINATION.offset(), to);
        self.bar.write64(edu::DMA_COUNT.offset(), count);
        self.bar.write64(edu::DMA_COMMAND.offset(), edu::DMA_START | edu::DMA_IRQ | command);
        assert_eq!(self.wait(Duration::from_secs(10)).unwrap(), Wake::Interrupt(0));
        assert_eq!(self.irq.take().unwrap(), 1);
        self.bar.write32(edu::INTERRUPT_ACKNOWLEDGE.offset(), edu::IRQ_DMA);
    }
}

fn recorded<T>(life: impl FnOnce(Life) -> T) -> (Paper, T) {
    let options = OpenOptions { arena: 1 << 20, below: REACH, ..OpenOptions::default() };
    let device = ring3_backend::open(&"sim:edu".parse().unwrap(), options).unwrap();
    let paper = Paper::default();
    let result =
        life(Life::begin(Arc::new(Record::new(device, paper.clone(), Vec::new()).unwrap())));
    (paper, result)
}

fn replayed<T>(paper: &Paper, life: impl FnOnce(Life) -> T) -> (Arc<Replay>, T) {
    let replay = Arc::new(Replay::new(recording(&paper.text())).unwrap());
    let result = life(Life::begin(replay.clone()));
    (replay, result)
}

#[test]
fn a_device_that_is_neither_recorded_nor_replayed_has_no_journal() {
    let device = ring3_backend::open(&"sim:edu".parse().unwrap(), OpenOptions::default()).unwrap();
    assert!(device.journal().is_none());
    let (paper, kind) = recorded(|life| life.journal().begin());
    assert_eq!(kind, Journaled::Recorded);
    assert_eq!(replayed(&paper, |life| life.journal().begin()).1, Journaled::Replayed);
}

/// Sleeps that end, interrupts, and somebody outside, in an order that the test chooses.
fn sleeps(life: Life, somebody: impl Fn(&Life)) -> Vec<Wake> {
    let mut wakes = vec![life.wait(SHORT).unwrap()];
    life.raise(1);
    wakes.push(life.wait(Duration::from_secs(10)).unwrap());
    somebody(&life);
    wakes.push(life.wait(Duration::from_secs(10)).unwrap());
    wakes.push(life.wait(SHORT).unwrap());
    wakes
}

#[test]
fn sleeps_end_in_a_replay_by_what_they_ended_by() {
    let wake =
        |life: &Life| assert_eq!(rustix::io::write(&life.outside, &1u64.to_ne_bytes()), Ok(8));
    let nobody = |_: &Life| {};
    let (paper, wakes) = recorded(|life| {
        let mut wakes = sleeps(life, wake);
        wakes.pop();
        wakes
    });
    assert_eq!(wakes, [Wake::Elapsed, Wake::Interrupt(0), Wake::Other]);
    // Nobody is there to end the third one.
    let (replay, again) = replayed(&paper, |life| {
        let mut wakes = sleeps(life, nobody);
        wakes.pop();
        wakes
    });
    assert_eq!((again, replay.check_end()), (wakes, Ok(())));
}

#[test]
fn a_sleep_of_a_replay_takes_no_time() {
    let (paper, _) = recorded(|life| life.wait(SHORT).unwrap());
    let (since, limit) = (Instant::now(), Duration::from_secs(1000));
    let (_, wake) = replayed(&paper, |life| life.wait(limit).unwrap());
    assert!(wake == Wake::Elapsed && since.elapsed() < limit);
}

#[test]
fn what_was_answered_from_outside_is_answered_again() {
    let (paper, ()) = recorded(|life| {
        life.journal().record(b"a frame");
        life.raise(1);
        life.journal().record(b"");
    });
    let (replay, answers) = replayed(&paper, |life| {
        let first = life.journal().answer().unwrap();
        life.raise(1);
        [first, life.journal().answer().unwrap()]
    });
    assert_eq!((answers, replay.check_end()), ([b"a frame".to_vec(), Vec::new()], Ok(())));
}

#[test]
fn who_asks_nobody_where_somebody_was_asked_has_left_the_recording() {
    let (paper, ()) = recorded(|life| {
        life.journal().record(b"a frame");
        life.raise(1);
    });
    let (replay, wake) = replayed(&paper, |life| life.wait(SHORT));
    assert!(matches!(wake, Err(Error::Gone)));
    let divergence = replay.divergence().unwrap();
    assert_eq!(divergence.expected, Some(Event::Answer(b"a frame".to_vec())));
}

#[test]
fn who_asks_somebody_where_nobody_was_asked_has_left_the_recording() {
    let (paper, ()) = recorded(|life| life.raise(1));
    let (replay, answer) = replayed(&paper, |life| life.journal().answer().map(|_| ()));
    assert!(matches!(answer, Err(Error::Gone)));
    assert_eq!(replay.divergence().unwrap().found, Some(Event::Answer(Vec::new())));
}

#[test]
fn a_recording_that_ends_in_the_midst_says_so_to_who_waits() {
    let (paper, ()) = recorded(|life| life.raise(1));
    let (_, wake) = replayed(&paper, |life| {
        life.raise(1);
        life.wait(SHORT).unwrap_err()
    });
    assert!(matches!(wake, Error::Gone));
}

#[test]
fn what_follows_the_end_of_a_recording_whose_process_was_killed_is_no_difference() {
    let (paper, ()) = recorded(|life| life.raise(1));
    let whole = paper.text();
    // The last block says that the recording is whole.
    let ends = |&at: &usize| {
        ring3_decorator::recording::Recording::read(std::io::Cursor::new(whole[..at].to_vec()))
            .is_ok_and(|recording| recording.events().is_none())
    };
    let last = (0..whole.len()).rev().find(ends).unwrap();
    let replay = Arc::new(Replay::new(recording(&whole[..last])).unwrap());
    let life = Life::begin(replay.clone());
    life.raise(1);
    assert_eq!(life.bar.read32(edu::FACTORIAL.offset()), u32::MAX);
    life.raise(2);
    assert!(matches!(life.wait(SHORT), Err(Error::Gone)));
    assert_eq!((replay.divergence(), replay.check_end()), (None, Ok(())));
}

/// Four bytes go to the device and come back to another page, of which the driver has said that it
/// shares it.
fn there_and_back(life: Life) -> Vec<u8> {
    let memory = life.device.dma().arena().alloc(2 * LEN, LEN).unwrap();
    let (there, back) = (memory.iova(), memory.iova() + LEN as u64);
    life.journal().share(there, LEN);
    life.journal().share(back, LEN);
    memory.write(0, b"word").unwrap();
    life.transfer(there, 4, 0);
    life.transfer(back, 4, edu::DMA_TO_MEMORY);
    let mut bytes = vec![0; 4];
    memory.read(LEN, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_a_device_wrote_to_memory_that_is_shared_is_there_in_the_replay() {
    let (paper, bytes) = recorded(there_and_back);
    assert_eq!(bytes, b"word");
    let (replay, again) = replayed(&paper, there_and_back);
    assert_eq!((again, replay.check_end()), (bytes, Ok(())));
}

#[test]
fn memory_that_is_not_shared_is_neither_the_devices_nor_in_the_recording() {
    let life = |secret: u8| {
        move |life: Life| {
            let memory = life.device.dma().arena().alloc(2 * LEN, LEN).unwrap();
            life.journal().share(memory.iova(), LEN);
            memory.write(LEN, &[secret; 16]).unwrap();
            life.raise(1);
            life.journal().unshare(memory.iova());
            memory.write(0, &[secret; 16]).unwrap();
            life.raise(2);
        }
    };
    let (paper, ()) = recorded(life(0xaa));
    let mut recording = recording(&paper.text());
    while let Some(event) = recording.next_event().unwrap() {
        assert!(!matches!(event, Event::Driver(_)), "{event:?}");
    }
    let (replay, ()) = replayed(&paper, life(0x55));
    assert_eq!(replay.check_end(), Ok(()));
}

#[test]
fn behind_a_barrier_the_device_has_what_was_written_and_the_driver_what_it_wrote() {
    let life = |life: Life| {
        let memory = life.device.dma().arena().alloc(LEN, LEN).unwrap();
        life.journal().share(memory.iova(), LEN);
        memory.write(0, b"word").unwrap();
        life.journal().sync().unwrap();
        life.transfer(memory.iova(), 4, 0);
    };
    let (paper, ()) = recorded(life);
    let mut recording = recording(&paper.text());
    let events: Vec<Event> = std::iter::from_fn(|| recording.next_event().unwrap()).collect();
    let synced = events.iter().position(|event| *event == Event::Synced).unwrap();
    assert!(
        matches!(&events[synced - 1], Event::Driver(memory) if memory.bytes == b"word"),
        "{events:?}"
    );
    assert_eq!(replayed(&paper, life).0.check_end(), Ok(()));
}
