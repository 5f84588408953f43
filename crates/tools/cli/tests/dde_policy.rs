//! A hosted driver that reaches for what is not its device's. Each trespass is a line in Linux's
//! 8139cp, compiled in the place of the kernel's file for the length of a test.

use std::path::Path;
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
const FILE: &str = "drivers/net/ethernet/realtek/8139cp.c";
/// Its registers are there, and nothing was read from them.
const PLACE: &str = "\tcp->regs = regs;\n";

/// What the suite says of a card whose driver does `trespass` when it probes.
fn check_with(trespass: &str) -> Output {
    let cache = ring3_lab::Cache::open().unwrap();
    let source = std::fs::read_to_string(cache.path("sources/6.12/source").join(FILE)).unwrap();
    assert_eq!(source.matches(PLACE).count(), 1, "{FILE} is not what it was");
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join(FILE);
    std::fs::create_dir_all(changed.parent().unwrap()).unwrap();
    std::fs::write(&changed, source.replace(PLACE, &format!("{PLACE}\t{{ {trespass} }}\n")))
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.env("RING3_DDE", Path::new(ROOT).join("dde"));
    command.args([
        "net",
        "check",
        "--driver",
        "dde:8139cp",
        "--device",
        "qtest:rtl8139",
        "--packets",
        "16",
        "--overlay",
    ]);
    command.arg(folder.path()).output().unwrap()
}

/// Both of its outputs.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn a_register_behind_the_devices_own_ends_the_process_with_its_place() {
    let output = check_with("readl(regs + 0x1000);");
    assert!(!output.status.success());
    assert!(
        said(&output)
            .contains("the driver reads 4 bytes at register 0x1000, where its device has none"),
        "{}",
        said(&output)
    );
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn a_port_that_is_not_the_devices_ends_the_process_with_its_number() {
    let output = check_with("outb(0, 0x70);");
    assert!(!output.status.success());
    assert!(
        said(&output).contains("the driver writes 1 bytes at port 0x70, where its device has none"),
        "{}",
        said(&output)
    );
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn memory_and_configuration_of_others_are_not_there_and_its_own_addresses_may_be_changed_without_effect()
 {
    let output = check_with(
        r#"
        u32 there = 0, before, changed;
        int refused = pci_bus_write_config_dword(pdev->bus, PCI_DEVFN(31, 0), PCI_COMMAND, 0);
        pci_bus_read_config_dword(pdev->bus, PCI_DEVFN(31, 0), PCI_VENDOR_ID, &there);
        pr_err("policy: memory %d, configuration %#x, refused %d\n",
               ioremap(0x1000, 4096) != NULL, there, refused != 0);
        pci_read_config_dword(pdev, PCI_BASE_ADDRESS_1, &before);
        pci_write_config_dword(pdev, PCI_BASE_ADDRESS_1, 0xfee00000);
        pci_read_config_dword(pdev, PCI_BASE_ADDRESS_1, &changed);
        pr_err("policy: address %d, identity %d\n", changed != before, readl(regs) != ~0u);
        pci_write_config_dword(pdev, PCI_BASE_ADDRESS_1, before);
        "#,
    );
    let said = said(&output);
    assert!(said.contains("policy: memory 0, configuration 0xffffffff, refused 1"), "{said}");
    assert!(said.contains("policy: address 1, identity 1"), "{said}");
    // And the card is as it should be, whoever has written what.
    assert!(output.status.success(), "{said}");
}
