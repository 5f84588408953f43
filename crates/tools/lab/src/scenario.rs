//! Scenario files: a guest in TOML.

use crate::device::Device;
use crate::disk::Size;
use crate::error::{Doing, Error};
use crate::guest::{Boot, Guest, Mode, Step};
use crate::kernel::DEFAULT_KERNEL;
use crate::machine::{Iommu, Machine};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::{Table, Value};

/// The scenarios that come with ring3.
const SHIPPED: &[(&str, &str)] = &[
    ("ahci", include_str!("../../../../lab/scenarios/ahci.toml")),
    ("ahci-conformance", include_str!("../../../../lab/scenarios/ahci-conformance.toml")),
    ("ahci-verify", include_str!("../../../../lab/scenarios/ahci-verify.toml")),
    ("arm64", include_str!("../../../../lab/scenarios/arm64.toml")),
    ("batch", include_str!("../../../../lab/scenarios/batch.toml")),
    ("cards", include_str!("../../../../lab/scenarios/cards.toml")),
    ("conformance", include_str!("../../../../lab/scenarios/conformance.toml")),
    ("disk-verify", include_str!("../../../../lab/scenarios/disk-verify.toml")),
    ("edu", include_str!("../../../../lab/scenarios/edu.toml")),
    ("edu-driver", include_str!("../../../../lab/scenarios/edu-driver.toml")),
    ("hardware", include_str!("../../../../lab/scenarios/hardware.toml")),
    ("hosted", include_str!("../../../../lab/scenarios/hosted.toml")),
    ("hosted-devices", include_str!("../../../../lab/scenarios/hosted-devices.toml")),
    ("hosted-disk", include_str!("../../../../lab/scenarios/hosted-disk.toml")),
    ("no-iommu", include_str!("../../../../lab/scenarios/no-iommu.toml")),
    ("numa", include_str!("../../../../lab/scenarios/numa.toml")),
    ("nvme", include_str!("../../../../lab/scenarios/nvme.toml")),
    ("pc-ide", include_str!("../../../../lab/scenarios/pc-ide.toml")),
    ("processors", include_str!("../../../../lab/scenarios/processors.toml")),
    ("queues", include_str!("../../../../lab/scenarios/queues.toml")),
    ("shared-memory", include_str!("../../../../lab/scenarios/shared-memory.toml")),
    ("two-disks", include_str!("../../../../lab/scenarios/two-disks.toml")),
    ("ublk-null", include_str!("../../../../lab/scenarios/ublk-null.toml")),
    ("uio", include_str!("../../../../lab/scenarios/uio.toml")),
    ("uio-disks", include_str!("../../../../lab/scenarios/uio-disks.toml")),
    ("vfio-ide", include_str!("../../../../lab/scenarios/vfio-ide.toml")),
    ("virtio", include_str!("../../../../lab/scenarios/virtio.toml")),
    ("virtio-iommu", include_str!("../../../../lab/scenarios/virtio-iommu.toml")),
];

/// A scenario: what is in its file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: that of the file.
    #[serde(skip)]
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// Kernel by version prefix.
    #[serde(default = "default_kernel")]
    pub kernel: String,
    /// The clock.
    #[serde(default)]
    pub mode: Mode,
    /// Where it begins.
    #[serde(default)]
    pub boot: Boot,
    /// Machine model.
    #[serde(default)]
    pub machine: Machine,
    /// IOMMU; the machine's usual one when not said.
    pub iommu: Option<Iommu>,
    /// Virtual processors.
    pub vcpus: Option<u32>,
    /// Memory.
    #[serde(default = "default_memory")]
    pub memory: Size,
    /// See [`Guest::hugepages`].
    #[serde(default)]
    pub hugepages: u32,
    /// Seconds until the run is given up.
    #[serde(default = "default_limit")]
    pub time_limit: u64,
    /// See [`Guest::idle_poll`].
    pub idle_poll: Option<bool>,
    /// See [`Guest::instruction_shift`].
    pub instruction_shift: Option<u32>,
    /// Kernel modules.
    #[serde(default)]
    pub modules: Vec<String>,
    /// More words for the kernel's command line.
    #[serde(default)]
    pub kernel_arguments: Vec<String>,
    /// More arguments for QEMU.
    #[serde(default)]
    pub qemu_arguments: Vec<String>,
    /// Host programs for the guest; relative paths count from the scenario file.
    #[serde(default)]
    pub programs: Vec<PathBuf>,
    /// Drivers of Linux, as `ring3 dde list` has them, whose programs the guest is to have:
    /// `ring3 lab` builds them.
    #[serde(default)]
    pub hosted: Vec<String>,
    /// Host files: path in the guest = path on the host.
    #[serde(default)]
    pub files: BTreeMap<String, PathBuf>,
    /// Variables of the steps with their usual values; `--set` changes them.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// The devices.
    #[serde(default, rename = "device")]
    pub devices: Vec<Device>,
    /// The steps.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

