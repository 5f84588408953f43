//! virtio disks that change hands while they go.

mod owner;
mod successor;

use std::sync::Arc;

use owner::{PATIENCE, bytes, finish, succeed};
use ring3_class::Saved;
use ring3_class::block::{Disk as _, Queue, Request, detach};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Deadline, Device, Error, OpenOptions};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_driver::virtio::blk::{Disk, Options};
use ring3_model::Timing;
use ring3_model::virtio::blk::{VirtioBlkHandle, open};
use serde_json::json;
use successor::{Successor, altered, refuses, through_json};

/// Both layouts, requests in the queue itself, no cache.
const LAYOUTS: [&str; 4] = ["", ",packed=on", ",indirect=off,packed=on", ",cache=off,events=off"];

/// What the first process has left: the device, its memory, and what it has written down.
struct Left {
    device: Arc<dyn Device>,
    handle: VirtioBlkHandle,
    disk: Saved,
    queue: Saved,
}

fn filled(device: &dyn Device, byte: u8) -> DmaBuffer {
    let buffer = device.dma().arena().alloc_pages(512).unwrap();
    buffer.fill(byte);
    buffer
}

/// A queue with three writes that the disk has, and has not done.
fn left(options: &str) -> Left {
    let device =
        open(&format!("sim:virtio-blk{options}").parse().unwrap(), OpenOptions::default()).unwrap();
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let disk = Disk::open(device.clone(), Options::default()).unwrap();
    let mut queue = disk.open_queue(8).unwrap();
    succeed(&mut *queue, Request::write(1, 1, 1, filled(&*device, 1)));
    handle.set_timing(Timing::Held);
    (2..5).for_each(|token| {
        queue.submit(Request::write(token, token, 1, filled(&*device, token as u8))).unwrap()
    });
    queue.ring();
    assert!(matches!(disk.detach(), Err(Error::Busy(_))), "a disk was left whose queue is open");
    let queue =
        through_json(&detach(&mut *queue, &mut Vec::new(), Deadline::after(PATIENCE)).unwrap());
    let saved = through_json(&disk.detach().unwrap());
    assert!(disk.open_queue(8).is_err(), "a disk that was left still answers");
    drop(disk);
    Left { device: Successor::of(&device), handle, disk: saved, queue }
}

fn disk_of(opened: &ring3_driver::registry::Opened) -> Arc<dyn ring3_class::block::Disk> {
    let Offer::Disk(disk) = &opened.offers[0] else { panic!("a disk is a disk") };
    disk.clone()
}

#[test]
fn a_disk_goes_on_in_the_next_process_with_what_was_in_flight_and_is_never_reset() {
    for layout in LAYOUTS {
        let left = left(layout);
        let starts = left.handle.counters().starts;
        left.handle.release_one();
        let opened = Driver::resume(left.device.clone(), &Settings::default(), &left.disk).unwrap();
        let disk = disk_of(&opened);
        let mut queue = disk.resume_queue(&left.queue).unwrap();
        assert_eq!(
            (left.device.dma().arena().unclaimed(), queue.in_flight()),
            (vec![], 3),
            "{layout}"
        );
        left.handle.set_timing(Timing::Inline);
        left.handle.release();
        let outcome = finish(&mut *queue);
        assert!(
            (2..5).all(|token| outcome.of(token) == Ok(())) && outcome.errors.is_empty(),
            "{layout}"
        );
        for token in 1..5 {
            let read = Request::read(token, token, 1, filled(&*left.device, 0));
            assert_eq!(bytes(succeed(&mut *queue, read))[..512], [token as u8; 512], "{layout}");
        }
        assert!(disk.resume_queue(&left.queue).is_err(), "a queue was resumed twice");
        // The queues that nobody had change hands, too.
        let mut other = disk.open_queue(8).unwrap();
        succeed(&mut *other, Request::read(9, 1, 1, filled(&*left.device, 0)));
        assert_eq!(
            (left.handle.counters().starts, left.handle.violations()),
            (starts, vec![]),
            "{layout}"
        );
    }
}

#[test]
fn a_disk_changes_hands_again_and_again() {
    let mut left = left(",packed=on");
    for _ in 0..20 {
        let mut opened =
            Driver::resume(left.device.clone(), &Settings::default(), &left.disk).unwrap();
        let mut queue = disk_of(&opened).resume_queue(&left.queue).unwrap();
        left.handle.set_timing(Timing::Inline);
        left.handle.release();
        assert!(finish(&mut *queue).errors.is_empty());
        left.handle.set_timing(Timing::Held);
        (2..9).for_each(|token| {
            queue.submit(Request::write(token, token, 1, filled(&*left.device, 7))).unwrap()
        });
        queue.ring();
        left.queue = through_json(&queue.detach().unwrap());
        left.disk = through_json(&opened.controller.detach().unwrap());
        drop((queue, opened));
        left.device = Successor::of(&left.device);
    }
    assert_eq!((left.handle.counters().starts, left.handle.violations()), (1, vec![]));
}

#[test]
fn a_disk_that_was_reset_meanwhile_is_started_anew_and_repeats_what_was_in_flight() {
    let left = left("");
    left.handle.reset_function();
    left.handle.set_timing(Timing::Inline);
    let disk = Disk::resume(left.device.clone(), None, &left.disk).unwrap();
    let mut queue = disk.resume_queue(&left.queue).unwrap();
    let outcome = finish(&mut *queue);
    assert!((2..5).all(|token| outcome.of(token) == Ok(())));
    assert_eq!(left.handle.counters().starts, 2);
}

