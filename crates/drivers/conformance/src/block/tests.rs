//! The suite passes a disk that is right, and names what is wrong with one that is not.

use ring3_device::dma::{Dma, Span};
use ring3_device::irq::Irq;
use ring3_device::wait::Source;
use ring3_device::{Deadline, Error};

use std::time::Instant;

use super::*;
use ring3_class::block::{
    Completion, Data, Info, Operation, Queue, Ram, Rejected, Request, reap_single,
};

fn quick() -> Options {
    Options { requests: 300, depth: 8, patience: Duration::from_millis(300) }
}

#[test]
fn a_disk_in_memory_conforms() {
    for block_size in [512, 4096] {
        let disk = Ram::new(block_size, 8192, 16 << 20).unwrap();
        let report = run(&disk, &quick());
        assert!(report.passed(), "{report}");
    }
}

#[test]
fn every_check_has_its_own_sentence() {
    let mut names: Vec<_> = checks().map(|check| check.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), checks().count());
}

/// What is wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    ReadsNextBlock,
    LosesLongWrites,
    ReadsTooMuch,
    AcceptsNoBlocks,
    EndsTwice,
    LosesACompletion,
    SwapsTokens,
    NeverFull,
    StartsUnrung,
    WaitsTooShort,
    Spins,
    KeepsData,
    ZeroesTooMuch,
    IgnoresFlush,
}

struct Faulty {
    disk: Ram,
    fault: Fault,
}

impl Disk for Faulty {
    fn name(&self) -> String {
        format!("{:?}", self.fault)
    }
    fn info(&self) -> &Info {
        self.disk.info()
    }
    fn dma(&self) -> &Dma {
        self.disk.dma()
    }
    fn max_queues(&self) -> u16 {
        self.disk.max_queues()
    }
    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let depth = if self.fault == Fault::NeverFull { depth * 4 } else { depth };
        let (inner, dma) = (self.disk.open_queue(depth)?, self.disk.dma().clone());
        Ok(Box::new(FaultyQueue { inner, dma, fault: self.fault, seen: 0, again: None }))
    }
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    dma: Dma,
    fault: Fault,
    seen: u64,
    again: Option<Completion>,
}

impl FaultyQueue {
    /// The next end, as the fault has it.
    fn next(&mut self) -> Result<Option<Completion>, Error> {
        if self.again.is_some() {
            return Ok(self.again.take());
        }
        let Some(mut completion) = self.inner.reap_one()? else { return Ok(None) };
        self.seen += 1;
        match self.fault {
            Fault::ReadsTooMuch if completion.token == 1 << 40 => return self.next(),
            Fault::EndsTwice if self.seen == 50 => {
                self.again =
                    Some(Completion { token: completion.token, result: Ok(()), data: Data::None });
            }
            Fault::LosesACompletion if self.seen == 50 => return Ok(None),
            Fault::SwapsTokens if self.seen == 50 => completion.token ^= 1,
            Fault::KeepsData => completion.data = Data::None,
            _ => {}
        }
        Ok(Some(completion))
    }
}

impl Queue for FaultyQueue {
    fn info(&self) -> &Info {
        self.inner.info()
    }

    fn depth(&self) -> u16 {
        if self.fault == Fault::NeverFull { self.inner.depth() / 4 } else { self.inner.depth() }
    }

    fn in_flight(&self) -> u16 {
        self.inner.in_flight()
    }

    fn submit(&mut self, mut request: Request) -> Result<(), Rejected> {
        match (self.fault, request.operation) {
            (Fault::ReadsNextBlock, Operation::Read) if request.lba == 7 => request.lba += 1,
            (Fault::LosesLongWrites, Operation::Write) if request.blocks > 100 => {
                request.blocks -= 1
            }
            (Fault::ReadsTooMuch, Operation::Read) if request.blocks == 3 => {
                // The device is told of more memory than the request has.
                if let Data::Buffer(buffer) = &request.data {
                    let longer = Span { len: 4 * self.info().block_size, ..buffer.span() };
                    if let Some(longer) = self.dma.arena().list(&[longer]) {
                        let _ = self.inner.submit(Request::read(1 << 40, 0, 4, longer));
                    }
                }
            }
            (Fault::AcceptsNoBlocks, _) if request.blocks == 0 => {
                request = Request::flush(request.token)
            }
            (Fault::ZeroesTooMuch, Operation::WriteZeroes) => request.blocks += 1,
            (Fault::IgnoresFlush, Operation::Flush) => return Ok(()),
            (Fault::KeepsData, _) => {
                request.data = request.data.into_buffer().map_or(Data::None, Data::from)
            }
            _ => {}
        }
        self.inner.submit(request)?;
        if self.fault == Fault::StartsUnrung {
            self.inner.ring();
        }
        Ok(())
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        reap_single(done, || self.next())
    }
}

