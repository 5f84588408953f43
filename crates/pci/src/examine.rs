//! Looking beforehand for what would stand in the way of claiming a function.

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::{Address, Blocked, Function, Host, Obstacle, VFIO_DRIVER, group, holders, uses};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, in a word or two.
    pub what: &'static str,
    /// How it is, or what stands in the way.
    pub found: Result<String, Blocked>,
}

/// Looks at what concerns every function: IOMMU, module, interrupt remapping, and whether `arena` bytes can be locked.
pub fn examine_machine(host: &Host, arena: u64) -> Vec<Check> {
    let groups = host.names("sys/kernel/iommu_groups").len();
    let iommu = if groups > 0 { Ok(format!("active, {groups} groups")) } else { Err(Obstacle::NoIommu) };
    let behind_iommu = iommu.is_ok();
    let mut checks = vec![("IOMMU", iommu), ("module", module(host))];
    if behind_iommu {
        checks.push(("interrupt remapping", interrupt_remapping(host)));
    }
    checks.push(("memory lock", memory_lock(host, arena)));
    named(checks, None)
}

/// Looks at one function, and then at the machine: everything is fine if `open` would succeed.
pub fn examine(host: &Host, address: Address, arena: u64) -> Vec<Check> {
    let Some(function) = Function::read(host, address) else {
        return named(vec![("function", Err(Obstacle::NoFunction))], Some(address));
    };
    let described = format!("{}, {}", function.class_name(), function.name());
    let mut checks = vec![("function", if function.is_bridge() { Err(Obstacle::Bridge) } else { Ok(described) })];
    let mine = function.driver.as_deref().is_some_and(group::is_vfio);
    if !mine {
        let uses = uses(host, address);
        checks.push(("use", if uses.is_empty() { Ok("none".into()) } else { Err(Obstacle::InUse { uses }) }));
    }
    checks.push((
        "driver",
        if mine { Ok(VFIO_DRIVER.into()) } else { Err(Obstacle::NotBound { driver: function.driver.clone() }) },
    ));
    match function.iommu_group {
        None => checks.push(("IOMMU group", Err(Obstacle::NoIommu))),
        Some(number) => checks.extend(group_checks(host, address, number)),
    }
    checks.push(("reset", Ok(reset(&function))));
    let mut checks = named(checks, Some(address));
    let machine = examine_machine(host, arena).into_iter();
    // Without a group, the machine's lack of an IOMMU has been said already.
    checks.extend(machine.filter(|check| check.what != "IOMMU" || function.iommu_group.is_some()));
    checks
}

fn named(checks: Vec<(&'static str, Result<String, Obstacle>)>, address: Option<Address>) -> Vec<Check> {
    checks.into_iter().map(|(what, found)| Check { what, found: found.map_err(|obstacle| obstacle.at(address)) }).collect()
}

fn group_checks(host: &Host, address: Address, number: u32) -> Vec<(&'static str, Result<String, Obstacle>)> {
    let mut blockers = group::blockers(host, number);
    // Its own driver has a check of its own.
    blockers.retain(|(member, _)| *member != address);
    let others = group::members(host, number).len().saturating_sub(1);
    let viable = match blockers.is_empty() {
        true => Ok(format!("{number}, shared with {others} other functions").replace("shared with 0 other functions", "its own")),
        false => Err(Obstacle::GroupNotViable { group: number, blockers }),
    };
    let mut checks = vec![("IOMMU group", viable)];
    let path = format!("dev/vfio/{number}");
    if host.path(&path).exists() {
        let holders = holders(host, &path);
        let allowed = access(host.path(&path), Access::READ_OK | Access::WRITE_OK).is_ok();
        let path = format!("/{path}");
        checks.push(("permission", if allowed { Ok(path.clone()) } else { Err(Obstacle::NoPermission { path: path.clone() }) }));
        checks.push(("owner", if holders.is_empty() { Ok("none".into()) } else { Err(Obstacle::Busy { path, holders }) }));
    }
    checks
}

fn reset(function: &Function) -> String {
    match function.reset_methods.as_slice() {
        [] => "none: a driver that dies leaves the device as it is, with its transfers stopped".into(),
        methods => methods.join(", "),
    }
}

fn module(host: &Host) -> Result<String, Obstacle> {
    let there = host.path(&format!("sys/bus/pci/drivers/{VFIO_DRIVER}")).is_dir();
    let missing = Obstacle::NoModule { module: VFIO_DRIVER.into(), reason: None };
    if there { Ok(format!("{VFIO_DRIVER} is loaded")) } else { Err(missing) }
}

/// The kernel prefixes the interrupt controllers behind a remapping IOMMU with `IR-`; other architectures have no such thing.
fn interrupt_remapping(host: &Host) -> Result<String, Obstacle> {
    let interrupts = host.text("proc/interrupts").unwrap_or_default();
    let unsafe_allowed = host.text("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts");
    if interrupts.contains("IR-") {
        Ok("active".into())
    } else if !interrupts.contains("IO-APIC") && !interrupts.contains("PCI-MSI") {
        Ok("not of this machine's kind".into())
    } else if unsafe_allowed.as_deref() == Some("Y") {
        Ok("off, and allowed to be (allow_unsafe_interrupts)".into())
    } else {
        Err(Obstacle::NoInterruptRemapping)
    }
}

/// `CAP_IPC_LOCK`: who has it locks as much as there is. [capabilities(7)]
const CAP_IPC_LOCK: u32 = 14;

fn memory_lock(host: &Host, arena: u64) -> Result<String, Obstacle> {
    let status = host.text("proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if capabilities.unwrap_or(0) >> CAP_IPC_LOCK & 1 == 1 {
        return Ok("unlimited (CAP_IPC_LOCK)".into());
    }
    let limits = host.text("proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    match soft.and_then(|soft| soft.parse::<u64>().ok()) {
        Some(limit) if limit < arena => Err(Obstacle::Memlock { needed: arena, limit }),
        Some(limit) => Ok(format!("{} KiB", limit >> 10)),
        None => Ok("unlimited".into()),
    }
}
