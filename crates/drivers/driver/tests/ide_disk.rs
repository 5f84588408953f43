//! The IDE driver on simulated controllers, beyond what the conformance suite shows: what a request
//! costs, whose turn it is, which modes are chosen, and that no rule of the hardware is broken on
//! the way.

mod disks;
mod ide;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ide::{Bench, PATIENCE, bench, bench_with, bytes, device, finish, reap_all, short, succeed};
use ring3_class::block::{Completion, Disk, IoError, Queue, Request};
use ring3_decorator::Fault;
use ring3_device::dma::{Arena, Dma, Region, Span};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Decorator, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_model::ide::{Counters, SimIde};
use ring3_spec::ata::{ErrorBits, opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..short() }
}

/// Reads and writes of the registers from `start`'s value on.
fn accesses(bench: &Bench, start: Counters) -> (u64, u64) {
    let now = bench.handle.counters();
    (now.reads - start.reads, now.writes - start.writes)
}

/// What one request costs, after one that was like it.
fn cost(bench: &Bench, request: impl Fn() -> Request) -> (u64, u64) {
    let mut queue = bench.queue(4);
    succeed(&mut *queue, request());
    let start = bench.handle.counters();
    queue.submit(request()).unwrap();
    queue.ring();
    assert!(matches!(queue.reap_one(), Ok(Some(Completion { result: Ok(()), .. }))));
    accesses(bench, start)
}

#[test]
fn a_request_costs_seven_writes_to_start_and_five_accesses_to_end() {
    let bench = bench("");
    let read = || Request::read(1, 8, 8, bench.buffer(4096));
    // Count, address, device, command, start; bus master status, status; stop, clear. The bus
    // master's table is read before and afterwards: it says that the controller was not reset.
    assert_eq!(cost(&bench, read), (2 + 2, 7 + 2));
    let bench = bench_with("", polled());
    let read = || Request::read(1, 8, 8, bench.buffer(4096));
    // No interrupt, so none to clear.
    assert_eq!(cost(&bench, read), (2 + 2, 7 + 1));
}

#[test]
fn a_long_command_names_its_drive_only_when_that_changes() {
    let bench = bench("");
    let blocks = 1024;
    let read = || Request::read(1, 0, blocks, bench.buffer(512 * blocks as usize));
    // Twice the writes of count and address.
    assert_eq!(cost(&bench, read), (2 + 2, 7 + 4 - 1 + 2));
}

/// Writes and reads blocks; how often that took a reset.
fn resets_of_a_round_trip(uri: &str) -> u64 {
    let bench = bench(uri);
    let mut queue = bench.queue(4);
    for id in 1..4 {
        succeed(&mut *queue, Request::write(id, id, 1, bench.filled(512, 0x5a)));
        let read = succeed(&mut *queue, Request::read(id, id, 1, bench.buffer(512)));
        assert!(bytes(read)[..512] == [0x5a; 512]);
    }
    bench.well_behaved();
    bench.controller.drives()[0].stats().resets
}

#[test]
fn a_table_register_that_cannot_be_read_back_says_nothing_of_resets() {
    assert_eq!(resets_of_a_round_trip(",table=unreadable"), 0);
}

#[test]
fn a_table_register_that_moves_by_itself_is_found_out_and_costs_no_request() {
    // One for each of the two times that it was taken for a reset by somebody else.
    assert_eq!(resets_of_a_round_trip(",table=moves"), 2);
}

#[test]
fn nothing_is_read_or_written_while_nothing_is_to_do() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    let start = bench.handle.counters();
    queue.wait(Deadline::after(Duration::from_millis(20))).unwrap();
    assert!(queue.reap_one().unwrap().is_none());
    queue.ring();
    queue.tick(Instant::now()).unwrap();
    assert_eq!(accesses(&bench, start), (0, 0));
}

