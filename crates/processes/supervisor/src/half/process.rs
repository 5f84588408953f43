//! A process that is a user half.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring3_sandbox::{CPU_WEIGHT, Child, Limits, NOBODY, Program, spawn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::manifest::{self, UserHalf};
use crate::process::{ended, kill};

/// Where the process finds its device.
const DEVICE: RawFd = 3;
/// Folders in which such programs lie, from that of ring3's own drivers.
const PLACES: [&str; 2] = [".", "../lib/ring3"];

/// The program of `half`: the one that it names, or the one beside `own`, that of ring3's drivers.
pub fn program(own: &Program, half: &UserHalf) -> io::Result<Program> {
    let path = half.program.clone().map_or_else(|| beside(own, &half.name), Ok)?;
    Program::open(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn beside(own: &Program, driver: &str) -> io::Result<PathBuf> {
    let folder = own.path().parent().unwrap_or(Path::new("/"));
    let places = PLACES.map(|place| folder.join(place).join(format!("split-{driver}")));
    places.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        let places = places.each_ref().map(|place| place.display().to_string()).join(" nor ");
        io::Error::other(format!(
            "the user half of {driver} is neither {places}: ring3 split build {driver} makes it; \
            put it there, or name it with program = \"...\""
        ))
    })
}

/// A user half. Dropping it does not end it, but the end of the thread that has started it does.
pub struct Process {
    child: Child,
    words: io::PipeReader,
}

impl Process {
    /// Starts `program` as `half` says, with `device` open.
    pub fn start(program: &Program, half: &UserHalf, device: &File) -> io::Result<Self> {
        let (words, out) = io::pipe()?;
        rustix::io::ioctl_fionbio(&words, true)?;
        let fds = [(out.as_fd(), 1), (out.as_fd(), 2), (device.as_fd(), DEVICE)];
        let manifest::Limits { memory_mib, cpu_percent, cpu_weight, pids, .. } = half.limits();
        let cpu_weight = cpu_weight.unwrap_or(CPU_WEIGHT);
        let limits = Limits {
            name: half.name.clone(),
            memory: memory_mib << 20,
            cpu_percent,
            cpu_weight,
            pids,
        };
        let argv = arguments(half)
            .into_iter()
            .map(CString::new)
            .collect::<Result<Vec<_>, _>>()
            .map_err(io::Error::other)?;
        Ok(Self { child: spawn(program, &argv, &fds, &limits)?, words })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// What of its limits the machine does not keep.
    pub fn unlimited(&self) -> &[String] {
        &self.child.unlimited
    }

    /// Readable when it has ended.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }

    /// Readable when it has written something.
    pub fn words(&self) -> BorrowedFd<'_> {
        self.words.as_fd()
    }

    /// What it has written, as much as `buffer` holds; 0 if there is nothing now.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.words.read(buffer).unwrap_or(0)
    }

    /// How it has ended, in words; `None` if it has not.
    pub fn ended(&self) -> Option<String> {
        ended(self.end())
    }

    /// Ends it, whatever it does, and waits for that; false if it takes longer than `limit`.
    pub fn kill(&self, limit: Duration) -> bool {
        kill(self.end());
        self.has_ended_within(limit)
    }

    /// Waits for its end; false if it takes longer than `limit`.
    pub fn has_ended_within(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        poll(&mut [PollFd::new(&self.end(), PollFlags::IN)], limit.as_ref())
            .is_ok_and(|ready| ready > 0)
    }
}

/// The words of the program: it waits for its kernel half for ever, for who starts it knows how
/// long that is wanted.
fn arguments(half: &UserHalf) -> Vec<String> {
    let (user, group) = half.user.map_or((NOBODY, NOBODY), |user| (user.user, user.group));
    let mut words = vec![format!("@split-{}", half.name), "0".into()];
    words.extend([
        "--device".into(),
        DEVICE.to_string(),
        "--user".into(),
        format!("{user}:{group}"),
    ]);
    words.extend(half.unpinned.then(|| "--unpinned".into()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(text: &str) -> UserHalf {
        UserHalf { name: "e1000".into(), ..toml::from_str(text).unwrap() }
    }

    #[test]
    fn a_user_half_that_was_not_built_is_an_error_that_says_how_to() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("ring3-driver");
        std::fs::write(&own, "").unwrap();
        let own = Program::open(own).unwrap();
        let error = program(&own, &half("")).unwrap_err().to_string();
        assert!(error.contains("ring3 split build e1000"), "{error}");
        std::fs::write(folder.path().join("split-e1000"), "").unwrap();
        assert!(program(&own, &half("")).unwrap().path().ends_with("split-e1000"));
    }

    #[test]
    fn the_program_that_a_manifest_names_is_taken_or_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine"), "").unwrap();
        let own = Program::open(folder.path()).unwrap();
        let named = |name: &str| half(&format!("program = {:?}", folder.path().join(name)));
        assert!(program(&own, &named("mine")).unwrap().path().ends_with("mine"));
        assert!(program(&own, &named("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn it_is_told_whose_it_is_and_that_its_memory_may_be_swapped_out() {
        assert_eq!(
            arguments(&half("")),
            ["@split-e1000", "0", "--device", "3", "--user", "65534:65534"]
        );
        assert_eq!(arguments(&half("unpinned = true")).last().unwrap(), "--unpinned");
    }
}
