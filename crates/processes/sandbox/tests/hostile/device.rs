//! What it does to its device, and by it, over a lease of QEMU's teaching device behind an IOMMU.
//! [EDU]

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ring3_backend::{Claim, OpenOptions, attach, claim};
use ring3_device::Device;
use ring3_device::irq::IrqKind;
use ring3_lease::{Answer, Channel, Memory, Request, VERSION};
use rustix::fs::SealFlags;

use crate::child::confine;
use crate::guest::guest_tests;
use crate::{Child, End, end, is_child, limits, start, start_with};

const PATIENCE: Duration = Duration::from_secs(20);

/// Writing it raises the interrupt. [EDU]
const RAISE: u64 = 0x60;
const SOURCE: u64 = 0x80;
const TARGET: u64 = 0x88;
const COUNT: u64 = 0x90;
const START: u64 = 0x98;
/// Where the device's own buffer is.
const BUFFER: u64 = 0x40000;
/// Start, from the buffer to memory.
const TO_MEMORY: u64 = 0b11;

const COMMAND: usize = 4;
const BUS_MASTER: u8 = 4;

fn claimed() -> Claim {
    let options = OpenOptions { arena: 1 << 20, below: 1 << 28, ..OpenOptions::default() };
    claim(&format!("vfio:{}", address()).parse().unwrap(), options).unwrap()
}

fn address() -> String {
    std::env::var("EDU").unwrap()
}

/// The function's configuration space, as the kernel sees it.
fn config() -> Vec<u8> {
    fs::read(format!("/sys/bus/pci/devices/{}/config", address())).unwrap()
}

/// The process of the test `name`, with a lease of `claim`.
fn drive(name: &str, claim: &Claim, input: &str) -> (Child, OwnedFd) {
    // The teaching device has no reset, so that a fence of it cannot be sure.
    let lease = claim.lease().or_else(|_| claim.hand_over()).unwrap();
    start(name, OwnedFd::from(lease).as_fd(), input).unwrap()
}

/// In the child: confined, with its lease.
fn lease() -> OwnedFd {
    confine();
    // SAFETY: nobody else uses it here.
    unsafe { OwnedFd::from_raw_fd(3) }
}

/// In the child: the device, as the trusted start of a driver's process has it.
fn device() -> Arc<dyn Device> {
    attach(lease().into(), None).unwrap()
}

/// In the child: its end of the lease without a driver, agreed on a version, and where the arena
/// is.
fn raw() -> (Channel, Memory) {
    let channel = Channel::new(lease(), Duration::from_secs(5), true).unwrap();
    match ask(&channel, &Request::Hello { version: VERSION }) {
        Answer::Facts(facts) => (channel, facts.arena[0]),
        other => panic!("{other:?}"),
    }
}

fn ask(channel: &Channel, request: &Request) -> Answer {
    channel.send(request, &[]).unwrap();
    channel.receive().unwrap().unwrap().0
}

/// In the child: says how many of `requests` were let through, and ends.
fn try_all(requests: &[Request]) -> ! {
    let (channel, _) = raw();
    let done = requests
        .iter()
        .filter(|request| !matches!(ask(&channel, request), Answer::Refused(_)))
        .collect::<Vec<_>>();
    finish(format_args!("let through: {done:?}"))
}

/// A page of this process at a physical address that the device could name, full of ones.
struct Page {
    memory: *mut u8,
    physical: u64,
}

const PAGE: usize = 4096;

impl Page {
    fn new() -> Self {
        let (count, pagemap) = (8192, fs::File::open("/proc/self/pagemap").unwrap());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | libc::MAP_LOCKED;
        // SAFETY: new memory that belongs to nobody else.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let pages = (0..count).map(|page| memory.cast::<u8>().wrapping_add(page * PAGE));
        let mut found = pages.filter_map(|memory| {
            // SAFETY: it lies in the mapping.
            unsafe { memory.write_bytes(1, PAGE) };
            let mut entry = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(
                &pagemap,
                &mut entry,
                (memory as u64 / PAGE as u64) * 8,
            )
            .ok()?;
            // Present, and its frame. [Linux, Documentation/admin-guide/mm/pagemap.rst]
            let entry = u64::from_ne_bytes(entry);
            (entry >> 63 == 1).then_some((memory, (entry & ((1 << 55) - 1)) * PAGE as u64))
        });
        let (memory, physical) = found
            .rfind(|(_, at)| (2 << 20..1 << 28).contains(at))
            .expect("a page that the device could name");
        Self { memory, physical }
    }

    fn is_untouched(&self) -> bool {
        // SAFETY: the mapping stays; a device that writes it is what the test looks for.
        (0..PAGE).all(|at| unsafe { self.memory.add(at).read_volatile() } == 1)
    }
}

