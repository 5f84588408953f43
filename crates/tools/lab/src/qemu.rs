//! QEMU's command line.

use crate::cache::Cache;
use crate::card;
use crate::device::Parts;
use crate::error::Error;
use crate::folder::Folder;
use crate::guest::{Guest, Mode};
use crate::initramfs::identity;
use crate::kernel::Kernel;
use crate::machine::{Iommu, Machine};
use crate::setup::PREPARE;
use crate::snapshot;
use crate::tsc;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Oldest QEMU whose device models serve.
const OLDEST: u32 = 8;
/// Descriptors that QEMU finds its channels under.
pub(crate) const JOB_FD: i32 = 3;
/// The console's descriptor.
pub(crate) const CONSOLE_FD: i32 = 4;
/// The monitor's descriptor.
pub(crate) const MONITOR_FD: i32 = 5;
/// The console on QEMU's terminal, with its monitor behind control-A.
const TERMINAL: [&str; 4] =
    ["-chardev", "stdio,id=console,mux=on,signal=off", "-mon", "chardev=console"];

/// How a machine begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With its devices and its job.
    Whole,
    /// The same, with the console on the caller's terminal.
    Terminal,
    /// Without devices, waiting for its job: to be saved.
    Waiting,
    /// As it was saved.
    Restored,
}

/// QEMU with everything but its initramfs.
pub(crate) struct Qemu {
    program: PathBuf,
    pub(crate) version: String,
    arguments: Vec<String>,
    kernel: PathBuf,
    command_line: String,
    machine: Machine,
    iommu: Iommu,
    ports: usize,
    parts: Vec<Parts>,
    extra: Vec<String>,
}

impl Qemu {
    /// QEMU for `guest`, whose disks are made in `folder`.
    pub(crate) fn of(
        guest: &Guest,
        cache: &Cache,
        kernel: &Kernel,
        folder: &Folder,
    ) -> Result<Self, Error> {
        let (program, version) = find(cache, guest.machine)?;
        let iommu = guest.iommu();
        let places = guest.machine.places(&guest.devices)?;
        let ports = guest.devices.iter().filter(|device| device.addr.is_none()).count();
        let parts =
            guest.devices.iter().zip(&places).map(|(device, place)| device.parts(place, folder));
        Ok(Self {
            program,
            version,
            arguments: machine_arguments(guest),
            kernel: kernel.vmlinux().into(),
            command_line: command_line(guest, iommu),
            machine: guest.machine,
            iommu,
            ports,
            parts: parts.collect::<Result<_, _>>()?,
            extra: guest.qemu_arguments.clone(),
        })
    }

    /// The whole command line, program first.
    pub(crate) fn arguments(&self, initrd: &Path, start: Start) -> Result<Vec<String>, Error> {
        let text = |path: &Path| {
            path.to_str()
                .map(String::from)
                .ok_or_else(|| Error::Request(format!("{} is not UTF-8", path.display())))
        };
        let mut line = vec![text(&self.program)?];
        line.extend(self.arguments.iter().cloned());
        let pluggable = matches!(start, Start::Waiting | Start::Restored);
        let waits = if pluggable { " LAB_WAIT=1" } else { "" };
        line.extend(["-kernel".into(), text(&self.kernel)?, "-initrd".into(), text(initrd)?]);
        line.extend(["-append".into(), format!("{}{waits}", self.command_line)]);
        line.extend(channel("job", JOB_FD));
        if start == Start::Terminal {
            line.extend(TERMINAL.map(String::from));
        } else {
            line.extend(
                channel("console", CONSOLE_FD).into_iter().chain(channel("monitor", MONITOR_FD)),
            );
            line.extend(["-mon".into(), "chardev=monitor,mode=control".into()]);
        }
        line.extend(["-serial".into(), "chardev:console".into()]);
        for device in self
            .machine
            .fixtures(self.iommu, if pluggable { snapshot::PORTS } else { self.ports })?
        {
            line.extend(["-device".into(), device.to_string()]);
        }
        if start == Start::Restored {
            line.extend(["-incoming".into(), "defer".into()]);
        }
        for parts in self.parts.iter().filter(|_| !pluggable) {
            let all = [
                ("-object", &parts.objects),
                ("-blockdev", &parts.blocks),
                ("-netdev", &parts.nets),
                ("-audiodev", &parts.audios),
                ("-device", &parts.devices),
            ];
            line.extend(all.iter().flat_map(|(word, values)| {
                values.iter().flat_map(|value| [word.to_string(), value.to_string()])
            }));
        }
        line.extend(self.extra.iter().cloned());
        Ok(line)
    }

