//! The host memory buffer: the mapping of blocks that a drive without memory of its own keeps in
//! memory of the host. [NVMe 8.2.3]
//!
//! The mapping is divided into pages of 4096 bytes, each of which is about [`COVERED`] bytes of the
//! medium. A read whose page is not there costs a read of the flash. The model writes each page
//! into the buffer when it is first needed, and looks at its first and last bytes when it is needed
//! again: a host that has changed or unmapped the memory has broken a rule.
//!
//! Without a buffer there is room for one page.

use std::time::Duration;

use ring3_spec::nvme::feature::{self, HostMemoryAttributes, HostMemoryDescriptor};
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use super::prp;
use crate::Bus;
use crate::violations::Violations;

/// Bytes of the medium that a page of the mapping is about: 1024 entries of 4 bytes, each of a unit
/// of 4096 bytes.
const COVERED: u64 = 4 << 20;
/// Bytes of a page of the mapping.
const PAGE: u64 = 4096;
/// Pieces of a buffer that the model takes.
pub(super) const MOST_PIECES: u16 = 64;

/// What a controller asks for of the host, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// HMPRE, a multiple of 4096; 0 is none.
    pub preferred: u64,
    /// HMMIN, likewise.
    pub minimum: u64,
    /// HMMINDS, likewise.
    pub smallest_piece: u64,
    /// HMMAXD; 0 is no limit.
    pub pieces: u16,
    /// What a read costs whose page of the mapping is not there.
    pub miss: Duration,
}

/// What became of reads and of the buffer, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostMemoryCounters {
    /// Bytes of the buffer now.
    pub bytes: u64,
    /// Buffers that it got.
    pub enabled: u64,
    /// Of these, buffers that it had before (MR).
    pub returned: u64,
    /// Buffers that the host has taken back before it stopped the controller.
    pub disabled: u64,
    /// Reads that found their page of the mapping.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
}

/// A buffer that the host has described.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Buffer {
    pages: u32,
    list: u64,
    /// Addresses and bytes of its pieces.
    pieces: Vec<(u64, u64)>,
}

/// The mapping of blocks, and the memory that it is in.
#[derive(Default)]
pub(super) struct Mapping {
    pub(super) counters: HostMemoryCounters,
    buffer: Option<Buffer>,
    /// The buffer before the last reset.
    before: Option<Buffer>,
    /// Which page is in which place of the buffer, with a number that no other writing of it has.
    places: Vec<Option<(u64, u64)>>,
    /// Pages that were written to the buffer.
    written: u64,
    /// The page that is in the controller.
    own: Option<u64>,
}

impl Buffer {
    /// The address of place `place`.
    fn at(&self, place: u64) -> Option<u64> {
        let mut offset = place * PAGE;
        for &(address, bytes) in &self.pieces {
            if offset + PAGE <= bytes {
                return Some(address + offset);
            }
            offset = offset.checked_sub(bytes)?;
        }
        None
    }
}

impl Mapping {
    /// The controller is stopped: it has no buffer until it gets one.
    pub(super) fn stop(&mut self) {
        self.before = self.buffer.take().or(self.before.take());
        (self.own, self.counters.bytes) = (None, 0);
    }

    /// The power was gone: what is in the buffer is of no use, if it comes back.
    pub(super) fn lose_power(&mut self) {
        self.stop();
        self.places.fill(None);
    }

    /// Whether a read at byte `at` of namespace `namespace` misses its page of the mapping.
    fn misses(&mut self, bus: &Bus, violations: &mut Violations, namespace: u32, at: u64) -> bool {
        let page = (u64::from(namespace) << 40) | (at / COVERED);
        let hit = match &self.buffer {
            None => self.own.replace(page) == Some(page),
            Some(buffer) => {
                let count = self.places.len() as u64;
                // So that pages of two namespaces do not meet in one place.
                let place = (page ^ u64::from(namespace).wrapping_mul(0x9e37)) % count;
                // Of pieces that do not hold whole pages of the mapping, the last ones are unused.
                let address = buffer.at(place);
                match (self.places[place as usize], address) {
                    (Some((there, number)), Some(address)) if there == page => {
                        self.look(bus, violations, address, [page, number])
                    }
                    (_, Some(address)) => {
                        self.written += 1;
                        let number = self.written;
                        self.places[place as usize] = Some((page, number));
                        write(bus, violations, address, [page, number]);
                        false
                    }
                    (_, None) => false,
                }
            }
        };
        let counter = if hit { &mut self.counters.hits } else { &mut self.counters.misses };
        *counter += 1;
        !hit
    }

