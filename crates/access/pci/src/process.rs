//! Processes, and what they have open.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::{Host, Node};
use ring3_spec::text::Printable;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, Printable(self.name.as_bytes()))
    }
}

impl Holder {
    pub(crate) fn of(host: &Host, pid: u32) -> Self {
        Self { pid, name: host.text(&format!("proc/{pid}/comm")).unwrap_or_default() }
    }
}

/// The name of the process that stops a device driven by uio when its driver is gone. It ends by
/// itself with the driver.
pub const WARDEN: &str = "ring3-warden";

/// The processes that have `/file` open, as far as this user may know: other users' processes are
/// visible to root alone. A [`WARDEN`] is among them only if its driver is not. A process that is
/// ending (killed, not yet gone) is not: it has the file for a moment still, but it will not use
/// it.
pub fn holders(host: &Host, file: &str) -> Vec<Holder> {
    let wanted = Path::new("/").join(file);
    // The same device may have several files.
    let node = host.kernel().node(&host.path(file)).ok().flatten();
    let is_it = |link: &Path| {
        fs::read_link(link).is_ok_and(|target| target == wanted)
            || node.is_some() && host.kernel().node(link).is_ok_and(|found| found == node)
    };
    let has_it = |pid: &u32| {
        let links =
            fs::read_dir(host.path(&format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
        links.map(|entry| entry.path()).any(|link| is_it(&link))
    };
    let all = pids(host)
        .unwrap_or_default()
        .into_iter()
        .filter(has_it)
        .filter(|&pid| !is_ending(host, pid));
    let (wardens, drivers): (Vec<_>, Vec<_>) =
        all.map(|pid| Holder::of(host, pid)).partition(|holder| holder.name == WARDEN);
    if drivers.is_empty() { wardens } else { drivers }
}

pub(crate) fn pids(host: &Host) -> io::Result<Vec<u32>> {
    Ok(host.list("proc")?.into_iter().filter_map(|name| name.parse().ok()).collect())
}

/// Whether an error of a process' files means that it has ended meanwhile.
pub(crate) fn has_ended(error: &io::Error) -> bool {
    use rustix::io::Errno;
    // The last is what a process that ends answers for its mounts.
    [Errno::NOENT, Errno::SRCH, Errno::INVAL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether the process is dead or ends, or has been killed and has not noticed yet.
fn is_ending(host: &Host, pid: u32) -> bool {
    const SIGKILL: u32 = 9;
    // Linux, include/linux/sched.h: getting shut down.
    const PF_EXITING: u64 = 4;
    // After the name, which may contain anything, in parentheses: state, five numbers, flags.
    // [proc(5)]
    let stat = host.text(&format!("proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<_> =
        stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let is_dead = fields.first().is_some_and(|state| ["Z", "X"].contains(state));
    let is_exiting =
        fields.get(6).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0) & PF_EXITING != 0;
    // Signals that wait to be taken, by the thread and by the process: bit n - 1 is signal n.
    // [proc(5)]
    let status = host.text(&format!("proc/{pid}/status")).unwrap_or_default();
    let waiting = status
        .lines()
        .filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    let signals = waiting.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    is_dead || is_exiting || signals.fold(0, std::ops::BitOr::bitor) >> (SIGKILL - 1) & 1 == 1
}

/// The devices that process `pid` has open.
pub(crate) fn open_nodes(host: &Host, pid: u32) -> io::Result<Vec<Node>> {
    let directory = format!("proc/{pid}/fd");
    let links = host.list(&directory)?;
    // A descriptor that was closed meanwhile has no node any more.
    Ok(links
        .iter()
        .filter_map(|link| host.kernel().node(&host.path(&format!("{directory}/{link}"))).ok()?)
        .collect())
}

/// Whether processes are seen of the whole machine, and not of a container alone.
pub(crate) fn sees_all(host: &Host) -> bool {
    // The machine's own namespace has a number of its own. [Linux, include/linux/proc_ns.h:
    // PROC_PID_INIT_INO]
    host.link("proc/self/ns/pid").is_none_or(|namespace| namespace == "pid:[4026531836]")
}
