//! The simulated function around a model, seen by a raw client, with the teaching device as the
//! model.

use std::time::Duration;

use ring3_device::dma::PersistentWords;
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error, Registers};
use ring3_device::{OpenOptions, Uri};
use ring3_model::edu::{self, SimEdu};
use ring3_model::{Blocked, DmaFault, Timing};
use ring3_spec::{edu as spec, pci};

fn open(text: &str) -> SimEdu {
    edu::open(
        &text.parse::<Uri>().unwrap(),
        OpenOptions { arena: 2 << 20, below: 1 << 28, ..OpenOptions::default() },
    )
    .unwrap()
}

fn registers(device: &SimEdu) -> Registers {
    Registers::new(device.bar(0).unwrap(), 0x100).unwrap()
}

fn start_dma(device: &SimEdu, source: u64, destination: u64, count: u64, flags: u64) {
    let registers = registers(device);
    registers.write(spec::DMA_SOURCE, source);
    registers.write(spec::DMA_DESTINATION, destination);
    registers.write(spec::DMA_COUNT, count);
    registers.write(spec::DMA_COMMAND, spec::DMA_START | flags);
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[test]
fn the_function_says_what_it_is() {
    let device = open("sim:edu");
    assert_eq!(device.config_read(pci::VENDOR_ID, 2), spec::VENDOR.into());
    assert_eq!(device.config_read(pci::DEVICE_ID, 2), spec::DEVICE.into());
    assert_eq!(
        device.config_read(pci::VENDOR_ID, 4),
        u32::from(spec::DEVICE) << 16 | u32::from(spec::VENDOR)
    );
    assert_eq!(device.config_read(0x100, 4), u32::MAX);
}

#[test]
fn the_capability_list_leads_to_msi() {
    let device = open("sim:edu");
    assert_ne!(device.config_read(pci::STATUS, 2) & u32::from(pci::STATUS_CAPABILITIES), 0);
    let at = device.config_read(pci::CAPABILITIES, 1);
    assert_eq!(device.config_read(at.into(), 1), pci::CAP_MSI.into());
}

#[test]
fn bars_msi_and_command_bits_cannot_be_written_and_the_rest_can() {
    let device = open("sim:edu");
    let msi = device.config_read(pci::CAPABILITIES, 1);
    assert!(device.config_write(pci::BAR0, 4, u32::MAX).is_err());
    assert!(device.config_write(u64::from(msi) + 2, 2, 1).is_err());
    let command = device.config_read(pci::COMMAND, 2);
    assert!(
        device.config_write(pci::COMMAND, 2, command | u32::from(pci::COMMAND_BUS_MASTER)).is_err()
    );
    assert!(device.config_write(pci::COMMAND, 2, command).is_ok());
    device.config_write(0x3c, 1, 11).unwrap();
    assert_eq!(device.config_read(0x3c, 1), 11);
    device.config_write(pci::VENDOR_ID, 2, 0).unwrap();
    assert_eq!(device.config_read(pci::VENDOR_ID, 2), spec::VENDOR.into());
}

#[test]
fn an_access_outside_of_the_bar_reads_all_ones() {
    let bar = open("sim:edu").bar(0).unwrap();
    assert_eq!(bar.read32(bar.len() - 2), u32::MAX);
    assert_eq!(bar.read32(u64::MAX), u32::MAX);
    bar.write32(u64::MAX, 0);
}

#[test]
fn registers_read_all_ones_while_memory_space_is_off() {
    let device = open("sim:edu");
    device.handle().set_command(pci::COMMAND_MEMORY, false);
    assert!(matches!(registers(&device).read_alive(spec::LIVENESS), Err(Error::Gone)));
    device.handle().set_command(pci::COMMAND_MEMORY, true);
    assert!(registers(&device).read_alive(spec::IDENTIFICATION).is_ok());
}

#[test]
fn liveness_reads_back_inverted() {
    let registers = registers(&open("sim:edu"));
    registers.write(spec::LIVENESS, 0x1234_5678);
    assert_eq!(registers.read(spec::LIVENESS), !0x1234_5678);
}

#[test]
fn a_factorial_is_computed_modulo_32_bits() {
    let registers = registers(&open("sim:edu"));
    for (n, factorial) in [(0, 1), (5, 120), (12, 479_001_600), (13, 1_932_053_504), (u32::MAX, 0)]
    {
        registers.write(spec::FACTORIAL, n);
        assert_eq!(registers.read(spec::FACTORIAL), factorial);
    }
}

#[test]
fn bytes_travel_into_the_device_and_back() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    let (out, back) =
        (device.dma().arena().alloc(256, 8).unwrap(), device.dma().arena().alloc(256, 8).unwrap());
    out.fill(0xa5);
    start_dma(&device, out.iova(), spec::BUFFER, 256, 0);
    start_dma(&device, spec::BUFFER, back.iova(), 256, spec::DMA_TO_MEMORY);
    let mut bytes = [0; 256];
    back.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xa5; 256]);
    assert_eq!(device.handle().fault_count(), 0);
}

