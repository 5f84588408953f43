//! A device whose drivers come and go.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use ring3_class::block::{Queue, Request as Io, execute};
use ring3_device::dma::{Region, SavedArena, Span};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Deadline, Registers};
use ring3_driver::nvme;
use ring3_driver::registry::{Driver, Offer, Opened, Settings};
use ring3_lease::{Answer, Kind, MAX_FDS, Memory, Refusal, Request, VERSION};
use ring3_model::fault::{Action, Rule};
use ring3_model::nvme::{NvmeHandle, SimNvme};
use ring3_model::vfio_user::{Running, VfioUserServer};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::registers::{CC, CSTS};
use ring3_spec::pci;
use rustix::fs::SealFlags;

use super::*;

mod messages;
mod saved;

const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> OpenOptions {
    OpenOptions { arena: 4 << 20, ..OpenOptions::default() }
}

fn model() -> SimNvme {
    ring3_model::nvme::open(&"sim:nvme,size=1M".parse().unwrap(), options()).unwrap()
}

/// A claim of a model in this process.
fn claimed() -> (Claim, NvmeHandle) {
    let model = model();
    let handle = model.handle();
    (Claim::new(Arc::new(model), None, u64::MAX).unwrap(), handle)
}

/// A claim of a model on a socket.
fn served() -> (tempfile::TempDir, Running, Claim, NvmeHandle) {
    let (folder, model) = (tempfile::tempdir().unwrap(), Arc::new(model()));
    let (path, handle) = (folder.path().join("s"), model.handle());
    let server = VfioUserServer::bind(&path, model).unwrap().spawn().unwrap();
    let claim =
        claim(&format!("vfio-user:{}", path.display()).parse().unwrap(), options()).unwrap();
    (folder, server, claim, handle)
}

fn fence() -> Option<&'static Quiesce> {
    static FENCE: OnceLock<Option<Quiesce>> = OnceLock::new();
    FENCE.get_or_init(|| Quiesce::from_manifest(nvme::DRIVER.manifest).unwrap()).as_ref()
}

/// A driver and its first queue, which stay as they are when their process ends.
struct Process {
    lease: OwnedFd,
    device: Arc<dyn Device>,
    kept: Option<(Opened, Box<dyn Queue>)>,
}

impl Process {
    fn start(lease: Lease) -> Self {
        let socket = OwnedFd::from(lease);
        let copy = socket.try_clone().unwrap();
        Self { lease: copy, device: attach(socket.into(), None).unwrap(), kept: None }
    }

    fn drive(mut self) -> Self {
        let opened = Driver::open(Arc::clone(&self.device), None, &Settings::default()).unwrap();
        let Offer::Disk(disk) = &opened.offers[0] else { panic!("no disk") };
        let queue = disk.open_queue(16).unwrap();
        self.kept = Some((opened, queue));
        self
    }

    fn write(&mut self, block: u64, byte: u8) {
        let buffer = self.device.dma().arena().alloc_pages(512).unwrap();
        buffer.fill(byte);
        let (_, queue) = self.kept.as_mut().unwrap();
        execute(&mut **queue, Io::write(block, block, 1, buffer), Deadline::after(PATIENCE))
            .unwrap()
            .result
            .unwrap();
    }

    fn flush(&mut self) -> Result<(), ring3_class::block::IoError> {
        let (_, queue) = self.kept.as_mut().unwrap();
        execute(&mut **queue, Io::flush(1), Deadline::after(PATIENCE)).unwrap().result
    }

    /// Hands a write over and does not wait for it.
    fn begin(&mut self, block: u64, byte: u8) {
        let buffer = self.device.dma().arena().alloc_pages(512).unwrap();
        buffer.fill(byte);
        let (_, queue) = self.kept.as_mut().unwrap();
        queue.submit(Io::write(block, block, 1, buffer)).unwrap();
        queue.ring();
        self.device.config_read(0, 2);
    }

    /// Ends as a process does that is killed: nothing is told to the device.
    fn kill(self) {
        std::mem::forget(self.kept);
        rustix::net::shutdown(&self.lease, rustix::net::Shutdown::Both).unwrap();
    }
}

