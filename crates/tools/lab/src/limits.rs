//! What a guest may ask for, checked before anything is fetched, built or started: QEMU's own
//! answers to nonsense range from a word to a crash.

use crate::device::Device;
use crate::disk::{Disk, SECTOR};
use crate::error::Error;
use crate::guest::{Guest, Mode};
use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Least memory in MiB: kernel, initramfs and a program of ours.
const LEAST_MEMORY: u64 = 128;
/// MiB of a huge page.
const HUGE_PAGE: u64 = 2;
const VCPUS: RangeInclusive<u32> = 1..=64;
/// Longest run: a month.
const LONGEST: Duration = Duration::from_secs(31 * 24 * 3600);
/// Shifts that QEMU's instruction counter takes.
const SHIFTS: RangeInclusive<u32> = 0..=10;
/// More is no file size.
const LARGEST_DISK: u64 = i64::MAX as u64;

/// Says what is wrong with what `guest` asks for.
pub(crate) fn check(guest: &Guest) -> Result<(), Error> {
    let problem = memory(guest, host_memory()).or_else(|| numbers(guest)).or_else(|| names(guest));
    if let Some(why) = problem {
        return Err(Error::Request(format!("{}: {why}", guest.name)));
    }
    guest.devices.iter().try_for_each(Device::check)
}

/// Memory of this machine in MiB.
fn host_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    })?;
    Some(kib >> 10)
}

fn memory(guest: &Guest, host: Option<u64>) -> Option<String> {
    let (memory, huge) = (u64::from(guest.memory_mib), u64::from(guest.hugepages) * HUGE_PAGE);
    match host {
        _ if memory < LEAST_MEMORY => {
            Some(format!("memory is {memory} MiB, and a guest needs {LEAST_MEMORY}M at least"))
        }
        Some(host) if memory > host => {
            Some(format!("memory is {memory} MiB, and this machine has {host}: ask for less"))
        }
        _ if huge + LEAST_MEMORY > memory => {
            let pages = guest.hugepages;
            let wanted = huge + LEAST_MEMORY;
            Some(format!(
                "hugepages = {pages} are {huge} MiB of a memory of {memory}: ask for {wanted}M of \
                memory, or for fewer"
            ))
        }
        _ => None,
    }
}

fn numbers(guest: &Guest) -> Option<String> {
    if let Some(vcpus) = guest.vcpus.filter(|vcpus| !VCPUS.contains(vcpus)) {
        return Some(format!(
            "vcpus is {vcpus}, and a guest has {} to {}",
            VCPUS.start(),
            VCPUS.end()
        ));
    }
    if guest.time_limit.is_zero() || guest.time_limit > LONGEST {
        return Some(format!(
            "time_limit is {} s, and must be from 1 to {}",
            guest.time_limit.as_secs(),
            LONGEST.as_secs()
        ));
    }
    if let Some(step) = guest.steps.iter().find(|step| step.time_limit == Some(0)) {
        return Some(format!(
            "step '{}' has a time_limit of 0: leave it out, or give it seconds",
            step.name
        ));
    }
    if let Some(shift) = guest.instruction_shift.filter(|shift| !SHIFTS.contains(shift)) {
        return Some(format!(
            "instruction_shift is {shift}, and must be from {} to {}",
            SHIFTS.start(),
            SHIFTS.end()
        ));
    }
    let skips_sleep = guest.mode == Mode::Instructions && guest.instruction_shift.is_none();
    if skips_sleep && guest.devices.iter().flat_map(Device::disks).any(|disk| disk.is_paced()) {
        return Some(
            "rate and commands go by the host's clock: a disk with them needs mode = \"wall\""
                .into(),
        );
    }
    None
}

/// The steps find devices and variables under one kind of name.
fn names(guest: &Guest) -> Option<String> {
    let mut seen = BTreeSet::new();
    let devices = guest.devices.iter().map(|device| device.variable());
    let twice = devices
        .chain(guest.variables.iter().map(|(name, _)| name.clone()))
        .find(|name| !seen.insert(name.clone()))?;
    Some(format!("two devices or variables are ${twice} in the steps: give one another name"))
}

