//! A disk behind the broker is a disk as any other: the suite of the block class, and what sharing
//! adds.

mod served;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_broker::client::RemoteDisk;
use ring3_broker::server::Options;
use ring3_class::block::{
    Completion, Data, Disk, IoError, Operation, Queue, Ram, Request, execute,
};
use ring3_class::dma::SegmentRules;
use ring3_class::{Deadline, Error};
use ring3_conformance::block::{self as conformance, Report};
use ring3_driver::registry::{Controller, Driver, Offer, Settings};
use served::{Gated, SOON, Served, read, round_trip};

fn check(disk: &dyn Disk) -> Report {
    let options = conformance::Options { requests: 300, depth: 16, patience: SOON };
    let report = conformance::run(disk, &options);
    assert!(report.passed(), "{report}");
    report
}

fn copied() -> Options {
    Options { copy: true, ..Options::default() }
}

#[test]
fn a_remote_disk_conforms_where_the_device_reaches_its_memory() {
    let served = Served::ram(&[""]);
    let disk = served.client(0);
    assert!(disk.is_mapped());
    // Detaching, for which another process would have to take the connection over, and write
    // protection.
    assert!(check(&disk).skipped() <= 4);
}

#[test]
fn a_remote_disk_conforms_where_the_server_copies() {
    let served = Served::start(Arc::new(Ram::new(512, 16384, 64 << 20).unwrap()), &[""], copied());
    let disk = served.client(0);
    assert!(!disk.is_mapped());
    check(&disk);
}

/// A model's disk; its controller lives as long as it is held.
fn model(uri: &str) -> (Arc<dyn Disk>, Box<dyn Controller>) {
    let memory = OpenOptions { arena: 64 << 20, ..OpenOptions::default() };
    let device = ring3_backend::open(&uri.parse().unwrap(), memory).unwrap();
    let opened =
        Driver::open(device, None, &Settings { queues: 1, ..Settings::default() }).unwrap();
    let disk = opened.offers.into_iter().find_map(|offer| match offer {
        Offer::Disk(disk) => Some(disk),
        Offer::Nic(_) => None,
    });
    (disk.unwrap(), opened.controller)
}

#[test]
fn a_remote_disk_conforms_on_models_of_controllers() {
    for uri in ["sim:nvme,size=8M", "sim:ahci,size=8M"] {
        let (disk, _controller) = model(uri);
        let served = Served::start(disk, &[""], Options::default());
        check(&served.client(0));
    }
}

#[test]
fn a_part_of_a_disk_conforms_and_leaves_the_rest_alone() {
    let served = Served::ram(&[",offset=1M,size=2M", ""]);
    let whole = served.client(1);
    let ends = [2047, 2048 + 4096];
    ends.iter().for_each(|&lba| round_trip(&whole, lba, 0x77));
    let part = served.client(0);
    assert_eq!(part.info().blocks, 4096);
    check(&part);
    assert!(ends.iter().all(|&lba| read(&whole, lba) == [0x77; 512]));
}

#[test]
fn two_clients_see_one_disk_and_each_its_own_range_of_it() {
    let served = Served::ram(&["", ",offset=4096,size=4096", ",offset=4096,size=4096,access=ro"]);
    let (whole, part, reader) = (served.client(0), served.client(1), served.client(2));
    round_trip(&part, 0, 0x31);
    assert_eq!(read(&whole, 8), [0x31; 512]);
    assert_eq!(read(&reader, 0), [0x31; 512]);
    let mut queue = reader.open_queue(1).unwrap();
    let buffer = reader.dma().arena().alloc_pages(512).unwrap();
    let done =
        execute(&mut *queue, Request::write(1, 0, 1, buffer), Deadline::after(SOON)).unwrap();
    assert_eq!(done.result, Err(IoError::ReadOnly));
}

#[test]
fn both_conform_at_the_same_time_on_halves() {
    let served = Served::ram(&[",size=4M", ",offset=4M"]);
    std::thread::scope(|scope| {
        for index in [0, 1] {
            let disk = served.client(index);
            scope.spawn(move || check(&disk));
        }
    });
}

/// Reads block after block of `blocks` with `depth` requests in flight, `count` times.
fn load(disk: &RemoteDisk, depth: u16, blocks: u32, count: u64) {
    let mut queue = disk.open_queue(depth).unwrap();
    let request = |token, data| Request {
        operation: Operation::Read,
        fua: false,
        blocks,
        lba: 0,
        token,
        data,
    };
    for token in 0..queue.depth().into() {
        let data = disk.dma().arena().alloc_pages(blocks as usize * 512).unwrap();
        queue.submit(request(token, data.into())).unwrap();
    }
    queue.ring();
    let (mut ended, mut done) = (0, <[Completion; 32]>::default());
    while ended < count {
        assert!(queue.wait(Deadline::after(SOON)).unwrap());
        let ends = queue.reap(&mut done).unwrap();
        for end in done[..ends].iter_mut().map(std::mem::take) {
            assert_eq!(end.result, Ok(()));
            ended += 1;
            queue.submit(request(end.token, end.data)).unwrap();
        }
        queue.ring();
    }
}

