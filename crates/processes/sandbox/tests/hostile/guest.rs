//! The guest in which the tests run.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use ring3_lab::{Cache, Device, Guest};

/// Set in the guest.
const MARK: &str = "RING3_IN_GUEST";

/// Declares tests that run in the guest, as root and as a hostile process.
macro_rules! guest_tests {
    ($(fn $name:ident() $body:block)*) => {$(
        #[test]
        #[ignore = "boots a guest: make test"]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            $crate::guest::in_guest(path.split_once("::").map_or(path, |(_, name)| name), || $body)
        }
    )*};
}
pub(crate) use guest_tests;

pub fn in_guest(name: &str, act: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() || crate::is_child() {
        return act();
    }
    static OUTPUT: OnceLock<String> = OnceLock::new();
    let output = OUTPUT.get_or_init(boot);
    assert!(
        output.lines().any(|line| line == format!("test {name} ... ok")),
        "in the guest:\n{output}"
    );
}

fn boot() -> String {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let run = format!("timeout 500 {name} --ignored --test-threads=1 2>&1; dmesg | tail -n 40");
    let edu = Device { bind: Some("vfio-pci".into()), ..Device::new("edu", "edu") };
    let mut guest =
        Guest { vcpus: Some(1), time_limit: Duration::from_secs(600), ..Guest::new("hostile") }
            .device(edu)
            .program(Path::new(&program))
            .variable(MARK, "1")
            .step("tests", &run);
    if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
        guest.kernel = kernel;
    }
    // A guest that failed is not booted again by each test.
    match Cache::open().and_then(|cache| guest.run(&cache, &mut |_| {})) {
        Ok(outcome) => format!("{}{}", outcome.messages, outcome.output()),
        Err(error) => error.to_string(),
    }
}
