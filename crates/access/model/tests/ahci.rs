//! The simulated AHCI controller, seen by a raw client that is not the driver.

mod raw_ahci;

use std::time::Duration;

use raw_ahci::{ALL, Client, identify, queued, read, task, write};
use ring3_device::irq::IrqKind;
use ring3_model::Timing;
use ring3_spec::ahci::fis::QueuedErrorLog;
use ring3_spec::ahci::port::{self, Command, Interrupts, SataControl, SataError, SataStatus};
use ring3_spec::ahci::registers::{self, Control, Handoff};
use ring3_spec::ahci::{BAR, CLASS, CommandHeader, HeaderFlags, Region};
use ring3_spec::ata::{Signature, TaskFile, TrimRange, log, opcode};
use ring3_spec::pci;

/// What a violation says, and how to earn it.
type Rule = (&'static str, fn(&Client));
type HeaderRule = (&'static str, fn(&mut CommandHeader) -> &mut CommandHeader);

/// The one thing that the client did wrong.
fn violation(client: &Client) -> String {
    let violations = client.handle().violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    violations[0].clone()
}

#[test]
fn the_function_is_an_ahci_controller_with_messages_and_a_pin() {
    let client = Client::open("sim:ahci", None);
    assert_eq!(client.device.config_read(8, 4) >> 8, CLASS);
    assert_eq!(
        client.device.config_read(u64::from(client.device.config_read(pci::CAPABILITIES, 1)), 1),
        u32::from(pci::CAP_MSI)
    );
    let limits = client.device.irq_limits();
    assert_eq!((limits.intx, limits.msi, limits.msix), (1, 1, 0));
    assert!(client.device.bar(0).is_err() && client.device.bar(BAR).is_ok());
}

#[test]
fn capabilities_say_what_was_asked_for() {
    let client = Client::open("sim:ahci,ports=3,slots=8,ncq=off,wide=off", None);
    let capabilities = client.get(registers::CAPABILITIES);
    assert_eq!((capabilities.ports_0based(), capabilities.slots_0based()), (2, 7));
    assert_eq!((capabilities.queued(), capabilities.wide()), (0, 0));
    assert_eq!(client.get(registers::PORTS), 0b111);
    assert_eq!(client.get(registers::VERSION), 0x0001_0301);
}

#[test]
fn firmware_gives_the_controller_away_when_the_system_asks() {
    let client = Client::open("sim:ahci,handoff=on", None);
    assert_eq!(
        (client.get(registers::CAPABILITIES2).handoff(), client.get(registers::HANDOFF).firmware()),
        (1, 1)
    );
    client.set(registers::HANDOFF, Handoff(0).with_system(1));
    assert_eq!(client.get(registers::HANDOFF), Handoff(0).with_system(1));
}

#[test]
fn a_reset_can_take_its_time() {
    let client = Client::open("sim:ahci,ready=5ms", None);
    client.enable();
    client.set(registers::CONTROL, Control(0).with_reset(1));
    assert_eq!(client.get(registers::CONTROL).reset(), 1);
    client.wait_for(|client| client.get(registers::CONTROL).reset() == 0);
}

#[test]
fn a_drive_says_its_signature_when_somebody_receives_frames() {
    let client = Client::open("sim:ahci", None);
    assert_eq!((client.status().status().busy(), client.get(port::signature(0))), (1, u32::MAX));
    client.enable();
    client.listen();
    assert_eq!((client.status().status().0, client.status().error().0), (0x50, 1));
    assert_eq!(Signature::from_raw(client.get(port::signature(0))), Signature::Ata);
}

#[test]
fn other_drives_have_other_signatures_and_take_no_command() {
    let mut client = Client::open("sim:ahci,disks=0,cdrom=on,multiplier=on", None);
    client.enable();
    for (port, signature) in [(0, Signature::Atapi), (5, Signature::PortMultiplier)] {
        client.port = port;
        client.start();
        assert_eq!(Signature::from_raw(client.get(port::signature(port))), signature);
        assert_eq!(client.run(&identify(), false, 512).error().aborted(), 1);
    }
    client.is_blameless();
}

#[test]
fn a_reset_of_the_link_resets_the_drive() {
    let client = Client::ready("sim:ahci");
    client.stop();
    client.set(port::sata_control(0), SataControl(0).with_detection(1));
    assert_eq!((client.link().detection(), client.status().status_bits()), (0, 0x7f));
    std::thread::sleep(Duration::from_millis(1));
    client.set(port::sata_control(0), SataControl(0));
    assert_eq!((client.link().detection(), client.link().power()), (SataStatus::LINKED, 1));
    assert_eq!(client.status().status().0, 0x50);
    let happened = client.happened();
    assert_eq!((happened.connect_change(), happened.phy_change()), (1, 1));
    client.is_blameless();
}

#[test]
fn changes_of_the_link_are_cleared_where_they_are_noted() {
    let client = Client::open("sim:ahci", None);
    client.enable();
    client.set(port::interrupt_status(0), Interrupts(ALL));
    assert_eq!((client.happened().connect_change(), client.happened().phy_change()), (1, 1));
    client.set(port::sata_error(0), SataError(ALL));
    assert_eq!(client.happened(), Interrupts(0));
}

#[test]
fn a_reset_of_the_link_that_is_too_short_is_noted() {
    let client = Client::ready("sim:ahci");
    client.stop();
    client.set(port::sata_control(0), SataControl(0).with_detection(1));
    client.set(port::sata_control(0), SataControl(0));
    assert!(violation(&client).contains("less than a millisecond"));
}

#[test]
fn a_software_reset_comes_in_two_frames() {
    let client = Client::ready("sim:ahci");
    for control in [1 << 2, 0] {
        client.put(0, &identify(), false, 0, 512);
        client.tables.write(1, &[0]).unwrap();
        client.tables.write(15, &[control]).unwrap();
        client.issue(1);
        assert_eq!(client.issued(), 0);
    }
    assert_eq!(
        (client.status().status().0, client.frame().error(), client.frame().count()),
        (0x50, 1, 1)
    );
    assert!(client.identify().is_ata());
}

#[test]
fn a_disk_says_who_it_is() {
    let client = Client::ready("sim:ahci,size=1M,depth=8,multiple=4");
    let identify = client.identify();
    assert!(
        identify.is_ata()
            && identify.is_intact()
            && identify.has_lba48()
            && identify.has_flush_ext()
    );
    assert!(
        identify.has_fua()
            && identify.has_trim()
            && identify.cache_enabled()
            && identify.has_smart()
    );
    assert_eq!(
        (
            identify.blocks(),
            identify.block_size(),
            identify.queue_depth(),
            identify.multiple_limit()
        ),
        (2048, 512, 8, 4)
    );
    client.is_blameless();
}

#[test]
fn a_disk_can_be_without_what_the_user_switches_off() {
    let client = Client::ready("sim:ahci,size=1M,ncq=off,fua=off,trim=off,cache=off,block=4096");
    let identify = client.identify();
    assert!(!identify.has_fua() && !identify.has_trim() && !identify.cache_enabled());
    assert_eq!((identify.blocks(), identify.block_size(), identify.queue_depth()), (256, 4096, 0));
    let client = Client::ready("sim:ahci,lba48=off");
    assert!(!client.identify().has_lba48());
    assert_eq!(client.run(&read(0, 1), false, 512).error().aborted(), 1);
}

#[test]
fn each_kind_of_command_ends_with_a_frame_of_its_own() {
    let client = Client::ready("sim:ahci");
    let what = |run: &dyn Fn()| {
        client.set(port::interrupt_status(0), Interrupts(ALL));
        run();
        client.happened()
    };
    assert_eq!(what(&|| assert!(client.identify().is_ata())), Interrupts(0).with_pio_frame(1));
    assert_eq!(
        what(&|| assert!(!client.run(&read(0, 1), false, 512).status().failed())),
        Interrupts(0).with_register_frame(1)
    );
    let queued = || assert!(!client.run_queued(opcode::READ_QUEUED, 0, 1, 512).status().failed());
    assert_eq!(what(&queued), Interrupts(0).with_device_bits(1));
}

#[test]
fn the_end_of_a_command_is_a_message() {
    let client = Client::ready("sim:ahci");
    client.run(&identify(), false, 512);
    assert_eq!((client.taken(), client.get(registers::INTERRUPT_STATUS)), (1, 1));
}

#[test]
fn the_end_of_a_command_asserts_the_pin() {
    let client = Client::open("sim:ahci,msi=off", Some(IrqKind::Intx));
    assert_eq!(client.device.irq_limits().msi, 0);
    client.enable();
    client.start();
    client.irqs[0].unmask().unwrap();
    client.run(&read(0, 1), false, 512);
    assert_eq!(client.taken(), 1);
    client.irqs[0].unmask().unwrap();
    assert_eq!(client.taken(), 1, "nobody has taken it back");
    client.acknowledge();
    client.irqs[0].unmask().unwrap();
    assert_eq!(client.taken(), 0);
}

#[test]
fn there_is_no_other_message_before_the_first_was_acknowledged() {
    let client = Client::ready("sim:ahci");
    client.run(&read(0, 1), false, 512);
    client.run(&read(0, 1), false, 512);
    assert_eq!(client.taken(), 1);
    client.acknowledge();
    client.run(&read(0, 1), false, 512);
    assert_eq!(client.taken(), 1);
}

#[test]
fn what_the_port_still_says_comes_again_when_only_the_controller_was_acknowledged() {
    let client = Client::ready("sim:ahci");
    client.run(&read(0, 1), false, 512);
    client.set(registers::INTERRUPT_STATUS, 1);
    assert_eq!((client.taken(), client.get(registers::INTERRUPT_STATUS)), (2, 1));
}

#[test]
fn commands_that_are_not_queued_are_done_one_by_one() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    for slot in [3, 4, 5] {
        client.put(slot, &read(0, 1), false, 0, 512);
    }
    client.issue(0b111 << 3);
    for (left, slot) in [(0b111, 3), (0b110, 4), (0b100, 5)] {
        assert_eq!(
            (client.handle().held(), client.issued(), client.status().status().busy()),
            (1, left << 3, 1)
        );
        assert_eq!(client.get(port::command(0)).0 >> 8 & 0x1f, slot);
        client.handle().release_one();
    }
    assert_eq!((client.issued(), client.status().status().0), (0, 0x50));
    client.is_blameless();
}

#[test]
fn queued_commands_are_taken_together_and_end_in_any_order() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    for tag in 0..4 {
        client.put(tag, &queued(opcode::READ_QUEUED, 0, 1, tag), false, 0, 512);
    }
    client.issue_queued(0b1111);
    assert_eq!((client.issued(), client.active(), client.handle().held()), (0, 0b1111, 4));
    assert!(client.handle().release_tag(0, 2));
    assert_eq!(client.active(), 0b1011);
    assert_eq!(client.handle().release(), 3);
    assert_eq!(client.active(), 0);
    client.is_blameless();
}

