//! The disks of all models behind one face: what a test does to any of them, whoever drives it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, Info, Queue, Request};
use ring3_device::Error;
use ring3_device::dma::DmaBuffer;
use ring3_driver::ata::{self, Level, ahci, ide};
use ring3_driver::virtio::blk as virtio;
use ring3_driver::{Interrupts, nvme};
use ring3_model::fault::{Action, FaultPlan, Rule};
use ring3_model::{DiskModel, SimHandle, Timing};
use ring3_spec::ata::opcode::READ_DMA;
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::virtio::blk::IN;

/// Waits sleep at once, so that they need their interrupts.
const POLL: Duration = Duration::ZERO;

const NVME: [Action; 7] = [
    Action::Reorder,
    Action::WrongId(0x11),
    Action::Invent(0x401),
    Action::WrongPhase,
    Action::Status(Status::INTERRUPTED.0),
    Action::Status(Status::UNRECOVERED_READ.0),
    Action::Fatal,
];
/// Damage on the cable: ICRC with ABRT.
const CRC: Action = Action::Error(0x84);
const AHCI: [Action; 6] = [
    CRC,
    Action::DmaError,
    Action::BusyUntilReset,
    Action::Stuck,
    Action::Fatal,
    Action::WrongInterrupt,
];
const IDE: [Action; 4] = [CRC, Action::DmaError, Action::BusyUntilReset, Action::WrongInterrupt];
const VIRTIO: [Action; 5] = [
    Action::Reorder,
    Action::WrongId(0x11),
    Action::Invent(0x401),
    Action::Fatal,
    Action::FunctionReset,
];

/// What a test says of the driver's options, which have other names in each.
#[derive(Clone, Copy)]
pub struct Asked {
    pub timeout: Duration,
    /// Whether the medium has a volatile cache.
    pub cache: bool,
}

impl Asked {
    /// The end of a URI.
    fn cache(self) -> &'static str {
        if self.cache { "" } else { ",cache=off" }
    }
}

/// ATA drives that do not say how often they were powered on.
const NO_STATISTICS: &str = ",statistics=off";

