//! The qtest backend as a raw client sees it: configuration space, BARs, interrupts, reset, and
//! what happens when QEMU ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ring3_backend::qtest::{self, Qtest};
use ring3_backend::{OpenOptions, Uri};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error, Registers};
use ring3_spec::{edu as spec, pci};

fn try_open(text: &str) -> Result<Qtest, Error> {
    qtest::open(
        &text.parse::<Uri>().unwrap(),
        OpenOptions { arena: 1 << 20, ..OpenOptions::default() },
    )
}

fn open(text: &str) -> Qtest {
    try_open(text).unwrap_or_else(|error| panic!("{error}"))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn kill(process_id: u32) {
    let pid = rustix::process::Pid::from_raw(process_id as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn runs(process_id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process_id}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .is_some_and(|state| state != "Z")
}

fn ended_soon(process_id: u32) -> bool {
    let deadline = soon();
    while runs(process_id) && !deadline.expired() {
        std::thread::sleep(Duration::from_millis(5));
    }
    !runs(process_id)
}

#[test]
fn configuration_space_is_that_of_the_device() {
    let device = open("qtest:edu");
    assert_eq!(device.config_read(pci::VENDOR_ID, 2), u32::from(spec::VENDOR));
    assert_eq!(device.config_read(pci::DEVICE_ID, 2), u32::from(spec::DEVICE));
    assert_eq!(
        device.config_read(pci::VENDOR_ID, 4),
        u32::from(spec::DEVICE) << 16 | u32::from(spec::VENDOR)
    );
    assert_eq!(
        device.config_read(pci::VENDOR_ID + 1, 2),
        u32::from(spec::VENDOR) >> 8 | (u32::from(spec::DEVICE) & 0xff) << 8
    );
    assert_eq!(device.config_read(4094, 4), u32::MAX);
    assert_eq!(device.config_read(u64::MAX, 4), u32::MAX);
    assert_eq!(device.config_read(0, 3), u32::MAX);
}

#[test]
fn bars_and_msi_belong_to_the_backend_and_the_rest_can_be_written() {
    let device = open("qtest:edu");
    let msi = u64::from(device.config_read(pci::CAPABILITIES, 1));
    for offset in [pci::BAR0, pci::BAR0 + 22, msi + 2, pci::EXPANSION_ROM] {
        assert!(matches!(device.config_write(offset, 2, 0), Err(Error::Invalid(_))), "{offset:#x}");
    }
    device.config_write(0x3c, 1, 11).unwrap();
    assert_eq!(device.config_read(0x3c, 1), 11);
}

#[test]
fn command_bits_that_have_a_method_cannot_be_changed_otherwise_and_the_rest_can() {
    let device = open("qtest:edu");
    let command = device.config_read(pci::COMMAND, 2);
    const SYSTEM_ERROR: u32 = 1 << 8;
    let master = u32::from(pci::COMMAND_BUS_MASTER);
    assert!(matches!(
        device.config_write(pci::COMMAND, 2, command | master),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(device.config_write(pci::COMMAND, 1, 0), Err(Error::Invalid(_))));
    assert!(matches!(device.config_write(pci::COMMAND + 1, 1, 0), Err(Error::Invalid(_))));
    device.config_write(pci::COMMAND, 2, command | SYSTEM_ERROR).unwrap();
    assert_eq!(device.config_read(pci::COMMAND, 2), command | SYSTEM_ERROR);
}

#[test]
fn a_bar_has_the_size_that_the_device_asked_for_and_ends_there() {
    let bar = open("qtest:edu").bar(0).unwrap();
    assert_eq!(bar.len(), 1 << 20);
    assert_eq!(bar.read32((1 << 20) - 2), u32::MAX);
    assert_eq!(bar.read32(u64::MAX), u32::MAX);
    bar.write32(u64::MAX, 0);
}

#[test]
fn a_bar_that_is_not_there_is_refused() {
    let device = open("qtest:edu");
    assert!(matches!(device.bar(1), Err(Error::Unsupported(_))));
    assert!(matches!(device.bar(200), Err(Error::Unsupported(_))));
}

#[test]
fn a_port_bar_answers_beside_a_memory_bar() {
    // The e1000e has its registers behind an index and a data port, too: STATUS at 8. Both ways see
    // the same.
    let device = open("qtest:e1000e");
    let (memory, ports) = (device.bar(0).unwrap(), device.bar(2).unwrap());
    assert_eq!((memory.len(), ports.len()), (128 << 10, 32));
    ports.write32(0, 8);
    assert_eq!(ports.read32(4), memory.read32(8));
    assert_ne!(memory.read32(8), u32::MAX);
}

#[test]
fn all_widths_of_access_reach_the_device() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    registers.write(spec::LIVENESS, 0x1234_5678);
    assert_eq!(registers.read(spec::LIVENESS), !0x1234_5678);
    registers.write(spec::DMA_SOURCE, 0x1234_5678_9abc_def0);
    assert_eq!(registers.read(spec::DMA_SOURCE), 0x1234_5678_9abc_def0);
}

#[test]
fn thousands_of_posted_writes_arrive_in_order() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    for i in 0..10_000 {
        registers.write(spec::LIVENESS, i);
    }
    assert_eq!(registers.read(spec::LIVENESS), !9_999);
}

#[test]
fn accesses_of_two_threads_do_not_mix() {
    let device = open("qtest:edu");
    let bar = device.bar(0).unwrap();
    let other = bar.clone();
    let writer = std::thread::spawn(move || {
        (0..2000).for_each(|i| other.write64(spec::DMA_SOURCE.offset(), i))
    });
    for i in 0..2000u32 {
        bar.write32(spec::LIVENESS.offset(), i);
        assert_eq!(bar.read32(spec::LIVENESS.offset()), !i);
    }
    writer.join().unwrap();
    assert_eq!(bar.read64(spec::DMA_SOURCE.offset()), 1999);
}

#[test]
fn the_arena_lies_where_it_was_asked_to() {
    let uri = "qtest:edu,arena=4M".parse::<Uri>().unwrap();
    let device =
        qtest::open(&uri, OpenOptions { below: 16 << 20, ..OpenOptions::default() }).unwrap();
    let buffer = device.dma().arena().alloc(4 << 20, 4096).unwrap();
    assert!(buffer.iova() + (4 << 20) <= 16 << 20);
    let ranges = device.dma().iommu().ranges();
    assert!(ranges.iter().any(|range| range.contains(&buffer.iova())));
    assert!(matches!(device.dma().grow(4096), Err(Error::Unsupported(_))));
}

#[test]
fn an_arena_that_a_machine_cannot_have_is_refused() {
    assert!(matches!(try_open("qtest:edu,arena=3G"), Err(Error::Invalid(_))));
}

#[test]
fn a_pin_stays_silent_after_a_signal_until_it_is_unmasked() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    let irq = device.irqs(IrqKind::Intx, 1).unwrap().remove(0);
    registers.write(spec::INTERRUPT_RAISE, 1);
    assert_eq!(irq.wait(soon()).unwrap(), 1);
    registers.write(spec::INTERRUPT_RAISE, 2);
    registers.read(spec::INTERRUPT_STATUS);
    assert_eq!(irq.wait(Deadline::after(Duration::from_millis(50))).unwrap(), 0);
    irq.unmask().unwrap();
    assert_eq!(irq.wait(soon()).unwrap(), 1);
    registers.write(spec::INTERRUPT_ACKNOWLEDGE, 3);
    irq.unmask().unwrap();
    assert_eq!(irq.wait(Deadline::after(Duration::from_millis(50))).unwrap(), 0);
}