#[test]
fn delayed_commands_end_by_themselves() {
    let client = Client::ready("sim:ahci,delay=1ms");
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    assert_eq!(client.active(), 1);
    client.wait_for(|client| client.active() == 0);
}

#[test]
fn stopping_a_port_forgets_its_commands() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    client.stop();
    assert_eq!((client.issued(), client.active(), client.handle().held()), (0, 0, 0));
}

#[test]
fn a_command_beyond_the_end_stops_the_port_until_it_is_started_again() {
    let client = Client::ready("sim:ahci,size=1M");
    let status = client.run(&read(2048, 1), false, 512);
    assert_eq!((status.status().error(), status.error().id_not_found()), (1, 1));
    assert_eq!((client.happened().task_file_error(), client.issued()), (1, 1));
    client.put(1, &read(0, 1), false, 0, 512);
    client.issue(2);
    assert_eq!(client.issued(), 3);
    client.recover();
    assert!(!client.run(&read(0, 1), false, 512).status().failed());
    client.is_blameless();
}

#[test]
fn a_queued_command_that_fails_takes_the_others_with_it_and_the_log_names_it() {
    let client = Client::ready("sim:ahci,size=1M");
    client.handle().set_timing(Timing::Held);
    for (tag, lba) in [(0, 0), (5, 2048), (6, 0)] {
        client.put(tag, &queued(opcode::READ_QUEUED, lba, 1, tag), false, 0, 512);
    }
    client.issue_queued(0b110_0001);
    client.handle().release_tag(0, 5);
    client.handle().set_timing(Timing::Inline);
    assert_eq!(
        (client.happened().task_file_error(), client.active(), client.handle().held()),
        (1, 0b110_0001, 0)
    );
    client.recover();
    assert_eq!(
        client.run(&read(0, 1), false, 512).error().aborted(),
        1,
        "nothing goes before the log was read"
    );
    client.recover();
    client.run(&task(opcode::READ_LOG_EXT, log::QUEUED_ERROR.into(), 1), false, 512);
    let page = QueuedErrorLog::from_bytes(&client.bytes(0, 512)).unwrap();
    assert_eq!((page.tag(), page.error()), (Some(5), 0x10));
    assert_eq!(page.0.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    assert!(!client.run_queued(opcode::READ_QUEUED, 0, 1, 512).status().failed());
    client.run(&task(opcode::READ_LOG_DMA_EXT, log::QUEUED_ERROR.into(), 1), false, 512);
    assert_eq!(QueuedErrorLog::from_bytes(&client.bytes(0, 512)).unwrap().tag(), None);
    client.is_blameless();
}

#[test]
fn a_command_among_queued_ones_ends_them_all_and_is_noted() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    client.put(1, &read(0, 1), false, 0, 512);
    client.issue(2);
    assert_eq!(
        (
            client.status().error().aborted(),
            client.happened().task_file_error(),
            client.handle().held()
        ),
        (1, 1, 0)
    );
    assert!(client.handle().violations()[0].contains("in flight together"));
}