/// A kind of disk: its name and how it is opened.
pub type Kind = (&'static str, fn(Asked) -> Bench);

/// All drivers of disks, in each way in which they can drive one.
pub const KINDS: [Kind; 11] = [
    ("nvme", nvme_disk),
    ("ahci", |asked| ahci_disk(asked, "", Level::Queued)),
    ("ahci, one command at a time", |asked| ahci_disk(asked, "", Level::Dma)),
    ("ahci, without statistics", |asked| ahci_disk(asked, NO_STATISTICS, Level::Queued)),
    ("ide", |asked| ide_disk(asked, "", Interrupts::Auto)),
    ("ide, without statistics", |asked| ide_disk(asked, NO_STATISTICS, Interrupts::Auto)),
    ("ide, polled", |asked| ide_disk(asked, "", Interrupts::Polled)),
    ("ide, native mode", |asked| ide_disk(asked, ",chip=cmd646", Interrupts::Auto)),
    ("virtio-blk", |asked| virtio_disk(asked, "")),
    ("virtio-blk, packed", |asked| virtio_disk(asked, ",packed=on")),
    ("virtio-blk, in the ring", |asked| virtio_disk(asked, ",packed=on,indirect=off")),
];

/// A driver with one disk, or two where a disk has one queue only, and the other side of its
/// device.
pub struct Bench {
    host: Box<dyn Host>,
    pub device: Box<dyn Handle>,
    /// By what the model's rules know a read.
    read: u8,
    /// Faults beyond those of all, after which a read is repeated.
    pub own_faults: &'static [Action],
    /// It says how often it has lost its power.
    pub counts_power: bool,
}

/// The driver's side.
trait Host {
    /// The disk of queue `number`, 0 or 1.
    fn disk(&self, number: usize) -> &dyn Disk;
    /// Resets the controller on its user's behalf; `None` if it has no such call.
    fn reset(&self) -> Option<Result<(), Error>>;
}

/// The model's side.
pub trait Handle: Sync {
    fn plan(&self) -> FaultPlan;
    /// Whether commands about data that come from now on wait.
    fn hold(&self, on: bool);
    /// Does those that wait.
    fn release(&self);
    fn held(&self) -> usize;
    fn remove(&self);
    /// The machine's power fails for a moment.
    fn lose_power(&self);
    /// The function is reset, and its power stays.
    fn reset(&self);
    /// Fills the first 64 blocks of all media.
    fn fill(&self, byte: u8);
    /// The first byte of a block that the first medium has durably.
    fn first_byte(&self, block: u64) -> u8;
    /// Rules of the specification that the driver broke, and accesses to memory that it had not
    /// given.
    fn misdeeds(&self) -> Vec<String>;
}

impl<M: DiskModel> Handle for SimHandle<M>
where
    Self: Sync,
{
    fn plan(&self) -> FaultPlan {
        self.plan()
    }
    fn hold(&self, on: bool) {
        self.set_timing(if on { Timing::Held } else { Timing::Inline });
    }
    fn release(&self) {
        self.release();
    }
    fn held(&self) -> usize {
        self.held()
    }
    fn remove(&self) {
        self.remove();
    }
    fn lose_power(&self) {
        self.lose_power();
    }
    fn reset(&self) {
        self.reset_function();
    }
    fn fill(&self, byte: u8) {
        // A namespace's number is its id, from 1 on; ports and drives are counted from 0.
        let filled = (0..3).filter(|&number| self.poke(number, 0, &[byte; 64 * 512])).count();
        assert_ne!(filled, 0);
    }
    fn first_byte(&self, block: u64) -> u8 {
        let mut byte = [0];
        assert!((0..2).any(|number| self.peek(number, block * 512, &mut byte)));
        byte[0]
    }
    fn misdeeds(&self) -> Vec<String> {
        let strays = self.faults().into_iter().map(|fault| format!("{fault:?}"));
        self.violations().into_iter().chain(strays).collect()
    }
}

impl Bench {
    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.queue_of(0, depth)
    }

    /// Queue `number`, 0 or 1: of one disk or of two.
    pub fn queue_of(&self, number: usize, depth: u16) -> Box<dyn Queue> {
        self.host.disk(number).open_queue(depth).unwrap()
    }

    pub fn buffer(&self) -> DmaBuffer {
        self.host.disk(0).dma().arena().alloc_pages(512).unwrap()
    }

    /// What the driver says of its first disk.
    pub fn info(&self) -> Info {
        self.host.disk(0).info().clone()
    }

    /// A write of block `token`.
    pub fn write(&self, token: u64, byte: u8) -> Request {
        let buffer = self.buffer();
        buffer.fill(byte);
        Request::write(token, token, 1, buffer)
    }

    /// A read of block `token`.
    pub fn read(&self, token: u64) -> Request {
        Request::read(token, token, 1, self.buffer())
    }

    /// Submits reads of so many blocks from the first one on.
    pub fn submit_reads(&self, queue: &mut dyn Queue, count: u64) {
        (0..count).for_each(|token| queue.submit(self.read(token)).unwrap());
    }

    /// A rule for reads.
    pub fn on_read(&self, action: Action) -> Rule {
        Rule::io(action, self.read)
    }

    pub fn fault(&self, rule: Rule) {
        self.device.plan().add(rule);
    }

    /// Resets the controller, or does what waits and is false if its driver has no such call.
    pub fn reset_or_release(&self) -> bool {
        let has_reset = self.host.reset().map(Result::unwrap).is_some();
        if !has_reset {
            self.device.release();
        }
        has_reset
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.host.disk(0).dma().arena().free_bytes()
    }
}

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

struct Nvme(nvme::Controller, Arc<dyn Disk>);

