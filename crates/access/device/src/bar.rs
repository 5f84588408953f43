//! Base address registers (BARs), and typed accesses to them. A BAR is mapped into the process if
//! the backend can do so; otherwise each access is a call.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_spec::register::{PureRead, Reg, SideEffectRead, Value, Width, Writable};

use crate::Error;
use crate::order::{before_register, take_back};

/// What a base address register says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BarInfo {
    /// Bytes.
    pub len: u64,
    /// Ports, not memory.
    pub ports: bool,
}

/// How a backend reaches what is not mapped: ports, holes in a mapping, devices that are models.
///
/// `width` is 1, 2, 4 or 8 bytes; values are in the low bits. Where the bus cannot move 8 at once,
/// it takes two of 4, the low half first.
pub trait Access: Send + Sync + 'static {
    /// Bytes.
    fn len(&self) -> u64;
    /// Whether there is nothing behind it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads `width` bytes at byte `offset`; all ones where there is nothing.
    fn read(&self, offset: u64, width: usize) -> u64;
    /// Writes `width` bytes at byte `offset`; nothing where there is nothing.
    fn write(&self, offset: u64, width: usize, value: u64);
    /// Reads 8 bytes as two times 4, the low half first.
    fn read_halves(&self, offset: u64) -> u64 {
        let low = self.read(offset, 4) & u64::from(u32::MAX);
        low | offset.checked_add(4).map_or(u64::MAX, |high| self.read(high, 4)) << 32
    }
    /// Writes 8 bytes as two times 4, the low half first.
    fn write_halves(&self, offset: u64, value: u64) {
        self.write(offset, 4, value & u64::from(u32::MAX));
        if let Some(high) = offset.checked_add(4) {
            self.write(high, 4, value >> 32);
        }
    }
    /// Reads words of `width` bytes from one `offset` until `bytes` is full; a rest of less than a
    /// word is left alone.
    fn read_string(&self, offset: u64, width: usize, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(width) {
            word.copy_from_slice(&self.read(offset, width).to_le_bytes()[..width]);
        }
    }
    /// Writes the words of `width` bytes in `bytes` to one `offset`, without a rest of less than a
    /// word.
    fn write_string(&self, offset: u64, width: usize, bytes: &[u8]) {
        for word in bytes.chunks_exact(width) {
            self.write(
                offset,
                width,
                word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)),
            );
        }
    }
}

/// The range of one base address register, memory or ports. Cloning it is cheap: it is a handle,
/// and keeps the claim of its device.
///
/// An access that lies outside of the range, or that meets a device that is gone, reads all ones
/// and writes nothing.
///
/// # Ordering
/// Accesses through one handle, and through clones of it on one thread, reach the device in program
/// order. A write may be posted; a read from the same function pushes it out. Ordering between
/// memory and a doorbell is the ring's business.
#[derive(Clone)]
pub struct Bar {
    window: Window,
    access: Arc<dyn Access>,
}

/// The mapped start of a BAR; empty where nothing is mapped.
#[derive(Clone, Copy)]
struct Window {
    base: NonNull<u8>,
    len: u64,
    gone: &'static AtomicBool,
}

// SAFETY: the memory is only accessed by volatile reads and writes, which a device's registers
// allow from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Where nothing is mapped.
    fn none() -> Self {
        static GONE: AtomicBool = AtomicBool::new(true);
        Self { base: NonNull::dangling(), len: 0, gone: &GONE }
    }

    /// Where the word at `offset` is, if it is mapped and aligned.
    #[inline]
    fn word<T>(&self, offset: u64) -> Option<*mut T> {
        let size = size_of::<T>() as u64;
        // One comparison says both: what keeps an offset from being a multiple of the size is
        // rotated to the top and makes it too large.
        let mapped = offset.rotate_right(size.trailing_zeros()) < self.len / size;
        // SAFETY: `offset` is within the window.
        mapped.then(|| unsafe { self.base.as_ptr().add(offset as usize).cast() })
    }

    #[inline]
    fn read<T: Copy>(&self, offset: u64) -> Option<T> {
        // SAFETY: within the window and aligned; whoever has made the `Bar` answers for the
        // mapping.
        let value = unsafe { self.word::<T>(offset)?.read_volatile() };
        // Whoever read from what stands in for a device that has vanished also sees the mark.
        take_back();
        (!self.gone.load(Ordering::Relaxed)).then_some(value)
    }
}