#[test]
fn a_queued_command_behind_another_is_noted() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &read(0, 1), false, 0, 512);
    client.issue(1);
    client.put(1, &queued(opcode::READ_QUEUED, 0, 1, 1), false, 0, 512);
    client.issue_queued(2);
    assert!(violation(&client).contains("in flight together"));
}

#[test]
fn a_drive_that_has_commands_of_a_stopped_port_must_be_reset() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    client.handle().set_timing(Timing::Inline);
    client.recover();
    assert_eq!(client.run(&read(0, 1), false, 512).error().aborted(), 1);
    client.stop();
    client.reset_link();
    client.start();
    assert!(!client.run(&read(0, 1), false, 512).status().failed());
}

#[test]
fn rules_of_the_issue_registers_are_watched() {
    let rules: [Rule; 5] = [
        ("PxCI written while PxCMD.ST is clear", |client| {
            client.stop();
            client.issue(1);
        }),
        ("PxSACT written while PxCMD.ST is clear", |client| {
            client.stop();
            client.set(port::active(0), 1);
        }),
        ("PxSACT before PxCI", |client| {
            client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
            client.issue(1);
        }),
        ("must be the slot's number", |client| {
            client.put(1, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
            client.issue_queued(2);
        }),
        ("a slot that there is not", |client| client.issue(1 << 16)),
    ];
    for (says, breaks) in rules {
        let client = Client::ready("sim:ahci,slots=16");
        breaks(&client);
        assert!(violation(&client).contains(says), "{says}: {:?}", client.handle().violations());
    }
}

#[test]
fn a_bit_in_pxsact_that_comes_after_pxci_is_noted() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &read(0, 1), false, 0, 512);
    client.issue(1);
    client.set(port::active(0), 1);
    assert!(violation(&client).contains("PxSACT set after PxCI"));
}

