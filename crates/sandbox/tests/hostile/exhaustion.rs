//! What it uses up.

use crate::child::confine;
use crate::guest::guest_tests;
use crate::{End, is_child, outcome};

fn said(end: End) -> String {
    match end {
        End::Exit(words, 0) => words.rsplit("it says: ").next().unwrap().trim().to_owned(),
        other => panic!("{other:?}"),
    }
}

guest_tests! {
    fn memory_ends_the_driver_and_nobody_else() {
        if is_child() {
            confine();
            let mut all = Vec::new();
            loop {
                let mut more = Vec::new();
                if more.try_reserve_exact(1 << 20).is_err() {
                    println!("it says: no more after {}", all.len());
                    std::process::exit(0);
                }
                more.resize(1 << 20, 1u8);
                all.push(more);
            }
        }
        match outcome("exhaustion::memory_ends_the_driver_and_nobody_else") {
            End::Killed(libc::SIGKILL) => {}
            End::Exit(words, 0) => {
                let count: usize = words.rsplit("no more after ").next().unwrap().trim().parse().unwrap();
                assert!(count < 64, "{count} MiB");
            }
            other => panic!("{other:?}"),
        }
    }

    fn memory_in_files_ends_the_driver_and_nobody_else() {
        if is_child() {
            confine();
            let file = rustix::fs::memfd_create("vast", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let page = [1; 65536];
            for written in 0..16384 {
                if rustix::io::write(&file, &page).is_err() {
                    println!("it says: no more after {written}");
                    std::process::exit(0);
                }
            }
            println!("it says: a gigabyte");
            std::process::exit(0);
        }
        assert_eq!(outcome("exhaustion::memory_in_files_ends_the_driver_and_nobody_else"), End::Killed(libc::SIGKILL));
    }

    fn descriptors_end_at_the_limit() {
        if is_child() {
            confine();
            let all: Vec<_> = std::iter::from_fn(|| rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).ok()).take(100_000).collect();
            println!("it says: {}", all.len());
            std::process::exit(0);
        }
        let count: usize = said(outcome("exhaustion::descriptors_end_at_the_limit")).parse().unwrap();
        assert!(count < 1024, "{count}");
    }

    fn threads_end_at_the_limit_and_processes_there_are_none() {
        if is_child() {
            confine();
            let thread = || std::thread::Builder::new().stack_size(64 << 10).spawn(|| std::thread::sleep(std::time::Duration::from_secs(60))).ok();
            let all: Vec<_> = std::iter::from_fn(thread).take(1000).collect();
            println!("it says: {}", all.len());
            std::process::exit(0);
        }
        let count: usize = said(outcome("exhaustion::threads_end_at_the_limit_and_processes_there_are_none")).parse().unwrap();
        assert!((1..16).contains(&count), "{count}");
    }
}
