//! What can go wrong in the lab, and who can mend it.

use crate::cache::Cache;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A failure of the lab itself. A step that fails is no error: its exit code is in the outcome.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the cache or the host could not be read or written.
    #[error("{}: {what}: {source}", path.display())]
    File {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// No usable QEMU, kernel or program: `lab/setup.sh` did not bring it.
    #[error(
        "{what} is missing: {why}\nnext: {next} (needs the network; it fetches into {})",
        cache.display(),
    )]
    Missing {
        /// The missing thing.
        what: String,
        /// Why it could not be had.
        why: String,
        /// The command that fetches it.
        next: &'static str,
        /// The cache folder.
        cache: PathBuf,
    },
    /// A file of the cache is damaged, missing or closed to this user.
    #[error("{why}\nnext: {next}")]
    Cache {
        /// What was found.
        why: String,
        /// What mends it.
        next: String,
    },
    /// A kernel image, module or archive is not what it should be.
    #[error("{what}: {why}")]
    Format {
        /// The thing that was read.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The request makes no sense: wrong key, unknown device, unknown module.
    #[error("{0}")]
    Request(String),
    /// QEMU refused its command line or died.
    #[error("QEMU ended with {status}: {message}")]
    Qemu {
        /// Exit status in words.
        status: String,
        /// What it wrote on its standard error.
        message: String,
    },
    /// QEMU refused a command of its monitor.
    #[error("QEMU's {command}: {why}")]
    Monitor {
        /// The command.
        command: String,
        /// QEMU's words.
        why: String,
    },
    /// The guest stopped without a verdict: it panicked, powered off or could not boot.
    #[error(
        "the guest ended without a verdict ({how}); the console's end:\n{console}{}",
        kept(log)
    )]
    Died {
        /// What was seen last.
        how: String,
        /// The console's last lines.
        console: String,
        /// Where the whole console log is.
        log: Option<PathBuf>,
    },
    /// The guest said nothing for a long time, in which its processors did nothing or its kernel
    /// missed a timer.
    #[error(
        "the guest has stood still for {time:?} {when}: no timer wakes a processor of its; the \
        console's end:\n{console}{}",
        kept(log)
    )]
    StoodStill {
        /// For how long.
        time: Duration,
        /// What the guest was doing.
        when: String,
        /// The console's last lines.
        console: String,
        /// Where the whole console log is.
        log: Option<PathBuf>,
    },
    /// The time limit of the run passed.
    #[error(
        "time limit of {limit:?} passed {when}; the console's end:\n{console}{}\nnext: raise the \
        scenario's time_limit, or look with `ring3 lab shell`",
        kept(log)
    )]
    TimeLimit {
        /// The limit that was set.
        limit: Duration,
        /// What the guest was doing.
        when: String,
        /// The console's last lines.
        console: String,
        /// Where the whole console log is.
        log: Option<PathBuf>,
    },
}

/// What QEMU says when its own libraries or firmware are missing.
const QEMU_LACKS: [&str; 4] = [
    "error while loading shared libraries",
    "could not load PC BIOS",
    "failed to find romfile",
    "Failed to open module",
];

impl Error {
    /// The same, with what mends it when the reason lies in the cache.
    pub(crate) fn advise(self, cache: &Cache) -> Self {
        let within = |path: &Path| path.starts_with(cache.root()) || path.starts_with(cache.own());
        let room = |kind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        let next = match &self {
            Self::File { path, source, .. } if within(path) && room(source.kind()) => {
                "make room on the disk of that folder, or set RING3_CACHE to a folder on another; \
                then the same command again"
                    .into()
            }
            Self::File { path, .. } if within(path) => cache.remedy(),
            Self::Format { what, .. } if within(Path::new(what)) => cache.remedy(),
            Self::Qemu { message, .. }
                if QEMU_LACKS.iter().any(|words| message.contains(words)) =>
            {
                cache.remedy()
            }
            _ => return self,
        };
        Self::Cache { why: self.to_string(), next }
    }
}

fn kept(log: &Option<PathBuf>) -> String {
    log.as_ref().map(|path| format!("\nwhole console: {}", path.display())).unwrap_or_default()
}

/// Adds the file and the deed to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: &'static str, path: &std::path::Path) -> Result<T, Error>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: &'static str, path: &std::path::Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { what, path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(path: PathBuf, kind: ErrorKind) -> Error {
        Error::File { what: "reading", path, source: kind.into() }
    }

    #[test]
    fn what_is_wrong_in_the_cache_says_what_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let advice = |error: Error| error.advise(&cache).to_string();
        let file = || cache.path("kernels/6.12/vmlinuz");
        assert!(advice(failed(file(), ErrorKind::NotFound)).contains("next: ring3 lab prepare"));
        assert!(
            advice(failed(file(), ErrorKind::PermissionDenied)).contains("next: ring3 lab prepare")
        );
        assert!(advice(failed(file(), ErrorKind::StorageFull)).contains("next: make room"));
        let cut = Error::Format { what: file().display().to_string(), why: "cut short".into() };
        assert!(advice(cut).contains("next: ring3 lab prepare"));
        let library = "libz.so.1: error while loading shared libraries".to_string();
        assert!(
            advice(Error::Qemu { status: "exit status: 127".into(), message: library })
                .contains("next: ring3 lab prepare")
        );
    }

    #[test]
    fn a_file_of_the_users_is_not_the_caches_matter() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        assert!(
            !failed("/nonsense".into(), ErrorKind::NotFound)
                .advise(&cache)
                .to_string()
                .contains("prepare")
        );
    }
}
