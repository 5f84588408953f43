//! Which processes have a file open.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::Host;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// The name of the process that stops a device driven by uio when its driver is gone. It ends by itself with the driver.
pub const WARDEN: &str = "ring3-warden";

/// The processes that have `/file` open, as far as this user may know: other users' processes are visible to root alone.
/// A [`WARDEN`] is among them only if its driver is not.
pub fn holders(host: &Host, file: &str) -> Vec<Holder> {
    let wanted = Path::new("/").join(file);
    let pids = host.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let has_it = |pid: &u32| {
        let links = fs::read_dir(host.path(&format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
        links.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == wanted)
    };
    let name = |pid| host.text(&format!("proc/{pid}/comm")).unwrap_or_default();
    let all: Vec<_> = pids.filter(has_it).map(|pid| Holder { pid, name: name(pid) }).collect();
    let (wardens, drivers): (Vec<_>, Vec<_>) = all.into_iter().partition(|holder| holder.name == WARDEN);
    if drivers.is_empty() { wardens } else { drivers }
}
