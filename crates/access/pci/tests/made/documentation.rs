//! docs/errors.md explains every obstacle under its name, in the words that are printed.

use ring3_pci::{Address, Holder, Obstacle, PassthroughDriver, Use};

fn obstacles() -> Vec<Obstacle> {
    let other: Address = "0000:01:00.1".parse().unwrap();
    let mounted = Use::Mounted { disk: "nvme0n1p2".into(), at: "/home".into(), inside: None };
    let held = Use::Held { disk: "nvme0n1p3".into(), by: "dm-0".into() };
    let holder = |name: &str| Holder { pid: 4711, name: name.into() };
    let inside =
        Use::Mounted { disk: "sda1".into(), at: "/data".into(), inside: Some(holder("sleep")) };
    let open = Use::Open { device: "nvme0n1".into(), by: holder("qemu") };
    vec![
        Obstacle::NoFunction,
        Obstacle::Bridge,
        Obstacle::NoIommu,
        Obstacle::NoModule { module: "vfio-pci".into(), reason: None },
        Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: Some("nvme".into()) },
        Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: None },
        Obstacle::NotBound { way: PassthroughDriver::Uio, driver: None },
        Obstacle::InUse { uses: vec![mounted, held] },
        Obstacle::InUse { uses: vec![inside] },
        Obstacle::InUse { uses: vec![open] },
        Obstacle::InUse { uses: vec![Use::Claimed { disk: "sdb".into() }] },
        Obstacle::UseUnknown {
            reasons: vec!["the open files of 14 processes may not be read".into()],
        },
        Obstacle::Unreadable {
            reason: "/sys/bus/pci/devices/0000:01:00.0/vendor: Too many open files (os error 24)"
                .into(),
            too_many_files: true,
        },
        Obstacle::GroupNotViable { group: 7, blockers: vec![(other, "snd_hda_intel".into())] },
        Obstacle::ReservedMemory { group: 7, ranges: vec![(0xbdf6_e000, 0xbdf7_ffff)] },
        Obstacle::PhysicalFunction { physical: "0000:01:00.0".parse().unwrap() },
        Obstacle::Lockdown { level: "integrity".into() },
        Obstacle::NoPermission { path: "/dev/vfio/7".into() },
        Obstacle::Busy {
            path: "/dev/vfio/7".into(),
            holders: vec![Holder { pid: 4711, name: "ring3".into() }],
        },
        Obstacle::Busy { path: "/dev/vfio/7".into(), holders: vec![] },
        Obstacle::Memlock { needed: 64 << 20, limit: 8 << 20 },
        Obstacle::NoInterruptRemapping,
        Obstacle::Unprotected { iommu: true },
        Obstacle::Translated { group: 7, kind: "DMA-FQ".into() },
        Obstacle::NoHugePages { needed: 32, found: 5, below: u64::MAX, total: 16 },
        Obstacle::NoHugePages { needed: 32, found: 5, below: 1 << 32, total: 16 },
        Obstacle::NoPhysicalAddresses,
    ]
}

#[test]
fn every_obstacle_is_explained_under_its_name_in_the_words_that_are_printed() {
    let text = include_str!("../../../../../docs/errors.md");
    for obstacle in obstacles() {
        let heading = format!("\n## {}\n", obstacle.name());
        let (_, section) =
            text.split_once(&heading).unwrap_or_else(|| panic!("no heading {}", obstacle.name()));
        let section = section.split("\n## ").next().unwrap();
        let problem = obstacle.at("0000:01:00.0".parse::<Address>().unwrap()).problem();
        // The addresses of the examples differ.
        let words = problem.strip_prefix("0000:01:00.0: ").unwrap();
        assert!(section.contains(words), "{words:?} is not under {heading:?}");
        assert!(section.contains("**Cause.**") && section.contains("**Mend.**"), "{heading}");
    }
}

#[test]
fn the_disk_of_the_running_system_is_not_offered_for_unmounting() {
    for at in ["/", "/usr", "/boot/efi", "/var"] {
        let mounted = Use::Mounted { disk: "nvme0n1p2".into(), at: at.into(), inside: None };
        let blocked =
            Obstacle::InUse { uses: vec![mounted] }.at("0000:01:00.0".parse::<Address>().unwrap());
        let [mend] = &blocked.remedy()[..] else { panic!("{:?}", blocked.remedy()) };
        assert!(
            !mend.contains("umount") && mend.contains("leave this function to the kernel"),
            "{mend}"
        );
        assert!(blocked.undo().is_empty(), "{:?}", blocked.undo());
    }
}

#[test]
fn the_mend_of_a_missing_iommu_names_the_distributions_whose_kernels_have_it_off() {
    let mend = Obstacle::NoIommu.at("0000:01:00.0".parse::<Address>().unwrap()).remedy().join("\n");
    assert!(
        mend.contains("grubby") && mend.contains("Fedora") && !mend.contains("update-grub"),
        "{mend}"
    );
}
