//! Clients that break the protocol, each in its own way: it is cut off with a reason, or hurts
//! itself; another client's disk and bytes stay what they are, and the place is free again.

mod served;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring3_broker::client::RemoteDisk;
use ring3_broker::memory;
use ring3_broker::protocol::{Answer, ClientRequest, VERSION};
use ring3_broker::server::Options;
use ring3_broker::wire::{MAX_SEGMENTS, Submission};
use ring3_class::Deadline;
use ring3_class::block::Operation;
use ring3_device::ring::Words;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use served::{
    Gated, HEAD, LINGER, Raw, RawQueue, SOON, Served, TAIL, lingering, read, read_of, round_trip,
};

/// Socket 0 is the offender's, who sees the second MiB of the disk; socket 1 somebody else's, with
/// the first.
const TERMS: [&str; 2] = [",offset=1M,size=1M,clients=2", ",size=1M"];

/// Lets `attack` do what it likes while another client writes and reads its own blocks without end,
/// whose every byte must be right.
fn beside(served: &Served, attack: impl FnOnce(&Served)) {
    let (witness, over) = (served.client(1), AtomicBool::new(false));
    round_trip(&witness, 7, 0x5a);
    std::thread::scope(|scope| {
        let over = &over;
        let verify = scope.spawn(move || {
            let mut rounds = 0u8;
            while !over.load(Ordering::SeqCst) || rounds < 2 {
                round_trip(&witness, u64::from(rounds) % 5, rounds);
                rounds = (rounds + 1) % 200;
            }
            assert_eq!(read(&witness, 7), [0x5a; 512]);
        });
        // Also of an attack that fails the test.
        let ends = Ends(over);
        attack(served);
        drop(ends);
        verify.join().unwrap();
    });
    // The place is somebody's again.
    round_trip(&served.client(0), 0, 1);
}

/// Says that it is over, when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The same of what a client with a queue of 8 does, where the device reaches its memory and where
/// it is copied; it must be cut off for a reason that holds `why`.
fn cut_off(why: &str, attack: impl Fn(&Raw, &mut RawQueue)) {
    for copy in [false, true] {
        let served =
            Served::start(Arc::new(Gated::new()), &TERMS, Options { copy, ..Options::default() });
        beside(&served, |served| {
            let raw = Raw::new(&served.path(0));
            let mut queue = raw.open(8);
            attack(&raw, &mut queue);
            let reason = raw.ended();
            assert!(reason.contains(why), "copy={copy}: {reason:?}");
        });
    }
}

#[test]
fn descriptors_that_are_slow_to_close_stall_nobody() {
    let (mut clients, mut unread) = (Vec::new(), Vec::new());
    let mut send = |path: &Path, garbage: &[&[u8]], count: usize| {
        let ((fd, listener), raw) = (lingering(), Raw::silent(path));
        garbage.iter().for_each(|bytes| raw.throw(bytes));
        raw.channel
            .send(&ClientRequest::Offer { version: VERSION, bytes: 4096 }, &vec![fd.as_fd(); count])
            .unwrap();
        unread.push(listener);
        raw
    };
    // Before anybody hears them: the close of the last who has a socket is the one that waits, and
    // that must not be this thread's.
    let before = |folder: &Path| {
        let path = folder.join("0");
        clients.extend([1, 2].map(|count| send(&path, &[], count)));
        // Never taken: of one that leaves at once, behind what ends its client, and of one that has
        // no place.
        drop(send(&path, &[], 1));
        drop(send(&path, &[b"garbage"], 1));
        clients.push(send(&path, &[], 1));
    };
    let terms = [",offset=1M,size=1M,clients=4", TERMS[1]];
    let since = Instant::now();
    let served = Served::start_after(Arc::new(Gated::new()), &terms, Options::default(), before);
    beside(&served, |_| {
        for (raw, why) in clients.iter().zip(["no memory", "no memory", "all 4 places"]) {
            let reason = raw.ended();
            assert!(reason.contains(why), "{reason:?}");
        }
    });
    drop(served);
    assert!(since.elapsed() < LINGER, "{:?}", since.elapsed());
}