#[test]
fn a_client_is_held_to_its_operations_and_bytes_and_the_other_is_not() {
    let served = Served::ram(&[",iops=200", ",rate=1M", ""]);
    std::thread::scope(|scope| {
        let disks: Vec<_> = [(0, 100), (1, 128), (2, 20_000)]
            .map(|(index, count)| (served.client(index), count))
            .into();
        let threads = disks.into_iter().map(|(disk, count)| {
            scope.spawn(move || {
                let start = Instant::now();
                load(&disk, 8, 16, count);
                start.elapsed()
            })
        });
        let took: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
        // 100 of 200, and 1 MiB of 1 MiB, in a second, less what goes through at once: a twentieth
        // of a second's worth, and a request beyond it.
        assert!(
            took[0] > Duration::from_millis(400) && took[1] > Duration::from_millis(850),
            "{took:?}"
        );
    });
}

#[test]
fn short_requests_do_not_wait_behind_all_the_long_ones_of_another_client() {
    // The disk's queue is what both want: it has room for four.
    let disk = Arc::new(Gated::new());
    let served = Served::start(
        disk.clone(),
        &["", ",offset=1M"],
        Options { depth: 4, ..Options::default() },
    );
    let (greedy, modest) = (served.client(0), served.client(1));
    let (mut long, mut short) = (greedy.open_queue(64).unwrap(), modest.open_queue(8).unwrap());
    disk.set(false);
    for token in 0..64 {
        long.submit(Request::read(
            token,
            0,
            64,
            greedy.dma().arena().alloc_pages(64 * 512).unwrap(),
        ))
        .unwrap();
    }
    long.ring();
    disk.wait_for(4);
    for token in 0..8 {
        short
            .submit(Request::read(token, 0, 1, modest.dma().arena().alloc_pages(512).unwrap()))
            .unwrap();
    }
    short.ring();
    disk.set(true);
    disk.wait_for(72);
    // What was there before, and a quantum of the other's at most, come first: two of 32 KiB.
    let last = disk.log().iter().rposition(|&lba| lba == 2048).unwrap();
    assert!(last < 4 + 2 + 8, "{:?}", disk.log());
}

#[test]
fn a_server_that_stops_ends_what_is_in_flight_and_says_so() {
    let mut served = Served::ram(&[",iops=1"]);
    let disk = served.client(0);
    let mut queue = disk.open_queue(8).unwrap();
    for token in 0..8 {
        let buffer = disk.dma().arena().alloc_pages(512).unwrap();
        queue.submit(Request::read(token, 0, 1, buffer)).unwrap();
    }
    queue.ring();
    std::thread::sleep(Duration::from_millis(20));
    served.stop().unwrap();
    let mut ends = Vec::new();
    while ends.len() < 8 && queue.wait(Deadline::after(SOON)).unwrap() {
        ends.extend(queue.reap_one().unwrap());
    }
    assert_eq!(ends.len(), 8);
    assert!(ends.iter().any(|end| end.result == Err(IoError::Gone)));
    // A device could still write where it was to: that memory does not come back.
    assert!(ends.iter().all(|end| end.result.is_ok() || matches!(end.data, Data::None)));
    assert!(queue.submit(Request::flush(1)).unwrap_err().error == Some(IoError::Gone));
    let error = disk.open_queue(1).err().unwrap();
    assert!(
        matches!(&error, Error::Fatal(why) if why.contains("the server was stopped")),
        "{error}"
    );
}

#[test]
fn a_disk_that_nobody_serves_is_an_error_that_says_how_to() {
    let folder = tempfile::tempdir().unwrap();
    let error = RemoteDisk::connect(&folder.path().join("none"), 4096).err().unwrap().to_string();
    assert!(error.contains("ring3 serve disk"), "{error}");
}

#[test]
fn a_device_with_boundaries_beyond_a_page_is_copied_for() {
    let rules = SegmentRules { boundary: 65536, ..SegmentRules::PAGES };
    let disk =
        Arc::new(Ram::new(512, 16384, 64 << 20).unwrap().with_info(|info| info.segments = rules));
    let server =
        ring3_broker::server::DiskServer::bind(disk, Vec::new(), Options::default()).unwrap();
    assert!(!server.is_mapped());
}
