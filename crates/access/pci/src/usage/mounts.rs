//! What is mounted, in every mount namespace, and what is swap.

use std::collections::BTreeSet;

use super::Use;
use crate::process::has_ended;
use crate::{Holder, Host};

/// What is mounted and what is swap.
pub(super) struct Mounts {
    mounted: Vec<Mount>,
    pub(super) swap: Vec<String>,
}

/// One mount.
pub(super) struct Mount {
    /// The device number that the file system shows.
    number: String,
    /// The paths that its source and its options name: other disks may be among them, for a log or
    /// as further members.
    paths: Vec<String>,
    at: String,
    /// A process that sees it, if this one does not.
    inside: Option<Holder>,
}

impl Mount {
    /// The use that it makes of `disk`.
    pub(super) fn of(&self, disk: &str) -> Use {
        Use::Mounted { disk: disk.into(), at: self.at.clone(), inside: self.inside.clone() }
    }
}

impl Mounts {
    /// Reads those of this process and of the `others`; what keeps some from being read goes to
    /// `unseen`.
    pub(super) fn read(host: &Host, others: &[u32], unseen: &mut Vec<String>) -> Self {
        let own = host.text("proc/self/mountinfo").unwrap_or_default();
        let mut mounted: Vec<_> = own.lines().filter_map(|line| parse(line, None)).collect();
        let mut namespaces: BTreeSet<_> = host.link("proc/self/ns/mnt").into_iter().collect();
        let mut seen: BTreeSet<_> = own.lines().map(|line| without_ids(line).to_owned()).collect();
        let mut hidden = 0;
        for &pid in others {
            let namespace = host.link(&format!("proc/{pid}/ns/mnt"));
            if namespace.as_ref().is_some_and(|namespace| namespaces.contains(namespace)) {
                continue;
            }
            match std::fs::read(host.path(&format!("proc/{pid}/mountinfo"))) {
                Ok(text) => {
                    namespaces.extend(namespace);
                    // Services have copies of what this process sees, and of each other's: the
                    // first will do.
                    let text = String::from_utf8_lossy(&text).into_owned();
                    let new = text.lines().filter(|line| seen.insert(without_ids(line).to_owned()));
                    mounted.extend(new.filter_map(|line| parse(line, Some(Holder::of(host, pid)))));
                }
                Err(error) if has_ended(&error) => {}
                Err(_) => hidden += 1,
            }
        }
        if hidden > 0 {
            unseen.push(format!("the mounts of {hidden} processes may not be read"));
        }
        let swap = host.text("proc/swaps").unwrap_or_default();
        let swap = swap
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .map(unescape)
            .collect();
        Self { mounted, swap }
    }

    /// Where a disk is mounted. Some file systems (btrfs) show a number of their own, but name the
    /// disk as their source.
    pub(super) fn of(&self, disk: &str, number: &str) -> Vec<&Mount> {
        let path = format!("/dev/{disk}");
        self.mounted
            .iter()
            .filter(|mount| mount.number == number || mount.paths.contains(&path))
            .collect()
    }
}

/// Fields: id, parent, major:minor, root, mount point, options, optional ones, "-", type, source,
/// options of the file system. [proc(5)]
fn parse(line: &str, inside: Option<Holder>) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let (number, at) = (place.next()?.to_owned(), unescape(place.nth(1)?));
    let names = kind.split(' ').skip(1).map(unescape).collect::<Vec<_>>().join(",");
    let paths = names
        .split([',', ':', '='])
        .filter(|name| name.starts_with('/'))
        .map(str::to_owned)
        .collect();
    Some(Mount { number, paths, at, inside })
}

/// A line of mountinfo without what differs between namespaces: ids and propagation.
fn without_ids(line: &str) -> &str {
    let rest = line.splitn(3, ' ').nth(2).unwrap_or_default();
    // Device, root and mount point.
    rest.match_indices(' ').nth(2).map_or(rest, |(end, _)| &rest[..end])
}

/// Undoes the octal escapes of spaces and the like in the kernel's lists.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}
