//! A namespace: its medium, its cache, and the commands that read and write them. [NVMe-NVM 3.3]

use ring3_spec::nvme::{DsmRange, Status, Submission};

use super::cache::Cache;
use super::prp;
use super::shape::NamespaceShape;
use super::store::Store;
use crate::sim::Bus;

pub(super) struct Namespace {
    pub(super) shape: NamespaceShape,
    store: Store,
    metadata: Option<Store>,
    cache: Option<Cache>,
}

/// What a transfer needs besides its command.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    /// CC.MPS in bytes.
    pub(super) page: u64,
    /// Most bytes, if there is a limit.
    pub(super) most: Option<u64>,
    /// Inverts the first byte.
    pub(super) corrupt: bool,
    /// Whether the write cache is enabled.
    pub(super) cached: bool,
}

impl Namespace {
    pub(super) fn new(shape: NamespaceShape, cache: bool) -> Self {
        let blocks = shape.bytes >> shape.block_shift;
        Self {
            shape,
            store: Store::new(shape.bytes),
            metadata: (shape.metadata > 0).then(|| Store::new(blocks * u64::from(shape.metadata))),
            cache: cache.then(|| Cache::new(1 << shape.block_shift)),
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.shape.bytes >> self.shape.block_shift
    }

    /// Read. [NVMe-NVM 3.3.4]
    pub(super) fn read(&mut self, bus: &Bus, command: &Submission, how: Transfer) -> Result<u64, Status> {
        let (at, len) = self.locate(command, how.most)?;
        prp::for_each(bus, command, how.page, len, |iova, offset, piece| {
            self.store.read(at + offset as u64, piece, |done, bytes| bus.write(iova + done as u64, bytes)).map_err(blocked)
        })?;
        if let Some((store, at, len)) = metadata(&mut self.metadata, self.shape, command) {
            store.read(at, len, |done, bytes| bus.write(command.0[2] + done as u64, bytes)).map_err(blocked)?;
        }
        if how.corrupt {
            let mut byte = [0];
            bus.read(command.prp1(), &mut byte).map_err(blocked)?;
            bus.write(command.prp1(), &[!byte[0]]).map_err(blocked)?;
        }
        Ok(len as u64)
    }

    /// Write. [NVMe-NVM 3.3.6]
    pub(super) fn write(&mut self, bus: &Bus, command: &Submission, how: Transfer) -> Result<u64, Status> {
        let (at, len) = self.locate(command, how.most)?;
        self.change(command.lba(), command.blocks().into())?;
        prp::for_each(bus, command, how.page, len, |iova, offset, piece| {
            self.store.write(at + offset as u64, piece, |done, bytes| bus.read(iova + done as u64, bytes)).map_err(blocked)
        })?;
        if let Some((store, at, len)) = metadata(&mut self.metadata, self.shape, command) {
            store.write(at, len, |done, bytes| bus.read(command.0[2] + done as u64, bytes)).map_err(blocked)?;
        }
        if how.corrupt {
            let mut byte = [0];
            self.store.copy_out(at, &mut byte);
            self.store.copy_in(at, &[!byte[0]]);
        }
        self.settle(command.lba(), command.blocks().into(), command.fua() || !how.cached);
        Ok(len as u64)
    }

    /// Write zeroes. [NVMe-NVM 3.3.8]
    pub(super) fn write_zeroes(&mut self, command: &Submission, cached: bool) -> Result<(), Status> {
        let (lba, blocks) = (command.lba(), u64::from(command.blocks()));
        self.check(lba, blocks)?;
        self.change(lba, blocks)?;
        self.store.zero(lba << self.shape.block_shift, blocks << self.shape.block_shift);
        self.settle(lba, blocks, command.fua() || !cached);
        Ok(())
    }

    /// Dataset management: deallocated blocks read as zeroes. [NVMe-NVM 3.3.3]
    pub(super) fn deallocate(&mut self, bus: &Bus, command: &Submission, how: Transfer) -> Result<(), Status> {
        let mut bytes = [0; 256 * DsmRange::SIZE];
        let count = command.dsm_ranges() as usize;
        let list = &mut bytes[..count * DsmRange::SIZE];
        prp::for_each(bus, command, how.page, list.len(), |iova, at, len| {
            bus.read(iova, &mut list[at..at + len]).map_err(blocked)
        })?;
        if !command.dsm_deallocates() {
            return Ok(());
        }
        // All ranges are checked before the first block is freed.
        for pass in [false, true] {
            for words in list.as_chunks::<{ DsmRange::SIZE }>().0 {
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| words[at + i]));
                let DsmRange { lba, blocks } = DsmRange::from_words([word(0), word(8)]);
                self.check(lba, blocks.into())?;
                if pass {
                    self.change(lba, blocks.into())?;
                    self.store.zero(lba << self.shape.block_shift, u64::from(blocks) << self.shape.block_shift);
                    self.settle(lba, blocks.into(), !how.cached);
                }
            }
        }
        Ok(())
    }

    /// Flush. [NVMe 7.2]
    pub(super) fn flush(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.flush();
        }
    }

    pub(super) fn lose_power(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.lose(&mut self.store);
        }
    }

    /// The medium behind the driver's back; false beyond its end.
    pub(super) fn peek(&self, at: u64, bytes: &mut [u8]) -> bool {
        let inside = at.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.shape.bytes);
        if inside {
            self.store.copy_out(at, bytes);
        }
        inside
    }

    /// As [`peek`](Self::peek), for writing.
    pub(super) fn poke(&mut self, at: u64, bytes: &[u8]) -> bool {
        let inside = at.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.shape.bytes);
        if inside {
            self.store.copy_in(at, bytes);
        }
        inside
    }

    /// First byte and length of a transfer.
    fn locate(&self, command: &Submission, most: Option<u64>) -> Result<(u64, usize), Status> {
        let len = u64::from(command.blocks()) << self.shape.block_shift;
        if most.is_some_and(|most| len > most) {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        self.check(command.lba(), command.blocks().into())?;
        Ok((command.lba() << self.shape.block_shift, len as usize))
    }

    fn check(&self, lba: u64, blocks: u64) -> Result<(), Status> {
        match lba.checked_add(blocks) {
            Some(end) if end <= self.blocks() => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE.with_do_not_retry()),
        }
    }

    fn change(&mut self, lba: u64, blocks: u64) -> Result<(), Status> {
        if self.shape.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
        }
        if let Some(cache) = &mut self.cache {
            cache.before_write(&self.store, lba, blocks);
        }
        Ok(())
    }

    fn settle(&mut self, lba: u64, blocks: u64, durable: bool) {
        if let Some(cache) = &mut self.cache
            && durable
        {
            cache.written_through(lba, blocks);
        }
    }
}

/// Where the metadata of a command's blocks lie, if they have any and the command wants them.
fn metadata<'a>(
    store: &'a mut Option<Store>,
    shape: NamespaceShape,
    command: &Submission,
) -> Option<(&'a mut Store, u64, usize)> {
    let bytes = u64::from(shape.metadata);
    let store = store.as_mut().filter(|_| command.0[2] != 0)?;
    Some((store, command.lba() * bytes, command.blocks() as usize * bytes as usize))
}

fn blocked(_: crate::sim::Blocked) -> Status {
    Status::DATA_TRANSFER
}
