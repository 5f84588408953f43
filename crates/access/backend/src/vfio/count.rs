//! How many interrupts of a function the kernel has taken, as it says itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The kernel's counts of one function. The files stay open: who looks once a second does so for a
/// few microseconds.
#[derive(Default)]
pub(super) struct Counts {
    /// Under which number the interrupts were enabled whose counts these are.
    serial: Option<u64>,
    files: Vec<File>,
}

impl Counts {
    /// Of the function in `folder`, its place in sysfs: those of the messages that are enabled, or
    /// else of the pin; `None` if the kernel does not say. `irqs` is where it counts,
    /// `/sys/kernel/irq`; `serial` changes whenever others are enabled.
    pub(super) fn read(&mut self, folder: &Path, irqs: &Path, serial: u64) -> Option<u64> {
        if self.serial == Some(serial) {
            // What has gone meanwhile cannot be read any more.
            if let Some(count) = self.sum() {
                return Some(count);
            }
        }
        *self = Self { serial: Some(serial), files: open(folder, irqs)? };
        self.sum()
    }

    fn sum(&self) -> Option<u64> {
        self.files.iter().map(count).sum()
    }
}

fn open(folder: &Path, irqs: &Path) -> Option<Vec<File>> {
    let messages: Vec<String> = fs::read_dir(folder.join("msi_irqs"))
        .map(|list| list.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    let numbers = if messages.is_empty() {
        vec![fs::read_to_string(folder.join("irq")).ok()?.trim().to_owned()]
    } else {
        messages
    };
    numbers.iter().map(|number| File::open(irqs.join(number).join("per_cpu_count")).ok()).collect()
}

fn count(file: &File) -> Option<u64> {
    // A page, which is the longest that the kernel says.
    let mut bytes = [0; 4096];
    let len = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..len])
        .ok()?
        .trim()
        .split(',')
        .map(|count| count.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_processors_are_counted_and_else_the_pin() {
        let root = tempfile::tempdir().unwrap();
        let (folder, irqs) = (root.path().join("device"), root.path().join("irq"));
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let counted = |serial| Counts::default().read(&folder, &irqs, serial);
        write(&folder.join("irq"), "11\n");
        write(&irqs.join("11/per_cpu_count"), "5,0\n");
        assert_eq!(counted(0), Some(5));
        write(&folder.join("msi_irqs/30"), "msix\n");
        write(&folder.join("msi_irqs/31"), "msix\n");
        write(&irqs.join("30/per_cpu_count"), "1,2\n");
        assert_eq!(counted(0), None);
        write(&irqs.join("31/per_cpu_count"), "4,8\n");
        assert_eq!(counted(0), Some(15));
    }

    #[test]
    fn a_count_is_read_anew_and_others_are_counted_once_they_are_enabled() {
        let root = tempfile::tempdir().unwrap();
        let (folder, irqs) = (root.path().join("device"), root.path().join("irq"));
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let mut counts = Counts::default();
        write(&folder.join("msi_irqs/30"), "msix\n");
        write(&irqs.join("30/per_cpu_count"), "1,2\n");
        assert_eq!(counts.read(&folder, &irqs, 1), Some(3));
        write(&irqs.join("30/per_cpu_count"), "1,9\n");
        assert_eq!(counts.read(&folder, &irqs, 1), Some(10));
        write(&folder.join("msi_irqs/31"), "msix\n");
        write(&irqs.join("31/per_cpu_count"), "5,0\n");
        assert_eq!(counts.read(&folder, &irqs, 2), Some(15));
        // The kernel's files of an interrupt that is gone cannot be read; here, they say nothing.
        fs::remove_file(folder.join("msi_irqs/30")).unwrap();
        write(&irqs.join("30/per_cpu_count"), "");
        assert_eq!(counts.read(&folder, &irqs, 2), Some(5));
    }
}
