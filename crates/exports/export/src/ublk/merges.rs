//! Requests that the kernel puts together lie in several places, and then in no client's memory as
//! one piece: so it puts none together while there is such memory.

use std::fs;
use std::path::PathBuf;

/// Puts no requests together, however simple that would be. [Linux
/// Documentation/ABI/stable/sysfs-block, nomerges]
const NONE: &str = "2";

/// A disk's requests, as the kernel merges them or not.
pub struct MergeControl {
    file: PathBuf,
    /// What was there before, while there is none.
    before: Option<String>,
}

impl MergeControl {
    /// Of `/dev/ublkbN`.
    pub fn of(id: u32) -> Self {
        Self { file: format!("/sys/block/ublkb{id}/queue/nomerges").into(), before: None }
    }

    /// The same, where another process has changed it, and has found `before`.
    pub fn changed(id: u32, before: Option<String>) -> Self {
        Self { before, ..Self::of(id) }
    }

    /// What was there before, while there is none.
    pub fn before(&self) -> Option<&str> {
        self.before.as_deref()
    }

    /// None from now on. A refusal is a warning: requests that are merged are copied.
    pub fn stop(&mut self) {
        if self.before.is_some() {
            return;
        }
        let changed = fs::read_to_string(&self.file)
            .and_then(|before| fs::write(&self.file, NONE).map(|()| before));
        match changed {
            Ok(before) => self.before = Some(before.trim().to_owned()),
            Err(error) => {
                tracing::warn!(
                    file = %self.file.display(),
                    %error,
                    "the kernel merges requests, which are copied then; write 2 there"
                )
            }
        }
    }

    /// As it was before.
    pub fn restore(&mut self) {
        let Some(before) = self.before.take() else { return };
        // A disk that has gone has none.
        if let Err(error) = fs::write(&self.file, &before)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(
                file = %self.file.display(),
                %error,
                "the kernel merges no requests any more; write {before} there"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_the_first_client_is_set_again_after_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nomerges");
        fs::write(&file, "1\n").unwrap();
        let mut merges = MergeControl { file: file.clone(), before: None };
        merges.stop();
        merges.stop();
        assert_eq!(fs::read_to_string(&file).unwrap(), "2");
        merges.restore();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1");
        fs::write(&file, "0").unwrap();
        merges.restore();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
    }
}