#[test]
fn rules_of_the_command_register_are_watched() {
    let rules: [Rule; 4] = [
        ("ST set while FRE is clear", |client| {
            client.stop();
            client.set(port::command(0), Command(0));
            client.set(port::command(0), Command(0).with_start(1));
        }),
        ("PxCMD.CLO set while ST is set", |client| {
            client.set(
                port::command(0),
                Command(0).with_receive(1).with_start(1).with_override_busy(1),
            );
        }),
        ("PxCLB written while PxCMD.ST is set", |client| client.set(port::command_list(0), 0)),
        ("PxSCTL.DET changed while PxCMD.ST is set", |client| {
            client.set(port::sata_control(0), SataControl(4))
        }),
    ];
    for (says, breaks) in rules {
        let client = Client::ready("sim:ahci");
        breaks(&client);
        assert!(violation(&client).contains(says), "{says}: {:?}", client.handle().violations());
    }
}

#[test]
fn rules_of_headers_and_tables_are_watched() {
    let rules: [HeaderRule; 3] = [
        ("not at a multiple of 128", |header| header.set_table(header.table() + 64)),
        ("CFL is 4", |header| header.set_flags(HeaderFlags(header.flags()).with_frame_dwords(4).0)),
        ("W bit", |header| header.set_flags(HeaderFlags(header.flags()).with_write(1).0)),
    ];
    for (says, breaks) in rules {
        let client = Client::ready("sim:ahci");
        client.put(0, &read(0, 1), false, 0, 512);
        let mut header = client.header(0);
        breaks(&mut header);
        client.list.write(0, &header.0).unwrap();
        client.issue(1);
        assert!(violation(&client).contains(says), "{says}: {:?}", client.handle().violations());
    }
}