#[test]
fn a_span_beyond_its_memory_is_its_end() {
    for only in [
        (64 << 10, 512),
        ((64 << 10) - 511, 512),
        (u64::MAX, 512),
        (u64::MAX - 511, 512),
        (1 << 32, 512),
        (0, u32::MAX),
        (0, 0),
    ] {
        cut_off("not in its memory", |_, queue| {
            queue.put(read_of(1, only).encode());
            queue.show();
        });
    }
}

#[test]
fn one_bad_span_among_good_ones_is_its_end() {
    cut_off("not in its memory", |_, queue| {
        let spans = [(0u64, 512u64), (4096, 512), (64 << 10, 512)];
        spans.iter().enumerate().for_each(|(index, &(offset, len))| {
            queue.words.tables.store_entry(2 * index, &[offset, len])
        });
        queue.put(Submission { segments: 3, blocks: 3, ..read_of(1, (0, 0)) }.encode());
        queue.show();
    });
}

#[test]
fn an_operation_or_a_flag_that_nobody_knows_and_too_many_segments_are_its_end() {
    let good = read_of(1, (0, 512)).encode();
    for first in [5, 0xff, 1 << 9, ((MAX_SEGMENTS as u64 + 1) << 16), 0xffff << 16, u64::MAX] {
        cut_off("no request is", |_, queue| {
            queue.put([first, good[1], good[2], good[3]]);
            queue.show();
        });
    }
}

#[test]
fn a_tail_that_jumps_is_its_end() {
    for tail in [9, 1 << 16, u64::from(u32::MAX), 1 << 31] {
        cut_off("a ring's index", |_, queue| queue.tell(tail));
    }
}

#[test]
fn a_head_that_jumps_is_its_end() {
    for head in [1, 100, u64::from(u32::MAX)] {
        cut_off("a ring's index", |_, queue| {
            queue.words.completions.store(HEAD, head);
            queue.put(read_of(1, (0, 512)).encode());
            queue.show();
        });
    }
}

#[test]
fn who_reads_no_completions_and_asks_for_more_than_its_queue_holds_is_cut_off() {
    cut_off("more requests are in flight", |_, queue| {
        for tag in 0..8 {
            queue.put(read_of(tag, (0, 512)).encode());
        }
        queue.show();
        assert!(queue.wait_for(8));
        queue.put(read_of(9, (0, 512)).encode());
        queue.show();
    });
}

#[test]
fn words_that_are_no_message_are_its_end() {
    for garbage in [
        &b"garbage"[..],
        b"{\"open\":{\"depth\":\"many\"}}",
        b"{\"hello\":{}}",
        b"{\"open\":{\"depth\":1,\"more\":2}}",
        &[b'['; 60_000],
        &[0xff; 3000],
    ] {
        cut_off("no message", |raw, _| raw.throw(garbage));
    }
}

#[test]
fn right_words_at_the_wrong_time_are_its_end() {
    let say = |ask: ClientRequest| {
        move |raw: &Raw, _: &mut RawQueue| raw.channel.send(&ask, &[]).unwrap()
    };
    cut_off("hello twice", say(ClientRequest::Hello { version: VERSION, memory: 4096 }));
    cut_off("is not open", say(ClientRequest::Close { queue: 3 }));
    cut_off("is not open", say(ClientRequest::Close { queue: u16::MAX }));
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::silent(&served.path(0));
        raw.channel.send(&ClientRequest::Open { depth: 1 }, &[]).unwrap();
        assert!(raw.ended().contains("before it says hello"));
    });
}

#[test]
fn descriptors_that_nobody_asked_for_are_its_end_and_are_closed() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    cut_off("descriptor", |raw, _| {
        raw.channel.send(&ClientRequest::Open { depth: 1 }, &[raw.channel.as_fd(); 100]).unwrap();
    });
    // Other tests open and close as well: what matters is that hundreds of hundreds do not stay.
    for _ in 0..30 {
        cut_off("descriptor", |raw, _| {
            raw.channel
                .send(&ClientRequest::Open { depth: 1 }, &[raw.channel.as_fd(); 190])
                .unwrap()
        });
    }
    assert!(open() < 2000, "{} descriptors are open", open());
}

