//! Handing a function to a driver that hands it on to processes, and giving it back to the driver
//! that had it.
//!
//! # References
//! - `[SYSFS]` Linux, `Documentation/ABI/testing/sysfs-bus-pci`: `driver_override`,
//!   `drivers_probe`, `unbind`, `link/l1_aspm`
//!
//! `driver_override` names one driver for one function. (`new_id` would name a driver for every
//! function of that kind, the system disk's twin included.) What was there before is kept in
//! `/run/ring3/bound/ADDRESS`, so that it can be put back.
//!
//! # Failure
//! A function is never left without what it had: if the new driver does not take it, the override
//! is taken back and the former driver is asked again.

use std::fs;
use std::io;

use crate::{Address, Blocked, Function, Host, Obstacle, PassthroughDriver, Usage, examine};

/// What was done, for the user to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindReport {
    /// The function.
    pub address: Address,
    /// The driver that had it.
    pub before: Option<String>,
    /// The driver that has it now.
    pub now: Option<String>,
    /// A module that had to be loaded.
    pub loaded: Option<String>,
    /// For a function whose link must not save power (ASPM): each state that it could, and whether
    /// it was switched off.
    pub link: Vec<(&'static str, Result<(), String>)>,
}

/// Functions whose link must not save power, vendor and device: 82573, 82574 and 82583 lose
/// completions then, and the bus. [Linux, e1000_82573_info, e1000_82574_info, e1000_82583_info]
const AWAKE: [(u16, u16); 5] =
    [(0x8086, 0x108b), (0x8086, 0x109a), (0x8086, 0x10d3), (0x8086, 0x10f6), (0x8086, 0x150c)];
/// Files of a link's power states. [SYSFS]
const LINK_STATES: [&str; 2] = ["l0s_aspm", "l1_aspm"];

/// A function that did not get the driver that it should have.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something stands in the way; nothing was changed.
    #[error(transparent)]
    Blocked(#[from] Blocked),
    /// The kernel refused a step.
    #[error("{address}: {step}: {source}{outcome}")]
    Refused {
        /// The function.
        address: Address,
        /// What was tried.
        step: String,
        /// Why not.
        source: io::Error,
        /// How it was left.
        outcome: String,
    },
}

/// What is remembered of a bound function.
struct Record {
    driver: Option<String>,
    driver_override: Option<String>,
}

/// What is told, before anything is changed, what a forced [`bind`] takes and from whom.
pub type Force<'a> = &'a mut dyn FnMut(&Blocked);

/// Puts the function on `way`. Refuses if it is in use, or if that cannot be told, unless `force`.
/// Nothing is done if it is there.
pub fn bind(
    host: &Host,
    address: Address,
    way: PassthroughDriver,
    force: Option<Force<'_>>,
) -> Result<BindReport, BindError> {
    let function = Function::read(host, address).map_err(|obstacle| obstacle.at(address))?;
    let before = function.driver.clone();
    if function.way() == Some(way) {
        return Ok(unchanged(address, before));
    }
    if let Some(obstacle) = in_the_way(host, &function, way) {
        return Err(obstacle.at(address).into());
    }
    let usage = seize(host, address, force)?;
    let loaded = load(host, address, way)?;
    let now = Record { driver: before.clone(), driver_override: function.driver_override.clone() };
    if function.way().is_none() {
        // From one way to the other, what was before both is what is remembered.
        remember(host, address, &now)?;
    }
    match rebind(host, address, way.driver(), before.as_deref(), usage) {
        Ok(()) => {
            let link = keep_link_awake(host, &function);
            Ok(BindReport { address, before, now: Some(way.driver().into()), loaded, link })
        }
        // What was asked last may still be done; to ask more would mean to wait for that.
        Err(BindError::Refused { step, source, .. })
            if source.kind() == io::ErrorKind::TimedOut =>
        {
            let outcome =
                format!("; it was not put back: when that has ended, sudo ring3 unbind {address}");
            Err(BindError::Refused { address, step, source, outcome })
        }
        Err(BindError::Refused { step, source, .. }) => {
            let outcome = roll_back(host, address, &now);
            Err(BindError::Refused { address, step, source, outcome })
        }
        Err(blocked) => {
            roll_back(host, address, &now);
            Err(blocked)
        }
    }
}

/// Gives the function back to the driver that had it before [`bind`], or to the one that the kernel
/// chooses. Nothing is done if it is not on a way to processes.
pub fn unbind(host: &Host, address: Address) -> Result<BindReport, BindError> {
    let UnbindPlan { before, is_done, load, .. } = plan_unbind(host, address)?;
    if is_done {
        return Ok(unchanged(address, before));
    }
    // If the module has another name than its driver, the kernel's choice below will do.
    let loaded = load.filter(|module| host.kernel().load_module(module).is_ok());
    restore(host, address, &recall(host, address), before.as_deref())?;
    forget(host, address);
    let now = Function::read(host, address).ok().and_then(|function| function.driver);
    Ok(BindReport { address, before, now, loaded, link: Vec::new() })
}

