//! Looking beforehand for what would stand in the way of claiming a function.

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::uio::check_huge_pages;
use crate::{
    Address, Blocked, Function, Host, IOMMUFD, Obstacle, PassthroughDriver, Usage, group, uio_file,
};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, in a word or two.
    pub what: &'static str,
    /// How it is, or what stands in the way.
    pub found: Result<String, Blocked>,
}

/// Looks at what concerns every function on `way`: IOMMU, module, interrupt remapping, and whether
/// there may be `arena` bytes of memory for it.
pub fn examine_machine(host: &Host, way: PassthroughDriver, arena: u64) -> Vec<Check> {
    let mut checks = vec![("module", module(host, way))];
    match way {
        PassthroughDriver::Vfio => {
            let groups = host.names("sys/kernel/iommu_groups").len();
            checks.insert(
                0,
                (
                    "IOMMU",
                    if groups > 0 {
                        Ok(format!("active, {groups} groups"))
                    } else {
                        Err(Obstacle::NoIommu)
                    },
                ),
            );
            if groups > 0 {
                checks.push(("interrupt remapping", interrupt_remapping(host)));
            }
            checks.push(("memory lock", memory_lock(host, arena)));
        }
        PassthroughDriver::Uio => {
            checks.push(("huge pages", check_huge_pages(host, arena)));
            let allowed = has_capability(host, CAP_SYS_ADMIN);
            let found = if allowed {
                Ok("visible (CAP_SYS_ADMIN)".into())
            } else {
                Err(Obstacle::NoPhysicalAddresses)
            };
            checks.push(("physical addresses", found));
        }
    }
    named(checks, None)
}

/// Looks at one function, and then at the machine: everything is fine if `open` on `way` would
/// succeed.
pub fn examine(host: &Host, address: Address, way: PassthroughDriver, arena: u64) -> Vec<Check> {
    let function = match Function::read(host, address) {
        Ok(function) => function,
        Err(obstacle) => return named(vec![("function", Err(obstacle))], Some(address)),
    };
    let described = format!("{}, {}", function.class_name(), function.name());
    let mut checks = vec![(
        "function",
        if function.is_bridge() { Err(Obstacle::Bridge) } else { Ok(described) },
    )];
    if function.way().is_none() {
        checks.push((
            "use",
            Usage::probe(host, address).obstacle().map_or_else(|| Ok("none".into()), Err),
        ));
    }
    let not_bound = Obstacle::NotBound { way, driver: function.driver.clone() };
    checks.push((
        "driver",
        if function.way() == Some(way) { Ok(way.driver().into()) } else { Err(not_bound) },
    ));
    match (way, function.iommu_group) {
        (PassthroughDriver::Vfio, None) if function.is_confined(host) => {
            checks.push(("IOMMU group", Ok("given with its first driver".into())));
        }
        (PassthroughDriver::Vfio, None) => checks.push(("IOMMU group", Err(Obstacle::NoIommu))),
        (PassthroughDriver::Vfio, Some(number)) => {
            checks.extend(group_checks(host, &function, number))
        }
        (PassthroughDriver::Uio, _) => checks.extend(uio_checks(host, &function)),
    }
    checks.push(("reset", Ok(reset(&function))));
    let mut checks = named(checks, Some(address));
    let machine = examine_machine(host, way, arena).into_iter();
    // Without a group, the machine's lack of an IOMMU has been said already.
    checks.extend(machine.filter(|check| check.what != "IOMMU" || function.iommu_group.is_some()));
    checks
}

fn uio_checks(host: &Host, function: &Function) -> Vec<(&'static str, Result<String, Obstacle>)> {
    let protection = "none: every transfer reaches memory, so opening it takes --unprotected";
    let pin = match function.has_pin(host) {
        true => "the pin",
        false => "none: the driver polls",
    };
    let mut checks = vec![
        ("protection", function.check_untranslated(host).map(|()| protection.into())),
        ("lockdown", lockdown(host).map_or_else(|| Ok("none".into()), Err)),
        ("interrupt", Ok(pin.into())),
    ];
    if let Some(file) = uio_file(host, function.address) {
        checks.extend(file_checks(host, function, &[format!("dev/{file}")]));
    }
    checks
}

fn named(
    checks: Vec<(&'static str, Result<String, Obstacle>)>,
    address: Option<Address>,
) -> Vec<Check> {
    checks
        .into_iter()
        .map(|(what, found)| Check { what, found: found.map_err(|obstacle| obstacle.at(address)) })
        .collect()
}

fn group_checks(
    host: &Host,
    function: &Function,
    number: u32,
) -> Vec<(&'static str, Result<String, Obstacle>)> {
    let mut blockers = group::blockers(host, number);
    // Its own driver has a check of its own.
    blockers.retain(|(member, _)| *member != function.address);
    let others = group::members(host, number).len().saturating_sub(1);
    let viable = match blockers.is_empty() {
        true => Ok(format!("{number}, shared with {others} other functions")
            .replace("shared with 0 other functions", "its own")),
        false => Err(Obstacle::GroupNotViable { group: number, blockers }),
    };
    let mut checks = vec![("IOMMU group", viable)];
    for (what, obstacle) in [
        ("reserved memory", reserved_memory(host, number)),
        ("physical function", physical_function(host, function)),
    ] {
        checks.push((what, obstacle.map_or_else(|| Ok("none in the way".into()), Err)));
    }
    match function.usable_node(host) {
        Some(node) => {
            checks.push(("translation", Ok("iommufd".into())));
            checks.extend(file_checks(host, function, &[node, IOMMUFD.into()]));
        }
        None => checks.extend(file_checks(host, function, &[format!("dev/vfio/{number}")])),
    }
    checks
}

/// Memory that firmware uses through functions of `group`: RMRR of Intel's IOMMU, unity maps of
/// AMD's. What the kernel calls relaxable is no obstacle. [Linux, sysfs-kernel-iommu_groups]
pub(crate) fn reserved_memory(host: &Host, group: u32) -> Option<Obstacle> {
    let text = host.text(&format!("sys/kernel/iommu_groups/{group}/reserved_regions"))?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let range = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [first, last, "direct"] => number(first).zip(number(last)),
        _ => None,
    };
    let ranges: Vec<_> = text.lines().filter_map(range).collect();
    (!ranges.is_empty()).then_some(Obstacle::ReservedMemory { group, ranges })
}

