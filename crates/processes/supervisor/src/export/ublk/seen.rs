//! How users' disks do, as sysfs shows it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use ring3_control::status::DiskStatus;

use super::{Disk, SECTOR, SavedExport};
use crate::export::lent::{Saved, Table};
use crate::export::partitions::{Refused, Watch};
use crate::export::{StatusSource, links};

/// What sysfs shows of started disks.
pub(super) struct Disks {
    pub(super) disks: Vec<Seen>,
    pub(super) lent: Arc<Table>,
}

pub(super) struct Seen {
    id: u32,
    path: PathBuf,
    link: Option<PathBuf>,
    bytes: u64,
    name: String,
    block: u32,
    queues: u16,
    refused: Refused,
    /// Its partition table was read; `None` if nobody reads it.
    was_read: Option<Arc<AtomicBool>>,
    /// The kernel's counts of requests, which are looked at every second and so stay open.
    in_flight: OnceLock<File>,
    stat: OnceLock<File>,
}

impl Seen {
    pub(super) fn of(disk: &Disk) -> Self {
        let refused = disk.partitions.as_ref().map(Watch::refused).unwrap_or_default();
        Self {
            id: disk.device.id(),
            path: disk.device.path(),
            link: disk.link.clone(),
            bytes: disk.bytes,
            name: disk.name.clone(),
            block: disk.block,
            queues: disk.device.queues(),
            refused,
            was_read: disk.partitions.as_ref().map(Watch::was_read),
            in_flight: OnceLock::new(),
            stat: OnceLock::new(),
        }
    }

    fn file(&self, name: &str) -> String {
        format!("/sys/block/ublkb{}/{name}", self.id)
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        let text = fs::read_to_string(self.file(name)).unwrap_or_default();
        text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
    }

    /// Reads and writes. [Linux, Documentation/ABI/stable/sysfs-block]
    fn in_flight(&self) -> u64 {
        numbers_in(&self.in_flight, &self.file("inflight")).iter().sum()
    }

    /// Reads, writes, discards and flushes that have ended. [Linux, Documentation/block/stat.rst]
    fn ended(&self) -> u64 {
        let stat = numbers_in(&self.stat, &self.file("stat"));
        [0, 4, 11, 15]
            .iter()
            .filter_map(|&at| stat.get(at))
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

/// The numbers in the file at `path`, which stays open.
fn numbers_in(open: &OnceLock<File>, path: &str) -> Vec<u64> {
    if open.get().is_none() {
        // What is not there yet is looked for again.
        let _ = File::open(path).map(|file| open.set(file));
    }
    let mut bytes = [0; 512];
    let len = open.get().and_then(|file| file.read_at(&mut bytes, 0).ok()).unwrap_or(0);
    let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
    text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
}

impl StatusSource for Disks {
    fn saved(&self) -> serde_json::Value {
        let ids: Vec<_> = self.disks.iter().map(|disk| disk.id).collect();
        match self.lent.saved() {
            none if none == Saved::default() => ids.into(),
            lent => serde_json::to_value(SavedExport { ids, lent }).unwrap_or_default(),
        }
    }

    fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        self.lent.descriptors()
    }

    fn is_settled(&self) -> bool {
        let mut tables = self.disks.iter().filter_map(|disk| disk.was_read.as_ref());
        tables.all(|was_read| was_read.load(Ordering::Acquire))
    }

    fn in_flight(&self) -> u64 {
        self.disks.iter().map(Seen::in_flight).sum()
    }

    fn ended(&self) -> Option<u64> {
        Some(self.disks.iter().map(Seen::ended).fold(0, u64::wrapping_add))
    }

    fn disks(&self) -> Vec<DiskStatus> {
        let status = |disk: &Seen| {
            // [Linux, Documentation/block/stat.rst]
            let stat = disk.numbers("stat");
            let get = |index: usize| stat.get(index).copied().unwrap_or(0);
            DiskStatus {
                path: disk.path.display().to_string(),
                link: disk.link.as_ref().map(|link| link.display().to_string()),
                bytes: disk.bytes,
                disk: disk.name.clone(),
                block_size: disk.block,
                queues: disk.queues,
                reads: get(0),
                writes: get(4),
                bytes_read: get(2) * SECTOR,
                bytes_written: get(6) * SECTOR,
                io_ms: get(3) + get(7),
                in_flight: get(8),
                errors: 0,
                partitions: links::partitions(&format!("ublkb{}", disk.id)),
                table: disk.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }
        };
        self.disks.iter().map(status).collect()
    }
}
