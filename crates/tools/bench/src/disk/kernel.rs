//! The kernel's disk in the ways in which its driver can be at its best.
//!
//! A disk with one queue gets a scheduler from the kernel, and an NVMe disk a multipath head before
//! it, whether or not there is a second path. Both cost thousands of instructions for each request,
//! and who wants speed has neither.
//!
//! The scheduler is set by sysfs and put back when the value is dropped. Multipath heads, and a
//! queue that is polled, are matters of loading: in the lab the driver's modules are loaded anew
//! from a folder. On any other machine that is left to its owner.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::system::{delete_module, finit_module};

use super::Tuning;
use crate::Error;
use crate::load::generic_device;

/// How long a driver may take to let go of its disk, and to show it again.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the NVMe driver puts a multipath head before each disk: `Y` or `N`, set when it is
/// loaded.
const MULTIPATH: &str = "/sys/module/nvme_core/parameters/multipath";

/// How many of the NVMe driver's queues have no interrupt and are polled.
const POLL_QUEUES: &str = "/sys/module/nvme/parameters/poll_queues";

/// The driver's modules, in the order of unloading.
const MODULES: [&str; 2] = ["nvme", "nvme_core"];

/// How the NVMe driver was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loaded {
    /// It puts a multipath head before each disk.
    heads: bool,
    /// It has a queue that is polled.
    polled: bool,
}

impl Loaded {
    /// As it is; `None` if it is not loaded.
    fn now() -> Option<Self> {
        let heads = fs::read_to_string(MULTIPATH).ok()?.trim() == "Y";
        let polled = fs::read_to_string(POLL_QUEUES).ok().and_then(|text| text.trim().parse().ok());
        Some(Self { heads, polled: polled.is_some_and(|queues: u32| queues > 0) })
    }

    /// As `tuning` wants it.
    fn wanted(tuning: Tuning) -> Self {
        Self { heads: tuning < Tuning::NoMultipath, polled: tuning.is_polled() }
    }
}

/// A disk that the kernel drives.
pub struct KernelDisk {
    path: PathBuf,
    /// Files of the driver's modules, if it may be loaded anew.
    modules: Option<PathBuf>,
    /// Schedulers that were replaced, by the file in sysfs that has them.
    found: BTreeMap<PathBuf, String>,
}

