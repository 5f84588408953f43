//! Reading a recording, a block at a time.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use ring3_device::Error;

use super::file::{Block, Kind, MAGIC, OLDEST, VERSION, damaged, fill};
use super::{End, Event, Header, Stamped};

trait Source: Read + Seek + Send {}
impl<T: Read + Seek + Send> Source for T {}

/// A recording that was opened and found to be whole; its events come one after the other.
pub struct Recording {
    /// What the device was.
    pub header: Header,
    end: Option<End>,
    file: Box<dyn Source>,
    at: u64,
    block: Vec<u8>,
    used: usize,
}

impl Recording {
    /// The one in the file at `path`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::os(format!("opening the recording {}", path.display()), error);
        let file = File::open(path).map_err(failed)?;
        Self::read(BufReader::new(file))
    }

    /// The one in `file`. [`Error::Claim`] if it is none, of another version, cut off or changed;
    /// [`Error::Invalid`] if events were lost.
    pub fn read(file: impl Read + Seek + Send + 'static) -> Result<Self, Error> {
        let mut file: Box<dyn Source> = Box::new(file);
        let (header, first) = begin(&mut file)?;
        let mut at = first;
        let mut end: Option<End> = None;
        while let Some(block) = Block::read(&mut file, &mut at)? {
            if end.is_some() || block.kind == Kind::Header {
                return Err(damaged(at, "there is something behind its end"));
            }
            if block.kind == Kind::End {
                end = Some(
                    postcard::from_bytes(&block.unpack()?).map_err(|error| block.wrong(&error))?,
                );
            }
        }
        if let Some(End { lost: lost @ 1.., .. }) = end {
            return Err(Error::Invalid(format!(
                "{lost} events are missing in the recording: record it again, to a faster file"
            )));
        }
        file.seek(std::io::SeekFrom::Start(first))
            .map_err(|error| Error::os("reading the recording", error))?;
        Ok(Self { header, end, file, at: first, block: Vec::new(), used: 0 })
    }

    /// How many events it has; `None` if whoever recorded it was killed.
    pub fn events(&self) -> Option<u64> {
        self.end.map(|end| end.events)
    }

    /// The next event; `None` at its end.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        Ok(self.next_stamped()?.map(|Stamped(_, event)| event))
    }

    /// The next event with its time; `None` at its end.
    pub(super) fn next_stamped(&mut self) -> Result<Option<Stamped>, Error> {
        while self.used == self.block.len() {
            let Some(block) = Block::read(&mut self.file, &mut self.at)?
                .filter(|block| block.kind == Kind::Events)
            else {
                return Ok(None);
            };
            (self.block, self.used) = (block.unpack()?, 0);
        }
        let rest = &self.block[self.used..];
        match postcard::take_from_bytes::<Stamped>(rest) {
            Ok((stamped, left)) => {
                self.used = self.block.len() - left.len();
                Ok(Some(stamped))
            }
            Err(error) => {
                Err(damaged(self.at, &format!("the block before holds no event: {error}")))
            }
        }
    }
}

/// What stands before the events, and how many bytes that is.
fn begin(file: &mut impl Read) -> Result<(Header, u64), Error> {
    let mut head = [0; 12];
    let got = fill(file, &mut head)?;
    let refuse = |what: String| Err(Error::Claim(what));
    let [magic @ .., v0, v1, v2, v3] = head;
    match (got, u32::from_le_bytes([v0, v1, v2, v3])) {
        (0, _) => {
            return refuse(
                "the recording is empty: whoever recorded it had no room, or was killed at once"
                    .into(),
            );
        }
        (12, OLDEST..=VERSION) if magic == MAGIC => {}
        (12, version) if magic == MAGIC => {
            return refuse(format!(
                "the recording has version {version}; this program reads versions {OLDEST} to \
                {VERSION}: record it again"
            ));
        }
        _ => return refuse("this is no recording: ring3 record makes one".into()),
    }
    let mut at = 12;
    let block = Block::read(file, &mut at)?.filter(|block| block.kind == Kind::Header);
    let block = block.ok_or_else(|| damaged(12, "it is cut off before its header"))?;
    let header: Header =
        postcard::from_bytes(&block.unpack()?).map_err(|error| block.wrong(&error))?;
    header.check().map(|()| (header, at))
}
