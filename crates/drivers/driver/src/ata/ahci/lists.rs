//! What a port and its device share in memory: the command list, a table for each slot, and the
//! frames that came in. [AHCI 4.2]
//!
//! All of it is allocated once. A slot's table holds its command and the regions of its data; the
//! ranges of a TRIM lie behind the one region that it needs.
//!
//! # Frames as hints
//! A drive ends a command by a frame, which the controller writes to memory before it clears the
//! command's bit in a register. So memory can be looked at for as long as it pays, at the price of
//! a cached load, and the register, which costs a round trip over the bus, is read once something
//! came. Memory is only the hint: a frame overwrites the one before it, so that the register alone
//! tells all. A frame is taken out in one atomic step, so that one that comes meanwhile is seen now
//! or next time.

use ring3_class::block::{Data, IoError};
use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Segment, Span};
use ring3_device::ring::Words;
use ring3_spec::ahci::fis::{
    RECEIVED_DEVICE_BITS, RECEIVED_REGISTER, REGISTER_DWORDS, RegisterToDevice,
};
use ring3_spec::ahci::{
    COMMAND_LIST_BYTES, HEADER_BYTES, HeaderFlags, RECEIVED_BYTES, REGION_BYTES, Region,
    TABLE_REGIONS,
};
use ring3_spec::ata::{ErrorBits, SECTOR, Status, TrimRange};

use super::super::command::{Command, Protocol};

/// Bytes of a slot's table: a page, because QEMU's controller takes a table in one piece, and
/// behind an IOMMU the pages of one that crosses into the next need not be neighbours in memory.
const TABLE_BYTES: usize = 4096;
/// Most regions of one command.
pub(super) const MAX_REGIONS: usize = (TABLE_BYTES - TABLE_REGIONS) / REGION_BYTES;
/// Where in a table the ranges of a TRIM are.
const TRIM: usize = TABLE_REGIONS + 8 * REGION_BYTES;
/// Where in the first page the received frames are, and where the driver's own reads go.
const RECEIVED: usize = COMMAND_LIST_BYTES;
const SCRATCH: usize = RECEIVED + 4 * RECEIVED_BYTES;
/// Where in it the table of the driver's own commands is.
const OWN_TABLE: usize = SCRATCH + SECTOR;
const PAGE: usize = 4096;

const DEVICE_BITS_WORD: usize = (RECEIVED + RECEIVED_DEVICE_BITS) / 8;
const REGISTER_WORD: usize = (RECEIVED + RECEIVED_REGISTER) / 8;
/// Where the status is in the first word of a frame that came in.
const STATUS_SHIFT: u32 = 16;
const ERROR_SHIFT: u32 = 24;
/// The bits of that word by which a command failed: ERR and DF.
const FAILED: u64 = (Status(0).with_error(1).with_fault(1).0 as u64) << STATUS_SHIFT;

/// How a frame said that a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: Status,
    pub(super) error: ErrorBits,
}

/// What had come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Frames {
    /// The tags that the last frame of queued commands says have ended.
    pub(super) ended: u32,
    /// There was a frame.
    pub(super) any: bool,
    /// One of them says that a command failed.
    pub(super) failure: Option<Failure>,
}

/// The memory of one port.
pub(super) struct Lists {
    /// Command list, received frames, scratch.
    page: DmaBuffer,
    /// A table for each slot.
    tables: DmaBuffer,
    slots: u8,
    /// Where the addresses that the controller can reach end.
    limit: u64,
}

impl Lists {
    /// For `slots` (1 to 32) commands at once.
    pub(super) fn new(arena: &Arena, slots: u8, limit: u64) -> Result<Self, Error> {
        let page = arena.alloc_pages(PAGE)?.tagged("ahci command list");
        let tables = arena.alloc_pages(usize::from(slots) * TABLE_BYTES)?.tagged("ahci tables");
        let lists = Self { page, tables, slots, limit };
        lists.name_tables();
        Ok(lists)
    }

