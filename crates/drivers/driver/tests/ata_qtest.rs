//! What arrives at QEMU's drives, by what QEMU itself tells of the commands that it executes.

mod qemu;

use qemu::end;
use ring3_class::block::Request;
use ring3_driver::ata::{Controller, Options};
use ring3_spec::ata::opcode;

/// The commands that QEMU has told of, but for questions who a drive is: which drive, and what.
fn commands(said: &str) -> Vec<(String, u8)> {
    let told = said.lines().filter_map(|line| {
        let (place, opcode) = line.split_once("IDE exec cmd: bus ")?.1.split_once("; cmd 0x")?;
        Some((place.to_owned(), u8::from_str_radix(opcode.trim(), 16).ok()?))
    });
    told.filter(|(_, command)| *command != opcode::IDENTIFY).collect()
}

#[test]
fn an_orderly_end_flushes_and_parks_the_drives_that_were_used_and_no_other() {
    for model in ["ich9-ahci", "piix3-ide", "piix4-ide", "cmd646-ide"] {
        // QEMU tells of each ATA command but queued ones.
        let uri = format!("qtest:{model},disks=3,size=16M,trace=ide_bus_exec_cmd");
        let device = qemu::device(&uri);
        let controller = Controller::open(device.clone(), Options::default()).unwrap();
        for place in [0, 2] {
            let disk = controller.disk(place).unwrap();
            let write = Request::write(1, 8, 1, disk.dma().arena().alloc_pages(512).unwrap());
            let mut queue = disk.open_queue(1).unwrap();
            assert_eq!(end(&mut *queue, write), Ok(()));
        }
        let before = device.stderr_text().len();
        drop(controller);
        let said = device.stderr_text();
        let [(first, flush), (same, park), (second, other_flush), (other, other_park)] =
            &commands(&said[before..])[..]
        else {
            panic!("{model}: {}", &said[before..]);
        };
        let end = (opcode::FLUSH_EXT, opcode::STANDBY_IMMEDIATE);
        assert_eq!(((*flush, *park), (*other_flush, *other_park)), (end, end), "{model}");
        assert!(
            first == same && second == other && first != second,
            "{model}: {}",
            &said[before..]
        );
    }
}
