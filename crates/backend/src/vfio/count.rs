//! How many interrupts of a function the kernel has taken, as it says itself.

use std::fs;
use std::path::Path;

/// Of the function in `folder`, its place in sysfs: those of the messages that are enabled, or else of the pin; `None` if the kernel does not say. `irqs` is where it counts,
/// `/sys/kernel/irq`.
pub(super) fn interrupts(folder: &Path, irqs: &Path) -> Option<u64> {
    let messages: Vec<String> = fs::read_dir(folder.join("msi_irqs"))
        .map(|list| list.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    let numbers =
        if messages.is_empty() { vec![fs::read_to_string(folder.join("irq")).ok()?.trim().to_owned()] } else { messages };
    numbers.iter().map(|number| count(&irqs.join(number).join("per_cpu_count"))).sum()
}

fn count(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().split(',').map(|count| count.parse::<u64>().ok()).sum()
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
        write(&folder.join("irq"), "11\n");
        write(&irqs.join("11/per_cpu_count"), "5,0\n");
        assert_eq!(interrupts(&folder, &irqs), Some(5));
        write(&folder.join("msi_irqs/30"), "msix\n");
        write(&folder.join("msi_irqs/31"), "msix\n");
        write(&irqs.join("30/per_cpu_count"), "1,2\n");
        assert_eq!(interrupts(&folder, &irqs), None);
        write(&irqs.join("31/per_cpu_count"), "4,8\n");
        assert_eq!(interrupts(&folder, &irqs), Some(15));
    }
}
