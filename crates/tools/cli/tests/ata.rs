//! `ring3 ata id` and `ring3 blk` on ATA drives, over QEMU's controllers and the models: no guest,
//! no root.

use std::process::{Command, Output};

use serde_json::Value;

fn ring3(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(words.split(' ')).output().unwrap()
}

fn json(words: &str) -> Value {
    let output = ring3(words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The words of a failure.
fn failure(words: &str) -> String {
    let output = ring3(words);
    assert!(!output.status.success(), "{words} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn each_drive_has_its_place_and_its_mode() {
    let id = json("ata id --json --device qtest:ich9-ahci,disks=2");
    assert_eq!((&id["interface"], &id["interrupts"]), (&"ahci".into(), &"msi".into()));
    let places: Vec<_> = id["drives"]
        .as_array()
        .unwrap()
        .iter()
        .map(|drive| (&drive["place"], &drive["mode"]))
        .collect();
    assert_eq!(
        places,
        [(&0.into(), &"queued, 32 commands".into()), (&1.into(), &"queued, 32 commands".into())]
    );
}

#[test]
fn what_a_device_calls_itself_reaches_the_terminal_escaped() {
    for (words, serial) in [
        ("nvme id --device sim:nvme,text=wild", "\\x1b]0;S\\x07"),
        ("ata id --device sim:ahci,text=wild", "\\x1b]0;S\\x07"),
        ("ata id --device sim:ide,text=wild", "\\x1b]0;S\\x07"),
        ("blk info --device sim:nvme,text=wild", "\\x1b[2Jdisk\\u{202e}"),
    ] {
        let output = ring3(words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains(serial), "{words}: {text:?}");
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'),
            "{words}: {text:?}"
        );
    }
}

#[test]
fn a_format_without_consent_says_what_would_be_lost_and_changes_nothing() {
    let text = failure("nvme format --device sim:nvme --namespace 1 --block 4096");
    assert!(text.contains("131072 blocks, would be lost, and nothing was changed"), "{text}");
    assert!(text.contains("--destroy"), "{text}");
}

#[test]
fn a_driver_for_another_class_says_which_one_fits() {
    let text = failure("nvme id --device sim:ahci");
    assert!(
        text.contains("it is an AHCI controller, whose driver is ata: ring3 run ata, ring3 ata id"),
        "{text}"
    );
    assert!(
        failure("ata id --device sim:nvme")
            .contains("it is an NVMe controller, whose driver is nvme: ring3 run nvme")
    );
}

#[test]
fn an_optical_drive_is_refused_with_the_reason() {
    for device in ["qtest:ich9-ahci,cdrom=on", "qtest:piix4-ide,cdrom=on"] {
        let id = json(&format!("ata id --json --device {device}"));
        assert!(
            id["refused"][0]["reason"].as_str().is_some_and(|reason| reason.contains("ATAPI")),
            "{id}"
        );
    }
}

#[test]
fn a_compatibility_mode_controller_has_its_two_interrupts() {
    let id = json("ata id --json --device qtest:piix3-ide");
    assert_eq!((&id["interface"], &id["interrupts"]), (&"ide".into(), &"intx".into()));
}

#[test]
fn a_disk_behind_ide_is_opened_below_4_gib_without_being_told() {
    let line = json("blk bench --json --device sim:ide --workload randread-4k-qd4 --count 200");
    assert_eq!((&line["operations"], &line["errors"]), (&200.into(), &0.into()));
}

#[test]
fn data_can_be_moved_in_each_way() {
    for (device, transfer) in
        [("sim:ahci", "queued"), ("sim:ahci", "dma"), ("sim:ide", "dma"), ("sim:ide", "pio")]
    {
        let line = json(&format!("blk info --json --device {device} --transfer {transfer}"));
        assert_eq!(line[0]["block_size"], 512, "{device} {transfer}");
    }
}

#[test]
fn several_drives_want_one_to_be_named() {
    let error = failure("blk read --device sim:ahci,disks=2 --length 4096 --to /dev/null");
    assert!(error.contains("--drive") && error.contains("port 1"), "{error}");
    assert!(
        ring3("blk read --device sim:ahci,disks=2 --drive 1 --length 4096 --to /dev/null")
            .status
            .success()
    );
}

#[test]
fn a_controller_without_drives_says_so() {
    let error = failure("blk read --device sim:ahci,disks=0 --length 4096 --to /dev/null");
    assert!(error.contains("no disk") && error.contains("ring3 ata id"), "{error}");
}

#[test]
fn a_driver_that_does_not_fit_is_refused_by_the_class() {
    let error = failure("ata id --device sim:nvme");
    assert!(error.contains("sim:nvme") && error.contains("ring3 run nvme"), "{error}");
}
