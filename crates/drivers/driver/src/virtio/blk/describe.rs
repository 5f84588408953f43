//! A request as the device reads it: a header, the data's pieces, a place for the status. [virtio
//! 5.2.6]

use ring3_class::block::{Operation, Request};
use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Segment, Span};
use ring3_device::ring::Words;
use ring3_spec::virtio::blk;
use ring3_spec::virtio::ring::{INDIRECT, NEXT, WRITE, descriptor, packed};

use super::super::virtqueue::{Piece, Virtqueue};
use super::identity::Shape;

/// Words of a slot's memory: header, range, status; then the table.
const HEADER: usize = 0;
const RANGE: usize = 2;
const STATUS: usize = 4;
const TABLE: usize = 8;
/// In the place of a status: the device has written none.
const NO_STATUS: u8 = 0xff;

/// What devices read and write for the requests of one queue, beside their data.
pub(super) struct Requests {
    memory: DmaBuffer,
    shape: Shape,
    /// Sectors of a block.
    sectors: u64,
    /// Bytes of a block.
    block: u32,
    /// Words of a slot.
    stride: usize,
    /// The pieces of the request that is being described.
    pieces: Vec<Piece>,
}

impl Requests {
    /// For `slots` requests to blocks of `block` bytes.
    pub(super) fn new(arena: &Arena, slots: u16, shape: Shape, block: u32) -> Result<Self, Error> {
        Ok(Self::over(
            arena.alloc(bytes(slots, shape), 64)?.tagged("virtio requests"),
            shape,
            block,
        ))
    }

    /// The same over `memory`, which was that of another process.
    pub(super) fn resume(
        memory: DmaBuffer,
        slots: u16,
        shape: Shape,
        block: u32,
    ) -> Result<Self, Error> {
        if memory.len() < bytes(slots, shape) || memory.count() == 0 {
            return Err(Error::Invalid(format!(
                "the saved queue has no memory for {slots} requests: open the disk anew"
            )));
        }
        Ok(Self::over(memory, shape, block))
    }

    fn over(memory: DmaBuffer, shape: Shape, block: u32) -> Self {
        let (pieces, stride) = (Vec::with_capacity(shape.pieces.into()), stride(shape));
        Self { memory, shape, sectors: u64::from(block / blk::SECTOR), block, stride, pieces }
    }

    /// The name of its memory.
    pub(super) fn span(&self) -> Span {
        self.memory.span()
    }

    /// Releases its memory to the process that resumes the queue.
    pub(super) fn release_to_successor(&mut self) {
        self.memory.release_to_successor();
    }

    /// The slot of the chain that a device names `id`, if one can begin there.
    #[inline]
    pub(super) fn slot_of(&self, id: u32) -> Option<u16> {
        let step = self.step();
        let slot = id / u32::from(step);
        id.is_multiple_of(step.into()).then_some(slot).and_then(|slot| u16::try_from(slot).ok())
    }

    /// Entries of the queue that a request takes.
    fn step(&self) -> u16 {
        if self.shape.indirect { 1 } else { self.shape.pieces }
    }

    /// Describes `request`, which makes sense for the disk, in `slot` for `queue`, and offers it.
    /// Bytes that the device may write; `None` if its data has too many pieces.
    #[inline]
    pub(super) fn describe(
        &mut self,
        slot: u16,
        request: &Request,
        queue: &mut Virtqueue,
    ) -> Option<u32> {
        let (kind, flags) = match request.operation {
            Operation::Read => (blk::IN, WRITE),
            Operation::Write => (blk::OUT, 0),
            Operation::Flush => (blk::FLUSH_REQUEST, 0),
            Operation::WriteZeroes => (blk::WRITE_ZEROES_REQUEST, 0),
            Operation::Discard => (blk::DISCARD_REQUEST, 0),
        };
        let first = usize::from(slot) * self.stride;
        let at = |word: usize| self.memory.iova() + 8 * (first + word) as u64;
        self.pieces.clear();
        self.pieces.push(Piece { address: at(HEADER), len: 16, flags: 0 });
        let sector = request.lba.wrapping_mul(self.sectors);
        let (mut written, is_data) =
            (0, matches!(request.operation, Operation::Read | Operation::Write));
        let in_header = match request.operation {
            Operation::Read | Operation::Write => sector,
            Operation::Flush => 0,
            Operation::WriteZeroes | Operation::Discard => {
                // What is freed need not read as zeroes everywhere, so that is not permitted: no
                // flag.
                let count = u64::from(request.blocks) * self.sectors;
                self.memory.store_entry(first + RANGE, &[sector, count & 0xffff_ffff]);
                self.pieces.push(Piece { address: at(RANGE), len: 16, flags: 0 });
                0
            }
        };
        self.memory.store_entry(first + HEADER, &[u64::from(kind), in_header]);
        if is_data {
            written = self.shape.add(&mut self.pieces, request, self.block, flags)?;
        }
        self.memory.store(first + STATUS, NO_STATUS.into());
        self.pieces.push(Piece { address: at(STATUS), len: 1, flags: WRITE });
        self.put(slot, at(TABLE), queue);
        Some(if flags == WRITE { written + 1 } else { 1 })
    }

