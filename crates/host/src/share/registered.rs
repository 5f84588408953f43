//! Memory, from a client's descriptor to what queues know, and back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_broker::region;
use ring3_device::dma::{Dma, Region};
use ring3_export::ublk::{Memory, Regions};

use super::clients::Register;
use super::guard::Guard;
use super::merges::Merges;

/// A disk that memory is shared with.
pub(super) struct Disk {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Where its queues look.
    pub regions: Arc<Regions>,
    /// Its device.
    pub dma: Dma,
}

/// Registers memory with all disks of a process.
pub(super) struct Registrar {
    guard: Guard,
    disks: Vec<(Disk, Merges)>,
    /// Regions that are registered.
    count: usize,
}

/// A client's memory, for each disk in their order.
pub(super) struct Registered(Vec<Place>);

/// What one disk has of it.
struct Place {
    index: u16,
    memory: Arc<Memory>,
}

impl Registrar {
    pub fn new(guard: Guard, disks: Vec<Disk>) -> Self {
        let merges = |disk: Disk| {
            let merges = Merges::of(disk.id);
            (disk, merges)
        };
        Self { guard, disks: disks.into_iter().map(merges).collect(), count: 0 }
    }

    /// After the disks have gone: nothing is in flight, and the kernel has forgotten all.
    pub fn end(self, all: Vec<Registered>) -> Guard {
        all.iter().flat_map(|Registered(places)| places).for_each(|place| cut(&place.memory));
        self.guard
    }

    /// Mapped first: requests may come as soon as the kernel knows of it.
    fn add(&self, disk: &Disk, region: &Arc<Region>, (fd, bytes): (&OwnedFd, u64)) -> Result<Place, String> {
        let memory = Arc::new(Memory::map(&disk.dma, region.clone()).map_err(|error| error.to_string())?);
        let index = self.guard.register(disk.id, fd, bytes)?;
        disk.regions.insert(index, memory.clone());
        Ok(Place { index, memory })
    }

    fn forget(&self, Registered(places): Registered) {
        for (Place { index, memory }, (disk, _)) in places.into_iter().zip(&self.disks) {
            if let Err(reason) = self.guard.forget(disk.id, index) {
                tracing::error!("/dev/ublkb{}: a client's memory stays the device's: {reason}", disk.id);
                // Requests may lie there still.
                std::mem::forget(memory);
                continue;
            }
            disk.regions.remove(index);
            cut(&memory);
        }
    }
}

impl Register for Registrar {
    type Shared = Registered;

    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|(disk, _)| format!("/dev/ublkb{}", disk.id)).collect()
    }

    fn register(&mut self, fd: &OwnedFd, bytes: u64) -> Result<Registered, String> {
        let region = Arc::new(region::check(fd, bytes).map_err(|error| error.to_string())?);
        let mut registered = Registered(Vec::new());
        for (disk, _) in &self.disks {
            match self.add(disk, &region, (fd, bytes)) {
                Ok(place) => registered.0.push(place),
                Err(reason) => {
                    self.forget(registered);
                    return Err(explain(reason));
                }
            }
        }
        self.disks.iter_mut().for_each(|(_, merges)| merges.stop());
        self.count += 1;
        Ok(registered)
    }

    fn revoke(&mut self, registered: Registered) {
        self.forget(registered);
        self.count -= 1;
        if self.count == 0 {
            self.disks.iter_mut().for_each(|(_, merges)| merges.restore());
        }
    }
}

fn cut(memory: &Memory) {
    if let Err(error) = memory.cut() {
        tracing::error!(%error, "a client's memory stays mapped for the device");
    }
}

/// The kernel's word for memory that is registered already says little.
fn explain(reason: String) -> String {
    if reason.contains("os error 17") {
        format!("{reason}: the same memory is shared already, by this client or another")
    } else {
        reason
    }
}
