//! What becomes of written data that an ATA drive keeps in its volatile cache, whichever controller
//! it sits at: power that fails for a moment, flushes that fail, and the orderly end.
//! `ahci_cache.rs` and `ide_cache.rs` have what only one of them shows.

mod owner;

use std::sync::Arc;
use std::time::{Duration, Instant};

use owner::{PATIENCE, finish, succeed};
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{IoError, Queue, Request};
use ring3_driver::Interrupts;
use ring3_driver::ata::{Controller, Level, Options};
use ring3_model::ahci::{AhciHandle, FAULT_LOG, Statistics};
use ring3_model::fault::{Action, FaultPlan, Rule};
use ring3_model::ide::IdeHandle;
use ring3_spec::ata::opcode;

const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_FLUSH: u8 = opcode::FLUSH;
/// Nothing goes wrong; the rule counts the commands.
const SEEN: Action = Action::Delay(Duration::ZERO);
/// Commands and resets time out after this.
const TIMEOUT: Duration = Duration::from_millis(160);

/// The other side of either device.
trait Model {
    fn plan(&self) -> FaultPlan;
    fn admin_commands(&self) -> u64;
    fn violations(&self) -> Vec<String>;
    /// The power of drive `index` fails for a moment.
    fn lose_power_of(&self, index: usize);
    /// The same, and neither its link nor its settings show it.
    fn lose_power_unseen(&self, index: usize);
    /// Somebody else resets the function.
    fn reset_function(&self);
    /// What drive `index` says from now on of how often it was powered on.
    fn set_statistics(&self, index: usize, statistics: Statistics);
    /// The whole machine's power fails for a moment.
    fn lose_power(&self);
    /// Whether block 8 of drive `index` durably holds `byte`.
    fn holds(&self, index: usize, byte: u8) -> bool;
}

macro_rules! model {
    ($handle:ty) => {
        impl Model for $handle {
            fn plan(&self) -> FaultPlan {
                self.plan()
            }

            fn admin_commands(&self) -> u64 {
                self.counters().admin_commands
            }

            fn violations(&self) -> Vec<String> {
                self.violations()
            }

            fn lose_power_of(&self, index: usize) {
                self.unplug(index);
                self.plug(index);
            }

            fn lose_power_unseen(&self, index: usize) {
                self.lose_power_unseen(index);
            }

            fn reset_function(&self) {
                self.reset_function();
            }

            fn set_statistics(&self, index: usize, statistics: Statistics) {
                self.set_statistics(index, statistics);
            }

            fn lose_power(&self) {
                self.lose_power();
            }

            fn holds(&self, index: usize, byte: u8) -> bool {
                let mut bytes = [0; 512];
                self.peek(index, 8 * 512, &mut bytes) && bytes == [byte; 512]
            }
        }
    };
}

model!(AhciHandle);
model!(IdeHandle);

/// A controller with three drives.
struct Bench {
    name: &'static str,
    controller: Controller,
    model: Box<dyn Model>,
}

impl Bench {
    fn queue(&self, index: u32) -> Box<dyn Queue> {
        self.controller.disk(index).unwrap().open_queue(8).unwrap()
    }

    fn read(&self, lba: u64) -> Request {
        Request::read(
            lba,
            lba,
            1,
            self.controller.disk(0).unwrap().dma().arena().alloc_pages(512).unwrap(),
        )
    }

    fn write(&self, lba: u64) -> Request {
        let buffer = self.controller.disk(0).unwrap().dma().arena().alloc_pages(512).unwrap();
        buffer.fill(0x77);
        Request::write(lba, lba, 1, buffer)
    }

    fn add(&self, rule: Rule) {
        self.model.plan().add(rule);
    }

    /// Counts flushes and commands that park from now on.
    fn count_the_end(&self) -> u64 {
        self.model.plan().clear();
        self.add(Rule::io(SEEN, FAULT_FLUSH).always());
        self.add(Rule::admin(SEEN, opcode::STANDBY_IMMEDIATE).always());
        self.model.plan().fired()
    }

    /// Commands that read a log from now on.
    fn count_logs(&self) -> u64 {
        self.model.plan().clear();
        self.add(Rule::admin(SEEN, FAULT_LOG).always());
        self.model.plan().fired()
    }

    /// Closes the controller; it has broken no rule of the specification.
    fn close(self) -> Box<dyn Model> {
        drop(self.controller);
        assert_eq!(self.model.violations(), Vec::<String>::new(), "{}", self.name);
        self.model
    }
}