impl Host for Nvme {
    fn disk(&self, _: usize) -> &dyn Disk {
        &*self.1
    }
    fn reset(&self) -> Option<Result<(), Error>> {
        Some(self.0.reset())
    }
}

fn nvme_disk(asked: Asked) -> Bench {
    let (uri, timeout) = (uri(&format!("sim:nvme{}", asked.cache())), asked.timeout);
    let device = ring3_model::nvme::open(&uri, OpenOptions::default()).unwrap();
    let handle = device.handle();
    let options =
        nvme::Options { timeout, flush_timeout: timeout, poll: POLL, ..nvme::Options::default() };
    let controller = nvme::Controller::open(Arc::new(device), options).unwrap();
    let disk = controller.disk(1).unwrap();
    Bench {
        host: Box::new(Nvme(controller, disk)),
        device: Box::new(handle),
        read: nvm::READ,
        own_faults: &NVME,
        counts_power: true,
    }
}

fn ata_options(Asked { timeout, .. }: Asked) -> ata::Options {
    let (ready, usual) = (Duration::from_millis(100), ata::Options::default());
    ata::Options {
        flush_timeout: timeout,
        ready_timeout: ready,
        link_timeout: ready,
        timeout,
        poll: POLL,
        ..usual
    }
}

impl Host for ahci::Controller {
    fn disk(&self, number: usize) -> &dyn Disk {
        &self.drives()[number]
    }
    fn reset(&self) -> Option<Result<(), Error>> {
        Some(self.reset())
    }
}

fn ahci_disk(asked: Asked, drive: &str, level: Level) -> Bench {
    let uri = uri(&format!("sim:ahci,disks=2{drive}{}", asked.cache()));
    let device = ring3_model::ahci::open(&uri, OpenOptions::default()).unwrap();
    let handle = device.handle();
    let options = ata::Options { level, ..ata_options(asked) };
    let controller = ahci::Controller::open(Arc::new(device), options).unwrap();
    Bench {
        host: Box::new(controller),
        device: Box::new(handle),
        read: READ_DMA,
        own_faults: &AHCI,
        counts_power: drive != NO_STATISTICS,
    }
}

impl Host for ide::Controller {
    fn disk(&self, number: usize) -> &dyn Disk {
        &self.drives()[number]
    }
    fn reset(&self) -> Option<Result<(), Error>> {
        None
    }
}

fn ide_disk(asked: Asked, shape: &str, interrupts: Interrupts) -> Bench {
    let uri = uri(&format!("sim:ide,disks=2{shape}{}", asked.cache()));
    let memory = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    let device = ring3_model::ide::open(&uri, memory).unwrap();
    let handle = device.handle();
    let options = ata::Options { interrupts, ..ata_options(asked) };
    let controller = ide::Controller::open(Arc::new(device), options).unwrap();
    Bench {
        host: Box::new(controller),
        device: Box::new(handle),
        read: READ_DMA,
        own_faults: &IDE,
        counts_power: shape != NO_STATISTICS,
    }
}

impl Host for virtio::Disk {
    fn disk(&self, _: usize) -> &dyn Disk {
        self
    }
    fn reset(&self) -> Option<Result<(), Error>> {
        Some(self.reset())
    }
}

fn virtio_disk(asked: Asked, layout: &str) -> Bench {
    let uri = uri(&format!("sim:virtio-blk{layout}{}", asked.cache()));
    let device = ring3_model::virtio::blk::open(&uri, OpenOptions::default()).unwrap();
    let handle = device.handle();
    let options =
        virtio::Options { timeout: asked.timeout, poll: POLL, ..virtio::Options::default() };
    let disk = virtio::Disk::open(Arc::new(device), options).unwrap();
    Bench {
        host: Box::new(disk),
        device: Box::new(handle),
        read: IN as u8,
        own_faults: &VIRTIO,
        counts_power: false,
    }
}
