//! Where an interface is: users may move it into another network namespace, and its driver follows.
//!
//! # Shape
//! A socket stays in the namespace in which it was opened. So a thread of its own enters the
//! interface's namespace, opens the sockets there, and ends: the calling thread stays where it is.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{Changes, Error, Interface, Netlink};

/// The network namespace of the calling thread.
const HERE: &str = "/proc/thread-self/ns/net";
/// Where `ip netns` keeps those that have a name. [ip-netns(8)]
const NAMED: &str = "/run/netns";

/// An interface in its network namespace, with sockets there.
pub struct NamespaceSockets {
    /// What it is called there.
    pub name: String,
    /// By which the kernel names it there.
    pub index: u32,
    /// To ask for it.
    pub netlink: Netlink,
    /// To hear of changes.
    pub changes: Changes,
}

impl NamespaceSockets {
    /// Where `interface` is now. [`Error::Deleted`] if it is gone, and another error if it is where
    /// this process cannot follow.
    pub fn of(interface: &Interface) -> Result<Self, Error> {
        let name = interface.present()?;
        let failed =
            |error| Error::os(format!("{name}: following it into its network namespace"), error);
        let found = match &interface.virtio {
            None => within(&interface.namespace()?, || Self::here(&name)),
            Some(link) => {
                Self::of_virtio(&link.device().ok_or_else(|| Error::Deleted(name.clone()))?)
            }
        };
        found.map_err(failed)
    }

    /// Where the interface is that the kernel has made of the virtio device `device`.
    pub(crate) fn of_virtio(device: &str) -> io::Result<Self> {
        namespaces()
            .find_map(|namespace| within(&namespace, || Self::made_of(device)).ok())
            .ok_or_else(nowhere)
    }

    /// The interface `name` of the calling thread's namespace.
    pub(super) fn here(name: &str) -> io::Result<Self> {
        let netlink = Netlink::new()?;
        let index = netlink.index(name)?;
        Ok(Self { name: name.into(), index, netlink, changes: Changes::new()? })
    }

    /// The interface of the calling thread's namespace that the kernel has made of the virtio
    /// device `device`.
    fn made_of(device: &str) -> io::Result<Self> {
        let netlink = Netlink::new()?;
        let (index, name) = netlink.made_of(device)?.ok_or_else(nowhere)?;
        Ok(Self { name, index, netlink, changes: Changes::new()? })
    }
}

impl Interface {
    /// Does `run`, which is told the interface's name, in its network namespace. For what no socket
    /// of a [`NamespaceSockets`] can do.
    pub(super) fn within<T: Send>(
        &self,
        run: impl Fn(&str) -> io::Result<T> + Sync,
    ) -> io::Result<T> {
        let other = |error: Error| io::Error::other(error.to_string());
        let name = self.present().map_err(other)?;
        let Some(link) = &self.virtio else {
            return within(&self.namespace().map_err(other)?, || run(&name));
        };
        let device = link.device().ok_or_else(nowhere)?;
        let in_it = || NamespaceSockets::made_of(&device).and_then(|place| run(&place.name));
        namespaces().find_map(|namespace| within(&namespace, in_it).ok()).ok_or_else(nowhere)
    }
}

/// The interface is in no namespace that has a process or a name.
fn nowhere() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "no process is in it, and /run/netns has no name for it",
    )
}

/// What `run` returns in `namespace`, in a thread of its own.
fn within<T: Send>(
    namespace: &OwnedFd,
    run: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let in_it = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        run()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, in_it)?;
        thread.join().unwrap_or_else(|_| {
            Err(io::Error::other("a thread of this interface panicked: a defect of ring3"))
        })
    })
}

/// The network namespaces of this thread, of all processes, and those with a name; each once, this
/// thread's first.
fn namespaces() -> impl Iterator<Item = OwnedFd> {
    let entries = |folder: &str| {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let named = entries(NAMED);
    let processes =
        entries("/proc").filter(|path| is_process(path)).map(|path| path.join("ns/net"));
    let mut seen = BTreeSet::new();
    [PathBuf::from(HERE)].into_iter().chain(named).chain(processes).filter_map(move |path| {
        // A process may have ended, and of another user's this one may not be told.
        let place = fs::metadata(&path).ok()?;
        let file = seen.insert((place.dev(), place.ino())).then(|| File::open(path))?;
        Some(OwnedFd::from(file.ok()?))
    })
}

fn is_process(path: &std::path::Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_this_thread_is_the_first_and_none_comes_twice() {
        let all: Vec<_> = namespaces()
            .map(|fd| rustix::fs::fstat(fd).unwrap())
            .map(|stat| (stat.st_dev, stat.st_ino))
            .collect();
        let here = fs::metadata(HERE).unwrap();
        assert_eq!(all[0], (here.dev(), here.ino()));
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn no_interface_is_made_of_a_device_that_there_is_not() {
        assert!(
            NamespaceSockets::made_of("virtio-none").is_err()
                && NamespaceSockets::here("r3-nowhere").is_err()
        );
        assert_eq!(NamespaceSockets::here("lo").unwrap().index, 1);
    }
}
