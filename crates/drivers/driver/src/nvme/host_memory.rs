//! Host memory buffer: memory of the host that the controller has for itself. [NVMe 8.2.3]
//!
//! Drives without memory of their own keep their mapping of blocks there. Without the buffer they
//! read a part of the mapping from flash for most random requests.
//!
//! # Ownership
//! The memory is the controller's from Set Features with EHM = 1 until the completion of one with
//! EHM = 0, or until the controller is stopped. The driver does not touch it meanwhile. It belongs
//! to the [admin queue](super::admin), so it is given back, left to the next process or abandoned
//! where the queue's own memory is.
//!
//! After a reset the controller has no buffer: it gets the same one again, with MR = 1, because
//! nobody has written to it.
//!
//! # Size
//! What a controller asks for may be anything. It gets as much as it prefers (HMPRE), at most
//! [`Options::host_memory`](super::Options::host_memory), and less where the machine has less. One
//! that would get less than its minimum (HMMIN) gets none: it must work without. [NVMe 8.2.3]
//!
//! The buffer is one piece of device addresses, so the most pieces (HMMAXD) are never a limit.

use std::time::Duration;

use ring3_device::dma::{Claims, DmaBuffer, Span};
use ring3_device::{Device, Error};
use ring3_spec::nvme::feature::{self, HostMemoryAttributes, HostMemoryDescriptor};
use ring3_spec::nvme::{Submission, identify};
use serde::{Deserialize, Serialize};

use super::admin::Admin;

/// The unit of what a controller asks for. [NVMe 5.1.13.2.1, HMPRE]
const UNIT: u64 = 4096;
/// A smaller buffer than this is not worth its commands, unless the controller asks for no more.
const LEAST: u64 = 256 << 10;

/// What a controller asks for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    /// HMPRE; 0 is none.
    pub(super) preferred: u64,
    /// HMMIN.
    pub(super) minimum: u64,
    /// HMMINDS.
    smallest_piece: u64,
}

/// The host memory buffer of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes that the controller prefers (HMPRE); 0 if it has no use for memory of the host.
    pub preferred: u64,
    /// Bytes below which it has no use for it (HMMIN).
    pub minimum: u64,
    /// Bytes that it has.
    pub given: u64,
}

/// The memory of the buffer.
pub(super) struct Lent {
    buffer: DmaBuffer,
    /// Its one descriptor.
    list: DmaBuffer,
    /// Bytes of a memory page (CC.MPS).
    page: u64,
    /// The controller had it before.
    used: bool,
}

/// See [`Lent`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedHostMemory {
    buffer: Span,
    list: Span,
}

impl Wanted {
    pub(super) fn of(controller: &identify::Controller) -> Self {
        let bytes = |units: u32| u64::from(units) * UNIT;
        Self {
            preferred: bytes(controller.host_memory_preferred()),
            minimum: bytes(controller.host_memory_minimum()),
            smallest_piece: bytes(controller.host_memory_smallest_piece()),
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.preferred == 0
    }

    /// Most and least bytes of a buffer of whole `page`s for a controller that may have `limit`
    /// bytes; in words why it gets none.
    fn bounds(self, limit: u64, page: u64) -> Result<(u64, u64), String> {
        let Self { preferred, minimum, smallest_piece } = self;
        if minimum.max(smallest_piece) > preferred {
            let needs = minimum.max(smallest_piece) >> 10;
            return Err(format!(
                "it says that it needs {needs} KiB at least (HMMIN, HMMINDS) and prefers {} KiB \
                (HMPRE)",
                preferred >> 10
            ));
        }
        let most = preferred.min(limit) / page * page;
        let least = minimum.max(smallest_piece).max(page).next_multiple_of(page);
        if most < least {
            return Err(format!(
                "it needs {} KiB at least, and may have {} KiB (--hmb)",
                least >> 10,
                limit >> 10
            ));
        }
        Ok((most, least.max(LEAST.min(most))))
    }
}

impl Lent {
    /// Memory for a controller that asks for `wanted` and may have `limit` bytes, if it gets any.
    /// What it does not get is said, as it costs speed alone.
    pub(super) fn allocate(
        device: &dyn Device,
        wanted: Wanted,
        limit: u64,
        page: u64,
    ) -> Option<Self> {
        if wanted.is_nothing() || limit == 0 {
            return None;
        }
        let name = device.name();
        let none = |why: &dyn std::fmt::Display| {
            tracing::warn!("{name}: the controller gets no memory of the host: {why}");
        };
        let (most, least) = wanted.bounds(limit, page).inspect_err(|why| none(why)).ok()?;
        let mut size = most;
        let buffer = loop {
            match device.dma().alloc_region(size as usize) {
                Ok(buffer) => break buffer,
                // Memory, its addresses or what may be locked of it is short: the half of it may be
                // there.
                Err(error) if size / 2 < least || matches!(error, Error::Unsupported(_)) => {
                    none(&error);
                    return None;
                }
                Err(_) => size = size / 2 / page * page,
            }
        };
        let lent = Self::over(device, buffer.tagged("nvme host memory"), page);
        let lent = lent.inspect_err(|why| none(why)).ok()?;
        let (given, preferred) = (lent.len() >> 10, wanted.preferred >> 10);
        tracing::info!(
            "{name}: the controller gets {given} KiB of memory of the host, of {preferred} KiB \
            that it prefers"
        );
        Some(lent)
    }