fn unchanged(address: Address, driver: Option<String>) -> BindReport {
    BindReport { address, before: driver.clone(), now: driver, loaded: None, link: Vec::new() }
}

/// Switches off what the link of `function` could do to save power, if it must not. A process that
/// drives it cannot: that is the kernel's. The kernel's own driver does the same by itself.
fn keep_link_awake(host: &Host, function: &Function) -> Vec<(&'static str, Result<(), String>)> {
    if !AWAKE.contains(&(function.vendor, function.device)) {
        return Vec::new();
    }
    let off = |state| {
        let path = format!("sys/bus/pci/devices/{}/link/{state}", function.address);
        match fs::OpenOptions::new().write(true).open(host.path(&path)) {
            // The kernel has no file for what the link cannot do.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => Some((
                state,
                file.and_then(|mut file| io::Write::write_all(&mut file, b"0"))
                    .map_err(|error| error.to_string()),
            )),
        }
    };
    LINK_STATES.into_iter().filter_map(off).collect()
}

/// What [`unbind`] would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnbindPlan {
    /// The function.
    pub address: Address,
    /// The driver that it has.
    pub before: Option<String>,
    /// Whether it is on no way to processes, so that nothing is to be done.
    pub is_done: bool,
    /// The driver that it had before [`bind`]; without one, the kernel chooses.
    pub wanted: Option<String>,
    /// The module of a driver that was unloaded meanwhile; mostly it has the driver's name.
    pub load: Option<String>,
}

/// Says what [`unbind`] would do. Reads the system and changes nothing.
pub fn plan_unbind(host: &Host, address: Address) -> Result<UnbindPlan, BindError> {
    let function = Function::read(host, address).map_err(|obstacle| obstacle.at(address))?;
    let (wanted, before) = (recall(host, address).driver, function.driver.clone());
    if before.is_some() && function.way().is_none() {
        return Ok(UnbindPlan { address, before, is_done: true, wanted, load: None });
    }
    if let Some(busy) = function.user(host) {
        // The kernel would wait for the user to let go, without an end.
        return Err(busy.at(address).into());
    }
    let load = wanted.clone().filter(|driver| !has_driver(host, driver));
    Ok(UnbindPlan { address, before, is_done: false, wanted, load })
}

fn in_the_way(host: &Host, function: &Function, way: PassthroughDriver) -> Option<Obstacle> {
    if function.is_bridge() {
        return Some(Obstacle::Bridge);
    }
    match way {
        PassthroughDriver::Vfio if !function.is_confined(host) => {
            return Some(Obstacle::NoIommu);
        }
        PassthroughDriver::Uio if let Err(obstacle) = function.check_untranslated(host) => {
            return Some(obstacle);
        }
        PassthroughDriver::Uio if let Some(obstacle) = examine::lockdown(host) => {
            return Some(obstacle);
        }
        PassthroughDriver::Vfio
            if let Some(group) = function.iommu_group
                && let Some(obstacle) = examine::reserved_memory(host, group) =>
        {
            return Some(obstacle);
        }
        _ => {}
    }
    // The kernel would wait for the user to let go, without an end.
    function.user(host)
}

/// Claims what the kernel makes of the function, so that it stays free. What is in use is refused,
/// or told to `force`.
fn seize(host: &Host, address: Address, force: Option<Force<'_>>) -> Result<Usage, Blocked> {
    // Who may not change anything is told that, and not what else he may not know.
    let path = format!("sys/bus/pci/devices/{address}/driver_override");
    if fs::OpenOptions::new()
        .write(true)
        .open(host.path(&path))
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    {
        return Err(Obstacle::NoPermission { path: format!("/{path}") }.at(address));
    }
    let usage = Usage::seize(host, address);
    match (usage.obstacle().map(|obstacle| obstacle.at(address)), force) {
        (None, _) => Ok(usage),
        (Some(blocked), Some(told)) => {
            told(&blocked);
            Ok(usage)
        }
        (Some(blocked), None) => Err(blocked),
    }
}

fn has_driver(host: &Host, driver: &str) -> bool {
    host.path(&format!("sys/bus/pci/drivers/{driver}")).is_dir()
}

