//! What every AHCI controller does, register by register: the model and QEMU's say the same.

mod raw_ahci;

use raw_ahci::{Client, read};
use ring3_spec::ahci::Region;
use ring3_spec::ahci::port::{self, Command, SataStatus};
use ring3_spec::ahci::registers::{self, Control};
use ring3_spec::ata::{TaskFile, opcode};

/// Each controller with one disk of 1 MiB, its first port running.
fn ready(test: impl Fn(Client)) {
    for uri in ["sim:ahci,size=1M", "qtest:ich9-ahci,size=1M"] {
        println!("{uri}");
        test(Client::ready(uri));
    }
}

#[test]
fn a_reset_of_the_controller_forgets_all_but_the_places_of_lists() {
    ready(|client| {
        client.set(registers::CONTROL, Control(0).with_reset(1));
        // Where nothing but AHCI is offered (CAP.SAM), it stays enabled.
        client.wait_for(|client| client.get(registers::CONTROL).reset() == 0);
        assert_eq!(
            (client.get(port::command(0)).start(), client.get(port::interrupt_enable(0)).0),
            (0, 0)
        );
        assert_eq!(client.get(port::command_list(0)), client.list.iova() as u32);
        client.enable();
        client.start();
        assert!(client.identify().is_ata());
        client.is_blameless();
    });
}

#[test]
fn list_and_frames_run_as_long_as_they_are_asked_to() {
    ready(|client| {
        let command = client.get(port::command(0));
        assert_eq!((command.running(), command.receiving()), (1, 1));
        client.set(port::command(0), Command(0));
        assert_eq!(
            (client.get(port::command(0)).running(), client.get(port::command(0)).receiving()),
            (0, 0)
        );
    });
}

#[test]
fn what_is_written_is_read_again_queued_or_not() {
    ready(|client| {
        assert_eq!(client.write_bytes(100, 8, 0x5a).status().0, 0x50);
        client.fill(0);
        assert!(!client.run_queued(opcode::READ_QUEUED, 100, 8, 4096).status().failed());
        assert_eq!(client.bytes(0, 4096), [0x5a; 4096]);
        client.fill(0xa5);
        assert!(!client.run_queued(opcode::WRITE_QUEUED, 100, 8, 4096).status().failed());
        client.fill(0);
        assert!(!client.run(&read(100, 8), false, 4096).status().failed());
        assert_eq!(client.bytes(0, 4096), [0xa5; 4096]);
        client.is_blameless();
    });
}

#[test]
fn data_are_scattered_over_the_regions_in_order() {
    ready(|client| {
        client.write_bytes(0, 1, 1);
        client.write_bytes(1, 1, 2);
        client.fill(0);
        let region = |at: u64, bytes| Region::new(client.buffer.iova() + at, bytes).unwrap();
        client.put_regions(
            0,
            &read(0, 2),
            false,
            &[region(4096, 2), region(0, 1000), region(8192, 22)],
        );
        client.issue(1);
        client.wait_for(|client| client.issued() == 0);
        assert_eq!((client.bytes(4095, 4), client.bytes(510, 2)), (vec![0, 1, 1, 0], vec![2, 2]));
        assert_eq!(
            (client.bytes(998, 4), client.bytes(8212, 3)),
            (vec![2, 2, 0, 0], vec![2, 2, 0])
        );
        assert_eq!(client.moved(0), 1024);
        client.is_blameless();
    });
}

#[test]
fn smart_says_that_the_drive_is_well() {
    ready(|client| {
        let smart = |key: u16| TaskFile {
            command: opcode::SMART,
            features: opcode::SMART_RETURN_STATUS.into(),
            lba: u64::from(key) << 8,
            ..TaskFile::default()
        };
        assert!(!client.run(&smart(opcode::SMART_KEY), false, 0).status().failed());
        assert_eq!(client.frame().lba_device() >> 8 & 0xffff, u32::from(opcode::SMART_KEY));
        assert_eq!(client.run(&smart(0), false, 0).error().aborted(), 1);
    });
}

#[test]
fn a_port_without_a_drive_says_so() {
    ready(|mut client| {
        client.port = 1;
        assert_eq!(
            (client.link(), client.status().status_bits(), client.get(port::signature(1))),
            (SataStatus(0), 0x7f, u32::MAX)
        );
    });
}

#[test]
fn an_interrupt_that_is_switched_off_is_pending_until_it_is_switched_on() {
    ready(|client| {
        client.set(registers::CONTROL, Control(0).with_enabled(1));
        client.run(&read(0, 1), false, 512);
        assert_eq!((client.taken(), client.get(registers::INTERRUPT_STATUS)), (0, 1));
        client.enable();
        client.wait_for(|client| client.taken() == 1);
    });
}
