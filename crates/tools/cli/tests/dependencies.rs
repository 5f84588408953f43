//! The direction in which the crates know each other, as DESIGN has it:
//! host -> {driver, export, backend} -> {class, reactor} -> device -> spec.
//!
//! Tests may join what must not know each other (a driver and the model that stands in for its
//! device), so development dependencies are free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// What each crate may name. A crate that is not here has no place yet: give it one.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("spec", &[]),
    ("device", &["spec"]),
    ("class", &["device", "spec"]),
    // Mechanism, not policy: a driver cannot see which backend it runs on, nor who exports it.
    ("driver", &["class", "device", "quirks", "spec"]),
    // What drivers know of devices that are otherwise than their specification, as data.
    ("quirks", &[]),
    // One thread that waits for many things: it knows what can be waited for, and not what for.
    ("reactor", &["device"]),
    // In memory that a driver process and its supervisor share, and of neither.
    ("stats", &[]),
    // One way into the kernel, for whoever has a virtio device.
    ("vduse", &[]),
    ("export", &["class", "reactor", "spec", "stats", "vduse"]),
    // A disk goes in, and comes out in other processes: of drivers and kernels it knows nothing.
    ("broker", &["class", "device", "lease", "reactor"]),
    ("pci", &["spec"]),
    // The other side of a device: it knows what a driver knows of one, and no driver.
    ("model", &["device", "spec"]),
    // Around any device: they know what a driver knows of one.
    ("decorator", &["device", "spec"]),
    // Between a holder and a driver's process, and of neither.
    ("lease", &[]),
    // What a process needs that stands under a file system, whether it drives or supervises.
    ("process", &[]),
    // Who uses disks that processes serve, and how they are stopped for the machine's sleep.
    ("sleep", &[]),
    // What the supervisor, its driver processes and its users say to each other.
    ("control", &[]),
    // What a disk's partition table says: read in a sandbox, believed by the supervisor after a
    // look.
    ("partitions", &[]),
    // What a driver's manifest says, parsed, and those of ring3's drivers.
    ("manifest", &["lease", "quirks"]),
    // What a driver process may do, made of manifests.
    ("sandbox", &["manifest"]),
    // Any of them can be recorded, and a recording stands for one.
    ("backend", &["decorator", "device", "lease", "model", "spec", "pci"]),
    (
        "host",
        &[
            "driver",
            "export",
            "broker",
            "backend",
            "class",
            "device",
            "spec",
            "pci",
            "control",
            "lease",
            "manifest",
            "partitions",
            "process",
            "reactor",
            "sandbox",
            "stats",
        ],
    ),
    // Must survive every bug in a driver: it names none.
    (
        "supervisor",
        &[
            "backend",
            // What clients lend; of disks and drivers nothing.
            "broker",
            "class",
            "control",
            "device",
            "export",
            "lease",
            "manifest",
            "partitions",
            "pci",
            "process",
            "sandbox",
            "spec",
            "stats",
        ],
    ),
    // The device layer for C, for drivers that ring3 has not written: as ring3d's, their process is
    // the host's.
    ("capi", &["backend", "broker", "class", "decorator", "device", "driver", "host"]),
    // What C sees, for another language.
    ("python", &["capi"]),
    // Tools beside the way of the data.
    ("conformance", &["class", "device"]),
    ("bench", &["class", "device", "spec"]),
    // What goes wrong, and what an application may expect: of drivers it knows nothing.
    ("faults", &["bench"]),
    ("lab", &["bench", "pci", "spec"]),
    (
        "cli",
        &[
            "host",
            "driver",
            "export",
            "broker",
            "backend",
            "model",
            "class",
            "device",
            "spec",
            "pci",
            "bench",
            "conformance",
            "lab",
            "control",
            "decorator",
            "faults",
            "lease",
            "manifest",
            "process",
            "quirks",
            "sandbox",
            "sleep",
            "stats",
            "supervisor",
        ],
    ),
];

/// Crates that contain no unsafe code.
const SAFE: &[&str] = &[
    "spec",
    "broker",
    "class",
    "control",
    "conformance",
    "decorator",
    "driver",
    "lease",
    "manifest",
    "quirks",
];

struct Crate {
    names: BTreeSet<String>,
    root: PathBuf,
}

/// The crates below `crates/` without their prefix, each with the ones that it names outside of its
/// tests. The fuzz targets are tests.
fn crates() -> BTreeMap<String, Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let own = |name: &serde_json::Value| {
        name.as_str().and_then(|name| name.strip_prefix("ring3-")).map(str::to_owned)
    };
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let describe = |package: &serde_json::Value| {
        let names = list(&package["dependencies"])
            .iter()
            .filter(|d| d["kind"] != "dev")
            .filter_map(|d| own(&d["name"]))
            .collect();
        let root = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        (
            own(&package["name"]).expect("every crate is called ring3-something"),
            Crate { names, root },
        )
    };
    let packages = list(&metadata["packages"]);
    let is_below = |package: &&serde_json::Value| {
        package["manifest_path"].as_str().is_some_and(|path| path.contains("/crates/"))
    };
    packages.iter().filter(is_below).map(describe).collect()
}

#[test]
fn no_crate_names_one_that_it_must_not_know() {
    let rules: BTreeMap<_, _> = MAY_NAME.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, Crate { names, .. }) in crates() {
        let Some(allowed) = rules.get(name.as_str()) else {
            wrong.push(format!("{name} has no place in the rule"));
            continue;
        };
        wrong.extend(
            names
                .iter()
                .filter(|n| !allowed.contains(&n.as_str()))
                .map(|n| format!("{name} names {n}")),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The folders of `crates/`, lowest first.
const GROUPS: &[&str] = &["access", "drivers", "exports", "processes", "tools"];

/// Where a crate's folder is among [`GROUPS`].
fn group(found: &Crate) -> usize {
    let folder = found.root.ancestors().nth(2).and_then(|folder| folder.file_name());
    GROUPS
        .iter()
        .position(|name| folder.is_some_and(|folder| folder == *name))
        .unwrap_or_else(|| panic!("{} is in no folder of {GROUPS:?}", found.root.display()))
}

#[test]
fn no_crate_names_one_in_a_higher_folder() {
    let crates = crates();
    let mut wrong = Vec::new();
    for (name, found) in &crates {
        let higher = found.names.iter().filter(|other| group(&crates[*other]) > group(found));
        wrong.extend(higher.map(|other| format!("{name} names {other}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_supervisor_reaches_no_driver_by_any_way() {
    let crates = crates();
    let (mut reached, mut next) = (BTreeSet::new(), vec!["supervisor".to_owned()]);
    while let Some(name) = next.pop() {
        if let Some(found) = crates.get(&name)
            && reached.insert(name)
        {
            next.extend(found.names.iter().cloned());
        }
    }
    assert!(!reached.contains("driver"), "{reached:?}");
}

#[test]
fn specifications_classes_and_drivers_forbid_unsafe_code() {
    let crates = crates();
    for name in SAFE {
        let root = crates[*name].root.with_file_name("src").join("lib.rs");
        let source = std::fs::read_to_string(&root).expect("every crate has a lib.rs");
        assert!(source.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}
