//! A driver and its application in one process and one thread, so that what passes between the
//! driver and its device follows from both alone: it can be recorded, and replayed without the
//! device.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Completion, Disk, Queue, Request};
use ring3_device::{Deadline, Device};
use ring3_driver::registry::{Controller, Driver, Offer, Opened, Settings};
use ring3_faults::{Application, Found, random};

use super::Fault;
use super::hunt::saved;
use super::work::{DEPTH, Work};

/// Bytes of the driver's memory.
const ARENA: usize = 4 << 20;
/// Between two looks of a driver after its device.
const LOOK: Duration = Duration::from_millis(50);

/// Options of `ring3 faults lone`.
#[derive(clap::Args)]
pub struct Args {
    /// The device with its faults, such as sim:nvme,registers=set/0x1:read:3 (docs/sim.md). Its
    /// blocks are overwritten.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// Seed of the sequence of requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of requests, without those that read for comparison.
    #[arg(long, default_value_t = 256)]
    requests: u64,
    /// Also send flushes, write zeroes, discards, and longer reads and writes outside of the
    /// checked blocks, and commands to the controller.
    #[arg(long)]
    wide: bool,
    /// Start the driver from the saved state of another one, damaged as in device INDEX of `faults
    /// hunt --only saved --seed SEED`.
    #[arg(long, value_name = "SEED:INDEX")]
    left: Option<Fault>,
    /// Seconds without a completed request after which the driver counts as hanging.
    #[arg(long, default_value_t = 120)]
    patience_s: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Requests that ended well.
    pub well: u64,
    /// Requests that ended with an error, which the driver has said.
    pub failed: u64,
    /// Blocks that were read wrong.
    pub wrong: u64,
}

/// Drives it; no success if a block was wrong or a request has failed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let load = Load {
        seed: args.seed,
        requests: args.requests,
        wide: args.wide,
        patience: Duration::from_secs(args.patience_s),
    };
    let ends = match args.left {
        Some(Fault(seed, index)) => saved::drive(&saved::spec(seed, index), &args.device, &load)?,
        None => drive(&args.device, &load)?,
    };
    outln!(
        "{} requests ended well, {} with errors; {} blocks were wrong",
        ends.well,
        ends.failed,
        ends.wrong
    );
    Ok(if ends.failed + ends.wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a driver is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// All follows from this.
    pub seed: u64,
    /// Requests that are checked.
    pub requests: u64,
    /// And others.
    pub wide: bool,
    /// How long is waited for an end.
    pub patience: Duration,
}

/// Drives the device at `uri`.
pub fn drive(uri: &Uri, load: &Load) -> Result<Ends> {
    let opened = Driver::open(open(uri)?, None, &settings())?;
    let disk = disk(&opened)?;
    use_disk(&opened, disk, Work::new(disk, DEPTH + 1)?, load)
}

/// The device at `uri`, with memory for a driver here.
pub fn open(uri: &Uri) -> Result<Arc<dyn Device>> {
    let below = Driver::dma_limit(ring3_backend::class_of(uri), None);
    Ok(ring3_backend::open(uri, OpenOptions { arena: ARENA, below, ..OpenOptions::default() })?)
}

/// What a driver here is told.
pub fn settings() -> Settings {
    Settings { poll: Some(Duration::ZERO), ..Settings::default() }
}

/// The first one that it offers.
pub fn disk(opened: &Opened) -> Result<&dyn Disk> {
    match opened.offers.first() {
        Some(Offer::Disk(disk)) => Ok(&**disk),
        Some(Offer::Nic(_)) | None => {
            bail!("it has no disk that can be used: {:?}", opened.refused)
        }
    }
}

