//! Claiming a function that another process may have had until a moment ago.
//!
//! When a process ends, the kernel closes its files after it is gone for everybody else, and the
//! last close contains a reset of the function, 100 ms by its specification, and whatever the
//! device takes to come back [PCIe 6.6.2]. A driver that is started at once finds the function
//! taken then, and nobody who has it.

use std::time::{Duration, Instant};

use ring3_device::Error;
use ring3_pci::{Host, Obstacle, WARDEN, holders};

/// How long the kernel may take to release a function that nobody alive has.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// How long somebody who looks alive may have it: a process that dies is not marked so from its
/// first moment on.
const ALIVE_LIMIT: Duration = Duration::from_millis(100);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `attempt` until it returns something other than `None`, which means that the function is
/// taken. `Err` is an [`Obstacle::Busy`], and names those who have one of its `files` by then: at
/// once if they are alive, and nobody when the kernel took too long to release it, or hides from
/// this user who they are.
pub(crate) fn claim<T>(
    host: &Host,
    files: &[String],
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<Result<T, Obstacle>, Error> {
    let since = Instant::now();
    loop {
        if let Some(claimed) = attempt()? {
            return Ok(Ok(claimed));
        }
        let mut held = files.iter().map(|file| (file, holders(host, file)));
        let (file, holders) = held
            .find(|(_, holders)| !holders.is_empty())
            .unwrap_or_else(|| (&files[0], Vec::new()));
        let limit = if holders.iter().all(|holder| holder.name == WARDEN) {
            RELEASE_LIMIT
        } else {
            ALIVE_LIMIT
        };
        if since.elapsed() > limit {
            return Ok(Err(Obstacle::Busy { path: format!("/{file}"), holders }));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ring3_pci::Holder;

    use super::*;
    use crate::uio::Silent;

    /// A machine on which process 4711 has `/dev/vfio/7` open; `stat` is what the kernel says of
    /// it.
    fn machine(stat: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("proc/4711");
        fs::create_dir_all(process.join("fd")).unwrap();
        symlink("/dev/vfio/7", process.join("fd/9")).unwrap();
        fs::write(process.join("stat"), stat).unwrap();
        fs::write(process.join("comm"), "ring3\n").unwrap();
        let host = Host::at(root.path(), std::sync::Arc::new(Silent));
        (root, host)
    }

    /// Claims what is free from the third try on.
    fn try_three_times(host: &Host, since: Instant) -> Result<u32, Obstacle> {
        let mut tries = 0;
        let attempt = || {
            tries += 1;
            // Longer than anybody alive is waited for.
            Ok((tries > 3 && since.elapsed() > 2 * ALIVE_LIMIT).then_some(tries))
        };
        claim(host, &["dev/vfio/7", "dev/vfio/devices/vfio0"].map(String::from), attempt).unwrap()
    }

    fn taken_by_4711(path: &str) -> Obstacle {
        let holders = vec![Holder { pid: 4711, name: "ring3".into() }];
        Obstacle::Busy { path: path.into(), holders }
    }

    #[test]
    fn what_a_living_process_has_is_busy_at_once_with_its_name() {
        let (_root, host) = machine("4711 (ring3) S 1 1 1 0 -1 4194560 0");
        assert_eq!(try_three_times(&host, Instant::now()), Err(taken_by_4711("/dev/vfio/7")));
    }

    #[test]
    fn what_a_living_process_has_by_another_file_is_busy_by_that() {
        let (root, host) = machine("4711 (ring3) S 1 1 1 0 -1 4194560 0");
        let fd = root.path().join("proc/4711/fd/9");
        fs::remove_file(&fd).unwrap();
        symlink("/dev/vfio/devices/vfio0", fd).unwrap();
        let taken = try_three_times(&host, Instant::now());
        assert_eq!(taken, Err(taken_by_4711("/dev/vfio/devices/vfio0")));
    }

    #[test]
    fn what_a_dying_process_still_has_is_waited_for() {
        for exiting in
            ["4711 (ring3) R 1 1 1 0 -1 4194564 0", "4711 (a) b (c) Z 1 1 1 0 -1 4194560 0"]
        {
            let (_root, host) = machine(exiting);
            assert!(try_three_times(&host, Instant::now()).is_ok(), "{exiting}");
        }
    }

    #[test]
    fn what_nobody_is_seen_to_have_is_waited_for_until_the_kernel_has_released_it() {
        let (root, host) = machine("");
        fs::remove_dir_all(root.path().join("proc/4711")).unwrap();
        assert!(try_three_times(&host, Instant::now()).is_ok());
    }
}