    /// The same for `slots` commands. The port is stopped.
    pub(super) fn resize(&mut self, arena: &Arena, slots: u8) -> Result<(), Error> {
        self.tables = arena.alloc_pages(usize::from(slots) * TABLE_BYTES)?.tagged("ahci tables");
        self.slots = slots;
        self.name_tables();
        Ok(())
    }

    /// Those that another process has left. [`Error::Invalid`] if the memory has another length.
    pub(super) fn resume(
        page: DmaBuffer,
        tables: DmaBuffer,
        slots: u8,
        limit: u64,
    ) -> Result<Self, Error> {
        let fits = (page.len(), tables.len()) == (PAGE, usize::from(slots) * TABLE_BYTES);
        if !fits || !(1..=ring3_spec::ahci::SLOTS).contains(&slots) {
            return Err(Error::Invalid(format!(
                "the lists of {slots} commands in {} and {} bytes",
                page.len(),
                tables.len()
            )));
        }
        Ok(Self { page, tables, slots, limit })
    }

    /// Their names in the arena: the page of the list, and the tables.
    pub(super) fn spans(&self) -> [Span; 2] {
        [self.page.span(), self.tables.span()]
    }

    /// Releases the memory to the next process; it stays allocated.
    pub(super) fn release_to_successor(&mut self) {
        self.page.release_to_successor();
        self.tables.release_to_successor();
    }

    /// The second word of a header, which says where its table is and never changes.
    pub(super) fn name_tables(&self) {
        for slot in 0..self.slots {
            self.page.store(usize::from(slot) * HEADER_BYTES / 8 + 1, self.table(slot));
        }
    }

    /// How many commands it holds.
    pub(super) fn slots(&self) -> u8 {
        self.slots
    }

