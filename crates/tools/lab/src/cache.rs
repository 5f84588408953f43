//! The cache folder: what was fetched and built, shared by every run on this machine.
//!
//! Entries appear by rename, so a reader sees a whole file or none. Builders of one entry exclude
//! each other by a lock file; the second one then finds the entry there.

use crate::error::{Doing, Error};
use crate::setup::PREPARE;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one process waits for another one that builds the same entry.
const LOCK_LIMIT: Duration = Duration::from_secs(600);

/// Folders with what is built and with what runs leave, as opposed to what was fetched.
const BUILT: [&str; 8] =
    ["dde", "initramfs", "locks", "logs", "runs", "snapshots", "stripped", "vmlinux"];

/// The cache folder.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    /// Where this user writes: the same folder, or a place of his own beside a cache of somebody
    /// else.
    own: PathBuf,
}

impl Cache {
    /// Opens the cache of this user: `$RING3_CACHE`, or `ring3` under `$XDG_CACHE_HOME` or
    /// `~/.cache`.
    pub fn open() -> Result<Self, Error> {
        let root = named("RING3_CACHE")
            .or_else(usual)
            .ok_or_else(|| Error::Request("no cache folder: set RING3_CACHE or HOME".into()))?;
        Self::at(&root)
    }

    /// Opens the cache at `root`, which is created when it is missing. Where this user may not
    /// write there, what runs write goes to a folder of his own: his usual cache, or `ring3-UID` in
    /// the folder for temporary files.
    pub fn at(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root)
            .doing("creating the cache folder (RING3_CACHE chooses another)", root)?;
        let root = fs::canonicalize(root)
            .doing("opening the cache folder (RING3_CACHE chooses another)", root)?;
        let own = if is_ours(&root) { root.clone() } else { own_place(&root)? };
        Ok(Self { root, own })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where this user's runs write.
    pub(crate) fn own(&self) -> &Path {
        &self.own
    }

    /// The command that verifies the cache, and who must run it.
    pub(crate) fn remedy(&self) -> String {
        let what = "it verifies the cache and fetches anew what is damaged";
        if self.own == self.root {
            return format!("{PREPARE} ({what})");
        }
        format!(
            "{PREPARE} by the owner of {} ({what}), or set RING3_CACHE to a folder of yours",
            self.root.display()
        )
    }

    /// A path in the cache, which need not exist.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Where this user builds `name`: in the cache, or beside it if the cache is another user's.
    pub fn built(&self, name: impl AsRef<Path>) -> PathBuf {
        self.own.join(name)
    }

    /// The file `name`, written by `write` if it is not there yet.
    pub(crate) fn file(
        &self,
        name: &Path,
        write: impl FnOnce(&mut File) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        self.entry(name, |path| {
            let mut file = File::create(path).doing("creating a file in the cache", path)?;
            write(&mut file)
        })
    }

    /// The file `name`, built by `build` at the path it is given if it is not there yet, or no
    /// longer as long as it was built. A build that fails, for example because the disk is full,
    /// leaves nothing behind.
    pub(crate) fn entry(
        &self,
        name: &Path,
        build: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let built = || {
            [&self.root, &self.own]
                .into_iter()
                .map(|place| place.join(name))
                .find(|path| is_whole(path))
        };
        if let Some(path) = built() {
            return Ok(path);
        }
        let path = self.own.join(name);
        let folder = path.parent().unwrap_or(&self.own).to_owned();
        shared_folder(&folder)?;
        let _lock = self.lock(name)?;
        if let Some(path) = built() {
            return Ok(path);
        }
        let fresh = tempfile::NamedTempFile::new_in(&folder)
            .doing("creating a file in the cache", &folder)?;
        // Other users of the machine may use what is built here, unless `build` knows better.
        fs::set_permissions(fresh.path(), Permissions::from_mode(0o644))
            .doing("sharing a file of the cache", fresh.path())?;
        build(fresh.path())?;
        let length = fs::metadata(fresh.path()).doing("looking at", fresh.path())?.len();
        fresh.persist(&path).map_err(|e| e.error).doing("putting into the cache", &path)?;
        let note = length_note(&path);
        fs::write(&note, length.to_string()).doing("writing into the cache", &note)?;
        fs::set_permissions(&note, Permissions::from_mode(0o644))
            .doing("sharing a file of the cache", &note)?;
        Ok(path)
    }