/// In the child: has the device write 64 bytes of its own to device address `to`.
fn transfer(device: &dyn Device, to: u64) {
    let bar = device.bar(0).unwrap();
    [(SOURCE, BUFFER), (TARGET, to), (COUNT, 64), (START, TO_MEMORY)]
        .into_iter()
        .for_each(|(at, value)| bar.write64(at, value));
    let since = Instant::now();
    while bar.read64(START) & 1 != 0 && since.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1));
    }
}

/// In the child: whether a transfer reaches the driver's own memory, so that one that does not go
/// elsewhere is no accident.
fn transfers(device: &dyn Device) -> bool {
    let arena = device.dma().arena();
    let buffer = arena.alloc_pages(4096).unwrap();
    buffer.fill(7);
    transfer(device, arena.regions().next().unwrap().iova + buffer.span().offset);
    let mut bytes = [7; 64];
    buffer.read(0, &mut bytes).unwrap();
    bytes != [7; 64]
}

/// In the child: its input, a number.
fn number() -> u64 {
    std::io::read_to_string(std::io::stdin()).unwrap().parse().unwrap()
}

/// In the child: says `words`, and ends well.
fn finish(words: impl std::fmt::Display) -> ! {
    println!("it says: {words}");
    std::process::exit(0)
}

/// What the child has said at its good end.
#[track_caller]
fn said(child: &Child, words: OwnedFd) -> String {
    match end(child, words) {
        End::Exit(words, 0) => words.rsplit("it says: ").next().unwrap().trim().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Faults of the IOMMU in the kernel's log.
fn faults() -> usize {
    let log = std::process::Command::new("dmesg").output().unwrap().stdout;
    String::from_utf8_lossy(&log)
        .lines()
        .filter(|line| line.contains("DMAR:") && line.contains("fault"))
        .count()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(10));
    }
}

