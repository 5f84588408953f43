//! Virtqueues. [virtio 2.7, 2.8]
//!
//! Split: a table of descriptors, the driver's ring of what is available, the device's ring of what
//! was used. All as words of 64 bits: a ring's first word holds its flags, its index and the begin
//! of its entries. Packed: one ring of descriptors, which come back where they lie, and for each
//! side a word with its wish to be told.

/// Most entries; they are a power of two. [virtio 2.7]
pub const MAX_SIZE: u16 = 32768;

/// Words of a descriptor: its address; length, flags and next descriptor. [virtio 2.7.5]
pub const DESCRIPTOR_WORDS: usize = 2;
/// Descriptor flag: goes on in the next one. [virtio 2.7.5]
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes. [virtio 2.7.5]
pub const WRITE: u16 = 2;

/// Flag of the driver's ring: no interrupts, please. [virtio 2.7.7]
pub const NO_INTERRUPT: u16 = 1;
/// Flag of the device's ring: no notifications, please. [virtio 2.7.10]
pub const NO_NOTIFY: u16 = 1;

/// The second word of a descriptor.
pub const fn descriptor(len: u32, flags: u16, next: u16) -> u64 {
    len as u64 | (flags as u64) << 32 | (next as u64) << 48
}

/// Whether who wants to be told of the entry at `event` is told of those from `old` up to and
/// without `new`. All run free. [virtio 2.7.7.2, 2.7.10]
pub const fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// Bytes of a split driver's or device's ring before what says where the other side wants to be
/// told: its entries have `entry` bytes. [virtio 2.7.6, 2.7.8]
pub const fn event_at(size: u16, entry: u64) -> u64 {
    4 + entry * size as u64
}

/// Length, flags and next descriptor in the second word of a descriptor.
pub const fn parts(word: u64) -> (u32, u16, u16) {
    (word as u32, (word >> 32) as u16, (word >> 48) as u16)
}

/// Bytes of a table of `size` descriptors. [virtio 2.7.5]
pub const fn table_bytes(size: u16) -> usize {
    size as usize * 16
}

/// Bytes of the driver's ring of `size` entries, up to a whole word. [virtio 2.7.6]
pub const fn available_bytes(size: u16) -> usize {
    (6 + 2 * size as usize).next_multiple_of(8)
}

/// Bytes of the device's ring of `size` entries, up to a whole word. [virtio 2.7.8]
pub const fn used_bytes(size: u16) -> usize {
    (6 + 8 * size as usize).next_multiple_of(8)
}

/// Descriptor flag: what it describes is a table of descriptors. [virtio 2.7.5.3]
pub const INDIRECT: u16 = 4;
/// Packed, descriptor flag: the driver's mark of the lap. [virtio 2.8.1]
pub const PACKED_AVAILABLE: u16 = 1 << 7;
/// Packed, descriptor flag: the device's mark of the lap. [virtio 2.8.1]
pub const PACKED_USED: u16 = 1 << 15;
/// Packed, second word of a side's wish: it wants not to be told. [virtio 2.8.10]
pub const PACKED_DISABLED: u16 = 1;
/// The same: it wants to be told of the descriptor that its first word names. [virtio 2.8.10]
pub const PACKED_AT: u16 = 2;

/// The second word of a packed descriptor. [virtio 2.8.13]
pub const fn packed(len: u32, id: u16, flags: u16) -> u64 {
    len as u64 | (id as u64) << 32 | (flags as u64) << 48
}

/// Bytes of a ring of `size` packed descriptors. [virtio 2.8.10.1]
pub const fn packed_bytes(size: u16) -> usize {
    size as usize * 16
}

/// Bytes of a side's wish, up to a whole word. [virtio 2.8.10.1]
pub const PACKED_WISH_BYTES: usize = 8;
