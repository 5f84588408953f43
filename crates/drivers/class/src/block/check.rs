//! Validation of requests before they reach the device.

use super::{Data, Info, IoError, Operation, Request};

impl Info {
    /// Whether `request` makes sense here: blocks, all of them on the disk, data for all of them,
    /// an operation that the device has.
    #[inline]
    pub fn check(&self, request: &Request) -> Result<(), IoError> {
        if request.operation == Operation::Flush {
            return Ok(());
        }
        if request.blocks == 0 {
            return Err(IoError::Invalid);
        }
        if request.lba > self.blocks || u64::from(request.blocks) > self.blocks - request.lba {
            return Err(IoError::OutOfRange);
        }
        if request.operation != Operation::Read && self.read_only {
            return Err(IoError::ReadOnly);
        }
        let bytes = u64::from(request.blocks) * u64::from(self.block_size);
        match request.operation {
            Operation::Read | Operation::Write if (request.data.len() as u64) < bytes => {
                Err(IoError::Invalid)
            }
            Operation::WriteZeroes if self.max_write_zeroes_blocks == 0 => {
                Err(IoError::Unsupported)
            }
            Operation::Discard if self.discard.is_none() => Err(IoError::Unsupported),
            _ => Ok(()),
        }
    }

    /// The same of a device that takes requests as they are: not longer than its limit, and no
    /// foreign memory.
    pub fn check_uncut(&self, request: &Request) -> Result<(), IoError> {
        self.check(request)?;
        let foreign = matches!(request.data, Data::Foreign(_));
        if foreign || request.blocks > self.max_blocks(request.operation) {
            Err(IoError::Invalid)
        } else {
            Ok(())
        }
    }

    /// Most blocks of one request that the device takes.
    pub fn max_blocks(&self, operation: Operation) -> u32 {
        match operation {
            Operation::Read | Operation::Write => (self.max_transfer / self.block_size).max(1),
            Operation::WriteZeroes => self.max_write_zeroes_blocks,
            Operation::Discard => self.discard.map_or(0, |discard| discard.max_blocks),
            Operation::Flush => u32::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Null;
    use super::super::{Disk, Request};
    use super::*;
    use ring3_device::dma::{Arena, Region, Span};

    fn info() -> Info {
        Null::new(512, 100, 4096).unwrap().info().clone()
    }

    fn data(len: u32) -> Data {
        let arena = Arena::new(Region::new(4096).unwrap(), 0);
        arena.list(&[Span { region: 0, len, offset: 0 }]).unwrap().into()
    }

    #[test]
    fn the_last_block_is_on_the_disk_and_the_next_is_not() {
        assert_eq!(info().check(&Request::read(0, 99, 1, data(512))), Ok(()));
        assert_eq!(info().check(&Request::read(0, 99, 2, data(1024))), Err(IoError::OutOfRange));
        assert_eq!(
            info().check(&Request::read(0, u64::MAX, 1, data(512))),
            Err(IoError::OutOfRange)
        );
    }

    #[test]
    fn data_that_is_too_short_is_refused() {
        assert_eq!(info().check(&Request::write(0, 0, 2, data(1023))), Err(IoError::Invalid));
    }

    #[test]
    fn a_write_protected_disk_refuses_everything_but_reads() {
        let info = Info { read_only: true, ..info() };
        assert_eq!(info.check(&Request::write_zeroes(0, 0, 1)), Err(IoError::ReadOnly));
        assert_eq!(info.check(&Request::read(0, 0, 1, data(512))), Ok(()));
        assert_eq!(info.check(&Request::flush(0)), Ok(()));
    }

    #[test]
    fn what_the_device_cannot_do_is_refused() {
        let info = Info { discard: None, max_write_zeroes_blocks: 0, ..info() };
        assert_eq!(info.check(&Request::discard(0, 0, 1)), Err(IoError::Unsupported));
        assert_eq!(info.check(&Request::write_zeroes(0, 0, 1)), Err(IoError::Unsupported));
    }
}