    /// Excludes other builders of `name` until the answer is dropped.
    pub(crate) fn lock(&self, name: &Path) -> Result<File, Error> {
        let locks = self.own.join("locks");
        shared_folder(&locks)?;
        let path = locks.join(name.to_string_lossy().replace('/', "+"));
        // To lock is to have it open, in whatever way: it may be another user's.
        let file =
            File::open(&path).or_else(|_| File::create(&path)).doing("creating a lock", &path)?;
        let until = Instant::now() + LOCK_LIMIT;
        while file.try_lock().is_err() {
            if Instant::now() > until {
                return Err(Error::Request(format!(
                    "{}: another process has held this lock for {LOCK_LIMIT:?}",
                    path.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(file)
    }
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The cache of a user who names none.
fn usual() -> Option<PathBuf> {
    named("XDG_CACHE_HOME")
        .or_else(|| named("HOME").map(|home| home.join(".cache")))
        .map(|folder| folder.join("ring3"))
}

/// Whether this user may write into the cache at `root`, as in all that runs made there.
fn is_ours(root: &Path) -> bool {
    let writable = |path: &Path| access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    writable(root)
        && BUILT.iter().map(|name| root.join(name)).all(|path| !path.exists() || writable(&path))
}

/// A folder of this user's for what runs beside the cache at `root` write.
fn own_place(root: &Path) -> Result<PathBuf, Error> {
    let usual = usual().filter(|path| path != root && fs::create_dir_all(path).is_ok());
    if let Some(path) = usual
        .and_then(|path| fs::canonicalize(path).ok())
        .filter(|path| path != root && is_ours(path))
    {
        return Ok(path);
    }
    let path = std::env::temp_dir().join(format!("ring3-{}", geteuid().as_raw()));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).doing(
                "creating a folder for what runs write (HOME or TMPDIR choose another)",
                &path,
            );
        }
        _ => {}
    }
    // Anybody could have made it.
    let found = fs::symlink_metadata(&path).doing("looking at", &path)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        let why = format!(
            "{} is no folder that you alone write to; next: remove it, or set TMPDIR",
            path.display()
        );
        return Err(Error::Request(why));
    }
    Ok(path)
}

/// Makes `folder`, so that others may look into it, whatever this process's umask is.
pub(crate) fn shared_folder(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder).doing("creating a cache folder", folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))
        .doing("sharing a cache folder", folder)
}

/// The file beside `path` that says how long that was when it was built.
fn length_note(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".length");
    name.into()
}

/// Whether the file at `path` can be read and is as long as it was built.
fn is_whole(path: &Path) -> bool {
    let noted = fs::read_to_string(length_note(path)).ok().and_then(|text| text.parse().ok());
    let length = fs::metadata(path).ok().map(|data| data.len());
    length.is_some() && length == noted && access(path, Access::READ_OK).is_ok()
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
            cache.file(Path::new("sub/x"), |f| {
                f.write_all(text.as_bytes()).doing("writing", Path::new("x"))
            })
        };
        build("first").unwrap();
        let path = build("second").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "first");
    }

    #[test]
    fn a_file_that_was_cut_short_is_built_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let build = || {
            cache
                .file(Path::new("sub/x"), |f| {
                    f.write_all(b"whole").doing("writing", Path::new("x"))
                })
                .unwrap()
        };
        fs::write(build(), "who").unwrap();
        assert_eq!(fs::read_to_string(build()).unwrap(), "whole");
    }

    #[test]
    fn what_is_built_can_be_read_by_all_users_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let path = cache.file(Path::new("sub/x"), |_| Ok(())).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o644, 0o755));
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
