//! Drives that are otherwise than their specification, by the table `ata/quirks.toml`. Each test
//! drives a model with a fault of a real drive twice: as the table has it, and without the flag,
//! which the user's word takes away.

mod ahci;
mod disks;
mod ide;

use std::sync::Arc;

use disks::{bytes, finish, succeed};
use ring3_class::block::{Disk, Info, IoError, Request};
use ring3_device::Error;
use ring3_driver::Circumstances;
use ring3_driver::ata::{Controller, Options};

fn with(words: &[&str], options: Options) -> Options {
    let words = words.iter().map(|&word| word.into()).collect();
    Options { quirks: Circumstances::wanting(words), ..options }
}

fn opened(uri: &str, words: &[&str]) -> ahci::Bench {
    ahci::bench_with(uri, with(words, ahci::short()))
}

fn info(bench: &ahci::Bench) -> Info {
    bench.disk().info().clone()
}

/// How the request with the token 1 ends.
fn end(bench: &ahci::Bench, request: Request) -> Result<(), IoError> {
    let mut queue = bench.queue(8);
    match queue.submit(request) {
        Ok(()) => finish(&mut *queue).of(1),
        Err(rejected) => Err(rejected.error.unwrap()),
    }
}

/// Whether what is written to the first `blocks` blocks by one request is read again, block by
/// block.
fn keeps(disk: &dyn Disk, blocks: u32) -> bool {
    let mut queue = disk.open_queue(8).unwrap();
    let arena = disk.dma().arena();
    let buffer = arena.alloc_pages(blocks as usize * 512).unwrap();
    buffer.fill(0x5a);
    succeed(&mut *queue, Request::write(1, 0, blocks, buffer));
    (0..u64::from(blocks)).all(|lba| {
        let read = Request::read(lba, lba, 1, arena.alloc_pages(512).unwrap());
        bytes(succeed(&mut *queue, read))[..512] == [0x5a; 512]
    })
}

#[test]
fn a_drive_that_damages_data_by_dma_is_driven_by_pio() {
    let uri = ",model=WDC AC11000H,quirk=dma-corrupts";
    let by_ide = |words| ide::bench_with(uri, with(words, ide::short()));
    let (quirky, plain) = (by_ide(&[]), by_ide(&["no-broken-dma"]));
    assert_eq!((quirky.drive(0).mode().as_str(), keeps(quirky.drive(0), 8)), ("PIO", true));
    assert!(!keeps(plain.drive(0), 8));
    // AHCI has no other way.
    let by_ahci = opened(uri, &[]);
    let refused = by_ahci.controller.refused();
    assert!(matches!(&refused[0].1, Error::Unsupported(why) if why.contains("broken-dma")));
}

#[test]
fn a_drive_that_damages_queued_data_gets_one_command_at_a_time() {
    let uri = ",model=ST31500341AS,firmware=SD17,quirk=ncq-corrupts";
    assert!(keeps(opened(uri, &[]).disk(), 8));
    assert!(!keeps(opened(uri, &["no-broken-ncq"]).disk(), 8));
    let mended = uri.replace("SD17", "SD1A");
    assert!(opened(&mended, &[]).disk().identity().queue_depth > 0);
}

#[test]
fn a_drive_that_fails_behind_ati_gets_one_command_at_a_time_there() {
    let drive = ",model=Samsung SSD 860 EVO 1TB";
    let ati = format!("{drive},id=1002:4391,quirk=ncq-corrupts");
    assert!(keeps(opened(&ati, &[]).disk(), 8));
    assert!(!keeps(opened(&ati, &["no-broken-ncq-on-ati"]).disk(), 8));
    assert!(opened(drive, &[]).disk().identity().queue_depth > 0);
}

#[test]
fn a_drive_that_damages_long_transfers_gets_short_ones() {
    for (model, firmware, most, flag) in [
        ("TORiSAN DVD-ROM DRD-N216", "1.0", 128, "no-max-128-sectors"),
        ("ST380013AS", "3.20", 1024, "no-max-1024-sectors"),
        ("DELLBOSS VD", "MV.R00-0", 8191, "no-max-8191-sectors"),
    ] {
        let uri = format!(",model={model},firmware={firmware},quirk=over-{most}-corrupts");
        let quirky = opened(&uri, &[]);
        assert_eq!(info(&quirky).max_transfer, most * 512);
        assert!(keeps(quirky.disk(), most));
        assert!(!keeps(opened(&uri, &[flag]).disk(), most + 1));
    }
}

