//! What survives ring3d: descriptors, and facts about them, with who started it.
//!
//! # Shape
//! Who started ring3d keeps descriptors for it by name, and hands them to the next one: systemd
//! (`FileDescriptorStoreMax=`), or `ring3d --hold`, by the same protocol, `[SD-NOTIFY]` in
//! [`notify`](crate::notify). A [`Record`] is what one device needs to go on: descriptors, each by
//! a name that means the same object as long as it is kept, and facts, which go into a memory file
//! that is kept beside them.
//!
//! # Order
//! A record changes as a whole: what is new is sent first, then a new file of facts, then what is
//! old is taken back. A ring3d that dies in between leaves two files of facts, of which the newest
//! counts whose descriptors are all there. Nothing is written into a file that was sent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::notify::Notifier;

/// In the name of a file of facts: `scratch/facts.17`.
const FACTS: &str = "facts.";
/// Most bytes of such a file.
const MAX_FACTS: u64 = 1 << 20;
/// Most descriptors of a record, its facts among them. A device has two records, and drivers and
/// clients choose how much is in them: one device must leave the others their part of the store.
const MAX_KEPT: usize = 1024;

/// What survives of a device.
#[derive(Debug, Default)]
pub struct Record {
    /// About the descriptors.
    pub facts: Value,
    /// Each by its name.
    pub fds: BTreeMap<String, OwnedFd>,
}

#[derive(Serialize, Deserialize)]
struct Facts {
    names: BTreeSet<String>,
    facts: Value,
}

/// What is kept of one device.
#[derive(Debug, Default)]
struct StoredDevice {
    names: BTreeSet<String>,
    /// The number of its file of facts; 0: none.
    number: u64,
}

/// The way to who keeps it. Nothing is kept if nobody does.
#[derive(Debug)]
pub struct Store {
    notifier: Notifier,
    kept: Mutex<BTreeMap<String, StoredDevice>>,
}

impl Store {
    /// The store behind `notifier`, with the records that it had `passed` on; and what of that was
    /// no part of one: sockets to listen at.
    pub fn open(
        notifier: Notifier,
        passed: Vec<(String, OwnedFd)>,
    ) -> (Self, BTreeMap<String, Record>, Vec<(String, OwnedFd)>) {
        let (mut parts, mut others) =
            (BTreeMap::<String, BTreeMap<String, OwnedFd>>::new(), Vec::new());
        for (name, fd) in passed {
            match name.split_once('/') {
                Some((device, name)) => {
                    drop(parts.entry(device.into()).or_default().insert(name.into(), fd))
                }
                None => others.push((name, fd)),
            }
        }
        let store = Self { notifier, kept: Mutex::default() };
        let records = parts
            .into_iter()
            .filter_map(|(device, fds)| Some((device.clone(), store.restore(&device, fds)?)))
            .collect();
        (store, records, others)
    }

    /// Whether anybody keeps anything.
    pub fn is_there(&self) -> bool {
        self.notifier.is_heard()
    }

    /// The record of `fds`, what of them belongs to it; the rest is not kept any longer.
    fn restore(&self, device: &str, mut fds: BTreeMap<String, OwnedFd>) -> Option<Record> {
        let mut numbers: Vec<u64> =
            fds.keys().filter_map(|name| name.strip_prefix(FACTS)?.parse().ok()).collect();
        numbers.sort_unstable();
        let whole = numbers.into_iter().rev().find_map(|number| {
            let facts = read(fds.get(&format!("{FACTS}{number}"))?).ok()?;
            facts.names.iter().all(|name| fds.contains_key(name)).then_some((number, facts))
        });
        let all: BTreeSet<_> = fds.keys().cloned().collect();
        let (number, facts) =
            whole.unwrap_or((0, Facts { names: BTreeSet::new(), facts: Value::Null }));
        let own = format!("{FACTS}{number}");
        for name in all.iter().filter(|&name| !facts.names.contains(name) && *name != own) {
            self.remove(device, name);
        }
        if number == 0 {
            tracing::warn!(device, "what was kept of it is incomplete: its driver is started anew");
            return None;
        }
        fds.retain(|name, _| facts.names.contains(name));
        self.lock().insert(device.to_owned(), StoredDevice { names: facts.names, number });
        Some(Record { facts: facts.facts, fds })
    }

