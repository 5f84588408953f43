//! A target that fails on purpose, so that tests see what a replay makes of it.
//!
//! The first byte of an input says how it fails. It has no program of libFuzzer and no corpus.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use crate::{clock, memory};

/// Runs one input.
pub fn run(data: &[u8]) {
    match data.first() {
        Some(b'p') => panic!("a promise is broken"),
        // Nobody looks at how the thread has ended. It is a find for libFuzzer, too.
        Some(b't') => drop(thread::spawn(|| panic!("a thread breaks a promise")).join()),
        Some(b'h') => loop {
            thread::sleep(Duration::from_secs(1));
        },
        Some(b'm') => drop(memory::bounded(1 << 10, || black_box(vec![1u8; 1 << 12]))),
        Some(b'e') => exit(0),
        Some(b'v') => clock::run(wait_for_hours),
        Some(b'l') => assert!(data.len() <= 8, "an input is long"),
        _ => {}
    }
}

/// Waits an hour in each way that a driver waits.
fn wait_for_hours() {
    let (began, hour) = (Instant::now(), Timespec { tv_sec: 3600, tv_nsec: 0 });
    thread::sleep(Duration::from_secs(3600));
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&hour)), Ok(0));
    let waiter = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&waiter, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
    let mut room = [MaybeUninit::<epoll::Event>::uninit()];
    let (ready, _) = epoll::wait(&waiter, &mut room[..], Some(&hour)).unwrap();
    assert!(ready.is_empty());
    assert!(began.elapsed() >= Duration::from_secs(3 * 3600), "a wait was cut short");
    rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
    assert_eq!(poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&hour)), Ok(1));
}