#[test]
fn a_drive_that_loses_data_by_trim_is_not_told_to_discard() {
    let uri = ",model=SuperSSpeed S238 128GB,quirk=trim-corrupts";
    let after_discard = |words: &[&str]| {
        let bench = opened(uri, words);
        succeed(&mut *bench.queue(8), bench.write(0xff, 0x77));
        let discarded = end(&bench, Request::discard(1, 0, 8));
        let kept = bytes(succeed(&mut *bench.queue(8), bench.read(0xff)))[..512] == [0x77; 512];
        (info(&bench).discard.is_some(), discarded, kept)
    };
    assert_eq!(after_discard(&[]), (false, Err(IoError::Unsupported), true));
    assert_eq!(after_discard(&["no-broken-trim"]), (true, Ok(()), false));
}

#[test]
fn a_drive_that_hangs_at_long_trims_gets_short_ones() {
    for block in [512, 4096] {
        let uri =
            format!(",size=1G,block={block},model=SanDisk SD8SB8U256G1122,quirk=long-trim-fails");
        let longest = |words: &[&str]| {
            let bench = opened(&uri, words);
            let blocks = info(&bench).discard.unwrap().max_blocks.min((512 << 20) / block);
            (blocks, end(&bench, Request::discard(1, 0, blocks)).is_ok())
        };
        assert_eq!(longest(&[]), ((128 << 20) / block, true));
        assert_eq!(longest(&["no-short-trim"]), ((512 << 20) / block, false));
    }
}

#[test]
fn a_drive_that_dies_of_its_log_directory_is_not_asked_for_it() {
    let uri = ",model=SATADOM-ML 3ME,quirk=log-directory-hangs";
    assert!(keeps(opened(uri, &[]).disk(), 8));
    assert!(opened(uri, &["no-broken-log-directory"]).controller.drives().is_empty());
}

#[test]
fn a_drive_that_lies_about_writing_through_is_flushed() {
    let uri = ",model=OCZ-VERTEX3,quirk=fua-lies";
    assert!(!info(&opened(uri, &["trusted-fua"])).fua);
    let bench = opened(uri, &["trusted-fua", "no-broken-fua"]);
    assert!(info(&bench).fua);
    succeed(&mut *bench.queue(8), bench.write(8, 0x77).with_fua());
    bench.handle.lose_power();
    let mut held = [0; 512];
    assert!(bench.handle.peek(0, 8 * 512, &mut held) && held != [0x77; 512]);
}

#[test]
fn a_drive_that_nobody_has_tried_is_not_trusted_to_write_through() {
    assert!(info(&opened("", &[])).fua);
    assert!(!info(&opened("", &["no-trusted-fua"])).fua);
    let other = opened(",model=A DISK", &[]);
    assert!(!info(&other).fua);
    let write = Request::write(1, 0, 1, other.filled(512, 1)).with_fua();
    assert_eq!(end(&other, write), Err(IoError::Unsupported));
    assert!(info(&opened(",model=A DISK", &["trusted-fua"])).fua);
}

#[test]
fn the_settings_of_a_port_multiplier_are_refused() {
    let bench = opened(",model=Config  Disk", &[]);
    let refused = bench.controller.refused();
    assert!(refused[0].1.to_string().contains("quirk config-drive"), "{refused:?}");
    assert_eq!(opened(",model=Config  Disk", &["no-config-drive"]).controller.drives().len(), 1);
}

#[test]
fn a_drive_that_fails_on_a_fast_link_gets_a_slow_one() {
    let uri = ",model=WD My Book,quirk=fast-link-fails";
    let bench = opened(uri, &[]);
    assert!(keeps(bench.disk(), 8));
    // Resets of the drive and of the controller leave it so.
    bench.controller.reset().unwrap();
    assert!(keeps(bench.disk(), 8));
    let plain = opened(uri, &["no-slow-link"]);
    let mut queue = plain.queue(8);
    queue.submit(plain.write(1, 0x77)).unwrap();
    assert_eq!(finish(&mut *queue).of(1), Err(IoError::Transport));
    // A parallel link is slow enough.
    assert!(keeps(ide::bench_with(",model=WD My Book", ide::short()).drive(0), 8));
}

#[test]
fn a_link_that_fails_at_its_fastest_goes_on_at_half_of_that_and_no_request_fails() {
    let bench = opened(",quirk=fastest-link-fails", &[]);
    let fastest = bench.handle.link_speed(0);
    assert!(keeps(bench.disk(), 8));
    assert_eq!((fastest, bench.handle.link_speed(0)), (3, 2), "generations of SATA");
}

#[test]
fn a_word_that_is_no_flag_is_refused_with_those_that_are() {
    let device = Arc::new(ahci::device(""));
    let error = Controller::open(device, with(&["slow"], ahci::short())).err().unwrap();
    assert!(matches!(&error, Error::Invalid(why) if why.contains("trusted-fua")), "{error}");
}