/// A model that counts how often its configuration space is read.
struct Counted(SimNvme, std::sync::atomic::AtomicU32);

impl ring3_device::Decorator for Counted {
    fn inner(&self) -> &dyn Device {
        &self.0
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.config_read(offset, width)
    }
}

#[test]
fn a_driver_starts_without_asking_for_configuration_space() {
    let counted = Arc::new(Counted(model(), Default::default()));
    let claim = Claim::new(Arc::clone(&counted) as _, None, u64::MAX).unwrap();
    let before = counted.1.load(std::sync::atomic::Ordering::Relaxed);
    Process::start(claim.lease().unwrap()).drive();
    assert_eq!(counted.1.load(std::sync::atomic::Ordering::Relaxed), before);
}

/// A claim of a model in this process, which can be adopted although its backend cannot.
fn durable() -> (Claim, Arc<dyn Device>) {
    let model: Arc<dyn Device> = Arc::new(model());
    (Claim::new(Arc::clone(&model), None, u64::MAX).unwrap(), model)
}

/// The claim of `device` in the next holder, after the first one has died with `saved` in safe
/// hands.
fn adopted(device: &Arc<dyn Device>, saved: SavedClaim) -> Claim {
    Claim::over_model(Arc::clone(device), saved).unwrap()
}

fn enabled(handle: &NvmeHandle) -> bool {
    use ring3_model::Model;
    handle.with(|model, bus| {
        (model.read(bus, 0, CC.offset(), 4) & 1, model.read(bus, 0, CSTS.offset(), 4) & 1)
    }) == (1, 1)
}

fn block(handle: &NvmeHandle, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    assert!(handle.peek(1, block * 512, &mut bytes));
    bytes.sort();
    bytes.dedup();
    bytes
}

#[test]
fn a_driver_over_a_lease_reads_what_the_next_one_has_written_on_the_same_claim() {
    let (_folder, _server, claim, handle) = served();
    for life in 1..4 {
        let mut driver = Process::start(claim.lease().unwrap()).drive();
        driver.write(life, life as u8);
        driver.kill();
        let fenced = claim.quiesce(fence()).unwrap();
        assert!(!fenced.reset && !enabled(&handle));
        assert_eq!(block(&handle, life), [life as u8]);
    }
}

#[test]
fn a_disk_that_its_fence_finds_running_has_what_a_dead_driver_had_written_and_one_that_was_reset_may_have_lost_it()
 {
    for was_reset in [false, true] {
        let (claim, handle) = claimed();
        // So that nobody but the fence can tell.
        handle.count_no_power();
        let mut driver = Process::start(claim.lease().unwrap()).drive();
        driver.write(1, 0x11);
        driver.kill();
        if was_reset {
            handle.reset_function();
        }
        claim.quiesce(fence()).unwrap();
        let mut next = Process::start(claim.lease().unwrap()).drive();
        assert_eq!((next.flush().is_err(), next.flush()), (was_reset, Ok(())));
        next.kill();
    }
}

#[test]
fn dropping_the_drivers_half_leaves_the_controller_enabled_and_its_queues_alive() {
    let (_folder, _server, claim, handle) = served();
    let mut driver = Process::start(claim.lease().unwrap()).drive();
    handle.plan().add(Rule::io(Action::Hang, nvm::WRITE));
    driver.begin(3, 0xbb);
    let kept = driver.kept.take();
    // The handles of the driver are kept back, and the device's last other one goes.
    drop(driver);
    assert!(enabled(&handle) && handle.held() == 1);
    assert_eq!(handle.release(), 1);
    assert_eq!(block(&handle, 3), [0xbb]);
    std::mem::forget(kept);
}

#[test]
fn dropping_the_claim_disables_the_device() {
    let (_folder, server, claim, handle) = served();
    let driver = Process::start(claim.lease().unwrap()).drive();
    assert!(enabled(&handle));
    driver.kill();
    drop(claim);
    assert!(!enabled(&handle));
    drop(server);
}