    fn over(device: &dyn Device, buffer: DmaBuffer, page: u64) -> Result<Self, Error> {
        if !buffer.iova().is_multiple_of(page) {
            return Err(Error::Unsupported(
                "no device addresses are free that begin with one of its memory pages".into(),
            ));
        }
        let list = device
            .dma()
            .arena()
            .alloc(HostMemoryDescriptor::SIZE, HostMemoryDescriptor::SIZE)?
            .tagged("nvme host memory list");
        list.write(0, &Self::descriptor(&buffer, page).0)?;
        Ok(Self { buffer, list, page, used: false })
    }

    fn descriptor(buffer: &DmaBuffer, page: u64) -> HostMemoryDescriptor {
        let mut descriptor = HostMemoryDescriptor::zeroed();
        // At most 4 GiB, so that the pages fit.
        descriptor.set_address(buffer.iova()).set_pages((buffer.len() as u64 / page) as u32);
        descriptor
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.buffer.len() as u64
    }

    fn pages(&self) -> u32 {
        (self.len() / self.page) as u32
    }

    /// Gives the memory up, because the device may still write to it.
    pub(super) fn abandon(&mut self) {
        self.buffer.abandon();
        self.list.abandon();
    }

    /// Releases it to the next process; it stays allocated.
    pub(super) fn release_to_successor(&mut self) {
        self.buffer.release_to_successor();
        self.list.release_to_successor();
    }

    pub(super) fn saved(&self) -> SavedHostMemory {
        SavedHostMemory { buffer: self.buffer.span(), list: self.list.span() }
    }
}

impl SavedHostMemory {
    /// The memory, which the controller has. Its descriptor is looked at, too: after a reset it is
    /// given to the controller again.
    pub(super) fn claim(&self, claims: &mut Claims, page: u64) -> Result<Lent, Error> {
        let (buffer, list) = (claims.claim(self.buffer)?, claims.claim(self.list)?);
        let mut found = [0; HostMemoryDescriptor::SIZE];
        let fits = buffer.iova().is_multiple_of(page)
            && (buffer.len() as u64).is_multiple_of(page)
            && list.read(0, &mut found).is_ok()
            && found == Lent::descriptor(&buffer, page).0;
        if !fits {
            return Err(Error::Invalid(
                "the saved state of the controller's memory is none of this driver's; open the \
                device anew"
                    .into(),
            ));
        }
        Ok(Lent { buffer, list, page, used: true })
    }
}

impl Admin {
    /// Has the controller use its memory, if there is any. It has none now: it was just started.
    pub(super) fn give_host_memory(&mut self) -> Result<(), Error> {
        let Some(Lent { used, .. }) = self.host_memory else { return Ok(()) };
        let returned = if used { feature::HOST_MEMORY_RETURNED } else { 0 };
        let mut end = self.set_host_memory(feature::HOST_MEMORY_ENABLED | returned)?;
        if used && end.is_err() {
            // Its contents are of no use to it any more.
            end = self.set_host_memory(feature::HOST_MEMORY_ENABLED)?;
        }
        match (end, &mut self.host_memory) {
            (Ok(_), Some(lent)) => lent.used = true,
            (Err(status), lent) => {
                tracing::warn!("the controller refuses memory of the host: {status}");
                *lent = None;
            }
            (Ok(_), None) => {}
        }
        Ok(())
    }

