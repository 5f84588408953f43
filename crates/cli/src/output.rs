//! What commands print.
//!
//! # Standard output
//! `outln!` writes a line. A failure does not end the command, which may have more to do than to talk; it is kept, nothing more is written,
//! and [`finish`] makes an exit code of it. A reader who closes the pipe (`ring3 devices | head -1`) has read enough: the exit code is
//! then the command's own. Any other failure, such as a full disk, is said, and no command succeeds with it.
//!
//! # Standard error
//! `errln!` gives a line to the log's thread: see [`ring3_process::log`].

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// The first failure to write standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output; failures are the business of [`finish`].
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line on standard error, without waiting for who reads it.
macro_rules! errln {
    ($($text:tt)*) => { ring3_process::log::notice(format_args!($($text)*)) };
}

/// Prints on standard output, unless that has failed before.
pub fn write(text: fmt::Arguments<'_>) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    if failure.is_none() {
        *failure = match ring3_process::output_was_closed() {
            true => Some(rustix::io::Errno::BADF.into()),
            false => io::stdout().write_fmt(text).err(),
        };
    }
}

/// Writes what is held back; false if it cannot be written, or nobody reads it any more.
pub fn flush() -> bool {
    keep(io::stdout().flush());
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// Sees to it that `result` of writing to standard output is not forgotten.
pub fn keep(result: io::Result<()>) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    *failure = failure.take().or(result.err());
}

/// The exit code of a command that ended with `code`, once all that it printed is written.
pub fn finish(code: ExitCode) -> ExitCode {
    keep(io::stdout().flush());
    let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let code = judge(failure.as_ref(), code);
    if let Some(error) = failure.filter(|error| error.kind() != ErrorKind::BrokenPipe) {
        errln!("ring3: writing standard output: {error}; what the command did is done, what it had to say is lost");
    }
    code
}

fn judge(failure: Option<&io::Error>, code: ExitCode) -> ExitCode {
    match failure {
        Some(error) if error.kind() != ErrorKind::BrokenPipe && code == ExitCode::SUCCESS => ExitCode::FAILURE,
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_cannot_be_written_is_no_success() {
        let full = io::Error::from(ErrorKind::StorageFull);
        assert_eq!(judge(Some(&full), ExitCode::SUCCESS), ExitCode::FAILURE);
        assert_eq!(judge(Some(&full), ExitCode::from(7)), ExitCode::from(7));
    }

    #[test]
    fn a_reader_who_has_read_enough_changes_no_exit_code() {
        let closed = io::Error::from(ErrorKind::BrokenPipe);
        assert_eq!(judge(Some(&closed), ExitCode::SUCCESS), ExitCode::SUCCESS);
        assert_eq!(judge(Some(&closed), ExitCode::from(7)), ExitCode::from(7));
    }
}