fn bench(name: &'static str, drive: &str, options: Options) -> Bench {
    let uri: Uri = format!("{name}{drive}").parse().unwrap();
    let memory = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    if name.starts_with("sim:ahci") {
        let device = ring3_model::ahci::open(&uri, memory).unwrap();
        let model = Box::new(device.handle());
        Bench { name, controller: Controller::open(Arc::new(device), options).unwrap(), model }
    } else {
        let device = ring3_model::ide::open(&uri, memory).unwrap();
        let model = Box::new(device.handle());
        Bench { name, controller: Controller::open(Arc::new(device), options).unwrap(), model }
    }
}

/// Runs `test` on AHCI with and without queued commands, and on IDE by interrupt, by looking, and
/// on both kinds of chips.
fn each(flush_timeout: Duration, test: impl Fn(Bench)) {
    each_with("", flush_timeout, test);
}

/// The same with drives of which `drive` says more.
fn each_with(drive: &str, flush_timeout: Duration, test: impl Fn(Bench)) {
    let by = |interrupts, level| Options {
        timeout: TIMEOUT,
        flush_timeout,
        ready_timeout: TIMEOUT,
        interrupts,
        level,
        ..Options::default()
    };
    test(bench("sim:ahci,disks=3", drive, by(Interrupts::Auto, Level::Queued)));
    test(bench("sim:ahci,disks=3", drive, by(Interrupts::Auto, Level::Dma)));
    test(bench("sim:ide,disks=3", drive, by(Interrupts::Auto, Level::Dma)));
    test(bench("sim:ide,disks=3", drive, by(Interrupts::Polled, Level::Dma)));
    test(bench("sim:ide,chip=cmd646,disks=3", drive, by(Interrupts::Auto, Level::Dma)));
}

/// How `request` ends.
fn end(queue: &mut dyn Queue, request: Request) -> Result<(), IoError> {
    let token = request.token;
    queue.submit(request).unwrap();
    finish(queue).of(token)
}

fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    end(queue, Request::flush(99))
}

/// How two flushes end, one after the other, if written data were lost: it is said once.
const LOST: [Result<(), IoError>; 2] = [Err(IoError::Transport), Ok(())];

fn two_flushes(queue: &mut dyn Queue) -> [Result<(), IoError>; 2] {
    [flush(queue), flush(queue)]
}

#[test]
fn writes_that_an_idle_drive_has_lost_with_its_power_are_not_flushed_well() {
    each(TIMEOUT, |bench| {
        let mut queue = bench.queue(0);
        succeed(&mut *queue, bench.write(8));
        bench.model.lose_power_of(0);
        assert_eq!(
            (flush(&mut *queue), flush(&mut *queue)),
            (Err(IoError::Transport), Ok(())),
            "{}",
            bench.name
        );
        succeed(&mut *queue, bench.write(9));
        assert_eq!(flush(&mut *queue), Ok(()), "{}", bench.name);
        drop(queue);
        assert!(bench.close().holds(0, 0), "they are lost");
    });
}

#[test]
fn resets_by_the_driver_cost_no_written_data() {
    each(TIMEOUT, |bench| {
        let mut queue = bench.queue(0);
        succeed(&mut *queue, bench.write(8));
        for fault in [Action::Drop, Action::Hang, Action::BusyUntilReset] {
            bench.add(Rule::io(fault, FAULT_READ));
            succeed(&mut *queue, bench.read(1));
        }
        assert_eq!(flush(&mut *queue), Ok(()), "{}", bench.name);
        drop(queue);
        bench.close();
    });
}

#[test]
fn a_flush_that_failed_leaves_its_writes_at_risk_and_is_not_repeated() {
    each(TIMEOUT, |bench| {
        let mut queue = bench.queue(0);
        succeed(&mut *queue, bench.write(8));
        for fault in [Action::Error(0x04), Action::Error(0x84), Action::DriveFault] {
            bench.model.plan().clear();
            let before = bench.model.plan().fired();
            bench.add(Rule::io(fault, FAULT_FLUSH).always());
            assert!(flush(&mut *queue).is_err());
            assert_eq!(bench.model.plan().fired() - before, 1, "{} {fault:?}", bench.name);
        }
        bench.model.plan().clear();
        bench.model.lose_power_of(0);
        assert_eq!(
            (flush(&mut *queue), flush(&mut *queue)),
            (Err(IoError::Transport), Ok(())),
            "{}",
            bench.name
        );
        drop(queue);
        bench.close();
    });
}

#[test]
fn a_flush_may_take_longer_than_other_commands() {
    each(PATIENCE, |bench| {
        let mut queue = bench.queue(0);
        bench.add(Rule::io(Action::Delay(TIMEOUT * 3), FAULT_FLUSH));
        let commands = bench.model.admin_commands();
        assert_eq!(flush(&mut *queue), Ok(()));
        assert_eq!(
            bench.model.admin_commands(),
            commands,
            "{}: a drive that was reset is asked who it is",
            bench.name
        );
    });
}

