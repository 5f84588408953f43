//! Configuration space as a driver for a whole machine uses it, over our model and over QEMU's of
//! the same device.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_decorator::{Change, VirtualConfig};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::edu::{Edu, REACH};
use ring3_spec::{edu, pci};

type Changes = Arc<Mutex<Vec<Change>>>;

const NVME: [&str; 2] = ["sim:nvme", "qtest:nvme,null=on"];
const EDU: [&str; 2] = ["sim:edu", "qtest:edu"];

fn open(uri: &str) -> (Arc<dyn Device>, Arc<VirtualConfig>, Changes) {
    let uri: Uri = uri.parse().unwrap();
    let below = if uri.target == "edu" { REACH } else { u64::MAX };
    let inner =
        ring3_backend::open(&uri, OpenOptions { arena: 2 << 20, below, ..OpenOptions::default() })
            .unwrap();
    let changes = Changes::default();
    let heard = changes.clone();
    let device =
        VirtualConfig::new(inner.clone(), move |change| heard.lock().unwrap().push(change));
    (inner, Arc::new(device), changes)
}

fn take(changes: &Changes) -> Vec<Change> {
    std::mem::take(&mut *changes.lock().unwrap())
}

fn capability(device: &dyn Device, id: u8) -> u64 {
    let found =
        ring3_device::config::capabilities(|offset, width| device.config_read(offset, width));
    found.into_iter().find_map(|(one, at)| (one == id).then_some(at)).unwrap()
}

#[test]
fn a_base_address_register_says_its_size_and_keeps_its_address() {
    for uri in NVME {
        let (inner, device, _) = open(uri);
        let (real, len) = (inner.config_read(pci::BAR0, 4), inner.bar_info(0).unwrap().len);
        assert_eq!(device.config_read(pci::BAR0, 4), real);
        device.config_write(pci::BAR0, 4, u32::MAX).unwrap();
        assert_eq!(device.config_read(pci::BAR0, 4), !(len as u32 - 1) | real & 0xf, "{uri}");
        device.config_write(pci::BAR0, 4, 0xd000_0000).unwrap();
        assert_eq!(device.config_read(pci::BAR0 + 2, 2), 0xd000);
        assert_eq!(inner.config_read(pci::BAR0, 4), real, "the device keeps its own");
    }
}

#[test]
fn what_is_absent_has_no_size() {
    let (_, device, _) = open("sim:nvme");
    for register in [pci::BAR0 + 20, pci::EXPANSION_ROM] {
        device.config_write(register, 4, u32::MAX).unwrap();
        assert_eq!(device.config_read(register, 4), 0, "{register:#x}");
    }
}

#[test]
fn a_register_of_64_bits_is_sized_by_its_two_halves() {
    let (inner, device, _) = open("qtest:nvme,null=on");
    assert_eq!(
        inner.config_read(pci::BAR0, 4) & 0b110,
        0b100,
        "QEMU's controller has a BAR of 64 bits"
    );
    device.config_write(pci::BAR0 + 4, 4, u32::MAX).unwrap();
    assert_eq!(device.config_read(pci::BAR0 + 4, 4), u32::MAX);
}

#[test]
fn the_bus_master_bit_switches_the_real_one_and_the_other_way_round() {
    for uri in EDU {
        let (inner, device, changes) = open(uri);
        let master = u32::from(pci::COMMAND_BUS_MASTER);
        let mastering = |device: &dyn Device| device.config_read(pci::COMMAND, 2) & master != 0;
        let command = device.config_read(pci::COMMAND, 2);
        device.config_write(pci::COMMAND, 2, command | master).unwrap();
        assert!(mastering(&*inner) && mastering(&*device), "{uri}");
        device.set_bus_master(false).unwrap();
        assert!(!mastering(&*inner) && !mastering(&*device), "{uri}");
        let owned = command as u16 & ring3_device::config::OWNED_COMMAND;
        let commands = [owned | pci::COMMAND_BUS_MASTER, owned].map(Change::Command);
        assert_eq!(take(&changes), commands, "{uri}");
    }
}

#[test]
fn decoding_can_be_switched_off_and_the_registers_answer_all_the_same() {
    for uri in EDU {
        let (inner, device, _) = open(uri);
        let real = inner.config_read(pci::COMMAND, 2);
        device.config_write(pci::COMMAND, 2, u32::from(pci::COMMAND_INTX_DISABLE)).unwrap();
        assert_eq!(device.config_read(pci::COMMAND, 2) as u16, pci::COMMAND_INTX_DISABLE);
        assert_eq!(inner.config_read(pci::COMMAND, 2), real);
        assert_eq!(device.bar(0).unwrap().read32(edu::IDENTIFICATION.offset()) & 0xff, 0xed);
    }
}

#[test]
fn bits_of_command_that_are_the_devices_reach_it() {
    let (inner, device, _) = open("qtest:edu");
    const SYSTEM_ERROR: u32 = 1 << 8;
    device.config_write(pci::COMMAND, 4, SYSTEM_ERROR | u32::from(pci::COMMAND_MEMORY)).unwrap();
    assert_ne!(inner.config_read(pci::COMMAND, 2) & SYSTEM_ERROR, 0);
    assert_ne!(device.config_read(pci::COMMAND, 2) & SYSTEM_ERROR, 0);
}

