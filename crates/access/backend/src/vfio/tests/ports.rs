//! Ports, which no process can map: shown on QEMU's device for testing PCI accesses.

use ring3_device::Device;

use super::{claim, guest_tests};

/// BAR 1 is of ports. Writing a test's number to byte 0 selects it; its name stands from byte 16
/// on. [QEMU, docs/specs/pci-testdev.rst]
const PORTS: u8 = 1;
const NAME: u64 = 16;

guest_tests! {
    fn ports_are_read_and_written_by_system_calls() {
        let device = claim("TESTDEV");
        let bar = device.bar(PORTS).unwrap();
        assert!(bar.mapped_len() == 0);
        bar.write8(0, 0);
        let name: Vec<u8> = (NAME..NAME + 3).map(|at| bar.read8(at)).collect();
        assert_eq!(name, b"por");
        assert_eq!(bar.read32(NAME).to_le_bytes()[..3], name);
    }

    fn a_port_beyond_the_range_reads_all_ones() {
        let bar = claim("TESTDEV").bar(PORTS).unwrap();
        assert_eq!(
            (bar.read8(bar.len()), bar.read64(bar.len() - 4) >> 32), (u8::MAX, u64::from(u32::MAX)),
        );
    }
}
