//! Deletion from the cache.
//!
//! # Locks
//! All of a deletion holds the lock of the setup script, so that no part is fetched meanwhile, and
//! the one under which runs of the lab begin, so that no guest is started. Nothing is deleted while
//! a run lives. A built file is deleted under its own lock, and a folder of hosted drivers under
//! those of its classes.
//!
//! # Interruption
//! A fetched part gets another name before it is deleted. The setup script removes what has such a
//! name, so a part is whole or absent.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};

use super::entries::{self, Entry, Kind, length_note};

/// Which entries are deleted: those that meet all of this.
pub struct Wanted {
    /// Names of parts or entries; all if there is none.
    pub parts: Vec<String>,
    pub older_than: Duration,
    pub larger_than: u64,
}

/// What became of the entries that were wanted.
#[derive(Default)]
pub struct Done {
    pub deleted: Vec<Entry>,
    /// Names, and why they are still there.
    pub kept: Vec<(String, String)>,
}

/// Deletes from the cache at `root`; with `dry_run` it only says what.
pub fn prune(root: &Path, wanted: &Wanted, dry_run: bool) -> Result<Done> {
    let setup = root.join("setup.lock");
    if !setup.exists() {
        bail!("{} is no cache that ring3 has set up: it has no setup.lock", root.display());
    }
    let _setup = exclude(&setup, "a setup is at work in the cache")?;
    fs::create_dir_all(root.join("locks")).context("creating the folder of locks")?;
    let _runs = exclude(&root.join("locks/runs"), "a run is starting in the cache")?;
    if let Some(run) = live_run(root) {
        bail!("{run} is in use by a guest that runs: wait for it, then the same command again");
    }
    let entries = entries::read(root);
    for part in &wanted.parts {
        if !entries.iter().any(|entry| is_named(entry, part)) {
            bail!("the cache has no {part}: ring3 cache lists its parts");
        }
    }
    let now = SystemTime::now();
    let is_wanted = |entry: &Entry| {
        entry.can_be_deleted()
            && (wanted.parts.is_empty() || wanted.parts.iter().any(|part| is_named(entry, part)))
            && entry.age(now) >= wanted.older_than
            && entry.bytes > wanted.larger_than
    };
    let mut done = Done::default();
    for entry in entries.into_iter().filter(is_wanted) {
        match delete(root, &entry, dry_run) {
            Ok(()) => done.deleted.push(entry),
            Err(error) => done.kept.push((entry.name, format!("{error:#}"))),
        }
    }
    Ok(done)
}

