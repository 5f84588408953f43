//! Base address registers: the raw accesses that a backend offers, and the typed accesses that a driver makes.

use ring3_spec::register::{PureRead, Reg, SideEffectRead, Value, Width, Writable};

use crate::Error;

/// The range of one base address register, memory or ports. Cloning it is cheap: it is a handle.
///
/// An access that lies outside of the range, or that meets a device that is gone, reads all ones and writes nothing.
///
/// # Ordering
/// Accesses through one handle, and through clones of it on one thread, reach the device in program order. A write may be
/// posted; a read from the same function pushes it out. Ordering between memory and a doorbell is the ring's business.
pub trait Bar: Clone + Send + Sync + 'static {
    /// Bytes.
    fn len(&self) -> u64;
    /// Whether there is nothing behind it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads 8 bits at byte `offset`.
    fn read8(&self, offset: u64) -> u8;
    /// Reads 16 bits at byte `offset`.
    fn read16(&self, offset: u64) -> u16;
    /// Reads 32 bits at byte `offset`.
    fn read32(&self, offset: u64) -> u32;
    /// Reads 64 bits at byte `offset`; two 32-bit reads, low half first, where the bus cannot do it in one.
    fn read64(&self, offset: u64) -> u64;
    /// Writes 8 bits at byte `offset`.
    fn write8(&self, offset: u64, value: u8);
    /// Writes 16 bits at byte `offset`.
    fn write16(&self, offset: u64, value: u16);
    /// Writes 32 bits at byte `offset`.
    fn write32(&self, offset: u64, value: u32);
    /// Writes 64 bits at byte `offset`; two 32-bit writes, low half first, where the bus cannot do it in one.
    fn write64(&self, offset: u64, value: u64);
    /// Reads `bytes.len() / 2` words of 16 bits from one `offset`, as a data port gives them, lowest byte first. An odd last byte is
    /// left alone.
    fn read_string16(&self, offset: u64, bytes: &mut [u8]) {
        bytes.chunks_exact_mut(2).for_each(|word| word.copy_from_slice(&self.read16(offset).to_le_bytes()));
    }
    /// Writes `bytes.len() / 2` words of 16 bits to one `offset`, lowest byte first. An odd last byte is left out.
    fn write_string16(&self, offset: u64, bytes: &[u8]) {
        bytes.chunks_exact(2).for_each(|word| self.write16(offset, u16::from_le_bytes([word[0], word[1]])));
    }
    /// As [`read_string16`](Bar::read_string16) in words of 32 bits, for a data port that takes such accesses.
    fn read_string32(&self, offset: u64, bytes: &mut [u8]) {
        bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&self.read32(offset).to_le_bytes()));
    }
    /// As [`write_string16`](Bar::write_string16) in words of 32 bits, for a data port that takes such accesses.
    fn write_string32(&self, offset: u64, bytes: &[u8]) {
        bytes.chunks_exact(4).for_each(|word| self.write32(offset, u32::from_le_bytes([word[0], word[1], word[2], word[3]])));
    }
}

/// Ties a register's width to the access of that width.
pub trait BusWidth: Width {
    /// Reads this width.
    fn read_from<B: Bar>(bar: &B, offset: u64) -> Self;
    /// Writes this width.
    fn write_to<B: Bar>(self, bar: &B, offset: u64);
}

macro_rules! bus_width {
    ($($t:ty: $read:ident $write:ident),*) => {$(
        impl BusWidth for $t {
            fn read_from<B: Bar>(bar: &B, offset: u64) -> Self { bar.$read(offset) }
            fn write_to<B: Bar>(self, bar: &B, offset: u64) { bar.$write(offset, self) }
        }
    )*};
}
bus_width!(u8: read8 write8, u16: read16 write16, u32: read32 write32, u64: read64 write64);

/// The registers of a device, accessed only as their declaration allows: a read with a side effect takes `&mut self`.
pub struct Registers<B> {
    bar: B,
}

impl<B: Bar> Registers<B> {
    /// The registers behind `bar`, which must hold at least `needed` bytes.
    pub fn new(bar: B, needed: u64) -> Result<Self, Error> {
        if bar.len() < needed {
            return Err(Error::Protocol(format!("a BAR of {} bytes cannot hold registers up to {needed}", bar.len())));
        }
        Ok(Self { bar })
    }

    /// The raw range, for doorbells and for handles of other threads.
    pub fn bar(&self) -> &B {
        &self.bar
    }

    /// Reads a register whose read changes nothing.
    pub fn read<T: Value<Raw: BusWidth>, A: PureRead>(&self, register: Reg<T, A>) -> T {
        T::from_raw(T::Raw::read_from(&self.bar, register.offset()))
    }

    /// Reads a register that is never all ones on a living device.
    pub fn read_alive<T: Value<Raw: BusWidth>, A: PureRead>(&self, register: Reg<T, A>) -> Result<T, Error> {
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