/// Loads the driver of `way` if it is not there; returns its name if it was loaded.
fn load(host: &Host, address: Address, way: PassthroughDriver) -> Result<Option<String>, Blocked> {
    let driver = way.driver();
    if has_driver(host, driver) {
        return Ok(None);
    }
    let missing = |reason: String| {
        Obstacle::NoModule { module: driver.into(), reason: Some(reason) }.at(address)
    };
    host.kernel().load_module(driver).map_err(|error| missing(error.to_string()))?;
    if has_driver(host, driver) {
        Ok(Some(driver.into()))
    } else {
        Err(missing("it is loaded, but has no driver".into()))
    }
}

/// Takes the function from `from` and lets `to`, and no other, have it. `usage` keeps its disks
/// claimed until they are gone, so that nobody begins to use one meanwhile.
fn rebind(
    host: &Host,
    address: Address,
    to: &str,
    from: Option<&str>,
    usage: Usage,
) -> Result<(), BindError> {
    write(
        host,
        address,
        &format!("sys/bus/pci/devices/{address}/driver_override"),
        &format!("{to}\n"),
    )?;
    release(host, address, from)?;
    drop(usage);
    write(host, address, "sys/bus/pci/drivers_probe", &address.to_string())?;
    match Function::read(host, address).ok().and_then(|function| function.driver) {
        Some(driver) if driver == to => Ok(()),
        _ => Err(refused(
            address,
            format!("giving it to {to}"),
            io::Error::other("the driver did not take it (see dmesg)"),
        )),
    }
}

fn release(host: &Host, address: Address, driver: Option<&str>) -> Result<(), BindError> {
    driver.map_or(Ok(()), |driver| {
        write(host, address, &format!("sys/bus/pci/drivers/{driver}/unbind"), &address.to_string())
    })
}

/// Puts the former override back, takes the function from `from`, and lets the kernel choose among
/// the drivers that remain.
fn restore(
    host: &Host,
    address: Address,
    record: &Record,
    from: Option<&str>,
) -> Result<(), BindError> {
    let text = format!("{}\n", record.driver_override.as_deref().unwrap_or_default());
    write(host, address, &format!("sys/bus/pci/devices/{address}/driver_override"), &text)?;
    release(host, address, from)?;
    write(host, address, "sys/bus/pci/drivers_probe", &address.to_string())
}

/// After a failure: restores what can be restored, and says how that went.
fn roll_back(host: &Host, address: Address, record: &Record) -> String {
    let driver = |host| Function::read(host, address).ok().and_then(|function| function.driver);
    let now = driver(host);
    // If the former driver never let go, only the override is to be put back.
    let from = now.as_deref().filter(|now| Some(*now) != record.driver.as_deref());
    let restored = restore(host, address, record, from);
    if record.driver.as_deref().and_then(PassthroughDriver::of).is_none() {
        forget(host, address);
    }
    match (restored, driver(host)) {
        (Ok(()), now) if now == record.driver => "; it was put back as it was".into(),
        (_, Some(now)) => format!("; it has the driver {now} now"),
        (_, None) => {
            format!("; it has no driver now: echo {address} | sudo tee /sys/bus/pci/drivers_probe")
        }
    }
}

fn record_path(address: Address) -> String {
    format!("run/ring3/bound/{address}")
}

fn remember(host: &Host, address: Address, record: &Record) -> Result<(), BindError> {
    let path = host.path(&record_path(address));
    let text = format!(
        "driver={}\noverride={}\n",
        record.driver.as_deref().unwrap_or_default(),
        record.driver_override.as_deref().unwrap_or_default()
    );
    let written =
        path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
    written.map_err(|error| {
        denied(address, format!("/{}", record_path(address)), "remembering its driver", error)
    })
}

fn recall(host: &Host, address: Address) -> Record {
    let text = host.text(&record_path(address)).unwrap_or_default();
    let value = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        (!value.is_empty()).then(|| value.to_owned())
    };
    Record { driver: value("driver"), driver_override: value("override") }
}

fn forget(host: &Host, address: Address) {
    // A record that stays is harmless: the next `bind` writes it anew.
    let _ = fs::remove_file(host.path(&record_path(address)));
}

fn write(host: &Host, address: Address, path: &str, value: &str) -> Result<(), BindError> {
    let written = host.kernel().write(&host.path(path), value);
    written.map_err(|error| {
        denied(
            address,
            format!("/{path}"),
            &format!("writing {:?} to /{path}", value.trim()),
            error,
        )
    })
}

fn denied(address: Address, path: String, step: &str, error: io::Error) -> BindError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Obstacle::NoPermission { path }.at(address).into(),
        _ => refused(address, step.into(), error),
    }
}

fn refused(address: Address, step: String, source: io::Error) -> BindError {
    BindError::Refused { address, step, source, outcome: String::new() }
}
