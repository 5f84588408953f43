//! What commands print.
//!
//! # Standard output
//! `outln!` writes a line. A failure does not end the command, which may have more to do than to
//! talk; it is kept, nothing more is written, and [`finish`] makes an exit code of it. A reader who
//! closes the pipe (`ring3 devices | head -1`) has read enough: the exit code is then the command's
//! own. Any other failure, such as a full disk, is said, and no command succeeds with it.
//!
//! # Standard error
//! `errln!` gives a line to the log's thread: see [`ring3_process::log`].
//!
//! # Trust
//! Files, devices, guests and other processes choose words that are printed here. Both macros show
//! what would move a terminal's cursor, or cannot be seen, as its number ([`visible`]).

use std::fmt::{self, Write as _};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use ring3_spec::text::is_visible;

/// The first failure to write standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line on standard output; failures are the business of [`finish`].
macro_rules! outln {
    () => { $crate::output::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a line on standard error, without waiting for who reads it.
macro_rules! errln {
    ($($text:tt)*) => {
        ring3_process::log::notice(
            format_args!("{}", $crate::output::visible(format_args!($($text)*)))
        )
    };
}

/// Prints on standard output, unless that has failed before.
pub fn write(text: fmt::Arguments<'_>) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    if failure.is_none() {
        *failure = match ring3_process::output_was_closed() {
            true => Some(rustix::io::Errno::BADF.into()),
            false => io::stdout().write_all(visible(text).as_bytes()).err(),
        };
    }
}

/// Prints the title of a part, which stands out on a terminal.
pub fn title(text: fmt::Arguments<'_>) {
    let text = visible(text);
    let text =
        if io::stdout().is_terminal() { format!("\x1b[1m{text}\x1b[0m\n") } else { text + "\n" };
    keep(io::stdout().write_all(text.as_bytes()));
}

/// Clears the screen for what is printed next. What is no terminal gets an empty line.
pub fn clear() {
    let text = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "\n" };
    keep(io::stdout().write_all(text.as_bytes()));
}

/// `text` with all but its lines and tabs that a terminal would obey, or that nobody can see, as
/// numbers: `\u001b`. JSON has the same form, so that an object stays the same object.
pub fn visible(text: fmt::Arguments<'_>) -> String {
    let text = fmt::format(text);
    let is_hidden = |letter: char| !matches!(letter, '\n' | '\t') && !is_visible(letter);
    if !text.contains(is_hidden) {
        return text;
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if !is_hidden(letter) {
            shown.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
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
        errln!(
            "ring3: writing standard output: {error}; what the command did is done, what it had to \
            say is lost"
        );
    }
    code
}

fn judge(failure: Option<&io::Error>, code: ExitCode) -> ExitCode {
    match failure {
        Some(error) if error.kind() != ErrorKind::BrokenPipe && code == ExitCode::SUCCESS => {
            ExitCode::FAILURE
        }
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
    fn what_a_terminal_would_obey_is_shown_as_its_number() {
        assert_eq!(
            visible(format_args!("disk\x1b]0;t\x07\u{9b}2J\r")),
            r"disk\u001b]0;t\u0007\u009b2J\u000d"
        );
        assert_eq!(visible(format_args!("{}", "a\u{202e}b\u{e0041}")), r"a\u202eb\udb40\udc41");
        assert_eq!(visible(format_args!("Größe 1 µs\t磁盘\n")), "Größe 1 µs\t磁盘\n");
    }

    #[test]
    fn an_object_stays_the_same_object() {
        let object = serde_json::json!({ "model": "\u{9b}31m\u{202e}" });
        let shown = visible(format_args!("{object}"));
        assert!(shown.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), object);
    }

    #[test]
    fn a_reader_who_has_read_enough_changes_no_exit_code() {
        let closed = io::Error::from(ErrorKind::BrokenPipe);
        assert_eq!(judge(Some(&closed), ExitCode::SUCCESS), ExitCode::SUCCESS);
        assert_eq!(judge(Some(&closed), ExitCode::from(7)), ExitCode::from(7));
    }
}
