//! Intel's Gigabit Ethernet controllers that are programmed as the 8254x was: 82540EM and 82545EM,
//! 82573, 82574, 82583, 82576.
//!
//! # Shape
//! All registers lie in BAR 0, 128 KiB of dwords. A queue is a ring of 16-byte descriptors with a
//! head that the controller moves and a tail that the driver moves. [`receive`] and [`transmit`]
//! hold registers and descriptors of each direction.
//!
//! # Variants
//! Where the family differs, the item names the members that it is of; without a name it is of all.
//! The 82574L has two queues of each direction, extended receive descriptors and MSI-X; 82573 and
//! 82583 are programmed as it is and have no MSI-X; 82540EM and
//! 82545EM have one queue, legacy receive descriptors and the pin. What the 82576 has of its own is
//! in [`advanced`].
//!
//! # References
//! - `[8254x]` PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual,
//!   Revision 4.0, March 2009
//! - `[82574]` Intel 82574 GbE Controller Family Datasheet, Revision 3.4, February 2014
//! - `[82576]` Intel 82576EB Gigabit Ethernet Controller Datasheet, Revision 2.63, December 2011
//! - `[802.3]` IEEE Std 802.3, clauses 22 and 28
//! - `[Linux, NAME]` what Linux 6.12 does in the function or the table NAME of `e1000e`

pub mod advanced;
pub mod general;
pub mod interrupt;
pub mod nvm;
pub mod phy;
pub mod receive;
pub mod statistics;
pub mod transmit;

/// PCI vendor id.
pub const VENDOR: u16 = 0x8086;
/// PCI device id of the 82540EM. [8254x 5.2]
pub const DEVICE_82540EM: u16 = 0x100e;
/// PCI device id of the 82545EM, copper. [8254x 5.2]
pub const DEVICE_82545EM: u16 = 0x100f;
/// PCI device id of the 82574L. [82574 9.1.1]
pub const DEVICE_82574L: u16 = 0x10d3;
/// PCI device id of the 82574LA. [Linux, E1000_DEV_ID_82574LA]
pub const DEVICE_82574LA: u16 = 0x10f6;
/// PCI device id of the 82583V. [Linux, E1000_DEV_ID_82583V]
pub const DEVICE_82583V: u16 = 0x150c;
/// PCI device id of 82573E and 82573V. [Linux, E1000_DEV_ID_82573E]
pub const DEVICE_82573E: u16 = 0x108b;
/// PCI device id of the 82573L. [Linux, E1000_DEV_ID_82573L]
pub const DEVICE_82573L: u16 = 0x109a;
/// PCI device id of the 82576, copper. [82576 9.4]
pub const DEVICE_82576: u16 = 0x10c9;
/// PCI class code: network controller, Ethernet.
pub const CLASS: u32 = 0x02_00_00;

/// The BAR with all registers.
pub const BAR: u8 = 0;
/// Bytes of it.
pub const BAR_BYTES: u64 = 128 << 10;
/// The BAR with the MSI-X table. [82574 9.1]
pub const MSIX_BAR: u8 = 3;
/// Bytes of it.
pub const MSIX_BAR_BYTES: u64 = 16 << 10;
/// Where the pending bits lie in it; the table is at its start.
pub const MSIX_PBA: u32 = 0x2000;
/// MSI-X vectors of the 82574L. [82574 7.4.1]
pub const MSIX_VECTORS: u16 = 5;

/// Bytes of a descriptor of either direction.
pub const DESCRIPTOR_BYTES: u32 = 16;
/// 64-bit words of a descriptor.
pub const DESCRIPTOR_WORDS: usize = 2;
/// What the place of a ring is a multiple of. [82574 10.2.5, 10.2.6]
pub const RING_ALIGN: usize = 128;
/// Descriptors of a ring are a multiple of this (its bytes of 128). [82574 10.2.5, 10.2.6]
pub const RING_STEP: u32 = 8;

/// Longest frame with long packets enabled, FCS included. [82574 10.2.5, RCTL.LPE]
pub const MAX_FRAME: usize = 9234;
/// Longest frame without, FCS included and without a VLAN tag.
pub const STANDARD_FRAME: usize = 1518;
/// Shortest frame, FCS included: shorter ones are padded by the transmitter (TCTL.PSP).
pub const SHORTEST_FRAME: usize = 64;
/// Bytes of the frame check sequence.
pub const FCS_BYTES: usize = 4;
