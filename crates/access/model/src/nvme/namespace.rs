//! A namespace: its medium, its cache, and the commands that read and write them. [NVMe-NVM 3.3]

use ring3_spec::nvme::{DsmRange, ProtectionCheck, Status, Submission};

use super::data;
use super::protection::Protection;
use super::prp::Pages;
use super::shape::NamespaceShape;
use crate::Bus;
use crate::medium::{Medium, Store};

pub(super) struct Namespace {
    pub(super) shape: NamespaceShape,
    pub(super) medium: Medium,
    metadata: Option<Store>,
    protection: Option<Protection>,
    /// NGUID and EUI64.
    pub(super) unique: [u8; 24],
    /// log2 of a block's data bytes, and its metadata bytes, of each format that it can have: the
    /// first is the one that it was made with.
    pub(super) formats: [(u32, u16); 5],
    /// Which one it has.
    pub(super) format: usize,
    /// It is attached to the controller.
    pub(super) attached: bool,
}

/// What a transfer needs besides its command.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    /// How its pages are read.
    pub(super) pages: Pages,
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
            medium: Medium::new(shape.bytes, shape.block_shift, cache),
            metadata: (shape.metadata > 0 && shape.protection == 0)
                .then(|| Store::new(blocks * u64::from(shape.metadata))),
            protection: (shape.protection > 0)
                .then(|| Protection::new(shape.protection, blocks, 1 << shape.block_shift)),
            unique: [0; 24],
            formats: [(shape.block_shift, shape.metadata), (9, 0), (12, 0), (9, 8), (12, 8)],
            format: 0,
            attached: true,
        }
    }

    /// Is as `shape` says from now on, in format `index`, and holds nothing.
    pub(super) fn reformat(&mut self, shape: NamespaceShape, (index, cache): (usize, bool)) {
        let (unique, formats) = (self.unique, self.formats);
        *self = Self { unique, formats, format: index, ..Self::new(shape, cache) };
    }

    /// Has `bytes` from now on, the first of them as they are.
    pub(super) fn resize(&mut self, bytes: u64) {
        self.shape.bytes = bytes;
        self.medium.resize(bytes);
        let blocks = self.medium.blocks();
        self.protection.iter_mut().for_each(|protection| protection.resize(blocks));
    }

    pub(super) fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    /// Block `to` becomes what block `from` is, with its protection information.
    pub(super) fn misplace(&mut self, from: u64, to: u64) {
        let mut data = vec![0; 1 << self.shape.block_shift];
        self.medium.peek(from << self.shape.block_shift, &mut data);
        self.medium.poke(to << self.shape.block_shift, &data);
        self.protection.iter_mut().for_each(|protection| protection.misplace(from, to));
    }

    /// Read. [NVMe-NVM 3.3.4]
    pub(super) fn read(
        &mut self,
        bus: &Bus,
        command: &Submission,
        how: Transfer,
    ) -> Result<u64, Status> {
        let (at, len) = self.locate(command, how.most)?;
        if let Some(protection) = &self.protection {
            protection.admit(command)?;
            protection.check(&self.medium, command)?;
        }
        let mut first = None;
        data::for_each(bus, command, how.pages, len, |iova, offset, piece| {
            first.get_or_insert(iova);
            self.medium
                .read(at + offset as u64, piece, |done, bytes| bus.write(iova + done as u64, bytes))
                .map_err(blocked)
        })?;
        if let Some((store, at, len)) = metadata(&mut self.metadata, self.shape, command) {
            store
                .read(at, len, |done, bytes| bus.write(command.0[2] + done as u64, bytes))
                .map_err(blocked)?;
        }
        if let Some(iova) = first.filter(|_| how.corrupt) {
            let mut byte = [0];
            bus.read(iova, &mut byte).map_err(blocked)?;
            bus.write(iova, &[!byte[0]]).map_err(blocked)?;
        }
        Ok(len as u64)
    }

    /// Write. [NVMe-NVM 3.3.6]
    pub(super) fn write(
        &mut self,
        bus: &Bus,
        command: &Submission,
        how: Transfer,
    ) -> Result<u64, Status> {
        let (at, len) = self.locate(command, how.most)?;
        self.check_writable()?;
        self.protection.as_ref().map_or(Ok(()), |protection| protection.admit(command))?;
        self.medium.begin(command.lba(), command.blocks().into());
        data::for_each(bus, command, how.pages, len, |iova, offset, piece| {
            self.medium
                .write(at + offset as u64, piece, |done, bytes| bus.read(iova + done as u64, bytes))
                .map_err(blocked)
        })?;
        if let Some((store, at, len)) = metadata(&mut self.metadata, self.shape, command) {
            store
                .write(at, len, |done, bytes| bus.read(command.0[2] + done as u64, bytes))
                .map_err(blocked)?;
        }
        self.protect(command);
        if how.corrupt {
            let mut byte = [0];
            self.medium.peek(at, &mut byte);
            self.medium.poke(at, &[!byte[0]]);
        }
        self.medium.settle(command.lba(), command.blocks().into(), command.fua() || !how.cached);
        Ok(len as u64)
    }

    /// Write zeroes. [NVMe-NVM 3.3.8]
    pub(super) fn write_zeroes(
        &mut self,
        command: &Submission,
        cached: bool,
    ) -> Result<(), Status> {
        let (lba, blocks) = (command.lba(), u64::from(command.blocks()));
        self.check(lba, blocks)?;
        self.check_writable()?;
        if command.protection_check() != ProtectionCheck::NONE {
            // [NVMe-NVM 3.3.8, PRINFO]
            return Err(Status::INVALID_PROTECTION_INFO.with_do_not_retry());
        }
        self.medium.zero(lba, blocks, command.fua() || !cached);
        self.protect(command);
        Ok(())
    }

    /// Dataset management: deallocated blocks read as zeroes. [NVMe-NVM 3.3.3]
    pub(super) fn deallocate(
        &mut self,
        bus: &Bus,
        command: &Submission,
        how: Transfer,
    ) -> Result<(), Status> {
        let mut bytes = [0; 256 * DsmRange::SIZE];
        let count = command.dsm_ranges() as usize;
        let list = &mut bytes[..count * DsmRange::SIZE];
        data::for_each(bus, command, how.pages, list.len(), |iova, at, len| {
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
                    self.check_writable()?;
                    self.medium.zero(lba, blocks.into(), !how.cached);
                    if let Some(protection) = &mut self.protection {
                        protection.forget(lba, blocks.into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Flush. [NVMe 7.2]
    pub(super) fn flush(&mut self) {
        self.medium.flush();
    }

    pub(super) fn lose_power(&mut self) {
        self.medium.lose_power();
        if let Some(protection) = &mut self.protection {
            protection.lose_power(&self.medium);
        }
    }

    /// The protection information of blocks that `command` has written. Without the action it would
    /// be the host's, which has given none: what was there stays.
    fn protect(&mut self, command: &Submission) {
        if let Some(protection) = &mut self.protection
            && command.protection_action()
        {
            protection.make(&self.medium, command);
        }
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
        if self.medium.contains(lba, blocks) {
            Ok(())
        } else {
            Err(Status::LBA_OUT_OF_RANGE.with_do_not_retry())
        }
    }

    fn check_writable(&self) -> Result<(), Status> {
        if self.shape.read_only {
            Err(Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry())
        } else {
            Ok(())
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

fn blocked(_: crate::Blocked) -> Status {
    Status::DATA_TRANSFER
}