#[test]
fn a_fence_takes_back_what_a_driver_has_mapped_beside_the_arena() {
    let (claim, _handle) = claimed();
    let driver = Process::start(claim.lease().unwrap());
    let pages = || Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap();
    let mapping = driver.device.dma().map(pages()).unwrap();
    driver.device.dma().grow(1 << 16).unwrap();
    let iova = mapping.iova();
    std::mem::forget(mapping);
    driver.kill();
    let iommu = Arc::clone(claim.desk.device().dma().iommu());
    assert!(matches!(iommu.map(&pages(), iova), Err(Error::Busy(_))));
    claim.quiesce(fence()).unwrap();
    let next = Process::start(claim.lease().unwrap());
    next.device.dma().map_at(pages(), iova).unwrap();
    assert_eq!(next.device.dma().arena().regions().count(), 1);
}

fn watch(device: &dyn Device) -> Vec<Irq> {
    device.set_bus_master(true).unwrap();
    device.irqs(IrqKind::MsiX, 2).unwrap()
}

#[test]
fn an_interrupt_between_two_drivers_is_the_next_ones_and_so_are_those_that_come_later() {
    let (_folder, _server, claim, handle) = served();
    let driver = Process::start(claim.lease().unwrap());
    let irqs = watch(&*driver.device);
    irqs[0].mask().unwrap();
    // A mask is posted; the read comes behind it.
    driver.device.config_read(0, 2);
    driver.kill();
    drop(irqs);
    // So many that nobody took are one for the next, and no storm.
    (0..6000).for_each(|_| handle.raise(1));
    let next = Process::start(claim.hand_over().unwrap());
    let irqs = watch(&*next.device);
    assert_eq!(irqs[1].wait(Deadline::after(PATIENCE)).unwrap(), 1);
    // What the one before held back is open again.
    handle.raise(0);
    assert_eq!(irqs[0].wait(Deadline::after(PATIENCE)).unwrap(), 1);
}

#[test]
fn a_pin_that_a_dead_driver_held_back_is_open_for_the_next() {
    let claim =
        claim(&"sim:edu".parse().unwrap(), OpenOptions { below: 1 << 28, ..options() }).unwrap();
    for _ in 0..3 {
        let driver = Process::start(claim.lease().unwrap());
        let mut edu = ring3_driver::edu::Edu::attach(Arc::clone(&driver.device)).unwrap();
        edu.wait_by(Some(IrqKind::Intx)).unwrap();
        edu.raise(0x10);
        assert_eq!(edu.wait_interrupt(Deadline::after(PATIENCE)).unwrap(), 0x10);
        edu.raise(0x20);
        std::mem::forget(edu);
        driver.kill();
        assert!(claim.quiesce(None).unwrap().reset);
    }
}

#[test]
fn one_driver_has_a_device_and_the_next_one_gets_it_after_a_fence_or_by_a_hand_over() {
    let (claim, _handle) = claimed();
    let busy = |lease: Result<Lease, Error>, words: &str| {
        let refusal = lease.err();
        matches!(refusal, Some(Error::Busy(text)) if text.contains(words))
    };
    let driver = Process::start(claim.lease().unwrap());
    assert!(
        busy(claim.lease(), "end its process first")
            && busy(claim.hand_over(), "end its process first")
    );
    driver.kill();
    assert!(busy(claim.lease(), "fence it first"));
    drop(Process::start(claim.hand_over().unwrap()));
    let living = {
        claim.quiesce(fence()).unwrap();
        Process::start(claim.lease().unwrap())
    };
    claim.quiesce(fence()).unwrap();
    let revoked = living.device.reset().unwrap_err().to_string();
    assert!(revoked.contains("its lease has ended"), "{revoked}");
    drop(claim.lease().unwrap());
}

