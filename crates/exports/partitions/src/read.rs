//! What a table says. Nothing that it says is believed, and it may make this fail in any way: by an
//! error, by a panic, by taking all memory or all time.

use std::fmt::Debug;
use std::io::{self, Read, Seek, SeekFrom, Write};

use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use mbrman::MBR;

use crate::{Found, MOST, Partition};

/// Bytes of the sector that every table begins with.
const SECTOR: usize = 512;
/// Where its four entries are, and how long each is.
const ENTRIES: std::ops::Range<usize> = 446..510;
const ENTRY: usize = 16;
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The type of an entry that says that a GPT follows.
const PROTECTIVE: u8 = 0xee;

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

/// Of a table of four entries and a chain of others.
fn slots(
    mut disk: &mut (impl Read + Write + Seek + Debug),
    block: u32,
) -> Result<Vec<Partition>, String> {
    let table =
        MBR::read_from(&mut disk, block).map_err(|error| format!("its MBR is damaged: {error}"))?;
    let used = table
        .iter()
        .filter(|(_, entry)| entry.is_used() && !entry.is_extended() && entry.sectors > 0);
    let of = |(number, entry): (usize, &mbrman::MBRPartitionEntry)| {
        place(
            number as u32,
            entry.starting_lba.into(),
            u64::from(entry.sectors).checked_sub(1),
            block,
        )
    };
    used.map(of).collect()
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
