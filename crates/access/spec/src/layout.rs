//! How a structure in memory is written down: the place and width of each field, read and written
//! as little-endian bytes.

/// Declares a structure of a fixed number of bytes with integer fields: `get, set: TYPE @ OFFSET`.
///
/// Values are little-endian whatever the machine is, and the bytes need no alignment. Who reads a
/// device's answer wraps the bytes; who plays the device starts from `zeroed` and sets fields.
///
/// ```
/// ring3_spec::layout! {
///     /// A range of blocks.
///     pub struct Range[16] {
///         /// Logical blocks.
///         blocks, set_blocks: u32 @ 4;
///         /// First block.
///         start, set_start: u64 @ 8;
///     }
/// }
/// let mut range = Range::zeroed();
/// range.set_blocks(8).set_start(0x1122);
/// assert_eq!(range.0[8..10], [0x22, 0x11]);
/// assert_eq!(Range::from_bytes(&range.0).unwrap().blocks(), 8);
/// ```
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* $vis:vis struct $name:ident[$size:literal] {
        $($(#[$fmeta:meta])* $get:ident, $set:ident: $t:ident @ $offset:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub [u8; $size]);

        impl $name {
            /// Bytes.
            pub const SIZE: usize = $size;

            /// All fields zero.
            pub const fn zeroed() -> Self {
                Self([0; $size])
            }

            /// The structure at the start of `bytes`; `None` if they are too few.
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.get(..$size)?.try_into().ok().map(Self)
            }

            $(
                $(#[$fmeta])*
                pub const fn $get(&self) -> $t {
                    const {
                        let end = $offset + size_of::<$t>();
                        assert!(end <= $size, "a field ends beyond its structure");
                    }
                    let mut raw = [0; size_of::<$t>()];
                    let mut i = 0;
                    while i < raw.len() {
                        raw[i] = self.0[$offset + i];
                        i += 1;
                    }
                    <$t>::from_le_bytes(raw)
                }

                #[doc = concat!("Sets `", stringify!($get), "`.")]
                pub fn $set(&mut self, value: $t) -> &mut Self {
                    self.0[
                        $offset..$offset + size_of::<$t>()
                    ].copy_from_slice(&value.to_le_bytes());
                    self
                }
            )*
        }
    };
}
