//! The exported disks of one device, together.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_export::ublk::{self, Stats};
use ring3_export::vduse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::report::Exported;

/// What the disks become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskExportKind {
    /// ublk's block devices.
    #[default]
    Ublk,
    /// VDUSE's virtio disks, by devices of that name; `NAME-1` and so on from the second on.
    /// Without one, of whatever names are free.
    Vduse(Option<String>),
}

impl DiskExportKind {
    /// Fails if the kernel does not have it, or not for this process.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Ublk => ublk::Control::open().map(drop)?,
            Self::Vduse(_) => vduse::check().map_err(ublk::Error::from)?,
        }
        Ok(())
    }

    /// Of the disk `place`.
    fn name(&self, place: usize) -> Option<String> {
        let Self::Vduse(Some(name)) = self else { return None };
        Some(if place == 0 { name.clone() } else { format!("{name}-{place}") })
    }
}

/// An export of either way.
pub enum DiskExport {
    /// By ublk.
    Ublk(Box<ublk::UblkExport>),
    /// By VDUSE.
    Vduse(Box<vduse::VduseExport>),
}

/// The same of both.
macro_rules! either {
    ($export:expr, $one:ident => $said:expr) => {
        match $export {
            DiskExport::Ublk($one) => $said,
            DiskExport::Vduse($one) => $said,
        }
    };
}

impl DiskExport {
    fn start(
        disk: &dyn Disk,
        (way, place): (&DiskExportKind, usize),
        options: &ublk::Options,
    ) -> Result<Self, ublk::Error> {
        match way {
            DiskExportKind::Ublk => {
                ublk::UblkExport::start(disk, options).map(Box::new).map(Self::Ublk)
            }
            DiskExportKind::Vduse(_) => {
                vduse::VduseExport::start(disk, way.name(place).as_deref(), options)
                    .map(Box::new)
                    .map(Self::Vduse)
            }
        }
    }

    /// Its block device.
    pub fn path(&self) -> PathBuf {
        either!(self, export => export.path())
    }

    /// ublk's number.
    pub fn id(&self) -> Option<u32> {
        if let Self::Ublk(export) = self { Some(export.id()) } else { None }
    }

    /// VDUSE's name.
    pub fn name(&self) -> Option<String> {
        if let Self::Vduse(export) = self { Some(export.name().into()) } else { None }
    }

    /// Queues, and so threads.
    pub fn queues(&self) -> usize {
        either!(self, export => export.queues())
    }

    fn is_running(&self) -> bool {
        either!(self, export => export.is_running())
    }

    fn ended(&self) -> BorrowedFd<'_> {
        either!(self, export => export.ended())
    }

    fn failure(&mut self) -> Option<ublk::Error> {
        either!(self, export => export.failure())
    }

    fn stats(&self) -> Stats {
        either!(self, export => export.stats())
    }

    fn refuse(&mut self) {
        either!(self, export => export.refuse())
    }

    fn stop(&mut self, force: bool) -> Result<(), ublk::Error> {
        either!(self, export => export.stop(force))
    }
}

/// One disk and its export. The export comes first: it is dropped before the disk that it reads.
struct ExportedDisk {
    export: DiskExport,
    exported: Exported,
    began: Duration,
    _disk: Arc<dyn Disk>,
}

/// All exports of a device.
pub struct Disks {
    served: Vec<ExportedDisk>,
    /// Why one that has stopped did not stop well; said when all are stopped.
    failed: Option<Error>,
}

impl Disks {
    /// Exports each disk; if one fails, those before it are stopped. With an id, disks get
    /// consecutive ones. They share the device's queues evenly. `since` is when the process began
    /// to claim the device.
    pub fn export(
        disks: Vec<Arc<dyn Disk>>,
        (way, options): (&DiskExportKind, &ublk::Options),
        since: Instant,
    ) -> Result<Self, Error> {
        let mut served = Self { served: Vec::new(), failed: None };
        let ids = ids(options.id, disks.len())?;
        let count = disks.len().clamp(1, usize::from(u16::MAX)) as u16;
        for (place, (disk, id)) in disks.into_iter().zip(ids).enumerate() {
            let began = since.elapsed();
            let queues = options.queues.min(disk.max_queues() / count).max(1);
            let options = ublk::Options { id, queues, ..*options };
            let export = DiskExport::start(&*disk, (way, place), &options)?;
            let exported = Exported::new(&export, &*disk);
            served.served.push(ExportedDisk { export, exported, began, _disk: disk });
        }
        Ok(served)
    }

