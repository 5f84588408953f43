//! A run's own folder, and its disks in memory: gone when the run is over, the folder with the next
//! run when this one was killed.

use crate::cache::{Cache, shared_folder};
use crate::error::{Doing, Error};
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::RefCell;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locked for as long as the run lives.
const LOCK: &str = "lock";

/// The folder of a run.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
    /// They have no name, so that they go with this process however it ends.
    memory: RefCell<Vec<File>>,
    _lock: File,
}

impl Folder {
    /// Makes the folder of a run called `name`, and clears those of runs that were killed.
    pub(crate) fn new(cache: &Cache, name: &str) -> Result<Self, Error> {
        let runs = cache.own().join("runs");
        shared_folder(&runs)?;
        // One at a time, so that a folder is not taken for abandoned before it has its lock.
        let _one = cache.lock(Path::new("runs"))?;
        clear_abandoned(&runs);
        let made = tempfile::Builder::new().prefix(&format!("ring3-{name}-")).tempdir_in(&runs);
        let folder = made.doing("creating a folder for the run in", &runs)?;
        let path = folder.path().join(LOCK);
        let lock = File::create(&path).doing("creating", &path)?;
        lock.lock().doing("locking", &path)?;
        open_folders().push(folder.path().into());
        Ok(Self { folder, memory: RefCell::default(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A sparse file of `bytes` in memory, under a path that holds as long as the run.
    pub(crate) fn memory(&self, name: &str, bytes: u64) -> Result<PathBuf, Error> {
        let made = memfd_create(name, MemfdFlags::CLOEXEC).map_err(Into::into).map(File::from);
        let file = made.doing("creating a disk in memory for", Path::new(name))?;
        file.set_len(bytes).doing("sizing a disk in memory for", Path::new(name))?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        self.memory.borrow_mut().push(file);
        Ok(path)
    }

    /// One that is nowhere any more, for tests of what only wants to know its name.
    #[cfg(test)]
    pub(crate) fn scratch() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::new(&Cache::at(dir.path()).unwrap(), "t").unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        open_folders().retain(|path| path != self.path());
    }
}

/// The folders of runs that are not over, for a process that ends before they are.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open_folders() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths is whole at any time.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what the runs of this process have in the file system, for a process that is about to
/// end: after an interrupt, no owner is dropped. Their QEMUs die with the process.
pub fn abandon() {
    for path in open_folders().drain(..) {
        let _ = fs::remove_dir_all(&path);
    }
}

/// Removes the folders in `runs` whose lock nobody holds. Those without a lock file are not ours to
/// judge.
fn clear_abandoned(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let abandoned =
            File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_in_memory_has_its_size_and_goes_with_its_run() {
        let folder = Folder::scratch();
        let disk = folder.memory("disk", 1 << 20).unwrap();
        // A link of this process's to a file without a name: nothing that could be left behind.
        let is_there = || {
            fs::read_link(&disk).is_ok_and(|link| link.to_string_lossy().starts_with("/memfd:disk"))
        };
        assert_eq!((fs::metadata(&disk).unwrap().len(), is_there()), (1 << 20, true));
        drop(folder);
        assert!(!is_there());
    }

    #[test]
    fn a_run_that_is_dropped_is_not_open_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(&Cache::at(dir.path()).unwrap(), "t").unwrap();
        let path = folder.path().to_owned();
        assert!(open_folders().contains(&path));
        drop(folder);
        assert!(!open_folders().contains(&path));
    }

    #[test]
    fn what_a_killed_run_left_goes_with_the_next_and_what_a_living_one_has_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let living = Folder::new(&cache, "living").unwrap();
        let killed = cache.path("runs/ring3-killed-test-folder");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        let _next = Folder::new(&cache, "next").unwrap();
        assert!(!killed.exists());
        assert!(living.path().exists());
    }
}
