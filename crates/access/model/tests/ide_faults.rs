//! The fault hooks of the simulated IDE controllers, one by one, seen by a raw client.

mod raw_ide;

use std::time::Duration;

use raw_ide::{Client, read, task};
use ring3_device::Deadline;
use ring3_device::OpenOptions;
use ring3_model::ide;
use ring3_spec::ata::opcode;
use ring3_spec::ide::BusMasterStatus;

/// Starts a read by the bus master and leaves it to itself.
fn start(client: &Client) {
    client.put_table(&client.regions(512));
    client.start(&read(0, 1));
    client.start_master(true);
}

fn works(client: &Client) -> bool {
    client.stop_master();
    client.dma(&read(0, 1), true, 512).1.0 == 0x50
}

#[test]
fn a_bad_block_fails_whoever_touches_it_with_the_bits_that_were_asked_for() {
    let client = Client::open("sim:ide,fault=error/0x40:read@16-16:1:all");
    assert!(works(&client));
    let (master, status) = client.dma(&read(9, 8), true, 4096);
    assert_eq!((master.interrupt(), status.error(), client.error().uncorrectable()), (1, 1, 1));
    client.start(&task(opcode::READ_PIO, 16, 1, false));
    assert_eq!((client.status().error(), client.error().uncorrectable()), (1, 1));
    assert!(works(&client));
}

#[test]
fn a_broken_drive_says_so() {
    let client = Client::open("sim:ide,fault=fault:read");
    let status = client.dma(&read(0, 1), true, 512).1;
    assert_eq!((status.fault(), status.error()), (1, 1));
}

#[test]
fn a_busy_drive_stays_so_whatever_is_done_or_until_it_is_reset() {
    let client = Client::open("sim:ide,fault=busy:read");
    start(&client);
    client.reset();
    assert_eq!(client.alternate_status().busy(), 1);
    let client = Client::open("sim:ide,fault=busy-until-reset:read");
    start(&client);
    assert_eq!((client.alternate_status().busy(), client.taken()), (1, 0));
    client.reset();
    assert!(works(&client));
}

#[test]
fn a_drive_can_stay_busy_behind_a_reset_and_get_well_behind_the_next() {
    let client = Client::open("sim:ide,fault=stuck-ready");
    client.reset();
    assert_eq!(client.alternate_status().busy(), 1);
    client.reset();
    assert_eq!(client.alternate_status().0, 0x50);
    let client = Client::open("sim:ide,fault=busy:reset");
    client.reset();
    client.reset();
    assert_eq!(client.alternate_status().busy(), 1);
}

#[test]
fn a_drive_is_missed_behind_a_reset_and_found_behind_the_next() {
    let client = Client::open("sim:ide,fault=no-drive");
    client.reset();
    assert!(client.alternate_status().is_floating());
    client.reset();
    assert_eq!(client.alternate_status().0, 0x50);
}

#[test]
fn a_failed_access_to_memory_is_an_error_of_the_bus_master() {
    let client = Client::open("sim:ide,fault=dma-error:read");
    start(&client);
    assert_eq!(
        (client.master_status(), client.alternate_status().data_request(), client.taken()),
        (BusMasterStatus(0).with_error(1), 1, 0)
    );
    client.stop_master();
    client.reset();
    assert!(works(&client));
    client.is_blameless();
}

#[test]
fn a_stuck_bus_master_is_active_until_it_is_stopped() {
    let client = Client::open("sim:ide,fault=stuck:read");
    start(&client);
    assert_eq!(
        (client.master_status(), client.alternate_status().0),
        (BusMasterStatus(0).with_active(1), 0x50)
    );
    client.stop_master();
    assert_eq!(client.master_status().active(), 0);
    assert!(works(&client));
}

#[test]
fn a_dropped_end_leaves_the_drive_busy() {
    let client = Client::open("sim:ide,fault=drop:read");
    start(&client);
    assert_eq!((client.alternate_status().busy(), client.taken()), (1, 0));
    client.reset();
    assert!(works(&client));
}

