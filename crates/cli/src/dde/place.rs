//! Where hosted drivers are built in the cache: a folder for each source tree, kernel and compiler, for makefiles compare times of files.
//!
//! Such a folder has a gigabyte and more. One whose tree is gone is of no use to anybody, and is taken away when another one is made.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ring3_lab::Cache;
use sha2::{Digest, Sha256};

use super::build::hex;
use super::kernel::Kernel;

/// The file in which a folder has the path of its source tree.
const TREE: &str = "tree";
/// What is locked in the folder of a class while somebody builds there.
pub(super) const LOCK: &str = "lock";

/// The folder for drivers from the tree `root`, made if it is not there.
pub(super) fn open(cache: &Cache, root: &Path, kernel: Kernel) -> Result<PathBuf> {
    let release = kernel.release(cache);
    let mut hash = Sha256::new();
    hash.update(root.as_os_str().as_encoded_bytes());
    hash.update([0]);
    hash.update(fs::read(&release).with_context(|| format!("reading {}", release.display()))?);
    hash.update(compiler()?);
    make(&cache.built("dde").join(kernel.to_string()), &hex(&hash.finalize()[..4]), root)
}

/// What the C compiler says of itself.
pub(super) fn compiler() -> Result<Vec<u8>> {
    Ok(Command::new("cc").arg("--version").output().context("starting cc, the C compiler")?.stdout)
}

fn make(all: &Path, name: &str, root: &Path) -> Result<PathBuf> {
    let place = all.join(name);
    let tree = place.join(TREE);
    if !tree.exists() {
        sweep(all);
        fs::create_dir_all(&place).with_context(|| format!("creating {}", place.display()))?;
        fs::write(&tree, root.as_os_str().as_encoded_bytes()).with_context(|| format!("writing {}", tree.display()))?;
    }
    Ok(place)
}

/// Takes away what was built from trees that are gone. What cannot be taken away stays: it harms nobody.
fn sweep(all: &Path) {
    for place in folders(all) {
        if is_left(&place) && !is_in_use(&place) {
            let _ = fs::remove_dir_all(&place);
        }
    }
}

/// Whether the tree of a folder is known, and known not to be there.
fn is_left(place: &Path) -> bool {
    use std::os::unix::ffi::OsStringExt;

    let Ok(tree) = fs::read(place.join(TREE)) else { return false };
    matches!(PathBuf::from(std::ffi::OsString::from_vec(tree)).try_exists(), Ok(false))
}

fn is_in_use(place: &Path) -> bool {
    folders(place).iter().any(|class| File::open(class.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err()))
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place of a tree, with the folder of a class in which something was built.
    fn built(all: &Path, name: &str, tree: &Path) -> PathBuf {
        let place = make(all, name, tree).unwrap();
        fs::create_dir(place.join("net")).unwrap();
        fs::write(place.join("net").join(LOCK), "").unwrap();
        place
    }

    #[test]
    fn what_was_built_from_a_tree_that_is_gone_goes_when_another_place_is_made() {
        let (all, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = built(all.path(), "gone", tree.path());
        drop(tree);
        make(all.path(), "new", all.path()).unwrap();
        assert!(!place.exists());
    }

    #[test]
    fn what_was_built_from_a_tree_that_is_there_stays() {
        let (all, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = built(all.path(), "there", tree.path());
        make(all.path(), "new", all.path()).unwrap();
        assert!(place.exists());
    }

    #[test]
    fn what_somebody_builds_in_stays() {
        let (all, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = built(all.path(), "locked", tree.path());
        drop(tree);
        let lock = File::open(place.join("net").join(LOCK)).unwrap();
        lock.lock().unwrap();
        make(all.path(), "new", all.path()).unwrap();
        assert!(place.exists());
    }

    #[test]
    fn a_folder_that_names_no_tree_stays() {
        let all = tempfile::tempdir().unwrap();
        let strange = all.path().join("strange");
        fs::create_dir(&strange).unwrap();
        make(all.path(), "new", all.path()).unwrap();
        assert!(strange.exists());
    }
}
