//! Where hosted drivers are built in the cache: a folder of a gigabyte and more for each kernel and
//! compiler.
//!
//! # Shape
//! Makefiles compare times of files and go by paths. So what is compiled of ring3's source is
//! copied there first, and a file is written only if its bytes differ: every tree of the source, a
//! fresh clone too, compiles what it has otherwise than the one before, and nothing else.
//!
//! # Limits
//! A program is that of the tree that has built it last. Who uses two trees that differ, at the
//! same time, may start the program of the other one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use ring3_lab::Cache;
use sha2::{Digest, Sha256};

use super::build::{files, hex};
use super::kernel::Kernel;

/// What is locked in the folder of a class while somebody builds there.
pub(super) const LOCK: &str = "lock";
/// How long a folder is kept that nobody uses.
const KEPT: Duration = Duration::from_secs(14 * 86_400);

/// The folder for drivers of a kernel, made if it is not there.
pub(super) fn open(cache: &Cache, kernel: Kernel) -> Result<PathBuf> {
    let release = kernel.release(cache);
    let mut hash = Sha256::new();
    hash.update(fs::read(&release).with_context(|| format!("reading {}", release.display()))?);
    hash.update(compiler()?);
    make(&cache.built("dde").join(kernel.to_string()), &hex(&hash.finalize()[..4]))
}

/// What the C compiler says of itself.
pub(super) fn compiler() -> Result<Vec<u8>> {
    Ok(Command::new("cc").arg("--version").output().context("starting cc, the C compiler")?.stdout)
}

fn make(all: &Path, name: &str) -> Result<PathBuf> {
    let place = all.join(name);
    if !place.exists() {
        sweep(all, SystemTime::now());
        fs::create_dir_all(&place).with_context(|| format!("creating {}", place.display()))?;
    }
    // When it was used last; whoever may not write it has not made it, and does not keep it.
    let _ = File::open(&place).and_then(|place| place.set_modified(SystemTime::now()));
    Ok(place)
}

/// Takes away what nobody has used for long: of another compiler, or of another release. What
/// cannot be taken away stays: it harms nobody.
fn sweep(all: &Path, now: SystemTime) {
    for place in folders(all) {
        if is_old(&place, now) && !is_in_use(&place) {
            let _ = fs::remove_dir_all(&place);
        }
    }
}

fn is_old(place: &Path, now: SystemTime) -> bool {
    let used = fs::metadata(place).and_then(|place| place.modified());
    used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > KEPT))
}

fn is_in_use(place: &Path) -> bool {
    folders(place)
        .iter()
        .any(|class| File::open(class.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err()))
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.is_dir())
        .collect()
}

/// Makes the folder `to` have the files of `from`, and no others.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut wanted = BTreeSet::new();
    for file in files(vec![from.to_owned()])? {
        let new = to.join(file.strip_prefix(from).unwrap_or(&file));
        copy_file(&file, &new)?;
        wanted.insert(new);
    }
    for file in files(vec![to.to_owned()])?.iter().filter(|file| !wanted.contains(*file)) {
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
    }
    Ok(())
}

/// The same for one file. If its bytes are the same, it keeps its time.
pub(super) fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("copying {} to {}", from.display(), to.display());
    let bytes = fs::read(from).with_context(failed)?;
    if fs::read(to).ok().as_deref() == Some(&bytes) {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to)).with_context(failed)?;
    fs::write(to, bytes).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place with the folder of a class in which something was built.
    fn built(all: &Path, name: &str) -> PathBuf {
        let place = make(all, name).unwrap();
        fs::create_dir(place.join("net")).unwrap();
        fs::write(place.join("net").join(LOCK), "").unwrap();
        place
    }

    #[test]
    fn what_another_compiler_has_built_goes_when_nobody_has_used_it_for_long() {
        let all = tempfile::tempdir().unwrap();
        let place = built(all.path(), "old");
        sweep(all.path(), SystemTime::now());
        assert!(place.exists());
        sweep(all.path(), SystemTime::now() + 2 * KEPT);
        assert!(!place.exists());
    }

    #[test]
    fn what_somebody_builds_in_stays() {
        let all = tempfile::tempdir().unwrap();
        let place = built(all.path(), "locked");
        let lock = File::open(place.join("net").join(LOCK)).unwrap();
        lock.lock().unwrap();
        sweep(all.path(), SystemTime::now() + 2 * KEPT);
        assert!(place.exists());
    }

    #[test]
    fn a_copy_has_what_its_source_has_and_files_that_are_the_same_keep_their_time() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, text: &str| fs::write(from.path().join(name), text).unwrap();
        fs::create_dir(from.path().join("net")).unwrap();
        ["same", "net/changed", "gone"].into_iter().for_each(|name| write(name, name));
        copy(from.path(), to.path()).unwrap();
        let time = |name: &str| fs::metadata(to.path().join(name)).unwrap().modified().unwrap();
        let before = time("same");
        write("net/changed", "otherwise");
        fs::remove_file(from.path().join("gone")).unwrap();
        copy(from.path(), to.path()).unwrap();
        assert_eq!(time("same"), before);
        assert_eq!(fs::read_to_string(to.path().join("net/changed")).unwrap(), "otherwise");
        assert!(!to.path().join("gone").exists());
    }
}
