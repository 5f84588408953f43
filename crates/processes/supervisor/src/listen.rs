//! Descriptors that this process was started with: sockets to listen at, and what the
//! [store](crate::store) has kept.
//!
//! # References
//! - `[LISTEN]` sd_listen_fds(3), of systemd 252

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first of them.
pub const FIRST: RawFd = 3;
/// More than anybody passes on.
const MOST: RawFd = 1 << 16;

/// Takes them, each with its name: none from the second call on, and none that were meant for
/// another process.
///
/// `LISTEN_PID` names this process, as systemd has it, or its parent: `ring3d --hold` cannot know
/// the number of the process that it starts.
pub fn take() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    let variable = |name| std::env::var(name).ok();
    let names = variable("LISTEN_FDNAMES");
    let names = named(
        variable("LISTEN_FDS").as_deref(),
        names.as_deref(),
        variable("LISTEN_PID").as_deref(),
        &[std::process::id(), parent],
    );
    let open = |(name, fd): (String, RawFd)| {
        // SAFETY: only asked whether it is open; whoever started this process has left it for us,
        // and nobody else here has looked.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        fcntl_getfd(borrowed).ok()?;
        // SAFETY: it is open, was passed on to this process, and is taken once, as `TAKEN` says.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        // Not for the processes that are started here.
        fcntl_setfd(&owned, FdFlags::CLOEXEC).ok()?;
        Some((name, owned))
    };
    names.into_iter().filter_map(open).collect()
}

/// Which descriptors there are, by the variables' values; none unless they are for one of `own`.
fn named(
    count: Option<&str>,
    names: Option<&str>,
    pid: Option<&str>,
    own: &[u32],
) -> Vec<(String, RawFd)> {
    let ours =
        pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| own.contains(&pid) && pid > 1);
    let count = count
        .and_then(|count| count.parse().ok())
        .filter(|count| ours && (1..=MOST).contains(count));
    let mut names = names.unwrap_or_default().split(':');
    (0..count.unwrap_or(0))
        .map(|at| (names.next().unwrap_or_default().to_owned(), FIRST + at))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_have_the_names_that_were_given_with_them() {
        let named = named(Some("3"), Some("control:scratch/device"), Some("7"), &[7, 1]);
        assert_eq!(
            named,
            [("control".into(), 3), ("scratch/device".into(), 4), (String::new(), 5)]
        );
    }

    #[test]
    fn descriptors_for_another_process_are_not_taken() {
        assert_eq!(named(Some("1"), None, Some("7"), &[8, 7]).len(), 1);
        for (count, pid) in [
            (Some("1"), Some("9")),
            (Some("1"), None),
            (Some("-1"), Some("7")),
            (Some("x"), Some("7")),
            (None, Some("7")),
        ] {
            assert_eq!(named(count, None, pid, &[7, 8]), []);
        }
        // A process whose parent has died is a child of number 1, which holds nothing for it.
        assert_eq!(named(Some("1"), None, Some("1"), &[7, 1]), []);
    }
}
