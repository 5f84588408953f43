//! The VDUSE devices of this machine, ring3's and others', and what dead processes have left of
//! them.
//!
//! # Whose is it
//! ring3's have its [number](MARK) as their vendor, which their drivers show; one that has no
//! driver is ring3's if there is a log of what it has in flight.
//!
//! # Is it served
//! A device can be open once only, and its server has it open. Looking takes a moment in which
//! nobody else can open it: who opens one waits longer than that.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring3_spec::virtio::{blk, net};
use ring3_vduse::{Control, Device, Inflight, vdpa};

use super::name;
use super::refuse::Refusal;
use crate::ublk::users;

/// The vendor of ring3's devices.
pub const MARK: u32 = u32::from_be_bytes(*b"rin3");
/// How long a process that dies may take to let go of its device, or one that looks at it.
pub(super) const DYING: Duration = Duration::from_millis(500);

/// What is done about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A process serves it.
    Served,
    /// ring3's, and nobody's any more.
    Orphan,
    /// Another program's, and not served.
    Idle,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A disk.
    Disk,
    /// A network card.
    Card,
}

/// One VDUSE device of this machine.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Identity {
    /// Its name, below `/dev/vduse`.
    pub name: String,
    /// What is done about it.
    pub state: State,
    /// Whether ring3 has made it.
    pub ring3: bool,
    /// Who serves it, as far as this process may see.
    pub pid: Option<u32>,
    /// What it is; `None` without a driver.
    pub kind: Option<Kind>,
    /// What the kernel has made of it: `vda`, `eth0`.
    pub node: Option<String>,
}

/// Why a device was not deleted, or could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody uses it.
    #[error(
        "/dev/vduse/{name} is in use: {by}; `ring3 run ... --export vduse --name {name}` goes on \
        with it, --force takes it away, and who waits for it sees errors"
    )]
    InUse {
        /// Its name.
        name: String,
        /// By whom, or by what.
        by: String,
    },
    /// No driver has made a disk of it.
    #[error("the kernel has made no disk of /dev/vduse/{0}: modprobe -a virtio_vdpa virtio_blk")]
    NoDisk(String),
    /// VDUSE itself.
    #[error(transparent)]
    Vduse(#[from] ring3_vduse::Error),
}

/// All VDUSE devices, by name.
pub fn list() -> Result<Vec<Identity>, Error> {
    Control::open()?;
    Ok(Device::names().into_iter().filter_map(identity).collect())
}

/// Puts another program's device, which it serves, on the vDPA bus, and gives the path of the disk
/// that the kernel makes of it; `None` as long as its program has not set its queues up.
pub fn attach_disk(name: &str) -> Result<Option<PathBuf>, Error> {
    if !vdpa::is_attached(name) {
        match vdpa::attach(name) {
            Err(ring3_vduse::Error::NotReady(_)) => return Ok(None),
            attached => attached?,
        }
    }
    let node = vdpa::found_as(name, "block").ok_or_else(|| Error::NoDisk(name.into()))?;
    Ok(Some(Path::new("/dev").join(node)))
}

/// Takes a device from its driver and from the bus. Who serves it must do so until this returns.
pub fn detach(name: &str) -> Result<(), Error> {
    Ok(vdpa::detach(name)?)
}

/// Deletes the devices of these names, or all orphans of ring3 that nobody uses if there are none;
/// returns what was deleted. One that is served is refused, and one that is in use unless by
/// `force`, and then nothing is deleted.
pub fn delete(names: &[String], force: bool) -> Result<Vec<String>, Error> {
    let control = Control::open()?;
    let mut wanted = names.to_vec();
    if names.is_empty() {
        let orphan = |name: &String| {
            identity(name.clone()).is_some_and(|found| found.state == State::Orphan)
        };
        wanted = Device::names().into_iter().filter(orphan).collect();
        wanted.retain(|name| match force || in_use(name).is_none() {
            true => true,
            false => {
                tracing::warn!("/dev/vduse/{name} is an orphan in use, and stays");
                false
            }
        });
    }
    wanted.sort();
    wanted.dedup();
    let mut open = Vec::new();
    for name in wanted {
        // Held from here on, so that nobody else begins to serve it.
        let device = Device::open(&name, DYING)?;
        if let Some(by) = in_use(&name).filter(|_| !force) {
            return Err(Error::InUse { name, by });
        }
        open.push((name, device));
    }
    let mut deleted = Vec::new();
    for (name, device) in open {
        if let Err(error) = end(&control, device, &name) {
            deleted
                .iter()
                .for_each(|name| tracing::warn!("/dev/vduse/{name} was deleted before that"));
            return Err(error);
        }
        deleted.push(name);
    }
    Ok(deleted)
}