    /// Keeps `facts` and `fds` for `device` instead of what was kept of it before. A descriptor
    /// whose name was kept already is the same object.
    pub fn keep(&self, device: &str, facts: &Value, fds: &[(&str, &dyn AsFd)]) -> io::Result<()> {
        let names: BTreeSet<String> = fds.iter().map(|(name, _)| (*name).to_owned()).collect();
        check(device)?;
        names.iter().try_for_each(|name| check(name))?;
        if names.len() >= MAX_KEPT {
            let count = names.len() + 1;
            return Err(io::Error::other(format!(
                "{count} descriptors are more than the {MAX_KEPT} that are kept"
            )));
        }
        if !self.is_there() {
            return Ok(());
        }
        let mut kept = self.lock();
        let before = kept.entry(device.to_owned()).or_default();
        for (name, fd) in fds {
            if !before.names.contains(*name) {
                self.send(device, name, fd)?;
                before.names.insert((*name).to_owned());
            }
        }
        let old = before.number;
        before.number += 1;
        let file = write(&Facts { names: names.clone(), facts: facts.clone() })?;
        self.send(device, &format!("{FACTS}{}", before.number), &file)?;
        if old > 0 {
            self.remove(device, &format!("{FACTS}{old}"));
        }
        before.names.difference(&names).for_each(|name| self.remove(device, name));
        before.names = names;
        Ok(())
    }

    /// Keeps nothing of `device` any more.
    pub fn forget(&self, device: &str) {
        if let Some(StoredDevice { names, number }) = self.lock().remove(device) {
            // First, so that nothing incomplete is taken for whole.
            self.remove(device, &format!("{FACTS}{number}"));
            names.iter().for_each(|name| self.remove(device, name));
        }
    }

    fn send(&self, device: &str, name: &str, fd: &dyn AsFd) -> io::Result<()> {
        // FDPOLL=0: a socket whose other end is closed tells the next ring3d something, and stays.
        self.notifier
            .send_with(&format!("FDSTORE=1\nFDNAME={device}/{name}\nFDPOLL=0"), &[fd.as_fd()])
    }

