//! Names that stay: `/dev/ring3/NAME` for a disk, `NAME-part1` for its first partition.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where they are.
const FOLDER: &str = "/dev/ring3";
/// Where udev finds them.
const NAMES: &str = "/run/ring3/names";

/// Tells udev, before it sees disk `ublkbN`, what that is called: etc/60-ring3.rules reads it.
pub fn announce(name: &str, disk: &str) -> io::Result<()> {
    fs::create_dir_all(NAMES)?;
    fs::write(Path::new(NAMES).join(disk), format!("RING3_NAME={name}\n"))
}

/// Names disk `ublkbN` and its partitions; those of before that are gone lose theirs. A name that stays is there all the while.
pub fn set(name: &str, disk: &str) -> io::Result<PathBuf> {
    set_in(Path::new(FOLDER), Path::new("/sys/block"), name, disk)
}

/// Where `name` is, if it leads to `disk`.
pub fn place(name: &str, disk: &str) -> Option<PathBuf> {
    let link = Path::new(FOLDER).join(name);
    fs::read_link(&link).is_ok_and(|target| target.file_name().is_some_and(|file| file == disk)).then_some(link)
}

/// Takes the names away, unless somebody else has taken them meanwhile.
pub fn clear(name: &str, disk: &str) {
    let _ = fs::remove_file(Path::new(NAMES).join(disk));
    clear_in(Path::new(FOLDER), name, disk, |_| false);
}

fn set_in(folder: &Path, block: &Path, name: &str, disk: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let parts: Vec<_> =
        numbers(block, disk).into_iter().map(|number| (format!("{name}-part{number}"), format!("{disk}p{number}"))).collect();
    clear_in(folder, name, disk, |found| found == name || parts.iter().any(|(part, _)| part == found));
    for (part, disk) in &parts {
        link(folder, part, disk)?;
    }
    link(folder, name, disk)
}

/// Where the partitions of `disk` are.
pub fn partitions(disk: &str) -> Vec<String> {
    numbers(Path::new("/sys/block"), disk).iter().map(|number| format!("/dev/{disk}p{number}")).collect()
}

/// The numbers of the partitions that the kernel knows of `disk`.
fn numbers(block: &Path, disk: &str) -> Vec<u32> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(disk)?.strip_prefix('p')?.parse().ok();
    let mut numbers: Vec<_> = fs::read_dir(block.join(disk)).into_iter().flatten().flatten().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// A link of this name to `/dev/{disk}`, in one step for those who look.
fn link(folder: &Path, name: &str, disk: &str) -> io::Result<PathBuf> {
    let (at, new) = (folder.join(name), folder.join(format!(".{name}.new")));
    let _ = fs::remove_file(&new);
    symlink(Path::new("..").join(disk), &new)?;
    fs::rename(&new, &at)?;
    Ok(at)
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
            rest.is_empty() || rest.strip_prefix("-part").is_some_and(|number| number.parse::<u32>().is_ok())
        });
        let leads = |target: PathBuf| {
            let rest = target.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(disk));
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

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_disk_and_its_partitions_have_names_that_follow_it_and_go_with_it() {
        let root = tempfile::tempdir().unwrap();
        let (dev, block) = (root.path().join("dev"), root.path().join("block"));
        for part in ["ublkb3/ublkb3p1", "ublkb3/ublkb3p12", "ublkb3/queue", "ublkb4"] {
            fs::create_dir_all(block.join(part)).unwrap();
        }
        set_in(&dev, &block, "data", "ublkb3").unwrap();
        set_in(&dev, &block, "data-2", "ublkb4").unwrap();
        assert_eq!(names(&dev), ["data", "data-2", "data-part1", "data-part12"]);
        assert_eq!(fs::read_link(dev.join("data-part12")).unwrap(), Path::new("../ublkb3p12"));
        fs::remove_dir(block.join("ublkb3/ublkb3p1")).unwrap();
        set_in(&dev, &block, "data", "ublkb3").unwrap();
        assert_eq!(names(&dev), ["data", "data-2", "data-part12"]);
        clear_in(&dev, "data", "ublkb7", |_| false);
        assert_eq!(names(&dev).len(), 3, "another disk's names stay");
        clear_in(&dev, "data", "ublkb3", |_| false);
        assert_eq!(names(&dev), ["data-2"]);
    }

    #[test]
    fn a_name_that_stays_is_there_at_every_moment() {
        let root = tempfile::tempdir().unwrap();
        let (dev, block) = (root.path().join("dev"), root.path().join("block"));
        fs::create_dir_all(block.join("ublkb3/ublkb3p1")).unwrap();
        set_in(&dev, &block, "data", "ublkb3").unwrap();
        let (ended, looks) = (std::sync::atomic::AtomicBool::new(false), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let missing = scope.spawn(|| {
                looks.wait();
                let mut missing = 0;
                while !ended.load(std::sync::atomic::Ordering::Acquire) {
                    missing += ["data", "data-part1"].iter().filter(|name| fs::read_link(dev.join(name)).is_err()).count();
                }
                missing
            });
            looks.wait();
            (0..2000).for_each(|_| drop(set_in(&dev, &block, "data", "ublkb3").unwrap()));
            ended.store(true, std::sync::atomic::Ordering::Release);
            assert_eq!(missing.join().unwrap(), 0);
        });
    }
}
