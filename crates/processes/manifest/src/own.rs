//! The manifests of ring3 itself.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use ring3_quirks::{Overrides, Table};

use crate::{Error, Identity, Manifest, Part, Role};

const DRIVERS: [&str; 7] = [
    include_str!("../../../drivers/driver/src/nvme/manifest.toml"),
    include_str!("../../../drivers/driver/src/ata/ahci/manifest.toml"),
    include_str!("../../../drivers/driver/src/ata/ide/manifest.toml"),
    include_str!("../../../drivers/driver/src/e1000/manifest.toml"),
    include_str!("../../../drivers/driver/src/edu/manifest.toml"),
    include_str!("../../../drivers/driver/src/virtio/blk/manifest.toml"),
    include_str!("../../../drivers/driver/src/virtio/net/manifest.toml"),
];

/// The tables of quirks, each with the family of its driver.
const QUIRKS: [(&str, &str); 2] = [
    ("ata", include_str!("../../../drivers/driver/src/ata/quirks.toml")),
    ("nvme", include_str!("../../../drivers/driver/src/nvme/quirks.toml")),
];

const PARTS: [&str; 7] = [
    include_str!("../../../access/backend/src/lease/manifest.toml"),
    include_str!("../../../access/backend/src/uio/manifest.toml"),
    include_str!("../../../access/backend/src/vfio/manifest.toml"),
    include_str!("../../../access/backend/src/vfio_user/manifest.toml"),
    include_str!("../../../access/reactor/src/manifest.toml"),
    include_str!("../../host/src/manifest.toml"),
    include_str!("../../../exports/broker/src/manifest.toml"),
];

const HOSTED: &str = include_str!("../../../tools/capi/src/manifest.toml");

// One that could not be read would be absent, so that its driver is refused; a test reads them all.
static OWN: LazyLock<(Vec<Manifest>, Vec<Part>)> = LazyLock::new(|| {
    let drivers = DRIVERS.iter().filter_map(|text| Manifest::parse(text).ok()).collect();
    (drivers, PARTS.iter().filter_map(|text| Part::parse(text).ok()).collect())
});

/// All drivers, those of one family if it is named.
pub fn drivers(family: Option<&str>) -> impl Iterator<Item = &'static Manifest> {
    OWN.0
        .iter()
        .filter(move |manifest| family.is_none_or(|family| manifest.driver.family == family))
}

/// Fails if one of `words` is no quirk that the drivers of `family`, or any driver if none is
/// named, can be told of; says which there are.
pub fn check_quirks(family: Option<&str>, words: &[String]) -> Result<(), String> {
    if words.is_empty() {
        return Ok(());
    }
    let tables = QUIRKS
        .iter()
        .filter(|(of, _)| family.is_none_or(|family| family == *of))
        .filter_map(|(_, text)| Table::parse(text).ok());
    let overrides = Overrides(words.to_owned());
    let mut wrong = Vec::new();
    for table in tables {
        match overrides.check(&table) {
            Ok(()) => return Ok(()),
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() {
        return Err("its driver knows none: leave them out".into());
    }
    Err(wrong.join("; "))
}

/// What any driver has that ring3 hosts and has not written. Which functions each drives it says
/// itself, so that this one's are all.
pub fn hosted() -> &'static Manifest {
    static HOST: LazyLock<Manifest> =
        LazyLock::new(|| Manifest::parse(HOSTED).expect("a test reads it"));
    &HOST
}

/// The driver for a function, among those of a family if it is named.
pub fn find(identity: Identity, family: Option<&str>) -> Option<&'static Manifest> {
    drivers(family).find(|manifest| manifest.r#match.has(identity))
}

/// The part with a role and a name.
pub fn part(role: Role, name: &str) -> Option<&'static Part> {
    OWN.1.iter().find(|part| part.role == role && part.name == name)
}

