//! The fault hooks of the simulated AHCI controller, one by one, seen by a raw client.

mod raw_ahci;

use raw_ahci::{Client, queued, read, task};
use ring3_device::Deadline;
use ring3_device::OpenOptions;
use ring3_device::irq::IrqKind;
use ring3_model::ahci;
use ring3_spec::ahci::fis::QueuedErrorLog;
use ring3_spec::ahci::port::{self, Command, Interrupts};
use ring3_spec::ahci::registers::{self, Control};
use ring3_spec::ata::opcode;
use std::time::Duration;

fn read_into_slot_0(client: &Client) {
    client.put(0, &read(0, 1), false, 0, 512);
    client.issue(1);
}

/// Stops the port, resets the link and starts it again.
fn reset(client: &Client) {
    client.stop();
    client.reset_link();
    client.start();
}

fn works(client: &Client) -> bool {
    !client.run(&read(0, 1), false, 512).status().failed()
}

#[test]
fn a_bad_block_fails_whoever_touches_it_with_the_bits_that_were_asked_for() {
    let client = Client::ready("sim:ahci,fault=error/0x40:read@16-16:1:all");
    assert!(works(&client));
    let status = client.run(&read(9, 8), false, 4096);
    assert_eq!((status.status().error(), status.error().uncorrectable()), (1, 1));
    client.recover();
    assert_eq!(client.run_queued(opcode::READ_QUEUED, 16, 1, 512).error().uncorrectable(), 1);
    client.recover();
    client.run(&task(opcode::READ_LOG_EXT, 0x10, 1), false, 512);
    assert_eq!(QueuedErrorLog::from_bytes(&client.bytes(0, 512)).unwrap().error(), 0x40);
    assert!(works(&client));
}

#[test]
fn a_broken_drive_says_so() {
    let client = Client::ready("sim:ahci,fault=fault:read");
    let status = client.run(&read(0, 1), false, 512).status();
    assert_eq!((status.fault(), status.error()), (1, 1));
}

#[test]
fn a_log_that_lies_names_a_command_that_was_not_in_flight() {
    let client = Client::ready("sim:ahci,fault=error/0x40:read+lying-log");
    client.run_queued(opcode::READ_QUEUED, 0, 1, 512);
    client.recover();
    client.run(&task(opcode::READ_LOG_EXT, 0x10, 1), false, 512);
    assert_eq!(QueuedErrorLog::from_bytes(&client.bytes(0, 512)).unwrap().tag(), Some(31));
}

#[test]
fn a_busy_drive_stays_so_whatever_is_done_or_until_it_is_reset() {
    let client = Client::ready("sim:ahci,fault=busy:read");
    read_into_slot_0(&client);
    client.stop();
    client.reset_link();
    assert_eq!((client.status().status().busy(), client.get(port::signature(0))), (1, u32::MAX));

    let client = Client::ready("sim:ahci,fault=busy-until-reset:read");
    read_into_slot_0(&client);
    assert_eq!((client.status().status().busy(), client.issued()), (1, 1));
    reset(&client);
    assert!(works(&client));
}

#[test]
fn a_drive_can_stay_busy_behind_a_reset() {
    let client = Client::ready("sim:ahci,fault=busy:reset");
    client.stop();
    client.reset_link();
    assert_eq!(client.status().status().busy(), 1);
}

#[test]
fn a_controller_can_stay_in_reset_until_the_function_is_reset() {
    let client = Client::ready("sim:ahci,fault=stuck-ready");
    client.set(registers::CONTROL, Control(0).with_reset(1));
    client.set(registers::CONTROL, Control(0).with_enabled(1));
    assert_eq!(client.get(registers::CONTROL).reset(), 1);
    client.device.reset().unwrap();
    assert_eq!(client.get(registers::CONTROL), Control(0));
}

#[test]
fn a_drive_is_missed_behind_a_reset_and_found_behind_the_next() {
    let client = Client::ready("sim:ahci,fault=no-drive");
    client.stop();
    client.reset_link();
    assert_eq!(client.link().detection(), 0);
    reset(&client);
    assert!(works(&client));
}

#[test]
fn a_failed_access_to_memory_stops_the_port() {
    let client = Client::ready("sim:ahci,fault=dma-error:read");
    read_into_slot_0(&client);
    assert_eq!((client.happened().memory_fatal(), client.status().status().busy()), (1, 1));
    reset(&client);
    assert!(works(&client));
}

#[test]
fn an_error_on_the_link_stops_the_port() {
    let client = Client::ready("sim:ahci,fault=fatal:read");
    read_into_slot_0(&client);
    assert_eq!((client.happened().interface_fatal(), client.issued()), (1, 1));
    reset(&client);
    assert!(works(&client));
}

#[test]
fn a_stuck_command_has_ended_and_is_still_issued() {
    let client = Client::ready("sim:ahci,fault=stuck:read");
    read_into_slot_0(&client);
    assert_eq!(
        (client.issued(), client.status().status().0, client.happened().register_frame()),
        (1, 0x50, 1)
    );
    client.stop();
    assert_eq!(client.issued(), 0);
    client.start();
    assert!(works(&client));
}

