//! The part of the root file system that differs between runs: steps, modules, programs and files.

use crate::archive::Writer;
use crate::cache::{Cache, Fingerprint};
use crate::card;
use crate::closure;
use crate::device::Device;
use crate::error::{Doing, Error};
use crate::guest::{Guest, Mode, Step};
use crate::initramfs::identity;
use crate::kernel::Kernel;
use crate::machine::{Iommu, Machine, Place};
use crate::modules::{Module, Modules};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Modules that a driver which a device is bound to needs beyond itself.
const BINDERS: &[(&str, &[&str])] = &[("vfio-pci", &["vfio-pci", "vfio_iommu_type1"])];
/// What vfio wants to be told where interrupts are not remapped: that a device which writes
/// interrupt messages at will is accepted.
const UNSAFE_INTERRUPTS: &str = "vfio_iommu_type1 allow_unsafe_interrupts=1";

/// Disks of an ATA controller, from its place in /sys on.
const SCSI_DISKS: &str = "ata*/host*/target*/*/block/sd*";

/// How long before its time limit a guest says what it waits for.
const BEFORE_LIMIT: Duration = Duration::from_secs(20);

/// A job in the form that the guest's init reads: see `lab/guest/init`.
pub(crate) struct Job<'a> {
    guest: &'a Guest,
    places: Vec<Place>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(guest: &'a Guest) -> Result<Self, Error> {
        let job = Self { guest, places: guest.machine.places(&guest.devices)? };
        for (name, _) in &guest.variables {
            if !is_variable(name) {
                return Err(Error::Request(format!("'{name}' is no name of a variable")));
            }
        }
        Ok(job)
    }

    /// The job as an archive, to follow the base archive or to be sent to a guest that waits.
    pub(crate) fn archive(&self, cache: &Cache, kernel: &Kernel) -> Result<Vec<u8>, Error> {
        let mut archive = Writer::new();
        let mut text = |name: &str, content: String| {
            archive.file(&format!("/job/{name}"), 0o644, content.as_bytes())
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        text("time", format!("@{}\n", now.as_secs()))?;
        text("env", self.environment())?;
        let late = self.guest.time_limit.saturating_sub(BEFORE_LIMIT);
        // By the clock of instructions, a guest does not know how late it is.
        if late > BEFORE_LIMIT && self.guest.mode == Mode::Wall {
            text("limit", format!("{}\n", late.as_secs()))?;
        }
        text(
            "bind",
            self.bound()
                .map(|(device, place)| {
                    format!("{} {}\n", place.address, device.bind.as_deref().unwrap_or(""))
                })
                .collect(),
        )?;
        text("settle", self.settle().collect())?;
        text("steps", (0..self.guest.steps.len()).map(|n| format!("{n}\n")).collect())?;
        for (number, step) in self.guest.steps.iter().enumerate() {
            text(&format!("step.{number}"), script(step))?;
        }
        self.modules(kernel, &mut archive)?;
        self.programs(cache, &mut archive)?;
        for (guest, host) in &self.guest.files {
            archive.file(guest, mode_of(host)?, &read(host)?)?;
        }
        Ok(archive.finish())
    }

    fn bound(&self) -> impl Iterator<Item = (&Device, &Place)> {
        self.guest.devices.iter().zip(&self.places).filter(|(device, _)| device.bind.is_some())
    }

    /// Variables: those asked for, and each device's address under its name in capitals.
    fn environment(&self) -> String {
        let devices = self
            .guest
            .devices
            .iter()
            .zip(&self.places)
            .map(|(device, place)| (device.variable(), place.address.clone()));
        let all = devices.chain(self.guest.variables.iter().cloned());
        all.map(|(name, value)| format!("{name}={}\n", quoted(&value))).collect()
    }

    /// What appears in /sys when the kernel's own driver is done with a device, for the models that
    /// take their time.
    fn settle(&self) -> impl Iterator<Item = String> {
        let modules: Vec<_> =
            self.guest.modules.iter().filter_map(|entry| entry.split(' ').next()).collect();
        self.guest
            .devices
            .iter()
            .zip(&self.places)
            .filter(|(device, _)| device.bind.is_none())
            .filter_map(move |(device, place)| {
                let ata = match device.model.as_str() {
                    "piix3-ide" | "piix4-ide" => modules.contains(&"ata_piix"),
                    _ => device.is_ahci() && modules.contains(&"ahci"),
                };
                let (count, sign) = match device.model.as_str() {
                    _ if ata && modules.contains(&"sd_mod") => (device.drives.len(), SCSI_DISKS),
                    "nvme" if modules.contains(&"nvme") => {
                        (device.namespaces.len().max(1), "nvme/nvme*/nvme*n*")
                    }
                    model => (1, card::sign(model, &modules)?),
                };
                Some(format!("{count} /sys/bus/pci/devices/{}/{sign}\n", place.address))
            })
    }

    /// Modules in two groups: what bound devices need, and the rest once they are bound.
    fn modules(&self, kernel: &Kernel, archive: &mut Writer) -> Result<(), Error> {
        let binders = self.bound().filter_map(|(device, _)| device.bind.as_deref());
        let mut early: Vec<String> = binders
            .flat_map(|driver| match BINDERS.iter().find(|(name, _)| *name == driver) {
                Some((_, modules)) => modules.iter().map(|m| m.to_string()).collect(),
                None => vec![driver.to_string()],
            })
            .collect();
        if self.guest.iommu() == Iommu::Virtio {
            early
                .iter_mut()
                .filter(|name| *name == "vfio_iommu_type1")
                .for_each(|name| *name = UNSAFE_INTERRUPTS.into());
        }
        let tables = kernel.modules()?;
        add_modules(archive, "/job/early", &tables, &early)?;
        add_modules(archive, "/job/late", &tables, &self.guest.modules)
    }

    fn programs(&self, cache: &Cache, archive: &mut Writer) -> Result<(), Error> {
        let mut libraries = BTreeMap::new();
        for program in &self.guest.programs {
            let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
            let name =
                name.ok_or_else(|| Error::Request(format!("{} is no program", program.display())))?;
            if !self.guest.machine.is_arm64() {
                libraries.extend(closure::libraries(cache, &self.guest.libraries, program)?);
            }
            archive.file(
                &format!("/usr/local/bin/{name}"),
                0o755,
                &read(&stripped(cache, program, self.guest.machine)?)?,
            )?;
        }
        libraries.iter().try_for_each(|(guest, host)| {
            // Those of this machine have no debug sections, and others have many.
            let own = self.guest.libraries.iter().any(|folder| host.starts_with(folder));
            let host = if own { stripped(cache, host, self.guest.machine)? } else { host.clone() };
            archive.file(guest, 0o755, &read(&host)?)
        })
    }
}