#[test]
fn an_arena_is_handed_over_with_what_is_taken_and_with_what_it_grew_by() {
    let (claim, _handle) = claimed();
    let driver = Process::start(claim.lease().unwrap());
    let arena = driver.device.dma().arena();
    driver.device.dma().grow(1 << 16).unwrap();
    let first = arena.alloc_pages(8192).unwrap().tagged("ring");
    // Beside the page that outlives drivers.
    let free = arena.len() - 2 * (1 << 12) - 8192;
    let _rest: Vec<_> = (0..free / 4096).map(|_| arena.alloc_pages(4096).unwrap()).collect();
    let last = arena.alloc_pages(4096).unwrap();
    last.write(0, b"kept").unwrap();
    let (spans, saved) = ([first.span(), last.span()], arena.save());
    let stray =
        driver.device.dma().map(Arc::new(Region::new(4096).unwrap()).pages().unwrap()).unwrap();
    let stray_at = stray.iova();
    std::mem::forget((first, last, stray));
    driver.kill();
    let next = attach(claim.hand_over().unwrap(), Some(&saved)).unwrap();
    assert_eq!(spans.map(|span: Span| span.region), [0, 1]);
    let mut bytes = [0; 4];
    next.dma().arena().claim(spans[1]).unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    // What nobody has saved is not mapped any more.
    next.dma().map_at(Arc::new(Region::new(4096).unwrap()).pages().unwrap(), stray_at).unwrap();
}

#[test]
fn an_arena_that_the_claim_does_not_have_is_not_adopted() {
    let (claim, _handle) = claimed();
    let saved = SavedArena::fresh([(0x10_0000, 4096)].into_iter());
    let error = attach(claim.lease().unwrap(), Some(&saved)).err().unwrap();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("the lease has none")),
        "{error}"
    );
}

#[test]
fn a_driver_cannot_make_its_holder_believe_that_the_platform_wants_the_device_back() {
    let (_folder, _server, claim, _handle) = served();
    let device = attach(claim.lease().unwrap(), None).unwrap();
    rustix::io::write(device.removal().unwrap(), &1u64.to_ne_bytes()).unwrap();
    assert!(device.removal().unwrap().take().unwrap() > 0);
    assert_eq!(claim.removal().unwrap().take().unwrap(), 0);
}

#[test]
fn a_driver_whose_holder_dies_finds_the_device_gone_and_is_told_what_ended() {
    let (_folder, _server, claim, _handle) = served();
    let device = attach(claim.lease().unwrap(), None).unwrap();
    let registers = Registers::new(device.bar(0).unwrap(), 0x1000).unwrap();
    assert!(registers.read_alive(CC).is_ok() && device.removal().unwrap().take().unwrap() == 0);
    drop(claim);
    assert!(matches!(registers.read_alive(CC), Err(Error::Gone)));
    assert!(device.removal().unwrap().wait(Deadline::after(PATIENCE)).unwrap() > 0);
    registers.write(CC, Default::default());
    let claims = [
        device.reset(),
        device.set_bus_master(true),
        device.config_write(0x3c, 1, 0),
        device.irqs(IrqKind::MsiX, 1).map(drop),
    ];
    for error in claims.map(Result::unwrap_err) {
        assert!(error.to_string().contains("start one with a new lease"), "{error}");
    }
}

#[test]
fn a_controller_that_says_that_it_stops_slowly_is_given_that_time() {
    let uri = "sim:nvme,size=1M,ready=300ms,timeout=20s".parse().unwrap();
    let model = ring3_model::nvme::open(&uri, options()).unwrap();
    let claim = Claim::new(Arc::new(model), None, u64::MAX).unwrap();
    Process::start(claim.lease().unwrap()).drive().kill();
    let mut hasty = fence().unwrap().clone();
    hasty.step[0].limit_ms = 10;
    assert!(!claim.quiesce(Some(&hasty)).unwrap().reset);
}

#[test]
fn a_controller_that_does_not_stop_is_reset_and_one_that_is_gone_is_an_error() {
    let (claim, handle) = claimed();
    let driver = Process::start(claim.lease().unwrap()).drive();
    driver.kill();
    handle.plan().add(Rule::enable(Action::StuckReady));
    let mut hasty = fence().unwrap().clone();
    (hasty.step[0].limit_ms, hasty.step[0].limit_from) = (10, None);
    let fenced = claim.quiesce(Some(&hasty)).unwrap();
    assert!(fenced.reset && !enabled(&handle));
    let driver = Process::start(claim.lease().unwrap()).drive();
    driver.kill();
    handle.remove();
    assert!(matches!(claim.quiesce(fence()), Err(Error::Gone)));
    assert!(matches!(claim.lease(), Err(Error::Busy(_))));
}