impl Source for FaultyQueue {
    fn irq(&self) -> Option<&Irq> {
        None
    }

    fn pending(&self) -> bool {
        self.inner.pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.inner.arm()
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.inner.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.inner.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        match self.fault {
            Fault::WaitsTooShort => Ok(self.inner.in_flight() > 0),
            Fault::Spins => {
                while self.inner.in_flight() == 0 && !deadline.expired() {}
                Ok(self.inner.in_flight() > 0)
            }
            _ => self.inner.wait(deadline),
        }
    }
}

/// The sentences that do not hold of a disk with `fault`.
fn broken(fault: Fault) -> Vec<&'static str> {
    let disk = Faulty { disk: Ram::new(512, 8192, 16 << 20).unwrap(), fault };
    run(&disk, &quick()).failures().map(|finding| finding.name).collect()
}

macro_rules! found {
    ($($test:ident: $fault:ident, $sentence:literal;)*) => {$(
        #[test]
        fn $test() {
            let broken = broken(Fault::$fault);
            assert!(broken.contains(&$sentence), "{broken:#?}");
        }
    )*};
}

found! {
    a_read_of_the_wrong_block_is_found: ReadsNextBlock, "a write changes no block beside its own";
    a_write_that_is_cut_short_is_found: LosesLongWrites,
    "what was written is read back, from one block to the longest transfer";
    a_read_beyond_its_data_is_found: ReadsTooMuch,
    "what was written is read back, from one block to the longest transfer";
    a_request_for_no_blocks_that_is_done_is_found: AcceptsNoBlocks,
    "a request for no blocks is refused";
    a_request_that_ends_twice_is_found: EndsTwice,
    "many requests in flight end exactly once, each with its own data";
    a_lost_completion_is_found: LosesACompletion,
    "many requests in flight end exactly once, each with its own data";
    a_wrong_token_is_found: SwapsTokens,
    "many requests in flight end exactly once, each with its own data";
    a_queue_that_is_never_full_is_found: NeverFull,
    "a full queue gives the request back, and takes it later";
    a_request_that_starts_too_early_is_found: StartsUnrung, "nothing ends that was not rung";
    a_wait_that_ends_too_early_is_found: WaitsTooShort, "a wait for nothing ends at its deadline";
    a_wait_that_burns_cpu_is_found: Spins, "an idle queue costs no CPU";
    data_that_does_not_come_back_is_found: KeepsData,
    "what was written is read back, from one block to the longest transfer";
    zeroes_beyond_the_end_of_the_request_are_found: ZeroesTooMuch,
    "blocks read as zeroes after write zeroes, and no others";
    a_flush_that_never_ends_is_found: IgnoresFlush,
    "a flush completes, with and without something to flush";
}

#[test]
fn the_reading_part_passes_a_disk_that_refuses_to_change_and_changes_none() {
    for block_size in [512, 4096] {
        let disk = Ram::new(block_size, 8192, 16 << 20).unwrap();
        let disk = disk.with_info(|info| info.read_only = true);
        let report = run_reading(&disk, &quick(), |_| {});
        assert!(report.passed(), "{report}");
        assert!(report.skipped() < report.findings.len() / 2, "{report}");
    }
}

#[test]
fn the_reading_part_finds_what_is_wrong_with_reads() {
    for fault in [Fault::ReadsTooMuch, Fault::EndsTwice, Fault::WaitsTooShort, Fault::Spins] {
        let disk = Ram::new(512, 8192, 16 << 20).unwrap();
        let report = run_reading(&Faulty { disk, fault }, &quick(), |_| {});
        assert!(!report.passed(), "{fault:?}: {report}");
    }
}
