//! Control groups: which can stand still, and how. [Linux, Documentation/admin-guide/cgroup-v2.rst,
//! "cgroup.freeze"]

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Error, Host, LOOK, Processes};

/// The group in which processes stand still that had none.
pub const GATHERED: &str = "ring3-asleep";

/// Rounds in which processes are gathered: each may have left children.
const ROUNDS: usize = 20;

/// Where version 2 of the hierarchy is mounted.
pub fn root(host: &Host) -> Option<PathBuf> {
    let mounts = host.read("proc/self/mountinfo");
    let at = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next()? == "cgroup2").then(|| before.split(' ').nth(4))?
    })?;
    Some(host.path(at.strip_prefix('/').unwrap_or(at)))
}

/// The largest groups below `root` in which nothing goes on, and which do not stand still already.
pub fn others(root: &Path, processes: &Processes) -> Vec<PathBuf> {
    let go_on: Vec<_> = processes
        .groups_that_go_on()
        .iter()
        .map(|group| root.join(group.trim_start_matches('/')))
        .collect();
    let mut chosen = Vec::new();
    choose(root, &go_on, &mut chosen);
    chosen
}

fn choose(group: &Path, go_on: &[PathBuf], chosen: &mut Vec<PathBuf>) {
    let mut below: Vec<_> =
        fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    below.sort();
    for group in below.into_iter().filter(|path| path.join("cgroup.freeze").is_file()) {
        if go_on.iter().any(|spared| spared.starts_with(&group)) {
            choose(&group, go_on, chosen);
        } else if fs::read_to_string(group.join("cgroup.freeze"))
            .is_ok_and(|text| text.trim() == "0")
        {
            chosen.push(group);
        }
    }
}

/// Has `group` stand still, or go on. One that has gone needs neither.
pub fn freeze(group: &Path, freeze: bool) -> Result<(), Error> {
    let file = group.join("cgroup.freeze");
    match fs::write(&file, if freeze { "1" } else { "0" }) {
        Err(error) if error.kind() != ErrorKind::NotFound && group.exists() => {
            Err(Error::step(file.display().to_string(), error))
        }
        _ => Ok(()),
    }
}

/// Waits until all `groups` stand still.
pub fn wait(groups: &[PathBuf], limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    // One that has gone has no process that moves.
    let moves = |group: &&PathBuf| {
        fs::read_to_string(group.join("cgroup.events")).is_ok_and(|text| !text.contains("frozen 1"))
    };
    loop {
        let restless: Vec<_> = groups.iter().filter(moves).collect();
        if restless.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            let names: Vec<_> = restless.iter().map(|group| group.display().to_string()).collect();
            return Err(Error::Restless { groups: names.join(", ") });
        }
        std::thread::sleep(LOOK);
    }
}

/// Moves all processes of the root cgroup into `group`, which is frozen.
pub fn move_into_group(host: &Host, group: &Path) -> Result<(), Error> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(Error::step(group.display().to_string(), error));
        }
        _ => freeze(group, true)?,
    }
    let members = group.join("cgroup.procs");
    for _ in 0..ROUNDS {
        let bare = Processes::read(host).bare();
        if bare.is_empty() {
            break;
        }
        // One that has ended, or that the kernel does not move, stays where it is.
        bare.iter().for_each(|pid| drop(fs::write(&members, pid.to_string())));
    }
    Ok(())
}

/// Moves all processes of `group` back to the root cgroup, and removes the group.
pub fn dissolve_group(group: &Path) -> Result<(), Error> {
    freeze(group, false)?;
    let Some(root) = group.parent() else { return Ok(()) };
    let failed = |error| Error::step(group.display().to_string(), error);
    for _ in 0..ROUNDS {
        let members = fs::read_to_string(group.join("cgroup.procs")).map_err(failed)?;
        if members.trim().is_empty() {
            break;
        }
        members.lines().for_each(|pid| drop(fs::write(root.join("cgroup.procs"), pid)));
    }
    fs::remove_dir(group).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::tests::process;

    fn group(root: &Path, name: &str, frozen: &str) {
        let folder = root.join("sys/fs/cgroup").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.freeze"), frozen).unwrap();
        fs::write(folder.join("cgroup.events"), format!("populated 1\nfrozen {frozen}\n")).unwrap();
    }

    #[test]
    fn the_largest_groups_without_a_process_that_goes_on_are_stopped_and_those_that_stand_still_are_left_alone()
     {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in [
            "init.scope",
            "system.slice",
            "system.slice/ring3d.service",
            "system.slice/ring3d.service/ring3-a",
        ] {
            group(root, name, "0");
        }
        for name in ["system.slice/cron.service", "system.slice/postgres.service", "machine.slice"]
        {
            group(root, name, "0");
        }
        group(root, "user.slice", "1");
        process(root, 1, 0, "/sbin/init", "/init.scope");
        process(root, 11, 1, "@ring3-driver drive a", "/system.slice/ring3d.service/ring3-a");
        let at = root.join("sys/fs/cgroup");
        let chosen = others(&at, &Processes::read(&Host::at(root, 1)));
        let names: Vec<_> =
            chosen.iter().map(|group| group.strip_prefix(&at).unwrap().to_str().unwrap()).collect();
        assert_eq!(
            names,
            ["machine.slice", "system.slice/cron.service", "system.slice/postgres.service"]
        );
    }

    #[test]
    fn a_group_that_does_not_stand_still_in_time_is_named() {
        let folder = tempfile::tempdir().unwrap();
        group(folder.path(), "busy", "0");
        group(folder.path(), "still", "1");
        let at = folder.path().join("sys/fs/cgroup");
        assert!(wait(&[at.join("still"), at.join("gone")], Duration::ZERO).is_ok());
        let error =
            wait(&[at.join("still"), at.join("busy")], Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("cgroup/busy") && !error.contains("still,"), "{error}");
    }

    #[test]
    fn a_group_that_has_gone_needs_not_be_stopped() {
        assert!(freeze(Path::new("/none/such"), true).is_ok());
    }

    #[test]
    fn the_hierarchy_of_version_2_is_found_beside_others() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("proc/self")).unwrap();
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw\n31 25 0:27 / \
                      /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        fs::write(folder.path().join("proc/self/mountinfo"), mounts).unwrap();
        assert_eq!(
            root(&Host::at(folder.path(), 1)),
            Some(folder.path().join("sys/fs/cgroup/unified"))
        );
    }
}
