//! Faults of the IOMMU: transfers that a device has tried and that were refused, from the kernel's
//! log.
//!
//! The kernel tells nobody else of a fault in a domain of VFIO's. It writes no more than a few
//! lines in five seconds, so that a storm is counted as a few.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Faults by address of a function, since this was made.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<BTreeMap<String, u64>>>);

impl Faults {
    /// Counts what the kernel says from now on, in a thread of its own. Where its log cannot be
    /// read, that is said, and everything stays 0.
    pub fn watch() -> Self {
        let faults = Self::default();
        let input = io::stdin();
        match open(input.as_fd()).and_then(|mut log| log.seek(SeekFrom::End(0)).map(|_| log)) {
            Ok(log) => {
                let counts = faults.clone();
                let spawned = std::thread::Builder::new()
                    .name("ring3d-faults".into())
                    .spawn(move || counts.follow(log));
                drop(spawned.inspect_err(|error| {
                    tracing::warn!("faults of the IOMMU are not counted: {error}")
                }));
            }
            Err(error) => tracing::warn!("faults of the IOMMU are not counted: /dev/kmsg: {error}"),
        }
        faults
    }

    /// How many there were of the function at `address`, such as `0000:01:00.0`.
    pub fn of(&self, address: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(address).copied().unwrap_or(0)
    }

    fn follow(&self, mut log: impl Read) {
        let mut record = [0; 8192];
        loop {
            match log.read(&mut record) {
                Ok(0) => return,
                Ok(len) => self.note(&String::from_utf8_lossy(&record[..len])),
                // Lines were overwritten before they were read: what follows is there. [dev-kmsg]
                Err(error)
                    if [ErrorKind::BrokenPipe, ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => {
                    return tracing::warn!("faults of the IOMMU are counted no more: {error}");
                }
            }
        }
    }

    fn note(&self, record: &str) {
        if let Some(address) = message(record).and_then(faulted) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(address).or_default() += 1;
        }
    }
}

/// The kernel's log: `input`, if whoever started this process has opened the log there, because
/// this process may not; else by its name.
fn open(input: BorrowedFd<'_>) -> io::Result<File> {
    // [Linux, Documentation/admin-guide/devices.txt]
    const KMSG: (u32, u32) = (1, 11);
    let passed = rustix::fs::fstat(input).is_ok_and(|file| {
        let number = (rustix::fs::major(file.st_rdev), rustix::fs::minor(file.st_rdev));
        rustix::fs::FileType::from_raw_mode(file.st_mode) == rustix::fs::FileType::CharacterDevice
            && number == KMSG
    });
    if passed { input.try_clone_to_owned().map(File::from) } else { File::open("/dev/kmsg") }
}

/// The text of a record of `/dev/kmsg`, if the kernel itself wrote it. [Linux,
/// `Documentation/ABI/testing/dev-kmsg`]
fn message(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    // The facility of the kernel is 0; others write, too.
    (priority >> 3 == 0).then(|| text.lines().next()).flatten()
}

/// The function whose transfer a line of the kernel's log says was refused.
fn faulted(line: &str) -> Option<String> {
    let inside = |before: &str, ends: &[char]| {
        let rest = line.split_once(before)?.1;
        rest.split(ends).next()
    };
    let address = if line.contains("DMAR: [") {
        // [Linux, `drivers/iommu/intel/dmar.c`, dmar_fault_do_one]
        inside("Request device [", &[']'])
    } else if line.contains("AMD-Vi: Event logged [") {
        // By its own number, or by the driver's name and its own before the message. [Linux,
        // `drivers/iommu/amd/iommu.c`]
        inside("device=", &[' ', ']']).or_else(|| {
            line.split("AMD-Vi: ").next()?.trim_end_matches([':', ' ']).rsplit(' ').next()
        })
    } else if line.contains("arm-smmu") && line.contains("event: ") {
        // [Linux, `drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c`, arm_smmu_dump_event]
        inside("client: ", &[' '])
    } else {
        None
    }?;
    // Without a domain, it is the first.
    let whole = if address.matches(':').count() == 1 {
        format!("0000:{address}")
    } else {
        address.to_owned()
    };
    whole.parse::<ring3_pci::Address>().ok().map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_kernels_words_for_a_fault_name_the_function() {
        for (line, address) in [
            (
                "DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0xdead000 [fault \
                reason 0x05] PTE Write access is not set",
                "0000:01:00.0",
            ),
            (
                "DMAR: [DMA Read] Request device [0000:3f:1f.7] fault addr 1000 [fault reason 06] \
                PTE Read access is not set",
                "0000:3f:1f.7",
            ),
            (
                "DMAR: [INTR-REMAP] Request device [f0:1f.7] fault index 0 [fault reason 37] \
                Blocked a compatibility format interrupt request",
                "0000:f0:1f.7",
            ),
            (
                "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:02:00.1 domain=0x000a \
                address=0x1000 flags=0x0020]",
                "0000:02:00.1",
            ),
            (
                "vfio-pci 0001:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000a \
                address=0x1000 flags=0x0020]",
                "0001:02:00.0",
            ),
            (
                "arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: 0000:01:00.0 sid: \
                0x100 ssid: 0x0 iova: 0x0 ipa: 0x0",
                "0000:01:00.0",
            ),
        ] {
            assert_eq!(faulted(line).as_deref(), Some(address), "{line}");
        }
    }

    #[test]
    fn other_lines_are_no_faults() {
        for line in [
            "DMAR: DRHD: handling fault status reg 3",
            "DMAR: [DMA Write] Request device [zz] fault addr 0",
            "AMD-Vi: Event logged [COMMAND_HARDWARE_ERROR address=0x0]",
            "pci 0000:01:00.0: BAR 0: assigned",
            "",
        ] {
            assert_eq!(faulted(line), None, "{line}");
        }
    }

    #[test]
    fn faults_are_counted_by_function_and_only_if_the_kernel_says_so() {
        let faults = Faults::default();
        let line = "DMAR: [DMA Write] Request device [01:00.0] fault addr 0 [fault reason 05] x";
        faults.note(&format!("3,100,200,-;{line}\n SUBSYSTEM=pci\n"));
        faults.note(&format!("3,101,200,-;{line}\n"));
        // Somebody who may write to the log.
        faults.note(&format!("12,102,200,-;{line}\n"));
        faults.note(line);
        assert_eq!((faults.of("0000:01:00.0"), faults.of("0000:02:00.0")), (2, 0));
    }

    proptest! {
        #[test]
        fn no_line_is_worse_than_none(
            line in "\\PC*",
            record in "3,[0-9;,]*;(DMAR: \\[|AMD-Vi: Event logged \\[|arm-smmu event: )\\PC*",
        ) {
            let _ = faulted(&line);
            Faults::default().note(&record);
        }
    }
}
