//! A control group for each device, in version 2 of their hierarchy. [cgroup-v2]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::Limits;

/// The mark of a group whose members outlive the final kill of a shutdown.
const SURVIVE: &str = "user.survive_final_kill_signal";

/// Of a processor's time, in microseconds.
const PERIOD: u64 = 100_000;

/// The group of this process, if it must not be in the one that has the others.
const ASIDE: &str = "supervisor";

/// The largest part of the processors' time that a group can have. [cgroup-v2, cpu.weight]
const MOST_WEIGHT: u32 = 10_000;

/// Controllers, and what nobody limits where one is missing.
const CONTROLLERS: [(&str, &str); 3] = [
    ("memory", "its memory in files"),
    ("cpu", "its time of the processors"),
    ("pids", "the number of its threads"),
];

/// A group that keeps its members within limits.
#[derive(Debug)]
pub(crate) struct Group {
    folder: OwnedFd,
    /// Limits that it does not keep, in words.
    pub(crate) missing: Vec<String>,
}

impl Group {
    /// The group of `limits`, below the one of this process; made if it is not there. A controller
    /// that cannot be had is missing, and the others do without.
    pub(crate) fn of(limits: &Limits) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (root, own) = base(&mounts, &own)
            .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no cgroup v2 is mounted"))?;
        let parent = parent(&root, &root.join(own));
        let folder = parent.join(format!("ring3-{}", limits.name.replace('/', "-")));
        create(&folder)?;
        survive(&folder);
        let values = [
            ("memory", "memory.max", Some(limits.memory.to_string())),
            ("cpu", "cpu.max", quota(limits.cpu_percent, processors())),
            ("pids", "pids.max", Some(limits.pids.to_string())),
        ];
        let limit = |(controller, file, value): &(&str, &str, Option<String>)| {
            let Some(value) = value else {
                // An earlier process of the device may have had less.
                let _ = fs::write(folder.join(file), "max");
                return None;
            };
            delegate(&parent, controller)
                .and_then(|()| set(&folder.join(file), value))
                .err()
                .map(|error| lack(controller, &error))
        };
        let missing = values.iter().filter_map(limit).collect();
        // A weight is no limit: without the controller the group has its turn as any other.
        let _ = delegate(&parent, "cpu")
            .and_then(|()| set(&folder.join("cpu.weight"), &limits.cpu_weight.to_string()));
        // Whoever watches drivers has its turn whatever these do.
        let _ = fs::write(parent.join(ASIDE).join("cpu.weight"), MOST_WEIGHT.to_string());
        // A system without swap has no such file.
        let _ = fs::write(folder.join("memory.swap.max"), "0");
        // Huge pages are in no count of memory. Where nobody has set any aside, or the controller
        // is somebody else's, there is nothing to limit, or nobody who could.
        let _ =
            delegate(&parent, "hugetlb").and_then(|()| limit_huge_pages(&folder, limits.memory));
        let folder = rustix::fs::open(
            &folder,
            OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { folder, missing })
    }
}

/// Limits huge pages, of each size that the machine has, to `bytes`.
fn limit_huge_pages(folder: &Path, bytes: u64) -> io::Result<()> {
    let is_limit = |name: &str| {
        let size = name.strip_prefix("hugetlb.").and_then(|name| name.strip_suffix(".max"));
        size.is_some_and(|size| !size.ends_with(".rsvd"))
    };
    let names = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_str().is_some_and(is_limit))
        .try_for_each(|name| set(&folder.join(name), &bytes.to_string()))
}

/// What stands for `percent` of a processor in `cpu.max`; `None` if so many `processors` are no
/// more than that: a quota costs whenever a thread sleeps.
fn quota(percent: u32, processors: u32) -> Option<String> {
    (percent < processors.saturating_mul(100))
        .then(|| format!("{} {PERIOD}", PERIOD * u64::from(percent) / 100))
}

/// Processors that the machine may have; many, if it does not say.
fn processors() -> u32 {
    // SAFETY: a question without memory.
    let known = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(known).ok().filter(|&known| known > 0).unwrap_or(u32::MAX)
}

