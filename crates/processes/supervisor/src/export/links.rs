//! Names that stay: `/dev/ring3/NAME` for a disk, `NAME-part1` for its first partition.
//!
//! # Trust
//! How many disks a device has, and which partitions, is what its driver says. A name that leads to
//! another device's disk is that one's, and stays: somebody mounts by it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where they are.
const FOLDER: &str = "/dev/ring3";
/// Where udev finds them.
const NAMES: &str = "/run/ring3/names";

/// Tells udev, before it sees disk `ublkbN`, what that is called: etc/60-ring3.rules reads it. A
/// name that another disk has is not told: [`io::ErrorKind::AlreadyExists`].
pub fn announce(name: &str, disk: &str) -> io::Result<()> {
    Places::here().announce(name, disk)
}

/// What was told of disk `ublkbN` is of no disk any more.
pub fn forget(disk: &str) {
    let _ = fs::remove_file(Path::new(NAMES).join(disk));
}

/// Names disk `ublkbN` and its partitions; those of before that are gone lose theirs. A name that
/// stays is there all the while.
pub fn set(name: &str, disk: &str) -> io::Result<PathBuf> {
    Places::here().set(name, disk)
}

/// Where `name` is, if it leads to `disk`.
pub fn place(name: &str, disk: &str) -> Option<PathBuf> {
    let link = Path::new(FOLDER).join(name);
    fs::read_link(&link)
        .is_ok_and(|target| target.file_name().is_some_and(|file| file == disk))
        .then_some(link)
}

/// Takes the names away, unless somebody else has taken them meanwhile.
pub fn clear(name: &str, disk: &str) {
    forget(disk);
    clear_in(Path::new(FOLDER), name, disk, |_| false);
}

/// Where links are, where disks say which name is theirs, and where the kernel shows disks.
struct Places<'a> {
    folder: &'a Path,
    names: &'a Path,
    block: &'a Path,
}

