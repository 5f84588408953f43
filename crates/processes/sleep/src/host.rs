//! Where the machine's files are.

use std::path::{Path, PathBuf};

/// The machine, or a folder that stands for one.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    own: u32,
}

impl Host {
    /// This one.
    pub fn this() -> Self {
        Self { root: "/".into(), own: std::process::id() }
    }

    /// One whose files lie below `root`, and in which the caller is process `own`.
    pub fn at(root: impl Into<PathBuf>, own: u32) -> Self {
        Self { root: root.into(), own }
    }

    /// Where `path`, without its first slash, is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The caller's number.
    pub fn own(&self) -> u32 {
        self.own
    }

    /// `path` as the first process sees it: the caller may have a mount namespace of its own.
    pub fn in_first_namespace(&self, path: &Path) -> PathBuf {
        self.path("proc/1/root").join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text; empty if there is none.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read(self.path(path))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// The names in a folder, in order.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}