#[test]
fn a_transfer_outside_of_the_arena_is_blocked_and_reported() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    start_dma(&device, spec::BUFFER, 0x0800_0000, 64, spec::DMA_TO_MEMORY);
    let fault = DmaFault { iova: 0x0800_0000, len: 64, write: true, reason: Blocked::Unmapped };
    assert_eq!(device.handle().faults(), [fault]);
}

#[test]
fn a_transfer_that_runs_over_the_end_of_the_arena_writes_nothing() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    let arena = device.dma().arena();
    // The page that outlives drivers is the last.
    let (rest, kept) = (
        arena.alloc(arena.len() - PersistentWords::BYTES, 4096).unwrap(),
        arena.persistent_words().unwrap(),
    );
    let pattern = 0x1111_1111_1111_1111;
    kept.store(PersistentWords::WORDS - 1, pattern);
    let end = rest.iova() + arena.len() as u64;
    start_dma(&device, spec::BUFFER, end - 8, 16, spec::DMA_TO_MEMORY);
    assert_eq!(
        (kept.load(PersistentWords::WORDS - 1), device.handle().fault_count()),
        (pattern, 1)
    );
}

#[test]
fn without_bus_mastering_nothing_leaves_the_device() {
    let device = open("sim:edu");
    let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
    let buffer = device.dma().arena().alloc(64, 8).unwrap();
    buffer.fill(0x11);
    start_dma(&device, spec::BUFFER, buffer.iova(), 64, spec::DMA_TO_MEMORY | spec::DMA_IRQ);
    let mut bytes = [0; 64];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x11; 64]);
    assert_eq!(irqs[0].take().unwrap(), 0);
    assert_eq!(device.handle().faults()[0].reason, Blocked::BusMasterOff);
}

#[test]
fn arenas_lie_below_4_gib_on_request_and_beside_reserved_ranges() {
    let device = open("sim:edu,arena=2M,reserved=0x100000-0x1fffff");
    let arena = device.dma().arena();
    assert!(arena.iova() >= 0x20_0000 && arena.iova() + (arena.len() as u64) < 1 << 28);
}

#[test]
fn an_msi_is_counted_on_its_eventfd() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
    registers(&device).write(spec::INTERRUPT_RAISE, 1);
    registers(&device).write(spec::INTERRUPT_RAISE, 2);
    assert_eq!(irqs[0].wait(soon()).unwrap(), 2);
    assert_eq!(registers(&device).read(spec::INTERRUPT_STATUS), 3);
}

#[test]
fn a_masked_msi_is_delivered_once_when_it_is_unmasked() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
    irqs[0].mask().unwrap();
    registers(&device).write(spec::INTERRUPT_RAISE, 1);
    registers(&device).write(spec::INTERRUPT_RAISE, 2);
    assert_eq!(irqs[0].take().unwrap(), 0);
    irqs[0].unmask().unwrap();
    assert_eq!(irqs[0].take().unwrap(), 1);
}

#[test]
fn the_pin_stays_silent_until_it_is_unmasked_and_fires_again_while_it_is_asserted() {
    let device = open("sim:edu");
    let irqs = device.irqs(IrqKind::Intx, 1).unwrap();
    let registers = registers(&device);
    registers.write(spec::INTERRUPT_RAISE, 1);
    registers.write(spec::INTERRUPT_RAISE, 2);
    assert_eq!(irqs[0].take().unwrap(), 1);
    irqs[0].unmask().unwrap();
    assert_eq!(irqs[0].take().unwrap(), 1);
    registers.write(spec::INTERRUPT_ACKNOWLEDGE, 3);
    irqs[0].unmask().unwrap();
    assert_eq!(irqs[0].take().unwrap(), 0);
}

#[test]
fn a_disabled_pin_is_silent_and_still_shown_in_the_status_register() {
    let device = open("sim:edu");
    let irqs = device.irqs(IrqKind::Intx, 1).unwrap();
    device.handle().set_command(pci::COMMAND_INTX_DISABLE, true);
    registers(&device).write(spec::INTERRUPT_RAISE, 1);
    assert_eq!(irqs[0].take().unwrap(), 0);
    assert_eq!(device.config_read(pci::STATUS, 2) >> 3 & 1, 1);
    device.handle().set_command(pci::COMMAND_INTX_DISABLE, false);
    assert_eq!(irqs[0].take().unwrap(), 1);
}