#[test]
fn drives_take_turns() {
    let bench = bench(",disks=2");
    bench.handle.set_timing(Timing::Held);
    let mut queues = [bench.queue(8), bench.drive(1).open_queue(8).unwrap()];
    for queue in &mut queues {
        for token in 0..4 {
            queue.submit(Request::read(token, token, 1, bench.buffer(512))).unwrap();
        }
        queue.ring();
    }
    let mut ended = Vec::new();
    for _ in 0..8 {
        assert_eq!(bench.handle.release(), 1, "the channel does one command at a time");
        for (index, queue) in queues.iter_mut().enumerate() {
            while let Some(completion) = queue.reap_one().unwrap() {
                ended.push((index, completion.token));
            }
        }
    }
    assert_eq!(ended, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]);
}

#[test]
fn the_other_drives_command_is_started_by_whoever_looks() {
    let bench = bench(",disks=2");
    bench.handle.set_timing(Timing::Held);
    let (mut master, mut slave) = (bench.queue(8), bench.drive(1).open_queue(8).unwrap());
    for queue in [&mut master, &mut slave] {
        queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
        queue.ring();
    }
    bench.handle.release();
    // The slave's owner finds the master's end.
    assert!(slave.reap_one().unwrap().is_none());
    assert_eq!(bench.handle.held(), 1);
    bench.handle.release();
    // The master's owner finds the slave's, and its own, which waits for it.
    assert!(matches!(master.reap_one(), Ok(Some(Completion { token: 1, result: Ok(()), .. }))));
    assert!(matches!(slave.reap_one(), Ok(Some(Completion { token: 1, result: Ok(()), .. }))));
}

#[test]
fn chip_cable_and_drive_choose_the_mode() {
    for (uri, mode, code) in [
        ("", "Ultra DMA mode 2", 0x42),
        (",udma=1", "Ultra DMA mode 1", 0x41),
        (",udma=off", "multiword DMA mode 2", 0x22),
        (",chip=piix3", "multiword DMA mode 2", 0x22),
        (",chip=cmd646,cable=40", "Ultra DMA mode 2", 0x42),
        (",dma=off", "PIO", 0),
    ] {
        let bench = bench(uri);
        assert_eq!(
            (bench.drive(0).mode().as_str(), bench.handle.transfer_mode(0)),
            (mode, code),
            "{uri}"
        );
        succeed(&mut *bench.queue(4), Request::read(1, 0, 8, bench.buffer(4096)));
        bench.well_behaved();
    }
}

#[test]
fn modes_are_set_again_after_a_reset() {
    let bench = bench(",disks=2");
    let mut queue = bench.queue(4);
    bench.handle.plan().add(Rule::io(Action::Drop, opcode::READ_DMA));
    succeed(&mut *queue, Request::read(1, 0, 8, bench.buffer(4096)));
    assert_eq!([0, 1].map(|drive| bench.handle.transfer_mode(drive)), [0x42; 2]);
    let mut other = bench.drive(1).open_queue(4).unwrap();
    succeed(&mut *other, Request::read(1, 0, 8, bench.buffer(4096)));
    bench.well_behaved();
}

#[test]
fn interrupts_are_of_the_channel_or_of_the_function() {
    assert_eq!(bench("").controller.interrupts(), Some(IrqKind::Intx));
    assert_eq!(bench(",chip=cmd646").controller.interrupts(), Some(IrqKind::Intx));
    assert_eq!(bench_with("", polled()).controller.interrupts(), None);
    assert!(bench_with("", polled()).queue(1).irq().is_none());
    let refused = Controller::open(
        Arc::new(device("")),
        Options { interrupts: Interrupts::Only(IrqKind::MsiX), ..short() },
    );
    assert!(matches!(refused, Err(Error::Unsupported(_))));
}

