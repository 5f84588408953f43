//! Memory, from a client's descriptor to what queues know, and back.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring3_broker::region::{self, Register};
use ring3_device::dma::{Dma, Region};
use ring3_export::ublk::{Memory, Regions};

use super::guard::{Guard, Key};

/// A disk that memory is shared with.
pub(super) struct Disk {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Where its queues look.
    pub regions: Arc<Regions>,
    /// Its device.
    pub dma: Dma,
}

impl Disk {
    /// Lets the device reach `region`. Before the kernel knows of it: requests may come as soon as
    /// it does.
    fn map(&self, region: Arc<Region>) -> Result<Arc<Memory>, String> {
        Memory::map(&self.dma, region).map(Arc::new).map_err(|error| error.to_string())
    }

    /// Goes on with what the kernel calls `key` since a server before: its pages are pinned, and
    /// counted. What cannot be mapped any more (its client has made holes in huge pages, and there
    /// are no others) names no memory: requests that lie there end with errors, and nobody else's.
    pub fn adopt(&self, key: Key, memory: OwnedFd) -> Place {
        let mapped = Region::from_fd(memory)
            .map_err(|error| error.to_string())
            .and_then(|region| self.map(Arc::new(region)));
        let memory = mapped.inspect_err(|reason| {
            tracing::warn!(
                "/dev/ublkb{}: requests in the memory of one client end with errors, which cannot \
                be mapped any more: {reason}",
                key.id
            );
        });
        let memory = memory.ok();
        memory.iter().for_each(|memory| self.regions.insert(key.index, memory.clone()));
        Place { key, memory }
    }
}

/// Registers memory with all disks of a process.
pub(super) struct Registrar {
    guard: Guard,
    disks: Vec<Disk>,
}

/// A client's memory, for each disk.
pub(super) struct Registered(pub Vec<Place>);

/// What one disk has of it.
pub(super) struct Place {
    pub key: Key,
    /// `None` if it could not be mapped for this process.
    memory: Option<Arc<Memory>>,
}

impl Registrar {
    pub fn new(guard: Guard, disks: Vec<Disk>) -> Self {
        Self { guard, disks }
    }

    /// After the disks have gone: nothing is in flight, and the kernel has forgotten all.
    pub fn end(self, all: Vec<Registered>) -> Guard {
        all.iter().flat_map(|Registered(places)| places).for_each(cut);
        self.guard
    }

    fn add(
        &self,
        disk: &Disk,
        region: &Arc<Region>,
        (fd, bytes): (&OwnedFd, u64),
    ) -> Result<Place, String> {
        let memory = disk.map(region.clone())?;
        let key = self.guard.register(disk.id, fd, bytes)?;
        disk.regions.insert(key.index, memory.clone());
        Ok(Place { key, memory: Some(memory) })
    }

    fn forget(&self, place: Place) {
        let key = place.key;
        if let Err(reason) = self.guard.forget(key) {
            tracing::error!("/dev/ublkb{}: a client's memory stays the device's: {reason}", key.id);
            // Requests may lie there still.
            return std::mem::forget(place);
        }
        self.disks
            .iter()
            .filter(|disk| disk.id == key.id)
            .for_each(|disk| drop(disk.regions.remove(key.index)));
        cut(&place);
    }
}

impl Register for Registrar {
    type Shared = Registered;

    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|disk| format!("/dev/ublkb{}", disk.id)).collect()
    }

    fn register(&mut self, fd: &OwnedFd, bytes: u64) -> Result<Registered, String> {
        let region = Arc::new(region::check(fd, bytes).map_err(|error| error.to_string())?);
        let mut registered = Registered(Vec::new());
        for disk in &self.disks {
            match self.add(disk, &region, (fd, bytes)) {
                Ok(place) => registered.0.push(place),
                Err(reason) => {
                    self.revoke(registered);
                    return Err(explain(reason));
                }
            }
        }
        Ok(registered)
    }

    fn keep(&mut self, Registered(places): &Registered, client: BorrowedFd<'_>) {
        let keys = places.iter().map(|place| place.key).collect();
        if let Err(reason) = self.guard.keep(keys, client) {
            tracing::warn!(
                "a client will have to share its memory again if this process dies: {reason}"
            );
        }
    }

    fn revoke(&mut self, Registered(places): Registered) {
        places.into_iter().for_each(|place| self.forget(place));
    }
}

fn cut(place: &Place) {
    if let Some(Err(error)) = place.memory.as_ref().map(|memory| memory.cut()) {
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
