//! AHCI controllers that are otherwise than their specification, by the table `ata/quirks.toml`.
//! Each test drives a model with a fault of a real controller twice: as the table has it, and
//! without the flag, which the user's word takes away.

mod ahci;
mod disks;

use disks::{bytes, succeed};
use ring3_class::block::{Disk, Request};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_driver::Circumstances;
use ring3_driver::ata::Options;
use ring3_driver::ata::ahci::Controller;

fn with(words: &[&str], options: Options) -> Options {
    let words = words.iter().map(|&word| word.into()).collect();
    Options { quirks: Circumstances::wanting(words), ..options }
}

fn opened(uri: &str, words: &[&str]) -> ahci::Bench {
    ahci::bench_with(uri, with(words, ahci::short()))
}

fn refusal(uri: &str, words: &[&str]) -> String {
    let device = std::sync::Arc::new(ahci::device(uri));
    match Controller::open(device, with(words, ahci::short())) {
        Err(Error::Unsupported(why)) => why,
        Err(other) => panic!("{uri}: {other}"),
        Ok(_) => panic!("{uri} is driven"),
    }
}

/// Whether `blocks` blocks that one request writes are read again.
fn keeps(bench: &ahci::Bench, blocks: u32) -> bool {
    let mut queue = bench.queue(8);
    let arena = bench.disk().dma().arena();
    let buffer = arena.alloc_pages(blocks as usize * 512).unwrap();
    buffer.fill(0x5a);
    succeed(&mut *queue, Request::write(1, 0, blocks, buffer));
    let read = Request::read(2, 0, blocks, arena.alloc_pages(blocks as usize * 512).unwrap());
    bytes(succeed(&mut *queue, read)).iter().all(|&byte| byte == 0x5a)
}

#[test]
fn a_controller_that_damages_queued_data_gets_one_command_at_a_time() {
    let uri = ",quirk=ncq-corrupts";
    assert!(keeps(&opened(uri, &["hba-broken-ncq"]), 8));
    assert!(!keeps(&opened(uri, &[]), 8));
}

#[test]
fn a_controller_whose_msi_never_fires_gets_the_pin() {
    let uri = ",id=144d:a800,hba=broken-msi,delay=1ms";
    assert_eq!(opened(uri, &[]).controller.interrupts(), Some(IrqKind::Intx));
    assert!(keeps(&opened(uri, &[]), 8));
    assert_eq!(opened(uri, &["no-hba-broken-msi"]).controller.interrupts(), Some(IrqKind::Msi));
    let asked = Options {
        interrupts: ring3_driver::Interrupts::Only(IrqKind::Msi),
        ..with(&[], ahci::short())
    };
    let refused = Controller::open(std::sync::Arc::new(ahci::device(uri)), asked);
    assert!(matches!(refused, Err(Error::Unsupported(_))));
}

#[test]
fn a_controller_that_drops_high_bits_gets_no_address_that_has_them() {
    for (id, last, bits) in
        [("1002:4380", 0xffff_ffff_u64, "32"), ("1b21:0612", (1 << 43) - 1, "43")]
    {
        let flag = format!("no-hba-{bits}-bit");
        let uri = format!(",id={id},reserved=0x0-{last:#x}");
        let why = refusal(&uri, &[]);
        assert!(why.contains(&format!("{bits} bits")) && why.contains("below=4G"), "{why}");
        assert!(keeps(&opened(&uri, &[&flag]), 8));
        assert!(keeps(&opened(&format!(",id={id},below=4G"), &[]), 8));
    }
}

#[test]
fn a_controller_that_damages_long_transfers_gets_short_ones() {
    let uri = ",id=1002:4380,below=4G,quirk=over-255-corrupts";
    let most = |bench: &ahci::Bench| bench.disk().info().max_transfer;
    let quirky = opened(uri, &[]);
    assert_eq!(most(&quirky), 255 * 512);
    assert!(keeps(&quirky, 255));
    assert!(!keeps(&opened(uri, &["no-hba-255-sectors"]), 256));
    let block = opened(",id=1002:4380,below=4G,block=4096", &[]);
    assert_eq!(most(&block), 31 * 4096);
}

#[test]
fn a_controller_that_switches_ports_off_has_them_switched_on_again() {
    // The model's own id is one that the table has.
    let bench = opened(",hba=ports-off", &[]);
    assert!(keeps(&bench, 8));
    assert!(opened(",hba=ports-off", &["no-hba-ports-off"]).controller.drives().is_empty());
    // One that does so on its own resets alone is found by those of the driver, too.
    bench.controller.reset().unwrap();
    assert!(keeps(&bench, 8));
}

#[test]
fn a_link_that_is_stuck_is_freed_by_switching_its_port_off_and_on() {
    let uri = ",id=8086:1f32,hba=link-stuck";
    assert!(keeps(&opened(uri, &[]), 8));
    assert!(opened(uri, &["no-hba-link-stuck"]).controller.drives().is_empty());
}

#[test]
fn a_link_that_gets_stuck_costs_no_request_and_no_other_drive_its_link() {
    let bench = opened(",id=8086:1f32,hba=link-stuck,disks=2", &[]);
    let (resets, other) = (bench.handle.counters().resets, bench.handle.links(1));
    bench.handle.stick_link(0);
    assert!(keeps(&bench, 8));
    // The one that did not free it, and the one that showed that it was free.
    assert_eq!(bench.handle.counters().resets, resets + 2, "of a link each");
    assert_eq!(bench.handle.links(1), other);
}

#[test]
fn a_controller_that_forgets_its_ports_is_told_them_again() {
    // All ones in PI are no sign of a controller that is gone.
    for uri in [",hba=forgets-ports", ",ports=32,hba=forgets-ports"] {
        let bench = opened(uri, &[]);
        assert!(keeps(&bench, 8));
        bench.controller.reset().unwrap();
        assert!(keeps(&bench, 8));
    }
}

#[test]
fn a_controller_that_forgets_its_capabilities_is_told_them_again() {
    let bench = opened(",hba=forgets-capabilities", &[]);
    assert!(keeps(&bench, 8));
    bench.controller.reset().unwrap();
    // Its commands are still queued ones, which the model takes as a violation without that.
    assert!(keeps(&bench, 8));
}

#[test]
fn a_controller_whose_ports_nobody_knows_any_more_has_as_many_as_it_says() {
    let model = ahci::device(",hba=forgets-ports");
    model.reset().unwrap();
    let controller = Controller::open(std::sync::Arc::new(model), ahci::short()).unwrap();
    assert_eq!(controller.drives().len(), 1);
}

#[test]
fn a_controller_that_reports_ports_which_it_does_not_have_is_used_without_them() {
    let uri = ",id=197b:2361,disks=2";
    assert_eq!(opened(uri, &[]).controller.drives().len(), 1);
    assert_eq!(opened(uri, &["no-hba-one-port"]).controller.drives().len(), 2);
}

#[test]
fn controllers_that_ring3_cannot_drive_rightly_are_refused_by_name() {
    for (id, flag) in [
        ("1c44:8000", "hba-other-bar"),
        ("11ab:6145", "hba-parallel-port"),
        ("1106:3349", "hba-stays-busy"),
    ] {
        let uri = format!(",id={id}");
        let why = refusal(&uri, &[]);
        assert!(why.contains(flag) && why.contains("kernel's driver"), "{why}");
        assert!(keeps(&opened(&uri, &[&format!("no-{flag}")]), 8));
    }
}