#[test]
fn a_dropped_end_leaves_the_command_where_it_is() {
    let client = Client::ready("sim:ahci,fault=drop:read+drop:read:3");
    read_into_slot_0(&client);
    assert_eq!(
        (client.issued(), client.status().status().busy(), client.happened()),
        (1, 1, Interrupts(0))
    );
    reset(&client);
    assert!(works(&client));
    client.put(0, &queued(opcode::READ_QUEUED, 0, 1, 0), false, 0, 512);
    client.issue_queued(1);
    assert_eq!((client.issued(), client.active()), (0, 1));
}

#[test]
fn a_hanging_command_can_be_released() {
    let client = Client::ready("sim:ahci,fault=hang:read");
    read_into_slot_0(&client);
    assert_eq!((client.issued(), client.handle().held()), (1, 1));
    assert!(client.handle().release_one());
    assert_eq!((client.issued(), client.status().status().0), (0, 0x50));
}

#[test]
fn a_reordered_command_ends_behind_the_next() {
    let client = Client::ready("sim:ahci,fault=reorder:read");
    for tag in [0, 1] {
        client.put(tag, &queued(opcode::READ_QUEUED, 0, 1, tag), false, 0, 512);
    }
    client.issue_queued(1);
    assert_eq!(client.active(), 1);
    client.issue_queued(2);
    assert_eq!(client.active(), 0);
}

#[test]
fn a_drive_is_pulled_out_in_the_middle_of_a_command() {
    let client = Client::ready("sim:ahci,fault=unplug:read");
    read_into_slot_0(&client);
    assert_eq!(
        (client.link().detection(), client.happened().phy_change(), client.issued()),
        (0, 1, 1)
    );
}

#[test]
fn a_removed_controller_reads_all_ones() {
    let client = Client::ready("sim:ahci,fault=remove:read");
    read_into_slot_0(&client);
    assert_eq!(client.get(port::command(0)), Command(u32::MAX));
}

#[test]
fn a_lost_interrupt_leaves_everything_else_as_it_is() {
    let client = Client::ready("sim:ahci,fault=lose-interrupt:read");
    assert!(works(&client));
    assert_eq!((client.taken(), client.get(registers::INTERRUPT_STATUS)), (0, 1));
    client.acknowledge();
    assert!(works(&client));
    assert_eq!(client.taken(), 1);
}

#[test]
fn an_interrupt_can_come_before_there_is_a_reason() {
    let client = Client::ready("sim:ahci,fault=wrong-interrupt:read");
    read_into_slot_0(&client);
    assert_eq!((client.taken(), client.happened(), client.issued()), (1, Interrupts(0), 1));
    client.wait_for(|client| client.issued() == 0);
    assert_eq!(client.taken(), 1);
}

#[test]
fn an_end_can_be_told_twice() {
    let client = Client::ready("sim:ahci,fault=duplicate:read");
    assert!(works(&client));
    assert_eq!(client.taken(), 2);
}

#[test]
fn a_storm_blows_itself_out() {
    let client = Client::ready("sim:ahci,fault=storm/500:read");
    assert!(works(&client));
    let (mut count, deadline) = (0, Deadline::after(Duration::from_secs(10)));
    while count < 501 {
        count += client.irqs[0].wait(deadline).unwrap();
        assert!(!deadline.expired(), "{count} of 501");
    }
}

#[test]
fn data_are_corrupted_on_their_way() {
    let client = Client::ready("sim:ahci,fault=corrupt:read+corrupt:write");
    client.write_bytes(0, 1, 0x0f);
    assert_eq!(client.peek(0), 0xf0);
    client.run(&read(0, 1), false, 512);
    assert_eq!(client.bytes(0, 2), [0x0f, 0x0f]);
}

#[test]
fn a_stray_access_is_blocked_and_the_command_is_done() {
    let client = Client::ready("sim:ahci,fault=stray-dma/0xdead0000:read");
    assert!(works(&client));
    assert_eq!((client.handle().fault_count(), client.handle().faults()[0].iova), (1, 0xdead_0000));
}

#[test]
fn a_rule_for_a_queue_is_for_a_drive() {
    let mut client = Client::open("sim:ahci,disks=2,fault=fault:read#2", Some(IrqKind::Msi));
    client.enable();
    client.start();
    assert!(works(&client));
    client.port = 1;
    client.start();
    assert!(!works(&client));
}

#[test]
fn faults_of_other_devices_are_refused() {
    for fault in ["wrong-phase", "status/0x281", "explode"] {
        let uri = format!("sim:ahci,fault={fault}").parse().unwrap();
        let error = ahci::open(&uri, OpenOptions::default()).err().unwrap().to_string();
        assert!(error.contains("lying-log"), "{error}");
    }
}
