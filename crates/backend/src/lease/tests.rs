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
use ring3_model::vfio_user::{Running, Server};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::registers::{CC, CSTS};
use ring3_spec::pci;
use rustix::fs::SealFlags;

use super::*;

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
    let server = Server::bind(&path, model).unwrap().spawn().unwrap();
    let claim = claim(&format!("vfio-user:{}", path.display()).parse().unwrap(), options()).unwrap();
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
        let Offer::Disk(disk) = &opened.offers[0];
        let queue = disk.open_queue(16).unwrap();
        self.kept = Some((opened, queue));
        self
    }

    fn write(&mut self, block: u64, byte: u8) {
        let buffer = self.device.dma().arena().alloc_pages(512).unwrap();
        buffer.fill(byte);
        let (_, queue) = self.kept.as_mut().unwrap();
        execute(&mut **queue, Io::write(block, block, 1, buffer), Deadline::after(PATIENCE)).unwrap().result.unwrap();
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

/// A claim of a model in this process, which can be adopted although its backend cannot.
fn durable() -> (Claim, Arc<dyn Device>) {
    let model: Arc<dyn Device> = Arc::new(model());
    (Claim::new(Arc::clone(&model), None, u64::MAX).unwrap(), model)
}

/// The claim of `device` in the next holder, after the first one has died with `saved` in safe hands.
fn adopted(device: &Arc<dyn Device>, saved: SavedClaim) -> Claim {
    Claim::over_model(Arc::clone(device), saved).unwrap()
}

fn enabled(handle: &NvmeHandle) -> bool {
    use ring3_model::Model;
    handle.with(|model, bus| (model.read(bus, 0, CC.offset(), 4) & 1, model.read(bus, 0, CSTS.offset(), 4) & 1)) == (1, 1)
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
    let claim = claim(&"sim:edu".parse().unwrap(), OpenOptions { below: 1 << 28, ..options() }).unwrap();
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
    let busy = |lease: Result<Lease, Error>, words: &str| matches!(&lease, Err(Error::Busy(text)) if text.contains(words));
    let driver = Process::start(claim.lease().unwrap());
    assert!(busy(claim.lease(), "end its process first") && busy(claim.hand_over(), "end its process first"));
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
    let free = arena.len() - (1 << 12) - 8192;
    let _rest: Vec<_> = (0..free / 4096).map(|_| arena.alloc_pages(4096).unwrap()).collect();
    let last = arena.alloc_pages(4096).unwrap();
    last.write(0, b"kept").unwrap();
    let (spans, saved) = ([first.span(), last.span()], arena.save());
    let stray = driver.device.dma().map(Arc::new(Region::new(4096).unwrap()).pages().unwrap()).unwrap();
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
    assert!(matches!(&error, Error::Invalid(text) if text.contains("the lease has none")), "{error}");
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
    let wishes =
        [device.reset(), device.set_bus_master(true), device.config_write(0x3c, 1, 0), device.irqs(IrqKind::MsiX, 1).map(drop)];
    for error in wishes.map(Result::unwrap_err) {
        assert!(error.to_string().contains("start one with a new lease"), "{error}");
    }
}

#[test]
fn a_controller_that_does_not_stop_is_reset_and_one_that_is_gone_is_an_error() {
    let (claim, handle) = claimed();
    let driver = Process::start(claim.lease().unwrap()).drive();
    driver.kill();
    handle.plan().add(Rule::enable(Action::StuckReady));
    let mut hasty = fence().unwrap().clone();
    hasty.step[0].limit_ms = 10;
    let fenced = claim.quiesce(Some(&hasty)).unwrap();
    assert!(fenced.reset && !enabled(&handle));
    let driver = Process::start(claim.lease().unwrap()).drive();
    driver.kill();
    handle.remove();
    assert!(matches!(claim.quiesce(fence()), Err(Error::Gone)));
    assert!(matches!(claim.lease(), Err(Error::Busy(_))));
}

#[test]
fn a_driver_that_asks_while_there_is_no_holder_is_answered_by_the_next_one() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let saved = claim.save_model();
    claim.leave();
    drop(claim);
    let device = Arc::clone(&driver.device);
    let asks = std::thread::spawn(move || device.config_read(pci::VENDOR_ID, 2));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!asks.is_finished());
    let next = adopted(&model, saved);
    assert_eq!(u64::from(asks.join().unwrap()), u64::from(model.config_read(pci::VENDOR_ID, 2)));
    let mut driver = driver.drive();
    driver.write(3, 7);
    assert!(next.is_leased() && matches!(next.lease(), Err(Error::Busy(_))));
    driver.kill();
    assert!(!next.is_leased() && !next.quiesce(fence()).unwrap().reset);
    Process::start(next.lease().unwrap()).drive().write(4, 8);
}

