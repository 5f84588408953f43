//! What it uses up.

use std::fs;
use std::time::{Duration, Instant};

use ring3_sandbox::Limits;
use rustix::time::{ClockId, clock_gettime};

use crate::child::confine;
use crate::guest::guest_tests;
use crate::{End, is_child, limits, outcome, outcome_within};

fn said(end: End) -> String {
    match end {
        End::Exit(words, 0) => words.rsplit("it says: ").next().unwrap().trim().to_owned(),
        other => panic!("{other:?}"),
    }
}

/// A line of a file of a control group.
fn counted(group: &str, file: &str, name: &str) -> u64 {
    let text =
        fs::read_to_string(format!("/sys/fs/cgroup/ring3-{group}/{file}")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
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
                let count: usize =
                    words.rsplit("no more after ").next().unwrap().trim().parse().unwrap();
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
        let before = counted("hostile", "memory.events", "oom_kill ");
        assert_eq!(
            outcome("exhaustion::memory_in_files_ends_the_driver_and_nobody_else"),
            End::Killed(libc::SIGKILL),
        );
        assert!(
            counted("hostile", "memory.events", "oom_kill ") > before,
            "its group has not run out of memory",
        );
        // Of all the machine's, nobody was chosen.
        assert_eq!(
            fs::read_to_string("/proc/vmstat")
                .unwrap()
                .lines()
                .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()),
            Some(counted("hostile", "memory.events", "oom_kill ")),
        );
    }

    fn descriptors_end_at_the_limit() {
        if is_child() {
            confine();
            let all: Vec<_> = std::iter::from_fn(
                || rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).ok()
            ).take(100_000).collect();
            println!("it says: {}", all.len());
            std::process::exit(0);
        }
        let count: usize =
            said(outcome("exhaustion::descriptors_end_at_the_limit")).parse().unwrap();
        assert!(count < 1024, "{count}");
    }

    fn threads_end_at_the_limit_and_processes_there_are_none() {
        if is_child() {
            confine();
            let thread = || {
                std::thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)))
                    .ok()
            };
            let all: Vec<_> = std::iter::from_fn(thread).take(1000).collect();
            println!("it says: {}", all.len());
            std::process::exit(0);
        }
        let count: usize = said(
            outcome("exhaustion::threads_end_at_the_limit_and_processes_there_are_none")
        ).parse().unwrap();
        assert!((1..16).contains(&count), "{count}");
    }

    fn time_of_the_processors_is_shared_out_however_many_threads_want_it() {
        if is_child() {
            confine();
            let since = Instant::now();
            let spin = move || while since.elapsed() < Duration::from_secs(4) {};
            let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(spin)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let used = clock_gettime(ClockId::ProcessCPUTime);
            let used = Duration::new(used.tv_sec as u64, used.tv_nsec as u32);
            println!("it says: {}", used.as_millis() * 100 / since.elapsed().as_millis());
            std::process::exit(0);
        }
        // Little, so that it wants more on a busy host, too.
        let limits = Limits { name: "slow".into(), cpu_percent: 10, ..limits() };
        let name = "exhaustion::time_of_the_processors_is_shared_out_however_many_threads_want_it";
        let percent: u64 = said(outcome_within(name, &limits)).parse().unwrap();
        // Late timers of a busy host make several times the limit of it; without one it is the
        // whole processor.
        assert!(percent <= 60, "{percent} %");
        assert!(counted("slow", "cpu.stat", "nr_throttled ") > 0);
    }
}
