//! Fetching what is missing: runs `lab/setup.sh`, which is a part of this program.

use crate::cache::Cache;
use crate::error::{Doing, Error};
use crate::kernel::DEFAULT_KERNEL;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("../../../../lab/setup.sh");

/// The script's number for what it fetches.
const LAYOUT: u32 = 1;

/// Kernels that `lab/debug-kernel.sh` builds and nobody has as packages.
const BUILT: [&str; 2] = ["debug", "debug-kcsan"];
/// Behind a kernel's version: with iommufd and VFIO's device nodes, built into modules of it.
const IOMMUFD: &str = "-iommufd";
/// Behind a kernel's version: for arm64.
pub(crate) const ARM64: &str = "-arm64";

/// The command that fetches what the lab needs.
pub(crate) const PREPARE: &str = "ring3 lab prepare";

/// Something that the lab needs and `lab/setup.sh` fetches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// QEMU, busybox, programs for file systems.
    Tools,
    /// The load generator, built from source.
    Fio,
    /// `mkfs.btrfs`.
    Btrfs,
    /// Programs that make and watch traffic, in `network/usr/bin` and `network/usr/sbin`: `iperf3`,
    /// `curl`, `ip`, `tc`, `ethtool`.
    Network,
    /// A tree of source text, `tree/tree.tar.bz2`.
    Tree,
    /// Database programs, `databases/databases.tar`.
    Databases,
    /// DPDK's `testpmd`, `dpdk/dpdk.tar`.
    Dpdk,
    /// QEMU's `qemu-img` and `qemu-storage-daemon` with its own NVMe driver, `rivals/rivals.tar`.
    Rivals,
    /// Test suites of others in a root of their own, the disk image `suites/root.img`.
    Suites,
    /// The kernel's own tests of network cards in a root of their own, the disk image
    /// `suites-net/root.img`.
    SuitesNet,
    /// PostgreSQL and sqlite with their own tests, the same, `suites-db/root.img`.
    SuitesDb,
    /// systemd as a guest's first process, `systemd/systemd.tar`.
    Systemd,
    /// What loads the kernel that a running one starts, `kexec/kexec.tar`.
    Kexec,
    /// What watches probe points, `bpftrace/bpftrace.tar`.
    Bpftrace,
    /// QEMU of arm64, `arm64/bin/qemu-system-aarch64`, and what its guests begin with.
    Arm64,
    /// A guest kernel by version prefix, for example `6.12`.
    Kernel(String),
    /// The compiler that reads kernel sources.
    Clang,
    /// A kernel's source and headers by version prefix.
    Source(String),
    /// The Python packages of a lock file.
    Python(PathBuf),
    /// What hosted drivers are built of: the default kernel's source, what its makefiles run, in
    /// `kbuild/bin`, and lwIP's source, in `lwip`.
    Hosting,
    /// AFL++'s fuzzer, `afl/bin/afl-fuzz`.
    Afl,
    /// What counts source lines, `cloc/bin/cloc`.
    Cloc,
}

impl Need {
    /// What `lab/setup.sh` is asked for, and of which version or file.
    fn arguments(&self) -> (&'static str, Option<&OsStr>) {
        match self {
            Self::Tools => ("tools", None),
            Self::Fio => ("fio", None),
            Self::Btrfs => ("btrfs", None),
            Self::Network => ("network", None),
            Self::Tree => ("tree", None),
            Self::Databases => ("databases", None),
            Self::Dpdk => ("dpdk", None),
            Self::Rivals => ("rivals", None),
            Self::Suites => ("suites", None),
            Self::SuitesNet => ("suites-net", None),
            Self::SuitesDb => ("suites-db", None),
            Self::Systemd => ("systemd", None),
            Self::Kexec => ("kexec", None),
            Self::Bpftrace => ("bpftrace", None),
            Self::Arm64 => ("arm64", None),
            Self::Kernel(version) => ("kernel", Some(version.as_ref())),
            Self::Clang => ("clang", None),
            Self::Source(version) => ("source", Some(version.as_ref())),
            Self::Python(lock) => ("python", Some(lock.as_ref())),
            Self::Hosting => ("hosting", None),
            Self::Afl => ("afl", None),
            Self::Cloc => ("cloc", None),
        }
    }