fn lack(controller: &str, error: &io::Error) -> String {
    let what = CONTROLLERS
        .iter()
        .find_map(|(name, what)| (*name == controller).then_some(*what))
        .unwrap_or(controller);
    format!("{what} is not limited: the controller {controller} is not delegated: {error}")
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

/// Where the hierarchy is mounted, and the group of this process in it.
fn base(mountinfo: &str, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
    let mount = mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        // A group of it may be mounted as well, to be written where the rest is not (systemd's
        // ProtectControlGroups= and ReadWritePaths=).
        let whole = fields.next()? == "/" && after.split(' ').next()? == "cgroup2";
        whole.then(|| fields.next())?
    })?;
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some((mount.into(), own.into()))
}

/// The group in which others are made. A service manager, or an earlier call, may have put this
/// process into a group of its own below it.
fn parent(root: &Path, own: &Path) -> PathBuf {
    let is_aside = own.file_name().is_some_and(|name| name == ASIDE) && own != root;
    if is_aside { own.parent().unwrap_or(root).into() } else { own.into() }
}

/// Has groups below `parent` limited by `controller`, once nobody is in it but in groups of it.
/// [cgroup-v2, no internal processes]
fn delegate(parent: &Path, controller: &str) -> io::Result<()> {
    let control = parent.join("cgroup.subtree_control");
    let enable =
        || fs::write(&control, format!("+{controller}")).map_err(|error| at(&control, error));
    match enable() {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            let aside = parent.join(ASIDE);
            create(&aside)?;
            set(&aside.join("cgroup.procs"), &std::process::id().to_string())?;
            enable()
        }
        result => result,
    }
}

/// Has systemd 255 and later leave the members alone when it kills all that is left before it
/// unmounts file systems: `@` in the first argument spares root's processes only. [systemd.unit(5),
/// SurviveFinalKillSignal=] The one who holds the group's parent sets it himself: units know it by
/// a key that 252 does not know, and that is for the unit's own group alone. Where the kernel does
/// not keep it, a supervisor replaces what is killed.
fn survive(folder: &Path) {
    let _ = rustix::fs::setxattr(folder, SURVIVE, b"1", rustix::fs::XattrFlags::empty());
}

fn create(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(at(folder, error)),
        _ => Ok(()),
    }
}

fn set(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value).map_err(|error| at(file, error))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_the_one_of_version_2_and_the_own_group_is_in_it() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 31 0:27 /system.slice /sys/fs/cgroup/unified/system.slice rw - cgroup2 \
                      cgroup2 rw\n31 25 0:27 / /sys/fs/cgroup/unified ro,nosuid - cgroup2 cgroup2 \
                      rw\n";
        let own = "4:cpu:/a\n0::/system.slice/ring3d.service\n";
        let (root, group) = base(mounts, own).unwrap();
        assert_eq!(
            (root, group),
            ("/sys/fs/cgroup/unified".into(), "system.slice/ring3d.service".into())
        );
        assert!(base("", own).is_none() && base(mounts, "4:cpu:/a\n").is_none());
    }

    #[test]
    fn groups_are_made_beside_the_one_that_a_service_manager_has_put_this_process_into() {
        let root = Path::new("/sys/fs/cgroup");
        let of = |own: &str| parent(root, &root.join(own));
        assert_eq!(of("ring3d.service/supervisor"), of("ring3d.service"));
        assert_eq!((of(""), of("supervisor")), (root.into(), root.into()));
    }

    #[test]
    fn as_much_as_all_processors_have_is_no_quota() {
        assert_eq!(quota(150, 2).as_deref(), Some("150000 100000"));
        assert_eq!((quota(200, 2), quota(200, 1)), (None, None));
        assert_eq!(quota(200, u32::MAX).as_deref(), Some("200000 100000"));
    }

    #[test]
    fn huge_pages_of_each_size_are_limited_and_reservations_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "hugetlb.2MB.max",
            "hugetlb.1GB.max",
            "hugetlb.1GB.rsvd.max",
            "hugetlb.2MB.current",
            "pids.max",
        ];
        names.iter().for_each(|name| fs::write(folder.path().join(name), "max").unwrap());
        limit_huge_pages(folder.path(), 4096).unwrap();
        let read = |name: &&str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            names.iter().map(read).collect::<Vec<_>>(),
            ["4096", "4096", "max", "max", "max"]
        );
    }

    #[test]
    fn a_controller_that_cannot_be_had_is_named_with_what_it_would_limit() {
        let folder = tempfile::tempdir().unwrap();
        let error = delegate(&folder.path().join("none"), "cpu").unwrap_err();
        let text = lack("cpu", &error);
        assert!(
            text.contains("time of the processors is not limited")
                && text.contains("cgroup.subtree_control"),
            "{text}"
        );
    }
}
