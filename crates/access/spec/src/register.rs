//! How a register is written down: its place, its width and what an access to it does.

use core::marker::PhantomData;

/// The raw width of a register: `u8`, `u16`, `u32` or `u64`.
pub trait Width: Copy + Eq + Sized {
    /// Every bit set: what a read returns when the device is gone.
    const ALL_ONES: Self;
    /// Bytes.
    const SIZE: usize;
}

macro_rules! width {
    ($($t:ty),*) => {$(
        impl Width for $t {
            const ALL_ONES: Self = <$t>::MAX;
            const SIZE: usize = size_of::<$t>();
        }
        impl Value for $t {
            type Raw = $t;
            fn from_raw(raw: $t) -> Self { raw }
            fn into_raw(self) -> $t { self }
        }
    )*};
}
width!(u8, u16, u32, u64);

/// What a register holds: a plain integer, or a type with named fields over one.
pub trait Value: Copy {
    /// The integer that crosses the bus.
    type Raw: Width;
    /// Gives the fields of `raw` their names.
    fn from_raw(raw: Self::Raw) -> Self;
    /// The integer to write.
    fn into_raw(self) -> Self::Raw;
}

/// Reading has no effect on the device.
pub enum Ro {}
/// Reading has no effect; writing sets the value (also for write-1-to-clear registers).
pub enum Rw {}
/// Writing only; a read returns nothing of use.
pub enum Wo {}
/// Reading changes the device (interrupt cause cleared, FIFO advanced), so it needs the accessor
/// exclusively.
pub enum ReadClears {}

/// An access under which a read has no side effect.
pub trait PureRead {}
impl PureRead for Ro {}
impl PureRead for Rw {}
/// An access that allows writes.
pub trait Writable {}
impl Writable for Rw {}
impl Writable for Wo {}
/// An access whose read has a side effect.
pub trait SideEffectRead {}
impl SideEffectRead for ReadClears {}

/// One register: `Reg<T, A>` is at byte `offset` of its BAR, holds a `T`, and is accessed as `A`
/// says.
pub struct Reg<T, A> {
    offset: u32,
    kind: PhantomData<(T, A)>,
}

impl<T, A> Reg<T, A> {
    /// A register at byte `offset` of its BAR.
    pub const fn at(offset: u32) -> Self {
        Self { offset, kind: PhantomData }
    }

    /// Bytes from the start of the BAR.
    pub const fn offset(&self) -> u64 {
        self.offset as u64
    }
}

impl<T, A> Clone for Reg<T, A> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, A> Copy for Reg<T, A> {}

/// Declares a register value with named fields: `field: high..=low` reads (and with `set_`-style
/// builders writes) these bits.
///
/// ```
/// ring3_spec::fields! {
///     /// Controller status.
///     pub struct Csts(u32) {
///         /// Ready.
///         ready, with_ready: 0..=0;
///         /// Shutdown status.
///         shutdown, with_shutdown: 3..=2;
///     }
/// }
/// assert_eq!(Csts(0b1001).ready(), 1);
/// assert_eq!(Csts(0).with_shutdown(2), Csts(0b1000));
/// ```
#[macro_export]
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident($raw:ty) {
        $($(#[$fmeta:meta])* $get:ident, $with:ident: $high:literal..=$low:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub $raw);
        impl $name {
            $(
                $(#[$fmeta])*
                pub const fn $get(self) -> $raw {
                    (self.0 >> $low) & (<$raw>::MAX >> (<$raw>::BITS - 1 - ($high - $low)))
                }
                #[doc = concat!(
                    "The same value with `", stringify!($get),
                    "` set; bits beyond the field are dropped.",
                )]
                pub const fn $with(self, value: $raw) -> Self {
                    let mask = <$raw>::MAX >> (<$raw>::BITS - 1 - ($high - $low));
                    Self((self.0 & !(mask << $low)) | ((value & mask) << $low))
                }
            )*
        }
        impl $crate::register::Value for $name {
            type Raw = $raw;
            fn from_raw(raw: $raw) -> Self { Self(raw) }
            fn into_raw(self) -> $raw { self.0 }
        }
    };
}