    /// The file that stands for its presence.
    fn stamp(&self) -> String {
        let folder = match self {
            Self::Tools => "tools".into(),
            Self::Fio => "fio".into(),
            Self::Btrfs => "btrfs".into(),
            Self::Network => "network".into(),
            Self::Tree => "tree".into(),
            Self::Databases => "databases".into(),
            Self::Dpdk => "dpdk".into(),
            Self::Rivals => "rivals".into(),
            Self::Suites => "suites".into(),
            Self::SuitesNet => "suites-net".into(),
            Self::SuitesDb => "suites-db".into(),
            Self::Systemd => "systemd".into(),
            Self::Kexec => "kexec".into(),
            Self::Bpftrace => "bpftrace".into(),
            Self::Arm64 => "arm64".into(),
            Self::Kernel(version) => format!("kernels/{version}"),
            Self::Clang => "clang".into(),
            Self::Source(version) => format!("sources/{version}"),
            Self::Python(_) => return "python/requirements.lock".into(),
            Self::Hosting => "kbuild".into(),
            Self::Afl => "afl".into(),
            Self::Cloc => "cloc".into(),
        };
        format!("{folder}/layout-{LAYOUT}")
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tools => "QEMU with the guest's programs".into(),
            Self::Fio => "fio".into(),
            Self::Btrfs => "mkfs.btrfs".into(),
            Self::Network => "iperf3, curl and iproute2".into(),
            Self::Tree => "a source tree".into(),
            Self::Databases => "sqlite and PostgreSQL".into(),
            Self::Dpdk => "DPDK's testpmd".into(),
            Self::Rivals => "QEMU's disk tools".into(),
            Self::Suites => "test suites of others".into(),
            Self::SuitesNet => "the kernel's tests of network cards".into(),
            Self::SuitesDb => "the tests of PostgreSQL and sqlite".into(),
            Self::Systemd => "systemd".into(),
            Self::Kexec => "kexec".into(),
            Self::Bpftrace => "bpftrace".into(),
            Self::Arm64 => "QEMU of arm64 with the guest's programs".into(),
            Self::Kernel(version) => format!("kernel {version}"),
            Self::Clang => "clang".into(),
            Self::Source(version) => format!("the source of kernel {version}"),
            Self::Python(_) => "the Python environment of ring3 split".into(),
            Self::Hosting => "what hosted drivers are built of".into(),
            Self::Afl => "AFL++".into(),
            Self::Cloc => "cloc".into(),
        }
    }

    /// The command that fetches it.
    fn next(&self) -> &'static str {
        match self {
            Self::Tools
            | Self::Fio
            | Self::Btrfs
            | Self::Network
            | Self::Tree
            | Self::Databases
            | Self::Dpdk
            | Self::Rivals
            | Self::Systemd
            | Self::Kexec
            | Self::Bpftrace
            | Self::Arm64
            | Self::Kernel(_) => PREPARE,
            Self::Clang
            | Self::Source(_)
            | Self::Python(_)
            | Self::Hosting
            | Self::Afl
            | Self::Suites
            | Self::SuitesNet
            | Self::SuitesDb
            | Self::Cloc => "the same command again",
        }
    }

    /// Refuses versions that are none.
    fn check(&self) -> Result<(), Error> {
        let (Self::Kernel(version) | Self::Source(version)) = self else { return Ok(()) };
        if BUILT.contains(&version.as_str()) {
            return Ok(());
        }
        let number = match self {
            Self::Kernel(version) => [IOMMUFD, ARM64]
                .iter()
                .find_map(|suffix| version.strip_suffix(suffix))
                .unwrap_or(version),
            _ => version,
        };
        let parts: Vec<&str> = number.split('.').collect();
        let numbers = parts
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        match numbers && (2..=3).contains(&parts.len()) {
            true => Ok(()),
            false => Err(Error::Request(format!(
                "'{version}' is not a kernel version such as {DEFAULT_KERNEL}"
            ))),
        }
    }

    /// Whether it is in the cache.
    pub fn is_met(&self, cache: &Cache) -> bool {
        let stamp = cache.path(self.stamp());
        match self {
            // The environment holds the lock file that it was made from.
            Self::Python(lock) => {
                matches!((fs::read(stamp), fs::read(lock)), (Ok(made), Ok(asked)) if made == asked)
            }
            // A source of before lacks the architecture that hosted drivers are compiled for.
            Self::Hosting => {
                let source = Self::Source(DEFAULT_KERNEL.into());
                let architecture = format!("sources/{DEFAULT_KERNEL}/source/arch/Kconfig");
                let lwip = cache.path(format!("lwip/layout-{LAYOUT}"));
                stamp.exists()
                    && source.is_met(cache)
                    && cache.path(architecture).exists()
                    && lwip.exists()
            }
            _ => stamp.exists(),
        }
    }
}

