//! Blocks of a recording's file.

use std::io::{self, Read, Write};

use ring3_device::Error;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde::Serialize;

use super::{End, Header, Stamped};

pub(super) const MAGIC: [u8; 8] = *b"R3RECORD";
/// The version that is written, and the oldest that is read.
pub(super) const VERSION: u32 = 4;
pub(super) const OLDEST: u32 = 2;
/// Bytes of events after which a block is full; the event that fills it is whole.
const FULL: usize = 1 << 16;
/// Bytes of a block, packed or not, at most: twice what a writer makes.
const LARGEST: usize = 1 << 18;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Header = 1,
    Events = 2,
    End = 3,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Header, Self::Events, Self::End].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Writes a recording.
pub(crate) struct Writer<W> {
    file: W,
    events: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(file: W, header: &Header) -> io::Result<Self> {
        let mut writer = Self { file, events: Vec::new() };
        writer.file.write_all(&MAGIC)?;
        writer.file.write_all(&VERSION.to_le_bytes())?;
        writer.block(Kind::Header, &encode(header)?)?;
        Ok(writer)
    }

    pub(crate) fn add(&mut self, event: &Stamped) -> io::Result<()> {
        self.events = postcard::to_extend(event, std::mem::take(&mut self.events))
            .map_err(io::Error::other)?;
        if self.events.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Writes what has not filled a block yet.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.events.is_empty() {
            return Ok(());
        }
        let events = std::mem::take(&mut self.events);
        self.block(Kind::Events, &events)
    }

    pub(crate) fn end(mut self, end: End) -> io::Result<()> {
        self.flush()?;
        self.block(Kind::End, &encode(&end)?)
    }

    /// One call of `write`, so that a process that is killed leaves whole blocks.
    fn block(&mut self, kind: Kind, content: &[u8]) -> io::Result<()> {
        let packed = compress_to_vec(content, CompressionLevel::Fastest);
        let mut block = vec![kind as u8];
        block.extend((packed.len() as u32).to_le_bytes());
        block.extend(crc32fast::hash(&packed).to_le_bytes());
        block.extend(&packed);
        self.file.write_all(&block)?;
        self.file.flush()
    }
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(io::Error::other)
}

pub(super) fn damaged(at: u64, what: &str) -> Error {
    Error::Claim(format!("the recording is damaged at byte {at}: {what}"))
}

fn failed(error: io::Error) -> Error {
    Error::os("reading the recording", error)
}

/// Fills `bytes` as far as the file goes.
pub(super) fn fill(file: &mut impl Read, bytes: &mut [u8]) -> Result<usize, Error> {
    let mut got = 0;
    while got < bytes.len() {
        match file.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(got)
}

/// A block of a file, still packed.
pub(super) struct Block {
    pub(super) kind: Kind,
    at: u64,
    packed: Vec<u8>,
}

impl Block {
    /// The next one, which begins at byte `at`; `None` at the end of the file.
    pub(super) fn read(file: &mut impl Read, at: &mut u64) -> Result<Option<Self>, Error> {
        let mut head = [0; 9];
        match fill(file, &mut head)? {
            0 => return Ok(None),
            9 => {}
            _ => return Err(damaged(*at, "it is cut off here")),
        }
        let [kind, len @ .., c0, c1, c2, c3] = head;
        let (len, crc) = (u32::from_le_bytes(len) as usize, u32::from_le_bytes([c0, c1, c2, c3]));
        let kind = Kind::of(kind)
            .filter(|_| len <= LARGEST)
            .ok_or_else(|| damaged(*at, "no block begins here"))?;
        let mut packed = vec![0; len];
        if fill(file, &mut packed)? < len {
            return Err(damaged(*at, "it is cut off in the block that begins here"));
        }
        if crc32fast::hash(&packed) != crc {
            return Err(damaged(*at, "the block's check sum is wrong"));
        }
        let block = Self { kind, at: *at, packed };
        *at += 9 + len as u64;
        Ok(Some(block))
    }

    /// Its content.
    pub(super) fn unpack(&self) -> Result<Vec<u8>, Error> {
        let wrong = |what: &dyn std::fmt::Display| {
            damaged(self.at, &format!("its block cannot be unpacked: {what}"))
        };
        let decoder = StreamingDecoder::new(&self.packed[..]).map_err(|error| wrong(&error))?;
        let mut content = Vec::new();
        decoder
            .take(LARGEST as u64 + 1)
            .read_to_end(&mut content)
            .map_err(|error| wrong(&error))?;
        if content.len() > LARGEST { Err(wrong(&"it is larger than a block")) } else { Ok(content) }
    }

    pub(super) fn wrong(&self, error: &postcard::Error) -> Error {
        damaged(self.at, &format!("its block holds no {:?}: {error}", self.kind))
    }
}