    /// Device addresses of the command list and of the received frames.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.page.iova(), self.page.iova() + RECEIVED as u64)
    }

    fn table(&self, slot: u8) -> u64 {
        self.tables.iova() + u64::from(slot) * TABLE_BYTES as u64
    }

    fn table_word(slot: u8) -> usize {
        usize::from(slot) * TABLE_BYTES / 8
    }

    /// Writes `command` with the first `len` bytes of `data` into `slot`; fails if the controller
    /// cannot take such data.
    #[inline]
    pub(super) fn write(
        &self,
        slot: u8,
        command: &Command,
        data: &Data,
        len: usize,
    ) -> Result<(), IoError> {
        let regions = match data {
            Data::Buffer(buffer) if len <= buffer.len() => {
                let region = self.region(Segment { iova: buffer.iova(), len: len as u32 });
                self.store_region(slot, 0, region.ok_or(IoError::Invalid)?);
                1
            }
            _ => self.describe(slot, data, len).ok_or(IoError::Invalid)?,
        };
        self.store_command(slot, command, regions);
        Ok(())
    }

    /// Writes the queued command whose frame begins with `frame` into `slot`, with the first `len`
    /// bytes of `buffer`; false if the controller cannot take such data.
    #[inline]
    pub(super) fn write_queued(
        &self,
        slot: u8,
        frame: [u64; 2],
        write: bool,
        buffer: &DmaBuffer,
        len: usize,
    ) -> bool {
        let region = self.region(Segment { iova: buffer.iova(), len: len as u32 });
        let Some(region) = region.filter(|_| len <= buffer.len()) else { return false };
        self.store_region(slot, 0, region);
        // The word behind it is zero in all frames.
        self.tables.store_entry(Self::table_word(slot), &frame);
        let flags = HeaderFlags(0)
            .with_frame_dwords(REGISTER_DWORDS)
            .with_write(write.into())
            .with_regions(1);
        self.page.store(usize::from(slot) * HEADER_BYTES / 8, flags.0.into());
        true
    }

    /// Writes a command without data.
    pub(super) fn write_plain(&self, slot: u8, command: &Command) {
        self.store_command(slot, command, 0);
    }

    /// Writes a TRIM of `ranges`.
    pub(super) fn write_trim(
        &self,
        slot: u8,
        command: &Command,
        ranges: impl Iterator<Item = u64>,
    ) -> Result<(), IoError> {
        for (entry, range) in ranges.take(TrimRange::PER_SECTOR).enumerate() {
            self.tables.store(Self::table_word(slot) + TRIM / 8 + entry, range);
        }
        let region =
            Region::new(self.table(slot) + TRIM as u64, SECTOR as u32).ok_or(IoError::Invalid)?;
        self.store_region(slot, 0, region);
        self.store_command(slot, command, 1);
        Ok(())
    }

    /// Writes a command of the driver itself, without data or one that reads 512 bytes, into slot
    /// 0, whose own command comes back with [`restore`](Self::restore) of what this returns.
    pub(super) fn write_own(&self, command: &Command) -> Result<[u64; 2], Error> {
        let (scratch, table) =
            (self.page.iova() + SCRATCH as u64, self.page.iova() + OWN_TABLE as u64);
        self.page.write(SCRATCH, &[0; SECTOR])?;
        self.page.store_entry(OWN_TABLE / 8, &frame_words(command));
        let Some(region) = Region::new(scratch, SECTOR as u32).filter(|_| table <= self.limit)
        else {
            return Err(Error::Invalid(format!("a port's memory at {scratch:#x}")));
        };
        self.page.store_entry((OWN_TABLE + TABLE_REGIONS) / 8, &region.into_raw());
        let before = [self.page.load(0), self.page.load(1)];
        let regions = u32::from(command.protocol != Protocol::NonData);
        self.page.store_entry(0, &[header_word(command, regions), table]);
        Ok(before)
    }

    /// Gives slot 0 back to its request.
    pub(super) fn restore(&self, before: [u64; 2]) {
        self.page.store_entry(0, &before);
    }

    /// What the driver's own command has read.
    pub(super) fn own(&self) -> Result<[u8; SECTOR], Error> {
        let mut bytes = [0; SECTOR];
        self.page.read(SCRATCH, &mut bytes).map(|()| bytes)
    }

    fn region(&self, segment: Segment) -> Option<Region> {
        let end = segment.iova.checked_add(segment.len.into())?;
        if end > self.limit { None } else { Region::new(segment.iova, segment.len) }
    }

    #[inline]
    fn store_region(&self, slot: u8, index: usize, region: Region) {
        let word = Self::table_word(slot) + (TABLE_REGIONS + index * REGION_BYTES) / 8;
        self.tables.store_entry(word, &region.into_raw());
    }

    /// Writes the regions of `data`; how many they are.
    fn describe(&self, slot: u8, data: &Data, len: usize) -> Option<u32> {
        let (mut count, mut described) = (0, 0);
        for segment in data.segments(len).filter(|segment| segment.len > 0) {
            if count == MAX_REGIONS {
                return None;
            }
            self.store_region(slot, count, self.region(segment)?);
            count += 1;
            described += segment.len as usize;
        }
        (described == len && len > 0).then_some(count as u32)
    }

    #[inline]
    fn store_command(&self, slot: u8, command: &Command, regions: u32) {
        self.tables.store_entry(Self::table_word(slot), &frame_words(command));
        // The upper half counts the bytes moved; it starts at zero.
        self.page.store(usize::from(slot) * HEADER_BYTES / 8, header_word(command, regions));
    }

    /// Whether a frame came that may have ended something: of queued commands, or of `plain` ones.
    /// Two loads.
    #[inline]
    pub(super) fn hint(&self, plain: bool) -> bool {
        let register = self.page.load(REGISTER_WORD);
        // A queued command is also accepted by a register frame, which is of no interest unless it
        // refuses.
        self.page.load(DEVICE_BITS_WORD) != 0 || register & FAILED != 0 || (plain && register != 0)
    }

    /// Takes the frames that [`hint`](Self::hint) saw.
    #[inline]
    pub(super) fn take_frames(&self, plain: bool) -> Frames {
        let bits = if self.page.load(DEVICE_BITS_WORD) != 0 {
            self.page.take_word(DEVICE_BITS_WORD)
        } else {
            0
        };
        let register = self.page.load(REGISTER_WORD);
        let register = if register & FAILED != 0 || (plain && register != 0) {
            self.page.take_word(REGISTER_WORD)
        } else {
            0
        };
        let failure =
            [register, bits].into_iter().find(|word| word & FAILED != 0).map(|word| Failure {
                status: Status((word >> STATUS_SHIFT) as u8),
                error: ErrorBits((word >> ERROR_SHIFT) as u8),
            });
        Frames { ended: (bits >> 32) as u32, any: bits | register != 0, failure }
    }

    /// Forgets all frames: what comes from now on belongs to what is started from now on.
    pub(super) fn forget_frames(&self) {
        self.page.take_word(DEVICE_BITS_WORD);
        self.page.take_word(REGISTER_WORD);
    }
}