#[test]
fn a_driver_whose_request_died_with_its_holder_loses_its_lease_and_is_to_be_fenced() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let saved = claim.save_model();
    claim.leave();
    eventfd::signal(&saved.fds.iter().find(|(name, _)| name == "turn").unwrap().1);
    let next = adopted(&model, saved);
    assert!(driver.device.reset().unwrap_err().to_string().contains("its lease has ended"));
    assert!(!next.is_leased());
    assert!(matches!(next.lease(), Err(Error::Busy(text)) if text.contains("fence it first")));
    next.quiesce(fence()).unwrap();
    Process::start(next.lease().unwrap()).drive().write(1, 1);
}

#[test]
fn what_drivers_have_mapped_and_their_interrupts_are_the_next_holders() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let irqs = watch(&*driver.device);
    let pages = || Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap();
    let mapping = driver.device.dma().map(pages()).unwrap();
    let iova = mapping.iova();
    std::mem::forget(mapping);
    let saved = claim.save_model();
    claim.leave();
    let next = adopted(&model, saved);
    // The same eventfds, and not new ones.
    let again = driver.device.irqs(IrqKind::MsiX, 2).unwrap();
    eventfd::signal(&again[1]);
    assert_eq!(irqs[1].take().unwrap(), 1);
    driver.kill();
    assert!(matches!(model.dma().iommu().map(&pages(), iova), Err(Error::Busy(_))));
    next.quiesce(fence()).unwrap();
    model.dma().iommu().map(&pages(), iova).unwrap();
}

#[test]
fn a_mapping_that_was_recorded_and_never_made_hinders_no_fence() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let mapping = driver.device.dma().map(Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap()).unwrap();
    let saved = claim.save_model();
    claim.leave();
    model.dma().iommu().unmap(mapping.iova(), mapping.len()).unwrap();
    std::mem::forget(mapping);
    eventfd::signal(&saved.fds.iter().find(|(name, _)| name == "turn").unwrap().1);
    let next = adopted(&model, saved);
    next.quiesce(fence()).unwrap();
    drop(next.lease().unwrap());
}

#[test]
fn a_claim_that_was_left_is_another_holders_and_its_end_does_nothing_to_the_device() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap()).drive();
    claim.leave();
    for refused in [claim.lease().map(drop), claim.quiesce(fence()).map(drop)] {
        assert!(matches!(refused, Err(Error::Busy(text)) if text.contains("another holder")));
    }
    drop(claim);
    assert_ne!(model.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER, 0);
    drop(driver);
}

#[test]
fn a_claim_that_ends_with_its_holder_says_so_and_so_does_one_that_is_no_claim() {
    let (_folder, _server, claim, _handle) = served();
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    claim.on_change(move |saved| to.lock().unwrap().push(saved.unwrap_err().to_string()));
    assert!(told.lock().unwrap()[0].contains("ends with its holder"));
    assert!(matches!(claim.save(), Err(Error::Unsupported(_))));
    let saved = claim.save_model();
    assert!(matches!(Claim::adopt(saved), Err(Error::Unsupported(text)) if text.contains("claim it anew")));
    for facts in [serde_json::json!({}), serde_json::json!(7), serde_json::Value::Null] {
        assert!(matches!(Claim::adopt(SavedClaim { facts, fds: Vec::new() }), Err(Error::Invalid(_))));
    }
}

#[test]
fn a_saved_claim_without_its_descriptors_is_an_error() {
    let (claim, model) = durable();
    let _lease = claim.lease().unwrap();
    for missing in ["turn", "lease.1"] {
        let mut saved = claim.save_model();
        saved.fds.retain(|(name, _)| name != missing);
        let error = Claim::over_model(Arc::clone(&model), saved).err().unwrap().to_string();
        assert!(error.contains(missing), "{error}");
    }
}

/// The two ends of a lease, the driver's without a driver.
fn raw(claim: &Claim) -> Channel {
    Channel::new(claim.lease().unwrap().into(), PATIENCE, true).unwrap()
}