    fn set_host_memory(
        &mut self,
        value: u32,
    ) -> Result<Result<u32, ring3_spec::nvme::Status>, Error> {
        let Some(lent) = &self.host_memory else { return Ok(Ok(0)) };
        self.execute(Submission::set_host_memory(value, lent.pages(), lent.list.iova(), 1))
    }

    /// Has the controller use its memory no more, before it is shut down. One that does not answer
    /// within `limit` still has it until it is stopped, which is proved later.
    pub(super) fn end_host_memory(&mut self, limit: Duration) {
        if self.host_memory.is_none() {
            return;
        }
        match self.execute_within(Submission::set_host_memory(0, 0, 0, 0), limit) {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => tracing::warn!("the controller keeps memory of the host: {status}"),
            Err(error) => tracing::warn!("the controller keeps memory of the host: {error}"),
        }
    }

    /// Fails unless the controller, which says that it is to have memory of the host or not, has
    /// that which is known here: a process that was killed has said so.
    pub(super) fn check_host_memory(&mut self, limit: Duration) -> Result<(), Error> {
        let command = Submission::get_feature(feature::HOST_MEMORY).with_data(self.page.iova(), 0);
        self.page.fill(0);
        let value = self.execute_within(command, limit)?.map_err(|status| {
            Error::Fatal(format!("it does not say what memory it has: {status}"))
        })?;
        let mut found = HostMemoryAttributes::zeroed();
        self.page.read(0, &mut found.0)?;
        let has = (value & feature::HOST_MEMORY_ENABLED != 0)
            .then(|| (found.pages(), found.list(), found.entries()));
        let known = self.host_memory.as_ref().map(|lent| (lent.pages(), lent.list.iova(), 1));
        if has == known {
            return Ok(());
        }
        Err(Error::Fatal("it has other memory of the host than its driver had recorded".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn bounds(mib: [u64; 3], limit: u64, page: u64) -> Result<(u64, u64), String> {
        let [preferred, minimum, smallest_piece] = mib.map(|mib| mib * MIB);
        Wanted { preferred, minimum, smallest_piece }.bounds(limit * MIB, page)
    }

    #[test]
    fn a_controller_gets_what_it_prefers_within_the_limit_and_no_less_than_its_minimum() {
        assert_eq!(bounds([64, 0, 0], 128, 4096), Ok((64 * MIB, LEAST)));
        assert_eq!(bounds([64, 16, 0], 32, 4096), Ok((32 * MIB, 16 * MIB)));
        assert_eq!(bounds([64, 16, 20], 32, 4096), Ok((32 * MIB, 20 * MIB)));
    }

    #[test]
    fn a_controller_whose_minimum_is_above_the_limit_gets_nothing_and_the_reason() {
        let why = bounds([256, 200, 0], 128, 4096).unwrap_err();
        assert!(why.contains("204800 KiB") && why.contains("131072 KiB (--hmb)"), "{why}");
    }

    #[test]
    fn a_minimum_above_what_is_preferred_makes_no_sense() {
        for wanted in [[16, 32, 0], [16, 0, 32]] {
            assert!(bounds(wanted, 128, 4096).unwrap_err().contains("HMMIN, HMMINDS"));
        }
    }

    #[test]
    fn the_greatest_wishes_are_bounded_and_the_smallest_are_whole_pages() {
        let units = |units: u32| u64::from(units) * UNIT;
        let all = Wanted {
            preferred: units(u32::MAX),
            minimum: units(u32::MAX),
            smallest_piece: units(u32::MAX),
        };
        assert!(all.bounds(128 * MIB, 4096).is_err());
        let much = Wanted { minimum: 0, smallest_piece: 0, ..all };
        assert_eq!(much.bounds(128 * MIB, 4096), Ok((128 * MIB, LEAST)));
        let small = Wanted { preferred: UNIT, ..Wanted::default() };
        assert_eq!(small.bounds(128 * MIB, 4096), Ok((UNIT, UNIT)));
        assert!(small.bounds(128 * MIB, 65536).is_err());
    }
}