macro_rules! accesses {
    ($($t:ty: $read:ident $write:ident $bits:literal),*) => {$(
        #[doc = concat!("Reads ", $bits, " bits at byte `offset`.")]
        #[inline]
        pub fn $read(&self, offset: u64) -> $t {
            match self.window.read(offset) {
                Some(value) => value,
                None => self.access.read(offset, size_of::<$t>()) as $t,
            }
        }
        #[doc = concat!("Writes ", $bits, " bits at byte `offset`.")]
        #[inline]
        pub fn $write(&self, offset: u64, value: $t) {
            match self.window.word::<$t>(offset) {
                Some(word) => {
                    before_register();
                    // SAFETY: within the window and aligned; whoever has made the `Bar` answers for
                    // the mapping.
                    unsafe { word.write_volatile(value) }
                }
                None => self.access.write(offset, size_of::<$t>(), value.into()),
            }
        }
    )*};
}

impl Bar {
    /// A BAR that is reached by calls.
    pub fn new(access: Arc<dyn Access>) -> Self {
        Self { window: Window::none(), access }
    }

    /// A BAR whose first `len` bytes are mapped at `base`; `access` is asked for all else, and once
    /// `gone` is set, for reads of these, too.
    ///
    /// # Safety
    /// The mapping lives as long as `access`, is aligned to 8 bytes, and is accessed by nobody but
    /// as registers are. If the device may vanish from it, accesses go on without harm, and `gone`
    /// is set before other memory is seen there.
    pub unsafe fn mapped(
        access: Arc<dyn Access>,
        base: NonNull<u8>,
        len: u64,
        gone: &'static AtomicBool,
    ) -> Self {
        Self { window: Window { base, len, gone }, access }
    }

    /// The same BAR with at most its first `len` bytes mapped; `rest` is asked for all else, as the
    /// access of [`Bar::mapped`] is.
    pub fn with_rest(&self, len: u64, rest: Arc<dyn Access>) -> Self {
        let window = Window { len: self.window.len.min(len), ..self.window };
        Self { window, access: Arc::new(Rest { _mapped: self.clone(), rest }) }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.access.len()
    }

    /// Whether there is nothing behind it.
    pub fn is_empty(&self) -> bool {
        self.access.is_empty()
    }

    /// Bytes at its start that are reached without a call.
    pub fn mapped_len(&self) -> u64 {
        self.window.len
    }

    /// Where these lie in this process, for an interface in another language whose accesses are
    /// volatile and aligned; `None` where nothing is mapped. Valid while a handle lives.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        (self.window.len > 0).then_some(self.window.base)
    }

    accesses!(
        u8: read8 write8 "8", u16: read16 write16 "16", u32: read32 write32 "32",
        u64: read64 write64 "64"
    );

    /// Reads words of 16 bits from one `offset`, as a data port gives them, lowest byte first. An
    /// odd last byte is left alone.
    pub fn read_string16(&self, offset: u64, bytes: &mut [u8]) {
        self.access.read_string(offset, 2, bytes);
    }
    /// Writes words of 16 bits to one `offset`, lowest byte first. An odd last byte is left out.
    pub fn write_string16(&self, offset: u64, bytes: &[u8]) {
        self.access.write_string(offset, 2, bytes);
    }
    /// As [`read_string16`](Bar::read_string16) in words of 32 bits, for a data port that takes
    /// such accesses.
    pub fn read_string32(&self, offset: u64, bytes: &mut [u8]) {
        self.access.read_string(offset, 4, bytes);
    }
    /// As [`write_string16`](Bar::write_string16) in words of 32 bits, for a data port that takes
    /// such accesses.
    pub fn write_string32(&self, offset: u64, bytes: &[u8]) {
        self.access.write_string(offset, 4, bytes);
    }
}