fn ask(channel: &Channel, request: &Request, fds: &[std::os::fd::BorrowedFd<'_>]) -> Answer {
    channel.send(request, fds).unwrap();
    channel.receive().unwrap().unwrap().0
}

#[test]
fn what_makes_no_sense_is_refused_and_the_lease_goes_on() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    let refused = |request: &Request, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let answer = ask(&channel, request, fds);
        assert!(matches!(answer, Answer::Refused(_)), "{request:?}: {answer:?}");
    };
    refused(&Request::Reset, &[]);
    refused(&Request::Hello { version: VERSION + 1 }, &[]);
    let Answer::Facts(facts) = ask(&channel, &Request::Hello { version: VERSION }, &[]) else { panic!("no facts") };
    let Memory { iova, len, .. } = facts.arena[0];
    let memory = Arc::new(Region::new(1 << 16).unwrap());
    let file = memory.fd().unwrap();
    let (loose, free) = (tempfile::tempfile().unwrap(), 1 << 20);
    loose.set_len(1 << 16).unwrap();
    let map = |iova, offset, len| Request::Map(Memory { iova, offset, len });
    refused(&map(free, 0, 4096), &[]);
    refused(&map(free, 0, 4096), &[loose.as_fd()]);
    refused(&map(free, 0, 4096), &[std::io::stdin().as_fd()]);
    let vast = rustix::fs::memfd_create("vast", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&vast, 1 << 42).unwrap();
    rustix::fs::fcntl_add_seals(&vast, SealFlags::SHRINK).unwrap();
    refused(&map(0x1_0000_0000, 0, 1 << 42), &[vast.as_fd()]);
    for (at, offset, len) in [
        (free, 0, 100),
        (free, 1 << 30, 4096),
        (free, u64::MAX, 4096),
        (free + 1, 0, 4096),
        (u64::MAX - 4095, 0, 8192),
        (iova, 0, 4096),
        (iova + len - 4096, 0, 8192),
        (0xfee0_0000, 0, 4096),
        (free, 0, u64::MAX),
        (free, 0, 0),
    ] {
        refused(&map(at, offset, len), &[file]);
    }
    refused(&Request::Unmap { iova, len }, &[]);
    refused(&Request::Unmap { iova: free, len: 4096 }, &[]);
    refused(&Request::Read { bar: 6, offset: 0, width: 4 }, &[]);
    refused(&Request::Read { bar: 0, offset: 0, width: 3 }, &[]);
    refused(&Request::Write { bar: 9, offset: 0, width: 4, value: 0, posted: false }, &[]);
    refused(&Request::ConfigWrite { offset: pci::BAR0, width: 4, value: 0 }, &[]);
    refused(&Request::ConfigWrite { offset: pci::COMMAND, width: 2, value: 0 }, &[]);
    refused(&Request::Irqs { kind: Kind::MsiX, count: u16::MAX }, &[]);
    refused(&Request::Irqs { kind: Kind::MsiX, count: MAX_FDS as u16 + 1 }, &[]);
    refused(&Request::Mask { vector: 0, masked: true }, &[]);
    for (offset, width) in [(u64::MAX, 4), (0, 0), (0, 255), (4096, 1)] {
        refused(&Request::ConfigRead { offset, width }, &[]);
        refused(&Request::ConfigWrite { offset, width, value: 0 }, &[]);
    }
    assert_eq!(ask(&channel, &Request::ConfigRead { offset: 4095, width: 4 }, &[]), Answer::Value(u32::MAX.into()));
    assert_eq!(ask(&channel, &Request::Read { bar: 0, offset: u64::MAX, width: 8 }, &[]), Answer::Value(u64::MAX));
    channel.send(&Request::Write { bar: 7, offset: 0, width: 0, value: 0, posted: true }, &[]).unwrap();
    assert_eq!(ask(&channel, &map(free, 0, 4096), &[file]), Answer::Done);
    refused(&map(free, 0, 4096), &[file]);
    assert_eq!(ask(&channel, &Request::Unmap { iova: free, len: 4096 }, &[]), Answer::Done);
}

#[test]
fn what_is_no_message_ends_the_lease_and_not_the_claim() {
    let (claim, _handle) = claimed();
    for garbage in [&b"{"[..], b"\0\0\0\0", b"{\"hello\":{}}", b"\"unheard_of\"", b"{\"read\":{\"bar\":-1}}", &[b' '; 70_000]] {
        let channel = raw(&claim);
        rustix::net::send(&channel, garbage, rustix::net::SendFlags::NOSIGNAL).unwrap();
        assert!(channel.receive::<Answer>().unwrap().is_none());
        claim.quiesce(fence()).unwrap();
    }
    Process::start(claim.lease().unwrap()).drive().write(1, 1);
}

#[test]
fn a_driver_that_dies_between_a_question_and_its_answer_takes_nothing_from_the_next_one() {
    let (_folder, _server, claim, _handle) = served();
    let version = Process::start(claim.lease().unwrap()).device.bar(0).unwrap().read32(8);
    for _ in 0..20 {
        claim.quiesce(fence()).unwrap();
        let dying = raw(&claim);
        assert!(matches!(ask(&dying, &Request::Hello { version: VERSION }, &[]), Answer::Facts(_)));
        for _ in 0..3 {
            dying.send(&Request::Read { bar: 0, offset: 0x14, width: 4 }, &[]).unwrap();
        }
        drop(dying);
        claim.quiesce(fence()).unwrap();
        assert_eq!(Process::start(claim.lease().unwrap()).device.bar(0).unwrap().read32(8), version);
    }
}

