//! Protection information of blocks, in 8 bytes of metadata each. [NVMe-NVM 5.3]

use crc::{CRC_16_T10_DIF, Crc, Table};
use ring3_spec::nvme::{Status, Submission};

use crate::medium::{Medium, Store};

/// Bytes of a block's information.
pub(super) const SIZE: u64 = 8;
/// Guard, application tag and reference tag of a block that nobody has written: none is checked.
const UNWRITTEN: [u8; SIZE as usize] = [0xff; SIZE as usize];
static GUARD: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_T10_DIF);

/// That of all blocks of a namespace.
pub(super) struct Protection {
    /// 1 to 3.
    kind: u8,
    block: usize,
    /// Each byte inverted, so that what nobody has written is all ones.
    store: Store,
}

impl Protection {
    /// For `blocks` of `block` bytes, none of which is written.
    pub(super) fn new(kind: u8, blocks: u64, block: usize) -> Self {
        Self { kind, block, store: Store::new(blocks * SIZE) }
    }

    /// Has `blocks` from now on.
    pub(super) fn resize(&mut self, blocks: u64) {
        self.store.resize(blocks * SIZE);
    }

    /// Fails if `command` asks for a check that the type has not, or is about other blocks than its
    /// reference tag. [NVMe-NVM 5.3.3]
    pub(super) fn admit(&self, command: &Submission) -> Result<(), Status> {
        let is_wrong = match self.kind {
            1 => command.reference_tag() != command.lba() as u32,
            2 => false,
            _ => true,
        };
        match command.protection_check().reference() && is_wrong {
            true => Err(Status::INVALID_PROTECTION_INFO.with_do_not_retry()),
            false => Ok(()),
        }
    }

    /// The information of the blocks that `command` has written to `medium`, made by the
    /// controller.
    pub(super) fn make(&mut self, medium: &Medium, command: &Submission) {
        for index in 0..command.blocks() {
            let lba = command.lba() + u64::from(index);
            let mut information = [0; SIZE as usize];
            information[..2].copy_from_slice(&self.guard(medium, lba).to_be_bytes());
            information[4..].copy_from_slice(&self.reference(command, index).to_be_bytes());
            self.set(lba, information);
        }
    }

    /// Blocks from `lba` on are deallocated.
    pub(super) fn forget(&mut self, lba: u64, blocks: u64) {
        self.store.zero(lba * SIZE, blocks * SIZE);
    }

    /// Block `to` has what block `from` has.
    pub(super) fn misplace(&mut self, from: u64, to: u64) {
        self.set(to, self.get(from));
    }

    /// Checks the information of the blocks that `command` reads from `medium`.
    pub(super) fn check(&self, medium: &Medium, command: &Submission) -> Result<(), Status> {
        let check = command.protection_check();
        for index in 0..command.blocks() {
            let lba = command.lba() + u64::from(index);
            let information = self.get(lba);
            let [guard, tags @ ..] =
                [0, 2, 4, 6].map(|at| u16::from_be_bytes([information[at], information[at + 1]]));
            let [application, high, low] = tags;
            let reference = u32::from(high) << 16 | u32::from(low);
            // [NVMe-NVM 5.3.3]
            if application == u16::MAX && (self.kind != 3 || reference == u32::MAX) {
                continue;
            }
            if check.guard() && guard != self.guard(medium, lba) {
                return Err(Status::GUARD_CHECK);
            }
            if check.reference() && reference != self.reference(command, index) {
                return Err(Status::REFERENCE_TAG_CHECK);
            }
        }
        Ok(())
    }

    /// What was not durable is lost: `medium` holds other data than before, with what belongs to
    /// them. [NVMe-NVM 2.1.4.2]
    pub(super) fn lose_power(&mut self, medium: &Medium) {
        for lba in 0..medium.blocks() {
            let mut information = self.get(lba);
            if information != UNWRITTEN {
                information[..2].copy_from_slice(&self.guard(medium, lba).to_be_bytes());
                self.set(lba, information);
            }
        }
    }

    fn guard(&self, medium: &Medium, lba: u64) -> u16 {
        let mut data = vec![0; self.block];
        medium.peek(lba * self.block as u64, &mut data);
        GUARD.checksum(&data)
    }

    /// The reference tag of block `index` of `command`: counts up, but for type 3.
    fn reference(&self, command: &Submission, index: u32) -> u32 {
        command.reference_tag().wrapping_add(if self.kind == 3 { 0 } else { index })
    }

    fn get(&self, lba: u64) -> [u8; SIZE as usize] {
        let mut bytes = [0; SIZE as usize];
        self.store.copy_out(lba * SIZE, &mut bytes);
        bytes.map(|byte| !byte)
    }

    fn set(&mut self, lba: u64, information: [u8; SIZE as usize]) {
        self.store.copy_in(lba * SIZE, &information.map(|byte| !byte));
    }
}
