//! The namespaces of simulated NVMe controllers: which become disks, which are refused, and lists
//! that cannot be believed.

mod disks;
mod nvme;

use std::sync::Arc;

use std::time::Instant;

use nvme::{Bench, PATIENCE, bench, bytes, execute, short, succeed};
use ring3_class::block::{Disk, Request};
use ring3_device::Error;
use ring3_driver::nvme::{Controller, Options};
use ring3_model::fault::{Action, Rule};
use ring3_model::nvme::Change;
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::admin;

fn ids(bench: &Bench) -> Vec<u32> {
    bench.controller.namespaces().iter().map(|namespace| namespace.id()).collect()
}

fn refused(bench: &Bench) -> Vec<(u32, String)> {
    bench.controller.refused().iter().map(|(id, why)| (*id, why.to_string())).collect()
}

/// Opens `uri` while the `nth` identify command meets `status`.
fn with_identify_refused(uri: &str, nth: u64, status: Status) -> Result<Bench, Error> {
    let device = nvme::device(uri);
    device
        .handle()
        .plan()
        .add(Rule::admin(Action::Status(status.with_do_not_retry().0), admin::IDENTIFY).nth(nth));
    Bench::of(device, short())
}

#[test]
fn a_namespace_says_which_boundary_requests_are_best_kept_from_crossing() {
    let boundary = |uri: &str| bench(uri).disk().info().boundary;
    assert_eq!(boundary(",noiob=256"), 128 << 10);
    assert_eq!(boundary(",noiob=256,block=4096"), 1 << 20);
    assert_eq!([boundary(""), boundary(",noiob=3000")], [0, 0], "no power of two");
}

#[test]
fn a_namespace_that_refuses_identify_is_refused_alone_and_by_name() {
    // Controller, limits and list come first.
    let bench = with_identify_refused(",namespaces=3", 5, Status::INTERNAL).unwrap();
    assert_eq!(ids(&bench), [1, 3]);
    let refused = refused(&bench);
    assert!(
        refused.len() == 1 && refused[0].0 == 2 && refused[0].1.contains("internal error"),
        "{refused:?}"
    );
    let error = bench.controller.disk(2).map(drop).unwrap_err().to_string();
    assert!(error.contains("namespace 2") && error.contains("internal error"), "{error}");
    succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
}

#[test]
fn a_namespace_is_told_by_its_number_and_unique_identifier_and_keeps_its_identity_with_the_next_driver()
 {
    let identities = |controller: &Controller| {
        controller.namespaces().iter().map(Disk::identity).collect::<Vec<_>>()
    };
    let bench = bench(",namespaces=2");
    let (before, handle) = (identities(&bench.controller), bench.handle.clone());
    assert_ne!(before[0], before[1]);
    drop(bench);
    handle.change(2, Change::Unique([7; 24]));
    let after = identities(&Controller::open(Arc::new(handle.claim().unwrap()), short()).unwrap());
    assert!(after[0] == before[0] && after[1] != before[1], "{before:?} {after:?}");
}

#[test]
fn a_controller_without_a_list_of_namespaces_is_asked_for_each() {
    let bench = bench(",version=1.0,namespaces=3");
    assert_eq!((ids(&bench), refused(&bench).len()), (vec![1, 2, 3], 0));
    assert_eq!(bench.controller.identity().version, "1.0.0");
    succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
}

#[test]
fn a_list_that_a_later_controller_refuses_is_done_without() {
    let bench = with_identify_refused(",namespaces=3", 3, Status::INVALID_FIELD).unwrap();
    assert_eq!((ids(&bench), refused(&bench).len()), (vec![1, 2, 3], 0));
}

#[test]
fn a_controller_that_says_that_it_has_namespaces_without_end_is_asked_for_a_number_of_them() {
    let options = Options { timeout: PATIENCE, ..short() };
    let bench = Bench::open(",version=1.0,fault=endless-list:identify:1:all", options).unwrap();
    let (last, why) = refused(&bench).pop().unwrap();
    assert!(ids(&bench) == [1] && last == 1025 && why.contains("1024"), "{last}: {why}");
}

#[test]
fn namespaces_of_other_command_sets_are_refused_by_name() {
    let bench = bench(",namespaces=4,sets=nvm+zoned+kv+0x30");
    assert_eq!(ids(&bench), [1]);
    let refused = refused(&bench);
    for ((id, why), (expected, word)) in
        refused.iter().zip([(2, "zoned"), (3, "key value"), (4, "0x30")])
    {
        assert!(
            *id == expected && why.contains(word) && why.contains("the kernel's driver"),
            "{id}: {why}"
        );
    }
    assert_eq!(refused.len(), 3);
    succeed(&mut *bench.queue(4), Request::write(1, 0, 1, bench.filled(512, 7)));
}

#[test]
fn a_namespace_that_does_not_say_its_command_set_is_refused() {
    let bench =
        with_identify_refused(",namespaces=3,sets=nvm+nvm+zoned", 4, Status::INTERNAL).unwrap();
    assert_eq!(ids(&bench), [2]);
    assert_eq!(refused(&bench).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_list_without_end_is_cut_and_says_so() {
    let start = Instant::now();
    let bench = Bench::open(",fault=endless-list:identify:1:all", short()).unwrap();
    assert_eq!(ids(&bench), [1]);
    let (last, why) = refused(&bench).pop().unwrap();
    assert!(last == 4097 && why.contains("4096"), "{last}: {why}");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn an_id_beyond_the_greatest_that_the_controller_has_is_refused() {
    // The list is endless; what the controller says of itself, which comes first, is the truth.
    let bench = Bench::open(",namespaces=2,fault=endless-list:identify:2:all", short()).unwrap();
    assert_eq!(ids(&bench), [1, 2]);
    let refused = refused(&bench);
    assert!(
        refused.len() == 1 && refused[0].0 == 3 && refused[0].1.contains("(NN)"),
        "{refused:?}"
    );
}

#[test]
fn disks_of_a_single_block_can_be_opened_read_and_written() {
    for (size, block) in [(512, 512), (1024, 512), (3584, 512), (4096, 512), (4096, 4096)] {
        let bench = bench(&format!(",size={size},block={block}"));
        let mut queue = bench.queue(4);
        let info = queue.info().clone();
        assert_eq!((info.capacity(), info.block_size), (size, block));
        let last = info.blocks - 1;
        succeed(&mut *queue, Request::write(1, last, 1, bench.filled(block as usize, 0x42)));
        succeed(&mut *queue, Request::flush(2));
        let (end, data) = execute(
            &mut *queue,
            Request::read(3, 0, info.blocks as u32, bench.buffer(size as usize)),
        );
        assert_eq!((end, bytes(data)[size as usize - 1]), (Ok(()), 0x42), "{size} {block}");
    }
}