#[test]
fn what_is_nobody_elses_is_written_to_the_device_and_what_is_beyond_it_refused() {
    let (inner, device, _) = open("sim:edu");
    device.config_write(0x3c, 1, 11).unwrap();
    assert_eq!(inner.config_read(0x3c, 1), 11);
    assert!(matches!(device.config_write(0x3c, 3, 11), Err(Error::Invalid(_))));
    assert!(matches!(device.config_write(u64::MAX, 4, 0), Err(Error::Invalid(_))));
}

/// What a kernel writes to enable MSI, and what its owner makes of it.
#[test]
fn a_drivers_writes_to_msi_become_the_devices_interrupt() {
    for uri in EDU {
        let (_, device, changes) = open(uri);
        let at = capability(&*device, pci::CAP_MSI);
        let (control, address) = (at + pci::MSI_CONTROL, at + pci::MSI_ADDRESS);
        let off = device.config_read(control, 2);
        device.config_write(address, 4, 0xfee0_0000).unwrap();
        device.config_write(address + 4, 4, 1).unwrap();
        device.config_write(address + 8, 2, 0x4021).unwrap();
        assert_eq!((take(&changes), device.message(0)), (vec![], None));
        device.config_write(control, 2, off | u32::from(pci::MSI_ENABLE)).unwrap();
        assert_eq!(take(&changes), [Change::Irqs(Some((IrqKind::Msi, 1)))], "{uri}");
        assert_eq!(device.message(0), Some((0x1_fee0_0000, 0x4021)));
        let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
        Edu::attach(device.clone()).unwrap().raise(1);
        assert_eq!(irqs[0].wait(Deadline::after(Duration::from_secs(10))).unwrap(), 1, "{uri}");
        // The device's own address is not the driver's.
        assert_eq!(device.config_read(address, 4), 0xfee0_0000);
        device.config_write(control, 2, off).unwrap();
        assert_eq!(take(&changes).last(), Some(&Change::Irqs(None)));
    }
}

/// What a kernel does to enable MSI-X: on with all masked, the entries, the function's mask off.
#[test]
fn a_drivers_writes_to_msix_and_its_table_are_told_and_do_not_reach_the_device() {
    for uri in NVME {
        let (inner, device, changes) = open(uri);
        let control = capability(&*device, pci::CAP_MSIX) + pci::MSIX_CONTROL;
        let layout = device.config_read(control + 2, 4);
        let (bar, table) = ((layout & 7) as u8, u64::from(layout & !7));
        let (virtual_bar, real_bar) = (device.bar(bar).unwrap(), inner.bar(bar).unwrap());
        let on = device.config_read(control, 2) | u32::from(pci::MSIX_ENABLE);
        let entries = (on as u16 & pci::MSIX_SIZE) + 1;
        device.config_write(control, 2, on | u32::from(pci::MSIX_FUNCTION_MASK)).unwrap();
        let told = take(&changes);
        assert_eq!(told[0], Change::Irqs(Some((IrqKind::MsiX, entries))), "{uri}");
        assert_eq!(told.len(), 1 + usize::from(entries), "each vector is masked");

        let entry = table + 2 * pci::MSIX_ENTRY;
        let before = real_bar.read64(entry);
        virtual_bar.write32(entry, 0xfee0_1000);
        virtual_bar.write32(entry + 4, 0);
        virtual_bar.write32(entry + 8, 0x31);
        virtual_bar.write32(entry + pci::MSIX_VECTOR_CONTROL, 0);
        assert_eq!((virtual_bar.read64(entry), virtual_bar.read32(entry + 8)), (0xfee0_1000, 0x31));
        assert_eq!(real_bar.read64(entry), before);
        assert_eq!(device.message(2), Some((0xfee0_1000, 0x31)));
        assert_eq!(take(&changes), [], "the function's mask still holds it");

        device.config_write(control, 2, on).unwrap();
        assert_eq!(take(&changes), [Change::Mask { vector: 2, masked: false }]);
        virtual_bar.write32(entry + pci::MSIX_VECTOR_CONTROL, 1);
        assert_eq!(take(&changes), [Change::Mask { vector: 2, masked: true }]);
        assert_eq!(virtual_bar.read32(0), real_bar.read32(0), "other registers are the device's");
    }
}

#[test]
fn an_access_across_the_end_of_the_table_reaches_nothing() {
    let (_, device, changes) = open("sim:nvme");
    let layout = device.config_read(capability(&*device, pci::CAP_MSIX) + pci::MSIX_TABLE, 4);
    let (bar, table) = (device.bar((layout & 7) as u8).unwrap(), u64::from(layout & !7));
    bar.write32(table - 2, 0);
    assert_eq!(bar.read32(table - 2), u32::MAX);
    assert_eq!(take(&changes), []);
}

#[test]
fn a_device_that_is_gone_reads_all_ones_from_the_emulated_registers_too() {
    let uri: Uri = "sim:nvme".parse().unwrap();
    let inner = ring3_model::nvme::open(&uri, OpenOptions::default()).unwrap();
    let handle = inner.handle();
    let device = VirtualConfig::new(Arc::new(inner), |_| {});
    let layout = device.config_read(capability(&device, pci::CAP_MSIX) + pci::MSIX_TABLE, 4);
    let table = device.bar((layout & 7) as u8).unwrap();
    assert_eq!(table.read32(u64::from(layout & !7) + pci::MSIX_VECTOR_CONTROL), 1);
    handle.remove();
    assert_eq!(
        [pci::BAR0, pci::COMMAND, pci::EXPANSION_ROM].map(|at| device.config_read(at, 4)),
        [u32::MAX; 3]
    );
    assert_eq!(table.read32(u64::from(layout & !7)), u32::MAX);
}
