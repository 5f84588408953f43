//! The machine, as the kernel shows it in files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where `/sys`, `/proc`, `/dev` and `/run` are, and how the kernel is asked to act.
#[derive(Clone)]
pub struct Host {
    root: PathBuf,
    kernel: Arc<dyn Kernel>,
}

/// What changes something. A test puts its own in the place of the real one.
pub trait Kernel: Send + Sync {
    /// Writes `value` to the attribute `path` in one piece.
    fn write(&self, path: &Path, value: &str) -> io::Result<()>;
    /// Loads the module `name` with all that it needs.
    fn load_module(&self, name: &str) -> io::Result<()>;
}

/// The kernel that runs this process.
struct Running;

impl Kernel for Running {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        use std::io::Write;
        // Not `fs::write`: an attribute is never created, and the value is one write.
        fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        // A user's path often lacks the directories of administrators.
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let output = std::process::Command::new("modprobe").arg(name).env("PATH", path).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
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
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// The trimmed text of a file.
pub(crate) fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}