/// Fetches and builds what of `needs` is missing, which costs a look at a file each when nothing
/// is. `progress` gets one line per step. Without the network, what is there is enough.
pub fn prepare(cache: &Cache, needs: &[Need], progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    needs.iter().try_for_each(Need::check)?;
    for need in needs.iter().filter(|need| !need.is_met(cache)) {
        let (what, which) = need.arguments();
        let missing = |why| Error::Missing {
            what: need.name(),
            why,
            next: need.next(),
            cache: cache.root().to_owned(),
        };
        match script(cache, what, which, progress)? {
            End::Done if need.is_met(cache) => {}
            End::Done => return Err(missing(String::new())),
            End::Failed(why) => return Err(missing(why)),
            End::Refused(why) => return Err(Error::Request(why)),
        }
    }
    Ok(())
}

/// Compares all that was fetched with what was written down when it came, and fetches anew what is
/// damaged.
pub fn verify(cache: &Cache, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    match script(cache, "verify", None, progress)? {
        End::Done => Ok(()),
        End::Failed(why) | End::Refused(why) => Err(Error::Missing {
            what: "a part of the cache".into(),
            why,
            next: PREPARE,
            cache: cache.root().to_owned(),
        }),
    }
}

/// How `lab/setup.sh` ended.
enum End {
    /// All is there.
    Done,
    /// The same may succeed another time.
    Failed(String),
    /// What was asked for does not exist: the same fails each time.
    Refused(String),
}

/// The script's exit code for [`End::Refused`]. [sysexits.h, EX_USAGE]
const REFUSED: i32 = 64;
/// Before a line that says what failed. Such lines are the reason of the error, and no progress.
const REASON: &str = "error: ";

