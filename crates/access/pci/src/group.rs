//! IOMMU groups: functions that the IOMMU cannot tell apart, and that therefore go to a process
//! together or not at all.

use crate::{Address, Function, Host, PassthroughDriver};

/// The functions of an IOMMU group, by address.
pub fn members(host: &Host, group: u32) -> Vec<Function> {
    let names = host.names(&format!("sys/kernel/iommu_groups/{group}/devices"));
    names.iter().filter_map(|name| Function::read(host, name.parse().ok()?).ok()).collect()
}

/// The members of a group that keep it from being viable, with their drivers. [Linux,
/// Documentation/driver-api/vfio.rst]
///
/// A driver that may start transfers of its own would reach the process' memory, and the process
/// its. Without a driver, or with one that leaves transfers alone, a member does no harm.
pub fn blockers(host: &Host, group: u32) -> Vec<(Address, String)> {
    let blocker = |function: Function| {
        Some((function.address, function.driver.filter(|driver| !is_harmless(driver))?))
    };
    members(host, group).into_iter().filter_map(blocker).collect()
}

/// VFIO's drivers, the stub, and the driver of PCI Express ports.
fn is_harmless(driver: &str) -> bool {
    PassthroughDriver::of(driver) == Some(PassthroughDriver::Vfio)
        || driver == "pci-stub"
        || driver == "pcieport"
}