#[test]
fn a_request_that_makes_no_sense_for_its_disk_ends_with_an_error_and_it_stays() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(8);
        let read = |lba, blocks, len| Submission { lba, blocks, ..read_of(1, (0, len)) };
        // Beyond its part of the disk, at its very end, around all numbers; no blocks, less data
        // than blocks, more than a transfer; data where no segment may begin.
        let wrong = [
            read(2048, 1, 512),
            read(2047, 2, 1024),
            read(u64::MAX, 1, 512),
            read(u64::MAX - 2047, 1, 512),
            read(0, 0, 512),
            read(0, 8, 512),
            read(0, u32::MAX, 65536),
            Submission { only: (1, 512), ..read(0, 1, 512) },
            Submission { segments: 0, ..read(0, 1, 512) },
        ];
        for (index, submission) in wrong.iter().enumerate() {
            queue.put(submission.encode());
            queue.show();
            assert!(queue.wait_for(index as u64 + 1));
            assert_ne!(queue.end(index).1, 0, "{submission:?}");
            queue.words.completions.store(HEAD, index as u64 + 1);
        }
        assert!(!raw.is_lost());
    });
}

#[test]
fn two_requests_of_one_tag_are_two_ends_of_that_tag() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(8);
        for _ in 0..2 {
            queue.put(read_of(77, (0, 512)).encode());
        }
        queue.show();
        assert!(queue.wait_for(2));
        assert_eq!([queue.end(0), queue.end(1)], [(77, 0); 2]);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(queue.words.completions.load(TAIL), 2);
    });
}

#[test]
fn what_is_changed_after_it_was_taken_is_not_read_again() {
    let disk = Arc::new(Gated::new());
    let served = Served::start(disk.clone(), &TERMS, Options::default());
    let raw = Raw::new(&served.path(0));
    let mut queue = raw.open(8);
    disk.set(false);
    queue.put(read_of(5, (4096, 512)).encode());
    queue.show();
    disk.wait_for(1);
    // Entry and tag, as if they had always been others.
    queue.words.submissions.store_entry(24, &[u64::MAX; 4]);
    disk.set(true);
    assert!(queue.wait_for(1));
    assert_eq!(queue.end(0), (5, 0));
    assert!(!raw.is_lost());
}

#[test]
fn the_memory_of_one_who_dies_in_flight_is_kept_until_the_device_is_done_with_it() {
    let disk = Arc::new(Gated::new());
    let served = Served::start(disk.clone(), &TERMS, Options::default());
    let before = disk.ram.mappings();
    {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(8);
        assert_eq!(disk.ram.mappings(), before + 1);
        disk.set(false);
        for tag in 0..4 {
            queue.put(read_of(tag, (0, 512)).encode());
        }
        queue.show();
        disk.wait_for(4);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        disk.ram.mappings(),
        before + 1,
        "its memory was taken from the device while requests were in flight"
    );
    disk.set(true);
    let deadline = Deadline::after(SOON);
    while disk.ram.mappings() != before {
        assert!(!deadline.expired(), "its memory is still the device's");
        std::thread::sleep(Duration::from_millis(1));
    }
    beside(&served, |_| {});
}

#[test]
fn one_who_dies_in_flight_hurts_nobody() {
    for copy in [false, true] {
        let served =
            Served::start(Arc::new(Gated::new()), &TERMS, Options { copy, ..Options::default() });
        beside(&served, |served| {
            for round in 0..20 {
                let raw = Raw::new(&served.path(0));
                let mut queue = raw.open(8);
                for tag in 0..round % 8 {
                    queue.put(read_of(tag, (0, 512)).encode());
                }
                queue.show();
            }
        });
    }
}

#[test]
fn memory_can_be_neither_shrunk_nor_grown_and_a_hole_in_it_is_zeroes() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(8);
        for file in [raw.file.as_ref().unwrap(), &queue.file] {
            assert!(ftruncate(file, 0).is_err() && ftruncate(file, 1 << 30).is_err());
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, hole, 0, rustix::fs::fstat(file).unwrap().st_size as u64).unwrap();
        }
        memory::check(raw.file.as_ref().unwrap(), 64 << 10).unwrap();
        queue.put(Submission { operation: Operation::Write, ..read_of(1, (0, 512)) }.encode());
        queue.show();
        assert!(queue.wait_for(1));
        assert_eq!(queue.end(0), (1, 0));
    });
    assert_eq!(read(&served.client(0), 0), [1; 512]);
}

