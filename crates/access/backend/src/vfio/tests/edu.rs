//! Claim, memory, removal: shown on the teaching device.

use std::fs;
use std::process::Command;

use ring3_device::dma::Foreign;
use ring3_device::{Bar, Device, Error, poll_until};
use ring3_spec::{edu as spec, pci};

use super::{address, claim, claim_by, claim_with, command_in_sysfs, guest_tests, soon};
use crate::OpenOptions;
use crate::vfio::Vfio;

fn registers(device: &Vfio) -> Bar {
    device.bar(0).unwrap()
}

/// Lets the device move 64 bytes between its buffer and `iova`.
fn transfer(bar: &Bar, iova: u64, direction: u64) {
    let (from, to) =
        if direction == spec::DMA_TO_MEMORY { (spec::BUFFER, iova) } else { (iova, spec::BUFFER) };
    bar.write64(spec::DMA_SOURCE.offset(), from);
    bar.write64(spec::DMA_DESTINATION.offset(), to);
    bar.write64(spec::DMA_COUNT.offset(), 64);
    bar.write64(spec::DMA_COMMAND.offset(), spec::DMA_START | direction);
    let done = || Ok((bar.read64(spec::DMA_COMMAND.offset()) & spec::DMA_START == 0).then_some(()));
    poll_until(soon(), "a transfer", done).unwrap();
}

/// Puts 64 bytes of `byte` into the device's buffer.
fn load(device: &Vfio, bar: &Bar, byte: u8) {
    let buffer = device.dma().arena().alloc(64, 64).unwrap();
    buffer.fill(byte);
    transfer(bar, buffer.iova(), 0);
}

fn is_mapped(bar: &Bar) -> bool {
    bar.mapped_len() == bar.len()
}