#[test]
fn interrupts_that_the_function_does_not_have_are_refused() {
    let device = open("sim:edu");
    assert!(matches!(device.irqs(IrqKind::MsiX, 1), Err(Error::Unsupported(_))));
    assert!(matches!(device.irqs(IrqKind::Msi, 2), Err(Error::Unsupported(_))));
}

#[test]
fn an_interrupt_that_was_replaced_changes_nothing() {
    let device = open("sim:edu");
    let old = device.irqs(IrqKind::Msi, 1).unwrap();
    let new = device.irqs(IrqKind::Msi, 1).unwrap();
    assert!(old[0].mask().is_err());
    device.set_bus_master(true).unwrap();
    registers(&device).write(spec::INTERRUPT_RAISE, 1);
    assert_eq!((old[0].take().unwrap(), new[0].take().unwrap()), (0, 1));
}

#[test]
fn work_that_is_held_is_done_when_it_is_released() {
    let device = open("sim:edu");
    device.handle().set_timing(Timing::Held);
    registers(&device).write(spec::FACTORIAL, 5);
    assert_eq!(
        registers(&device).read(spec::STATUS) & spec::STATUS_COMPUTING,
        spec::STATUS_COMPUTING
    );
    device.handle().release();
    assert_eq!(registers(&device).read(spec::STATUS) & spec::STATUS_COMPUTING, 0);
    assert_eq!(registers(&device).read(spec::FACTORIAL), 120);
}

#[test]
fn delayed_work_ends_with_an_interrupt() {
    let device = open("sim:edu,delay=2ms");
    device.set_bus_master(true).unwrap();
    let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
    registers(&device).write(spec::STATUS, spec::STATUS_IRQ_AT_END);
    registers(&device).write(spec::FACTORIAL, 5);
    assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
    assert_eq!(registers(&device).read(spec::FACTORIAL), 120);
}

#[test]
fn after_a_reset_a_transfer_that_was_under_way_writes_nothing() {
    let device = open("sim:edu");
    device.set_bus_master(true).unwrap();
    device.handle().set_timing(Timing::Held);
    let buffer = device.dma().arena().alloc(64, 8).unwrap();
    buffer.fill(0x11);
    start_dma(&device, spec::BUFFER, buffer.iova(), 64, spec::DMA_TO_MEMORY);
    device.reset().unwrap();
    device.handle().release();
    let mut bytes = [0; 64];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x11; 64]);
}

#[test]
fn a_device_that_was_pulled_out_reads_all_ones_everywhere() {
    let device = open("sim:edu");
    device.handle().remove();
    assert_eq!(device.config_read(pci::VENDOR_ID, 2), 0xffff);
    assert!(matches!(registers(&device).read_alive(spec::IDENTIFICATION), Err(Error::Gone)));
    assert!(matches!(device.reset(), Err(Error::Gone)));
}

#[test]
fn an_error_of_the_bus_is_signalled_and_nothing_else_changes() {
    let device = open("sim:edu");
    device.handle().report_bus_error().unwrap();
    assert_eq!(device.bus_errors().unwrap().take().unwrap(), 1);
    assert_eq!(device.removal().unwrap().take().unwrap(), 0);
}

#[test]
fn a_request_for_removal_is_signalled() {
    let device = open("sim:edu");
    device.handle().request_removal().unwrap();
    assert_eq!(device.removal().unwrap().take().unwrap(), 1);
}

#[test]
fn a_device_is_claimed_by_one_at_a_time() {
    let device = open("sim:edu");
    let handle = device.handle();
    assert!(matches!(handle.claim(), Err(Error::Busy(_))));
    drop(device);
    let device = handle.claim().unwrap();
    assert_eq!(device.config_read(pci::COMMAND, 2) & u32::from(pci::COMMAND_BUS_MASTER), 0);
}

#[test]
fn recorded_writes_act_when_they_are_pumped_or_when_a_register_is_read() {
    let device = open("sim:edu");
    let irqs = device.irqs(IrqKind::Intx, 1).unwrap();
    device.handle().record(true);
    registers(&device).write(spec::INTERRUPT_RAISE, 1);
    assert_eq!(irqs[0].take().unwrap(), 0);
    assert_eq!(device.handle().pump(), 1);
    assert_eq!(irqs[0].take().unwrap(), 1);
    registers(&device).write(spec::INTERRUPT_ACKNOWLEDGE, 1);
    assert_eq!(registers(&device).read(spec::INTERRUPT_STATUS), 0);
}

#[test]
fn an_unknown_option_is_refused_with_the_ones_that_exist() {
    let error =
        edu::open(&"sim:edu,colour=red".parse().unwrap(), OpenOptions::default()).err().unwrap();
    assert!(error.to_string().contains("arena, below, reserved, delay"), "{error}");
}
