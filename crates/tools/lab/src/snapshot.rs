//! Guests from a snapshot: the machine as it was right before it took its job, with devices plugged
//! in afterwards.
//!
//! A snapshot holds a booted kernel with empty root ports, saved by migration into a file whose
//! pages lie where they lie in memory (`mapped-ram`), so that restoring it maps rather than reads.
//! Random numbers, and the time of day, are those of the snapshot: the job sets the clock.

use crate::cache::{Cache, Fingerprint};
use crate::error::Error;
use crate::folder::Folder;
use crate::guest::{Guest, Mode};
use crate::initramfs;
use crate::job;
use crate::kernel::Kernel;
use crate::machine::{Iommu, Machine};
use crate::qemu::{Qemu, Start};
use crate::session::{Run, Session};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Root ports of a machine that is saved: devices that can be plugged in.
pub(crate) const PORTS: usize = 4;
/// Time to boot and to save.
const LIMIT: Duration = Duration::from_secs(90);
/// Snapshots that the cache keeps, each about 150 MB.
const KEPT: usize = 6;

/// A saved machine.
pub(crate) struct Snapshot {
    memory: PathBuf,
    initrd: PathBuf,
}

/// Says why `guest` cannot come from a snapshot, if so.
pub(crate) fn objection(guest: &Guest) -> Option<String> {
    let device = guest.devices.iter().find(|device| !device.can_be_plugged());
    match device {
        _ if guest.mode == Mode::Instructions => {
            Some("instruction time begins with the boot".into())
        }
        _ if guest.machine != Machine::Q35 => {
            Some("devices are plugged into machine q35 only".into())
        }
        _ if !guest.qemu_arguments.is_empty() => {
            Some("qemu_arguments are not part of a snapshot".into())
        }
        _ if guest.devices.len() > PORTS => {
            Some(format!("{PORTS} devices can be plugged in, not {}", guest.devices.len()))
        }
        Some(device) => Some(format!(
            "device '{}' has an addr, namespaces, drives or sound, and cannot be plugged in",
            device.id
        )),
        None => None,
    }
}

impl Snapshot {
    /// The snapshot of the machine that `qemu` describes, taken now if the cache has none.
    pub(crate) fn of(
        qemu: &Qemu,
        cache: &Cache,
        kernel: &Kernel,
        iommu: Iommu,
    ) -> Result<Self, Error> {
        let base = initramfs::base(cache, Machine::Q35)?;
        let boot = job::boot_archive(kernel, iommu)?;
        let key = Fingerprint::new()
            .add(base.to_string_lossy().as_bytes())
            .add(&boot)
            .add(qemu.identity()?)
            .hex();
        let initrd = cache.entry(Path::new(&format!("snapshots/{key}.initrd")), |path| {
            job::join(&base, &[&boot], path)
        })?;
        let memory = cache.entry(Path::new(&format!("snapshots/{key}.memory")), |path| {
            forget_oldest(cache);
            save(qemu, cache, &initrd, path)
        })?;
        Ok(Self { memory, initrd })
    }

    /// Starts QEMU from the snapshot, plugs the devices of `qemu` in and hands over the job.
    pub(crate) fn restore(
        &self,
        run: &Run,
        qemu: &Qemu,
        folder: Folder,
        job: &[u8],
    ) -> Result<Session, Error> {
        let mut session =
            Session::start(&qemu.arguments(&self.initrd, Start::Restored)?, folder, false)?;
        let restored = self.resume(&session, qemu);
        restored.map_err(|error| session.explain(error))?;
        session.send_job(run, job)?;
        Ok(session)
    }

    fn resume(&self, session: &Session, qemu: &Qemu) -> Result<(), Error> {
        let mut monitor = session.monitor()?;
        monitor.ask("migrate-set-capabilities", mapped_ram())?;
        monitor.ask("migrate-incoming", json!({ "uri": uri(&self.memory)? }))?;
        monitor.migrated(LIMIT)?;
        for parts in qemu.parts() {
            let all = [
                ("object-add", &parts.objects),
                ("blockdev-add", &parts.blocks),
                ("netdev_add", &parts.nets),
                ("device_add", &parts.devices),
            ];
            for (command, values) in all {
                values
                    .iter()
                    .try_for_each(|value| monitor.ask(command, value.clone()).map(|_| ()))?;
            }
        }
        monitor.ask("cont", json!({})).map(|_| ())
    }
}

/// Boots to the point where the job is asked for, and saves the machine at `path`.
fn save(qemu: &Qemu, cache: &Cache, initrd: &Path, path: &Path) -> Result<(), Error> {
    let run = Run { cache, limit: LIMIT, started: Instant::now(), steps: &[], says_its_end: true };
    let folder = Folder::new(cache, "snapshot")?;
    let mut session = Session::start(&qemu.arguments(initrd, Start::Waiting)?, folder, false)?;
    session.wait_ready(&run)?;
    let saved = write(&session, path);
    saved.map_err(|error| session.explain(error))
}

fn write(session: &Session, path: &Path) -> Result<(), Error> {
    let mut monitor = session.monitor()?;
    monitor.ask("stop", json!({}))?;
    monitor.ask("migrate-set-capabilities", mapped_ram())?;
    monitor.ask("migrate", json!({ "uri": uri(path)? }))?;
    monitor.migrated(LIMIT)
}

fn mapped_ram() -> serde_json::Value {
    json!({ "capabilities": [{ "capability": "mapped-ram", "state": true }] })
}

fn uri(path: &Path) -> Result<String, Error> {
    path.to_str()
        .map(|path| format!("file:{path}"))
        .ok_or_else(|| Error::Request(format!("{} is not UTF-8", path.display())))
}

/// Makes room for one more snapshot.
fn forget_oldest(cache: &Cache) {
    let Ok(entries) = fs::read_dir(cache.own().join("snapshots")) else { return };
    let saved = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|kind| kind == "memory"));
    let mut files: Vec<_> = saved
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    for (_, path) in files.iter().rev().skip(KEPT - 1) {
        let _ = fs::remove_file(path);
        for kind in ["initrd", "initrd.length", "memory.length"] {
            let _ = fs::remove_file(path.with_extension(kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::disk::Disk;

    #[test]
    fn a_plain_guest_can_come_from_a_snapshot() {
        assert_eq!(objection(&Guest::new("t").device(Device::new("a", "edu"))), None);
    }

    #[test]
    fn what_a_snapshot_cannot_give_is_said() {
        let guest = || Guest::new("t");
        let spaces = Device { namespaces: vec![Disk::default()], ..Device::new("spaces", "nvme") };
        let cases = [
            (Guest { mode: Mode::Instructions, ..guest() }, "instruction time"),
            (Guest { machine: Machine::Pc, ..guest() }, "q35"),
            (guest().device(spaces), "'spaces'"),
            (
                Guest { devices: vec![Device::new("a", "edu"); PORTS + 1], ..guest() },
                "devices can be plugged",
            ),
        ];
        for (guest, word) in cases {
            assert!(objection(&guest).unwrap().contains(word), "{word}");
        }
    }
}
