//! What a table says. Nothing that it says is believed, and it may make this fail in any way: by an
//! error, by a panic, by taking all memory or all time.

use std::fmt::Debug;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::{Found, MAX_NUMBER, MOST, Partition};
use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use gpt::header::read_header_from_arbitrary_device;

/// Bytes of the sector that every table begins with.
const SECTOR: usize = 512;
/// Where its four entries are, and how long each is.
const ENTRIES: std::ops::Range<usize> = 446..510;
const ENTRY: usize = 16;
const SLOTS: usize = 4;
/// The types of an entry that says where the chain of other tables begins.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The number of the first partition of that chain.
const FIRST_LOGICAL: u32 = 5;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The type of an entry that says that a GPT follows.
const PROTECTIVE: u8 = 0xee;
/// Bytes of an entry of a GPT. A header may say others, at which the library panics.
const GPT_ENTRY: u32 = 128;
/// Entries of a GPT, used and unused, at most. A header may say any number: the library reads as
/// many, and allocates memory for all of them.
const GPT_ENTRIES: u32 = 1024;
/// Where a GPT header says how many entries there are, and how long each is. [UEFI 5.3.2]
const GPT_SHAPE: i64 = 80;

/// The partitions of `disk`, whose logical blocks have `block` bytes.
pub fn read(disk: &mut (impl Read + Write + Seek + Debug), block: u32) -> Found {
    match find(disk, block) {
        Ok(partitions) if partitions.len() > MOST => Found::Damaged(format!(
            "it has {} partitions, and {MOST} are the most",
            partitions.len()
        )),
        Ok(partitions) => Found::Partitions(partitions),
        Err(why) => Found::Damaged(why),
    }
}

fn find(
    disk: &mut (impl Read + Write + Seek + Debug),
    block: u32,
) -> Result<Vec<Partition>, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let mut sector = [0; SECTOR];
    disk.seek(SeekFrom::Start(0)).and_then(|_| disk.read_exact(&mut sector)).map_err(unreadable)?;
    let entries: Vec<_> = sector[ENTRIES].chunks_exact(ENTRY).collect();
    // A file system may begin with the same signature; what is a table has a mark or none in each
    // entry. [MSDOS]
    if !sector.ends_with(&SIGNATURE) || entries.iter().any(|entry| entry[0] & 0x7f != 0) {
        return Ok(Vec::new());
    }
    if entries.iter().any(|entry| entry[4] == PROTECTIVE) {
        guids(disk, block)
    } else {
        slots(disk, block)
    }
}

/// Of a GUID partition table, or of the copy of it at the disk's end. [UEFI]
fn guids(
    disk: &mut (impl Read + Write + Seek + Debug),
    block: u32,
) -> Result<Vec<Partition>, String> {
    let size = LogicalBlockSize::try_from(u64::from(block)).map_err(|error| error.to_string())?;
    check_shape(disk, size)?;
    let config =
        GptConfig::new().writable(false).only_valid_headers(false).logical_block_size(size);
    let table =
        config.open_from_device(disk).map_err(|error| format!("its GPT is damaged: {error}"))?;
    let used = table.partitions().iter().filter(|(_, entry)| entry.is_used());
    used.map(|(&number, entry)| {
        place(number, entry.first_lba, entry.last_lba.checked_sub(entry.first_lba), block)
    })
    .collect()
}

/// Fails unless the header of a GPT, or its copy at the end if the first is damaged, says of its
/// entries what the library can take.
fn check_shape(
    disk: &mut (impl Read + Write + Seek + Debug),
    size: LogicalBlockSize,
) -> Result<(), String> {
    let (count, bytes) = match read_header_from_arbitrary_device(disk, size) {
        Ok(header) => (header.num_parts, header.part_size),
        Err(_) => {
            copied_shape(disk, size).map_err(|error| format!("its GPT is damaged: {error}"))?
        }
    };
    if bytes == GPT_ENTRY && count <= GPT_ENTRIES {
        return Ok(());
    }
    Err(format!(
        "its GPT is damaged: {count} entries of {bytes} bytes, and at most {GPT_ENTRIES} of \
         {GPT_ENTRY} bytes are read"
    ))
}

