//! A limit on memory: at most a share of what the machine has free.
//!
//! The sizes that a user chooses (queues, requests, bytes) multiply quickly. Linux overcommits
//! memory, and the process that the OOM killer picks need not be the one that asked for too much.
//! So the amount is compared with the free memory before it is mapped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// Of what is free, one part of this many may be taken at once.
pub const SHARE: u64 = 2;

/// Bytes that need no look at what is free.
const SMALL: u64 = 1 << 20;

/// Fails if `bytes` are more than half of the memory that is free: MemAvailable, or less where a
/// control group allows less.
pub fn admit(bytes: usize) -> Result<(), Error> {
    admit_in(Path::new("/"), bytes as u64)
}

/// Looks now, for a process that will not be able to: from here on [`admit`] counts down from what
/// is free at this moment.
pub fn budget() {
    let root = Path::new("/");
    let free = available(root)
        .map(|free| groups(root).into_iter().filter_map(|group| group.left()).fold(free, u64::min));
    let _ = BUDGET.set(AtomicU64::new(free.unwrap_or(0)));
}

/// Memory that is admitted for a while. Dropping it gives that back to who only counts down;
/// whoever looks sees it anyway.
#[derive(Debug)]
pub struct MemoryReservation(u64);

impl MemoryReservation {
    /// Of `bytes` bytes that [`admit`] has let pass.
    pub fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if let Some(budget) = BUDGET.get().filter(|_| self.0 > SMALL) {
            budget.fetch_add(self.0, Ordering::AcqRel);
        }
    }
}

/// What was free then, less what was taken since.
static BUDGET: OnceLock<AtomicU64> = OnceLock::new();

fn admit_in(root: &Path, bytes: u64) -> Result<(), Error> {
    if bytes <= SMALL {
        return Ok(());
    }
    if let Some(budget) = BUDGET.get() {
        let take = |free: u64| (bytes <= free / SHARE).then(|| free - bytes);
        return match budget.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(_) => Ok(()),
            Err(free) => Err(too_much(bytes, free)),
        };
    }
    let unknown = "how much memory is free is not known: /proc/meminfo has no MemAvailable";
    let free = available(root).ok_or_else(|| Error::Claim(unknown.into()))?;
    let free = groups(root).into_iter().filter_map(|group| group.left()).fold(free, u64::min);
    if bytes <= free / SHARE {
        return Ok(());
    }
    Err(too_much(bytes, free))
}

fn too_much(bytes: u64, free: u64) -> Error {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    Error::Claim(format!(
        "{} MiB of memory are asked for, and of the {} MiB that are free half may be taken: ask \
         for fewer queues, fewer or shorter requests, or a smaller arena= in the device's name",
        mib(bytes),
        free >> 20
    ))
}

/// What the kernel can give without swapping.
fn available(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A control group of this process, with the names of its files.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// In its statistics: the page cache that goes first.
    cache: &'static str,
}

impl Group {
    /// Bytes until its limit, if it has one. Page cache counts as free, as in MemAvailable.
    fn left(&self) -> Option<u64> {
        let number =
            |name| fs::read_to_string(self.folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = number(self.limit)?;
        let statistics = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let cache = statistics
            .lines()
            .find_map(|line| line.strip_prefix(self.cache)?.trim().parse::<u64>().ok());
        Some(limit.saturating_sub(number(self.usage)?.saturating_sub(cache.unwrap_or(0))))
    }
}

/// The groups of this process and all above them, of either version. In a container they may be
/// hidden, or be those of the machine.
fn groups(root: &Path) -> Vec<Group> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines() {
        // Hierarchy, controllers, path; version 2 names no controllers. [cgroups(7)]
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount, limit, usage, cache) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "),
            "memory" => (
                "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        groups.extend(path.ancestors().map(|path| Group {
            folder: root.join(mount).join(path),
            limit,
            usage,
            cache,
        }));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine with 1000 MiB free, and these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = (
            "proc/meminfo",
            "MemTotal:  4096000 kB\nMemFree:  1000 kB\nMemAvailable:  1024000 kB\n",
        );
        for (path, text) in [meminfo].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn half_of_what_is_free_may_be_taken_and_more_is_refused_with_both_numbers() {
        let machine = machine(&[]);
        assert!(admit_in(machine.path(), 500 * MIB).is_ok());
        let error = admit_in(machine.path(), 501 * MIB).unwrap_err().to_string();
        assert!(
            error.contains("501 MiB") && error.contains("1000 MiB") && error.contains("arena="),
            "{error}"
        );
    }

    #[test]
    fn the_limit_of_a_control_group_above_counts() {
        let machine = machine(&[
            ("proc/self/cgroup", "0::/system.slice/disk.service\n"),
            ("sys/fs/cgroup/system.slice/disk.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/disk.service/memory.current", "1000\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "209715200\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "157286400\n"),
            ("sys/fs/cgroup/system.slice/memory.stat", "anon 5\ninactive_file 52428800\n"),
        ]);
        assert!(admit_in(machine.path(), 50 * MIB).is_ok());
        assert!(admit_in(machine.path(), 51 * MIB).is_err());
    }

    #[test]
    fn control_groups_of_version_1_count_too() {
        let machine = machine(&[
            ("proc/self/cgroup", "5:memory:/box\n0::/\n"),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "0\n"),
        ]);
        assert!(admit_in(machine.path(), 51 * MIB).is_err());
    }

    #[test]
    fn a_machine_that_does_not_say_what_is_free_gives_nothing_large() {
        let nothing = tempfile::tempdir().unwrap();
        assert!(admit_in(nothing.path(), SMALL).is_ok());
        assert!(admit_in(nothing.path(), SMALL + 1).is_err());
    }
}