/// What a process calls that is `drivers`, one of which it will run, over `backend`: theirs, the
/// backend's, the loop's and the host's. An error if there is no driver, or a part is missing.
pub fn system_calls<'m>(
    drivers: impl IntoIterator<Item = &'m Manifest>,
    backend: &str,
) -> Result<BTreeSet<&'m str>, Error> {
    let mut calls: BTreeSet<&str> = drivers
        .into_iter()
        .flat_map(|manifest| &manifest.system_calls.run)
        .map(|call| &**call)
        .collect();
    if calls.is_empty() {
        let names: Vec<_> = self::drivers(None).map(|known| known.driver.name.as_str()).collect();
        return Err(Error(format!("no driver has such a name; there are {}", names.join(", "))));
    }
    for (role, name) in [(Role::Backend, backend), (Role::Loop, "reactor"), (Role::Host, "drive")] {
        let part = part(role, name)
            .ok_or_else(|| Error(format!("there is no manifest of the part {name}")))?;
        calls.extend(part.system_calls.run.iter().map(|call| &**call));
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_manifests_can_be_read() {
        DRIVERS.iter().for_each(|text| drop(Manifest::parse(text).unwrap()));
        PARTS.iter().for_each(|text| drop(Part::parse(text).unwrap()));
        assert!(hosted().r#match.has(Identity {
            vendor: 0x8086,
            device: 0x10d3,
            class: 0x02_00_00
        }));
    }

    #[test]
    fn a_quirk_is_known_to_the_drivers_family() {
        let check = |family, word: &str| check_quirks(family, &[word.to_owned()]);
        for family in [None, Some("nvme")] {
            assert!(check(family, "bogus-nid").is_ok() && check(family, "no-bogus-nid").is_ok());
            assert!(check(family, "bogus").unwrap_err().contains("bogus-nid, broken-apst"));
        }
        assert!(check(Some("ata"), "bogus-nid").is_err());
    }

    #[test]
    fn a_function_finds_the_driver_that_the_registry_has_for_it() {
        for driver in ring3_driver::registry::DRIVERS {
            let own = drivers(Some(driver.family))
                .find(|manifest| manifest.driver.name == driver.name)
                .unwrap();
            assert_eq!(own, &Manifest::parse(driver.manifest).unwrap());
            assert_eq!(own.dma_limit(), 1u64.checked_shl(driver.address_bits).unwrap_or(u64::MAX));
        }
        let identity = |class| Identity { vendor: 0x8086, device: 1, class };
        assert_eq!(find(identity(0x01_06_01), None).map(|found| &*found.driver.name), Some("ahci"));
        assert_eq!(
            find(identity(0x01_01_8a), Some("ata")).map(|found| &*found.driver.name),
            Some("ide")
        );
        assert!(
            find(identity(0x01_06_01), Some("nvme")).is_none()
                && find(identity(0x02_00_00), None).is_none()
        );
    }

    #[test]
    fn the_parts_are_those_of_their_crates() {
        for name in ["lease", "uio", "vfio", "vfio-user"] {
            assert_eq!(
                part(Role::Backend, name),
                Part::parse(ring3_backend::manifest(name).unwrap()).ok().as_ref()
            );
        }
        assert_eq!(part(Role::Loop, "reactor"), Part::parse(ring3_reactor::MANIFEST).ok().as_ref());
    }

    #[test]
    fn who_shares_what_it_drives_accepts_clients_and_nobody_else_does() {
        let drivers = system_calls(drivers(None), "lease").unwrap();
        let broker = part(Role::Broker, "broker").unwrap();
        assert!(
            !drivers.contains("accept4")
                && broker.system_calls.run.iter().any(|call| call == "accept4")
        );
        assert!(
            broker
                .system_calls
                .run
                .iter()
                .all(|call| !["socket", "bind", "connect"].contains(&&**call))
        );
    }

    #[test]
    fn a_process_calls_what_its_driver_its_backend_the_loop_and_the_host_call_and_nothing_else() {
        let calls = system_calls(drivers(Some("nvme")), "lease").unwrap();
        assert!(
            ["madvise", "pread64", "io_uring_enter", "exit_group"]
                .iter()
                .all(|call| calls.contains(call))
        );
        assert!(
            ["ioctl", "openat", "execve", "socket", "ptrace", "bpf"]
                .iter()
                .all(|call| !calls.contains(call))
        );
        assert!(
            system_calls(drivers(Some("vfio")), "vfio").is_err()
                && system_calls(drivers(None), "sim").is_err()
        );
    }
}