/// Runs `lab/setup.sh`.
fn script(
    cache: &Cache,
    what: &str,
    which: Option<&OsStr>,
    progress: &mut dyn FnMut(&str),
) -> Result<End, Error> {
    let mut script = tempfile::NamedTempFile::new_in(cache.own())
        .doing("creating a file in the cache", cache.own())?;
    script.write_all(SCRIPT.as_bytes()).doing("writing", script.path())?;
    let mut child = Command::new("sh")
        .arg(script.path())
        .arg(what)
        .args(which)
        .env("RING3_CACHE", cache.root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .doing("starting the setup script with", "sh".as_ref())?;
    let (mut said, mut reasons) = (Vec::new(), Vec::new());
    for line in child
        .stderr
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
        .map_while(Result::ok)
    {
        let line = line.strip_prefix("setup: ").unwrap_or(&line);
        if let Some(reason) = line.strip_prefix(REASON) {
            reasons.push(reason.to_owned());
            continue;
        }
        progress(line);
        said.push(line.to_owned());
    }
    let status = child.wait().doing("waiting for the setup script with", "sh".as_ref())?;
    if status.success() {
        return Ok(End::Done);
    }
    // A shell that was ended has given no reason.
    let words =
        if reasons.is_empty() { said.split_off(said.len().saturating_sub(4)) } else { reasons };
    let words = words.join("\n");
    Ok(if status.code() == Some(REFUSED) { End::Refused(words) } else { End::Failed(words) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_and_this_program_agree_on_the_layout() {
        assert!(SCRIPT.contains(&format!("\nlayout={LAYOUT}\n")));
    }

    #[test]
    fn what_is_there_is_not_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let need = Need::Kernel("6.12".into());
        assert!(!need.is_met(&cache));
        fs::create_dir_all(cache.path("kernels/6.12")).unwrap();
        fs::write(cache.path(need.stamp()), "").unwrap();
        prepare(&cache, &[need], &mut |line| panic!("{line}")).unwrap();
    }

    #[test]
    fn what_only_the_splitter_needs_is_fetched_by_its_own_command() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let lock = Need::Python("/nonsense".into());
        let error = prepare(&cache, &[lock], &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("next: the same command again"), "{error}");
    }

    #[test]
    fn packages_of_another_lock_file_are_not_those_that_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let lock = cache.path("asked.lock");
        fs::create_dir(cache.path("python")).unwrap();
        fs::write(&lock, "msgspec==2").unwrap();
        fs::write(cache.path("python/requirements.lock"), "msgspec==1").unwrap();
        assert!(!Need::Python(lock.clone()).is_met(&cache));
        fs::write(cache.path("python/requirements.lock"), "msgspec==2").unwrap();
        assert!(Need::Python(lock).is_met(&cache));
    }

    #[test]
    fn what_is_no_version_is_refused_before_anything_is_fetched() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        for wrong in ["", " ", "nonsense", "6", "6.", "6.12.1.1", "../6.12", "-iommufd"] {
            for need in [Need::Kernel(wrong.into()), Need::Source(wrong.into())] {
                let error =
                    prepare(&cache, &[need], &mut |line| panic!("{line}")).unwrap_err().to_string();
                assert_eq!(error, format!("'{wrong}' is not a kernel version such as 6.12"));
            }
        }
    }

    #[test]
    fn a_kernel_that_is_built_is_used_when_it_is_there_and_names_its_script_when_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let debug = || [Need::Kernel("debug".into())];
        let error = prepare(&cache, &debug(), &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("built from source") && error.contains("debug-kernel.sh"),
            "{error}"
        );
        fs::create_dir_all(cache.path("kernels/debug")).unwrap();
        fs::write(cache.path("kernels/debug/layout-1"), "").unwrap();
        prepare(&cache, &debug(), &mut |line| panic!("{line}")).unwrap();
    }

    #[test]
    fn the_script_and_this_program_agree_on_what_is_a_reason_and_on_what_does_not_exist() {
        assert!(SCRIPT.contains(&format!("    exit {REFUSED}\n")));
        assert_eq!(SCRIPT.matches(&format!("    say \"{REASON}$*\"\n")).count(), 2);
    }

    #[test]
    fn what_cannot_be_fetched_is_an_error_that_says_why_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        fs::write(cache.path("kernels"), "in the way").unwrap();
        let mut lines = Vec::new();
        let error = prepare(&cache, &[Need::Fio], &mut |line| lines.push(line.to_owned()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("cannot write") && error.contains("next: ring3 lab prepare"),
            "{error}"
        );
        assert!(
            !lines.iter().any(|line| line.contains("cannot write")),
            "it is said twice: {lines:?}"
        );
    }
}
