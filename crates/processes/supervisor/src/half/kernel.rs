//! What the kernel says of user halves.
//!
//! # Trust
//! Whether a user half answers is seen here and not by what it says: the run time counts the
//! upcalls that it has left unanswered.

use std::fs::{self, File, OpenOptions};
use std::io;

/// The device by which user halves attach. [split/runtime/abi.h, SPLIT_DEVICE]
const DEVICE: &str = "/dev/ring3-split";
/// A line for each driver: its name, whether it has a user half, and upcalls that this one has not
/// answered in time. [split/runtime/kernel/upcall.c]
const HALVES: &str = "/sys/module/ring3_split/parameters/halves";

/// A kernel half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelHalf {
    /// It has a user half.
    pub attached: bool,
    /// Upcalls that this one has not answered.
    pub unanswered: u32,
}

/// Opens the device; `None` while the run time is not loaded.
pub fn open() -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{DEVICE}: {error}"))),
    }
}

/// The kernel half of `driver`; `None` while it is not loaded.
pub fn half_of(driver: &str) -> Option<KernelHalf> {
    find(&fs::read_to_string(HALVES).ok()?, driver)
}

fn find(text: &str, driver: &str) -> Option<KernelHalf> {
    // As the kernel names modules.
    let name = driver.replace('-', "_");
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (found, attached, unanswered) = (words.next()?, words.next()?, words.next()?);
        let half = KernelHalf { attached: attached == "1", unanswered: unanswered.parse().ok()? };
        (found.replace('-', "_") == name).then_some(half)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_half_is_found_by_its_modules_name_and_others_are_passed_over() {
        let text = "e1000 1 2\nsnd_ens1370 0 0\nbroken\n";
        assert_eq!(find(text, "e1000"), Some(KernelHalf { attached: true, unanswered: 2 }));
        assert_eq!(find(text, "snd-ens1370"), Some(KernelHalf { attached: false, unanswered: 0 }));
        assert_eq!(
            (find(text, "broken"), find(text, "e100"), find("", "e1000")),
            (None, None, None)
        );
    }
}
