//! What a driver that is killed leaves behind besides its disk: a file that says what it wrote and
//! what of that it acknowledged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Error;

/// Blocks that are written and read.
pub const BLOCKS: u64 = 512;

/// Words before those of the blocks.
const HEADER: u64 = 8;

/// Numbers beside those of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The life whose first request has ended.
    Alive,
    /// When that was, in nanoseconds of the machine's monotonic clock.
    FirstEnd,
    /// The life that has checked every block and writes now.
    Underway,
    /// Writes that were acknowledged, in all lives.
    Writes,
    /// Blocks that were read and right.
    Reads,
    /// Blocks that were read and wrong.
    Mismatches,
    /// The life that is wanted to leave.
    Leave,
    /// When the last request ended that a life which left has seen, by the clock of
    /// [`FirstEnd`](Self::FirstEnd).
    LastEnd,
}

/// The write that a block must hold: the last that was acknowledged, or one after it that was only
/// submitted. 0: never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The last that was submitted.
    pub submitted: u64,
    /// The last that was acknowledged.
    pub acknowledged: u64,
}

/// The file. What is set is there for the next process at once, however this one ends.
pub struct Journal(File);

impl Journal {
    /// An empty one at `path`.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let made =
            File::options().create_new(true).read(true).write(true).open(path).and_then(|file| {
                file.set_len((HEADER + 2 * BLOCKS) * 8)?;
                Ok(Self(file))
            });
        made.map_err(|error| Error::os(format!("making {}", path.display()), error))
    }

    /// The one that is there.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::options().read(true).write(true).open(path);
        file.map(Self).map_err(|error| Error::os(format!("opening {}", path.display()), error))
    }

    /// A number.
    pub fn get(&self, word: Word) -> Result<u64, Error> {
        self.read(word as u64)
    }

    /// Sets a number.
    pub fn set(&self, word: Word, value: u64) -> Result<(), Error> {
        self.write(word as u64, &[value])
    }

    /// What is known of `block`.
    pub fn entry(&self, block: u64) -> Result<Entry, Error> {
        let at = HEADER + 2 * block;
        Ok(Entry { submitted: self.read(at)?, acknowledged: self.read(at + 1)? })
    }

    /// Notes what is known of `block`.
    pub fn note(&self, block: u64, entry: Entry) -> Result<(), Error> {
        self.write(HEADER + 2 * block, &[entry.submitted, entry.acknowledged])
    }

    fn read(&self, word: u64) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.0
            .read_exact_at(&mut bytes, word * 8)
            .map_err(|error| Error::os("reading the journal", error))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn write(&self, word: u64, values: &[u64]) -> Result<(), Error> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.0
            .write_all_at(&bytes, word * 8)
            .map_err(|error| Error::os("writing the journal", error))
    }
}