fn default_kernel() -> String {
    DEFAULT_KERNEL.into()
}

fn default_memory() -> Size {
    Size(512 << 20)
}

fn default_limit() -> u64 {
    120
}

impl Scenario {
    /// The scenario called `name`: a path to a file, or one that comes with ring3. `settings` are
    /// pairs from `--set`: a variable of the scenario, or one of its simple keys.
    pub fn load(name: &str, settings: &[(String, String)]) -> Result<Self, Error> {
        let path = Path::new(name);
        if name.ends_with(".toml") || name.contains('/') {
            let text = fs::read_to_string(path).doing("reading the scenario", path)?;
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let mut scenario = Self::parse(&stem, &text, settings)?;
            scenario.resolve(path.parent().unwrap_or(Path::new(".")));
            return Ok(scenario);
        }
        match SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            Some((name, text)) => Self::parse(name, text, settings),
            None => Err(Error::Request(format!(
                "no scenario '{name}'; there are {}, or give the path of a .toml file",
                names().join(", ")
            ))),
        }
    }

    /// All scenarios that come with ring3.
    pub fn shipped() -> Result<Vec<Self>, Error> {
        SHIPPED.iter().map(|(name, text)| Self::parse(name, text, &[])).collect()
    }

    /// The guest that this scenario describes.
    pub fn guest(&self) -> Guest {
        Guest {
            name: self.name.clone(),
            kernel: self.kernel.clone(),
            mode: self.mode,
            boot: self.boot,
            machine: self.machine,
            iommu: self.iommu,
            vcpus: self.vcpus,
            memory_mib: u32::try_from(self.memory.0 >> 20).unwrap_or(u32::MAX),
            hugepages: self.hugepages,
            devices: self.devices.clone(),
            modules: self.modules.clone(),
            steps: self.steps.clone(),
            variables: self.variables.clone().into_iter().collect(),
            programs: self.programs.clone(),
            libraries: Vec::new(),
            files: self.files.clone().into_iter().collect(),
            kernel_arguments: self.kernel_arguments.clone(),
            qemu_arguments: self.qemu_arguments.clone(),
            idle_poll: self.idle_poll,
            instruction_shift: self.instruction_shift,
            time_limit: Duration::from_secs(self.time_limit),
            ..Guest::default()
        }
    }

    fn parse(name: &str, text: &str, settings: &[(String, String)]) -> Result<Self, Error> {
        let wrong = |e: toml::de::Error| Error::Request(format!("scenario {name}: {e}"));
        // Once as it stands, so that an error shows the line.
        let _: Self = toml::from_str(text).map_err(wrong)?;
        let mut table: Table = toml::from_str(text).map_err(wrong)?;
        for (index, (key, value)) in settings.iter().enumerate() {
            if settings[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(Error::Request(format!("'{key}' is set twice: which is meant?")));
            }
            set(&mut table, name, key, value)?;
        }
        let scenario: Self = table.try_into().map_err(wrong)?;
        Ok(Self { name: name.into(), ..scenario })
    }

    fn resolve(&mut self, folder: &Path) {
        let paths = self.programs.iter_mut().chain(self.files.values_mut());
        paths.filter(|path| path.is_relative()).for_each(|path| *path = folder.join(&*path));
    }
}

fn names() -> Vec<&'static str> {
    SHIPPED.iter().map(|(name, _)| *name).collect()
}

/// Keys of a scenario that `--set` may change.
const SIMPLE: &[&str] = &[
    "kernel",
    "mode",
    "boot",
    "machine",
    "iommu",
    "vcpus",
    "memory",
    "hugepages",
    "time_limit",
    "idle_poll",
];

