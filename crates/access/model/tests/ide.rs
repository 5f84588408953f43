//! The simulated IDE controllers, seen by a raw client that is not the driver.

mod raw_ide;

use raw_ide::{Client, feature, identify, read, task, write};
use ring3_device::Device;
use ring3_device::irq::IrqKind;
use ring3_model::Timing;
use ring3_spec::ata::{Signature, TaskFile, TrimRange, device, opcode};
use ring3_spec::ide::cmd64x::{self, Mode};
use ring3_spec::ide::{
    self, BusMasterStatus, DeviceControl, Interface, Prd, bus_master, command, piix,
};
use ring3_spec::pci;

const CHIPS: [&str; 3] = ["piix3", "piix4", "cmd646"];
/// What a violation says, and how to earn it.
type Rule = (&'static str, fn(&Client));

const DONE: BusMasterStatus = BusMasterStatus(0).with_interrupt(1);

/// The one thing that the client did wrong.
fn violation(client: &Client) -> String {
    let violations = client.handle.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    violations[0].clone()
}

#[test]
fn functions_say_which_chip_and_which_mode_they_are() {
    let expected = [
        (piix::VENDOR, piix::PIIX3, 0x80, 2),
        (piix::VENDOR, piix::PIIX4, 0x80, 2),
        (cmd64x::VENDOR, cmd64x::CMD646, 0x8f, 1),
    ];
    for (chip, (vendor, device, interface, pins)) in CHIPS.into_iter().zip(expected) {
        let client = Client::open(&format!("sim:ide,chip={chip}"));
        let config = |at, width| client.device.config_read(at, width);
        assert_eq!(
            (config(pci::VENDOR_ID, 2), config(pci::DEVICE_ID, 2)),
            (vendor.into(), device.into())
        );
        assert_eq!((config(8, 4) >> 8 & ide::CLASS_MASK, config(9, 1)), (ide::CLASS, interface));
        assert_eq!(Interface(interface as u8).is_native(1), chip == "cmd646");
        assert_eq!((client.device.irq_limits().intx, client.device.irq_limits().msi), (pins, 0));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|bar| client.device.bar(bar).unwrap().len()),
            [8, 4, 8, 4, 16]
        );
        assert!(client.device.bar(5).is_err());
        assert!(client.buffer.iova() + client.buffer.len() as u64 <= 1 << 32);
    }
}

#[test]
fn a_drive_says_who_it_is_by_pio() {
    for chip in CHIPS {
        let client = Client::open(&format!("sim:ide,chip={chip},size=1M"));
        let identify = client.identify();
        assert!(identify.is_ata() && identify.is_intact() && identify.has_dma());
        assert_eq!(
            (identify.blocks(), identify.best_ultra_dma(), identify.queue_depth()),
            (2048, Some(5), 0)
        );
        assert_eq!((identify.multiple_limit(), identify.reset_result() >> 13 & 1), (16, 1));
        client.is_blameless();
    }
}

#[test]
fn a_drive_can_be_without_what_the_user_switches_off() {
    let client = Client::open("sim:ide,dma=off,lba48=off,multiple=0,cable=40");
    let identify = client.identify();
    assert!(
        !identify.has_dma() && !identify.has_lba48() && !identify.has_fua() && !identify.has_trim()
    );
    assert_eq!(
        (identify.best_ultra_dma(), identify.best_multiword_dma(), identify.multiple_limit()),
        (None, None, 0)
    );
    assert_eq!(identify.reset_result() >> 13 & 1, 0);
    client.start(&read(0, 1));
    assert_eq!((client.status().error(), client.error().aborted()), (1, 1));
}

