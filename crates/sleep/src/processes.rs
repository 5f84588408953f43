//! All processes, and which of them go on.

use std::collections::BTreeMap;

use crate::Host;

/// With this the first argument of a process begins that serves storage: systemd's mark for what it does not kill before file systems are unmounted.
pub const MARK: u8 = b'@';

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
        let numbers = host.names("proc").into_iter().filter_map(|name| name.parse().ok());
        let all = numbers.filter_map(|pid| Some((pid, Process::read(host, pid)?))).collect();
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
        let spared = self.all.iter().filter(|(pid, process)| !process.is_kernel && self.goes_on(**pid, process, &ancestors));
        spared.map(|(_, process)| process.group.as_str()).collect()
    }

    /// Processes to be stopped that are in no control group but the root of all, which has no freezer.
    pub fn bare(&self) -> Vec<u32> {
        let ancestors = self.ancestors();
        let stops =
            |(&pid, process): (&u32, &Process)| (process.group == "/" && !self.goes_on(pid, process, &ancestors)).then_some(pid);
        self.all.iter().filter_map(stops).collect()
    }

    /// Whether the caller's control group has processes beside its ancestors.
    pub fn has_others(&self) -> bool {
        let (ancestors, own) = (self.ancestors(), self.all.get(&self.own).map(|process| &process.group));
        self.all.iter().any(|(pid, process)| Some(&process.group) == own && !self.goes_on(*pid, process, &ancestors))
    }

    /// Whether one runs whose first argument is `name` with the mark.
    pub fn is_running(host: &Host, name: &str) -> bool {
        let wanted = [&[MARK], name.as_bytes(), &[0]].concat();
        host.names("proc")
            .iter()
            .filter(|pid| pid.parse::<u32>().is_ok())
            .any(|pid| std::fs::read(host.path(&format!("proc/{pid}/cmdline"))).is_ok_and(|words| words.starts_with(&wanted)))
    }
}

impl Process {
    fn read(host: &Host, pid: u32) -> Option<Self> {
        let file = |name: &str| host.read(&format!("proc/{pid}/{name}"));
        // The name in parentheses may hold anything. [proc_pid_stat(5)]
        let stat = file("stat");
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let (parent, flags) = (fields.get(1)?.parse().ok()?, fields.get(6)?.parse::<u64>().ok()?);
        let group = file("cgroup").lines().find_map(|line| Some(line.strip_prefix("0::")?.to_owned()))?;
        let is_marked = file("cmdline").as_bytes().first() == Some(&MARK);
        Some(Self { parent, is_kernel: flags & PF_KTHREAD != 0, is_marked, group })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Writes process `pid` below `root`.
    pub(crate) fn process(root: &Path, pid: u32, parent: u32, words: &str, group: &str) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let flags = if words.is_empty() { PF_KTHREAD } else { 0x40_0100 };
        fs::write(folder.join("stat"), format!("{pid} (a ) b) S {parent} 1 1 0 -1 {flags} 0 0 0")).unwrap();
        fs::write(folder.join("cmdline"), words.replace(' ', "\0") + if words.is_empty() { "" } else { "\0" }).unwrap();
        fs::write(folder.join("cgroup"), format!("1:name=x:/y\n0::{group}\n")).unwrap();
    }

    fn machine() -> (tempfile::TempDir, Processes) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        process(root, 1, 0, "/sbin/init", "/init.scope");
        process(root, 2, 0, "", "/");
        process(root, 10, 1, "@ring3d --config /etc/ring3", "/system.slice/ring3d.service/supervisor");
        process(root, 11, 10, "@ring3-driver drive a", "/system.slice/ring3d.service/ring3-a");
        process(root, 20, 1, "postgres", "/system.slice/postgres.service");
        process(root, 30, 1, "systemd-sleep suspend", "/system.slice/systemd-suspend.service");
        process(root, 31, 30, "ring3 sleep", "/system.slice/systemd-suspend.service");
        process(root, 32, 30, "tlp suspend", "/system.slice/systemd-suspend.service");
        process(root, 40, 1, "sh writer", "/");
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
        assert!(!Processes::is_running(&host, "ring3") && !Processes::is_running(&host, "postgres"));
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
