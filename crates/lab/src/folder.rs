//! A run's own folder, with the disks that it has in shared memory: gone when the run is over, or with the next run when
//! this one was killed.

use crate::cache::{Cache, shared_folder};
use crate::error::{Doing, Error};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where disks in memory lie, under names that begin with their run's.
pub(crate) const SHARED_MEMORY: &str = "/dev/shm";
/// Locked for as long as the run lives.
const LOCK: &str = "lock";

/// The folder of a run.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
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
        Ok(Self { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        clear_disks(self.path());
        open_folders().retain(|path| path != self.path());
    }
}

/// The folders of runs that are not over, for a process that ends before they are.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open_folders() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of paths is whole at any time.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what the runs of this process have in the file system, for a process that is about to end: after an interrupt, no
/// owner is dropped. Their QEMUs die with the process.
pub fn abandon() {
    for path in open_folders().drain(..) {
        clear_disks(&path);
        let _ = fs::remove_dir_all(&path);
    }
}

/// Removes the folders in `runs` whose lock nobody holds. Those without a lock file are not ours to judge.
fn clear_abandoned(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let abandoned = File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            clear_disks(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn clear_disks(run: &Path) {
    let Some(name) = run.file_name().map(|name| name.to_string_lossy().into_owned()) else { return };
    for entry in fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&name) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_of(folder: &Path) -> PathBuf {
        let disk = Path::new(SHARED_MEMORY).join(format!("{}-disk", folder.file_name().unwrap().to_string_lossy()));
        fs::write(&disk, "x").unwrap();
        disk
    }

    #[test]
    fn disks_in_shared_memory_go_with_their_run() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(&Cache::at(dir.path()).unwrap(), "t").unwrap();
        let (path, disk) = (folder.path().to_owned(), disk_of(folder.path()));
        drop(folder);
        assert!(!disk.exists() && !path.exists());
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
        let (disk, kept) = (disk_of(&killed), disk_of(living.path()));
        let _next = Folder::new(&cache, "next").unwrap();
        assert!(!killed.exists() && !disk.exists());
        assert!(living.path().exists() && kept.exists());
    }
}
