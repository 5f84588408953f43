//! The exported disks of one device, together.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_export::ublk::{self, Export, Stats};

use crate::Error;
use crate::report::Exported;

/// One disk and its export. The export comes first: it is dropped before the disk that it reads.
struct Served {
    export: Export,
    exported: Exported,
    began: Duration,
    _disk: Arc<dyn Disk>,
}

/// All exports of a device.
pub struct Disks(Vec<Served>);

impl Disks {
    /// Exports each disk; if one fails, those before it are stopped. With an id, disks get consecutive ones. They share the device's
    /// queues evenly. `since` is when the process began to claim the device.
    pub fn export(disks: Vec<Arc<dyn Disk>>, options: &ublk::Options, since: Instant) -> Result<Self, Error> {
        let mut served = Self(Vec::new());
        let count = disks.len().clamp(1, usize::from(u16::MAX)) as u16;
        for (disk, index) in disks.into_iter().zip(0..) {
            let began = since.elapsed();
            let queues = options.queues.min(disk.max_queues() / count).max(1);
            let options = ublk::Options { id: options.id.map(|id| id + index), queues, ..*options };
            let export = Export::start(&*disk, &options)?;
            let exported = Exported::new(&export, &*disk);
            served.0.push(Served { export, exported, began, _disk: disk });
        }
        Ok(served)
    }

    /// What is exported.
    pub fn exported(&self) -> impl Iterator<Item = &Exported> {
        self.0.iter().map(|served| &served.exported)
    }

    /// Each becomes readable when an export has ended that was not stopped.
    pub fn ended(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().filter(|served| served.export.is_running()).map(|served| served.export.ended()).collect()
    }

    /// Why an export has ended by itself.
    pub fn failure(&mut self) -> Option<Error> {
        self.0.iter_mut().find_map(|served| served.export.failure()).map(Error::from)
    }

    /// What each has done so far, and when it began to start.
    pub fn stats(&self) -> Vec<(Exported, Duration, Stats)> {
        self.0.iter().map(|served| (served.exported.clone(), served.began, served.export.stats())).collect()
    }

    /// Stops those that nobody uses, or all by `force`; the first error is of one that is still there. The stopped ones are kept
    /// for their figures.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        let mut result = Ok(());
        for served in self.0.iter_mut().filter(|served| served.export.is_running()) {
            let stopped = served.export.stop(force).map_err(Error::from);
            result = result.and(stopped);
        }
        result
    }
}
