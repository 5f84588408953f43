//! The messages by which a device in one process is used by another, over a UNIX socket.
//!
//! # References
//! - `[vfio-user]` vfio-user Protocol Specification 0.9.2 (`docs/interop/vfio-user.rst` of QEMU)
//!
//! Everything is little endian. A message is a [`Header`] and a body; descriptors travel beside its
//! first byte.

/// The protocol's version. A different major one is a different protocol. [vfio-user,
/// VFIO_USER_VERSION]
pub const VERSION: (u16, u16) = (0, 1);
/// Bytes that one access may move. [vfio-user, max_data_xfer_size]
pub const MAX_DATA: u32 = 1 << 20;
/// Descriptors that one message may carry.
pub const MAX_FDS: usize = 16;

/// What a message asks for. [vfio-user, Commands]
pub mod command {
    /// Agree on a version: always the first.
    pub const VERSION: u16 = 1;
    /// Let the device reach a part of a file.
    pub const DMA_MAP: u16 = 2;
    /// Take it back.
    pub const DMA_UNMAP: u16 = 3;
    /// How many regions and kinds of interrupts there are.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// How many interrupts of a kind there are.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Tie interrupts to eventfds, untie, mask, unmask.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Read a part of a region.
    pub const REGION_READ: u16 = 9;
    /// Write a part of a region.
    pub const REGION_WRITE: u16 = 10;
    /// Reset the function.
    pub const DEVICE_RESET: u16 = 13;
}

/// [`Header::flags`]: this is an answer; without it, a request.
pub const REPLY: u32 = 1;
/// [`Header::flags`]: the type, of which [`REPLY`] is the only one that is not zero.
pub const TYPE: u32 = 0xf;
/// [`Header::flags`]: the request wants no answer.
pub const NO_REPLY: u32 = 1 << 4;
/// [`Header::flags`]: the answer is that it was refused, and [`Header::error`] says why.
pub const ERROR: u32 = 1 << 5;

/// [`DeviceInfo::flags`]: it can be reset.
pub const DEVICE_RESETTABLE: u32 = 1 << 0;
/// [`DeviceInfo::flags`]: a PCI function.
pub const DEVICE_PCI: u32 = 1 << 1;
/// Regions of a PCI function: six BARs, the expansion ROM, configuration space, VGA.
pub const PCI_REGIONS: u32 = 9;
/// The region of configuration space.
pub const CONFIG_REGION: u32 = 7;
/// Kinds of interrupts of a PCI function: INTx, MSI, MSI-X, error, request.
pub const PCI_IRQS: u32 = 5;
/// [`RegionInfo::flags`]: it can be read and written.
pub const REGION_READ_WRITE: u32 = 3;

/// [`IrqInfo::flags`]: signalled by eventfd.
pub const IRQ_EVENTFD: u32 = 1 << 0;
/// [`IrqInfo::flags`]: can be masked.
pub const IRQ_MASKABLE: u32 = 1 << 1;
/// [`IrqInfo::flags`]: masked whenever it was signalled.
pub const IRQ_AUTOMASKED: u32 = 1 << 2;

/// [`SetIrqs::flags`]: no data follow.
pub const IRQ_DATA_NONE: u32 = 1 << 0;
/// [`SetIrqs::flags`]: an eventfd for each vector, or none to untie it.
pub const IRQ_DATA_EVENTFD: u32 = 1 << 2;
/// [`SetIrqs::flags`]: mask.
pub const IRQ_MASK: u32 = 1 << 3;
/// [`SetIrqs::flags`]: unmask.
pub const IRQ_UNMASK: u32 = 1 << 4;
/// [`SetIrqs::flags`]: what signals; no data and no vectors switches the kind off.
pub const IRQ_TRIGGER: u32 = 1 << 5;

/// [`DmaMap::flags`]: the device may read and write.
pub const DMA_READ_WRITE: u32 = 3;
/// [`DmaUnmap::flags`]: everything that is mapped.
pub const DMA_UNMAP_ALL: u32 = 1 << 2;

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = 0 $(+ size_of::<$type>())*;

            /// As it travels.
            pub fn to_bytes(&self) -> [u8; Self::LEN] {
                let mut bytes = [0; Self::LEN];
                let rest = &mut bytes[..];
                $(
                    let (field, rest) = rest.split_at_mut(size_of::<$type>());
                    field.copy_from_slice(&self.$field.to_le_bytes());
                )*
                debug_assert!(rest.is_empty());
                bytes
            }

            /// Takes it off the front of `bytes`; `None` if they are too few.
            pub fn take(bytes: &[u8]) -> Option<(Self, &[u8])> {
                $(let ($field, bytes) = bytes.split_first_chunk()?;)*
                Some((Self { $($field: <$type>::from_le_bytes(*$field)),* }, bytes))
            }
        }
    };
}