#[test]
fn a_sleeper_is_woken_by_its_own_drives_end_whichever_chip_it_is() {
    for uri in [",disks=4", ",chip=cmd646,disks=4"] {
        let bench =
            bench_with(&format!("{uri},delay=200us"), Options { poll: Duration::ZERO, ..short() });
        std::thread::scope(|scope| {
            for drive in bench.controller.drives() {
                scope.spawn(|| {
                    let mut queue = drive.open_queue(4).unwrap();
                    for token in 0..200 {
                        let buffer = drive.dma().arena().alloc_pages(512).unwrap();
                        succeed(&mut *queue, Request::read(token, token, 1, buffer));
                    }
                    let stats = drive.stats();
                    assert_eq!((stats.resets, stats.lost_interrupts), (0, 0), "{uri}");
                });
            }
        });
        bench.well_behaved();
    }
}

#[test]
fn no_rule_is_broken_by_any_way_of_moving_data() {
    for uri in ["", ",chip=piix3", ",chip=cmd646", ",block=4096", ",lba48=off", ",multiple=0"] {
        for (options, way) in [
            (short(), "interrupts"),
            (polled(), "polled"),
            (Options { level: Level::Pio, ..short() }, "pio"),
        ] {
            let bench = bench_with(&format!("{uri},disks=3"), options);
            for (index, drive) in bench.controller.drives().iter().enumerate() {
                let (mut queue, block) =
                    (drive.open_queue(8).unwrap(), drive.info().block_size as usize);
                for blocks in [1, 7, 16, 33] {
                    let byte = (index * 50 + blocks) as u8;
                    succeed(
                        &mut *queue,
                        Request::write(1, 5, blocks as u32, bench.filled(blocks * block, byte)),
                    );
                    succeed(&mut *queue, Request::flush(2));
                    let data = succeed(
                        &mut *queue,
                        Request::read(3, 5, blocks as u32, bench.buffer(blocks * block)),
                    );
                    assert!(bytes(data).iter().all(|&found| found == byte), "{uri} {way}");
                }
            }
            bench.well_behaved();
        }
    }
}

#[test]
fn a_channel_that_is_dropped_leaves_no_interrupt_and_no_transfer() {
    let device = Arc::new(device(",disks=2"));
    let controller = Controller::open(device.clone(), short()).unwrap();
    drop(controller);
    let command = device.config_read(ring3_spec::pci::COMMAND, 2) as u16;
    assert_eq!(command & ring3_spec::pci::COMMAND_BUS_MASTER, 0);
    // It can be opened again.
    assert_eq!(Controller::open(device, short()).unwrap().drives().len(), 2);
}

/// Many requests to two drives while everything goes wrong now and then; each ends exactly once,
/// and what ends well is right.
#[test]
fn random_faults_end_every_request_exactly_once() {
    let bench = bench(",disks=2");
    let free = bench.free();
    let faults = [
        Action::Drop,
        Action::LoseInterrupt,
        Action::WrongInterrupt,
        Action::DmaError,
        Action::Stuck,
        Action::BusyUntilReset,
        Action::Duplicate,
        Action::Delay(Duration::from_millis(3)),
        Action::Error(ErrorBits(0).with_interface_crc(1).0),
        Action::Error(ErrorBits(0).with_uncorrectable(1).0),
    ];
    for (index, action) in faults.into_iter().enumerate() {
        let code = if index % 2 == 0 { opcode::READ_DMA } else { opcode::WRITE_DMA };
        bench.handle.plan().add(Rule::io(action, code).nth(3 + 7 * index as u64).times(2));
    }
    std::thread::scope(|scope| {
        for drive in bench.controller.drives() {
            scope.spawn(|| churn(drive, &bench));
        }
    });
    assert!(bench.handle.plan().fired() >= 15, "{}", bench.handle.plan().fired());
    assert_eq!(bench.free(), free);
}