#[test]
fn an_orderly_end_flushes_and_parks_every_drive_that_was_used() {
    each(TIMEOUT, |bench| {
        for index in [0, 2] {
            succeed(&mut *bench.queue(index), bench.write(8));
        }
        let before = bench.count_the_end();
        let model = bench.close();
        assert_eq!(model.plan().fired() - before, 4);
        model.lose_power();
        assert!(model.holds(0, 0x77) && model.holds(2, 0x77));
    });
}

#[test]
fn a_drive_that_has_lost_its_writes_before_the_end_is_not_parked_as_if_nothing_were() {
    each(TIMEOUT, |bench| {
        succeed(&mut *bench.queue(0), bench.write(8));
        bench.model.lose_power_of(0);
        bench.add(Rule::admin(SEEN, opcode::STANDBY_IMMEDIATE).always());
        let name = bench.name;
        assert_eq!(bench.close().plan().fired(), 0, "{name}");
    });
}

#[test]
fn a_drive_that_is_gone_is_not_flushed_at_the_end() {
    each(TIMEOUT, |bench| {
        let mut queue = bench.queue(0);
        bench.add(Rule::io(Action::Unplug, FAULT_READ));
        assert_eq!(end(&mut *queue, bench.read(1)), Err(IoError::Gone), "{}", bench.name);
        drop(queue);
        let before = bench.count_the_end();
        assert_eq!(bench.close().plan().fired() - before, 0);
    });
}

#[test]
fn a_flush_that_hangs_at_the_end_costs_its_time_out() {
    each(TIMEOUT, |bench| {
        drop(bench.queue(0));
        bench.add(Rule::io(Action::Hang, FAULT_FLUSH));
        let start = Instant::now();
        assert_eq!(bench.close().plan().fired(), 1);
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    });
}

#[test]
fn a_loss_of_power_that_a_drive_counts_and_that_nothing_else_shows_is_found_by_the_next_reset() {
    each(TIMEOUT, |bench| {
        let mut queue = bench.queue(0);
        succeed(&mut *queue, bench.write(8));
        bench.model.lose_power_unseen(0);
        bench.add(Rule::io(Action::Hang, FAULT_READ));
        succeed(&mut *queue, bench.read(1));
        assert_eq!(two_flushes(&mut *queue), LOST, "{}", bench.name);
        drop(queue);
        bench.close();
    });
}

#[test]
fn a_drive_that_does_not_say_how_often_it_was_powered_on_is_taken_for_lost_and_not_asked_again() {
    for drive in [
        ",statistics=off",
        ",statistics=invalid",
        ",statistics=refused",
        ",fault=error/0x04:log:1:all",
        ",fault=hang:log:1:all",
        ",lba48=off",
    ] {
        each_with(drive, TIMEOUT, |bench| {
            let mut queue = bench.queue(0);
            let before = bench.count_logs();
            succeed(&mut *queue, bench.write(8));
            bench.model.reset_function();
            assert_eq!(two_flushes(&mut *queue), LOST, "{}{drive}", bench.name);
            assert_eq!(bench.model.plan().fired(), before, "{}{drive}", bench.name);
            drop(queue);
            assert!(bench.close().holds(0, 0x77));
        });
    }
}

fn say_no_more(bench: &Bench, statistics: Statistics) {
    (0..3).for_each(|index| bench.model.set_statistics(index, statistics));
}

#[test]
fn a_drive_that_does_not_say_any_more_how_often_it_was_powered_on_goes_on_without() {
    for stop in [
        |bench: &Bench| say_no_more(bench, Statistics::Invalid),
        |bench: &Bench| say_no_more(bench, Statistics::Refused),
        // Each of two drives on an IDE channel is asked after a reset.
        |bench: &Bench| bench.add(Rule::admin(Action::Hang, FAULT_LOG).times(2)),
        |bench: &Bench| bench.add(Rule::admin(Action::BusyUntilReset, FAULT_LOG).times(2)),
    ] {
        each(TIMEOUT, |bench| {
            let mut queue = bench.queue(0);
            succeed(&mut *queue, bench.write(8));
            stop(&bench);
            bench.model.reset_function();
            assert_eq!(two_flushes(&mut *queue), LOST, "{}", bench.name);
            let before = bench.count_logs();
            succeed(&mut *queue, bench.write(8));
            bench.model.reset_function();
            assert_eq!(two_flushes(&mut *queue), LOST, "{}", bench.name);
            assert_eq!(bench.model.plan().fired(), before, "{}", bench.name);
            drop(queue);
            bench.close();
        });
    }
}
