//! The backend on QEMU's devices behind an IOMMU: these tests run in a guest, where they are root
//! and may break things.
//!
//! On the host, the first of them boots one guest that runs them all; each then looks for its own
//! line in what came out. `RING3_TEST_KERNEL` chooses another kernel than the lab's usual one, such
//! as 7.2.

mod edu;
mod lease;
mod nvme;
mod ports;
mod saved;

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use ring3_device::Deadline;
use ring3_lab::{Cache, Device, Guest};

use super::{Vfio, open};
use crate::OpenOptions;

/// Set in the guest.
const MARK: &str = "RING3_IN_GUEST";

/// Declares tests that run in the guest.
macro_rules! guest_tests {
    ($(fn $name:ident() $body:block)*) => {$(
        #[test]
        #[ignore = "boots a guest"]
        fn $name() {
            super::in_guest(concat!(module_path!(), "::", stringify!($name)), || $body)
        }
    )*};
}
use guest_tests;

fn in_guest(path: &str, act: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return act();
    }
    static OUTPUT: OnceLock<String> = OnceLock::new();
    let output = OUTPUT.get_or_init(boot);
    let name = path.split_once("::").map_or(path, |(_, name)| name);
    assert!(
        output.lines().any(|line| line == format!("test {name} ... ok")),
        "in the guest:\n{output}"
    );
}

/// Boots a guest with all devices bound, runs every test of this module there, and returns what
/// they printed.
fn boot() -> String {
    let program = std::env::current_exe().unwrap();
    let bound =
        |id: &str, model: &str| Device { bind: Some("vfio-pci".into()), ..Device::new(id, model) };
    let nvme = Device { size: Some("64M".parse().unwrap()), ..bound("nvme", "nvme") };
    let testdev = Device { addr: Some("6".into()), ..bound("testdev", "pci-testdev") };
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    // With two processors on threads of their own, QEMU 10.0 now and then loses the timer of the
    // second while these tests change the memory map (BARs switched off and on), and the guest
    // stands still.
    let mut guest = Guest { vcpus: Some(1), ..Guest::new("vfio-backend") }
        .device(bound("edu", "edu"))
        .device(nvme)
        .device(testdev)
        .program(Path::new(&program))
        .variable(MARK, "1")
        .step(
            "tests",
            &format!(
                "timeout 90 {name} vfio::tests:: --ignored --test-threads=1 2>&1 || dmesg | \
                 tail -n 20"
            ),
        );
    if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
        guest.kernel = kernel;
    }
    // A guest that failed is not booted again by each test.
    match Cache::open().and_then(|cache| guest.run(&cache, &mut |_| {})) {
        Ok(outcome) => format!("{}{}", outcome.messages, outcome.output()),
        Err(error) => error.to_string(),
    }
}

/// The address of the device that the guest has under this name.
fn address(variable: &str) -> String {
    std::env::var(variable).unwrap()
}

fn claim_with(variable: &str, options: OpenOptions) -> Vfio {
    open(&format!("vfio:{}", address(variable)).parse().unwrap(), options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Claims the device that the guest has under this name, by the way that `options` name.
fn claim_by(variable: &str, options: &str) -> Vfio {
    let uri = format!("vfio:{}{options}", address(variable)).parse().unwrap();
    open(&uri, OpenOptions { arena: 1 << 20, ..OpenOptions::default() }).unwrap()
}

/// Claims the device that the guest has under this name.
fn claim(variable: &str) -> Vfio {
    claim_with(variable, OpenOptions { arena: 1 << 20, below: 1 << 28, ..OpenOptions::default() })
}

/// COMMAND as everybody else sees it.
fn command_in_sysfs(variable: &str) -> u16 {
    let config =
        std::fs::read(format!("/sys/bus/pci/devices/{}/config", address(variable))).unwrap();
    u16::from_le_bytes([config[4], config[5]])
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn not_long() -> Deadline {
    Deadline::after(Duration::from_millis(100))
}