    /// Writes the pieces into the slot's table, or into the queue itself.
    #[inline]
    fn put(&mut self, slot: u16, table: u64, queue: &mut Virtqueue) {
        let (id, last) = (slot * self.step(), self.pieces.len() - 1);
        let first = usize::from(slot) * self.stride + TABLE;
        for (index, piece) in self.pieces.iter().enumerate() {
            let (number, more) = (index as u16, index < last);
            if self.shape.indirect {
                let rest = match (queue.is_packed(), more) {
                    (true, _) => packed(piece.len, 0, piece.flags),
                    (false, true) => descriptor(piece.len, piece.flags | NEXT, number + 1),
                    (false, false) => descriptor(piece.len, piece.flags, 0),
                };
                self.memory.store_entry(first + 2 * index, &[piece.address, rest]);
            } else {
                queue.put(id, id + number, *piece, more.then_some(id + number + 1));
            }
        }
        if self.shape.indirect {
            let len = 16 * self.pieces.len() as u32;
            queue.put(id, id, Piece { address: table, len, flags: INDIRECT }, None);
        }
        queue.offer(id);
    }

    /// The status of the request in `slot`; `None` if the device has written none.
    #[inline]
    pub(super) fn status(&self, slot: u16) -> Option<u8> {
        let status = self.memory.load(usize::from(slot) * self.stride + STATUS) as u8;
        (status != NO_STATUS).then_some(status)
    }

    /// Gives its memory up for good.
    pub(super) fn abandon(&mut self) {
        self.memory.abandon();
    }
}

/// Bytes that a device may write for `request`, whose blocks have `block` bytes: its data, if it is
/// a read, and its status.
pub(super) fn writable(request: &Request, block: u32) -> Option<u32> {
    match request.operation {
        Operation::Read => request.blocks.checked_mul(block)?.checked_add(1),
        _ => Some(1),
    }
}

/// Words of a slot.
fn stride(shape: Shape) -> usize {
    let table = if shape.indirect { 2 * usize::from(shape.pieces) } else { 0 };
    (TABLE + table).next_multiple_of(8)
}

/// Bytes of the memory of `slots` requests.
fn bytes(slots: u16, shape: Shape) -> usize {
    usize::from(slots) * stride(shape) * 8
}

impl Shape {
    /// Adds the data of `request`; how many bytes. `None` if it has more pieces than fit beside the
    /// frame, or fewer bytes than its blocks.
    #[inline]
    fn add(
        &self,
        pieces: &mut Vec<Piece>,
        request: &Request,
        block: u32,
        flags: u16,
    ) -> Option<u32> {
        let bytes = request.blocks.checked_mul(block)?;
        let mut described = 0;
        for Segment { mut iova, mut len } in request.data.segments(bytes as usize) {
            described += len;
            while len > 0 {
                let part = len.min(self.piece_bytes);
                if pieces.len() + 1 >= usize::from(self.pieces) {
                    return None;
                }
                pieces.push(Piece { address: iova, len: part, flags });
                (iova, len) = (iova + u64::from(part), len - part);
            }
        }
        (described == bytes).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scattered::scattered;

    const SHAPE: Shape = Shape { indirect: false, pieces: 5, piece_bytes: 4096, entries: 64 };

    fn pieces(data: &[(u64, u32)], blocks: u32) -> Option<Vec<(u64, u32)>> {
        let mut pieces = vec![Piece { address: 0, len: 16, flags: 0 }];
        let request = Request::read(0, 0, blocks, scattered(data));
        SHAPE.add(&mut pieces, &request, 512, WRITE)?;
        Some(pieces[1..].iter().map(|piece| (piece.address, piece.len)).collect())
    }

    #[test]
    fn data_becomes_pieces_that_are_no_longer_than_the_device_takes() {
        assert_eq!(
            pieces(&[(0x1000, 512), (0x8200, 512)], 2).unwrap(),
            [(0x1000, 512), (0x8200, 512)]
        );
        assert_eq!(
            pieces(&[(0x1000, 8704)], 17).unwrap(),
            [(0x1000, 4096), (0x2000, 4096), (0x3000, 512)]
        );
    }

    #[test]
    fn data_in_too_many_pieces_or_with_too_few_bytes_is_refused() {
        assert!(pieces(&[(0x1000, 4096 * 3 + 512)], 25).is_none());
        assert!(pieces(&[(0x1000, 512)], 2).is_none());
    }
}