#[test]
fn what_the_bus_master_writes_the_processor_reads_and_the_other_way_round() {
    let client = Client::open("sim:ide");
    assert_eq!(client.write_bytes(7, 8, 0x3c).0, 0x50);
    client.start(&task(opcode::READ_PIO, 7, 8, false));
    assert_eq!(client.take(4096, 512), [0x3c; 4096]);
    client.start(&task(opcode::WRITE_PIO_EXT, 7, 8, true));
    client.give(&[0xc3; 4096], 512);
    assert_eq!(client.status().0, 0x50);
    client.fill(0);
    let (master, status) = client.dma(&read(7, 8), true, 4096);
    assert_eq!((master, status.0), (DONE, 0x50));
    assert_eq!(client.bytes(0, 4096), [0xc3; 4096]);
    client.is_blameless();
}

#[test]
fn all_four_drives_are_disks_of_their_own() {
    for chip in CHIPS {
        let mut client = Client::open(&format!("sim:ide,chip={chip},disks=4"));
        for drive in 0..4 {
            client.select(drive);
            client.write_bytes(0, 1, drive + 1);
        }
        for drive in 0..4 {
            client.select(drive);
            assert_eq!(client.peek(0), drive + 1);
            client.start(&task(opcode::READ_PIO, 0, 1, false));
            assert_eq!(client.take(512, 512), [drive + 1; 512]);
        }
        client.is_blameless();
    }
}

#[test]
fn several_blocks_come_with_one_interrupt() {
    let client = Client::open("sim:ide");
    client.start(&TaskFile { command: opcode::SET_MULTIPLE, count: 4, ..TaskFile::default() });
    assert_eq!((client.status().0, client.taken()), (0x50, 1));
    client.start(&task(opcode::WRITE_MULTIPLE, 0, 6, false));
    assert_eq!(client.taken(), 0, "the first data are not asked for by an interrupt");
    client.give(&[9; 3072], 2048);
    client.status();
    assert_eq!((client.taken(), client.taken(), client.taken()), (1, 1, 0));
    client.start(&task(opcode::READ_MULTIPLE, 0, 6, false));
    assert_eq!(client.take(3072, 2048), [9; 3072]);
    assert_eq!(
        (client.taken(), client.taken(), client.taken(), client.alternate_status().0),
        (1, 1, 0, 0x50)
    );
    client.start(&TaskFile { command: opcode::SET_MULTIPLE, count: 3, ..TaskFile::default() });
    assert_eq!(client.error().aborted(), 1);
    client.is_blameless();
}

#[test]
fn blocks_of_4096_bytes_come_one_by_one() {
    let client = Client::open("sim:ide,block=4096");
    assert_eq!(client.identify().block_size(), 4096);
    client.start(&task(opcode::WRITE_PIO, 1, 1, false));
    client.give(&[5; 4096], 4096);
    client.status();
    assert_eq!(client.peek(8), 5);
    client.is_blameless();
}

#[test]
fn addresses_of_28_bits_end_in_the_device_register_and_those_of_48_are_written_twice() {
    let client = Client::open("sim:ide,size=256G");
    for (lba, ext) in [(0x0abc_def1, false), (0x1abc_def1, true)] {
        assert!(client.handle.peek(0, lba * 512, &mut [0]));
        client.start(&task(
            if ext { opcode::WRITE_PIO_EXT } else { opcode::WRITE_PIO },
            lba,
            1,
            ext,
        ));
        client.give(&[0x77; 512], 512);
        client.status();
        assert_eq!(client.peek(lba), 0x77, "{lba:#x}");
    }
    client.is_blameless();
}

#[test]
fn the_upper_halves_of_registers_are_read_with_hob() {
    let client = Client::open("sim:ide");
    client.put(command::LBA_LOW.offset(), 0x12);
    client.put(command::LBA_LOW.offset(), 0x34);
    assert_eq!(client.get(command::LBA_LOW.offset()), 0x34);
    client.control(DeviceControl(0).with_high_order(1));
    assert_eq!(client.get(command::LBA_LOW.offset()), 0x12);
    client.put(command::COUNT.offset(), 0);
    assert_eq!(
        client.get(command::LBA_LOW.offset()),
        0x34,
        "a write to the command block clears HOB"
    );
}

