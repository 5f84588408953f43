//! The simulated IDE controllers, seen by a raw client that is not the driver.

mod raw_ide;

use raw_ide::{Client, read, task};
use ring3_spec::ata::opcode;
use ring3_spec::ide::BusMasterStatus;

#[test]
fn a_drive_says_who_it_is_by_pio() {
    for chip in ["piix3", "piix4", "cmd646"] {
        let client = Client::open(&format!("sim:ide,chip={chip},size=1M"));
        let identify = client.identify();
        assert!(identify.is_ata() && identify.is_intact() && identify.has_dma());
        assert_eq!((identify.blocks(), identify.best_ultra_dma(), identify.queue_depth()), (2048, Some(5), 0));
        client.is_blameless();
    }
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
    assert_eq!((master, status.0), (BusMasterStatus(0).with_interrupt(1), 0x50));
    assert_eq!(client.bytes(0, 4096), [0xc3; 4096]);
    client.is_blameless();
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
fn channels_in_native_mode_share_a_pin() {
    let mut client = Client::open("sim:ide,chip=cmd646,disks=4");
    assert_eq!(client.irqs.len(), 1);
    for drive in [2, 0] {
        client.select(drive);
        client.dma(&read(0, 1), true, 512);
        assert_eq!(client.taken(), 1);
        assert_eq!(client.taken(), 0);
    }
    client.is_blameless();
}
