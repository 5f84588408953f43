//! The kernel's partitions of a disk, added and removed one by one.
//!
//! # References
//! - `[BLKPG]` Linux `include/uapi/linux/blkpg.h`

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Partition;

/// The request. [BLKPG]
const BLKPG: libc::Ioctl = 0x1269;
const ADD: i32 = 1;
const REMOVE: i32 = 2;
/// In which the kernel's numbers are.
const SECTOR: u64 = 512;

#[repr(C)]
struct Argument {
    operation: i32,
    flags: i32,
    len: i32,
    data: *const Data,
}

#[repr(C)]
struct Data {
    start: i64,
    bytes: i64,
    number: i32,
    /// Two names that nobody reads any more.
    names: [u8; 128],
}

/// Has the kernel know `wanted` of `disk`, which is open as `file`, and no others. What was there
/// already stays as it is. True if anything has changed.
///
/// A partition that is in use and has another place in `wanted` cannot be changed: the error names
/// it, and the others are done.
pub fn tell(file: &File, disk: &str, wanted: &[Partition]) -> Result<bool, String> {
    tell_by(
        &|operation, partition| ask(file, operation, partition),
        &known(Path::new("/sys/block"), disk),
        wanted,
    )
}

fn tell_by(
    ask: &dyn Fn(i32, &Partition) -> io::Result<()>,
    known: &[Partition],
    wanted: &[Partition],
) -> Result<bool, String> {
    let gone = known
        .iter()
        .filter(|partition| !wanted.contains(partition))
        .map(|partition| (REMOVE, partition));
    let new = wanted
        .iter()
        .filter(|partition| !known.contains(partition))
        .map(|partition| (ADD, partition));
    let (mut changed, mut failed) = (false, Vec::new());
    for (operation, partition) in gone.chain(new) {
        match ask(operation, partition) {
            Ok(()) => changed = true,
            Err(error) => {
                let what = if operation == ADD { "added" } else { "removed" };
                failed.push(format!("partition {} cannot be {what}: {error}", partition.number));
            }
        }
    }
    if failed.is_empty() { Ok(changed) } else { Err(failed.join("; ")) }
}

/// Those that the kernel knows.
fn known(block: &Path, disk: &str) -> Vec<Partition> {
    let folder = block.join(disk);
    let number = |file: &Path, name: &str| {
        fs::read_to_string(file.join(name)).ok()?.trim().parse::<u64>().ok()
    };
    let partition = |path: &Path| {
        let (start, bytes) = (number(path, "start")? * SECTOR, number(path, "size")? * SECTOR);
        Some(Partition { number: number(path, "partition")? as u32, start, bytes })
    };
    let mut found: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| partition(&entry.path()))
        .collect();
    found.sort_unstable();
    found
}

fn ask(file: &File, operation: i32, partition: &Partition) -> io::Result<()> {
    let number = |value: u64| i64::try_from(value).map_err(io::Error::other);
    let (start, bytes) = (number(partition.start)?, number(partition.bytes)?);
    let data = Data { start, bytes, number: partition.number as i32, names: [0; 128] };
    let argument = Argument { operation, flags: 0, len: size_of::<Data>() as i32, data: &data };
    // SAFETY: both structures have the kernel's form, and live until it has read them. [BLKPG]
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKPG, &raw const argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn part(number: u32, start: u64, bytes: u64) -> Partition {
        Partition { number, start, bytes }
    }

    #[test]
    fn the_structures_have_the_kernels_form() {
        assert_eq!((size_of::<Data>(), size_of::<Argument>()), (152, 24));
    }

    #[test]
    fn what_is_there_stays_what_is_gone_goes_first_and_what_is_new_comes() {
        let done = RefCell::new(Vec::new());
        let ask = |operation, partition: &Partition| -> io::Result<()> {
            done.borrow_mut().push((operation, partition.number));
            if partition.number == 4 { Err(io::Error::other("in use")) } else { Ok(()) }
        };
        let known = [part(1, 512, 512), part(2, 1024, 512)];
        assert_eq!(tell_by(&ask, &known, &known), Ok(false));
        assert_eq!(tell_by(&ask, &known, &[part(3, 1024, 512), known[0]]), Ok(true));
        assert_eq!(*done.borrow(), [(REMOVE, 2), (ADD, 3)]);
        let error = tell_by(&ask, &[part(4, 512, 512)], &[part(5, 1024, 512)]).unwrap_err();
        assert!(error.contains("partition 4 cannot be removed: in use"), "{error}");
        assert_eq!(done.borrow().last(), Some(&(ADD, 5)), "the others are done");
    }

    #[test]
    fn the_kernel_is_asked_which_it_knows() {
        let block = tempfile::tempdir().unwrap();
        for (name, file, text) in [
            ("p2", "partition", "2\n"),
            ("p2", "start", "64\n"),
            ("p2", "size", "8\n"),
            ("queue", "x", ""),
        ] {
            let folder = block.path().join("ublkb0").join(format!("ublkb0{name}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        }
        assert_eq!(known(block.path(), "ublkb0"), [part(2, 64 * 512, 8 * 512)]);
        assert_eq!(known(block.path(), "ublkb1"), []);
    }
}