/// Says what is wrong with `disk`.
pub(crate) fn check_disk(disk: &Disk) -> Result<(), String> {
    let (size, block) = (disk.size.0, u64::from(disk.block_size.unwrap_or(0)).max(SECTOR));
    if !block.is_power_of_two() || disk.block_size.is_some_and(|bytes| u64::from(bytes) < SECTOR) {
        return Err(format!(
            "block_size is {}, and must be a power of two from {SECTOR} on",
            disk.block_size.unwrap_or(0)
        ));
    }
    if size == 0 || !size.is_multiple_of(block) || size > LARGEST_DISK {
        return Err(format!(
            "a disk of {size} bytes: it must be a multiple of its block of {block} bytes, less \
            than 8 EiB and not 0"
        ));
    }
    if disk.rate.is_some_and(|rate| rate.0 == 0) || disk.commands == Some(0) {
        return Err("rate and commands cannot be 0: leave them out for no limit".into());
    }
    match disk.bad.iter().find(|bad| bad.block >= size / block) {
        Some(bad) => Err(format!(
            "block {} is to be bad, and the last of the disk is {}",
            bad.block,
            size / block - 1
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Backing, Bad, Size};
    use crate::guest::Step;

    fn error(guest: Guest) -> String {
        check(&guest).unwrap_err().to_string()
    }

    fn guest() -> Guest {
        Guest::new("t")
    }

    #[test]
    fn a_memory_that_no_guest_boots_with_or_no_host_has_is_refused() {
        assert!(error(Guest { memory_mib: 0, ..guest() }).contains("needs 128M at least"));
        assert!(error(Guest { memory_mib: u32::MAX, ..guest() }).contains("this machine has"));
        assert!(error(Guest { hugepages: 300, ..guest() }).contains("ask for 728M of memory"));
        assert!(error(Guest { hugepages: u32::MAX, ..guest() }).contains("hugepages"));
        assert!(check(&Guest { hugepages: 64, ..guest() }).is_ok());
    }

    #[test]
    fn numbers_out_of_their_range_are_refused_with_the_range() {
        assert!(error(Guest { vcpus: Some(0), ..guest() }).contains("1 to 64"));
        assert!(error(Guest { vcpus: Some(100_000), ..guest() }).contains("1 to 64"));
        assert!(error(Guest { time_limit: Duration::ZERO, ..guest() }).contains("from 1 to"));
        assert!(error(Guest { time_limit: Duration::MAX, ..guest() }).contains("from 1 to"));
        assert!(error(Guest { instruction_shift: Some(11), ..guest() }).contains("0 to 10"));
        let step = Step { name: "s".into(), time_limit: Some(0), ..Step::default() };
        assert!(error(Guest { steps: vec![step], ..guest() }).contains("time_limit of 0"));
    }

    #[test]
    fn two_things_of_one_name_are_refused() {
        let disk = |id: &str| Device::nvme(id, Size(512), Backing::Null);
        assert!(error(guest().device(disk("a")).device(disk("a"))).contains("$A"));
        assert!(error(guest().device(disk("a-b")).device(disk("a_b"))).contains("$A_B"));
        assert!(error(guest().device(disk("a")).variable("A", "x")).contains("$A"));
    }

    #[test]
    fn a_disk_that_cannot_be_is_refused() {
        let wrong = |disk: Disk| check_disk(&disk).unwrap_err();
        let disk = || Disk::new(Size(1 << 20), Backing::Null);
        assert!(wrong(Disk { size: Size(0), ..disk() }).contains("not 0"));
        assert!(wrong(Disk { size: Size(513), ..disk() }).contains("multiple"));
        assert!(wrong(Disk { size: Size(512), block_size: Some(4096), ..disk() }).contains("4096"));
        assert!(wrong(Disk { block_size: Some(1000), ..disk() }).contains("power of two"));
        assert!(wrong(Disk { size: Size(1 << 63), ..disk() }).contains("8 EiB"));
        assert!(wrong(Disk { rate: Some(Size(0)), ..disk() }).contains("leave them out"));
        assert!(
            wrong(Disk { bad: vec![Bad { block: 2048, on: None }], ..disk() })
                .contains("the last of the disk is 2047")
        );
        assert_eq!(check_disk(&disk()), Ok(()));
    }
}