#[test]
fn an_address_beyond_the_end_is_said_to_be_none() {
    let client = Client::open("sim:ide,size=1M");
    let (master, status) = client.dma(&read(2047, 2), true, 1024);
    assert_eq!((master.interrupt(), status.error(), client.error().id_not_found()), (1, 1, 1));
    assert_eq!(
        [command::LBA_LOW, command::LBA_MID].map(|register| client.get(register.offset())),
        [0xff, 0x07]
    );
    assert_eq!(client.dma(&read(2047, 1), true, 512).1.0, 0x50);
    client.is_blameless();
}

#[test]
fn a_channel_without_drives_floats() {
    let mut client = Client::open("sim:ide");
    client.select(2);
    assert!(client.alternate_status().is_floating() && client.status().is_floating());
    assert_eq!(client.get(command::COUNT.offset()), 0x7f);
}

#[test]
fn a_master_answers_for_a_slave_that_is_not_there() {
    let mut client = Client::open("sim:ide");
    client.select(1);
    assert_eq!((client.alternate_status().0, client.status().0), (0, 0));
    client.put(command::COUNT.offset(), 0x55);
    assert_eq!(client.get(command::COUNT.offset()), 0x55);
    client.start(&identify());
    assert_eq!((client.alternate_status().0, client.taken()), (0, 0));
    client.select(0);
    assert_eq!(client.alternate_status().0, 0x50);
}

#[test]
fn a_reset_leaves_each_drives_signature() {
    let mut client = Client::open("sim:ide,disks=1,cdrom=on");
    client.reset();
    for (drive, signature, status) in [(0, Signature::Ata, 0x50), (1, Signature::Atapi, 0)] {
        client.select(drive);
        assert_eq!(
            (client.signature(), client.alternate_status().0, client.error().0),
            (signature, status, 1)
        );
    }
    client.is_blameless();
}

#[test]
fn a_packet_drive_aborts_identify_with_its_signature() {
    let client = Client::open("sim:ide,disks=0,cdrom=on");
    client.start(&identify());
    assert_eq!((client.status().error(), client.error().aborted()), (1, 1));
    assert_eq!(
        [command::LBA_MID, command::LBA_HIGH].map(|register| client.get(register.offset())),
        [0x14, 0xeb]
    );
}

#[test]
fn drives_are_busy_while_they_are_reset() {
    let client = Client::open("sim:ide,ready=5ms");
    client.control(DeviceControl(0).with_software_reset(1));
    assert_eq!(client.alternate_status().busy(), 1);
    std::thread::sleep(std::time::Duration::from_micros(5));
    client.control(DeviceControl(0));
    assert_eq!(client.alternate_status().busy(), 1);
    assert_eq!(client.idle().0, 0x50);
    client.is_blameless();
}

#[test]
fn a_reset_forgets_the_command_and_selects_the_master() {
    let mut client = Client::open("sim:ide,disks=2");
    client.select(1);
    client.handle.set_timing(Timing::Held);
    client.start(&task(opcode::READ_PIO, 0, 1, false));
    assert_eq!((client.alternate_status().busy(), client.handle.held()), (1, 1));
    client.reset();
    assert_eq!((client.alternate_status().0, client.handle.held()), (0x50, 0));
    assert_eq!(client.get(command::DEVICE.offset()) & device::SLAVE, 0);
}

#[test]
fn each_channel_in_compatibility_mode_has_an_interrupt_of_its_own() {
    let mut client = Client::open("sim:ide,disks=4");
    assert_eq!(client.irqs.len(), 2);
    for drive in [2, 0] {
        client.select(drive);
        client.dma(&read(0, 1), true, 512);
        assert_eq!(client.taken(), 1);
    }
    client.is_blameless();
}

#[test]
fn isa_interrupts_are_edges() {
    let client = Client::open("sim:ide");
    client.dma_without_status(&read(0, 1), true, 512);
    assert_eq!((client.taken(), client.taken()), (1, 0));
    client.dma_without_status(&read(0, 1), true, 512);
    assert_eq!(client.taken(), 1, "a command takes the interrupt of the last one back");
}