    /// What each device consists of.
    pub(crate) fn parts(&self) -> &[Parts] {
        &self.parts
    }

    /// Tells one machine, apart from its pluggable devices, from another.
    pub(crate) fn identity(&self) -> Result<String, Error> {
        let line = self.arguments(Path::new(""), Start::Waiting)?;
        Ok(format!("{} {} {}", self.version, identity(&self.program)?, line.join(" "))
            + &identity(&self.kernel)?)
    }
}

/// A channel on a socket that QEMU inherits: connected from the start, with no name in the file
/// system.
pub(crate) fn channel(name: &str, fd: i32) -> [String; 2] {
    ["-chardev".into(), format!("socket,id={name},fd={fd}")]
}

fn machine_arguments(guest: &Guest) -> Vec<String> {
    let line = |words: &str| words.split(' ').map(String::from).collect::<Vec<_>>();
    let mut arguments = line("-nodefaults -no-user-config -display none -no-reboot");
    arguments.extend(line(&format!(
        "-M {} -cpu {} -m {}M",
        guest.machine.words(&guest.devices, guest.iommu()),
        guest.machine.processor(),
        guest.memory_mib
    )));
    let clock = guest
        .instruction_shift
        .map_or("shift=0,sleep=off".into(), |shift| format!("shift={shift},sleep=on"));
    arguments.extend(match guest.mode {
        Mode::Wall => line(&format!("-accel tcg,thread=multi -smp {}", guest.vcpus.unwrap_or(2))),
        // Instruction counting is not parallel: of several processors, one runs at a time, and the
        // clock counts what all do. It starts at a fixed date.
        Mode::Instructions => line(&format!(
            "-accel tcg -smp {} -icount {clock} -rtc base=2024-01-01,clock=vm -seed 1",
            guest.vcpus.unwrap_or(1)
        )),
    });
    arguments
}

fn command_line(guest: &Guest, iommu: Iommu) -> String {
    // The self tests of the kernel's cryptography take 0.65 s under emulation. On a busy host the
    // emulated timer is late: the kernel would take it for broken and panic ("timer doesn't work
    // through Interrupt-remapped IO-APIC"), or take the processor's clock for unstable and read a
    // slow one.
    let console = format!("console={}", guest.machine.console());
    let mut words = vec![&*console, "quiet panic=-1 loglevel=4 cryptomgr.notests=1"];
    if !guest.machine.is_arm64() {
        words.push("no_timer_check tsc=reliable");
    }
    let frequency = tsc::megahertz()
        .filter(|_| guest.mode == Mode::Wall && !guest.machine.is_arm64())
        .map(|mhz| format!("tsc_early_khz={}", 1000 * mhz));
    words.extend(frequency.as_deref());
    if iommu == Iommu::Intel {
        words.push("intel_iommu=on");
    }
    // QEMU's AHCI maps a command's table of regions in one piece, so one that lies in two pages
    // which the IOMMU has in different places is an overflow to it. The kernel's driver has such
    // tables; what vfio maps is not touched by this.
    if iommu != Iommu::None
        && guest.devices.iter().any(|device| device.is_ahci() && device.bind.is_none())
    {
        words.push("iommu=pt");
    }
    let waits =
        |device: &crate::device::Device| device.model == "nvme" || card::is_network(&device.model);
    let poll = guest.mode == Mode::Instructions
        && guest.instruction_shift.is_none()
        && guest.devices.iter().any(waits);
    if guest.idle_poll.unwrap_or(poll) {
        words.push("idle=poll");
    }
    let pages = format!("hugepages={}", guest.hugepages);
    if guest.hugepages > 0 {
        words.push(&pages);
    }
    words.extend(guest.kernel_arguments.iter().map(String::as_str));
    words.join(" ")
}