guest_tests! {
    fn registers_are_mapped_and_answer() {
        let device = claim("EDU");
        let bar = registers(&device);
        assert!(is_mapped(&bar));
        bar.write32(spec::LIVENESS.offset(), 0x1234_5678);
        assert_eq!(bar.read32(spec::LIVENESS.offset()), !0x1234_5678);
    }

    fn the_arena_lies_below_the_limit_that_was_asked_for() {
        let arena = claim("EDU").dma().arena().clone();
        assert!(arena.iova() + arena.len() as u64 <= 1 << 28);
    }

    fn an_arena_that_does_not_fit_below_the_limit_is_refused() {
        let uri = format!("vfio:{},below=1M", address("EDU")).parse().unwrap();
        let error = crate::vfio::open(
            &uri, OpenOptions { arena: 1 << 20, below: u64::MAX, ..OpenOptions::default() },
        ).err().unwrap();
        assert!(matches!(error, Error::Claim(_)), "{error}");
    }

    fn the_interrupt_window_is_not_a_device_address() {
        let ranges = claim("EDU").dma().iommu().ranges();
        assert!(!ranges.iter().any(|range| range.contains(&0xfee0_0000)), "{ranges:x?}");
    }

    fn memory_that_is_mapped_later_is_reached_until_it_is_unmapped() {
        let (device, foreign) = (claim("EDU"), Foreign::new(4096).unwrap());
        let (bar, iova) = (registers(&device), 0x800_0000);
        device.set_bus_master(true).unwrap();
        let byte = || {
            let mut byte = [0];
            foreign.read(0, &mut byte).unwrap();
            byte[0]
        };
        device.dma().iommu().map(&foreign.region().pages().unwrap(), iova).unwrap();
        load(&device, &bar, 0x11);
        transfer(&bar, iova, spec::DMA_TO_MEMORY);
        assert_eq!(byte(), 0x11);
        device.dma().iommu().unmap(iova, 4096).unwrap();
        load(&device, &bar, 0x22);
        transfer(&bar, iova, spec::DMA_TO_MEMORY);
        assert_eq!(byte(), 0x11);
    }

    fn an_arena_that_grows_is_reached_where_it_has_grown() {
        let device = claim("EDU");
        let (dma, bar, mut full) = (device.dma(), registers(&device), Vec::new());
        device.set_bus_master(true).unwrap();
        load(&device, &bar, 0x77);
        for len in [1 << 20, 4096] {
            full.extend(std::iter::from_fn(|| dma.arena().alloc(len, 1).ok()));
        }
        dma.grow(1 << 20).unwrap();
        let buffer = dma.arena().alloc(64, 64).unwrap();
        transfer(&bar, buffer.iova(), spec::DMA_TO_MEMORY);
        let mut bytes = [0; 64];
        buffer.read(0, &mut bytes).unwrap();
        assert_eq!(
            (buffer.span().region, bytes, dma.arena().is_below(1 << 28)), (1, [0x77; 64], true),
        );
    }

    fn addresses_that_are_mapped_already_are_refused() {
        let (device, foreign) = (claim("EDU"), Foreign::new(4096).unwrap());
        let iova = device.dma().arena().iova();
        assert!(
            matches!(
                device.dma().iommu().map(&foreign.region().pages().unwrap(), iova),
                Err(Error::Invalid(_)),
            )
        );
    }

    fn unmapping_what_is_not_mapped_is_an_error() {
        assert!(claim("EDU").dma().iommu().unmap(0x900_0000, 4096).is_err());
    }

    fn a_container_without_room_for_a_mapping_names_the_limit() {
        let limit = "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
        let before = fs::read_to_string(limit).unwrap();
        fs::write(limit, "1").unwrap();
        // Of the other translation the limit is the memory that may be locked.
        let device = claim_by("EDU", ",iommu=type1");
        let foreign = Foreign::new(4096).unwrap();
        fs::write(limit, before).unwrap();
        let error =
            device.dma().iommu().map(&foreign.region().pages().unwrap(), 0x800_0000).unwrap_err();
        assert!(
            error.to_string().contains("(0 available); raise /sys/module/vfio_iommu_type1"),
            "{error}",
        );
    }

    fn bus_mastering_is_off_until_it_is_asked_for_and_after_the_claim() {
        let device = claim("EDU");
        let master = || command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER != 0;
        assert!(!master());
        device.set_bus_master(true).unwrap();
        assert!(master());
        drop(device);
        assert!(!master());
    }

    fn a_function_without_bus_mastering_writes_nothing() {
        let device = claim("EDU");
        let (bar, buffer) = (registers(&device), device.dma().arena().alloc(64, 64).unwrap());
        transfer(&bar, buffer.iova(), spec::DMA_TO_MEMORY);
        device.set_bus_master(true).unwrap();
        load(&device, &bar, 0x33);
        device.set_bus_master(false).unwrap();
        transfer(&bar, buffer.iova(), spec::DMA_TO_MEMORY);
        let mut byte = [0];
        buffer.read(0, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    fn a_bar_whose_decoding_is_switched_off_reads_all_ones_instead_of_a_signal() {
        let device = claim("EDU");
        let bar = registers(&device);
        device.claim.config().change_command(pci::COMMAND_MEMORY, 0).unwrap();
        assert_eq!((bar.read32(0), bar.read64(0), bar.read8(3)), (u32::MAX, u64::MAX, u8::MAX));
        bar.write32(spec::LIVENESS.offset(), 0);
        device.claim.config().change_command(0, pci::COMMAND_MEMORY).unwrap();
        assert_eq!(bar.read32(0), u32::MAX, "gone stays gone for this handle");
        assert_eq!(registers(&device).read32(0) & 0xff, 0xed);
    }

    fn what_belongs_to_the_backend_is_not_written() {
        let device = claim("EDU");
        let command = device.config_read(pci::COMMAND, 2);
        assert!(
            device.config_write(pci::COMMAND, 2, command & !u32::from(pci::COMMAND_MEMORY)).is_err()
        );
        assert!(device.config_write(pci::BAR0, 4, 0).is_err());
        assert_eq!(device.config_read(pci::COMMAND, 2), command);
    }

    fn what_is_nobodys_is_written_and_read_back() {
        let device = claim("EDU");
        device.config_write(0x3c, 1, 0x5a).unwrap();
        assert_eq!(device.config_read(0x3c, 1), 0x5a);
    }

    fn a_read_beyond_configuration_space_is_all_ones() {
        assert_eq!(claim("EDU").config_read(1 << 20, 4), u32::MAX);
    }

    fn a_bar_that_is_not_there_is_unsupported() {
        let device = claim("EDU");
        assert!(matches!(device.bar(3), Err(Error::Unsupported(_))));
        assert!(matches!(device.bar(6), Err(Error::Unsupported(_))));
    }

    fn a_second_claim_is_busy_and_names_the_process() {
        let _first = claim("EDU");
        let uri = format!("vfio:{}", address("EDU")).parse().unwrap();
        let error = crate::vfio::open(&uri, OpenOptions::default()).err().unwrap();
        assert!(
            matches!(
                &error,
                Error::Busy(text) if text.contains(&format!("process {}", std::process::id())),
            ),
            "{error}",
        );
    }

    fn a_claim_that_is_given_up_can_be_made_again() {
        for _ in 0..3 {
            assert_eq!(registers(&claim("EDU")).read32(0) & 0xff, 0xed);
        }
    }

    fn an_arena_larger_than_may_be_locked_is_taken_by_who_has_the_capability() {
        let device = claim_with(
            "EDU", OpenOptions { arena: 64 << 20, below: 1 << 28, ..OpenOptions::default() },
        );
        assert!(device.dma().arena().len() >= 64 << 20);
    }

    fn who_unbinds_a_claimed_function_is_announced_and_waits() {
        let device = claim("EDU");
        let removal = device.removal().expect("this kernel announces removal");
        let name = address("EDU");
        let mut unbind = Command::new("sh")
            .args(["-c", &format!("echo {name} >/sys/bus/pci/drivers/vfio-pci/unbind")])
            .spawn()
            .unwrap();
        assert!(removal.wait(soon()).unwrap() > 0);
        assert!(unbind.try_wait().unwrap().is_none());
        drop(device);
        assert!(unbind.wait().unwrap().success());
        fs::write("/sys/bus/pci/drivers_probe", &name).unwrap();
        drop(claim("EDU"));
    }
}