#[test]
fn an_edge_that_comes_while_it_is_masked_is_kept() {
    let client = Client::open("sim:ide");
    client.irqs[0].mask().unwrap();
    client.dma(&read(0, 1), true, 512);
    assert_eq!(client.irqs[0].take().unwrap(), 0);
    client.irqs[0].unmask().unwrap();
    assert_eq!(client.taken(), 1);
}

#[test]
fn channels_in_native_mode_share_a_pin_that_is_a_level() {
    let mut client = Client::open("sim:ide,chip=cmd646,disks=4");
    assert_eq!(client.irqs.len(), 1);
    for drive in [2, 0] {
        client.select(drive);
        client.dma_without_status(&read(0, 1), true, 512);
        assert_eq!((client.taken(), client.taken()), (1, 1));
        client.status();
        client.taken();
        assert_eq!(client.taken(), 0);
    }
    client.is_blameless();
}

#[test]
fn reading_the_status_takes_the_interrupt_back_and_looking_at_it_does_not() {
    let client = Client::open("sim:ide,chip=cmd646");
    client.start(&feature(opcode::FEATURE_ENABLE_CACHE, 0));
    client.alternate_status();
    assert_eq!((client.taken(), client.taken()), (1, 1));
    client.status();
    client.taken();
    assert_eq!(client.taken(), 0);
}

#[test]
fn a_drive_that_must_not_interrupt_waits_until_it_may() {
    let client = Client::open("sim:ide");
    client.control(DeviceControl(0).with_interrupts_off(1));
    let (master, status) = client.dma_without_status(&read(0, 1), true, 512);
    assert_eq!((master.interrupt(), status.0, client.taken()), (0, 0x50, 0));
    client.control(DeviceControl(0));
    assert_eq!((client.taken(), client.master_status().interrupt()), (1, 1));
}

#[test]
fn cmds_chips_keep_interrupts_until_they_are_cleared() {
    let mut client = Client::open("sim:ide,chip=cmd646,disks=4");
    let mode = |client: &Client| Mode(client.master.read8(cmd64x::MODE.offset()));
    for (drive, latched) in
        [(0, Mode(0).with_primary_interrupt(1)), (2, Mode(0).with_secondary_interrupt(1))]
    {
        client.select(drive);
        client.dma(&read(0, 1), true, 512);
        assert_eq!(mode(&client), latched);
        assert_eq!(client.device.config_read(0x71, 1), u32::from(latched.0));
        client.master.write8(cmd64x::MODE.offset(), latched.0);
        assert_eq!(mode(&client), Mode(0));
    }
    client.dma(&read(0, 1), true, 512);
    assert_eq!(
        client.device.config_read(cmd64x::ADDRESS_SETUP_23, 1),
        cmd64x::ADDRESS_SETUP_23_INTERRUPT.into()
    );
    client
        .device
        .config_write(cmd64x::ADDRESS_SETUP_23, 1, cmd64x::ADDRESS_SETUP_23_INTERRUPT.into())
        .unwrap();
    assert_eq!(mode(&client), Mode(0));
    client.select(0);
    client.dma(&read(0, 1), true, 512);
    assert_eq!(
        client.device.config_read(cmd64x::CONFIGURATION, 1),
        cmd64x::CONFIGURATION_INTERRUPT.into()
    );
    client
        .device
        .config_write(cmd64x::CONFIGURATION, 1, cmd64x::CONFIGURATION_INTERRUPT.into())
        .unwrap();
    assert_eq!(mode(&client), Mode(0));
    client.is_blameless();
}

#[test]
fn a_blocked_channel_does_not_reach_the_pin() {
    let client = Client::open("sim:ide,chip=cmd646");
    client.master.write8(cmd64x::MODE.offset(), Mode(0).with_primary_blocked(1).0);
    client.dma_without_status(&read(0, 1), true, 512);
    assert_eq!(client.taken(), 0);
    client.master.write8(cmd64x::MODE.offset(), 0);
    assert_eq!(client.taken(), 1);
}