fn is_named(entry: &Entry, name: &str) -> bool {
    let name = name.trim_end_matches('/');
    let below = entry.name.strip_prefix(name);
    entry.part == name || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The lock at `path`, which is made if it is not there; whoever has it is not waited for.
fn exclude(path: &Path, otherwise: &str) -> Result<File> {
    // To lock is to have it open, in whatever way: it may be another user's.
    let lock = File::open(path)
        .or_else(|_| File::create(path))
        .with_context(|| format!("opening the lock {}", path.display()))?;
    if lock.try_lock().is_err() {
        bail!("{otherwise}: wait for it, then the same command again");
    }
    Ok(lock)
}

/// The folder of a run that lives: it has its file `lock` locked.
fn live_run(root: &Path) -> Option<String> {
    let runs = entries::read(root).into_iter().filter(|entry| entry.kind == Kind::Run);
    let is_held = |entry: &Entry| {
        File::open(root.join(&entry.name).join("lock")).is_ok_and(|lock| lock.try_lock().is_err())
    };
    runs.map(|entry| (is_held(&entry), entry.name)).find(|(held, _)| *held).map(|(_, name)| name)
}

fn delete(root: &Path, entry: &Entry, dry_run: bool) -> Result<()> {
    let path = root.join(&entry.name);
    let _locks = match entry.kind {
        Kind::Built => {
            let lock = root.join("locks").join(entry.name.replace('/', "+"));
            vec![exclude(&lock, "another process builds it")?]
        }
        Kind::Hosted => locks_of(&path)?,
        Kind::Run => {
            // A folder without a lock is no run's, or not yet.
            let lock = File::open(path.join("lock")).context("it has no lock")?;
            if lock.try_lock().is_err() {
                bail!("a guest uses it");
            }
            vec![lock]
        }
        _ => Vec::new(),
    };
    match entry.kind {
        _ if dry_run => Ok(()),
        Kind::Fetched => {
            let mut aside = path.clone().into_os_string();
            // A suffix that lab/setup.sh tidies away.
            aside.push(".build");
            let aside = PathBuf::from(aside);
            remove(&aside)?;
            fs::rename(&path, &aside)?;
            remove(&aside)
        }
        Kind::Built => {
            // First the note: without it, a file that stays counts as damaged and is built again.
            remove(&length_note(&path))?;
            remove(&path)
        }
        _ => remove(&path),
    }
}

/// The locks of a folder of hosted drivers, one for each class that was built in it.
fn locks_of(folder: &Path) -> Result<Vec<File>> {
    let mut locks = Vec::new();
    for class in fs::read_dir(folder)?.flatten() {
        // A class without a lock has never been built.
        let Ok(lock) = File::open(class.path().join("lock")) else { continue };
        if lock.try_lock().is_err() {
            bail!("another process builds a driver in it");
        }
        locks.push(lock);
    }
    Ok(locks)
}

/// Deletes a file or a folder with what is in it, of a link the link alone. Nothing there is no
/// failure.
fn remove(path: &Path) -> Result<()> {
    let done = match fs::symlink_metadata(path) {
        // The standard library opens each folder below its parent, without following a link.
        Ok(data) if data.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.with_context(|| format!("deleting {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn everything() -> Wanted {
        Wanted { parts: Vec::new(), older_than: Duration::ZERO, larger_than: 0 }
    }

    /// A folder that the setup script has used.
    fn cache() -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        put(cache.path(), "setup.lock", 0);
        cache
    }

    /// A file of the cache, with the folders above it.
    fn put(root: &Path, name: &str, bytes: usize) -> PathBuf {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![1; bytes]).unwrap();
        path
    }

    fn make_old(path: &Path, age: Duration) {
        File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    fn names(done: &Done) -> Vec<&str> {
        done.deleted.iter().map(|entry| &*entry.name).collect()
    }

    #[test]
    fn parts_that_ring3_makes_are_deleted_and_nothing_else() {
        let cache = cache();
        let root = cache.path();
        for name in [
            "tools/bin/qemu",
            "tools/layout-1",
            "kernels/6.1/vmlinuz",
            "kernels/6.1/layout-2",
            "sources/mine/main.c",
            "logs/mine.log",
            "snapshots/a.memory",
            "snapshots/a.memory.length",
            "dde/6.12/abc/net/lock",
            "logs/ring3-one.log",
            "fuzz/nvme/one",
            "split/guest/x",
            "runs/ring3-x/lock",
            "photos/one.jpg",
            "notes.txt",
            "locks/snapshots+a.memory",
            "setup.log",
        ] {
            put(root, name, 10);
        }
        let done = prune(root, &everything(), false).unwrap();
        assert_eq!(done.kept, []);
        assert_eq!(
            names(&done),
            [
                "dde/6.12/abc",
                "fuzz/nvme",
                "kernels/6.1",
                "logs/ring3-one.log",
                "runs/ring3-x",
                "snapshots/a.memory",
                "split/guest",
                "tools"
            ]
        );
        for gone in
            ["tools", "tools.build", "kernels/6.1", "snapshots/a.memory.length", "dde/6.12/abc"]
        {
            assert!(!root.join(gone).exists(), "{gone}");
        }
        for stays in [
            "photos/one.jpg",
            "notes.txt",
            "sources/mine/main.c",
            "logs/mine.log",
            "locks/snapshots+a.memory",
            "setup.log",
        ] {
            assert!(root.join(stays).exists(), "{stays}");
        }
    }

    #[test]
    fn a_dry_run_says_the_same_and_deletes_nothing() {
        let cache = cache();
        put(cache.path(), "tools/layout-1", 0);
        let file = put(cache.path(), "tools/bin/qemu", 10);
        assert_eq!(names(&prune(cache.path(), &everything(), true).unwrap()), ["tools"]);
        assert!(file.exists());
    }

    #[test]
    fn only_what_is_old_and_large_enough_is_deleted() {
        let cache = cache();
        let root = cache.path();
        for (name, bytes, days) in [
            ("logs/ring3-large", 1 << 20, 40),
            ("logs/ring3-small", 10, 40),
            ("logs/ring3-new", 1 << 20, 1),
        ] {
            make_old(&put(root, name, bytes), days * DAY);
        }
        let wanted = Wanted { older_than: 30 * DAY, larger_than: 100_000, ..everything() };
        assert_eq!(names(&prune(root, &wanted, false).unwrap()), ["logs/ring3-large"]);
    }

    #[test]
    fn only_the_parts_that_are_named_are_deleted() {
        let cache = cache();
        let root = cache.path();
        for name in
            ["kernels/6.1/layout-1", "kernels/6.12/layout-1", "tools/layout-1", "logs/ring3-a"]
        {
            put(root, name, 10);
        }
        let wanted = |part: &str| Wanted { parts: vec![part.into()], ..everything() };
        assert_eq!(names(&prune(root, &wanted("kernels/6.1"), true).unwrap()), ["kernels/6.1"]);
        assert_eq!(names(&prune(root, &wanted("kernels"), true).unwrap()).len(), 2);
        assert!(prune(root, &wanted("photos"), true).is_err());
    }

    #[test]
    fn a_link_is_not_followed_and_stays() {
        let (cache, other) = (cache(), tempfile::tempdir().unwrap());
        let (root, outside) = (cache.path(), other.path());
        let file = put(outside, "precious/file", 10);
        fs::create_dir_all(root.join("snapshots")).unwrap();
        fs::create_dir_all(root.join("dde")).unwrap();
        fs::create_dir_all(root.join("tools")).unwrap();
        put(root, "tools/layout-1", 0);
        for link in ["clang", "snapshots/a", "dde/6.12", "tools/inside", "runs"] {
            symlink(outside, root.join(link)).unwrap();
        }
        let done = prune(root, &everything(), false).unwrap();
        assert_eq!(names(&done), ["tools"]);
        assert!(file.exists());
        for link in ["clang", "snapshots/a", "dde/6.12", "runs"] {
            assert!(root.join(link).is_symlink(), "{link}");
        }
    }

    #[test]
    fn nothing_is_deleted_while_a_setup_is_at_work_or_a_guest_runs() {
        let cache = cache();
        let root = cache.path();
        let tools = put(root, "tools/layout-1", 10);
        for lock in ["setup.lock", "locks/runs", "runs/ring3-x/lock"] {
            let file = File::open(put(root, lock, 0)).unwrap();
            file.lock().unwrap();
            assert!(prune(root, &everything(), false).is_err(), "{lock}");
            assert!(tools.exists());
        }
        assert!(prune(root, &everything(), false).is_ok());
        assert!(!tools.exists());
    }

    #[test]
    fn an_entry_that_is_being_built_stays() {
        let cache = cache();
        let root = cache.path();
        put(root, "snapshots/a", 10);
        put(root, "dde/6.12/abc/net/object", 10);
        let locks = ["locks/snapshots+a", "dde/6.12/abc/net/lock"].map(|name| {
            let lock = File::open(put(root, name, 0)).unwrap();
            lock.lock().unwrap();
            lock
        });
        let done = prune(root, &everything(), false).unwrap();
        let kept: Vec<_> = done.kept.iter().map(|(name, _)| &**name).collect();
        assert_eq!((names(&done), kept), (vec![], vec!["dde/6.12/abc", "snapshots/a"]));
        drop(locks);
        assert_eq!(prune(root, &everything(), false).unwrap().deleted.len(), 2);
    }

    #[test]
    fn a_folder_that_ring3_has_not_set_up_is_refused() {
        let cache = tempfile::tempdir().unwrap();
        let file = put(cache.path(), "split/mine", 10);
        let error = prune(cache.path(), &everything(), false).map(drop).unwrap_err();
        assert!(error.to_string().contains("no setup.lock") && file.exists(), "{error}");
    }
}