#[test]
fn what_is_no_lease_is_said_and_so_is_a_backend_without_any() {
    let error = attach(OwnedFd::from(tempfile::tempfile().unwrap()).into(), None).err().unwrap().to_string();
    assert!(error.contains("no lease of a device") && error.contains("its holder has made"), "{error}");
    for uri in ["uio:0000:01:00.0", "qtest:nvme"] {
        let error = claim(&uri.parse().unwrap(), options()).err().unwrap().to_string();
        assert!(error.contains("there is no lease of this backend"), "{error}");
    }
}

/// Says to this program that it is the driver's process of the test below, with the lease as its standard input.
const CHILD: &str = "RING3_TEST_LEASED";

/// The life of the driver's process.
fn life() {
    use std::os::fd::AsFd;
    let lease: Lease = std::io::stdin().as_fd().try_clone_to_owned().unwrap().into();
    let mut driver = Process::start(lease).drive();
    driver.write(5, 0xaa);
    driver.begin(5, 0xbb);
    std::thread::sleep(PATIENCE);
}

/// What block 5 holds if a driver, whose write of 0xbb the device holds back, is killed, and the next one has 0xcc in all of its memory when the device
/// goes on.
fn outcome_of_a_kill(fenced: bool) -> Vec<u8> {
    let (_folder, _server, claim, handle) = served();
    handle.plan().add(Rule::io(Action::Hang, nvm::WRITE).nth(2));
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lease::tests::a_write_of_a_dead_driver_takes_the_next_ones_memory_to_the_disk_unless_it_is_fenced"])
        .env(CHILD, "")
        .stdin(Stdio::from(OwnedFd::from(claim.lease().unwrap())))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while handle.held() == 0 && process.try_wait().unwrap().is_none() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(handle.held(), 1);
    process.kill().unwrap();
    process.wait().unwrap();
    let lease = if fenced { claim.quiesce(fence()).and_then(|_| claim.lease()) } else { claim.hand_over() };
    let next = attach(lease.unwrap(), None).unwrap();
    let arena = next.dma().arena();
    let buffers: Vec<_> = std::iter::from_fn(|| arena.alloc_pages(4096).ok()).collect();
    buffers.iter().for_each(|buffer| buffer.fill(0xcc));
    handle.release();
    block(&handle, 5)
}

#[test]
fn a_write_of_a_dead_driver_takes_the_next_ones_memory_to_the_disk_unless_it_is_fenced() {
    if std::env::var_os(CHILD).is_some() {
        return life();
    }
    assert_eq!(outcome_of_a_kill(false), [0xcc]);
    assert_eq!(outcome_of_a_kill(true), [0xaa]);
}

#[test]
fn the_first_word_is_said_once_so_that_the_devices_descriptor_is_nothing_that_a_driver_can_ask_for() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    let hello = || ask(&channel, &Request::Hello { version: VERSION }, &[]);
    assert!(matches!(hello(), Answer::Facts(_)));
    assert!(matches!(hello(), Answer::Refused(_)) && matches!(hello(), Answer::Refused(_)));
    assert!(matches!(ask(&channel, &Request::ConfigRead { offset: 0, width: 2 }, &[]), Answer::Value(_)));
}

#[test]
fn a_driver_writes_what_its_manifest_lists_of_configuration_space_and_nothing_else() {
    let (claim, _handle) = claimed();
    let write = |channel: &Channel, offset, width| ask(channel, &Request::ConfigWrite { offset, width, value: 0 }, &[]);
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    assert_eq!(write(&channel, 0x3c, 1), Answer::Done);
    claim.limit_config(vec![0x0c..0x0d, 0x0d..0x0e]);
    assert!(matches!(write(&channel, 0x3c, 1), Answer::Refused(_)));
    assert!(matches!(write(&channel, 0x0c, 4), Answer::Refused(_)));
    assert_eq!((write(&channel, 0x0c, 1), write(&channel, 0x0c, 2)), (Answer::Done, Answer::Done));
}

#[test]
fn a_driver_has_no_more_memory_mapped_than_its_share() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    let file = rustix::fs::memfd_create("much", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 1 << 31).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let map = |len| ask(&channel, &Request::Map(Memory { iova: 1 << 32, offset: 0, len }), &[file.as_fd()]);
    let Answer::Refused(Refusal::Invalid(why)) = map((1 << 30) + 4096) else { panic!("it is mapped") };
    assert!(why.contains("more memory than a driver of this device may have"), "{why}");
}

#[test]
fn interrupts_of_a_model_are_counted_by_nobody_and_so_not_limited() {
    let (claim, _handle) = claimed();
    assert_eq!((claim.interrupts(), claim.limit_interrupts(1).unwrap()), (None, None));
}