fn churn(drive: &dyn Disk, bench: &Bench) {
    let mut queue = drive.open_queue(8).unwrap();
    for round in 0..40u64 {
        let lba = round * 64;
        queue.submit(Request::write(1, lba, 8, bench.filled(4096, round as u8 + 1))).unwrap();
        let wrote = finish(&mut *queue).of(1).is_ok();
        for token in 0..4 {
            queue.submit(Request::read(token, lba, 8, bench.buffer(4096))).unwrap();
        }
        let outcome = finish(&mut *queue);
        assert_eq!(outcome.completions.len(), 4);
        for Completion { result, data, .. } in outcome.completions {
            let data = bytes(data);
            assert!(
                !wrote || result.is_err() || data.iter().all(|&byte| byte == round as u8 + 1),
                "round {round}"
            );
        }
    }
}

#[test]
fn what_the_bus_master_cannot_reach_is_refused_before_it_is_queued() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    for segment in [(1, 512), (1 << 32, 512), (0x10_0000, 511)] {
        let elsewhere = Arena::new(Region::new(4096).unwrap(), segment.0);
        let list = elsewhere.list(&[Span { region: 0, len: segment.1, offset: 0 }]).unwrap();
        let rejected = queue.submit(Request::read(1, 0, 1, list)).unwrap_err();
        assert_eq!(rejected.error, Some(IoError::Invalid));
    }
    let mut outcome = ide::Outcome::default();
    reap_all(&mut *queue, &mut outcome);
    assert!(outcome.completions.is_empty() && queue.in_flight() == 0);
}

/// A simulated function whose memory lies where 32 address lines do not reach.
struct High {
    inner: SimIde,
    dma: Dma,
}

impl Decorator for High {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
}

fn high() -> High {
    let inner = device("");
    let arena = Arena::new(Region::new(1 << 20).unwrap(), (1 << 32) - 4096);
    let dma = Dma::new(arena, inner.dma().iommu().clone());
    High { inner, dma }
}

#[test]
fn memory_above_4_gib_is_refused_with_the_option_that_mends_it_and_does_for_pio() {
    let Err(error) = Controller::open(Arc::new(high()), short()) else { panic!("it was opened") };
    assert!(error.to_string().contains("below=4G"), "{error}");
    let controller =
        Controller::open(Arc::new(high()), Options { level: Level::Pio, ..short() }).unwrap();
    assert_eq!(controller.drives()[0].mode(), "PIO");
}

#[test]
fn a_wait_ends_at_its_deadline_also_while_a_command_hangs() {
    let bench = bench_with("", Options { timeout: Duration::from_secs(60), ..short() });
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(4);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.ring();
    let start = Instant::now();
    assert!(!queue.wait(Deadline::after(Duration::from_millis(50))).unwrap());
    assert!(start.elapsed() < PATIENCE / 4);
    bench.handle.release();
    assert!(queue.wait(Deadline::after(PATIENCE)).unwrap());
    assert!(queue.reap_one().unwrap().is_some());
}

#[test]
fn whoever_finds_the_other_drives_end_wakes_its_owner() {
    let inner = device(",disks=2");
    let handle = inner.handle();
    // Interrupts may come to nothing: a look takes one back before anyone has seen it.
    let device = Fault::new(Arc::new(inner), "lose-interrupt".parse().unwrap());
    let controller = Controller::open(Arc::new(device), short()).unwrap();
    handle.set_timing(Timing::Held);
    let [master, slave] = controller.drives() else { panic!() };
    let (mut master, mut slave, arena) =
        (master.open_queue(8).unwrap(), slave.open_queue(8).unwrap(), slave.dma().arena());
    for round in 0..3 {
        slave.submit(Request::read(round, 0, 1, arena.alloc_pages(512).unwrap())).unwrap();
        slave.ring();
        assert!(slave.arm().unwrap());
        master.submit(Request::read(round, 0, 1, arena.alloc_pages(512).unwrap())).unwrap();
        master.ring();
        handle.release();
        assert!(master.reap_one().unwrap().is_none());
        let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
        let fired =
            poll(&mut [PollFd::new(slave.irq().unwrap(), PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(fired, 1, "round {round}");
        slave.disarm().unwrap();
        assert!(slave.reap_one().unwrap().is_some());
        handle.release();
        assert!(master.reap_one().unwrap().is_some());
    }
}
