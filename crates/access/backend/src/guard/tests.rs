//! Mappings that vanish.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use super::*;

fn file(pages: usize) -> OwnedFd {
    let fd = rustix::fs::memfd_create("bar", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, (pages * PAGE) as u64).unwrap();
    fd
}

/// A file that shrinks faults like a BAR that is disabled.
fn vanished() -> Mapping {
    let file = file(2);
    let mapping = Mapping::new(&file, 0, 2 * PAGE).unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    mapping
}

#[test]
fn a_living_mapping_is_read_and_written() {
    let mapping = Mapping::new(file(1), 0, PAGE).unwrap();
    mapping.write(8, 8, 0x1122_3344_5566_7788);
    assert_eq!(mapping.read(10, 2), 0x5566);
}

#[test]
fn a_vanished_mapping_answers_all_ones_at_every_width() {
    let mapping = vanished();
    assert_eq!(mapping.read(0, 4), u64::MAX);
    assert_eq!(
        (mapping.read(1, 1), mapping.read(2, 2), mapping.read(PAGE, 8)),
        (u64::MAX, u64::MAX, u64::MAX)
    );
}

#[test]
fn a_write_to_a_vanished_mapping_is_lost() {
    let mapping = vanished();
    mapping.write(16, 4, 0);
    assert_eq!(mapping.read(16, 4), u64::MAX);
}

#[test]
fn what_lies_outside_or_across_words_reads_all_ones() {
    let mapping = Mapping::new(file(1), 0, PAGE).unwrap();
    assert_eq!(mapping.read(PAGE, 4), u64::MAX);
    assert_eq!(mapping.read(2, 4), u64::MAX);
    assert_eq!(mapping.read(usize::MAX - 7, 8), u64::MAX);
}

#[test]
fn mappings_that_vanish_do_not_use_up_the_table() {
    for _ in 0..2 * SLOTS {
        assert_eq!(vanished().read(0, 1), u64::MAX);
    }
}

#[test]
fn a_span_keeps_its_start_and_its_length_and_what_does_not_fit_is_refused() {
    let span = Span::new(0x7fff_ffff_f000, 3 * PAGE).unwrap();
    assert_eq!(span.range(), 0x7fff_ffff_f000..0x7fff_ffff_f000 + 3 * PAGE);
    assert!(Span::NONE.range().is_empty());
    assert_eq!(
        [(1, PAGE), (PAGE, 1), (PAGE, 1 << 36), (1 << 52, PAGE)]
            .map(|(start, len)| Span::new(start, len)),
        [None; 4]
    );
}

#[test]
fn the_handler_never_sees_the_start_of_one_mapping_with_the_length_of_another() {
    let slot = GuardSlot { span: AtomicU64::new(Span::NONE.0), gone: AtomicBool::new(false) };
    let spans =
        [Span::NONE, Span::new(8 * PAGE, PAGE).unwrap(), Span::new(2 * PAGE, 100 * PAGE).unwrap()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..200_000).for_each(|turn| slot.span.store(spans[turn % 3].0, Ordering::Release))
        });
        assert!((0..200_000).all(|_| spans.contains(&slot.span())));
    });
}

#[test]
fn many_threads_can_meet_the_same_vanished_mapping() {
    let mapping = vanished();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(|| mapping.read(0, 4))).collect();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() == u64::MAX));
    });
}

/// Runs this very test in a process of its own; in that process, runs `act` and returns `None`.
fn in_a_child(test: &str, act: impl FnOnce()) -> Option<ExitStatus> {
    const MARK: &str = "RING3_TEST_CHILD";
    if std::env::var_os(MARK).is_some() {
        act();
        return None;
    }
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(std::env::current_exe().unwrap());
    Some(child.args(["--exact", &name, "--nocapture"]).env(MARK, "1").output().unwrap().status)
}

fn fault_elsewhere() {
    let guarded = vanished();
    assert_eq!(guarded.read(0, 1), u64::MAX);
    let file = file(1);
    // SAFETY: a fresh mapping.
    let other = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, &file, 0)
    }
    .unwrap();
    rustix::fs::ftruncate(&file, 0).unwrap();
    // SAFETY: mapped; the fault is what is tested.
    unsafe { other.cast::<u8>().read_volatile() };
}

#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    let status = in_a_child("a_fault_elsewhere_still_ends_the_process", fault_elsewhere);
    assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGBUS));
}

extern "C" fn exit_42(_: libc::c_int) {
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(42) };
}

#[test]
fn a_fault_elsewhere_reaches_the_handler_that_was_there_before() {
    let act = || {
        // SAFETY: a valid handler.
        unsafe { libc::signal(libc::SIGBUS, exit_42 as *const () as usize) };
        fault_elsewhere();
    };
    let status = in_a_child("a_fault_elsewhere_reaches_the_handler_that_was_there_before", act);
    assert_eq!(status.and_then(|status| status.code()), Some(42));
}