message! {
    /// The start of every message.
    Header {
        /// The request's number, which its answer repeats.
        id: u16,
        /// One of [`command`].
        command: u16,
        /// Bytes of the message, this header included.
        len: u32,
        /// [`REPLY`], [`NO_REPLY`], [`ERROR`].
        flags: u32,
        /// With [`ERROR`]: an errno.
        error: u32,
    }
}

message! {
    /// [`command::VERSION`], both ways. A text in JSON may follow: what each side can.
    Version {
        /// The protocol.
        major: u16,
        /// Its additions.
        minor: u16,
    }
}

message! {
    /// [`command::DMA_MAP`]; the file travels beside it.
    DmaMap {
        /// Bytes of this.
        argsz: u32,
        /// [`DMA_READ_WRITE`], or one of the two.
        flags: u32,
        /// Where in the file it starts.
        offset: u64,
        /// The device address of that.
        address: u64,
        /// Bytes.
        size: u64,
    }
}

message! {
    /// [`command::DMA_UNMAP`], both ways.
    DmaUnmap {
        /// Bytes of this.
        argsz: u32,
        /// 0 or [`DMA_UNMAP_ALL`].
        flags: u32,
        /// The device address.
        address: u64,
        /// Bytes.
        size: u64,
    }
}

message! {
    /// [`command::DEVICE_GET_INFO`], both ways.
    DeviceInfo {
        /// Bytes of this.
        argsz: u32,
        /// [`DEVICE_RESETTABLE`], [`DEVICE_PCI`].
        flags: u32,
        /// How many regions there are.
        regions: u32,
        /// How many kinds of interrupts.
        irqs: u32,
    }
}

message! {
    /// [`command::DEVICE_GET_REGION_INFO`], both ways.
    RegionInfo {
        /// Bytes of this, and of what an answer would like to add.
        argsz: u32,
        /// [`REGION_READ_WRITE`]; 0 if there is no such region.
        flags: u32,
        /// Which.
        index: u32,
        /// Where the additions start; 0 if there are none.
        cap_offset: u32,
        /// Bytes of the region.
        size: u64,
        /// Where it starts in the file beside the answer, if it can be mapped.
        offset: u64,
    }
}

message! {
    /// [`command::DEVICE_GET_IRQ_INFO`], both ways.
    IrqInfo {
        /// Bytes of this.
        argsz: u32,
        /// [`IRQ_EVENTFD`], [`IRQ_MASKABLE`], [`IRQ_AUTOMASKED`].
        flags: u32,
        /// Which kind: 0 INTx, 1 MSI, 2 MSI-X.
        index: u32,
        /// Vectors.
        count: u32,
    }
}

message! {
    /// [`command::DEVICE_SET_IRQS`]; eventfds travel beside it.
    SetIrqs {
        /// Bytes of this.
        argsz: u32,
        /// One of the data, and one of the actions.
        flags: u32,
        /// Which kind: 0 INTx, 1 MSI, 2 MSI-X.
        index: u32,
        /// First vector.
        start: u32,
        /// Vectors.
        count: u32,
    }
}

message! {
    /// [`command::REGION_READ`] and [`command::REGION_WRITE`], both ways; the data follow.
    RegionAccess {
        /// Byte of the region.
        offset: u64,
        /// Which region.
        region: u32,
        /// Bytes.
        count: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_lengths_of_the_specification() {
        let lengths = [Header::LEN, Version::LEN, DmaMap::LEN, DmaUnmap::LEN, DeviceInfo::LEN];
        assert_eq!(lengths, [16, 4, 32, 24, 16]);
        assert_eq!(
            [RegionInfo::LEN, IrqInfo::LEN, SetIrqs::LEN, RegionAccess::LEN],
            [32, 16, 20, 16]
        );
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_not_from_fewer_bytes() {
        let access = RegionAccess { offset: 0x1000, region: 7, count: 4 };
        let bytes = access.to_bytes();
        assert_eq!(bytes[..10], [0, 0x10, 0, 0, 0, 0, 0, 0, 7, 0]);
        assert_eq!(RegionAccess::take(&bytes), Some((access, &[][..])));
        assert_eq!(RegionAccess::take(&bytes[..15]), None);
    }
}
