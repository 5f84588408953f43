//! The simulated AHCI controller, seen by a raw client that is not the driver.

mod raw_ahci;

use raw_ahci::{Client, identify, read};
use ring3_device::Device;
use ring3_device::irq::IrqKind;
use ring3_spec::ahci::port;
use ring3_spec::ata::opcode;

#[test]
fn a_disk_says_who_it_is() {
    let client = Client::ready("sim:ahci,size=1M");
    let identify = client.identify();
    assert!(identify.is_ata() && identify.is_intact());
    assert_eq!((identify.blocks(), identify.queue_depth()), (2048, 32));
    client.is_blameless();
}

#[test]
fn what_is_written_is_read_again_queued_or_not() {
    let client = Client::ready("sim:ahci");
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
}

#[test]
fn the_end_of_a_command_is_a_message() {
    let client = Client::ready("sim:ahci");
    client.run(&identify(), false, 512);
    assert_eq!(client.taken(), 1);
    assert_eq!(client.happened(), port::Interrupts(0).with_pio_frame(1));
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
}
