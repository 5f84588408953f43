//! What can go wrong in the lab, and who can mend it.

use std::path::PathBuf;
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
    #[error("{what} is missing: {why}\nnext: {next} (needs the network; it fetches into {})", cache.display())]
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
    #[error("the guest ended without a verdict ({how}); the console's end:\n{console}{}", kept(log))]
    Died {
        /// What was seen last.
        how: String,
        /// The console's last lines.
        console: String,
        /// Where the whole console log is.
        log: Option<PathBuf>,
    },
    /// The time limit of the run passed.
    #[error(
        "time limit of {limit:?} passed {when}; the console's end:\n{console}{}\nnext: raise the scenario's time_limit, or look with `ring3 lab shell`",
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