#[test]
fn who_makes_its_descriptors_block_and_fills_them_makes_nobody_wait() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(8);
        // The eventfd's count at its maximum, the flags of both descriptors without O_NONBLOCK, and
        // a wish to be woken for each end.
        rustix::io::write(&queue.kick, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for fd in [&queue.kick, &queue.woken] {
            let flags = rustix::fs::fcntl_getfl(fd).unwrap() - rustix::fs::OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(fd, flags).unwrap();
        }
        for end in 1..=20_000u32 {
            queue.words.completions.store(16, 1);
            queue.words.completions.store(HEAD, u64::from(end) - 1);
            queue.put(read_of(end, (0, 512)).encode());
            std::sync::atomic::fence(Ordering::SeqCst);
            queue.words.submissions.store(TAIL, u64::from(end));
            if !queue.wait_for(end.into()) {
                panic!("request {end} has not ended");
            }
        }
    });
}

#[test]
fn who_takes_no_answers_is_cut_off_and_makes_nobody_wait() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let open = b"{\"open\":{\"depth\":1}}";
        let deadline = Deadline::after(SOON);
        while !raw.is_lost() && !deadline.expired() {
            let _ = rustix::net::send(
                &raw.channel,
                open,
                rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
            );
        }
        assert!(raw.is_lost(), "it was not cut off");
    });
}

#[test]
fn more_clients_than_there_are_places_are_refused_with_how_many_there_are() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let _silent = [Raw::silent(&served.path(0)), Raw::silent(&served.path(0))];
        for _ in 0..20 {
            let error = RemoteDisk::connect(&served.path(0), 4096).err().unwrap().to_string();
            assert!(error.contains("all 2 places are taken"), "{error}");
        }
    });
}

#[test]
fn more_queues_and_memory_than_are_granted_are_not_to_be_had() {
    let served = Served::ram(&[",queues=2,memory=64K,depth=4", ",size=1M"]);
    beside(&served, |served| {
        let raw = Raw::silent(&served.path(0));
        let (answer, _) = raw.ask(&ClientRequest::Hello { version: VERSION, memory: u64::MAX });
        let Answer::Welcome(welcome) = answer else { panic!("{answer:?}") };
        assert_eq!(welcome.memory, 64 << 10);
        assert_eq!(raw.open(u16::MAX).depth, 4);
        raw.open(1);
        assert!(matches!(raw.ask(&ClientRequest::Open { depth: 1 }).0, Answer::Refused { .. }));
    });
}

#[test]
fn a_flush_that_names_blocks_beyond_the_disk_is_a_flush() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let raw = Raw::new(&served.path(0));
        let mut queue = raw.open(4);
        for (tag, lba, blocks) in [(1, u64::MAX, u32::MAX), (2, 16384, 1)] {
            let flush =
                Submission { operation: Operation::Flush, lba, blocks, ..read_of(tag, (0, 0)) };
            queue.put(Submission { segments: 0, ..flush }.encode());
        }
        queue.show();
        assert!(queue.wait_for(2));
        let mut ends = [queue.end(0), queue.end(1)];
        ends.sort_unstable();
        assert_eq!(ends, [(1, 0), (2, 0)]);
    });
}

#[test]
fn another_version_is_refused_with_both() {
    let served = Served::ram(&TERMS);
    let raw = Raw::silent(&served.path(0));
    let (answer, _) = raw.ask(&ClientRequest::Hello { version: VERSION + 1, memory: 4096 });
    let both = [format!("version {}", VERSION + 1), format!("server {VERSION}")];
    assert!(
        matches!(
            &answer,
            Answer::Refused { reason } if both.iter().all(|word| reason.contains(word))
        ),
        "{answer:?}"
    );
}

#[test]
fn random_words_in_every_ring_hurt_nobody() {
    let served = Served::ram(&TERMS);
    beside(&served, |served| {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..100 {
            let raw = Raw::new(&served.path(0));
            let queue = raw.open(8);
            for words in [&queue.words.submissions, &queue.words.completions, &queue.words.tables] {
                // The tail is small now and then, so that entries are looked at.
                (1..words.count().min(200))
                    .for_each(|word| words.store(word, next() >> (next() % 64)));
            }
            queue.words.completions.store(HEAD, 0);
            queue.tell(next() % 10);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
