//! Partition tables: `ring3_partitions::read`, and `check` of what it found.
//!
//! The attacker is the disk: its blocks hold anything. The input is the start and the end of the
//! disk; everything between is zero. Check sums of a GPT are made right on request, so that what
//! is behind them is reached.
//!
//! Promises: reading ends after a bounded number of bytes, takes a bounded amount of memory and
//! writes nothing; the same disk says the same; what the process that reads says is what the one
//! that asked hears; partitions that were checked lie on the disk, in whole blocks, apart from each
//! other and from the table. A panic of the reader is harmless in ring3d, where it is a process of
//! its own, and is a find here.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::{Input, memory};
use ring3_partitions::{Found, MOST, check, read};

/// Bytes that reading a table takes off the disk, at most; a chain of logical partitions has its
/// own sector for each.
const MOST_READ: u64 = 64 << 20;
/// Bytes of memory.
const MEMORY: usize = 64 << 20;

/// A disk that counts what is read.
#[derive(Debug)]
struct Disk {
    start: Vec<u8>,
    end: Vec<u8>,
    bytes: u64,
    at: u64,
    read: u64,
}

impl Disk {
    fn of(input: &mut Input<'_>) -> (Self, u32) {
        let block = if input.u8().is_multiple_of(2) { 512 } else { 4096 };
        let blocks = 64 + u64::from(input.u16()) * u64::from(input.u8() % 16 + 1);
        let (sums, cut) = (input.u8(), usize::from(input.u16()));
        let bytes = blocks * u64::from(block);
        let start = input.bytes(cut).to_vec();
        let end = input.rest().to_vec();
        let end = end[..end.len().min(bytes as usize / 2)].to_vec();
        let start = start[..start.len().min(bytes as usize / 2)].to_vec();
        let mut disk = Self { start, end, bytes, at: 0, read: 0 };
        if sums & 1 != 0 {
            disk.sum(u64::from(block), block.into());
        }
        if sums & 2 != 0 {
            disk.sum(bytes - u64::from(block), block.into());
        }
        (disk, block)
    }

    /// The bytes from `at` on, without counting.
    fn peek(&self, at: u64, to: &mut [u8]) {
        let end = self.bytes - self.end.len() as u64;
        for (at, byte) in (at..).zip(to) {
            let known = match at.checked_sub(end) {
                Some(at) => self.end.get(at as usize),
                None => self.start.get(at as usize),
            };
            *byte = known.copied().unwrap_or(0);
        }
    }

    fn poke(&mut self, at: u64, from: &[u8]) {
        let end = self.bytes - self.end.len() as u64;
        for (at, &byte) in (at..).zip(from) {
            let known = match at.checked_sub(end) {
                Some(at) => self.end.get_mut(at as usize),
                None => self.start.get_mut(at as usize),
            };
            if let Some(known) = known {
                *known = byte;
            }
        }
    }

    /// Makes the check sums of the header at `at` right.
    fn sum(&mut self, at: u64, block: u64) {
        let mut header = [0; 92];
        self.peek(at, &mut header);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (count, size) = (u64::from(word(80)), u64::from(word(84)));
        let table = u64::from(word(72)).wrapping_mul(block);
        if let Some(len) = count.checked_mul(size).filter(|len| *len <= 1 << 16) {
            let mut entries = vec![0; len as usize];
            if table < self.bytes {
                self.peek(table, &mut entries);
            }
            header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        }
        header[16..20].fill(0);
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        let sum = crc32fast::hash(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        self.poke(at, &header);
    }
}

impl Read for Disk {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = (to.len() as u64).min(self.bytes.saturating_sub(self.at)) as usize;
        self.peek(self.at, &mut to[..len]);
        self.at += len as u64;
        self.read += len as u64;
        assert!(self.read <= MOST_READ, "{} bytes were read for one table", self.read);
        Ok(len)
    }
}

impl Write for Disk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        panic!("the disk is written");
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.bytes, by),
            SeekFrom::Current(by) => (self.at, by),
        };
        // As lseek(2): no place is behind 2^63.
        let at = from.checked_add_signed(by).filter(|at| i64::try_from(*at).is_ok());
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let (mut disk, block) = Disk::of(&mut Input::new(data));
    let found = memory::bounded(MEMORY, || read(&mut disk, block));
    (disk.at, disk.read) = (0, 0);
    assert_eq!(found, read(&mut disk, block), "the same disk says two things");
    let text = serde_json::to_vec(&found).unwrap();
    assert_eq!(serde_json::from_slice::<Found>(&text).unwrap(), found);
    let Found::Partitions(partitions) = found else { return };
    assert!(partitions.len() <= MOST);
    if check(&partitions, disk.bytes, block).is_err() {
        return;
    }
    for (index, one) in partitions.iter().enumerate() {
        let end = one.start + one.bytes;
        assert!((1..=255).contains(&one.number) && one.bytes > 0 && end <= disk.bytes, "{one:?}");
        assert!(one.start >= block.into() && one.start % u64::from(block) == 0, "{one:?}");
        for other in &partitions[index + 1..] {
            let apart = end <= other.start || other.start + other.bytes <= one.start;
            assert!(apart && one.number != other.number, "{one:?} {other:?}");
        }
    }
}
