//! What becomes of a machine that sleeps, said before it does.

use std::path::Path;

use crate::{Disks, Host, groups};

/// Where systemd looks for hooks. [systemd-sleep(8)]
const HOOKS: [&str; 2] = ["usr/lib/systemd/system-sleep/ring3", "lib/systemd/system-sleep/ring3"];

/// In words, with what to do next.
pub fn forecast(host: &Host) -> String {
    let mounts = Disks::read(host).mounts(host);
    if let Some(root) = mounts.iter().find(|mount| mount.at == Path::new("/")) {
        return format!(
            "the root file system is on {}, which a process serves: do not let this machine sleep",
            root.disk
        );
    }
    if groups::root(host).is_none() {
        return "no cgroup v2 is mounted: the machine does not sleep while a disk of ring3's is \
                written; mount -t cgroup2 cgroup2 /sys/fs/cgroup"
            .into();
    }
    let systemd = host.path("run/systemd/system").is_dir();
    let hook = HOOKS.iter().any(|hook| host.path(hook).is_file());
    match (systemd, hook) {
        (true, true) => {
            "systemd's hook stops users and devices of ring3d before, and starts them after".into()
        }
        (true, false) => "no hook in /usr/lib/systemd/system-sleep: the machine does not sleep \
                          while a disk of ring3's is written; make install"
            .into(),
        (false, _) => "without systemd: ring3 sleep before the machine sleeps and ring3 wake \
                       after, or it does not while a disk of ring3's is written"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn machine(folders: &[&str], files: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(
            root.join("proc/self/mountinfo"),
            "31 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        .unwrap();
        folders.iter().for_each(|path| fs::create_dir_all(root.join(path)).unwrap());
        for path in files.iter().map(|path| root.join(path)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        forecast(&Host::at(root, 1))
    }

    #[test]
    fn a_machine_with_systemd_and_the_hook_sleeps() {
        assert!(machine(&["run/systemd/system"], &[HOOKS[0]]).starts_with("systemd's hook stops"));
    }

    #[test]
    fn without_the_hook_or_without_systemd_it_is_said_what_to_do() {
        assert!(machine(&["run/systemd/system"], &[]).ends_with("make install"));
        assert!(
            machine(&[], &[HOOKS[0]])
                .contains("ring3 sleep before the machine sleeps and ring3 wake after")
        );
    }

    #[test]
    fn without_control_groups_it_is_said_that_it_does_not_sleep() {
        let folder = tempfile::tempdir().unwrap();
        assert!(forecast(&Host::at(folder.path(), 1)).contains("mount -t cgroup2"));
    }
}