/// Asks for all of `load` over `work`. Ends with tokens from [`OTHERS`] on are nobody's business
/// here.
pub fn use_disk(opened: &Opened, disk: &dyn Disk, mut work: Work, load: &Load) -> Result<Ends> {
    let Load { seed, requests, wide, patience } = *load;
    let size = work.block_size();
    ensure!(
        [512, 4096].contains(&size),
        "it has blocks of {size} bytes, and 512 or 4096 are wanted"
    );
    let mut application = Application::new(seed, usize::from(DEPTH));
    application.begin();
    let (mut ends, mut left, mut last) = (Ends::default(), requests, Instant::now());
    let (mut due, mut others) = (None, Others::new(seed, disk));
    loop {
        while let Some(packet) = (left > 0).then(|| application.next(size)).flatten() {
            left -= u64::from(application.is_loaded());
            work.start(&packet)?;
            if wide {
                others.ask(&*opened.controller, work.queue.as_mut())?;
            }
        }
        work.queue.ring();
        while let Some(done) = work.queue.reap_one()? {
            if others.is_theirs(&done) {
                last = Instant::now();
                continue;
            }
            let (packet, _) = work.finish(done)?;
            last = Instant::now();
            match application.end(&packet) {
                Found::Right => ends.well += 1,
                Found::Wrong | Found::Stale => ends.wrong += 1,
                Found::Failed | Found::Stray => ends.failed += 1,
            }
        }
        // Not by the clock alone, so that it comes at the same place again when all goes well.
        let now = Instant::now();
        if now - last >= LOOK && due.is_none_or(|due| due <= now) {
            due = work.queue.tick(now)?;
        }
        if application.is_idle() && left == 0 && work.queue.in_flight() == 0 {
            return Ok(ends);
        }
        ensure!(last.elapsed() < patience, "no request has ended for {patience:?}");
        if work.queue.in_flight() > 0 {
            work.queue.wait(Deadline::after(LOOK).sooner(due))?;
        }
    }
}

/// Tokens from here on are of requests that are not checked.
pub const OTHERS: u64 = 1 << 32;
/// Of them, one is under way at a time, beside those that are checked.
const EVERY: u64 = 7;
/// The first block that they touch, and how many there are.
const BLOCKS: (u64, u64) = (600, 1024);

/// Requests of other kinds.
struct Others {
    seed: u64,
    count: u64,
    busy: bool,
    arena: ring3_device::dma::Dma,
    info: ring3_class::block::Info,
}

impl Others {
    fn new(seed: u64, disk: &dyn Disk) -> Self {
        Self { seed, count: 0, busy: false, arena: disk.dma().clone(), info: disk.info().clone() }
    }

    /// Asks for one more, now and then.
    fn ask(&mut self, controller: &dyn Controller, queue: &mut dyn Queue) -> Result<()> {
        self.count += 1;
        if self.busy || !self.count.is_multiple_of(EVERY) {
            return Ok(());
        }
        let word = random(self.seed ^ 0x0a0a, self.count);
        let (token, block) = (OTHERS + self.count, BLOCKS.0 + word % (BLOCKS.1 - 64));
        let blocks = 1 + (word >> 16 & 31) as u32;
        let bytes = blocks as usize * self.info.block_size as usize;
        let most = bytes.min(self.info.max_transfer as usize) / self.info.block_size as usize;
        let memory = || self.arena.arena().alloc_pages(bytes);
        let request = match word >> 32 & 7 {
            0 => Request::flush(token),
            1 if self.info.max_write_zeroes_blocks > 0 => {
                Request::write_zeroes(token, block, blocks.min(self.info.max_write_zeroes_blocks))
            }
            2 if self.info.discard.is_some() => Request::discard(token, block, 1),
            3 => {
                // What it says is for people.
                let _ = controller.poll_events();
                return Ok(());
            }
            4 | 5 if most > 0 => Request::read(token, block, most as u32, memory()?),
            _ if most > 0 => Request::write(token, block, most as u32, memory()?),
            _ => return Ok(()),
        };
        // What is refused was asked for nothing.
        self.busy = queue.submit(request).is_ok();
        Ok(())
    }

    fn is_theirs(&mut self, done: &Completion) -> bool {
        self.busy &= done.token < OTHERS;
        done.token >= OTHERS
    }
}