/// The QEMU to use for `machine` and its version: `$RING3_QEMU` (of x86-64), the cache's, or the
/// host's if it is not too old.
fn find(cache: &Cache, machine: Machine) -> Result<(PathBuf, String), Error> {
    let (name, folder) =
        (machine.program(), if machine.is_arm64() { "arm64/bin" } else { "tools/bin" });
    let named = (!machine.is_arm64()).then(|| std::env::var_os("RING3_QEMU").map(PathBuf::from));
    let cached = Some(cache.path(folder).join(name)).filter(|path| path.exists());
    let program =
        named.flatten().or(cached).or_else(|| on_path(name)).unwrap_or_else(|| name.into());
    let missing = |why: String| Error::Missing {
        what: "QEMU".into(),
        why,
        next: PREPARE,
        cache: cache.root().into(),
    };
    let output = Command::new(&program)
        .arg("--version")
        .output()
        .map_err(|e| missing(format!("{}: {e}", program.display())))?;
    if !output.status.success() {
        let why = format!(
            "{} does not start: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        return Err(Error::Cache { why, next: cache.remedy() });
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(3).unwrap_or("").to_string();
    let major: u32 = version.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0);
    if major < OLDEST {
        return Err(missing(format!(
            "{} is version '{version}', and {OLDEST} is the oldest that serves",
            program.display()
        )));
    }
    Ok((program, version))
}

/// The host's own QEMU, if it has one.
fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::disk::{Backing, Size};

    #[test]
    fn instruction_time_has_one_processor_unless_more_are_asked_for_which_take_turns() {
        let line = |vcpus| {
            machine_arguments(&Guest { mode: Mode::Instructions, vcpus, ..Guest::new("t") })
                .join(" ")
        };
        assert!(
            line(None).contains("-accel tcg -smp 1 -icount shift=0,sleep=off"),
            "{}",
            line(None)
        );
        assert!(
            line(Some(2)).contains("-accel tcg -smp 2 -icount shift=0,sleep=off"),
            "{}",
            line(Some(2))
        );
    }

    #[test]
    fn instruction_time_that_follows_the_host_while_the_guest_sleeps_neither_skips_sleep_nor_spins()
    {
        let guest =
            Guest { mode: Mode::Instructions, instruction_shift: Some(3), ..Guest::new("t") }
                .device(Device::nvme("d", Size(512), Backing::Null));
        assert!(machine_arguments(&guest).join(" ").contains("-icount shift=3,sleep=on"));
        assert!(!command_line(&guest, Iommu::Intel).contains("idle=poll"));
    }

    #[test]
    fn a_guest_by_the_hosts_clock_is_told_how_fast_that_counts() {
        let words = |mode| command_line(&Guest { mode, ..Guest::new("t") }, Iommu::None);
        assert_eq!(words(Mode::Wall).contains("tsc_early_khz="), cfg!(target_arch = "x86_64"));
        assert!(!words(Mode::Instructions).contains("tsc_early_khz="));
    }

    #[test]
    fn the_slow_string_instructions_are_always_off() {
        for mode in [Mode::Wall, Mode::Instructions] {
            let line = machine_arguments(&Guest { mode, ..Guest::new("t") }).join(" ");
            assert!(line.contains("-erms,-fsrm,-fzrm,-fsrs"), "{line}");
        }
    }

    #[test]
    fn the_kernels_ahci_driver_reaches_memory_as_it_is() {
        let disk = Device::ahci("d", Size(512), Backing::Null);
        let words =
            |disk: &Device| command_line(&Guest::new("t").device(disk.clone()), Iommu::Intel);
        assert!(words(&disk).contains("iommu=pt"));
        assert!(!words(&disk.bound("vfio-pci")).contains("iommu=pt"));
    }

    #[test]
    fn idle_polls_only_by_instructions_and_with_devices_that_take_time() {
        let disk = Guest::new("t").device(Device::nvme("d", Size(512), Backing::Null));
        let counted = Guest { mode: Mode::Instructions, ..disk.clone() };
        assert!(!command_line(&disk, Iommu::Intel).contains("idle=poll"));
        assert!(command_line(&counted, Iommu::Intel).contains("idle=poll"));
        assert!(
            !command_line(&Guest { devices: vec![], ..counted.clone() }, Iommu::Intel)
                .contains("idle=poll")
        );
        assert!(
            !command_line(&Guest { idle_poll: Some(false), ..counted }, Iommu::Intel)
                .contains("idle=poll")
        );
    }
}