#[test]
fn a_hanging_command_can_be_released() {
    let client = Client::open("sim:ide,fault=hang:read");
    start(&client);
    assert_eq!((client.alternate_status().busy(), client.handle.held()), (1, 1));
    client.handle.release();
    assert_eq!((client.alternate_status().0, client.taken()), (0x50, 1));
}

#[test]
fn a_drive_is_pulled_out_in_the_middle_of_a_command() {
    let client = Client::open("sim:ide,fault=unplug:read");
    start(&client);
    assert!(client.alternate_status().is_floating());
}

#[test]
fn a_removed_controller_reads_all_ones() {
    let client = Client::open("sim:ide,fault=remove:read");
    start(&client);
    assert_eq!((client.alternate_status().0, client.master_status().0), (0xff, 0xff));
}

#[test]
fn a_lost_interrupt_leaves_everything_else_as_it_is() {
    for chip in ["piix4", "cmd646"] {
        let client = Client::open(&format!("sim:ide,chip={chip},fault=lose-interrupt:read"));
        start(&client);
        assert_eq!(
            (client.taken(), client.master_status().interrupt(), client.alternate_status().0),
            (0, 1, 0x50)
        );
        client.status();
        assert!(works(&client));
        assert_eq!(client.taken(), 1);
    }
}

#[test]
fn an_interrupt_can_come_before_there_is_a_reason() {
    for chip in ["piix4", "cmd646"] {
        let client = Client::open(&format!("sim:ide,chip={chip},fault=wrong-interrupt:read"));
        start(&client);
        assert_eq!(
            (client.taken(), client.alternate_status().busy(), client.master_status().interrupt()),
            (1, 1, 0)
        );
        client.idle();
        assert_eq!(client.taken(), 1);
    }
}

#[test]
fn an_interrupt_can_come_once_more() {
    let client = Client::open("sim:ide,fault=duplicate:read");
    assert!(works(&client));
    let deadline = Deadline::after(Duration::from_secs(10));
    let count = (0..2)
        .map(|_| {
            client.irqs[0].wait(deadline).and_then(|n| client.irqs[0].unmask().map(|()| n)).unwrap()
        })
        .sum::<u64>();
    assert_eq!((count, client.alternate_status().0), (2, 0x50));
}

#[test]
fn a_storm_blows_itself_out() {
    let client = Client::open("sim:ide,chip=piix4,fault=storm/500:read");
    assert!(works(&client));
    let deadline = Deadline::after(Duration::from_secs(10));
    for _ in 0..2 {
        assert!(client.irqs[0].wait(deadline).unwrap() > 0);
        client.irqs[0].unmask().unwrap();
    }
    client.wait_for(|client| client.taken() == 0);
}

#[test]
fn data_are_corrupted_on_their_way() {
    let client = Client::open("sim:ide,fault=corrupt:read+corrupt:write");
    client.write_bytes(0, 1, 0x0f);
    assert_eq!(client.peek(0), 0xf0);
    client.start(&task(opcode::READ_PIO, 0, 1, false));
    assert_eq!(client.take(512, 512)[..2], [0x0f, 0x0f]);
}

#[test]
fn a_stray_access_is_blocked_and_the_command_is_done() {
    let client = Client::open("sim:ide,fault=stray-dma/0xdead0000:read");
    assert!(works(&client));
    assert_eq!((client.handle.fault_count(), client.handle.faults()[0].iova), (1, 0xdead_0000));
}

#[test]
fn faults_of_other_devices_are_refused() {
    for fault in ["wrong-phase", "status/0x281", "lying-log", "reorder"] {
        let uri = format!("sim:ide,fault={fault}").parse().unwrap();
        let error = ide::open(&uri, OpenOptions::default()).err().unwrap().to_string();
        assert!(error.contains("no-drive"), "{error}");
    }
}
