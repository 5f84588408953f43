//! A request descriptor of the kernel as a request of the block class, and a completion as a
//! result.

use ring3_class::block::{IoError, Operation};

use super::limits::SECTOR;
use super::uapi::{self, Descriptor, op};

/// A decoded descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// What to do.
    pub operation: Operation,
    /// Durable before it completes.
    pub fua: bool,
    /// First logical block.
    pub lba: u64,
    /// Logical blocks; 0 for a flush.
    pub blocks: u32,
    /// Bytes of the buffer that it moves; 0 for what moves none.
    pub bytes: u32,
}

/// The logical blocks of a disk, seen from a kernel that counts in sectors.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Sectors per block, as a shift.
    shift: u32,
    /// Bytes of a tag's buffer.
    buffer: u32,
}

impl Geometry {
    /// For blocks of `block_size` bytes (a power of two, at least 512) and buffers of `buffer`
    /// bytes.
    pub fn new(block_size: u32, buffer: u32) -> Self {
        Self { shift: (block_size / SECTOR).trailing_zeros(), buffer }
    }

    /// Bytes of a tag's buffer.
    pub fn buffer_bytes(&self) -> usize {
        self.buffer as usize
    }

    /// What `descriptor` asks for. An operation that is not known is [`IoError::Unsupported`]; a
    /// range that is not whole blocks or does not fit the buffer is [`IoError::Invalid`].
    #[inline]
    pub fn decode(&self, descriptor: &Descriptor) -> Result<Decoded, IoError> {
        let operation = match descriptor.op_flags as u8 {
            op::READ => Operation::Read,
            op::WRITE => Operation::Write,
            op::FLUSH => {
                return Ok(Decoded {
                    operation: Operation::Flush,
                    fua: false,
                    lba: 0,
                    blocks: 0,
                    bytes: 0,
                });
            }
            op::DISCARD => Operation::Discard,
            op::WRITE_ZEROES => Operation::WriteZeroes,
            _ => return Err(IoError::Unsupported),
        };
        let partial = (1 << self.shift) - 1;
        if descriptor.nr_sectors == 0
            || (descriptor.start_sector | u64::from(descriptor.nr_sectors)) & partial != 0
        {
            return Err(IoError::Invalid);
        }
        let moves = matches!(operation, Operation::Read | Operation::Write);
        if moves && descriptor.nr_sectors > self.buffer / SECTOR {
            return Err(IoError::Invalid);
        }
        Ok(Decoded {
            operation,
            fua: descriptor.op_flags & uapi::IO_F_FUA != 0,
            lba: descriptor.start_sector >> self.shift,
            blocks: descriptor.nr_sectors >> self.shift,
            bytes: if moves { descriptor.nr_sectors * SECTOR } else { 0 },
        })
    }
}

/// The result that ends a request: the bytes moved, or the negative errno.
#[inline]
pub fn result(end: Result<(), IoError>, bytes: u32) -> i32 {
    match end {
        // At most a buffer's length, which the kernel itself keeps far below 2^31.
        Ok(()) => bytes as i32,
        Err(error) => -error.errno(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K4: u32 = 4096;

    fn descriptor(op: u8, start_sector: u64, nr_sectors: u32) -> Descriptor {
        Descriptor { op_flags: op.into(), nr_sectors, start_sector, addr: 0 }
    }

    #[test]
    fn sectors_become_blocks_of_the_disk() {
        let decoded = Geometry::new(K4, 1 << 17).decode(&descriptor(op::READ, 80, 16)).unwrap();
        assert_eq!(
            decoded,
            Decoded { operation: Operation::Read, fua: false, lba: 10, blocks: 2, bytes: 8192 }
        );
    }

    #[test]
    fn a_range_of_half_a_block_is_invalid() {
        let geometry = Geometry::new(K4, 1 << 17);
        assert_eq!(geometry.decode(&descriptor(op::READ, 4, 8)), Err(IoError::Invalid));
        assert_eq!(geometry.decode(&descriptor(op::WRITE, 8, 4)), Err(IoError::Invalid));
    }

    #[test]
    fn a_request_longer_than_the_buffer_is_invalid() {
        assert_eq!(
            Geometry::new(512, K4).decode(&descriptor(op::WRITE, 0, 9)),
            Err(IoError::Invalid)
        );
    }

    #[test]
    fn a_discard_may_be_longer_than_the_buffer_because_it_moves_nothing() {
        let decoded = Geometry::new(512, K4).decode(&descriptor(op::DISCARD, 0, 1 << 20)).unwrap();
        assert_eq!((decoded.blocks, decoded.bytes), (1 << 20, 0));
    }

    #[test]
    fn the_fua_flag_is_passed_on() {
        let mut write = descriptor(op::WRITE, 0, 1);
        write.op_flags |= uapi::IO_F_FUA;
        assert!(Geometry::new(512, K4).decode(&write).unwrap().fua);
    }

    #[test]
    fn other_flags_do_not_change_the_operation() {
        let mut read = descriptor(op::READ, 0, 1);
        read.op_flags |= 0x11_0700;
        assert_eq!(Geometry::new(512, K4).decode(&read).unwrap().operation, Operation::Read);
    }

    #[test]
    fn a_flush_needs_no_range() {
        let decoded = Geometry::new(512, K4).decode(&descriptor(op::FLUSH, 0, 0)).unwrap();
        assert_eq!((decoded.operation, decoded.blocks), (Operation::Flush, 0));
    }

    #[test]
    fn an_operation_that_nobody_knows_is_unsupported() {
        assert_eq!(Geometry::new(512, K4).decode(&descriptor(4, 0, 1)), Err(IoError::Unsupported));
    }

    #[test]
    fn a_result_is_the_bytes_or_the_negative_errno() {
        assert_eq!(result(Ok(()), 4096), 4096);
        assert_eq!(result(Err(IoError::NoSpace), 4096), -libc::ENOSPC);
    }
}
