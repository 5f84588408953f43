//! What it asks of the kernel.

use std::os::fd::AsFd;

use io_uring::{opcode, types};
use ring3_reactor::{Event, Pool};

use crate::child::{call, confine, confine_for_vhost, confine_with};
use crate::guest::guest_tests;
use crate::{End, is_child, outcome, start};

/// A test for each system call: the kernel ends the process that makes it.
macro_rules! ends_at {
    ($($name:ident: $call:ident($($argument:expr),* $(,)?);)*) => {
        guest_tests! {$(
            fn $name() {
                if is_child() {
                    let mut arguments = [0usize; 6];
                    let given: &[usize] = &[$($argument as usize),*];
                    arguments[..given.len()].copy_from_slice(given);
                    call(libc::$call, arguments);
                }
                assert_eq!(outcome(concat!("system::", stringify!($name))), End::Filtered);
            }
        )*}
    };
}

guest_tests! {
    fn a_driver_that_opens_a_file_is_refused() {
        if is_child() {
            let program = std::ffi::CString::new(
                std::env::current_exe().unwrap().into_os_string().into_encoded_bytes()
            ).unwrap();
            confine();
            let open = |path: &std::ffi::CStr| {
                std::fs::File::open(path.to_str().unwrap())
                    .err()
                    .and_then(|error| error.raw_os_error())
            };
            let found: Vec<_> = [
                c"/etc/passwd", c"/dev/null", c"/proc/self/maps", c"/", c".", &program,
            ].into_iter().map(open).collect();
            println!("it says: {}", found.iter().all(|error| *error == Some(libc::EACCES)));
            std::process::exit(0);
        }
        let End::Exit(words, 0) = outcome(
            "system::a_driver_that_opens_a_file_is_refused"
        ) else { panic!("it has ended otherwise") };
        assert!(words.contains("it says: true"), "{words}");
    }

    fn a_cards_driver_that_controls_anything_but_vhost_net_is_ended() {
        // TUNSETIFF, VHOST_SET_LOG_BASE, and what sets an owner, of a device that knows nothing of
        // it.
        if is_child() {
            confine_for_vhost();
            let mut word = String::new();
            std::io::stdin().read_line(&mut word).unwrap();
            // SAFETY: none of them reads an argument of /dev/null.
            let done = unsafe { libc::ioctl(3, word.trim().parse::<libc::Ioctl>().unwrap(), 0) };
            println!("it says: {done} {:?}", std::io::Error::last_os_error().raw_os_error());
            std::process::exit(0);
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        let end = |number: u32| {
            let (child, said) = start(
                "system::a_cards_driver_that_controls_anything_but_vhost_net_is_ended",
                null.as_fd(), &format!("{number}\n"),
            ).unwrap();
            crate::end(&child, said)
        };
        assert_eq!(
            [0x4004_54ca, 0x4008_af04, 0x5401].map(end),
            [End::Filtered, End::Filtered, End::Filtered],
        );
        let End::Exit(words, 0) = end(0xaf01) else {
            panic!("what sets vhost-net up has ended it")
        };
        assert!(words.contains(&format!("it says: -1 {:?}", Some(libc::ENOTTY))), "{words}");
    }

    fn a_ring_that_was_made_before_opens_no_file_and_makes_no_socket() {
        if is_child() {
            let pool = Pool::filled(1, 4, &[opcode::UringCmd16::CODE]).unwrap();
            let ring = pool.fds();
            confine_with(&ring);
            let mut reactor = pool.reactor(4, std::time::Duration::ZERO).unwrap();
            let open =
                opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/etc/passwd".as_ptr()).build();
            let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
            let results = [open, socket].map(|entry| {
                // SAFETY: the path is a constant.
                unsafe { reactor.push(&entry) }.unwrap();
                reactor.step(None).unwrap();
                reactor.next_event()
            });
            let refused = |event: &Option<Event>| {
                matches!(event, Some(Event::Command { result, .. }) if *result == -libc::EACCES)
            };
            println!("it says: {}", results.iter().all(refused));
            std::process::exit(0);
        }
        let End::Exit(words, 0) = outcome(
            "system::a_ring_that_was_made_before_opens_no_file_and_makes_no_socket"
        ) else { panic!("it has ended otherwise") };
        assert!(words.contains("it says: true"), "{words}");
    }
}

const PATH: *const libc::c_char = c"/etc/passwd".as_ptr();

// arm64 has no such call.
#[cfg(target_arch = "x86_64")]
ends_at! {
    a_driver_that_opens_a_file_by_the_oldest_call_is_ended: SYS_open(PATH, 0);
}

ends_at! {
    a_driver_that_opens_a_file_by_another_call_is_ended: SYS_openat2(libc::AT_FDCWD, PATH, 0, 0);
    a_driver_that_executes_a_program_is_ended: SYS_execve(c"/bin/sh".as_ptr(), 0, 0);
    a_driver_that_makes_a_process_is_ended: SYS_clone(libc::SIGCHLD);
    a_driver_that_makes_a_socket_is_ended: SYS_socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    a_driver_that_traces_is_ended: SYS_ptrace(libc::PTRACE_ATTACH, 2);
    a_driver_that_kills_others_is_ended: SYS_kill(-1i64, libc::SIGKILL);
    a_driver_that_reads_the_memory_of_others_is_ended: SYS_process_vm_readv(2);
    a_driver_that_takes_a_descriptor_of_others_is_ended: SYS_pidfd_getfd(0, 3, 0);
    a_driver_that_makes_a_ring_is_ended: SYS_io_uring_setup(8, 0);
    a_driver_that_mounts_is_ended: SYS_mount(0, PATH, 0, 0, 0);
    a_driver_that_makes_a_namespace_is_ended: SYS_unshare(libc::CLONE_NEWUSER);
    a_driver_that_loads_a_bpf_program_is_ended: SYS_bpf(5, 0, 0);
    a_driver_that_opens_performance_counters_is_ended: SYS_perf_event_open(0, 0, -1i64, -1i64, 0);
    a_driver_that_handles_page_faults_is_ended: SYS_userfaultfd(0);
    a_driver_that_looks_for_keys_is_ended: SYS_keyctl(0, -3i64, 1);
    a_driver_that_controls_a_device_is_ended: SYS_ioctl(3, 0x3b6e);
    a_driver_that_changes_its_user_is_ended: SYS_setresuid(0, 0, 0);
    a_driver_that_loads_a_module_is_ended: SYS_finit_module(3, PATH, 0);
    a_driver_that_maps_code_is_ended: SYS_mmap(
        0, 4096, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1i64,
        0,
    );
    a_driver_that_takes_pages_out_of_their_file_is_ended: SYS_madvise(
        0x1000, 4096, libc::MADV_REMOVE,
    );
    a_driver_that_makes_memory_executable_is_ended: SYS_mprotect(
        0x1000, 4096, libc::PROT_READ | libc::PROT_EXEC,
    );
    a_driver_that_raises_its_limits_is_ended: SYS_prlimit64(0, libc::RLIMIT_NOFILE, 0, 0);
    a_driver_that_can_be_dumped_again_is_ended: SYS_prctl(libc::PR_SET_DUMPABLE, 1);
    a_driver_that_has_a_signal_sent_by_a_descriptor_is_ended: SYS_fcntl(3, libc::F_SETOWN, 1);
    a_driver_that_filters_its_socket_by_a_program_is_ended: SYS_setsockopt(
        3, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0, 0,
    );
    a_driver_that_lifts_a_rings_restrictions_is_ended: SYS_io_uring_register(3, 11, 0, 0);
}
