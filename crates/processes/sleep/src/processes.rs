//! All processes, and which of them go on.
//!
//! # Trust
//! Anybody can begin its first argument with the mark. It counts for root's processes, by their
//! real user, as with systemd, because whoever executes a set-user-id program chooses its
//! arguments. And it counts in the control groups that ring3 makes for its drivers, which are not
//! root's: a group called `ring3-...` that belongs to the owner of the hierarchy, who alone can
//! make such a group there. The arguments of any other process are not read: its memory may be a
//! file whose server never answers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::{Host, groups};

/// With this the first argument of a process begins that serves storage: systemd's mark for what it
/// does not kill before file systems are unmounted.
const MARK: u8 = b'@';

/// The control group of a driver's processes is called this and the name of its device.
const DRIVERS: &str = "ring3-";

/// In the ninth field of /proc/PID/stat: a thread of the kernel's. [Linux, include/linux/sched.h]
const PF_KTHREAD: u64 = 0x0020_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    parent: u32,
    is_kernel: bool,
    is_marked: bool,
    /// Its control group, such as `/system.slice/cron.service`.
    group: String,
}

/// All processes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    all: BTreeMap<u32, Process>,
    own: u32,
}

impl Processes {
    /// As they are now. One that ends meanwhile is not there.
    pub fn read(host: &Host) -> Self {
        let root = groups::root(host);
        let numbers = host.names("proc").into_iter().filter_map(|name| name.parse().ok());
        let all = numbers
            .filter_map(|pid| Some((pid, Process::read(host, root.as_deref(), pid)?)))
            .collect();
        Self { all, own: host.own() }
    }

    /// The caller and its ancestors.
    fn ancestors(&self) -> Vec<u32> {
        let mut line = vec![self.own];
        while let Some(process) = line.last().and_then(|pid| self.all.get(pid))
            && process.parent != 0
            && !line.contains(&process.parent)
        {
            line.push(process.parent);
        }
        line
    }

    /// Whether process `pid` is not to be stopped.
    fn goes_on(&self, pid: u32, process: &Process, ancestors: &[u32]) -> bool {
        pid == 1 || process.is_kernel || process.is_marked || ancestors.contains(&pid)
    }

    /// The control groups in which a process goes on.
    pub fn groups_that_go_on(&self) -> Vec<&str> {
        let ancestors = self.ancestors();
        let spared = self.all.iter().filter(|(pid, process)| {
            !process.is_kernel && self.goes_on(**pid, process, &ancestors)
        });
        spared.map(|(_, process)| process.group.as_str()).collect()
    }

    /// Processes to be stopped that are in no control group but the root of all, which has no
    /// freezer.
    pub fn bare(&self) -> Vec<u32> {
        let ancestors = self.ancestors();
        let stops = |(&pid, process): (&u32, &Process)| {
            (process.group == "/" && !self.goes_on(pid, process, &ancestors)).then_some(pid)
        };
        self.all.iter().filter_map(stops).collect()
    }

    /// Whether the caller's control group has processes beside its ancestors.
    pub fn has_others(&self) -> bool {
        let (ancestors, own) =
            (self.ancestors(), self.all.get(&self.own).map(|process| &process.group));
        self.all.iter().any(|(pid, process)| {
            Some(&process.group) == own && !self.goes_on(*pid, process, &ancestors)
        })
    }

    /// Whether one of root's runs whose first argument is `name` with the mark.
    pub fn is_running(host: &Host, name: &str) -> bool {
        let wanted = [&[MARK], name.as_bytes(), &[0]].concat();
        let numbers = host.names("proc").into_iter().filter_map(|name| name.parse().ok());
        let is_it = |pid: u32| {
            fs::read(host.path(&format!("proc/{pid}/cmdline")))
                .is_ok_and(|words| words.starts_with(&wanted))
        };
        numbers.filter(|pid| is_roots(host, *pid)).any(is_it)
    }
}

/// Whether root has started process `pid`.
fn is_roots(host: &Host, pid: u32) -> bool {
    let status = host.read(&format!("proc/{pid}/status"));
    // The real user is the first. [proc_pid_status(5)]
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.and_then(|users| users.split_whitespace().next()) == Some("0")
}

/// Whether `group`, in the hierarchy at `root`, is one that ring3 has made for drivers.
fn is_for_drivers(root: &Path, group: &str) -> bool {
    let path = root.join(group.trim_start_matches('/'));
    let is_called =
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DRIVERS));
    let owner = |path: &Path| fs::metadata(path).map(|group| group.uid()).ok();
    is_called && owner(&path).is_some_and(|user| owner(root) == Some(user))
}

