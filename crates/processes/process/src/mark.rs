//! The mark of a process that serves storage.
//!
//! # References
//! - `[ROOT-STORAGE-DAEMONS]` systemd.io, "Storage Daemons for the Root File System": a process of
//!   root's whose first argument begins with `@` is not killed before file systems are unmounted.
//!   `ring3 sleep` goes by the same mark.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The first argument of `program`, marked.
pub fn marked(program: &Path) -> OsString {
    let mut word = OsString::from("@");
    word.push(program.file_name().unwrap_or(OsStr::new("ring3")));
    word
}

/// Whether a first argument has the mark.
fn is_marked(word: Option<&OsStr>) -> bool {
    word.is_some_and(|word| word.as_bytes().first() == Some(&b'@'))
}

/// Has this process the mark: its program is executed once more with the same words, unless it has
/// the mark already. To be called before it has begun anything. A process that cannot have it goes
/// on without.
pub fn mark_process() {
    let mut words = std::env::args_os();
    if is_marked(words.next().as_deref()) {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // Returns only if it fails.
        let error = Command::new(&program).arg0(marked(&program)).args(words).exec();
        tracing::debug!("{} is not executed with its mark: {error}", program.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stands_before_the_programs_name() {
        let word = marked(Path::new("/usr/local/bin/ring3d"));
        assert_eq!(word, "@ring3d");
        assert!(
            is_marked(Some(&word)) && !is_marked(Some(OsStr::new("ring3d"))) && !is_marked(None)
        );
    }
}