#[test]
fn regions_that_are_too_short_overflow() {
    let client = Client::ready("sim:ahci");
    client.run(&read(0, 2), false, 512);
    assert_eq!((client.happened().overflow(), client.moved(0)), (1, 512));
    assert!(violation(&client).contains("the regions have 512 bytes, the command moves 1024"));
}

#[test]
fn memory_that_is_not_reached_stops_the_port_and_leaves_the_drive_waiting() {
    let client = Client::ready("sim:ahci");
    client.put_regions(0, &read(0, 1), false, &[Region::new(0xdead_0000, 512).unwrap()]);
    client.issue(1);
    assert_eq!(
        (client.happened().memory_fatal(), client.issued(), client.status().status().busy()),
        (1, 1, 1)
    );
    assert_eq!(client.handle().faults()[0].iova, 0xdead_0000);
    client.stop();
    client.reset_link();
    client.start();
    assert!(!client.run(&read(0, 1), false, 512).status().failed());
    client.is_blameless();
}

#[test]
fn frames_that_cannot_be_written_stop_the_port() {
    let client = Client::open("sim:ahci", None);
    client.enable();
    client.start();
    client.set(port::command(0), Command(0));
    client.set(port::received(0), 0xdead_0000);
    client.set(port::command(0), Command(0).with_receive(1).with_start(1));
    client.put(0, &read(0, 1), false, 0, 512);
    client.issue(1);
    assert_eq!(client.happened().memory_fatal(), 1);
}

#[test]
fn a_region_at_an_odd_address_is_noted() {
    let client = Client::ready("sim:ahci");
    client.put(0, &read(0, 1), false, 0, 512);
    client.tables.write(0x80, &(client.buffer.iova() | 1).to_le_bytes()).unwrap();
    client.issue(1);
    assert!(violation(&client).contains("odd address"));
}

#[test]
fn a_busy_bit_can_be_overridden_while_the_port_stands() {
    let client = Client::ready("sim:ahci");
    client.handle().set_timing(Timing::Held);
    client.put(0, &read(0, 1), false, 0, 512);
    client.issue(1);
    client.stop();
    assert_eq!(client.status().status().busy(), 1);
    client.set(port::command(0), Command(0).with_receive(1).with_override_busy(1));
    assert_eq!(
        (client.status().status().busy(), client.get(port::command(0)).override_busy()),
        (0, 0)
    );
}

#[test]
fn what_was_not_flushed_is_lost_with_the_power() {
    let client = Client::ready("sim:ahci");
    let flush = task(opcode::FLUSH_EXT, 0, 0);
    client.write_bytes(0, 1, 1);
    client.run(&flush, false, 0);
    client.write_bytes(1, 1, 2);
    client.fill(3);
    client.run(&TaskFile { command: opcode::WRITE_DMA_FUA_EXT, ..write(2, 1) }, true, 512);
    client.put(0, &queued(opcode::WRITE_QUEUED, 3, 1, 0), true, 0, 512);
    client.tables.write(7, &[0xc0]).unwrap();
    client.issue_queued(1);
    assert_eq!([0, 1, 2, 3].map(|lba| client.peek(lba)), [1, 2, 3, 3]);
    client.handle().lose_power();
    assert_eq!([0, 1, 2, 3].map(|lba| client.peek(lba)), [1, 0, 3, 3]);
}

#[test]
fn without_its_cache_the_drive_loses_nothing() {
    let client = Client::ready("sim:ahci");
    let feature = |feature: u8| TaskFile {
        command: opcode::SET_FEATURES,
        features: feature.into(),
        ..TaskFile::default()
    };
    client.write_bytes(0, 1, 1);
    client.run(&feature(opcode::FEATURE_DISABLE_CACHE), false, 0);
    assert!(!client.identify().cache_enabled());
    client.write_bytes(1, 1, 2);
    client.run(&feature(opcode::FEATURE_ENABLE_CACHE), false, 0);
    assert!(client.identify().cache_enabled());
    client.handle().lose_power();
    assert_eq!([0, 1].map(|lba| client.peek(lba)), [1, 2]);
}

