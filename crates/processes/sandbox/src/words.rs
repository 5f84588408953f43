//! A sandbox in words.

use std::fmt;

use serde::Serialize;

use crate::filter::NARROWED;
use crate::{MAX_FILES, Sandbox};

/// What a sandbox leaves and takes. The field names are stable: docs/json.md describes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Whose the process is.
    pub user: u32,
    /// The same.
    pub group: u32,
    /// What it shares with nobody.
    pub namespaces: Vec<&'static str>,
    /// Descriptors that it has, at most.
    pub max_files: u64,
    /// The system calls that it makes; any other ends it.
    pub system_calls: Vec<Allowed>,
    /// What else is true of it, in words.
    pub rules: Vec<&'static str>,
}

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allowed {
    /// Its name.
    pub name: String,
    /// The forms in which it is allowed, in words; `None`: all.
    pub only: Option<&'static str>,
}

const RULES: [&str; 8] = [
    "no capabilities, and none to be had: the bounding set is empty, no_new_privs is set",
    "no files: its root is an empty, read-only folder; where the kernel has landlock, that refuses \
    every file and port, too",
    "no other processes: it sees, signals and traces none, and its memory is hidden from others of \
    its user",
    "no network but the loopback of its own, which is down",
    "no descriptors but its standard ones, its supervisor's socket, the lease and what came with \
    it, the kernel's files of its disks, and the queues of its interface; none of them is the \
    device's",
    "no io_uring of its own making: its rings were made before and take the operations of a ublk \
    queue and no other; with export.batch = true they register buffers, too",
    "no code but its program: nothing can be mapped to be executed",
    "of a network card, unless engine = \"tap\": ioctl by nine of vhost-net's numbers and no \
    other, and a descriptor of /dev/vhost-net for each queue",
];

impl Sandbox {
    /// The sandbox in words.
    pub fn describe(&self) -> Description {
        let only = |name: &str| {
            NARROWED.iter().find(|narrowed| narrowed.name == name).map(|narrowed| narrowed.only)
        };
        Description {
            user: self.user,
            group: self.group,
            namespaces: vec!["mounts", "network", "processes", "messages", "host name"],
            max_files: MAX_FILES,
            system_calls: self
                .calls()
                .map(|name| Allowed { name: name.to_owned(), only: only(name) })
                .collect(),
            rules: RULES.into(),
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "user {}, group {}; at most {} descriptors",
            self.user, self.group, self.max_files
        )?;
        writeln!(f, "its own {}", self.namespaces.join(", "))?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))?;
        writeln!(f, "{} system calls, and its end at any other:", self.system_calls.len())?;
        for Allowed { name, only } in &self.system_calls {
            match only {
                Some(only) => writeln!(f, "  {name} ({only})")?,
                None => writeln!(f, "  {name}")?,
            }
        }
        Ok(())
    }
}
