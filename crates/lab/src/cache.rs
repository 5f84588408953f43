//! The cache folder: what was fetched and built, shared by every run on this machine.
//!
//! Entries appear by rename, so a reader sees a whole file or none. Builders of one entry exclude each other by a
//! lock file; the second one then finds the entry there.

use crate::error::{Doing, Error};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one process waits for another one that builds the same entry.
const LOCK_LIMIT: Duration = Duration::from_secs(600);

/// The cache folder.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens the cache of this user: `$RING3_CACHE`, or `ring3` under `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn open() -> Result<Self, Error> {
        let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = named("RING3_CACHE")
            .or_else(|| named("XDG_CACHE_HOME").map(|dir| dir.join("ring3")))
            .or_else(|| named("HOME").map(|dir| dir.join(".cache/ring3")))
            .ok_or_else(|| Error::Request("no cache folder: set RING3_CACHE or HOME".into()))?;
        Self::at(&root)
    }

    /// Opens the cache at `root`, which is created when it is missing.
    pub fn at(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).doing("creating the cache folder (RING3_CACHE chooses another)", root)?;
        let root = fs::canonicalize(root).doing("opening the cache folder", root)?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path in the cache, which need not exist.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// The file `name`, written by `write` if it is not there yet.
    pub(crate) fn file(&self, name: &Path, write: impl FnOnce(&mut File) -> Result<(), Error>) -> Result<PathBuf, Error> {
        self.entry(name, |path| {
            let mut file = File::create(path).doing("creating a file in the cache", path)?;
            write(&mut file)
        })
    }

    /// The file `name`, built by `build` at the path it is given if it is not there yet. A build that fails, for example
    /// because the disk is full, leaves nothing behind.
    pub(crate) fn entry(&self, name: &Path, build: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
        let path = self.path(name);
        if path.exists() {
            return Ok(path);
        }
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&folder).doing("creating a cache folder", &folder)?;
        let _lock = self.lock(name)?;
        if path.exists() {
            return Ok(path);
        }
        let fresh = tempfile::NamedTempFile::new_in(&folder).doing("creating a file in the cache", &folder)?;
        build(fresh.path())?;
        fresh.persist(&path).map_err(|e| e.error).doing("putting into the cache", &path)?;
        Ok(path)
    }

    /// Excludes other builders of `name` until the answer is dropped.
    pub(crate) fn lock(&self, name: &Path) -> Result<File, Error> {
        let locks = self.path("locks");
        fs::create_dir_all(&locks).doing("creating a cache folder", &locks)?;
        let path = locks.join(name.to_string_lossy().replace('/', "+"));
        let file = File::create(&path).doing("creating a lock", &path)?;
        let until = Instant::now() + LOCK_LIMIT;
        while file.try_lock().is_err() {
            if Instant::now() > until {
                return Err(Error::Request(format!("{}: another process has held this lock for {LOCK_LIMIT:?}", path.display())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(file)
    }
}

/// A content hash, short enough for a file name: 80 bits.
pub(crate) struct Fingerprint(Sha256);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds a part; its length goes in too, so that parts cannot run into each other.
    pub(crate) fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    pub(crate) fn hex(&self) -> String {
        self.0.clone().finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_is_built_once() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let build = |text: &'static str| {
            cache.file(Path::new("sub/x"), |f| f.write_all(text.as_bytes()).doing("writing", Path::new("x")))
        };
        build("first").unwrap();
        let path = build("second").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "first");
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let failed = cache.file(Path::new("sub/x"), |_| Err(Error::Request("disk full".into())));
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(cache.path("sub")).unwrap().count(), 0);
    }

    #[test]
    fn two_builders_at_once_build_once() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let builds = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cache
                        .file(Path::new("x"), |_| {
                            builds.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            std::thread::sleep(Duration::from_millis(50));
                            Ok(())
                        })
                        .unwrap()
                });
            }
        });
        assert_eq!(builds.into_inner(), 1);
    }

    #[test]
    fn parts_of_a_fingerprint_do_not_run_into_each_other() {
        let hash = |a: &str, b: &str| Fingerprint::new().add(a).add(b).hex();
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_eq!(hash("ab", "c"), hash("ab", "c"));
    }
}