/// What is asked instead of a BAR that stays mapped in part.
struct Rest {
    /// Keeps the mapping.
    _mapped: Bar,
    rest: Arc<dyn Access>,
}

impl Access for Rest {
    fn len(&self) -> u64 {
        self.rest.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        self.rest.read(offset, width)
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        self.rest.write(offset, width, value);
    }
    fn read_string(&self, offset: u64, width: usize, bytes: &mut [u8]) {
        self.rest.read_string(offset, width, bytes);
    }
    fn write_string(&self, offset: u64, width: usize, bytes: &[u8]) {
        self.rest.write_string(offset, width, bytes);
    }
}

/// For whoever stands around a BAR.
impl Access for Bar {
    fn len(&self) -> u64 {
        self.access.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        match width {
            1 => self.read8(offset).into(),
            2 => self.read16(offset).into(),
            4 => self.read32(offset).into(),
            _ => self.read64(offset),
        }
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        match width {
            1 => self.write8(offset, value as u8),
            2 => self.write16(offset, value as u16),
            4 => self.write32(offset, value as u32),
            _ => self.write64(offset, value),
        }
    }
    fn read_string(&self, offset: u64, width: usize, bytes: &mut [u8]) {
        self.access.read_string(offset, width, bytes);
    }
    fn write_string(&self, offset: u64, width: usize, bytes: &[u8]) {
        self.access.write_string(offset, width, bytes);
    }
}

/// Ties a register's width to the access of that width.
pub trait BusWidth: Width {
    /// Reads this width.
    fn read_from(bar: &Bar, offset: u64) -> Self;
    /// Writes this width.
    fn write_to(self, bar: &Bar, offset: u64);
}

macro_rules! bus_width {
    ($($t:ty: $read:ident $write:ident),*) => {$(
        impl BusWidth for $t {
            fn read_from(bar: &Bar, offset: u64) -> Self { bar.$read(offset) }
            fn write_to(self, bar: &Bar, offset: u64) { bar.$write(offset, self) }
        }
    )*};
}
bus_width!(u8: read8 write8, u16: read16 write16, u32: read32 write32, u64: read64 write64);

/// The registers of a device, accessed only as their declaration allows: a read with a side effect
/// takes `&mut self`.
pub struct Registers {
    bar: Bar,
}

impl Registers {
    /// The registers behind `bar`, which must hold at least `needed` bytes.
    pub fn new(bar: Bar, needed: u64) -> Result<Self, Error> {
        if bar.len() < needed {
            return Err(Error::Protocol(format!(
                "a BAR of {} bytes cannot hold registers up to {needed}",
                bar.len()
            )));
        }
        Ok(Self { bar })
    }

    /// The raw range, for doorbells and for handles of other threads.
    pub fn bar(&self) -> &Bar {
        &self.bar
    }

    /// Reads a register whose read changes nothing.
    pub fn read<T: Value<Raw: BusWidth>, A: PureRead>(&self, register: Reg<T, A>) -> T {
        T::from_raw(T::Raw::read_from(&self.bar, register.offset()))
    }

    /// Reads a register that is never all ones on a living device.
    pub fn read_alive<T: Value<Raw: BusWidth>, A: PureRead>(
        &self,
        register: Reg<T, A>,
    ) -> Result<T, Error> {
        let raw = T::Raw::read_from(&self.bar, register.offset());
        if raw == T::Raw::ALL_ONES { Err(Error::Gone) } else { Ok(T::from_raw(raw)) }
    }

    /// Reads a register whose read changes the device.
    pub fn take<T: Value<Raw: BusWidth>, A: SideEffectRead>(&mut self, register: Reg<T, A>) -> T {
        T::from_raw(T::Raw::read_from(&self.bar, register.offset()))
    }

    /// Writes a register.
    pub fn write<T: Value<Raw: BusWidth>, A: Writable>(&self, register: Reg<T, A>, value: T) {
        value.into_raw().write_to(&self.bar, register.offset());
    }
}

#[cfg(test)]
mod tests;
