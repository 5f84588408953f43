//! What it is, seen from outside and by itself.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::child::confine;
use crate::guest::guest_tests;
use crate::{Child, End, end, is_child, outcome, start};

/// A process in the sandbox that waits until its descriptor 3 ends.
struct Waiting {
    child: Child,
    said: std::os::fd::OwnedFd,
    // Its end lets the process end.
    hold: Option<std::os::fd::OwnedFd>,
}

impl Waiting {
    fn start(name: &str) -> Self {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (child, said) = start(name, read.as_fd(), "").unwrap();
        Self { child, said, hold: Some(write) }
    }

    /// The folder in /proc of the confined process, once it is: it has one thread, and its parent
    /// waits for it.
    fn folder(&self) -> PathBuf {
        for _ in 0..500 {
            let mut all =
                fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
            let parent = format!("\nPPid:\t{}\n", self.child.pid);
            let confined =
                |status: String| status.contains(&parent) && status.contains("\nSeccomp:\t2\n");
            if let Some(found) =
                all.find(|path| fs::read_to_string(path.join("status")).is_ok_and(confined))
            {
                return found;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("it is never confined");
    }

    fn end(mut self) -> End {
        self.hold = None;
        end(&self.child, self.said)
    }
}

/// In the child: confined, until descriptor 3 ends.
fn wait() -> ! {
    confine();
    let mut byte = [0];
    // SAFETY: the buffer is this function's.
    unsafe { libc::read(3, byte.as_mut_ptr().cast(), 1) };
    // SAFETY: nothing is left to do.
    unsafe { libc::_exit(0) }
}

fn status(folder: &std::path::Path, key: &str) -> String {
    let status = fs::read_to_string(folder.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

guest_tests! {
    fn it_is_nobodys_without_a_group_or_a_capability_and_gets_none() {
        if is_child() {
            wait();
        }
        let waiting =
            Waiting::start("state::it_is_nobodys_without_a_group_or_a_capability_and_gets_none");
        let folder = waiting.folder();
        let of = |key| status(&folder, key);
        assert_eq!(
            (of("Uid"), of("Gid"), of("Groups")),
            ("65534 65534 65534 65534".into(), "65534 65534 65534 65534".into(), String::new()),
        );
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&of(set), 16).unwrap(), 0, "{set}");
        }
        assert_eq!((of("NoNewPrivs"), of("Seccomp_filters")), ("1".into(), "3".into()));
        drop(waiting.end());
    }

    fn its_root_is_empty_and_its_descriptors_are_those_that_were_named() {
        if is_child() {
            wait();
        }
        let waiting = Waiting::start(
            "state::its_root_is_empty_and_its_descriptors_are_those_that_were_named"
        );
        let folder = waiting.folder();
        assert_eq!(fs::read_dir(folder.join("root")).unwrap().count(), 0);
        assert!(fs::write(folder.join("root/file"), "").is_err());
        let mut fds: Vec<_> = fs::read_dir(folder.join("fd"))
            .unwrap()
            .map(|fd| fd.unwrap().file_name().into_string().unwrap())
            .collect();
        fds.sort();
        assert_eq!(fds, ["0", "1", "2", "3"]);
        drop(waiting.end());
    }

    fn its_namespaces_are_its_own_and_its_network_has_no_address_and_no_route() {
        if is_child() {
            wait();
        }
        let waiting = Waiting::start(
            "state::its_namespaces_are_its_own_and_its_network_has_no_address_and_no_route"
        );
        let folder = waiting.folder();
        for namespace in ["mnt", "net", "pid", "ipc", "uts"] {
            let of = |folder: &str| fs::read_link(format!("{folder}/ns/{namespace}")).unwrap();
            assert_ne!(of(folder.to_str().unwrap()), of("/proc/self"), "{namespace}");
        }
        // A heading, if anything.
        assert!(fs::read_to_string(folder.join("net/route")).unwrap().lines().count() <= 1);
        // Addresses of its own that it could be reached at.
        assert!(!fs::read_to_string(folder.join("net/fib_trie")).unwrap().contains("host LOCAL"));
        drop(waiting.end());
    }

    fn it_is_in_a_control_group_of_the_devices_with_its_limits() {
        if is_child() {
            wait();
        }
        let waiting =
            Waiting::start("state::it_is_in_a_control_group_of_the_devices_with_its_limits");
        let group = fs::read_to_string(waiting.folder().join("cgroup")).unwrap();
        let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
        let limit = |file: &str| {
            fs::read_to_string(format!("/sys/fs/cgroup{group}/{file}")).unwrap()
        };
        assert!(group.ends_with("/ring3-hostile"), "{group}");
        assert_eq!(
            (&*limit("memory.max"), &*limit("pids.max"), &*limit("cpu.max")),
            ("67108864\n", "16\n", "90000 100000\n"),
        );
        drop(waiting.end());
    }

    fn what_a_driver_needs_goes_on_threads_memory_and_descriptors() {
        if is_child() {
            confine();
            let thread = std::thread::Builder::new()
                .name("queue".into())
                .spawn(|| vec![1u8; 8 << 20].iter().map(|&byte| usize::from(byte)).sum::<usize>());
            let file = rustix::fs::memfd_create("saved", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, 1 << 16).unwrap();
            let copy = file.try_clone().unwrap();
            let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).unwrap();
            rustix::io::read(&event, &mut [0; 8]).unwrap();
            drop(copy);
            println!("moved {}", thread.unwrap().join().unwrap());
            std::process::exit(0);
        }
        let End::Exit(words, 0) = outcome(
            "state::what_a_driver_needs_goes_on_threads_memory_and_descriptors"
        ) else { panic!("it did not live") };
        assert!(words.contains("moved 8388608"), "{words}");
    }
}
