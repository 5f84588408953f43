//! Controllers that are otherwise than their specification, by the table `quirks.toml`. Each test
//! drives a model with a fault of a real controller twice: as the table has it, and without the
//! flag, which the user's word takes away.

mod disks;
mod nvme;

use nvme::{Bench, TIMEOUT, finish, short, succeed};
use ring3_class::block::{IoError, Request};
use ring3_device::Error;
use ring3_device::irq::IrqKind;
use ring3_driver::nvme::Options;
use ring3_driver::{Circumstances, Interrupts};
use ring3_quirks::{Board, Overrides};

/// `options` with the user's `words`.
fn with(words: &[&str], options: Options) -> Options {
    let overrides = Overrides(words.iter().map(|&word| word.into()).collect());
    Options { quirks: Circumstances { overrides, ..Circumstances::default() }, ..options }
}

fn opened(uri: &str, words: &[&str]) -> Result<Bench, Error> {
    Bench::open(uri, with(words, short()))
}

/// Reads a block: how that ends.
fn read(bench: &Bench) -> Result<(), IoError> {
    let mut queue = bench.queue(8);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    finish(&mut *queue).of(1)
}

#[test]
fn a_controller_without_a_list_of_namespaces_is_asked_for_each_id() {
    let uri = ",id=8086:5845,version=1.1,namespaces=3,quirk=no-cns-02";
    let bench = opened(uri, &[]).unwrap();
    let ids: Vec<_> = bench.controller.namespaces().iter().map(|found| found.id()).collect();
    assert_eq!((ids, read(&bench)), (vec![1, 2, 3], Ok(())));
    let found = opened(uri, &["no-limited-identify"])
        .map_or(0, |bench| bench.controller.namespaces().len());
    assert_eq!(found, 0);
}

#[test]
fn the_same_controller_of_a_later_version_is_asked_for_its_list() {
    let bench = opened(",id=8086:5845", &[]).unwrap();
    assert!(!bench.controller.quirks().has("limited-identify"));
}

#[test]
fn a_controller_that_hangs_at_descriptors_is_not_asked_for_them() {
    let uri = ",id=126f:2263,namespaces=2,sets=nvm+zoned,quirk=no-cns-03";
    let bench = opened(uri, &[]).unwrap();
    assert_eq!((bench.controller.namespaces().len(), read(&bench)), (1, Ok(())));
    assert!(opened(uri, &["no-broken-descriptors"]).is_err());
}

#[test]
fn a_namespace_whose_unique_id_is_garbage_survives_a_reset() {
    let after_a_reset = |words: &[&str]| {
        let bench = opened(",id=1987:5012,quirk=bogus-nid", words).unwrap();
        let mut queue = bench.queue(8);
        bench.controller.reset().unwrap();
        match queue.submit(Request::read(1, 0, 1, bench.buffer(512))) {
            Ok(()) => finish(&mut *queue).of(1),
            Err(rejected) => Err(rejected.error.unwrap()),
        }
    };
    assert_eq!(after_a_reset(&[]), Ok(()));
    assert_eq!(after_a_reset(&["no-bogus-nid"]), Err(IoError::Gone));
}

#[test]
fn a_controller_whose_status_is_read_too_soon_is_given_time() {
    let resets = |words: &[&str]| {
        opened(",id=1c58:0003,quirk=slow-ready", words).unwrap().controller.reset()
    };
    assert!(resets(&[]).is_ok());
    assert!(resets(&["no-slow-ready"]).is_err());
}

#[test]
fn a_controller_that_takes_one_command_gets_one_at_a_time() {
    let uri = ",id=106b:2001,quirk=single-command";
    let two = |bench: &Bench| {
        let mut queue = bench.queue(8);
        let taken: Vec<_> = [1, 2]
            .into_iter()
            .filter(|&token| queue.submit(Request::read(token, 0, 1, bench.buffer(512))).is_ok())
            .collect();
        let outcome = finish(&mut *queue);
        taken.into_iter().map(|token| outcome.of(token)).collect::<Vec<_>>()
    };
    let bench = opened(uri, &[]).unwrap();
    assert_eq!((bench.controller.identity().queues, two(&bench)), (1, vec![Ok(())]));
    let bench = opened(uri, &["no-single-command"]).unwrap();
    assert!(two(&bench).iter().any(Result::is_err));
}

#[test]
fn a_controller_without_urgent_queues_gets_medium_ones() {
    let uri = ",id=8086:f1a5,quirk=no-urgent";
    assert_eq!(read(&opened(uri, &[]).unwrap()), Ok(()));
    let bench = opened(uri, &["no-medium-priority"]).unwrap();
    let error = bench.disk().open_queue(8).map(drop).unwrap_err().to_string();
    assert!(error.contains("an I/O submission queue"), "{error}");
}

#[test]
fn a_controller_with_one_vector_gets_all_queues_on_it() {
    let uri = ",id=106b:2001,quirk=single-vector";
    assert_eq!(read(&opened(uri, &[]).unwrap()), Ok(()));
    let bench = opened(uri, &["no-single-vector"]).unwrap();
    let error = bench.disk().open_queue(8).map(drop).unwrap_err().to_string();
    assert!(error.contains("an I/O completion queue"), "{error}");
}

#[test]
fn a_controller_whose_msi_never_fires_gets_the_pin() {
    let uri = ",id=15b7:5008,vectors=0,quirk=broken-msi";
    let bench = opened(uri, &[]).unwrap();
    let kind = bench.controller.identity().interrupts;
    assert_eq!((kind, read(&bench)), (Some(IrqKind::Intx), Ok(())));
    let bench = opened(uri, &["no-broken-msi"]).unwrap();
    assert_eq!(bench.controller.identity().interrupts, Some(IrqKind::Msi));
    assert!(read(&bench).is_err());
    let options = Options { interrupts: Interrupts::Only(IrqKind::Msi), ..short() };
    assert!(Bench::open(uri, options).is_err());
}

