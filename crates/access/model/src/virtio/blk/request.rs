//! What a request does to the medium. [virtio 5.2.6]

use ring3_spec::virtio::blk;

use super::super::queue::{Chain, Piece};
use super::controller::VirtioBlkModel;
use crate::{Blocked, Bus};

/// What the disk is called.
const NAME: &[u8] = b"RING3";

/// A chain between its header and its status.
pub(super) struct Parts {
    /// What the disk reads.
    from: Vec<Piece>,
    /// What it writes.
    to: Vec<Piece>,
    /// Where the status goes: the last byte that it writes.
    pub(super) status: Option<u64>,
}

impl Parts {
    pub(super) fn of(chain: &Chain) -> Self {
        let (mut to, from): (Vec<Piece>, Vec<Piece>) =
            chain.pieces.iter().skip(1).copied().partition(|piece| piece.writable);
        let status = to.last_mut().filter(|last| last.len > 0).map(|last| {
            last.len -= 1;
            last.address + u64::from(last.len)
        });
        Self { from, to, status }
    }
}

impl VirtioBlkModel {
    /// Does a request; its status, and how many bytes were written beside that. `corrupt` inverts
    /// the first byte of its data.
    pub(super) fn request(
        &mut self,
        bus: &Bus,
        header: &blk::Header,
        parts: &Parts,
        corrupt: bool,
    ) -> Result<(u8, u32), Blocked> {
        let done = |status| Ok((status, 0));
        match header.kind() {
            blk::IN => self.read(bus, header.sector(), &parts.to, corrupt),
            blk::OUT => self.write(bus, header.sector(), &parts.from, corrupt),
            blk::FLUSH_REQUEST if self.shape.cache => {
                self.medium.flush();
                done(blk::OK)
            }
            blk::GET_ID => {
                let mut name = [0; blk::ID_LEN];
                let own = self.name.as_deref().map_or(NAME, str::as_bytes);
                name.iter_mut().zip(own).for_each(|(to, from)| *to = *from);
                match parts.to.first().filter(|piece| piece.len as usize >= name.len()) {
                    Some(piece) => {
                        bus.write(piece.address, &name).map(|()| (blk::OK, name.len() as u32))
                    }
                    None => done(blk::IO_ERROR),
                }
            }
            blk::DISCARD_REQUEST | blk::WRITE_ZEROES_REQUEST => self.ranges(bus, &parts.from),
            _ => done(blk::UNSUPPORTED),
        }
    }

    /// Block and number of blocks of a transfer; `None` beyond the end, or in the middle of a
    /// block.
    fn locate(&self, sector: u64, bytes: u64) -> Option<(u64, u64)> {
        let (shift, block) = (self.shape.block_shift - 9, 1 << self.shape.block_shift);
        let aligned = sector.is_multiple_of(1 << shift) && bytes.is_multiple_of(block) && bytes > 0;
        let (lba, blocks) = (sector >> shift, bytes >> self.shape.block_shift);
        (aligned && self.medium.contains(lba, blocks)).then_some((lba, blocks))
    }

    fn place(&mut self, sector: u64, pieces: &[Piece]) -> Option<(u64, u64)> {
        let bytes = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if pieces.iter().filter(|piece| piece.len > 0).count() > self.shape.segments as usize {
            self.violations.add(format!(
                "a request has more than {} segments [virtio 5.2.5]",
                self.shape.segments
            ));
        }
        self.locate(sector, bytes)
    }

    fn read(
        &mut self,
        bus: &Bus,
        sector: u64,
        to: &[Piece],
        corrupt: bool,
    ) -> Result<(u8, u32), Blocked> {
        let Some((lba, blocks)) = self.place(sector, to) else { return Ok((blk::IO_ERROR, 0)) };
        let mut at = lba << self.shape.block_shift;
        for piece in to {
            self.medium.read(at, piece.len as usize, |done, bytes| {
                bus.write(piece.address + done as u64, bytes)
            })?;
            at += u64::from(piece.len);
        }
        if let Some(first) = to.first().filter(|_| corrupt) {
            let mut byte = [0];
            bus.read(first.address, &mut byte)?;
            bus.write(first.address, &[!byte[0]])?;
        }
        Ok((blk::OK, (blocks << self.shape.block_shift) as u32))
    }

    fn write(
        &mut self,
        bus: &Bus,
        sector: u64,
        from: &[Piece],
        corrupt: bool,
    ) -> Result<(u8, u32), Blocked> {
        let Some((lba, blocks)) = self.place(sector, from).filter(|_| !self.shape.read_only) else {
            return Ok((blk::IO_ERROR, 0));
        };
        let mut at = lba << self.shape.block_shift;
        self.medium.begin(lba, blocks);
        for piece in from {
            self.medium.write(at, piece.len as usize, |done, bytes| {
                bus.read(piece.address + done as u64, bytes)
            })?;
            at += u64::from(piece.len);
        }
        if corrupt {
            let (at, mut byte) = (lba << self.shape.block_shift, [0]);
            self.medium.peek(at, &mut byte);
            self.medium.poke(at, &[!byte[0]]);
        }
        self.medium.settle(lba, blocks, !self.writeback);
        Ok((blk::OK, 0))
    }

    /// A discard, or a write of zeroes: discarded blocks read as zeroes here.
    fn ranges(&mut self, bus: &Bus, from: &[Piece]) -> Result<(u8, u32), Blocked> {
        for piece in from {
            for at in (piece.address..)
                .step_by(blk::Range::SIZE)
                .take(piece.len as usize / blk::Range::SIZE)
            {
                let mut range = blk::Range::zeroed();
                bus.read(at, &mut range.0)?;
                let place = self
                    .locate(range.sector(), u64::from(range.sectors()) * u64::from(blk::SECTOR));
                let Some((lba, blocks)) = place.filter(|_| !self.shape.read_only) else {
                    return Ok((blk::IO_ERROR, 0));
                };
                self.medium.zero(lba, blocks, !self.writeback);
            }
        }
        Ok((blk::OK, 0))
    }
}