impl KernelDisk {
    /// The disk at `path`. `modules` is a folder with `nvme.ko` and `nvme_core.ko`, from which the
    /// driver may be loaded anew.
    pub fn new(path: &Path, modules: Option<&Path>) -> Self {
        Self { path: path.into(), modules: modules.map(Into::into), found: BTreeMap::new() }
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the disk into the state that `tuning` names.
    pub fn tune(&mut self, tuning: Tuning) -> Result<(), Error> {
        let wanted = Loaded::wanted(tuning);
        match (&self.modules, Loaded::now()) {
            (Some(folder), Some(now)) if now != wanted => {
                load_anew(folder, wanted)?;
                // The new disk has the scheduler that it comes with.
                self.found.clear();
                self.appeared()?;
            }
            (None, Some(Loaded { polled: false, .. })) if wanted.polled => {
                return Err(self.has_no_queue_to_poll());
            }
            (None, Some(Loaded { heads: true, .. }))
                if matches!(tuning, Tuning::NoMultipath | Tuning::Polled) =>
            {
                return Err(self.has_head());
            }
            (_, None)
                if matches!(
                    tuning,
                    Tuning::NoMultipath | Tuning::Polled | Tuning::PassthroughPolled
                ) =>
            {
                return Err(self.is_no_nvme());
            }
            _ => {}
        }
        match tuning {
            Tuning::NoScheduler | Tuning::NoMultipath | Tuning::Polled => self.without_scheduler(),
            Tuning::AsItComes | Tuning::Passthrough | Tuning::PassthroughPolled => self.put_back(),
        }
    }

    /// What is so of the disk now.
    pub fn facts(&self, tuning: Tuning) -> BTreeMap<String, String> {
        let mut facts = match tuning.is_past_the_block_layer() {
            true => BTreeMap::from([(
                "device".to_owned(),
                generic_device(&self.path).display().to_string(),
            )]),
            false => block_facts(&self.path),
        };
        if let Some(now) = Loaded::now() {
            facts.insert("multipath".to_owned(), if now.heads { "Y" } else { "N" }.to_owned());
            if now.polled {
                facts.insert("polled".to_owned(), "Y".to_owned());
            }
        }
        facts
    }

    fn has_head(&self) -> Error {
        let disk = self.path.display();
        Error::Invalid(format!(
            "{disk}: its driver was loaded with multipath heads, and a benchmark does not load \
             a machine's driver anew. \
             Next: leave kernel-nomultipath and kernel-iopoll out, or boot with \
             nvme_core.multipath=N"
        ))
    }

    fn has_no_queue_to_poll(&self) -> Error {
        let disk = self.path.display();
        Error::Invalid(format!(
            "{disk}: its driver was loaded without queues that are polled, and a benchmark does \
             not load a machine's driver anew. \
             Next: leave kernel-iopoll and kernel-passthrough-iopoll out, or boot with \
             nvme.poll_queues=1"
        ))
    }

    fn is_no_nvme(&self) -> Error {
        Error::Invalid(format!(
            "{}: kernel-nomultipath and -iopoll are for a disk that the kernel's NVMe driver has",
            self.path.display()
        ))
    }

    fn without_scheduler(&mut self) -> Result<(), Error> {
        for file in scheduler_files(&self.path) {
            let Some(now) = scheduler_in(&file).filter(|now| now != "none") else { continue };
            set(&file, "none")?;
            self.found.insert(file, now);
        }
        Ok(())
    }

    fn put_back(&mut self) -> Result<(), Error> {
        while let Some((file, scheduler)) = self.found.pop_first() {
            set(&file, &scheduler)?;
        }
        Ok(())
    }

    /// Waits until the disk is there and can be opened.
    fn appeared(&self) -> Result<(), Error> {
        let generic = generic_device(&self.path);
        patiently(&format!("{}, whose driver was loaded anew", self.path.display()), || {
            File::open(&self.path).and_then(|_| File::open(&generic)).map(drop)
        })
    }
}

impl Drop for KernelDisk {
    fn drop(&mut self) {
        if let Err(error) = self.put_back() {
            eprintln!("ring3: {error}");
        }
    }
}

/// What is so of a block device: which it is, and its scheduler.
pub fn block_facts(device: &Path) -> BTreeMap<String, String> {
    let mut schedulers: Vec<String> =
        scheduler_files(device).iter().filter_map(|file| scheduler_in(file)).collect();
    schedulers.dedup();
    let scheduler =
        (!schedulers.is_empty()).then(|| ("scheduler".to_owned(), schedulers.join(", ")));
    [("device".to_owned(), device.display().to_string())].into_iter().chain(scheduler).collect()
}

/// The files that have the scheduler of `disk`: behind a multipath head, which has none, it is that
/// of each path.
fn scheduler_files(disk: &Path) -> Vec<PathBuf> {
    let disk = disk.canonicalize().unwrap_or_else(|_| disk.into());
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries
        .filter(|entry| is_path_of(&entry.file_name().to_string_lossy(), &name))
        .map(|entry| entry.path())
        .collect();
    let own = Path::new("/sys/class/block").join(&*name);
    // A partition has the scheduler of its disk.
    let own =
        own.canonicalize().map(|own| if own.join("queue").exists() { own } else { own.join("..") });
    let devices = if paths.is_empty() { own.into_iter().collect() } else { paths };
    devices
        .into_iter()
        .map(|device| device.join("queue/scheduler"))
        .filter(|file| file.exists())
        .collect()
}

/// Whether `name`, such as nvme0c1n1, is a path to `head`, such as nvme0n1.
fn is_path_of(name: &str, head: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((subsystem, namespace)) =
        head.strip_prefix("nvme").and_then(|rest| rest.split_once('n'))
    else {
        return false;
    };
    let path = name
        .strip_prefix("nvme")
        .and_then(|rest| rest.strip_prefix(subsystem)?.strip_prefix('c')?.split_once('n'));
    path.is_some_and(|(controller, of)| digits(controller) && of == namespace)
}

fn scheduler_in(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| chosen(&text))
}

