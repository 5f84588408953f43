//! Foreign memory: an application's own, not allocated for a device.

use std::sync::{Arc, Weak};

use super::{DmaBuffer, Region, bytes};
use crate::Error;

/// An allocation outside of the arena that a device may be pointed at. A clone is another handle on
/// the same bytes.
///
/// An owned allocation *becomes* foreign memory: nobody holds a reference to its bytes from then
/// on, because a device may write them. Whole pages ([`Foreign::new`], any mapped [`Region`]) can
/// be mapped for the device; a `Vec` or a boxed slice shares its pages with others, so its bytes
/// are copied through the arena instead.
#[derive(Clone, Debug)]
pub struct Foreign {
    handle: Arc<Handle>,
}

/// What the users of an allocation share; mappings of it hold the region alone.
#[derive(Debug)]
pub(super) struct Handle {
    region: Arc<Region>,
}

impl Foreign {
    /// `len` zeroed bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self, Error> {
        Region::anonymous(len).map(Self::from)
    }

    /// Its number, never used twice in this process.
    pub fn id(&self) -> u64 {
        self.region().id()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.region().is_empty()
    }

    /// Where it lies in this process, for a kernel interface that takes an address. Never make a
    /// reference of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region().as_ptr()
    }

    /// The bytes, for a mapping that must outlive its users.
    pub fn region(&self) -> &Arc<Region> {
        &self.handle.region
    }

    /// Tells whether anyone still uses the bytes, without being a user.
    pub(super) fn users(&self) -> Weak<Handle> {
        Arc::downgrade(&self.handle)
    }

    /// Copies `bytes.len()` bytes out, from `offset` on.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.region().read(offset, bytes)
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.region().write(offset, bytes)
    }

    /// Copies `len` bytes from `offset` on to `buffer[at..]`.
    pub(super) fn copy_to(
        &self,
        offset: usize,
        buffer: &DmaBuffer,
        at: usize,
        len: usize,
    ) -> Result<(), Error> {
        let (from, to) = (self.region().at(offset, len)?, buffer.checked(at, len)?);
        // SAFETY: both ranges were checked.
        unsafe { bytes::copy(from, to, len) };
        Ok(())
    }

    /// Copies `len` bytes from `buffer[at..]` to `offset`.
    pub(super) fn copy_from(
        &self,
        offset: usize,
        buffer: &DmaBuffer,
        at: usize,
        len: usize,
    ) -> Result<(), Error> {
        let (to, from) = (self.region().at(offset, len)?, buffer.checked(at, len)?);
        // SAFETY: both ranges were checked.
        unsafe { bytes::copy(from, to, len) };
        Ok(())
    }
}

impl From<Region> for Foreign {
    fn from(region: Region) -> Self {
        Arc::new(region).into()
    }
}

impl From<Arc<Region>> for Foreign {
    fn from(region: Arc<Region>) -> Self {
        Self { handle: Arc::new(Handle { region }) }
    }
}

impl From<Box<[u8]>> for Foreign {
    fn from(bytes: Box<[u8]>) -> Self {
        Region::from(bytes).into()
    }
}

impl From<Vec<u8>> for Foreign {
    fn from(bytes: Vec<u8>) -> Self {
        bytes.into_boxed_slice().into()
    }
}
