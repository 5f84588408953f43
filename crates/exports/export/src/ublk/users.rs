//! Who uses a block device: told to the user instead of a bare "busy".

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{Error, User};

/// The whole disk and its partitions, as they are or were: names and device numbers.
#[derive(Clone, Debug)]
pub struct Nodes {
    names: Vec<String>,
    numbers: Vec<(u32, u32)>,
}

impl Nodes {
    /// Of the block device `disk` (`ublkb0`), which is there now.
    pub fn of(disk: &str) -> Self {
        let directory = format!("/sys/block/{disk}");
        let partitions = names_in(&directory).filter(|name| name.starts_with(disk));
        let names: Vec<_> = partitions.chain([disk.to_owned()]).collect();
        let path = |name: &String| {
            if name == disk {
                format!("{directory}/dev")
            } else {
                format!("{directory}/{name}/dev")
            }
        };
        let numbers = names
            .iter()
            .filter_map(|name| number(fs::read_to_string(path(name)).ok()?.trim()))
            .collect();
        Self { names, numbers }
    }

    fn has_path(&self, path: &str) -> bool {
        path.strip_prefix("/dev/").is_some_and(|name| self.names.iter().any(|known| known == name))
    }
}

/// All users of the block device `disk` (`ublkb0`) that can be seen from here. Best effort: what
/// cannot be read is left out.
pub fn of(disk: &str) -> Vec<User> {
    Nodes::of(disk).users()
}

impl Nodes {
    /// All users of it that can be seen from here, also once it is taken away: who has it open
    /// keeps it.
    pub fn users(&self) -> Vec<User> {
        let mut users = self.devices();
        let own = std::process::id();
        let is_other = |pid: &u32| *pid != own && !is_reader(*pid, own);
        for pid in names_in("/proc").filter_map(|name| name.parse().ok()).filter(is_other) {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            users.extend(mounts.lines().filter_map(|line| mounted(line, self)).map(User::Mount));
            if has_open(pid, self) {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                users.push(User::Process(
                    pid,
                    name.trim().chars().flat_map(char::escape_debug).collect(),
                ));
            }
        }
        users.sort();
        users.dedup();
        users
    }

    /// What of the kernel's stands on it.
    fn devices(&self) -> Vec<User> {
        let mut users = Vec::new();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.lines().any(|line| self.has_path(first_word(line))) {
            users.push(User::Swap);
        }
        let disks: Vec<_> = names_in("/sys/block").collect();
        // The kernel's loop driver opens its disk itself: no process has it open, and it is no
        // holder.
        let backing = |disk: &String| {
            fs::read_to_string(format!("/sys/block/{disk}/loop/backing_file")).unwrap_or_default()
        };
        let stands = |disk: &&String| {
            let lies_on = self.has_path(backing(disk).trim_end().trim_end_matches(" (deleted)"));
            lies_on
                || names_in(&format!("/sys/block/{disk}/slaves"))
                    .any(|name| self.names.contains(&name))
        };
        users.extend(disks.iter().filter(stands).cloned().map(User::Holder));
        users
    }
}

/// The program that reads partition tables, beside this process's own.
const READER: &str = "ring3-driver";

/// Whether a process is a child of `own` that reads the disk's partition table, and ends in a
/// moment. A child of another program is a user: where `own` is a container's first process,
/// orphans of users become its children.
fn is_reader(pid: u32, own: u32) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let program =
        fs::read_link("/proc/self/exe").ok().and_then(|path| file(&path.with_file_name(READER)));
    // Followed and compared by its inode, because a confined process has another root.
    let runs = || file(Path::new(&format!("/proc/{pid}/exe")));
    parent(pid) == Some(own) && program.is_some() && runs() == program
}

/// The process that has started another one. [Linux, proc_pid_stat(5), field 4]
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A process chooses its name, which stands in parentheses and may hold such.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// [`Error::Busy`] if anybody is known to use the block device `disk`.
pub fn check(disk: &str) -> Result<(), Error> {
    let users = of(disk);
    if users.is_empty() && !is_claimed(disk) {
        Ok(())
    } else {
        Err(Error::Busy { device: format!("/dev/{disk}"), users })
    }
}

/// Whether somebody has claimed it for himself, seen from here or not.
fn is_claimed(disk: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(format!("/dev/{disk}"), flags, Mode::empty());
    matches!(opened, Err(rustix::io::Errno::BUSY))
}

/// Where a line of mountinfo says that one of `nodes` is mounted. The device number is the file
/// system's, which for some (btrfs) is not the disk's; those name the disk as the source.
fn mounted(line: &str, nodes: &Nodes) -> Option<String> {
    let fields: Vec<_> = line.split(' ').collect();
    let by_number = number(fields.get(2)?).is_some_and(|number| nodes.numbers.contains(&number));
    let separator = fields.iter().position(|&field| field == "-")?;
    let by_source = fields.get(separator + 2).is_some_and(|source| nodes.has_path(source));
    (by_number || by_source).then(|| fields[4].replace("\\040", " "))
}

fn has_open(pid: u32, nodes: &Nodes) -> bool {
    let directory = format!("/proc/{pid}/fd");
    names_in(&directory).any(|fd| {
        fs::metadata(format!("{directory}/{fd}")).is_ok_and(|file| {
            let number = (rustix::fs::major(file.rdev()), rustix::fs::minor(file.rdev()));
            file.file_type().is_block_device() && nodes.numbers.contains(&number)
        })
    })
}

fn number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn first_word(line: &str) -> &str {
    line.split_whitespace().next().unwrap_or_default()
}

fn names_in(directory: &str) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_runs_another_program_is_no_reader_of_partition_tables() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        let found = (parent(child.id()), is_reader(child.id(), own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (Some(own), false), "it is a user's program");
    }

    fn nodes() -> Nodes {
        Nodes { names: vec!["ublkb0".into(), "ublkb0p1".into()], numbers: vec![(259, 0), (259, 1)] }
    }

    #[test]
    fn a_mount_is_found_by_its_device_number() {
        let line = "36 35 259:1 / /mnt/my\\040disk rw,noatime master:1 - ext4 /dev/root rw";
        assert_eq!(mounted(line, &nodes()).as_deref(), Some("/mnt/my disk"));
    }

    #[test]
    fn a_mount_with_a_number_of_its_own_is_found_by_its_source() {
        let line = "36 35 0:41 / /mnt rw - btrfs /dev/ublkb0 rw";
        assert_eq!(mounted(line, &nodes()).as_deref(), Some("/mnt"));
    }

    #[test]
    fn the_mount_of_another_disk_is_not_ours() {
        let line = "36 35 259:10 / /mnt rw - ext4 /dev/ublkb01 rw";
        assert_eq!(mounted(line, &nodes()), None);
    }
}
