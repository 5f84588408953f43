//! The machine, as the kernel shows it in files.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::kernel::Running;

/// Where `/sys`, `/proc`, `/dev` and `/run` are, and how the kernel is asked to act.
#[derive(Clone)]
pub struct Host {
    root: PathBuf,
    kernel: Arc<dyn Kernel>,
}

/// What a device node means: block or character device, major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// A block device rather than a character device.
    pub block: bool,
    /// Major and minor number.
    pub number: (u32, u32),
}

/// What files alone do not say, and what changes something. A test puts its own in the place of the
/// real one.
pub trait Kernel: Send + Sync {
    /// Writes `value` to the attribute `path` in one piece; [`io::ErrorKind::TimedOut`] if the
    /// kernel does not answer.
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    /// Loads the module `name` with all that it needs.
    fn load_module(&self, name: &str) -> io::Result<()>;
    /// What the file is, or the descriptor behind a link of `/proc`; `None` if it is no device.
    fn node(&self, path: &Path) -> io::Result<Option<Node>>;
    /// Claims the block device `path` for this process: no file system, volume or pool can have it
    /// meanwhile, and [`io::ErrorKind::ResourceBusy`] if one has it already.
    fn claim(&self, path: &Path) -> io::Result<OwnedFd>;
    /// The block device under the loop device `path`; `None` if there is a file under it, or
    /// nothing.
    fn under_loop(&self, path: &Path) -> io::Result<Option<Node>>;
}

impl Host {
    /// The machine that this process runs on.
    pub fn this() -> Self {
        Self { root: "/".into(), kernel: Arc::new(Running) }
    }

    /// A machine whose files lie below `root` and whose kernel is `kernel`.
    pub fn at(root: impl Into<PathBuf>, kernel: Arc<dyn Kernel>) -> Self {
        Self { root: root.into(), kernel }
    }

    /// The file that is `/path` on that machine.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    /// The trimmed text of an attribute; `None` if there is no such attribute or it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        text(&self.path(path))
    }

    /// The last part of the target of a link; `None` if there is no such link.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// The sorted names in a directory; none if there is no such directory.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        self.list(path).unwrap_or_default()
    }

    /// The sorted names in a directory.
    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.path(path))?.flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    }
}

/// The trimmed text of a file. What is not UTF-8 in it (mount points may be anything) is replaced.
pub(crate) fn text(path: &Path) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).trim().to_owned())
}