/// What a guest on `kernel` needs before it can take a job.
pub(crate) fn boot_archive(kernel: &Kernel, iommu: Iommu) -> Result<Vec<u8>, Error> {
    let mut archive = Writer::new();
    // The kernel gives no device behind this IOMMU to a driver, the job port included, before the
    // IOMMU has its own.
    let iommu = (iommu == Iommu::Virtio).then_some("virtio-iommu");
    let modules: Vec<String> = ["virtio_pci"]
        .into_iter()
        .chain(iommu)
        .chain(["virtio_console"])
        .map(String::from)
        .collect();
    add_modules(&mut archive, "/boot", &kernel.modules()?, &modules)?;
    Ok(archive.finish())
}

/// `wanted` modules (parameters after the name) and what they need, in `folder`, with the order of
/// loading.
fn add_modules(
    archive: &mut Writer,
    folder: &str,
    tables: &Modules,
    wanted: &[String],
) -> Result<(), Error> {
    let parameters: BTreeMap<_, _> =
        wanted.iter().filter_map(|entry| entry.split_once(' ')).collect();
    let names: Vec<String> =
        wanted.iter().map(|entry| entry.split(' ').next().unwrap_or(entry).to_string()).collect();
    let closure = tables.closure(&names)?;
    let order: String = closure.iter().map(|module| module_line(module, &parameters)).collect();
    archive.file(&format!("{folder}/order"), 0o644, order.as_bytes())?;
    closure.iter().try_for_each(|module| {
        archive.file(&format!("{folder}/{}.ko", module.name), 0o644, &module.read()?)
    })
}