/// Takes the device from its driver and from the bus, and ends it.
fn end(control: &Control, device: Device, name: &str) -> Result<(), Error> {
    let path = name::log(name);
    let log = match Inflight::left(&path) {
        Ok(log) => Some(log),
        // Its driver would wait for requests that nobody can name.
        Err(error) if vdpa::found_as(name, "block").is_some() && in_use(name).is_some() => {
            return Err(error.into());
        }
        Err(_) => None,
    };
    let refusal = Refusal::start(device, log)?;
    let detached = vdpa::detach(name);
    drop(refusal);
    detached?;
    control.destroy(name)?;
    let _ = fs::remove_file(path);
    Ok(())
}

/// `None` of one that has gone meanwhile.
fn identity(name: String) -> Option<Identity> {
    let served = match Device::open(&name, Duration::ZERO) {
        Ok(_) => false,
        Err(ring3_vduse::Error::Absent(_) | ring3_vduse::Error::Name(_)) => return None,
        // What cannot be opened for another reason may be served.
        Err(_) => true,
    };
    let kind = match vdpa::kind(&name) {
        Some(kind) if kind == u32::from(blk::TYPE) => Some(Kind::Disk),
        Some(kind) if kind == u32::from(net::TYPE) => Some(Kind::Card),
        _ => None,
    };
    let ring3 =
        vdpa::vendor(&name).map_or_else(|| name::log(&name).exists(), |vendor| vendor == MARK);
    let state = match (served, ring3) {
        (true, _) => State::Served,
        (false, true) => State::Orphan,
        (false, false) => State::Idle,
    };
    let node = ["block", "net"].into_iter().find_map(|class| vdpa::found_as(&name, class));
    Some(Identity {
        pid: if served { server(&name) } else { None },
        state,
        ring3,
        kind,
        node,
        name,
    })
}

/// Who uses what the kernel has made of it.
fn in_use(name: &str) -> Option<String> {
    if let Some(disk) = vdpa::found_as(name, "block") {
        return users::check(&disk).is_err().then(|| {
            let users: Vec<_> = users::of(&disk).iter().map(ToString::to_string).collect();
            format!(
                "/dev/{disk} by {}",
                if users.is_empty() {
                    "somebody in another namespace".into()
                } else {
                    users.join(", ")
                }
            )
        });
    }
    let interface = vdpa::found_as(name, "net")?;
    let flags = fs::read_to_string(format!("/sys/class/net/{interface}/flags")).unwrap_or_default();
    let flags =
        flags.trim().strip_prefix("0x").and_then(|flags| u32::from_str_radix(flags, 16).ok())?;
    (flags & libc::IFF_UP as u32 != 0)
        .then(|| format!("{interface} is up (ip link set {interface} down)"))
}

/// The process that has the device open.
fn server(name: &str) -> Option<u32> {
    let device = fs::metadata(format!("/dev/vduse/{name}")).ok()?.rdev();
    let has = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter().any(|fd| {
            fs::metadata(fd.path()).is_ok_and(|file| file.rdev() == device && !file.is_file())
        })
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_or_nobodys_is_no_device() {
        for name in ["", "..", "control", "ring3-no-such-device"] {
            assert_eq!(identity(name.into()), None, "{name}");
        }
    }

    #[test]
    fn the_error_of_a_device_in_use_says_how_to_go_on_with_it() {
        let error =
            Error::InUse { name: "data".into(), by: "/dev/vda by the mount at /mnt".into() };
        let text = error.to_string();
        assert!(
            text.contains("the mount at /mnt")
                && text.contains("--name data")
                && text.contains("--force"),
            "{text}"
        );
    }
}