/// What the copy says, which the library looks at more closely.
fn copied_shape(
    disk: &mut (impl Read + Write + Seek + Debug),
    size: LogicalBlockSize,
) -> io::Result<(u32, u32)> {
    let mut shape = [0; 8];
    disk.seek(SeekFrom::End(GPT_SHAPE - size.as_u64() as i64))?;
    disk.read_exact(&mut shape)?;
    let shape = u64::from_le_bytes(shape);
    Ok((shape as u32, (shape >> 32) as u32))
}

/// An entry of a table of four. [MSDOS]
#[derive(Clone, Copy, Default)]
struct Slot {
    kind: u8,
    first: u32,
    blocks: u32,
}

impl Slot {
    /// Whether it is of blocks that hold data, not other tables.
    fn holds_data(self) -> bool {
        self.kind != 0 && !self.is_extended() && self.blocks > 0
    }

    fn is_extended(self) -> bool {
        EXTENDED.contains(&self.kind)
    }
}

/// Of a table of four entries and a chain of others: each says where a partition is from itself,
/// and where the next one is from the first. [MSDOS]
fn slots(
    disk: &mut (impl Read + Write + Seek + Debug),
    block: u32,
) -> Result<Vec<Partition>, String> {
    let damaged = |why: &str| format!("its MBR is damaged: {why}");
    let of = |number, from: u64, slot: Slot| {
        let more = u64::from(slot.blocks).checked_sub(1);
        place(number, from + u64::from(slot.first), more, block)
    };
    let mut found = Vec::new();
    let primary = table(disk, 0, block).ok_or_else(|| damaged("it cannot be read"))?;
    for (number, slot) in (1..).zip(primary) {
        if slot.holds_data() {
            found.push(of(number, 0, slot)?);
        }
    }
    let extended = primary.into_iter().find(|slot| slot.is_extended());
    let Some(start) = extended.map(|slot| u64::from(slot.first)) else { return Ok(found) };
    let mut offset = 0;
    for number in FIRST_LOGICAL..=MAX_NUMBER {
        let [data, next] = match table(disk, start + offset, block) {
            Some([data, next, ..]) => [data, next],
            // There may be room for logical partitions, and none yet.
            None if offset == 0 => return Ok(found),
            None => return Err(damaged("its chain leads to what is no table")),
        };
        if data.holds_data() {
            found.push(of(number, start + offset, data)?);
        }
        if next.first == 0 {
            return Ok(found);
        }
        // So that it ends.
        if u64::from(next.first) <= offset {
            return Err(damaged("its chain leads back"));
        }
        offset = next.first.into();
    }
    Err(damaged("its chain is longer than the numbers of partitions"))
}