#[test]
fn channels_that_are_switched_off_are_not_decoded() {
    let mut client = Client::open("sim:ide,chip=piix4,disks=4");
    client.device.config_write(piix::timing(0), 2, 0).unwrap();
    assert!(client.alternate_status().is_floating());
    client.select(2);
    assert_eq!(client.alternate_status().0, 0x50);
    let mut client = Client::open("sim:ide,chip=cmd646,disks=4");
    client.device.config_write(cmd64x::CONTROL, 1, 0).unwrap();
    client.select(2);
    assert!(client.alternate_status().is_floating());
}

#[test]
fn timing_registers_keep_what_is_written() {
    let client = Client::open("sim:ide,chip=piix4");
    let write = |at, width, value| client.device.config_write(at, width, value).unwrap();
    write(piix::timing(0), 4, 0xa307_e3ff);
    write(piix::SLAVE_TIMING, 1, 0x5a);
    write(piix::ULTRA_DMA_CONTROL, 1, 0xff);
    write(piix::ULTRA_DMA_TIMING, 2, 0xffff);
    let read = |at, width| client.device.config_read(at, width);
    assert_eq!(
        (read(piix::timing(0), 2), read(piix::timing(1), 2), read(piix::SLAVE_TIMING, 1)),
        (0xe3ff, 0xa307, 0x5a)
    );
    assert_eq!((read(piix::ULTRA_DMA_CONTROL, 1), read(piix::ULTRA_DMA_TIMING, 2)), (0x0f, 0x3333));
    let client = Client::open("sim:ide,chip=piix3");
    client.device.config_write(piix::ULTRA_DMA_CONTROL, 1, 1).unwrap();
    assert_eq!(
        client.device.config_read(piix::ULTRA_DMA_CONTROL, 1),
        0,
        "the PIIX3 has no such register"
    );
    let client = Client::open("sim:ide,chip=cmd646");
    client.device.config_write(cmd64x::ultra_dma(1), 1, 0x11).unwrap();
    assert_eq!(client.device.config_read(cmd64x::ultra_dma(1), 1), 0x11);
}

#[test]
fn a_transfer_mode_is_kept_by_the_drive_and_told_to_the_chip() {
    let client = Client::open("sim:ide,chip=piix4,udma=2");
    client.start(&feature(opcode::FEATURE_TRANSFER_MODE, 0x42));
    assert_eq!((client.status().0, client.handle.transfer_mode(0)), (0x50, 0x42));
    assert_eq!(client.identify().ultra_dma() >> 8, 1 << 2);
    client.dma(&read(0, 1), true, 512);
    assert!(violation(&client).contains("the chip's register does not say so"));
    client.device.config_write(piix::ULTRA_DMA_CONTROL, 1, 1).unwrap();
    client.dma(&read(0, 1), true, 512);
    client.start(&feature(opcode::FEATURE_TRANSFER_MODE, 0x43));
    assert_eq!((client.status().error(), client.handle.transfer_mode(0)), (1, 0x42));
    assert_eq!(client.handle.violations().len(), 1);
}

#[test]
fn a_mode_beyond_the_chip_is_noted() {
    for (chip, mode, says) in [
        ("piix3", 0, "the chip has none"),
        ("piix4", 3, "the chip has 2 at best"),
        ("cmd646", 4, "the chip has 2 at best"),
    ] {
        let client = Client::open(&format!("sim:ide,chip={chip}"));
        client.start(&feature(opcode::FEATURE_TRANSFER_MODE, 0x40 | mode));
        assert!(violation(&client).contains(says), "{chip}");
    }
}

#[test]
fn a_bus_master_that_has_done_all_says_so() {
    let client = Client::open("sim:ide");
    assert_eq!(client.dma(&read(0, 300), true, 300 * 512), (DONE, ring3_spec::ata::Status(0x50)));
    client.is_blameless();
}