/// The one in brackets of a list such as `none [mq-deadline]`; where there is nothing to choose,
/// there are no brackets.
fn chosen(text: &str) -> String {
    let bracketed =
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
    bracketed.unwrap_or(text.trim()).to_owned()
}

/// Takes the scheduler from a disk that goes with its server, so that nothing needs to be put back.
pub(super) fn without_scheduler(disk: &Path) -> Result<(), Error> {
    scheduler_files(disk).iter().try_for_each(|file| set(file, "none"))
}

fn set(file: &Path, scheduler: &str) -> Result<(), Error> {
    fs::write(file, scheduler)
        .map_err(|error| Error::os(format!("setting {} to {scheduler}", file.display()), error))
}

fn load_anew(folder: &Path, wanted: Loaded) -> Result<(), Error> {
    for name in MODULES {
        let module = CString::new(name).map_err(|error| Error::format("a module's name", error))?;
        patiently(&format!("unloading {name}"), || Ok(delete_module(&module, libc::O_NONBLOCK)?))?;
    }
    for name in MODULES.iter().rev() {
        let file = folder.join(format!("{name}.ko"));
        let parameters = match (*name, wanted) {
            ("nvme_core", Loaded { heads: false, .. }) => c"multipath=N",
            ("nvme", Loaded { polled: true, .. }) => c"poll_queues=1",
            _ => c"",
        };
        let loaded = File::open(&file).and_then(|opened| Ok(finit_module(&opened, parameters, 0)?));
        loaded.map_err(|error| Error::os(format!("loading {}", file.display()), error))?;
    }
    Ok(())
}

/// Tries until it works.
fn patiently(what: &str, mut attempt: impl FnMut() -> std::io::Result<()>) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => return Err(Error::os(what, error)),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_is_the_one_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(chosen("[none] mq-deadline\n"), "none");
        assert_eq!(chosen("none\n"), "none");
    }

    #[test]
    fn a_multipath_heads_scheduler_is_that_of_its_paths_and_of_no_other_disk() {
        assert!(is_path_of("nvme0c0n1", "nvme0n1") && is_path_of("nvme0c12n1", "nvme0n1"));
        for other in ["nvme0n1", "nvme0c0n2", "nvme1c0n1", "nvme0cn1", "nvme0c0n1p1", "sda"] {
            assert!(!is_path_of(other, "nvme0n1"), "{other}");
        }
        assert!(!is_path_of("nvme0c0n1", "sda"));
    }

    #[test]
    fn only_what_is_polled_wants_a_queue_without_interrupts_and_nothing_that_is_tuned_a_head() {
        assert_eq!(Loaded::wanted(Tuning::NoScheduler), Loaded { heads: true, polled: false });
        assert_eq!(Loaded::wanted(Tuning::NoMultipath), Loaded { heads: false, polled: false });
        assert_eq!(Loaded::wanted(Tuning::Passthrough), Loaded { heads: false, polled: false });
        for tuning in [Tuning::Polled, Tuning::PassthroughPolled] {
            assert_eq!(Loaded::wanted(tuning), Loaded { heads: false, polled: true });
        }
    }

    #[test]
    fn a_disk_that_does_not_exist_has_no_scheduler() {
        assert_eq!(block_facts(Path::new("/dev/no-such-disk")).get("scheduler"), None);
    }
}