    fn remove(&self, device: &str, name: &str) {
        if let Err(error) = self.notifier.send(&format!("FDSTOREREMOVE=1\nFDNAME={device}/{name}"))
        {
            tracing::warn!(device, "\"{name}\" stays with who keeps it: {error}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, StoredDevice>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails unless `name` can be a part of a descriptor's name.
fn check(name: &str) -> io::Result<()> {
    let fits = !name.is_empty()
        && name.len() <= 100
        && name.chars().all(|letter| letter.is_ascii_graphic() && !":/".contains(letter));
    let refused =
        || io::Error::new(ErrorKind::InvalidInput, format!("\"{name}\" cannot name what is kept"));
    fits.then_some(()).ok_or_else(refused)
}

/// A sealed memory file of `value` as JSON.
pub(crate) fn write(value: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file =
        File::from(memfd_create("ring3d", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(file.into())
}

fn read(file: &OwnedFd) -> io::Result<Facts> {
    // Of its own position, which the next ring3d does not share.
    let mut bytes = Vec::new();
    let len = rustix::fs::fstat(file)?.st_size as u64;
    if len > MAX_FACTS {
        return Err(ErrorKind::InvalidData.into());
    }
    bytes.resize(len as usize, 0);
    let read = rustix::io::pread(file, &mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes[..read])?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hold::FdStore;

    /// Who keeps, as far as a store knows him.
    struct Keeper {
        _folder: tempfile::TempDir,
        socket: std::os::unix::net::UnixDatagram,
        notifier: std::path::PathBuf,
    }

    impl Keeper {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let notifier = folder.path().join("notify");
            let socket = std::os::unix::net::UnixDatagram::bind(&notifier).unwrap();
            socket.set_nonblocking(true).unwrap();
            Self { _folder: folder, socket, notifier }
        }

        fn store(
            &self,
            passed: Vec<(String, OwnedFd)>,
        ) -> (Store, BTreeMap<String, Record>, Vec<(String, OwnedFd)>) {
            Store::open(Notifier::to(self.notifier.as_os_str()).unwrap(), passed)
        }

        /// Keeps the first `most` messages that have come, and loses the others.
        fn shelf(&self, shelf: FdStore, most: usize) -> FdStore {
            let mut shelf = shelf;
            let mut done = 0;
            while let Some((message, fds)) = crate::hold::receive(&self.socket).unwrap() {
                if done < most {
                    shelf.take(&message, fds);
                }
                done += 1;
            }
            shelf
        }
    }

    fn memory(text: &str) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, text.as_bytes()).unwrap();
        file
    }

    fn text(fd: &OwnedFd) -> String {
        let mut bytes = [0; 16];
        let len = rustix::io::pread(fd, &mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn a_record_is_found_by_the_next_one_as_it_was_kept_last() {
        let keeper = Keeper::new();
        let (store, records, _) = keeper.store(Vec::new());
        assert!(store.is_there() && records.is_empty());
        let (device, irq) = (memory("device"), memory("irq"));
        store.keep("a", &json!(1), &[("device", &device), ("irq.0", &memory("old"))]).unwrap();
        store.keep("a", &json!(2), &[("device", &device), ("irq.1", &irq)]).unwrap();
        store.keep("b", &json!("b"), &[]).unwrap();
        let shelf = keeper.shelf(FdStore::default(), usize::MAX);
        assert_eq!(shelf.names(), "a/device:a/irq.1:a/facts.2:b/facts.1");
        let (next, mut records, _) = keeper.store(shelf.into_kept());
        let a = records.remove("a").unwrap();
        assert_eq!((a.facts, a.fds.len()), (json!(2), 2));
        assert_eq!(
            (text(&a.fds["device"]), text(&a.fds["irq.1"])),
            ("device".into(), "irq".into())
        );
        // What was kept already is not sent again.
        next.keep("a", &json!(3), &[("device", &device)]).unwrap();
        assert_eq!(keeper.shelf(FdStore::default(), usize::MAX).names(), "a/facts.3");
    }

    #[test]
    fn a_death_between_any_two_messages_leaves_the_old_record_or_the_new_one() {
        for most in 0..20 {
            let keeper = Keeper::new();
            let (store, ..) = keeper.store(Vec::new());
            let device = memory("device");
            store
                .keep("a", &json!("old"), &[("device", &device), ("irq.0", &memory("old"))])
                .unwrap();
            let shelf = keeper.shelf(FdStore::default(), usize::MAX);
            store
                .keep("a", &json!("new"), &[("device", &device), ("irq.1", &memory("new"))])
                .unwrap();
            let shelf = keeper.shelf(shelf, most);
            let (_, records, _) = keeper.store(shelf.into_kept());
            let found = (
                records["a"].facts.as_str().unwrap(),
                records["a"].fds.keys().next_back().unwrap().as_str(),
            );
            assert_eq!(found, if most < 2 { ("old", "irq.0") } else { ("new", "irq.1") }, "{most}");
            // What belongs to the other one is kept no longer.
            let removed = keeper.shelf(FdStore::default(), 0);
            assert_eq!(removed.names(), "");
        }
    }

    #[test]
    fn what_is_forgotten_or_incomplete_is_no_record_and_sockets_are_not_the_stores() {
        let keeper = Keeper::new();
        let (store, ..) = keeper.store(Vec::new());
        store.keep("a", &json!(1), &[("device", &memory("x"))]).unwrap();
        store.keep("b", &json!(1), &[("device", &memory("x"))]).unwrap();
        store.forget("a");
        let shelf = keeper.shelf(FdStore::default(), usize::MAX);
        let mut passed = shelf.into_kept();
        assert_eq!(passed.len(), 2);
        passed.retain(|(name, _)| name != "b/device");
        passed.push(("control".into(), memory("socket")));
        passed.push(("c/facts.1".into(), memory("{ no facts")));
        passed.push(("c/facts.x".into(), memory("")));
        let (_, records, others) = keeper.store(passed);
        assert!(records.is_empty() && others.len() == 1 && others[0].0 == "control");
    }

    #[test]
    fn a_record_of_more_descriptors_than_its_part_of_the_store_is_refused_and_the_last_one_stays() {
        let keeper = Keeper::new();
        let (store, ..) = keeper.store(Vec::new());
        let (names, memory) =
            ((0..MAX_KEPT).map(|number| format!("map.{number}")).collect::<Vec<_>>(), memory("x"));
        let of = |count: usize| {
            names[..count]
                .iter()
                .map(|name| (name.as_str(), &memory as &dyn AsFd))
                .collect::<Vec<_>>()
        };
        store.keep("a", &json!(1), &of(3)).unwrap();
        let refused = store.keep("a", &json!(2), &of(MAX_KEPT)).unwrap_err();
        assert!(refused.to_string().contains("1024"), "{refused}");
        let shelf = keeper.shelf(FdStore::default(), usize::MAX);
        let (_, records, _) = keeper.store(shelf.into_kept());
        assert_eq!((&records["a"].facts, records["a"].fds.len()), (&json!(1), 3));
    }

    #[test]
    fn a_name_that_cannot_be_sent_is_an_error_and_nobody_who_keeps_is_none() {
        let (store, ..) = Store::open(Notifier::silent(), Vec::new());
        assert!(!store.is_there());
        store.keep("a", &json!(1), &[("device", &memory("x"))]).unwrap();
        store.forget("a");
        for name in ["", "a/b", "a:b", "a b", "\u{e4}", "a\nFDSTOREREMOVE=1"] {
            assert_eq!(
                store.keep(name, &json!(1), &[]).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
    }
}