#[test]
fn the_bus_master_may_be_started_before_the_command() {
    let client = Client::open("sim:ide");
    client.put_table(&client.regions(512));
    client.start_master(true);
    assert_eq!(client.master_status().active(), 1);
    client.start(&read(0, 1));
    assert_eq!(client.master_status(), DONE);
    client.is_blameless();
}

#[test]
fn a_table_that_is_longer_than_the_transfer_stays_active() {
    let client = Client::open("sim:ide");
    client.put_table(&client.regions(1024));
    client.start(&read(0, 1));
    client.start_master(true);
    assert_eq!((client.master_status(), client.alternate_status().0), (DONE.with_active(1), 0x50));
    client.stop_master();
    assert_eq!(client.master_status(), DONE);
    client.is_blameless();
}

#[test]
fn a_table_that_is_shorter_than_the_transfer_ends_without_an_interrupt() {
    let client = Client::open("sim:ide");
    client.put_table(&client.regions(512));
    client.start(&read(0, 2));
    client.start_master(true);
    assert_eq!(
        (client.master_status(), client.alternate_status().data_request(), client.taken()),
        (BusMasterStatus(0), 1, 0)
    );
    assert!(violation(&client).contains("ends before the command's data"));
}

#[test]
fn memory_that_is_not_reached_is_an_error_of_the_bus_master() {
    let client = Client::open("sim:ide");
    client.put_table(&[Prd::new(0xdead_0000, 512).unwrap()]);
    client.start(&read(0, 1));
    client.start_master(true);
    assert_eq!((client.master_status(), client.taken()), (BusMasterStatus(0).with_error(1), 0));
    client.stop_master();
    client.reset();
    assert_eq!(client.dma(&read(0, 1), true, 512), (DONE, ring3_spec::ata::Status(0x50)));
    client.is_blameless();
}

#[test]
fn a_region_across_64_kib_wraps_and_is_noted() {
    let client = Client::open("sim:ide");
    client.fill(0);
    client.handle.poke(0, 0, &[7; 512]);
    client.put_table(&[]);
    let region = (client.buffer.iova() + 0xff00) | 512 << 32 | 1 << 63;
    client.table.write(0, &region.to_le_bytes()).unwrap();
    client.start(&read(0, 1));
    client.start_master(true);
    assert_eq!(
        (client.bytes(0xff00, 256), client.bytes(0, 257)),
        (vec![7; 256], [vec![7; 256], vec![0]].concat())
    );
    assert!(violation(&client).contains("a region of the bus master's table crosses"));
}

#[test]
fn a_table_across_64_kib_is_noted() {
    let client = Client::open("sim:ide");
    let (table, region) =
        (0x1_0000 - Prd::SIZE, |at| Prd::new(client.buffer.iova() + at, 256).unwrap());
    for (at, region) in [(table, region(0)), (table + Prd::SIZE, region(512).with_last())] {
        client.buffer.write(at, &region.into_raw().to_le_bytes()).unwrap();
    }
    client
        .master
        .write32(bus_master::table(0).offset(), client.buffer.iova() as u32 + table as u32);
    client.start(&read(0, 1));
    client.start_master(true);
    assert!(violation(&client).contains("table crosses a multiple of 64 KiB"));
}

#[test]
fn the_drives_bits_of_the_bus_master_are_kept_and_the_others_cleared_by_ones() {
    let client = Client::open("sim:ide");
    client.dma(&read(0, 1), true, 512);
    let status = bus_master::status(0).offset();
    client.master.write8(status, BusMasterStatus(0).with_drive0_dma(1).0);
    assert_eq!(client.master_status(), DONE.with_drive0_dma(1));
    client.master.write8(status, DONE.0);
    assert_eq!(client.master_status(), BusMasterStatus(0));
}

