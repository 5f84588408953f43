//! A kernel block device, or a file, read as the papers' program reads it: one system call after
//! the other.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::buffers::Buffers;
use super::file::{self, FileOptions};
use super::{Done, Target};
use crate::Error;

/// An open file and one buffer. It holds one request at a time, and reads only.
pub struct Pread {
    file: std::fs::File,
    memory: Buffers,
    name: String,
    capacity: u64,
    /// Offset and bytes of the request that was queued.
    queued: Option<(u64, u32)>,
    done: Option<Done>,
}

impl Pread {
    /// Opens `path` without the page cache, for requests of up to `bytes` bytes.
    pub fn open(path: &Path, bytes: u32, direct: bool) -> Result<Self, Error> {
        let (file, capacity) = file::open(path, FileOptions { write: false, direct })?;
        let memory = Buffers::new(1, bytes as usize)?;
        Ok(Self {
            file,
            memory,
            name: path.display().to_string(),
            capacity,
            queued: None,
            done: None,
        })
    }
}

impl Target for Pread {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        1
    }

    #[inline]
    fn queue(&mut self, _: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        if write || self.queued.is_some() {
            return Err(Error::Invalid(format!(
                "{}: one read at a time, and no writes",
                self.name
            )));
        }
        self.queued = Some((offset, len));
        Ok(())
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        let Some((offset, len)) = self.queued.take() else { return Ok(()) };
        let read = loop {
            match self.file.read_at(self.memory.first(len)?, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.done = Some(Done { slot: 0, ok: read.is_ok_and(|read| read == len as usize) });
        Ok(())
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        Ok(self.done.take())
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.memory.fill(slot, bytes)
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.copy_out(slot, bytes)
    }
}
