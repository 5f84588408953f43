//! A chain of a virtio disk as a request of the block class. [virtio 5.2.6]

use ring3_class::block::{IoError, Operation};
use ring3_spec::virtio::blk;
use ring3_vduse::{Chain, Memory};

use crate::ublk::translate::{Decoded, Geometry};
use crate::ublk::uapi::{Descriptor, op};

/// Bytes of what a request begins with.
pub const HEADER: u32 = 16;

/// What a chain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainRequest {
    /// Of the disk.
    Request(Decoded),
    /// What the disk is called.
    Name,
}

/// What `chain` asks for. An error is for the driver, if the chain has a place for it.
pub fn decode(
    chain: &Chain,
    memory: &Memory,
    geometry: &Geometry,
) -> Result<ChainRequest, IoError> {
    let mut header = [0; HEADER as usize];
    if chain.read(memory, 0, &mut header) != HEADER || chain.writable() == 0 {
        return Err(IoError::Invalid);
    }
    let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let [.., a, b, c, d, e, f, g, h] = header;
    let mut sector = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let (operation, bytes) = match kind {
        blk::IN => (op::READ, chain.writable() - 1),
        blk::OUT => (op::WRITE, chain.readable() - HEADER),
        blk::FLUSH_REQUEST => (op::FLUSH, 0),
        blk::GET_ID => return Ok(ChainRequest::Name),
        blk::DISCARD_REQUEST => (op::DISCARD, 0),
        blk::WRITE_ZEROES_REQUEST => (op::WRITE_ZEROES, 0),
        _ => return Err(IoError::Unsupported),
    };
    let mut sectors = bytes / blk::SECTOR;
    if !bytes.is_multiple_of(blk::SECTOR) {
        return Err(IoError::Invalid);
    }
    if matches!(operation, op::DISCARD | op::WRITE_ZEROES) {
        // One range: that is what the configuration says.
        let mut range = [0; 16];
        if chain.readable() != HEADER + 16 || chain.read(memory, HEADER, &mut range) != 16 {
            return Err(IoError::Invalid);
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = range;
        (sector, sectors) =
            (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]));
    }
    let descriptor = Descriptor {
        op_flags: operation.into(),
        nr_sectors: sectors,
        start_sector: sector,
        addr: 0,
    };
    geometry.decode(&descriptor).map(ChainRequest::Request)
}

/// Whether the chain's bytes are the disk's to write.
pub fn moves_in(operation: Operation) -> bool {
    operation == Operation::Read
}

/// The status that says how a request has ended. [virtio 5.2.6]
pub fn status(end: Result<(), IoError>) -> u8 {
    match end {
        Ok(()) => blk::OK,
        Err(IoError::Unsupported) => blk::UNSUPPORTED,
        Err(_) => blk::IO_ERROR,
    }
}