/// The table in block `at`; `None` if there is none, or it cannot be read.
fn table(
    disk: &mut (impl Read + Write + Seek + Debug),
    at: u64,
    block: u32,
) -> Option<[Slot; SLOTS]> {
    let mut sector = [0; SECTOR];
    disk.seek(SeekFrom::Start(at.checked_mul(block.into())?)).ok()?;
    disk.read_exact(&mut sector).ok()?;
    if !sector.ends_with(&SIGNATURE) {
        return None;
    }
    let mut slots = [Slot::default(); SLOTS];
    for (slot, entry) in slots.iter_mut().zip(sector[ENTRIES].chunks_exact(ENTRY)) {
        let word = |at: usize| entry[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        *slot = Slot { kind: entry[4], first: word(8), blocks: word(12) };
    }
    Some(slots)
}

/// From a first block and the number of those that follow it.
fn place(number: u32, first: u64, more: Option<u64>, block: u32) -> Result<Partition, String> {
    let bytes = |blocks: u64| blocks.checked_mul(block.into());
    let place = bytes(first).zip(more.and_then(|more| bytes(more.checked_add(1)?)));
    let (start, bytes) = place
        .ok_or_else(|| format!("partition {number} ends before it begins, or beyond all disks"))?;
    Ok(Partition { number, start, bytes })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use gpt::header::{Header, HeaderBuilder};
    use proptest::prelude::*;

    use super::*;

    const DISK: usize = 4 << 20;

    fn part(number: u32, start: u64, bytes: u64) -> Partition {
        Partition { number, start, bytes }
    }

    fn disk() -> Cursor<Vec<u8>> {
        Cursor::new(vec![0; DISK])
    }

    /// With a protective MBR and two partitions.
    fn with_gpt(size: LogicalBlockSize) -> Cursor<Vec<u8>> {
        let mut disk = disk();
        gpt::mbr::ProtectiveMBR::with_lb_size((DISK as u64 / size.as_u64() - 1) as u32)
            .overwrite_lba0(&mut disk)
            .unwrap();
        let mut table = GptConfig::new()
            .writable(true)
            .logical_block_size(size)
            .create_from_device(disk, None)
            .unwrap();
        table.add_partition_at("a", 1, 128, 64, gpt::partition_types::LINUX_FS, 0).unwrap();
        table.add_partition_at("b", 2, 256, 8, gpt::partition_types::LINUX_FS, 0).unwrap();
        table.write().unwrap()
    }

    fn with_mbr(entries: &[(u8, u32, u32)]) -> Cursor<Vec<u8>> {
        let mut disk = disk();
        for (place, &(sort, first, blocks)) in entries.iter().enumerate() {
            entry(&mut disk, 0, place, sort, first, blocks);
        }
        disk
    }

    fn entry(
        disk: &mut Cursor<Vec<u8>>,
        sector: usize,
        place: usize,
        sort: u8,
        first: u32,
        blocks: u32,
    ) {
        let at = sector * SECTOR + ENTRIES.start + place * ENTRY;
        let bytes = disk.get_mut();
        bytes[at + 4] = sort;
        bytes[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&blocks.to_le_bytes());
        bytes[sector * SECTOR + 510..][..2].copy_from_slice(&SIGNATURE);
    }

    #[test]
    fn a_gpt_is_read_in_blocks_of_both_sizes() {
        for (size, block) in [(LogicalBlockSize::Lb512, 512), (LogicalBlockSize::Lb4096, 4096)] {
            let wanted = vec![part(1, 128 * block, 64 * block), part(2, 256 * block, 8 * block)];
            assert_eq!(read(&mut with_gpt(size), block as u32), Found::Partitions(wanted));
        }
    }

    #[test]
    fn a_gpt_whose_first_copy_is_lost_is_read_from_the_second() {
        let mut disk = with_gpt(LogicalBlockSize::Lb512);
        disk.get_mut()[512..1024].fill(0);
        assert!(matches!(read(&mut disk, 512), Found::Partitions(found) if found.len() == 2));
        let end = DISK - 512;
        disk.get_mut()[end..].fill(0);
        assert!(
            matches!(read(&mut disk, 512), Found::Damaged(why) if why.contains("GPT is damaged"))
        );
    }

    /// A disk whose header is as `change` makes it, and so is the copy, which is all that is there
    /// if it is `alone`.
    fn with_header(change: impl Fn(&mut Header), alone: bool) -> Cursor<Vec<u8>> {
        let size = LogicalBlockSize::Lb512;
        let mut disk = with_gpt(size);
        let mut header = read_header_from_arbitrary_device(&mut disk, size).unwrap();
        let mut copy = HeaderBuilder::from_header(&header).primary(false).build(size).unwrap();
        change(&mut header);
        header.write_primary(&mut disk, size).unwrap();
        change(&mut copy);
        // As many entries as there are may not fit in front of it.
        copy.part_start = header.part_start;
        copy.write_backup(&mut disk, size).unwrap();
        if alone {
            disk.get_mut()[512..1024].fill(0);
        }
        disk
    }

    #[test]
    fn a_gpt_whose_entries_have_another_size_or_number_is_damaged_and_no_panic() {
        for alone in [false, true] {
            for (change, says) in [
                ((|header| header.part_size = 256) as fn(&mut Header), "128 entries of 256"),
                (|header| header.part_size = 0, "128 entries of 0"),
                (|header| header.num_parts = 8192, "8192 entries of 128"),
            ] {
                let found = read(&mut with_header(change, alone), 512);
                assert!(matches!(&found, Found::Damaged(why) if why.contains(says)), "{found:?}");
            }
            let most = with_header(|header| header.num_parts = 1024, alone);
            assert!(matches!(read(&mut { most }, 512), Found::Partitions(all) if all.len() == 2));
        }
    }

    #[test]
    fn an_mbr_is_read_with_its_logical_partitions_and_without_what_holds_them() {
        let mut disk = with_mbr(&[(0x83, 64, 64), (0x05, 1024, 2048)]);
        entry(&mut disk, 1024, 0, 0x83, 32, 64);
        entry(&mut disk, 1024, 1, 0x05, 512, 128);
        entry(&mut disk, 1536, 0, 0x83, 32, 64);
        let wanted = vec![
            part(1, 64 * 512, 64 * 512),
            part(5, 1056 * 512, 64 * 512),
            part(6, 1568 * 512, 64 * 512),
        ];
        assert_eq!(read(&mut disk, 512), Found::Partitions(wanted));
    }

    #[test]
    fn a_chain_of_tables_that_leads_into_itself_ends() {
        let mut disk = with_mbr(&[(0x05, 1024, 2048)]);
        entry(&mut disk, 1024, 0, 0x83, 32, 64);
        entry(&mut disk, 1024, 1, 0x05, 512, 128);
        entry(&mut disk, 1536, 0, 0x83, 32, 64);
        entry(&mut disk, 1536, 1, 0x05, 512, 128);
        assert!(matches!(read(&mut disk, 512), Found::Damaged(why) if why.contains("MBR")));
    }

    #[test]
    fn a_table_whose_partitions_begin_with_it_is_read_and_refused_by_the_check() {
        let found = read(&mut with_mbr(&[(0x83, 0, 64)]), 512);
        let Found::Partitions(partitions) = found else { panic!("{found:?}") };
        assert!(crate::check(&partitions, DISK as u64, 512).unwrap_err().contains("from 0 on"));
    }

    #[test]
    fn a_logical_partition_whose_place_has_more_than_32_bits_is_passed_on() {
        let mut disk = with_mbr(&[(0x05, 1024, 2048)]);
        entry(&mut disk, 1024, 0, 0x83, u32::MAX, 64);
        let wanted = part(5, (u64::from(u32::MAX) + 1024) * 512, 64 * 512);
        assert_eq!(read(&mut disk, 512), Found::Partitions(vec![wanted]));
    }

    #[test]
    fn a_chain_of_more_tables_than_there_are_numbers_is_damaged() {
        let mut disk = with_mbr(&[(0x0f, 1024, 2048)]);
        for number in 0..300u32 {
            entry(&mut disk, 1024 + number as usize, 0, 0x83, 1, 1);
            entry(&mut disk, 1024 + number as usize, 1, 0x05, number + 1, 1);
        }
        assert!(matches!(read(&mut disk, 512), Found::Damaged(why) if why.contains("longer")));
    }

    #[test]
    fn an_empty_disk_and_a_file_system_without_a_table_have_no_partitions() {
        assert_eq!(read(&mut disk(), 512), Found::Partitions(Vec::new()));
        let mut boots = with_mbr(&[(0x83, 64, 64)]);
        boots.get_mut()[ENTRIES].copy_from_slice(&[b'x'; 64]);
        assert_eq!(read(&mut boots, 512), Found::Partitions(Vec::new()));
    }

    #[test]
    fn a_disk_that_ends_in_its_table_is_damaged() {
        assert!(matches!(
            read(&mut Cursor::new(vec![0; 100]), 512),
            Found::Damaged(why) if why.contains("cannot be read")
        ));
    }

    proptest! {
        #[test]
        fn what_an_mbr_says_is_passed_on_however_absurd(first in 1..u32::MAX, blocks in 1..u32::MAX) {
            let found = read(&mut with_mbr(&[(0x83, first, blocks)]), 512);
            let said = part(1, u64::from(first) * 512, u64::from(blocks) * 512);
            prop_assert_eq!(found, Found::Partitions(vec![said]));
        }
    }
}
