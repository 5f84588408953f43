//! By which number the kernel knows a device's server.
//!
//! START_DEV and END_USER_RECOVERY name the process that serves. What the kernel makes of it
//! depends on its version; `drivers/block/ublk_drv.c`:
//!
//! - Up to 6.17 it takes any positive number, and only shows it.
//! - From 6.18 on it compares the number with the thread group that *opened* `/dev/ublkcN`, whoever
//!   serves by that descriptor. It counts in the initial pid namespace, and takes no other number
//!   (commit c2c8089f325e, "ublk: validate ublk server pid").
//! - Later kernels, 7.2 among them, take the number as it is in the namespace of whoever gives the
//!   command.
//!
//! Nobody asks which of these it is: the number as it is here comes first, and where the kernel
//! refuses that (EINVAL), the one of the outermost namespace that can be seen comes next.

use std::fs;

/// Under what numbers process `pid` of this namespace may be known, the likelier first.
pub(super) fn numbers(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut numbers = vec![pid];
    numbers.extend(outermost(&status).filter(|&outer| outer != pid));
    numbers
}

/// The first of the numbers that a process has from the namespace of its `/proc` inwards. [Linux,
/// Documentation/filesystems/proc.rst]
fn outermost(status: &str) -> Option<u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_container_with_the_machines_proc_the_number_outside_is_tried_second() {
        assert_eq!(outermost("Name:\tring3\nNSpid:\t4711\t8\nVmPeak: 1\n"), Some(4711));
        assert_eq!(outermost("Name:\tring3\n"), None);
    }

    #[test]
    fn without_a_namespace_there_is_one_number() {
        assert_eq!(numbers(std::process::id()), [std::process::id()]);
    }
}