#[test]
fn a_controller_that_chains_at_a_pages_end_gets_no_list_that_ends_there() {
    const BYTES: usize = 128 << 10;
    const REQUESTS: u64 = 16;
    let reads = |words: &[&str]| {
        let bench = opened(",id=1217:8760,sgl=off,quirk=chained-lists", words).unwrap();
        assert!(bench.handle.poke(1, 0, &[0x5a; BYTES]));
        let (disk, mut queue) = (bench.disk(), bench.queue(REQUESTS as u16));
        let arena = disk.dma().arena();
        // What begins within a page has 33 of them, and so a list of 32.
        let shift = arena.alloc((1 << 20) + 512, 4).unwrap();
        for token in 0..REQUESTS {
            let buffer = arena.alloc(BYTES, 4).unwrap();
            assert!(!buffer.iova().is_multiple_of(4096));
            queue.submit(Request::read(token, 0, BYTES as u32 / 512, buffer)).unwrap();
        }
        let outcome = finish(&mut *queue);
        drop(shift);
        outcome
            .completions
            .into_iter()
            .all(|end| end.result.is_ok() && nvme::bytes(end.data).iter().all(|&byte| byte == 0x5a))
    };
    assert!(reads(&[]));
    assert!(!reads(&["no-chained-lists"]));
}

#[test]
fn a_controller_of_48_address_lines_gets_no_memory_above() {
    let uri = ",id=1d0f:0061,reserved=0x0-0xffffffffffff";
    let error = opened(uri, &[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("quirk 48-bit-addresses"), "{error}");
    assert!(opened(uri, &["no-48-bit-addresses"]).is_ok());
}

#[test]
fn a_controller_that_hangs_at_write_zeroes_gets_none() {
    let zeroes = |words: &[&str]| {
        let bench = opened(",id=1987:5019,quirk=write-zeroes-hangs", words).unwrap();
        let mut queue = bench.queue(8);
        let most = bench.disk().info().max_write_zeroes_blocks;
        let refused = queue.submit(Request::write_zeroes(1, 0, 8)).is_err();
        let outcome = finish(&mut *queue);
        (most > 0, refused, outcome.took >= TIMEOUT)
    };
    assert_eq!(zeroes(&[]), (false, true, false));
    assert_eq!(zeroes(&["no-broken-write-zeroes"]), (true, false, true));
}

#[test]
fn a_controller_that_dies_in_its_sleep_is_kept_awake() {
    for (id, flag) in [
        ("id=2646:2263", "no-broken-deepest-state"),
        ("id=1179:0115,model=THNSF5256GPUK TOSHIBA", "no-broken-apst"),
    ] {
        let uri = format!(",{id},quirk=broken-apst");
        let bench = opened(&uri, &[]).unwrap();
        assert_eq!(read(&bench), Ok(()), "{id}");
        bench.controller.reset().unwrap();
        assert_eq!(read(&bench), Ok(()), "{id}: a reset switches it on again");
        assert!(read(&opened(&uri, &[flag]).unwrap()).is_err(), "{id}");
    }
}

#[test]
fn a_controller_that_is_slow_across_its_stripes_says_so_by_its_quirk() {
    let boundary = |uri: &str, words: &[&str]| opened(uri, words).unwrap().disk().info().boundary;
    // MDTS = 5.
    assert_eq!(boundary(",id=8086:0953", &[]), 128 << 10);
    assert_eq!(boundary(",id=8086:0953,noiob=64", &[]), 128 << 10);
    assert_eq!(boundary(",id=8086:0953", &["no-stripe"]), 0);
    assert_eq!(boundary(",id=8086:0953,mdts=0", &[]), 0);
    let short = Options { max_transfer: Some(4096), ..short() };
    let bench = Bench::open(",id=8086:0953", short).unwrap();
    assert_eq!(bench.disk().info().boundary, 128 << 10, "it is the controller's, whatever is sent");
}

#[test]
fn a_board_may_be_what_a_drive_does_not_get_on_with() {
    let on = |name: &str| {
        let board = Board {
            board_vendor: Some("ASUSTeK COMPUTER INC.".into()),
            board_name: Some(name.into()),
            ..Board::default()
        };
        let quirks = Circumstances { board, ..Circumstances::default() };
        let bench = Bench::open(",id=144d:a804", Options { quirks, ..short() }).unwrap();
        bench.controller.quirks().has("broken-apst")
    };
    assert!(on("PRIME Z370-A") && !on("PRIME Z490-A"));
}

#[test]
fn a_controller_of_another_form_is_refused_by_name() {
    let error = opened(",id=106b:2005", &[]).map(drop).unwrap_err().to_string();
    assert!(error.contains("quirk long-commands"), "{error}");
    let words = ["no-long-commands", "no-shared-tags"];
    let error = opened(",id=106b:2005", &words).map(drop).unwrap_err().to_string();
    assert!(error.contains("quirk short-ids"), "{error}");
    let error = opened("", &["shared-tags"]).map(drop).unwrap_err().to_string();
    assert!(error.contains("quirk shared-tags"), "{error}");
}

#[test]
fn a_word_that_is_no_quirk_is_refused_with_those_that_are() {
    let error = opened("", &["bogus"]).map(drop).unwrap_err().to_string();
    assert!(error.contains("bogus-nid, broken-apst"), "{error}");
}

#[test]
fn a_controller_that_stands_in_no_table_has_no_quirks() {
    let bench = opened("", &[]).unwrap();
    assert!(bench.controller.quirks().is_empty());
    let mut queue = bench.queue(8);
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
}