/// The first word of a command's header. Its upper half counts the bytes moved and starts at zero.
#[inline]
fn header_word(command: &Command, regions: u32) -> u64 {
    let flags = HeaderFlags(0)
        .with_frame_dwords(REGISTER_DWORDS)
        .with_write(command.protocol.writes().into());
    flags.with_regions(regions).0.into()
}

/// The command as a frame; the upper half of the last word is not looked at.
#[inline]
fn frame_words(command: &Command) -> [u64; 3] {
    let mut bytes = [0; 24];
    bytes[..RegisterToDevice::SIZE].copy_from_slice(&RegisterToDevice::of(&command.task).0);
    let word = |index: usize| {
        bytes.as_chunks::<8>().0.get(index).map_or(0, |word| u64::from_le_bytes(*word))
    };
    [word(0), word(1), word(2)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scattered::scattered;
    use proptest::prelude::*;
    use ring3_device::dma;
    use ring3_spec::ata::{TaskFile, device, opcode};

    fn arena() -> Arena {
        Arena::new(dma::Region::new(1 << 20).unwrap(), 0x1000_0000)
    }

    fn lists() -> Lists {
        Lists::new(&arena(), 4, u64::MAX).unwrap()
    }

    fn read() -> Command {
        let task = TaskFile {
            command: opcode::READ_DMA_EXT,
            count: 8,
            device: device::LBA,
            ext: true,
            ..TaskFile::default()
        };
        Command { task, protocol: Protocol::DmaIn }
    }

    /// The regions that the controller finds through the header of `slot`.
    fn as_the_controller_reads_it(lists: &Lists, slot: u8) -> Vec<Region> {
        let header = usize::from(slot) * HEADER_BYTES / 8;
        let flags = HeaderFlags(lists.page.load(header) as u32);
        let table = (lists.page.load(header + 1) - lists.tables.iova()) as usize / 8;
        let word = |index: usize| lists.tables.load(table + TABLE_REGIONS / 8 + index);
        (0..flags.regions() as usize)
            .map(|i| Region::from_raw([word(2 * i), word(2 * i + 1)]))
            .collect()
    }

    #[test]
    fn a_long_buffer_is_one_region() {
        let (arena, lists) = (Arena::new(dma::Region::new(8 << 20).unwrap(), 0x1000_0000), lists());
        let buffer = arena.alloc_pages(4 << 20).unwrap();
        let expected = Region::new(buffer.iova(), 4 << 20).unwrap();
        lists.write(3, &read(), &buffer.into(), 4 << 20).unwrap();
        assert_eq!(as_the_controller_reads_it(&lists, 3), [expected]);
    }

    #[test]
    fn odd_addresses_and_lengths_are_refused() {
        for pieces in [&[(0x8001, 512)][..], &[(0x8000, 511), (0x9000, 513)]] {
            let len = scattered(pieces).len();
            assert_eq!(lists().write(0, &read(), &scattered(pieces), len), Err(IoError::Invalid));
        }
    }

    #[test]
    fn data_that_are_too_short_are_refused() {
        assert_eq!(
            lists().write(0, &read(), &scattered(&[(0x8000, 512)]), 1024),
            Err(IoError::Invalid)
        );
        assert_eq!(lists().write(0, &read(), &Data::None, 512), Err(IoError::Invalid));
    }

    #[test]
    fn addresses_that_the_controller_cannot_reach_are_refused() {
        let lists = Lists::new(&arena(), 1, 1 << 32).unwrap();
        assert_eq!(lists.write(0, &read(), &scattered(&[((1 << 32) - 512, 512)]), 512), Ok(()));
        assert_eq!(
            lists.write(0, &read(), &scattered(&[((1 << 32) - 510, 512)]), 512),
            Err(IoError::Invalid)
        );
    }

    #[test]
    fn more_pieces_than_a_table_holds_are_refused() {
        let pieces: Vec<_> = (0..MAX_REGIONS as u64 + 1).map(|i| (i << 12, 512)).collect();
        assert_eq!(
            lists().write(0, &read(), &scattered(&pieces), pieces.len() * 512),
            Err(IoError::Invalid)
        );
        let fits = &pieces[..MAX_REGIONS];
        assert_eq!(lists().write(0, &read(), &scattered(fits), fits.len() * 512), Ok(()));
    }

    #[test]
    fn the_drivers_own_command_leaves_the_request_in_its_slot_alone() {
        let lists = lists();
        lists.write(0, &read(), &scattered(&[(0x8000, 512)]), 512).unwrap();
        let before = lists.write_own(&read()).unwrap();
        assert_ne!(lists.page.load(1), lists.table(0));
        lists.restore(before);
        assert_eq!(as_the_controller_reads_it(&lists, 0), [Region::new(0x8000, 512).unwrap()]);
    }

    #[test]
    fn a_frame_is_taken_once() {
        let lists = lists();
        lists.page.store(DEVICE_BITS_WORD, 0xa1 | 0x40 << 16 | 5 << 32);
        assert!(lists.hint(false));
        assert_eq!(lists.take_frames(false), Frames { ended: 5, any: true, failure: None });
        assert!(!lists.hint(false));
    }

    #[test]
    fn a_frame_that_accepts_a_queued_command_is_no_hint() {
        let lists = lists();
        lists.page.store(REGISTER_WORD, 0x34 | 0x40 << 16);
        assert!(!lists.hint(false) && lists.hint(true));
    }

    #[test]
    fn a_frame_that_refuses_a_queued_command_is_a_failure() {
        let lists = lists();
        lists.page.store(REGISTER_WORD, 0x34 | 0x41 << 16 | 0x04 << 24);
        assert!(lists.hint(false));
        let failure = lists.take_frames(false).failure.unwrap();
        assert_eq!((failure.status, failure.error), (Status(0x41), ErrorBits(4)));
    }

    #[test]
    fn ranges_of_a_trim_lie_beside_their_region() {
        let lists = lists();
        lists.write_trim(1, &read(), [7, 8, 9].into_iter()).unwrap();
        let [region] = as_the_controller_reads_it(&lists, 1)[..] else { panic!("one region") };
        let word = (region.iova() - lists.tables.iova()) as usize / 8;
        assert_eq!([0, 1, 2].map(|i| lists.tables.load(word + i)), [7, 8, 9]);
        assert_eq!(region.bytes(), 512);
    }

    proptest! {
        #[test]
        fn what_the_controller_reads_is_what_was_meant(lens in prop::collection::vec(1u32..2048, 1..40), cut in 0usize..4096) {
            let place = |i: usize| (i as u64) << 20 | 2;
            let pieces: Vec<_> =
                lens.iter().enumerate().map(|(i, &len)| (place(i), len * 2)).collect();
            let (data, lists) = (scattered(&pieces), lists());
            let len = (data.len() - cut.min(data.len() - 2)) & !1;
            lists.write(2, &read(), &data, len).unwrap();
            let expected: Vec<_> =
                data.segments(len).map(|s| Region::new(s.iova, s.len).unwrap()).collect();
            prop_assert_eq!(as_the_controller_reads_it(&lists, 2), expected);
        }
    }
}