guest_tests! {
    fn a_transfer_outside_of_its_memory_is_a_fault_of_the_iommu_and_writes_nothing() {
        if is_child() {
            let device = device();
            device.set_bus_master(true).unwrap();
            let inside = transfers(&*device);
            transfer(&*device, number());
            finish(format_args!("inside {inside}"));
        }
        let (page, claim, before) = (Page::new(), claimed(), faults());
        let name =
            "device::a_transfer_outside_of_its_memory_is_a_fault_of_the_iommu_and_writes_nothing";
        let (child, words) = drive(name, &claim, &page.physical.to_string());
        assert_eq!(said(&child, words), "inside true");
        assert!(page.is_untouched());
        eventually("the kernel's log has no fault", || faults() > before);
    }

    fn nothing_that_belongs_to_the_holder_is_written_in_configuration_space() {
        if is_child() {
            let write = |offset, width, value| Request::ConfigWrite { offset, width, value };
            // BARs, bus mastering and decoding, and of MSI at 0x40 its control, address and data.
            try_all(&[
                write(0x10, 4, 0), write(0x24, 4, !0), write(0x30, 4, 1), write(0x04, 2, 0x07),
                write(0x04, 1, 0), write(0x42, 2, 1), write(0x44, 4, 0xfee0_0000),
                write(0x4c, 2, 0x41), write(0x3e, 4, 0), write(4096, 4, 0), write(u64::MAX, 4, 0),
            ]);
        }
        let (claim, before) = (claimed(), config());
        let (child, words) = drive(
            "device::nothing_that_belongs_to_the_holder_is_written_in_configuration_space", &claim,
            "",
        );
        assert_eq!(said(&child, words), "let through: []");
        assert_eq!(config(), before);
    }

    fn registers_that_the_device_does_not_have_are_refused_or_all_ones() {
        if is_child() {
            let (channel, _) = raw();
            let read = |bar, offset, width| ask(&channel, &Request::Read { bar, offset, width });
            let refused = [
                (1, 0, 4), (5, 0, 4), (6, 0, 4), (255, 0, 4), (0, 0, 3), (0, 0, 0),
            ].iter().all(
                |&(bar, offset, width)| matches!(read(bar, offset, width), Answer::Refused(_))
            );
            let beyond = [1 << 20, 1 << 40, u64::MAX].iter().all(
                |&offset| read(0, offset, 4) == Answer::Value(u32::MAX.into())
                    || read(0, offset, 4) == Answer::Value(u64::MAX)
            );
            finish(format_args!("refused {refused}, all ones {beyond}"));
        }
        let claim = claimed();
        let (child, words) = drive(
            "device::registers_that_the_device_does_not_have_are_refused_or_all_ones", &claim, "",
        );
        assert_eq!(said(&child, words), "refused true, all ones true");
    }

    fn the_devices_descriptor_is_not_to_be_had() {
        if is_child() {
            try_all(&[Request::Hello { version: VERSION }, Request::Hello { version: 0 }]);
        }
        let claim = claimed();
        let (child, words) = drive("device::the_devices_descriptor_is_not_to_be_had", &claim, "");
        assert_eq!(said(&child, words), "let through: []");
    }

    fn memory_of_others_cannot_be_mapped_for_the_device() {
        if is_child() {
            let (channel, arena) = raw();
            let map = |iova, len, file: BorrowedFd<'_>| {
                channel.send(&Request::Map(Memory { iova, offset: 0, len }), &[file]).unwrap();
                !matches!(channel.receive().unwrap().unwrap().0, Answer::Refused(_))
            };
            let memory = |bytes, seals| {
                let file =
                    rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
                rustix::fs::ftruncate(&file, bytes).unwrap();
                rustix::fs::fcntl_add_seals(&file, seals).unwrap();
                file
            };
            let (sealed, loose) =
                (memory(1 << 32, SealFlags::SHRINK), memory(1 << 20, SealFlags::empty()));
            let free = 128 << 20;
            let tried = [
                // Over the arena, where messages of interrupts go, more than there is, and what is
                // no memory.
                map(arena.iova, 4096, sealed.as_fd()),
                map(0xfee0_0000, 4096, sealed.as_fd()),
                map(free, 1 << 32, sealed.as_fd()),
                map(free, 4096, loose.as_fd()),
                map(free, 4096, channel.as_fd()),
                map(free, 4095, sealed.as_fd()),
            ];
            finish(format_args!("{tried:?}, its own {}", map(free, 4096, sealed.as_fd())));
        }
        let claim = claimed();
        let (child, words) =
            drive("device::memory_of_others_cannot_be_mapped_for_the_device", &claim, "");
        assert_eq!(said(&child, words), "[false, false, false, false, false, false], its own true");
    }

    fn what_is_no_message_ends_the_lease_and_neither_the_holder_nor_the_next_driver() {
        if is_child() {
            let lease = lease();
            let channel = Channel::new(lease, Duration::from_secs(5), true).unwrap();
            for length in [1, 100, 60_000] {
                let _ = channel.send(&vec!["["; length / 4], &[]);
            }
            let end = channel.receive::<Answer>().map(|answer| answer.is_some());
            finish(format_args!("{end:?}"));
        }
        let claim = claimed();
        for _ in 0..3 {
            let name = "device::what_is_no_message_ends_the_lease_and_neither_the_holder_nor_the_next_driver";
            let (child, words) = drive(name, &claim, "");
            assert_eq!(said(&child, words), "Ok(false)");
        }
    }

    fn bus_mastering_is_off_after_a_fence_though_the_process_goes_on() {
        if is_child() {
            let device = device();
            device.set_bus_master(true).unwrap();
            let before = transfers(&*device);
            println!("ready");
            std::io::Write::flush(&mut std::io::stdout()).unwrap();
            // The end of the input says that the fence is over.
            let _ = std::io::read_to_string(std::io::stdin());
            let again = device.set_bus_master(true).is_ok()
                || device.config_write(0x04, 2, 7).is_ok()
                || device.irqs(IrqKind::Msi, 1).is_ok();
            finish(format_args!("before {before}, again {again}, after {}", transfers(&*device)));
        }
        let claim = claimed();
        let name = "device::bus_mastering_is_off_after_a_fence_though_the_process_goes_on";
        let (input, hold) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (child, words) = start_with(
            name, OwnedFd::from(claim.lease().unwrap()).as_fd(), input.as_fd(), &limits(),
        ).unwrap();
        drop(input);
        eventually("it never drives", || config()[COMMAND] & BUS_MASTER != 0);
        sleep(Duration::from_millis(300));
        let _ = claim.quiesce(None);
        assert_eq!(config()[COMMAND] & BUS_MASTER, 0);
        drop(hold);
        assert_eq!(said(&child, words), "before true, again false, after false");
        assert_eq!(config()[COMMAND] & BUS_MASTER, 0);
    }

    fn a_storm_of_interrupts_is_held_back_by_the_holder_and_the_driver_cannot_undo_it() {
        if is_child() {
            let device = device();
            device.set_bus_master(true).unwrap();
            let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
            let bar = device.bar(0).unwrap();
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(6) {
                (0..100).for_each(|_| bar.write32(RAISE, 1));
                let _ = irqs[0].unmask();
            }
            std::process::exit(0);
        }
        let claim = claimed();
        let (child, words) = drive(
            "device::a_storm_of_interrupts_is_held_back_by_the_holder_and_the_driver_cannot_undo_it",
            &claim, "",
        );
        let count = || claim.interrupts().unwrap();
        eventually("it raises none", || count() > 1000);
        claim.limit_interrupts(1000).unwrap();
        sleep(Duration::from_secs(1));
        let rate = claim.limit_interrupts(1000).unwrap().expect("no storm was seen");
        assert!(rate > 1000, "{rate}");
        let before = count();
        sleep(Duration::from_millis(500));
        assert_eq!(count(), before);
        // After the pause they come again.
        sleep(Duration::from_millis(600));
        claim.limit_interrupts(1000).unwrap();
        eventually("they do not come again", || count() > before);
        assert!(matches!(end(&child, words), End::Exit(_, 0)));
    }
}