#[test]
fn a_queue_that_was_detached_before_a_reset_finds_its_new_virtqueue_in_the_next_process() {
    for layout in LAYOUTS {
        let left = left(layout);
        let mut opened =
            Driver::resume(left.device.clone(), &Settings::default(), &left.disk).unwrap();
        let other = disk_of(&opened).open_queue(8).unwrap();
        // Its reset makes a virtqueue for each queue, and for that which nobody has resumed.
        left.handle.reset_function();
        left.handle.set_timing(Timing::Inline);
        let mut other = other;
        let read = || Request::read(9, 1, 1, filled(&*left.device, 0));
        other.submit(read()).unwrap();
        finish(&mut *other);
        drop(other);
        let starts = left.handle.counters().starts;
        let saved = through_json(&opened.controller.detach().unwrap());
        drop(opened);
        let device = Successor::of(&left.device);
        let disk = Disk::resume(device.clone(), None, &saved).unwrap();
        let mut queue = disk.resume_queue(&left.queue).unwrap();
        let outcome = finish(&mut *queue);
        assert!((2..5).all(|token| outcome.of(token) == Ok(())), "{layout}");
        assert_eq!(
            (left.handle.counters().starts, device.dma().arena().unclaimed()),
            (starts, vec![]),
            "{layout}"
        );
    }
}

#[test]
fn a_disk_that_was_reset_has_no_more_queues_than_the_device() {
    let left = left("");
    left.handle.reset_function();
    let unclaimed = left.device.dma().arena().unclaimed();
    for count in [5, 65535, 65536, 65541] {
        let many = altered(&left.disk, |state| {
            state["seats"] = vec![state["seats"][0].clone(); count].into()
        });
        let error = Disk::resume(left.device.clone(), None, &many).err().expect("it is refused");
        assert!(
            matches!(&error, Error::Invalid(_)) && error.to_string().contains("queues"),
            "{count}: {error}"
        );
        assert_eq!(left.device.dma().arena().unclaimed(), unclaimed, "{count}");
    }
    Disk::resume(left.device.clone(), None, &left.disk).unwrap();
}

#[test]
fn a_queue_that_cannot_have_been_is_refused_and_its_memory_stays_taken() {
    let left = left("");
    let disk = Disk::resume(left.device.clone(), None, &left.disk).unwrap();
    let refused = refuses(&*left.device, &left.queue, |queue| disk.resume_queue(queue));
    refused("another disk's", &|state| state["serial"] = json!("another"));
    // One that was smaller is this one before it grew.
    refused("a larger disk's", &|state| state["blocks"] = json!(1u64 << 40));
    refused("a number that is none", &|state| state["number"] = json!(9));
    refused("a queue that was not detached", &|state| state["number"] = json!(1));
    refused("more requests than entries", &|state| state["slots"] = json!(60000));
    refused("no requests", &|state| state["slots"] = json!(0));
    refused("a ring that cannot be", &|state| {
        state["queue"]["state"]["split"]["offered"] = json!(4000)
    });
    refused("an id that is none", &|state| state["held"][0]["id"] = json!(0x8000));
    refused("a request twice", &|state| state["held"][0]["id"] = state["held"][1]["id"].clone());
    for number in [0, 1, u64::MAX] {
        refused("a flush that was not begun", &|state| {
            let data = json!([]);
            let flush = json!({ "operation": "flush", "lba": 0, "blocks": 0, "data": data });
            let fields = flush.as_object().unwrap().clone();
            state["held"][0]["request"].as_object_mut().unwrap().extend(fields);
            state["held"][0]["flush"] = json!(number);
        });
    }
    refused("a request beyond the disk", &|state| {
        state["held"][0]["request"]["lba"] = json!(1u64 << 40)
    });
    refused("the memory of somebody else", &|state| {
        state["requests"] = state["queue"]["memory"][0].clone()
    });
    disk.resume_queue(&left.queue).unwrap();
}

#[test]
fn a_state_that_is_another_disks_is_refused() {
    let left = left("");
    let refused =
        refuses(&*left.device, &left.disk, |disk| Disk::resume(left.device.clone(), None, disk));
    refused("another size", &|state| state["info"]["blocks"] = json!(7));
    refused("features that it has not", &|state| state["features"] = json!(u64::MAX));
    refused("fewer features than were agreed upon", &|state| {
        state["features"] =
            json!(state["features"].as_u64().unwrap() & !ring3_spec::virtio::EVENT_IDX);
    });
    refused("another shape", &|state| state["shape"]["pieces"] = json!(3));
    refused("other interrupts", &|state| state["vectors"] = json!(1));
    refused("a generation that is none", &|state| state["generation"] = json!(u32::MAX));
    refused("another ring", &|state| state["seats"][1]["places"]["places"][0] = json!(0x1000));
    refused("no queues", &|state| state["seats"] = json!([]));
    refused("a cache that cannot be", &|state| state["cache"]["flushed"] = json!(u64::MAX));
    Disk::resume(left.device.clone(), None, &left.disk).unwrap();
}
