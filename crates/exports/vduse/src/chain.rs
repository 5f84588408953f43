//! A chain of descriptors: what a driver offers at once. [virtio 2.7]

use crate::memory::{Memory, Place};
use crate::{Access, Fault};

/// What a driver has offered: pieces to read, and behind them pieces to write. It is filled again
/// and again, and never grows.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    head: u16,
    pieces: Vec<Place>,
    /// Of these, how many are to be read.
    readable_pieces: usize,
    readable: u32,
    writable: u32,
}

impl Chain {
    /// With room for so many pieces; longer chains are refused as [`Fault::Long`].
    pub fn with_capacity(pieces: usize) -> Self {
        Self { pieces: Vec::with_capacity(pieces), ..Self::default() }
    }

    /// By which it is [given back](crate::Queue::put).
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Bytes that the device reads.
    pub fn readable(&self) -> u32 {
        self.readable
    }

    /// Bytes that the device writes.
    pub fn writable(&self) -> u32 {
        self.writable
    }

    pub(crate) fn begin(&mut self, head: u16) {
        self.pieces.clear();
        (self.head, self.readable_pieces, self.readable, self.writable) = (head, 0, 0, 0);
    }

    /// A piece more. None of no bytes.
    #[inline]
    pub(crate) fn push(&mut self, place: Place, access: Access) -> Result<(), Fault> {
        let (bytes, long) = (
            if access == Access::Read { &mut self.readable } else { &mut self.writable },
            Fault::Long(self.head),
        );
        *bytes = bytes.checked_add(place.len).ok_or(long)?;
        if access == Access::Read && self.pieces.len() != self.readable_pieces {
            return Err(Fault::Order(self.head));
        }
        if self.pieces.len() == self.pieces.capacity() {
            return Err(long);
        }
        self.readable_pieces += usize::from(access == Access::Read);
        self.pieces.push(place);
        Ok(())
    }

    /// Copies up to `len` bytes out, from byte `skip` of what is to be read on; returns how many.
    ///
    /// # Safety
    /// `to` has room for `len` bytes.
    #[inline]
    pub unsafe fn read_raw(&self, memory: &Memory, skip: u32, to: *mut u8, len: u32) -> u32 {
        walk(memory, &self.pieces[..self.readable_pieces], skip, len, |from, at, count| {
            // SAFETY: the caller's promise, and `walk`'s: both have `count` bytes there. The driver
            // may write meanwhile: any bytes will do.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(at), count) }
        })
    }

    /// Copies up to `len` bytes in, from byte `skip` of what is to be written on; returns how many.
    ///
    /// # Safety
    /// `from` has `len` bytes.
    #[inline]
    pub unsafe fn write_raw(&self, memory: &Memory, skip: u32, from: *const u8, len: u32) -> u32 {
        walk(memory, &self.pieces[self.readable_pieces..], skip, len, |to, at, count| {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from.add(at), to, count) }
        })
    }

    /// As [`read_raw`](Self::read_raw), into bytes of this process alone.
    #[inline]
    pub fn read(&self, memory: &Memory, skip: u32, to: &mut [u8]) -> u32 {
        // SAFETY: the slice has so many bytes.
        unsafe { self.read_raw(memory, skip, to.as_mut_ptr(), to.len() as u32) }
    }

    /// As [`write_raw`](Self::write_raw), of bytes of this process alone.
    #[inline]
    pub fn write(&self, memory: &Memory, skip: u32, from: &[u8]) -> u32 {
        // SAFETY: the slice has so many bytes.
        unsafe { self.write_raw(memory, skip, from.as_ptr(), from.len() as u32) }
    }
}

/// Goes through `len` bytes of `pieces` from `skip` on; `copy` is told where they are, how many
/// came before, and how many these are. Returns how many there were.
#[inline]
fn walk(
    memory: &Memory,
    pieces: &[Place],
    mut skip: u32,
    len: u32,
    mut copy: impl FnMut(*mut u8, usize, usize),
) -> u32 {
    let mut done = 0;
    for &piece in pieces {
        if done == len {
            break;
        }
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let count = (piece.len - skip).min(len - done);
        // A place of another driver's time is none any more.
        let Some(at) = memory.pointer(piece, skip, count) else { break };
        copy(at.as_ptr(), done as usize, count as usize);
        (skip, done) = (0, done + count);
    }
    done
}