    /// Whether a page of the mapping is as it was written.
    fn look(&self, bus: &Bus, violations: &mut Violations, address: u64, words: [u64; 2]) -> bool {
        let [first, last] = [address, address + PAGE - 8].map(|at| bus.load(at));
        match (first, last) {
            (Ok(first), Ok(last)) if [first, last] == words => true,
            (Ok(_), Ok(_)) => {
                violations.add(format!(
                    "the page at {address:#x} of the host memory buffer was changed while the \
                    controller had it [NVMe 8.2.3]"
                ));
                false
            }
            _ => {
                violations.add(unmapped(address));
                false
            }
        }
    }
}

/// Writes a page of the mapping.
fn write(bus: &Bus, violations: &mut Violations, address: u64, words: [u64; 2]) {
    let places = [address, address + PAGE - 8];
    if places.into_iter().zip(words).any(|(at, word)| bus.store(at, word).is_err()) {
        violations.add(unmapped(address));
    }
}

fn unmapped(address: u64) -> String {
    format!(
        "the page at {address:#x} of the host memory buffer was taken away while the controller \
        had it [NVMe 8.2.3]"
    )
}

impl NvmeModel {
    /// What reading the mapping costs a command, if it is a read.
    pub(super) fn mapping_cost(&mut self, bus: &Bus, command: &Submission) -> Duration {
        let Some(namespace) = self.namespaces.get(command.namespace().wrapping_sub(1) as usize)
        else {
            return Duration::ZERO;
        };
        let at = command.lba().wrapping_shl(namespace.shape.block_shift);
        let missed = self.mapping.misses(bus, &mut self.violations, command.namespace(), at);
        if missed { self.shape.host_memory.miss } else { Duration::ZERO }
    }

    /// Set features, host memory buffer. [NVMe 5.1.25.2.4]
    pub(super) fn set_host_memory(
        &mut self,
        bus: &Bus,
        command: &Submission,
    ) -> Result<(), Status> {
        let value = command.feature_value();
        if value & feature::HOST_MEMORY_ENABLED == 0 {
            self.mapping.counters.disabled += u64::from(self.mapping.buffer.is_some());
            self.mapping.stop();
            return Ok(());
        }
        if self.mapping.buffer.is_some() {
            return Err(Status::SEQUENCE.with_do_not_retry());
        }
        let buffer = self.described(bus, command)?;
        let returned = value & feature::HOST_MEMORY_RETURNED != 0;
        let before = self.mapping.before.take();
        if returned && before.as_ref() != Some(&buffer) {
            self.violations.add(
                "memory was returned to the controller that it did not have before (MR) [NVMe \
                5.1.25.2.4]"
                    .into(),
            );
        }
        let bytes = u64::from(buffer.pages) * self.page();
        let mapping = &mut self.mapping;
        if !returned || before.as_ref() != Some(&buffer) {
            mapping.places = vec![None; (bytes / PAGE) as usize];
        }
        mapping.counters.bytes = bytes;
        mapping.counters.enabled += 1;
        mapping.counters.returned += u64::from(returned);
        mapping.buffer = Some(buffer);
        Ok(())
    }

    /// The buffer that a command describes.
    fn described(&self, bus: &Bus, command: &Submission) -> Result<Buffer, Status> {
        let invalid = Status::INVALID_FIELD.with_do_not_retry();
        let (pages, list, entries) = command.host_memory();
        let (wanted, page) = (self.shape.host_memory, self.page());
        let most = if wanted.pieces == 0 { MOST_PIECES } else { wanted.pieces };
        if pages == 0 || !(1..=u32::from(most)).contains(&entries) || !list.is_multiple_of(16) {
            return Err(invalid);
        }
        let mut pieces = Vec::new();
        for entry in 0..u64::from(entries) {
            let mut descriptor = HostMemoryDescriptor::zeroed();
            bus.read(list + entry * HostMemoryDescriptor::SIZE as u64, &mut descriptor.0)
                .map_err(|_| Status::DATA_TRANSFER)?;
            let bytes = u64::from(descriptor.pages()) * page;
            if !descriptor.address().is_multiple_of(page) || bytes < wanted.smallest_piece.max(1) {
                return Err(invalid);
            }
            pieces.push((descriptor.address(), bytes));
        }
        let bytes = u64::from(pages) * page;
        if pieces.iter().map(|(_, bytes)| bytes).sum::<u64>() != bytes || bytes < wanted.minimum {
            return Err(invalid);
        }
        Ok(Buffer { pages, list, pieces })
    }

    /// Get features, host memory buffer. [NVMe 5.1.25.2.4]
    pub(super) fn get_host_memory(&self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let mut attributes = HostMemoryAttributes::zeroed();
        let value = self.mapping.buffer.as_ref().map_or(0, |buffer| {
            attributes.set_pages(buffer.pages).set_list(buffer.list);
            attributes.set_entries(buffer.pieces.len() as u32);
            feature::HOST_MEMORY_ENABLED
        });
        prp::give(bus, command, self.page(), &attributes.0)?;
        Ok(value)
    }
}