#[test]
fn a_pin_that_is_high_when_it_is_enabled_signals() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    registers.write(spec::INTERRUPT_RAISE, 1);
    let irq = device.irqs(IrqKind::Intx, 1).unwrap().remove(0);
    assert_eq!(irq.wait(soon()).unwrap(), 1);
}

#[test]
fn interrupts_that_the_device_does_not_have_are_refused() {
    let device = open("qtest:edu");
    let limits = device.irq_limits();
    assert_eq!((limits.intx, limits.msi, limits.msix), (1, 1, 0));
    assert!(matches!(device.irqs(IrqKind::MsiX, 1), Err(Error::Unsupported(_))));
    assert!(matches!(device.irqs(IrqKind::Msi, 2), Err(Error::Unsupported(_))));
    assert_eq!(open("qtest:edu,msi=off").irq_limits().msi, 0);
}

#[test]
fn no_interrupt_leaves_a_device_that_may_not_master_the_bus() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    let irq = device.irqs(IrqKind::Msi, 1).unwrap().remove(0);
    registers.write(spec::INTERRUPT_RAISE, 1);
    assert_eq!(irq.wait(Deadline::after(Duration::from_millis(50))).unwrap(), 0);
    device.set_bus_master(true).unwrap();
    registers.write(spec::INTERRUPT_RAISE, 1);
    assert_eq!(irq.wait(soon()).unwrap(), 1);
}