    /// What is exported.
    pub fn exported(&self) -> impl Iterator<Item = &Exported> {
        self.served.iter().map(|served| &served.exported)
    }

    /// Each becomes readable when an export has ended that was not stopped.
    pub fn ended(&self) -> Vec<BorrowedFd<'_>> {
        self.served
            .iter()
            .filter(|served| served.export.is_running())
            .map(|served| served.export.ended())
            .collect()
    }

    /// Whether any is served.
    pub fn is_running(&self) -> bool {
        self.served.iter().any(|served| served.export.is_running())
    }

    /// Why one of them, also of those that were stopped, has failed since that was last asked.
    pub fn failure(&mut self) -> Option<Error> {
        self.served.iter_mut().find_map(|served| served.export.failure()).map(Error::from)
    }

    /// Takes those away that have ended by themselves, or whose driver has lost its device; and why
    /// they have, unless somebody else has stopped them.
    pub fn take_ended(&mut self) -> Result<Vec<Error>, Error> {
        let mut failures = Vec::new();
        for served in self
            .served
            .iter_mut()
            .filter(|served| served.export.is_running() && has_ended(&served.export))
        {
            let failure = served.export.failure();
            let stopped = served.export.stop(true);
            if served.export.is_running() {
                stopped?;
                continue;
            }
            failures.extend(failure.or(stopped.err()).map(Error::from));
        }
        Ok(failures)
    }

    /// What each has done so far, and when it began to start.
    pub fn stats(&self) -> Vec<(Exported, Duration, Stats)> {
        self.served
            .iter()
            .map(|served| (served.exported.clone(), served.began, served.export.stats()))
            .collect()
    }

    /// Stops those that nobody uses, or all by `force`. [`ublk::Error::Busy`] is of one that is
    /// still there, and then it can be tried again; any other error is said when all are stopped.
    /// The stopped ones are kept for their figures.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        if force {
            // All at once, so that their users' time runs out at once.
            self.served
                .iter_mut()
                .filter(|served| served.export.is_running())
                .for_each(|served| served.export.refuse());
        }
        let mut busy = Ok(());
        for served in self.served.iter_mut().filter(|served| served.export.is_running()) {
            match served.export.stop(force) {
                Ok(()) => {}
                Err(error @ ublk::Error::Busy { .. }) => busy = busy.and(Err(error.into())),
                Err(error) => self.failed = self.failed.take().or(Some(error.into())),
            }
        }
        busy.and_then(|()| self.failed.take().map_or(Ok(()), Err))
    }
}

/// The numbers of `count` disks that begin with `first`, or the kernel's choice for each.
fn ids(first: Option<u32>, count: usize) -> Result<Vec<Option<u32>>, Error> {
    let Some(first) = first else { return Ok(vec![None; count]) };
    let last = u64::from(first) + (count as u64).saturating_sub(1);
    match u32::try_from(last).ok().filter(|&last| last <= ublk::MAX_ID) {
        Some(last) => Ok((first..=last).map(Some).collect()),
        None => Err(ublk::Error::Id { id: last }.into()),
    }
}

fn has_ended(export: &DiskExport) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(export.ended(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_disks_the_first_has_the_name_and_the_others_a_number_behind_it() {
        let way = DiskExportKind::Vduse(Some("data".into()));
        assert_eq!((way.name(0).unwrap(), way.name(1).unwrap()), ("data".into(), "data-1".into()));
        assert_eq!(
            (DiskExportKind::Vduse(None).name(0), DiskExportKind::Ublk.name(1)),
            (None, None)
        );
    }

    #[test]
    fn disks_get_consecutive_numbers_or_the_kernels_choice() {
        assert_eq!(ids(Some(5), 3).unwrap(), [Some(5), Some(6), Some(7)]);
        assert_eq!(ids(None, 2).unwrap(), [None, None]);
        assert_eq!(ids(Some(ublk::MAX_ID), 1).unwrap(), [Some(ublk::MAX_ID)]);
    }

    #[test]
    fn numbers_beyond_the_kernels_largest_are_refused_with_the_range_before_anything_is_exported() {
        for (first, count) in [(u32::MAX, 1), (u32::MAX, 3), (ublk::MAX_ID, 2)] {
            let error = ids(Some(first), count).unwrap_err().to_string();
            assert!(error.contains("0 to 1048575"), "{error}");
        }
    }
}