fn set(table: &mut Table, scenario: &str, key: &str, value: &str) -> Result<(), Error> {
    let variables = table.get_mut("variables").and_then(Value::as_table_mut);
    let known: Vec<String> = variables.iter().flat_map(|table| table.keys().cloned()).collect();
    if let Some(variable) = variables.and_then(|table| table.get_mut(key)) {
        *variable = Value::String(value.into());
        return Ok(());
    }
    if !SIMPLE.contains(&key) {
        let keys = known
            .iter()
            .map(String::as_str)
            .chain(SIMPLE.iter().copied())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(Error::Request(format!(
            "scenario {scenario} has nothing called '{key}' to set; there are {keys}"
        )));
    }
    let value = match key {
        "vcpus" | "hugepages" | "time_limit" => value.parse().map(Value::Integer).ok(),
        "idle_poll" => value.parse().map(Value::Boolean).ok(),
        _ => Some(Value::String(value.into())),
    };
    let value = value.ok_or_else(|| {
        Error::Request(format!("'{key}' takes a number, or true or false for idle_poll"))
    })?;
    table.insert(key.into(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        about = "a test"
        modules = ["nvme"]
        variables = { WORKLOAD = "randread" }
        [[device]]
        id = "disk"
        model = "nvme"
        size = "1G"
        bind = "vfio-pci"
        options = { mdts = 3 }
        [[step]]
        name = "look"
        run = "ls"
        expect = ["disk"]
    "#;

    fn error(text: &str, settings: &[(&str, &str)]) -> String {
        let settings: Vec<_> =
            settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Scenario::parse("t", text, &settings).unwrap_err().to_string()
    }

    #[test]
    fn a_scenario_becomes_a_guest() {
        let guest = Scenario::parse("t", TEXT, &[]).unwrap().guest();
        assert_eq!(guest.memory_mib, 512);
        assert_eq!(guest.devices[0].size, Some(Size(1 << 30)));
        assert_eq!(guest.devices[0].options["mdts"], 3);
        assert_eq!(guest.steps[0].expect, ["disk"]);
    }

    #[test]
    fn every_scenario_of_the_source_tree_is_shipped_in_the_order_of_names() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../lab/scenarios");
        let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap().path())).collect();
        names.sort();
        assert_eq!(super::names(), names);
    }

    #[test]
    fn every_shipped_scenario_is_valid() {
        for scenario in Scenario::shipped().unwrap() {
            assert!(!scenario.steps.is_empty() && !scenario.about.is_empty(), "{}", scenario.name);
            scenario.devices.iter().for_each(|device| device.check().unwrap());
        }
    }

    #[test]
    fn a_wrong_key_is_an_error_with_its_line_and_the_valid_keys() {
        let error = error("about = 'x'\nkernels = '6.12'\n", &[]);
        assert!(
            error.contains("kernels") && error.contains("`kernel`") && error.contains("line 2"),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_key_of_a_device_is_an_error_too() {
        let error = error("about = 'x'\n[[device]]\nid = 'a'\nmodel = 'nvme'\nsizes = '1G'\n", &[]);
        assert!(error.contains("sizes") && error.contains("`size`"), "{error}");
    }

    #[test]
    fn set_changes_variables_and_simple_keys() {
        let settings =
            [("WORKLOAD", "write"), ("memory", "1G"), ("mode", "instructions"), ("vcpus", "1")];
        let settings: Vec<_> =
            settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let guest = Scenario::parse("t", TEXT, &settings).unwrap().guest();
        assert_eq!(guest.variables, [("WORKLOAD".to_string(), "write".to_string())]);
        assert_eq!(
            (guest.memory_mib, guest.mode, guest.vcpus),
            (1024, Mode::Instructions, Some(1))
        );
    }

    #[test]
    fn setting_what_is_not_there_lists_what_is() {
        let error = error(TEXT, &[("WORKLOD", "x")]);
        assert!(error.contains("WORKLOAD") && error.contains("memory"), "{error}");
    }

    #[test]
    fn an_unknown_scenario_lists_those_there_are() {
        assert!(Scenario::load("nvmee", &[]).unwrap_err().to_string().contains("two-disks"));
    }
}