/// The function that `function` is a virtual one of, if a process could have that, too.
pub(crate) fn physical_function(host: &Host, function: &Function) -> Option<Obstacle> {
    let physical = host.link(&format!("sys/bus/pci/devices/{}/physfn", function.address))?;
    let physical: Address = physical.parse().ok()?;
    let driver = host.link(&format!("sys/bus/pci/devices/{physical}/driver"))?;
    let is_passed = driver == PassthroughDriver::Vfio.driver();
    is_passed.then_some(Obstacle::PhysicalFunction { physical })
}

/// The kernel's lockdown, if it is on. [kernel_lockdown(7)]
pub(crate) fn lockdown(host: &Host) -> Option<Obstacle> {
    let levels = host.text("sys/kernel/security/lockdown")?;
    let level = levels.split_once('[')?.1.split_once(']')?.0;
    (level != "none").then(|| Obstacle::Lockdown { level: level.into() })
}

/// Whether `files`, by which a process has the function, may be opened, and who has the function;
/// nothing if there is no such file.
fn file_checks(
    host: &Host,
    function: &Function,
    files: &[String],
) -> Vec<(&'static str, Result<String, Obstacle>)> {
    if !files.iter().all(|file| host.path(file).exists()) {
        return vec![];
    }
    let paths: Vec<_> = files.iter().map(|file| format!("/{file}")).collect();
    let may_open =
        |path: &&String| access(host.path(&path[1..]), Access::READ_OK | Access::WRITE_OK).is_ok();
    let permission = match paths.iter().find(|path| !may_open(path)) {
        None => Ok(paths.join(", ")),
        Some(path) => Err(Obstacle::NoPermission { path: path.clone() }),
    };
    vec![
        ("permission", permission),
        ("owner", function.user(host).map_or_else(|| Ok("none".into()), Err)),
    ]
}

fn reset(function: &Function) -> String {
    match function.reset_methods.as_slice() {
        [] => {
            "none: a driver that dies leaves the device as it is, with its transfers stopped".into()
        }
        methods => methods.join(", "),
    }
}

fn module(host: &Host, way: PassthroughDriver) -> Result<String, Obstacle> {
    let there = host.path(&format!("sys/bus/pci/drivers/{way}")).is_dir();
    let missing = Obstacle::NoModule { module: way.driver().into(), reason: None };
    if there { Ok(format!("{way} is loaded")) } else { Err(missing) }
}

/// Whether devices of this machine can raise any of its interrupts, because nobody checks theirs
/// and somebody has told VFIO that it does not matter.
pub fn forges_interrupts(host: &Host) -> bool {
    let remapped = interrupt_remapping(host);
    matches!(remapped, Ok(how) if how == UNREMAPPED)
}

/// What is said of interrupts that are not remapped where that is allowed.
const UNREMAPPED: &str = "off, and allowed to be (allow_unsafe_interrupts)";

/// The kernel prefixes the interrupt controllers behind a remapping IOMMU with `IR-`. Arm's
/// interrupt translation service (`ITS-`) gives each device interrupts of its own. Other
/// architectures have no such thing.
fn interrupt_remapping(host: &Host) -> Result<String, Obstacle> {
    let interrupts = host.text("proc/interrupts").unwrap_or_default();
    // Each of the two translations has its own word.
    let unsafe_allowed = ["vfio_iommu_type1", "iommufd"].iter().any(|module| {
        let parameter = format!("sys/module/{module}/parameters/allow_unsafe_interrupts");
        host.text(&parameter).as_deref() == Some("Y")
    });
    if interrupts.contains("IR-") {
        Ok("active".into())
    } else if interrupts.contains("ITS-") {
        Ok("active (GIC ITS)".into())
    } else if !interrupts.contains("IO-APIC") && !interrupts.contains("PCI-MSI") {
        Ok("not of this machine's kind".into())
    } else if unsafe_allowed {
        Ok(UNREMAPPED.into())
    } else {
        Err(Obstacle::NoInterruptRemapping)
    }
}

/// Who has it locks as much as there is. [capabilities(7)]
const CAP_IPC_LOCK: u32 = 14;
/// Who has it sees physical addresses. [Linux, Documentation/admin-guide/mm/pagemap.rst]
const CAP_SYS_ADMIN: u32 = 21;

fn has_capability(host: &Host, number: u32) -> bool {
    let status = host.text("proc/self/status").unwrap_or_default();
    let capabilities = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    capabilities.unwrap_or(0) >> number & 1 == 1
}

fn memory_lock(host: &Host, arena: u64) -> Result<String, Obstacle> {
    if has_capability(host, CAP_IPC_LOCK) {
        return Ok("unlimited (CAP_IPC_LOCK)".into());
    }
    let limits = host.text("proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    match soft.and_then(|soft| soft.parse::<u64>().ok()) {
        Some(limit) if limit < arena => Err(Obstacle::Memlock { needed: arena, limit }),
        Some(limit) => Ok(format!("{} KiB", limit >> 10)),
        None => Ok("unlimited".into()),
    }
}
