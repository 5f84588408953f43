//! Finished rounds on disk, so that an interrupted campaign goes on where it was.
//!
//! The first line is the plan, each further line a complete round. A round that was cut short is
//! not there, or is a last line that cannot be read, and is measured again.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::report::{Lab, Measurement};

/// The rounds of one campaign.
pub struct Journal {
    path: PathBuf,
    rounds: Vec<Round>,
}

#[derive(Serialize, Deserialize)]
struct Round {
    lab: Lab,
    measurements: Vec<Measurement>,
}

impl Journal {
    /// Opens the journal at `path`: with its rounds if they were made by the same plan, empty if
    /// not.
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
        let mut fresh = to_line(plan)?;
        for round in &rounds {
            fresh += &to_line(round)?;
        }
        fs::write(path, fresh).map_err(failed)?;
        Ok(Self { path: path.into(), rounds })
    }

    /// Rounds that are finished.
    pub fn finished(&self) -> u32 {
        self.rounds.len() as u32
    }

    /// Adds a complete round.
    pub fn add(&mut self, lab: Lab, measurements: Vec<Measurement>) -> Result<(), Error> {
        let round = Round { lab, measurements };
        let failed = |error| Error::os(format!("adding a round to {}", self.path.display()), error);
        let mut file = OpenOptions::new().append(true).open(&self.path).map_err(failed)?;
        file.write_all(to_line(&round)?.as_bytes()).map_err(failed)?;
        self.rounds.push(round);
        Ok(())
    }

    /// Where it ran, and all measurements of finished rounds.
    pub fn results(&self) -> (Lab, Vec<Measurement>) {
        let lab = self.rounds.first().map(|round| round.lab.clone()).unwrap_or_default();
        (lab, self.rounds.iter().flat_map(|round| round.measurements.clone()).collect())
    }

    /// Ends the campaign: the next one starts anew.
    pub fn close(self) -> Result<(), Error> {
        fs::remove_file(&self.path)
            .map_err(|error| Error::os(format!("removing {}", self.path.display()), error))
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
        let journal = Journal::open(&path, &2).unwrap();
        assert_eq!(journal.finished(), 0);
        journal.close().unwrap();
    }
}
