//! Stops the users of disks that processes serve while the machine falls asleep.
//!
//! # Why
//! The kernel freezes all processes in one sweep, and waits 20 seconds for each. A process that
//! serves a disk is frozen at once; a process that waits for that disk, in an uninterruptible
//! sleep, can only be frozen once its request has ended. So the machine does not sleep while
//! anybody waits for `fsync`. The freezer of control groups has no such order problem: it stops the
//! users alone, each when its request has ended, while the servers still end requests. File systems
//! are frozen after that, because the kernel's own threads write, too (journals, lazy
//! initialisation), and nobody is left who could wait for a frozen file system.
//!
//! # Shape
//! [`stop_users`] and [`thaw_users`] are the two ends. What was stopped is written to a
//! [note](Note) before it is stopped, so that any process can undo it. [`Processes`] knows who must
//! go on, `groups` freezes all others, `disks` finds the file systems.
//!
//! # Who goes on
//! A process of root's, or in a control group of ring3's drivers, whose first argument begins with
//! `@`, the mark of storage daemons; all ancestors of the caller; the first process.

mod disks;
mod filesystem;
mod forecast;
mod groups;
mod host;
mod note;
mod processes;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use disks::{Disks, Mount};
pub use forecast::forecast;
pub use host::Host;
pub use note::Note;
pub use processes::Processes;

/// How long users may take until they stand still: the longest request in flight, with its retries.
const STILL: Duration = Duration::from_secs(30);
/// How long other processes of the caller's control group may take to end.
const OTHERS: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Why the users of disks were not stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses a step.
    #[error("{what}: {source}")]
    Step {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is no freezer.
    #[error(
        "no cgroup v2 is mounted, so that nothing but the kernel can stop processes: mount -t \
        cgroup2 cgroup2 /sys/fs/cgroup"
    )]
    NoGroups,
    /// Everything stands on it.
    #[error(
        "the root file system is on {disk}, which a process serves: whoever wakes the machine \
        would wait for it; do not let this machine sleep"
    )]
    Root {
        /// Which disk.
        disk: String,
    },
    /// They do not stand still.
    #[error("after {} s processes in {groups} still run, and everything goes on: see which (grep \
             -r . /proc/PID/stack), end them, and try again", STILL.as_secs())]
    Restless {
        /// Their control groups.
        groups: String,
    },
}

impl Error {
    fn step(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Step { what: what.into(), source: source.into() }
    }
}

/// What is to be stopped.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// First wait until the caller's control group has no other process: hooks that run beside this
    /// one may need services that would stand still.
    pub after_others: bool,
    /// The kernel itself does not write before it sleeps. All is written when this is done.
    pub no_kernel_sync: bool,
}

/// Stops all users of disks that processes serve, and has all be written that they have written.
/// The note says how to undo it; after an error everything goes on. `None` if there is no such
/// disk.
pub fn stop_users(host: &Host, options: &Options) -> Result<Option<Note>, Error> {
    thaw_users(host)?;
    let disks = Disks::read(host);
    if disks.is_empty() {
        return Ok(None);
    }
    let mounts = disks.mounts(host);
    if let Some(root) = mounts.iter().find(|mount| mount.at == Path::new("/")) {
        return Err(Error::Root { disk: root.disk.clone() });
    }
    if options.after_others {
        wait_for_others(host);
    }
    let mut note = Note::create(host)?;
    let stopped = stop(host, &mut note, &mounts, options).and_then(|()| disks.flush());
    match stopped {
        Ok(()) => Ok(Some(note)),
        Err(error) => {
            let _ = thaw_users(host);
            Err(error)
        }
    }
}

fn stop(host: &Host, note: &mut Note, mounts: &[Mount], options: &Options) -> Result<(), Error> {
    let root = groups::root(host).ok_or(Error::NoGroups)?;
    let processes = Processes::read(host);
    let groups = groups::others(&root, &processes);
    let bare = processes.bare();
    note.change(|note| {
        note.groups = groups.clone();
        note.gathered = (!bare.is_empty()).then(|| root.join(groups::GATHERED));
    })?;
    groups.iter().try_for_each(|group| groups::freeze(group, true))?;
    let gathered = note.gathered.clone();
    if let Some(group) = &gathered {
        groups::move_into_group(host, group)?;
    }
    let all: Vec<PathBuf> = groups.into_iter().chain(gathered).collect();
    groups::wait(&all, STILL)?;
    rustix::fs::sync();
    // What was mounted last may stand on what was mounted first.
    for mount in mounts.iter().rev() {
        let at = host.in_first_namespace(&mount.at);
        if filesystem::freeze(&at).map_err(|error| {
            Error::step(format!("freezing the file system at {}", mount.at.display()), error)
        })? {
            note.change(|note| note.mounts.push(at))?;
        }
    }
    if options.no_kernel_sync {
        let switch = host.path("sys/power/sync_on_suspend");
        if let Ok(before) = std::fs::read_to_string(&switch) {
            note.change(|note| note.sync_on_suspend = Some(before.trim().into()))?;
            std::fs::write(&switch, "0")
                .map_err(|error| Error::step(switch.display().to_string(), error))?;
        }
    }
    Ok(())
}

/// Lets all go on that [`stop_users`] has stopped, whoever called it; false if nobody is stopped.
/// All is tried, and the first error is given back.
pub fn thaw_users(host: &Host) -> Result<bool, Error> {
    let Some(note) = Note::take(host)? else { return Ok(false) };
    let mut first = Ok(());
    let mut attempt =
        |done: Result<(), Error>| first = std::mem::replace(&mut first, Ok(())).and(done);
    if let Some(before) = &note.sync_on_suspend {
        let switch = host.path("sys/power/sync_on_suspend");
        attempt(
            std::fs::write(&switch, before)
                .map_err(|error| Error::step(switch.display().to_string(), error)),
        );
    }
    for at in note.mounts.iter().rev() {
        attempt(filesystem::thaw(at).map_err(|error| {
            Error::step(format!("thawing the file system at {}", at.display()), error)
        }));
    }
    if let Some(group) = note.gathered.as_ref().filter(|group| group.exists()) {
        attempt(groups::dissolve_group(group));
    }
    for group in note.groups.iter().filter(|group| group.exists()) {
        attempt(groups::freeze(group, false));
    }
    note.remove();
    first.map(|()| true)
}

/// Waits until the caller's control group has no other process than its ancestors.
fn wait_for_others(host: &Host) {
    let end = Instant::now() + OTHERS;
    while Instant::now() < end && Processes::read(host).has_others() {
        std::thread::sleep(LOOK);
    }
}
