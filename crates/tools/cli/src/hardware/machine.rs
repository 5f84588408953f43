//! What the machine is: nothing that tells it from another one of its kind.

use std::fs;
use std::path::Path;

use ring3_bench::provenance::Provenance;

use super::report::Machine;

/// The machine that this runs on.
pub fn this() -> Machine {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let Provenance { processor, processors, .. } = Provenance::now();
    Machine {
        kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
        distribution: distribution(&text("/etc/os-release")),
        architecture: std::env::consts::ARCH.into(),
        processor,
        processors: processors.into(),
        memory_bytes: memory(&text("/proc/meminfo")),
        iommu_groups: groups(Path::new("/sys/kernel/iommu_groups")),
        virtual_machine: text("/proc/cpuinfo").contains(" hypervisor"),
    }
}

/// The distribution's name for itself. [os-release(5)]
fn distribution(text: &str) -> String {
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "unknown".into(), |name| name.trim_matches('"').to_owned())
}

/// Bytes of memory that the kernel uses. [proc_meminfo(5)]
fn memory(text: &str) -> u64 {
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0) << 10
}

fn groups(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_the_kernels_files() {
        assert_eq!(distribution("ID=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
        assert_eq!(distribution("ID=x\n"), "unknown");
        assert_eq!(memory("MemTotal:       2048 kB\nMemFree: 1 kB\n"), 2 << 20);
        assert_eq!(groups(Path::new("/no/such/folder")), 0);
        let this = this();
        assert!(!this.kernel.is_empty() && this.processors > 0 && this.memory_bytes > 0);
    }
}