impl Process {
    fn read(host: &Host, root: Option<&Path>, pid: u32) -> Option<Self> {
        let file = |name: &str| host.read(&format!("proc/{pid}/{name}"));
        // The name in parentheses may hold anything. [proc_pid_stat(5)]
        let stat = file("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let (parent, flags) = (fields.get(1)?.parse().ok()?, fields.get(6)?.parse::<u64>().ok()?);
        let group =
            file("cgroup").lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()))?;
        let is_trusted =
            is_roots(host, pid) || root.is_some_and(|root| is_for_drivers(root, &group));
        let is_marked = is_trusted && file("cmdline").as_bytes().first() == Some(&MARK);
        Some(Self { parent, is_kernel: flags & PF_KTHREAD != 0, is_marked, group })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Writes process `pid`, which is root's, below `root`.
    pub(crate) fn process(root: &Path, pid: u32, parent: u32, words: &str, group: &str) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let flags = if words.is_empty() { PF_KTHREAD } else { 0x40_0100 };
        fs::write(folder.join("stat"), format!("{pid} (a ) b) S {parent} 1 1 0 -1 {flags} 0 0 0"))
            .unwrap();
        fs::write(
            folder.join("cmdline"),
            words.replace(' ', "\0") + if words.is_empty() { "" } else { "\0" },
        )
        .unwrap();
        fs::write(folder.join("cgroup"), format!("1:name=x:/y\n0::{group}\n")).unwrap();
        users(root, pid, "0 0 0 0");
    }

    /// Writes the real, effective, saved and file system users of process `pid`.
    fn users(root: &Path, pid: u32, users: &str) {
        let status = format!("Name:\ta\nUid:\t{}\nGid:\t0\t0\t0\t0\n", users.replace(' ', "\t"));
        fs::write(root.join(format!("proc/{pid}/status")), status).unwrap();
    }

    fn machine() -> (tempfile::TempDir, Processes) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        process(root, 1, 0, "/sbin/init", "/init.scope");
        process(root, 2, 0, "", "/");
        process(
            root,
            10,
            1,
            "@ring3d --config /etc/ring3",
            "/system.slice/ring3d.service/supervisor",
        );
        process(root, 11, 10, "@ring3-driver drive a", "/system.slice/ring3d.service/ring3-a");
        process(root, 20, 1, "postgres", "/system.slice/postgres.service");
        process(root, 30, 1, "systemd-sleep suspend", "/system.slice/systemd-suspend.service");
        process(root, 31, 30, "ring3 sleep", "/system.slice/systemd-suspend.service");
        process(root, 32, 30, "tlp suspend", "/system.slice/systemd-suspend.service");
        process(root, 40, 1, "sh writer", "/");
        users(root, 11, "61184 61184 61184 61184");
        users(root, 20, "70 70 70 70");
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(
            root.join("proc/self/mountinfo"),
            "31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        fs::create_dir_all(root.join("sys/fs/cgroup/system.slice/ring3d.service/ring3-a")).unwrap();
        let processes = Processes::read(&Host::at(root, 31));
        (folder, processes)
    }

    #[test]
    fn servers_of_storage_the_first_process_and_the_callers_ancestors_go_on() {
        let (_folder, processes) = machine();
        let mut groups = processes.groups_that_go_on();
        groups.dedup();
        let wanted = [
            "/init.scope",
            "/system.slice/ring3d.service/supervisor",
            "/system.slice/ring3d.service/ring3-a",
            "/system.slice/systemd-suspend.service",
        ];
        assert_eq!(groups, wanted);
    }

    #[test]
    fn the_mark_of_others_counts_in_groups_of_drivers_alone_and_that_of_a_set_user_id_program_nowhere()
     {
        let (folder, _) = machine();
        let root = folder.path();
        for (pid, group, owner) in [
            (50, "/user.slice/session-1.scope", "1000 1000 1000 1000"),
            (51, "/user.slice/session-2.scope", "1000 0 0 0"),
            // Nobody has made this group.
            (52, "/user.slice/ring3-b", "1000 1000 1000 1000"),
        ] {
            process(root, pid, 1, "@mine", group);
            users(root, pid, owner);
        }
        let processes = Processes::read(&Host::at(root, 31));
        assert!(
            !processes.groups_that_go_on().iter().any(|group| group.starts_with("/user.slice")),
            "{processes:?}"
        );
        users(root, 51, "0 0 0 0");
        assert!(
            Processes::read(&Host::at(root, 31))
                .groups_that_go_on()
                .contains(&"/user.slice/session-2.scope")
        );
    }

    #[test]
    fn a_process_in_no_group_is_stopped_and_a_thread_of_the_kernel_is_not() {
        assert_eq!(machine().1.bare(), [40]);
    }

    #[test]
    fn a_hook_beside_this_one_is_another() {
        let (folder, processes) = machine();
        assert!(processes.has_others());
        fs::remove_dir_all(folder.path().join("proc/32")).unwrap();
        assert!(!Processes::read(&Host::at(folder.path(), 31)).has_others());
    }

    #[test]
    fn a_program_is_found_by_its_marked_name_alone() {
        let (folder, _) = machine();
        let host = Host::at(folder.path(), 31);
        assert!(Processes::is_running(&host, "ring3d"));
        assert!(
            !Processes::is_running(&host, "ring3") && !Processes::is_running(&host, "postgres")
        );
        users(folder.path(), 10, "1000 0 0 0");
        assert!(!Processes::is_running(&host, "ring3d"), "anybody can call itself so");
    }

    #[test]
    fn a_process_whose_files_make_no_sense_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        process(folder.path(), 5, 1, "a", "/");
        for (file, text) in [("stat", "5 (a) S"), ("stat", ""), ("cgroup", "1:name=x:/")] {
            fs::write(folder.path().join("proc/5").join(file), text).unwrap();
            assert!(Processes::read(&Host::at(folder.path(), 9)).all.is_empty(), "{file} {text:?}");
        }
    }
}