#[test]
fn rules_of_the_ports_are_watched() {
    let rules: [Rule; 8] = [
        ("written while BSY or DRQ is set", |client| {
            client.start(&task(opcode::READ_PIO, 0, 1, false));
            client.put(command::COMMAND.offset(), opcode::FLUSH);
        }),
        ("the data port is accessed", |client| assert_eq!(client.data_port(), 0xffff)),
        ("the bus master was not started", |client| {
            client.start(&read(0, 1));
            client.reset();
        }),
        ("the bus master was not stopped", |client| {
            client.put_table(&client.regions(512));
            client.start_master(true);
            client.start(&read(0, 1));
            client.start(&read(0, 1));
        }),
        ("direction is not the command's", |client| {
            client.put_table(&client.regions(512));
            client.start(&write(0, 1));
            client.start_master(true);
        }),
        ("direction is changed", |client| {
            client.start_master(true);
            client.start_master(false);
        }),
        ("table is changed while it is active", |client| {
            client.start_master(true);
            client.master.write32(bus_master::table(0).offset(), 0);
        }),
        ("less than 5 microseconds", |client| client.pulse_reset()),
    ];
    for (says, breaks) in rules {
        let client = Client::open("sim:ide");
        breaks(&client);
        assert!(violation(&client).contains(says), "{says}: {:?}", client.handle.violations());
    }
}

#[test]
fn only_one_port_of_the_control_block_is_the_controllers() {
    let client = Client::open("sim:ide");
    assert_eq!(client.device.bar(1).unwrap().read8(0), 0xff);
    assert!(violation(&client).contains("control block"));
}

#[test]
fn what_was_not_flushed_is_lost_with_the_power() {
    let client = Client::open("sim:ide");
    client.write_bytes(0, 1, 1);
    client.start(&task(opcode::FLUSH, 0, 0, false));
    client.status();
    client.write_bytes(1, 1, 2);
    client.fill(3);
    client.dma(&TaskFile { command: opcode::WRITE_DMA_FUA_EXT, ..write(2, 1) }, false, 512);
    client.handle.lose_power();
    assert_eq!([0, 1, 2].map(|lba| client.peek(lba)), [1, 0, 3]);
    client.is_blameless();
}

#[test]
fn trimmed_blocks_read_as_zeroes() {
    let client = Client::open("sim:ide");
    client.write_bytes(0, 16, 7);
    client.fill(0);
    client.buffer.write(0, &TrimRange { lba: 4, blocks: 8 }.to_bytes()).unwrap();
    let trim = TaskFile {
        features: opcode::DSM_TRIM.into(),
        ..task(opcode::DATA_SET_MANAGEMENT, 0, 1, true)
    };
    assert_eq!(client.dma(&trim, false, 512).1.0, 0x50);
    assert_eq!([3, 4, 11, 12].map(|lba| client.peek(lba)), [7, 0, 0, 7]);
    client.is_blameless();
}

#[test]
fn delayed_commands_keep_the_drive_busy_and_end_by_themselves() {
    let client = Client::open("sim:ide,delay=2ms");
    client.start(&task(opcode::READ_PIO, 0, 1, false));
    assert_eq!(client.alternate_status().busy(), 1);
    assert_eq!(client.idle().data_request(), 1);
    assert_eq!(client.taken(), 1);
}

#[test]
fn the_host_s_accesses_are_counted() {
    let client = Client::open("sim:ide");
    let before = client.handle.counters();
    client.start(&task(opcode::READ_PIO, 0, 1, false));
    client.take(512, 512);
    let after = client.handle.counters();
    assert_eq!((after.writes - before.writes, after.reads - before.reads), (7, 3 + 256));
    assert_eq!(
        (after.doorbells, after.commands, after.admin_commands, after.interrupts),
        (1, 1, 0, 1)
    );
}

#[test]
fn a_drive_that_is_pulled_out_floats_until_it_is_put_back() {
    let client = Client::open("sim:ide");
    client.handle.unplug(0);
    assert!(client.alternate_status().is_floating());
    client.handle.plug(0);
    assert_eq!(client.alternate_status().0, 0x50);
}

#[test]
fn interrupts_that_are_not_there_are_refused() {
    let client = Client::open("sim:ide");
    assert!(client.device.irqs(IrqKind::Intx, 3).is_err());
    assert!(client.device.irqs(IrqKind::Msi, 1).is_err());
}
