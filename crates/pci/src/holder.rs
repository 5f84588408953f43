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

/// The processes that have `/file` open, as far as this user may know: other users' processes are visible to root alone.
pub fn holders(host: &Host, file: &str) -> Vec<Holder> {
    let wanted = Path::new("/").join(file);
    let pids = host.names("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let has_it = |pid: &u32| {
        let links = fs::read_dir(host.path(&format!("proc/{pid}/fd"))).into_iter().flatten().flatten();
        links.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|target| target == wanted)
    };
    let name = |pid| host.text(&format!("proc/{pid}/comm")).unwrap_or_default();
    pids.filter(has_it).map(|pid| Holder { pid, name: name(pid) }).collect()
}