fn module_line(module: &Module, parameters: &BTreeMap<&str, &str>) -> String {
    let given = parameters.iter().find(|(name, _)| name.replace('-', "_") == module.name);
    format!("{}.ko {}\n", module.name, given.map_or("", |(_, words)| words))
}

/// A step's script; one with a time limit runs under `timeout`.
fn script(step: &Step) -> String {
    match step.time_limit {
        Some(seconds) => format!("exec timeout -s KILL {seconds} sh -c {}\n", quoted(&step.run)),
        None => format!("{}\n", step.run),
    }
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `text` as one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).doing("reading a file for the guest", path)
}

fn mode_of(path: &Path) -> Result<u32, Error> {
    Ok(fs::metadata(path).doing("looking at a file for the guest", path)?.permissions().mode()
        & 0o777)
}

/// `program` without its debug sections, which are most of it and would have to pass through the
/// guest's memory. As it is when this machine has no `strip`.
fn stripped(cache: &Cache, program: &Path, machine: Machine) -> Result<PathBuf, Error> {
    let strip = if machine.is_arm64() { "aarch64-linux-gnu-strip" } else { "strip" };
    let name = format!("stripped/{}", Fingerprint::new().add(identity(program)?).hex());
    let made = cache.entry(Path::new(&name), |path| {
        let strip = Command::new(strip)
            .arg("-o")
            .arg(path)
            .arg(program)
            .output()
            .doing("running strip on", program)?;
        if !strip.status.success() {
            return Err(Error::Request(format!("strip refuses {}", program.display())));
        }
        // A program that is its owner's alone stays so.
        fs::set_permissions(path, fs::Permissions::from_mode(mode_of(program)?))
            .doing("setting the mode of", path)
    });
    match made {
        Err(Error::File { what: "running strip on", .. } | Error::Request(_)) => Ok(program.into()),
        made => made,
    }
}

/// The base archive and what goes on top of it, one after the other, as the kernel wants its
/// initramfs.
pub(crate) fn join(base: &Path, layers: &[&[u8]], path: &Path) -> Result<(), Error> {
    fs::copy(base, path).doing("copying the base initramfs to", path)?;
    let mut file = File::options().append(true).open(path).doing("opening", path)?;
    layers.iter().try_for_each(|layer| file.write_all(layer)).doing("writing the initramfs", path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn steps_find_their_devices_by_name() {
        let guest = Guest::new("t")
            .device(Device::new("disk-a", "nvme"))
            .device(Device::new("b", "edu"))
            .variable("X", "it's");
        let env = Job::new(&guest).unwrap().environment();
        assert_eq!(env, "DISK_A='0000:01:00.0'\nB='0000:02:00.0'\nX='it'\\''s'\n");
    }

    #[test]
    fn a_variable_that_the_shell_would_run_is_refused() {
        assert!(Job::new(&Guest::new("t").variable("a;b", "")).is_err());
        assert!(Job::new(&Guest::new("t").variable("1a", "")).is_err());
    }

    #[test]
    fn parameters_go_to_their_module() {
        let module = Module { name: "nvme_core".into(), path: "x".into() };
        assert_eq!(
            module_line(&module, &BTreeMap::from([("nvme-core", "multipath=0")])),
            "nvme_core.ko multipath=0\n"
        );
        assert_eq!(module_line(&module, &BTreeMap::new()), "nvme_core.ko \n");
    }
}
