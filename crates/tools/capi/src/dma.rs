//! Memory that the device reaches.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Region};
use ring3_host::open::Attached;

use crate::device::Device;
use crate::error::{hand_out, take_back};

/// Bytes that the device reaches, of its arena or registered: mapped when the device was opened, or
/// when they were registered, so that no request maps anything.
pub struct Buffer {
    bytes: Bytes,
    /// Of an opened disk or card, which lives as long as its memory.
    _device: Option<Held>,
}

/// A device that ring3 drives for this program, until nothing of it is open. Only whoever drops it
/// last uses it, in whichever thread.
pub(crate) type Held = Arc<Mutex<Attached>>;

/// Whose bytes they are.
enum Bytes {
    /// The arena's.
    Allocated(DmaBuffer, Arena),
    /// The program's, where the device has them.
    Registered(Arc<Region>, u64),
}

impl Buffer {
    /// All of `region`, which the device has at `iova`.
    pub(crate) fn registered(region: Arc<Region>, iova: u64) -> Self {
        Self { bytes: Bytes::Registered(region, iova), _device: None }
    }

    /// The same, as memory of `device`.
    pub(crate) fn with_device(self, device: Held) -> Self {
        Self { _device: Some(device), ..self }
    }

    /// Its bytes from `offset` on as an arena of their own: from now on they are whoever's who has
    /// that.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<Arena, Error> {
        let Bytes::Allocated(bytes, arena) = &self.bytes else {
            return Err(Error::Invalid("bytes that were registered are no device's arena".into()));
        };
        let wrong =
            || Error::Invalid(format!("bytes {offset}+{len} of a buffer of {}", bytes.len()));
        let end = offset
            .checked_add(len)
            .filter(|&end| len > 0 && end <= bytes.len())
            .ok_or_else(wrong)?;
        let span = bytes.span();
        let placed = arena.regions().nth(span.region as usize).ok_or_else(wrong)?;
        // The arena has it, so that it fits.
        let first = span.offset as usize;
        Ok(Arena::with_range(placed.region.clone(), placed.iova, first + offset, first + end))
    }
}

/// Takes `len` bytes of the arena, in one piece for the device, zeroed, at a multiple of `align` (a
/// power of two). -ENOMEM says how large the arena is.
///
/// # Safety
/// `buffer` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_alloc(
    device: &Device,
    len: usize,
    align: usize,
    buffer: *mut *mut Buffer,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { hand_out(alloc(device.device.dma().arena(), len, align), buffer) }
}

pub(crate) fn alloc(arena: &Arena, len: usize, align: usize) -> Result<Buffer, Error> {
    let bytes = Bytes::Allocated(arena.alloc(len, align)?, arena.clone());
    Ok(Buffer { bytes, _device: None })
}

/// The largest `len` that ring3_dma_alloc can give now if the arena is not in pieces.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_free_bytes(device: &Device) -> usize {
    device.device.dma().arena().free_bytes()
}

/// Gives the bytes back. The device must be done with them. Those that were registered stay
/// registered.
///
/// # Safety
/// `buffer` was allocated and not given back, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_release(buffer: *mut Buffer) {
    // SAFETY: the caller's.
    unsafe { take_back(buffer) };
}

/// Ends the handle without giving the bytes back, ever: for a device that nobody could stop, and
/// that may still write there.
///
/// # Safety
/// `buffer` was allocated and not given back, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_abandon(buffer: *mut Buffer) {
    // SAFETY: the caller's.
    if let Some(buffer) = unsafe { buffer.as_mut() } {
        match &mut buffer.bytes {
            Bytes::Allocated(bytes, _) => bytes.abandon(),
            // Who has the region twice never unmaps it.
            Bytes::Registered(region, _) => std::mem::forget(region.clone()),
        }
    }
    // SAFETY: the caller's.
    unsafe { take_back(buffer) };
}

/// Where the bytes are in this process. The device may write them at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_address(buffer: &Buffer) -> *mut c_void {
    match &buffer.bytes {
        Bytes::Allocated(bytes, _) => bytes.as_ptr().cast(),
        Bytes::Registered(region, _) => region.as_ptr().cast(),
    }
}

/// Where the device finds them.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_iova(buffer: &Buffer) -> u64 {
    match &buffer.bytes {
        Bytes::Allocated(bytes, _) => bytes.iova(),
        Bytes::Registered(_, iova) => *iova,
    }
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_len(buffer: &Buffer) -> usize {
    match &buffer.bytes {
        Bytes::Allocated(bytes, _) => bytes.len(),
        Bytes::Registered(region, _) => region.len(),
    }
}