#[test]
fn trimmed_blocks_read_as_zeroes() {
    let client = Client::ready("sim:ahci,size=1M");
    client.write_bytes(0, 16, 7);
    let trim =
        TaskFile { features: opcode::DSM_TRIM.into(), ..task(opcode::DATA_SET_MANAGEMENT, 0, 1) };
    client.fill(0);
    client.buffer.write(0, &TrimRange { lba: 4, blocks: 8 }.to_bytes()).unwrap();
    assert!(!client.run(&trim, true, 512).status().failed());
    assert_eq!([3, 4, 11, 12].map(|lba| client.peek(lba)), [7, 0, 0, 7]);
    client.buffer.write(8, &TrimRange { lba: 2047, blocks: 2 }.to_bytes()).unwrap();
    assert_eq!(client.run(&trim, true, 512).error().id_not_found(), 1);
    client.recover();
    assert_eq!(client.run(&TaskFile { features: 0, ..trim }, true, 512).error().aborted(), 1);
}

#[test]
fn what_the_drive_does_not_know_it_aborts() {
    let client = Client::ready("sim:ahci,ncq=off,fua=off");
    let commands = [
        task(opcode::IDENTIFY_PACKET, 0, 0),
        task(opcode::NOP, 0, 0),
        task(0x87, 0, 0),
        task(opcode::READ_MULTIPLE, 0, 1),
        task(opcode::WRITE_DMA_FUA_EXT, 0, 1),
        task(opcode::READ_LOG_EXT, 0x10, 1),
        TaskFile { device: 0, ..read(0, 1) },
    ];
    for command in commands {
        assert_eq!(client.run(&command, false, 512).error().aborted(), 1, "{command:x?}");
        client.recover();
    }
}

#[test]
fn a_controller_of_32_bits_drops_the_upper_half_of_addresses() {
    let client = Client::open("sim:ahci,wide=off", None);
    client.enable();
    client.set(port::command_list_high(0), 1);
    assert_eq!(client.get(port::command_list_high(0)), 0);
    assert!(client.buffer.iova() + client.buffer.len() as u64 <= 1 << 32);
}

#[test]
fn lists_lie_at_multiples_of_their_size() {
    let client = Client::open("sim:ahci", None);
    client.enable();
    client.set(port::command_list(0), 0xffff_ffff);
    client.set(port::received(0), 0xffff_ffff);
    assert_eq!(
        (client.get(port::command_list(0)), client.get(port::received(0))),
        (0xffff_fc00, 0xffff_ff00)
    );
}

#[test]
fn registers_want_whole_dwords_and_an_enabled_controller() {
    let client = Client::open("sim:ahci", None);
    client.set(port::interrupt_enable(0), Interrupts(0));
    client.bar.write8(0, 1);
    let violations = client.handle().violations();
    assert!(
        violations[0].contains("GHC.AE is clear") && violations[1].contains("whole dwords"),
        "{violations:?}"
    );
}

#[test]
fn the_host_s_accesses_are_counted() {
    let client = Client::ready("sim:ahci");
    let before = client.handle().counters();
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    let after = client.handle().counters();
    assert_eq!(
        (after.writes - before.writes, after.reads, after.doorbells - before.doorbells),
        (2, before.reads, 1)
    );
    assert_eq!(
        (after.commands - before.commands, after.admin_commands, after.interrupts),
        (1, 0, before.interrupts + 1)
    );
}

#[test]
fn a_drive_that_is_pulled_out_is_gone_until_it_is_put_back() {
    let client = Client::ready("sim:ahci");
    client.handle().unplug(0);
    assert_eq!(
        (client.link().detection(), client.happened().phy_change(), client.taken()),
        (0, 1, 1)
    );
    client.stop();
    client.handle().plug(0);
    assert_eq!(client.link().detection(), SataStatus::LINKED);
    client.start();
    assert!(client.identify().is_ata());
    client.is_blameless();
}