#[test]
fn after_a_reset_of_the_machine_everything_is_where_it_was() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    device.set_bus_master(true).unwrap();
    let irq = device.irqs(IrqKind::Msi, 1).unwrap().remove(0);
    for _ in 0..3 {
        device.reset().unwrap();
        registers.write(spec::LIVENESS, 7);
        assert_eq!(registers.read_alive(spec::LIVENESS).unwrap(), !7);
        registers.write(spec::INTERRUPT_RAISE, 1);
        assert_eq!(irq.wait(soon()).unwrap(), 1);
    }
}

#[test]
fn two_devices_live_side_by_side() {
    let (one, two) = (open("qtest:edu"), open("qtest:edu"));
    let registers = |device: &Qtest| Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    registers(&one).write(spec::LIVENESS, 1);
    registers(&two).write(spec::LIVENESS, 2);
    assert_eq!(
        (registers(&one).read(spec::LIVENESS), registers(&two).read(spec::LIVENESS)),
        (!1, !2)
    );
    assert_ne!(one.process_id(), two.process_id());
}

#[test]
fn a_device_that_qemu_does_not_know_is_refused_in_its_own_words() {
    let error = try_open("qtest:flux-capacitor").err().unwrap().to_string();
    assert!(error.contains("'flux-capacitor' is not a valid device model name"), "{error}");
}

#[test]
fn a_property_that_the_device_does_not_have_is_refused_in_qemus_words() {
    let error = try_open("qtest:edu,colour=red").err().unwrap().to_string();
    assert!(error.contains("Property 'edu.colour' not found"), "{error}");
}

#[test]
fn a_qemu_that_was_killed_is_a_device_that_is_gone() {
    let device = open("qtest:edu");
    let registers = Registers::new(device.bar(0).unwrap(), 0x100).unwrap();
    let start = Instant::now();
    kill(device.process_id());
    assert!(device.removal().unwrap().wait(soon()).unwrap() > 0);
    registers.write(spec::LIVENESS, 1);
    assert!(matches!(registers.read_alive(spec::LIVENESS), Err(Error::Gone)));
    assert_eq!(device.config_read(pci::VENDOR_ID, 2) & 0xffff, 0xffff);
    assert!(matches!(device.reset(), Err(Error::Gone)));
    assert!(matches!(device.set_bus_master(true), Err(Error::Gone)));
    assert!(matches!(device.irqs(IrqKind::Msi, 1), Err(Error::Gone)));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn who_waits_for_an_interrupt_wakes_when_qemu_is_killed() {
    for kind in [IrqKind::Msi, IrqKind::Intx] {
        let device = open("qtest:edu");
        let irq = device.irqs(kind, 1).unwrap().remove(0);
        let process_id = device.process_id();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            kill(process_id);
        });
        assert!(irq.wait(soon()).unwrap() > 0, "{kind:?}");
        killer.join().unwrap();
        assert_eq!(device.bar(0).unwrap().read32(0), u32::MAX);
    }
}

#[test]
fn dropping_the_device_ends_its_qemu_and_reaps_it() {
    let device = open("qtest:edu");
    let (process_id, bar) = (device.process_id(), device.bar(0).unwrap());
    assert!(runs(process_id));
    drop(device);
    assert!(!std::path::Path::new(&format!("/proc/{process_id}")).exists());
    assert_eq!(bar.read32(0), u32::MAX);
}

#[test]
fn qemu_outlives_the_thread_that_opened_it() {
    let device = std::thread::spawn(|| open("qtest:edu")).join().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_ne!(device.bar(0).unwrap().read32(0), u32::MAX);
}

/// The process that is killed in the test after this one: this same program, told by the
/// environment to open a device and wait.
const HOLD: &str = "RING3_TEST_HOLD";

#[test]
fn qemu_ends_with_a_process_that_was_killed() {
    if std::env::var_os(HOLD).is_some() {
        let device = open("qtest:edu");
        println!("\nqemu {}", device.process_id());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "qemu_ends_with_a_process_that_was_killed", "--nocapture"])
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let process_id = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("qemu ")?.parse::<u32>().ok())
        .unwrap();
    assert!(runs(process_id));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(ended_soon(process_id));
}
