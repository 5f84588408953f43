//! What is stopped, for who lets it go on: another process than the one that has stopped it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{Error, Host};

/// In memory: after a boot nothing is stopped.
const FOLDER: &str = "run/ring3";
const FILE: &str = "run/ring3/asleep";

/// Written before each step, so that no step is forgotten.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Note {
    /// Control groups.
    pub groups: Vec<PathBuf>,
    /// The group of processes that had none.
    pub gathered: Option<PathBuf>,
    /// Where frozen file systems are mounted.
    pub mounts: Vec<PathBuf>,
    /// What the kernel's switch was.
    pub sync_on_suspend: Option<String>,
    #[serde(skip)]
    path: PathBuf,
    /// Held by who undoes it.
    #[serde(skip)]
    lock: Option<File>,
}

impl Note {
    /// An empty one.
    pub(crate) fn create(host: &Host) -> Result<Self, Error> {
        let folder = host.path(FOLDER);
        fs::create_dir_all(&folder)
            .map_err(|error| Error::step(folder.display().to_string(), error))?;
        let mut note = Self { path: host.path(FILE), ..Self::default() };
        note.change(|_| {})?;
        Ok(note)
    }

    /// Changes it, and writes it.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Self)) -> Result<(), Error> {
        change(self);
        let failed = |error| Error::step(self.path.display().to_string(), error);
        let text = serde_json::to_vec(&self).map_err(|error| failed(error.into()))?;
        // Who reads sees a whole one.
        let new = self.path.with_extension("new");
        File::create(&new).and_then(|mut file| file.write_all(&text)).map_err(failed)?;
        fs::rename(&new, &self.path).map_err(failed)
    }

    /// What somebody has stopped, for this process alone; `None` if nothing is.
    pub(crate) fn take(host: &Host) -> Result<Option<Self>, Error> {
        let path = host.path(FILE);
        let failed = |error: std::io::Error| Error::step(path.display().to_string(), error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        // Another process has done it meanwhile.
        let Ok(text) = fs::read(&path) else { return Ok(None) };
        let note: Self = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        Ok(Some(Self { path: path.clone(), lock: Some(file), ..note }))
    }

    /// Nothing is stopped any more.
    pub(crate) fn remove(mut self) {
        let _ = fs::remove_file(&self.path);
        drop(self.lock.take());
    }

    /// Whether there is one.
    pub fn is_there(host: &Host) -> bool {
        host.path(FILE).exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_has_stopped_another_finds_once() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::at(folder.path(), 1);
        assert!(Note::take(&host).unwrap().is_none() && !Note::is_there(&host));
        let mut note = Note::create(&host).unwrap();
        note.change(|note| note.mounts.push("/data".into())).unwrap();
        let found = Note::take(&host).unwrap().unwrap();
        assert_eq!(found.mounts, [PathBuf::from("/data")]);
        found.remove();
        assert!(Note::take(&host).unwrap().is_none());
    }

    #[test]
    fn a_note_that_makes_no_sense_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::at(folder.path(), 1);
        Note::create(&host).unwrap();
        fs::write(host.path(FILE), "x").unwrap();
        assert!(Note::take(&host).unwrap_err().to_string().contains("run/ring3/asleep"));
    }
}
