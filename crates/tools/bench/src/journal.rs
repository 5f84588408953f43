//! Finished rounds on disk, so that an interrupted campaign goes on where it was.
//!
//! The first line is the plan, each further line a complete round. A round that was cut short is
//! not there, or is a last line that cannot be read, and is measured again.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::report::{Lab, Measurement};

/// The rounds of one campaign.
pub struct Journal {
    path: PathBuf,
    /// The first line.
    plan: String,
    rounds: Vec<Round>,
    /// Whether the file is this campaign's. Until its first round is done, another's stays, for the
    /// campaign may be refused before it measures anything.
    is_own: bool,
}

#[derive(Serialize, Deserialize)]
struct Round {
    lab: Lab,
    measurements: Vec<Measurement>,
}

impl Journal {
    /// Opens the journal at `path`: with its rounds if they were made by the same plan, empty if
    /// not. Rounds of another plan stay until the first round of this one is added.
    ///
    /// # Errors
    /// Nothing can be written in its folder.
    pub fn open<P: Serialize + DeserializeOwned + PartialEq>(
        path: &Path,
        plan: &P,
    ) -> Result<Self, Error> {
        let failed =
            |error| Error::os(format!("keeping finished rounds in {}", path.display()), error);
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut lines = text.lines();
        let same = lines
            .next()
            .and_then(|line| serde_json::from_str::<P>(line).ok())
            .is_some_and(|old| old == *plan);
        let rounds: Vec<Round> = if same {
            lines.map_while(|line| serde_json::from_str(line).ok()).collect()
        } else {
            Vec::new()
        };
        // What cannot be kept is to be known before hours are spent on it.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map_err(failed)?;
        Ok(Self { path: path.into(), plan: to_line(plan)?, rounds, is_own: false })
    }

    /// Rounds that are finished.
    pub fn finished(&self) -> u32 {
        self.rounds.len() as u32
    }

    /// Adds a complete round.
    pub fn add(&mut self, lab: Lab, measurements: Vec<Measurement>) -> Result<(), Error> {
        let round = Round { lab, measurements };
        let failed = |error| Error::os(format!("adding a round to {}", self.path.display()), error);
        let line = to_line(&round)?;
        self.rounds.push(round);
        if self.is_own {
            let mut file = OpenOptions::new().append(true).open(&self.path).map_err(failed)?;
            return file.write_all(line.as_bytes()).map_err(failed);
        }
        // Without the last line of an interrupted run, which may be cut short.
        let mut text = self.plan.clone();
        for round in &self.rounds {
            text += &to_line(round)?;
        }
        fs::write(&self.path, text).map_err(failed)?;
        self.is_own = true;
        Ok(())
    }

    /// Where it ran, and all measurements of finished rounds.
    pub fn results(&self) -> (Lab, Vec<Measurement>) {
        let lab = self.rounds.first().map(|round| round.lab.clone()).unwrap_or_default();
        (lab, self.rounds.iter().flat_map(|round| round.measurements.clone()).collect())
    }

    /// Ends the campaign: the next one starts anew.
    pub fn close(self) -> Result<(), Error> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::os(format!("removing {}", self.path.display()), error))
            }
            _ => Ok(()),
        }
    }
}

fn to_line(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value)
        .map(|line| line + "\n")
        .map_err(|error| Error::format("a round", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn path(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("ring3-journal-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    fn one(round: u32) -> Vec<Measurement> {
        vec![Measurement::new(round, "w", "kernel").with("iops", f64::from(round))]
    }

    #[test]
    fn finished_rounds_are_there_after_an_interruption() {
        let path = path("resume");
        let mut journal = Journal::open(&path, &1).unwrap();
        journal.add(Lab::default(), one(1)).unwrap();
        journal.add(Lab::default(), one(2)).unwrap();
        drop(journal);
        let journal = Journal::open(&path, &1).unwrap();
        assert_eq!((journal.finished(), journal.results().1), (2, [one(1), one(2)].concat()));
        journal.close().unwrap();
    }

    #[test]
    fn a_round_that_was_cut_short_is_not_counted_and_does_not_stand_in_the_way() {
        let path = path("torn");
        Journal::open(&path, &1).unwrap().add(Lab::default(), one(1)).unwrap();
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"lab\": {\"ker")
            .unwrap();
        let mut journal = Journal::open(&path, &1).unwrap();
        assert_eq!(journal.finished(), 1);
        journal.add(Lab::default(), one(2)).unwrap();
        assert_eq!(Journal::open(&path, &1).unwrap().finished(), 2);
        journal.close().unwrap();
    }

    #[test]
    fn rounds_of_another_plan_are_not_mixed_in() {
        let path = path("other");
        Journal::open(&path, &1).unwrap().add(Lab::default(), one(1)).unwrap();
        let mut journal = Journal::open(&path, &2).unwrap();
        assert_eq!(journal.finished(), 0);
        journal.add(Lab::default(), one(7)).unwrap();
        assert_eq!(Journal::open(&path, &2).unwrap().results().1, one(7));
        journal.close().unwrap();
    }

    #[test]
    fn a_campaign_that_measures_nothing_leaves_the_rounds_of_another_one() {
        let path = path("refused");
        Journal::open(&path, &1).unwrap().add(Lab::default(), one(1)).unwrap();
        drop(Journal::open(&path, &2).unwrap());
        let journal = Journal::open(&path, &1).unwrap();
        assert_eq!(journal.finished(), 1);
        journal.close().unwrap();
    }

    #[test]
    fn a_folder_in_which_nothing_can_be_written_is_an_error_at_once() {
        assert!(Journal::open(Path::new("/proc/self/bench.rounds"), &1).is_err());
    }
}