impl Places<'_> {
    fn here() -> Self {
        Self { folder: Path::new(FOLDER), names: Path::new(NAMES), block: Path::new("/sys/block") }
    }

    fn announce(&self, name: &str, disk: &str) -> io::Result<()> {
        fs::create_dir_all(self.names)?;
        let others = fs::read_dir(self.names)?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let others = others.filter(|other| other != disk && self.block.join(other).exists());
        let clashes = |other: &String| {
            self.name_of(other)
                .is_some_and(|own| own == name || is_part(&own, name) || is_part(name, &own))
        };
        if let Some(other) = others.into_iter().find(clashes) {
            let why = format!(
                "/dev/{other} or a partition of it has that name already: give one of the two \
                devices another name"
            );
            let _ = fs::remove_file(self.names.join(disk));
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        fs::write(self.names.join(disk), format!("RING3_NAME={name}\n"))
    }

    /// What `disk` was announced as.
    fn name_of(&self, disk: &str) -> Option<String> {
        let announced = fs::read_to_string(self.names.join(disk)).ok()?;
        announced.trim().strip_prefix("RING3_NAME=").map(str::to_owned)
    }

    fn set(&self, name: &str, disk: &str) -> io::Result<PathBuf> {
        let Self { folder, block, .. } = self;
        fs::create_dir_all(folder)?;
        let parts: Vec<_> = numbers(block, disk)
            .into_iter()
            .map(|number| (format!("{name}-part{number}"), format!("{disk}p{number}")))
            .collect();
        clear_in(folder, name, disk, |found| {
            found == name || parts.iter().any(|(part, _)| part == found)
        });
        for (part, node) in &parts {
            if let Err(error) = self.link(part, node, disk) {
                tracing::warn!("{part} could not be made: {error}");
            }
        }
        self.link(name, disk, disk)
    }

    /// A link of this name to `/dev/{node}`, in one step for those who look. What leads to another
    /// disk by right stays.
    fn link(&self, name: &str, node: &str, disk: &str) -> io::Result<PathBuf> {
        let (at, new) = (self.folder.join(name), self.folder.join(format!(".{name}.new")));
        if let Some(other) = self.other(&at, name, disk) {
            let why = format!(
                "{} is the name of {other} already: give one of the two devices another name",
                at.display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let _ = fs::remove_file(&new);
        symlink(Path::new("..").join(node), &new)?;
        fs::rename(&new, &at)?;
        Ok(at)
    }

    /// The other disk that is there and has `name` by right, as it or its partition was announced
    /// so.
    fn other(&self, at: &Path, name: &str, disk: &str) -> Option<String> {
        let target = fs::read_link(at).ok()?;
        let node = target.file_name()?.to_str()?;
        let digits = node.strip_prefix("ublkb")?.chars().take_while(char::is_ascii_digit).count();
        let (other, part) = node.split_at("ublkb".len() + digits);
        let own = self.name_of(other)?;
        let named = match part.strip_prefix('p') {
            Some(number) => name == format!("{own}-part{number}"),
            None => name == own,
        };
        (other != disk && named && self.block.join(other).exists()).then(|| format!("/dev/{node}"))
    }
}

/// Whether `name` is what a partition of the disk `disk` is called.
fn is_part(name: &str, disk: &str) -> bool {
    name.strip_prefix(disk)
        .and_then(|rest| rest.strip_prefix("-part"))
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Where the partitions of `disk` are.
pub fn partitions(disk: &str) -> Vec<String> {
    numbers(Path::new("/sys/block"), disk)
        .iter()
        .map(|number| format!("/dev/{disk}p{number}"))
        .collect()
}

/// The numbers of the partitions that the kernel knows of `disk`.
fn numbers(block: &Path, disk: &str) -> Vec<u32> {
    let number = |entry: fs::DirEntry| {
        entry.file_name().to_str()?.strip_prefix(disk)?.strip_prefix('p')?.parse().ok()
    };
    let mut numbers: Vec<_> =
        fs::read_dir(block.join(disk)).into_iter().flatten().flatten().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Takes the names of `disk` away that do not `stay`.
fn clear_in(folder: &Path, name: &str, disk: &str, stays: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let rest = file.to_str().and_then(|file| file.strip_prefix(name));
        if file.to_str().is_some_and(&stays) {
            continue;
        }
        let is_ours = rest.is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix("-part").is_some_and(|number| number.parse::<u32>().is_ok())
        });
        let leads = |target: PathBuf| {
            let rest = target
                .file_name()
                .and_then(|file| file.to_str())
                .and_then(|file| file.strip_prefix(disk));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
        };
        if is_ours && fs::read_link(entry.path()).is_ok_and(leads) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(root: &Path) -> (PathBuf, PathBuf, PathBuf) {
        let folders = ["dev", "block", "names"].map(|name| root.join(name));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        let [dev, block, names] = folders;
        (dev, block, names)
    }

    #[test]
    fn a_name_that_leads_to_another_devices_disk_stays_whoever_comes_later() {
        let root = tempfile::tempdir().unwrap();
        let (dev, block, announced) = folders(root.path());
        let places = Places { folder: &dev, names: &announced, block: &block };
        let lead = |name: &str| fs::read_link(dev.join(name)).unwrap();
        ["ublkb0", "ublkb1", "ublkb2"]
            .iter()
            .for_each(|disk| fs::create_dir_all(block.join(disk)).unwrap());
        fs::write(announced.join("ublkb0"), "RING3_NAME=data-2\n").unwrap();
        fs::create_dir_all(block.join("ublkb0/ublkb0p1")).unwrap();
        places.set("data-2", "ublkb0").unwrap();
        // A second namespace of [device.data], and a disk with the name of a partition.
        fs::create_dir_all(block.join("ublkb1/ublkb1p1")).unwrap();
        for (name, disk) in [("data-2", "ublkb1"), ("data-2-part1", "ublkb2")] {
            let error = places.set(name, disk).unwrap_err().to_string();
            assert!(
                error.contains("the name of /dev/ublkb0") && error.contains("another name"),
                "{error}"
            );
        }
        assert_eq!(
            (lead("data-2"), lead("data-2-part1")),
            ("../ublkb0".into(), "../ublkb0p1".into())
        );
        for (name, disk) in [("data-2", "ublkb1"), ("data-2-part7", "ublkb1"), ("data-2", "ublkb3")]
        {
            assert_eq!(
                places.announce(name, disk).unwrap_err().kind(),
                io::ErrorKind::AlreadyExists,
                "udev hears of no second one"
            );
        }
        places.announce("data-2", "ublkb0").unwrap();
        fs::write(announced.join("ublkb1"), "RING3_NAME=data-2\n").unwrap();
        // What a disk has left that is gone, or that has another name by now, is nobody's.
        fs::write(announced.join("ublkb0"), "RING3_NAME=other\n").unwrap();
        places.set("data-2", "ublkb1").unwrap();
        fs::remove_dir_all(block.join("ublkb1")).unwrap();
        places.set("data-2", "ublkb2").unwrap();
        assert_eq!(lead("data-2"), Path::new("../ublkb2"));
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_disk_and_its_partitions_have_names_that_follow_it_and_go_with_it() {
        let root = tempfile::tempdir().unwrap();
        let (dev, block, names_of) = folders(root.path());
        let set =
            |name, disk| Places { folder: &dev, names: &names_of, block: &block }.set(name, disk);
        for part in ["ublkb3/ublkb3p1", "ublkb3/ublkb3p12", "ublkb3/queue", "ublkb4"] {
            fs::create_dir_all(block.join(part)).unwrap();
        }
        set("data", "ublkb3").unwrap();
        set("data-2", "ublkb4").unwrap();
        assert_eq!(names(&dev), ["data", "data-2", "data-part1", "data-part12"]);
        assert_eq!(fs::read_link(dev.join("data-part12")).unwrap(), Path::new("../ublkb3p12"));
        fs::remove_dir(block.join("ublkb3/ublkb3p1")).unwrap();
        set("data", "ublkb3").unwrap();
        assert_eq!(names(&dev), ["data", "data-2", "data-part12"]);
        clear_in(&dev, "data", "ublkb7", |_| false);
        assert_eq!(names(&dev).len(), 3, "another disk's names stay");
        clear_in(&dev, "data", "ublkb3", |_| false);
        assert_eq!(names(&dev), ["data-2"]);
    }

    #[test]
    fn a_name_that_stays_is_there_at_every_moment() {
        let root = tempfile::tempdir().unwrap();
        let (dev, block, names_of) = folders(root.path());
        let set =
            |name, disk| Places { folder: &dev, names: &names_of, block: &block }.set(name, disk);
        fs::create_dir_all(block.join("ublkb3/ublkb3p1")).unwrap();
        set("data", "ublkb3").unwrap();
        let (ended, looks) =
            (std::sync::atomic::AtomicBool::new(false), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let missing = scope.spawn(|| {
                looks.wait();
                let mut missing = 0;
                while !ended.load(std::sync::atomic::Ordering::Acquire) {
                    missing += ["data", "data-part1"]
                        .iter()
                        .filter(|name| fs::read_link(dev.join(name)).is_err())
                        .count();
                }
                missing
            });
            looks.wait();
            (0..2000).for_each(|_| drop(set("data", "ublkb3").unwrap()));
            ended.store(true, std::sync::atomic::Ordering::Release);
            assert_eq!(missing.join().unwrap(), 0);
        });
    }
}
