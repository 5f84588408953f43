//! Conversion of a request into a command: validation, and the words of the submission queue entry.

use ring3_class::block::{Data, Info, IoError, Operation, Request};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::{DsmRange, Submission, Transfer};

use super::protection::Protection;
use super::prp::Lists;

/// Makes the commands of one queue.
pub(super) struct Encoder {
    namespace: u32,
    read: Transfer,
    write: Transfer,
    limits: Limits,
    lists: Lists,
    /// The controller takes SGLs.
    sgl: bool,
    protection: Protection,
}

/// The smallest page of a controller.
const PAGE: u32 = 4096;

/// What of [`Info`] every request is checked against.
#[derive(Clone, Copy)]
struct Limits {
    blocks: u64,
    /// A request of a page at most that begins before this block ends on the disk.
    page_end: u64,
    block_shift: u32,
    /// Bytes of a block - 1.
    block_mask: u64,
    max_blocks: u32,
    max_write_zeroes: u32,
    max_discard: u32,
    read_only: bool,
}

impl Limits {
    fn of(info: &Info) -> Self {
        let at_most_all = |limit: u32| u64::from(limit).min(info.blocks) as u32;
        let page = u64::from(PAGE / info.block_size.max(1)).max(1);
        Self {
            blocks: info.blocks,
            page_end: if info.max_transfer < PAGE {
                0
            } else {
                info.blocks.saturating_sub(page - 1)
            },
            block_shift: info.block_size.trailing_zeros(),
            block_mask: u64::from(info.block_size.max(1)) - 1,
            max_blocks: at_most_all(info.max_transfer / info.block_size.max(1)),
            max_write_zeroes: at_most_all(info.max_write_zeroes_blocks),
            max_discard: at_most_all(info.discard.map_or(0, |discard| discard.max_blocks)),
            read_only: info.read_only,
        }
    }

    /// Bytes of the blocks of `request`.
    #[inline]
    fn bytes(&self, request: &Request) -> usize {
        (request.blocks as usize) << self.block_shift
    }

    /// Whether `request` has between 1 and `most` blocks, all on the disk.
    #[inline(always)]
    fn fits(&self, request: &Request, most: u32) -> bool {
        // One comparison for both ends: no blocks wrap around to the most of all. No limit is more
        // than the disk has.
        request.blocks.wrapping_sub(1) < most
            && request.lba <= self.blocks.wrapping_sub(request.blocks.into())
    }

    /// The same, and if not, why.
    fn check(&self, request: &Request, most: u32) -> Result<(), IoError> {
        match request.blocks {
            _ if self.fits(request, most) => Ok(()),
            _ if most == 0 => Err(IoError::Unsupported),
            blocks if blocks == 0 || (blocks > most && u64::from(blocks) <= self.blocks) => {
                Err(IoError::Invalid)
            }
            _ => Err(IoError::OutOfRange),
        }
    }
}

/// Where the first `bytes` of `data` are, if they lie in one piece as an SGL may describe it.
fn in_one_piece(data: &Data, bytes: usize) -> Option<u64> {
    let piece = data.segments(bytes).next()?;
    (piece.len as usize == bytes && piece.iova.is_multiple_of(4)).then_some(piece.iova)
}

impl Encoder {
    /// For requests to `namespace`, described by `info`, with `lists`; without them where data lies
    /// in one piece, if the controller takes `sgl`s.
    pub(super) fn new(namespace: u32, info: &Info, lists: Lists, sgl: bool) -> Self {
        Self {
            namespace,
            read: Transfer::new(nvm::READ, namespace),
            write: Transfer::new(nvm::WRITE, namespace),
            limits: Limits::of(info),
            lists,
            sgl,
            protection: Protection::None,
        }
    }

    /// The same for a namespace that has `protection`, of whose requests none goes [the short
    /// way](Self::page_transfer).
    pub(super) fn protected(mut self, protection: Protection) -> Self {
        self.protection = protection;
        if !protection.is_none() {
            self.limits.page_end = 0;
        }
        self
    }

    /// Whether its commands may have a reference tag.
    pub(super) fn is_protected(&self) -> bool {
        !self.protection.is_none()
    }

    /// No request is in order from now on, so that none goes [the short way](Self::page_transfer)
    /// past who refuses all.
    pub(super) fn close(&mut self) {
        (self.limits.blocks, self.limits.page_end) = (0, 0);
    }

    /// The command for `request` in `slot`, without its id.
    pub(super) fn encode(&self, slot: u16, request: &Request) -> Result<Submission, IoError> {
        match request.operation {
            Operation::Read | Operation::Write => self.transfer(slot, request),
            Operation::Flush | Operation::WriteZeroes | Operation::Discard => {
                self.without_data(slot, request)
            }
        }
    }

    /// Command `id` for a read or write that is in order and moves a page at most; `None` if it may
    /// be something else.
    #[inline(always)]
    pub(super) fn page_transfer(&self, id: u16, request: &Request) -> Option<Submission> {
        let transfer = match request.operation {
            Operation::Read => self.read,
            Operation::Write if !self.limits.read_only => self.write,
            _ => return None,
        };
        let (address, in_page) = request.data.first_page()?;
        // Where its last byte is. One comparison for both ends: no blocks wrap around to the most
        // of all.
        let further = u64::from(request.blocks.wrapping_sub(1));
        let last = (further << self.limits.block_shift) | self.limits.block_mask;
        if last >= in_page as u64 || request.lba >= self.limits.page_end {
            return None;
        }
        // One page is described by its address alone.
        Some(transfer.of(id, request.lba, further, request.fua).with_data(address, 0))
    }

    fn transfer(&self, slot: u16, request: &Request) -> Result<Submission, IoError> {
        let transfer = match request.operation {
            Operation::Write if self.limits.read_only => return Err(IoError::ReadOnly),
            Operation::Write => self.write,
            _ => self.read,
        };
        self.limits.check(request, self.limits.max_blocks)?;
        let command = transfer.of(0, request.lba, u64::from(request.blocks) - 1, request.fua);
        let command = self.protection.protect(command, request.lba);
        let bytes = self.limits.bytes(request);
        // Two pages need no list either.
        if self.sgl
            && bytes > 2 * PAGE as usize
            && let Some(iova) = in_one_piece(&request.data, bytes)
        {
            return Ok(command.with_block(iova, bytes as u32));
        }
        let (prp1, prp2) =
            self.lists.describe(slot.into(), &request.data, bytes).ok_or(IoError::Invalid)?;
        Ok(command.with_data(prp1, prp2))
    }

    /// The command for what moves no data of the caller's.
    fn without_data(&self, slot: u16, request: &Request) -> Result<Submission, IoError> {
        let limits = &self.limits;
        if limits.read_only && request.operation != Operation::Flush {
            return Err(IoError::ReadOnly);
        }
        match request.operation {
            Operation::Flush => Ok(Submission::flush(self.namespace)),
            Operation::WriteZeroes => {
                limits.check(request, limits.max_write_zeroes)?;
                // Freed blocks need not read as zeroes on every device, so that is not permitted.
                let command = Submission::write_zeroes(
                    self.namespace,
                    request.lba,
                    request.blocks,
                    request.fua,
                    false,
                );
                Ok(self.protection.make(command, request.lba))
            }
            Operation::Discard => {
                limits.check(request, limits.max_discard)?;
                let range = DsmRange { lba: request.lba, blocks: request.blocks };
                let address = self.lists.store(slot.into(), range.to_words());
                Ok(Submission::deallocate(self.namespace, 1).with_data(address, 0))
            }
            Operation::Read | Operation::Write => Err(IoError::Invalid),
        }
    }

    /// The lists, to give their memory up or to leave it.
    pub(super) fn lists(&mut self) -> &mut Lists {
        &mut self.lists
    }
}

#[cfg(test)]
mod tests {
    use super::super::prp::Layout;
    use super::*;
    use crate::scattered::scattered;
    use ring3_class::block::{Disk, Ram};
    use ring3_device::dma::{Arena, Region};

    const LONG: usize = 128 << 10;

    fn encoder(sgl: bool) -> Encoder {
        let arena = Arena::new(Region::new(1 << 20).unwrap(), 0x1000_0000);
        let info = Info {
            max_transfer: LONG as u32,
            ..Ram::new(512, 1 << 20, 1 << 20).unwrap().info().clone()
        };
        let layout = Layout { max_transfer: LONG as u32, page: PAGE.into(), chained: false };
        Encoder::new(1, &info, Lists::new(&arena, 1, layout).unwrap(), sgl)
    }

    fn reading(pieces: &[(u64, u32)]) -> Request {
        let bytes: u32 = pieces.iter().map(|&(_, len)| len).sum();
        Request::read(0, 7, bytes / 512, scattered(pieces))
    }

    fn encoded(pieces: &[(u64, u32)], sgl: bool) -> Submission {
        encoder(sgl).encode(0, &reading(pieces)).unwrap()
    }

    #[test]
    fn a_piece_within_a_page_goes_the_short_way_and_to_the_same_command() {
        for piece in [(0x8000_0000, 4096), (0x8000_0200, 512), (0x8000_0e00, 512)] {
            let command = encoder(false).page_transfer(0, &reading(&[piece]));
            assert_eq!(command, Some(encoded(&[piece], false)), "{piece:x?}");
        }
    }

    #[test]
    fn what_crosses_a_page_begins_within_a_word_or_has_several_pieces_goes_the_long_way() {
        for pieces in [
            &[(0x8000_0e00, 1024)][..],
            &[(0x8000_0002, 512)],
            &[(0x8000_0000, 8192)],
            &[(0x8000_0000, 512), (0x8000_0200, 512)],
        ] {
            let command = encoder(false).page_transfer(0, &reading(pieces));
            assert_eq!(command, None, "{pieces:x?}");
        }
    }

    #[test]
    fn what_lies_in_one_piece_needs_no_list_of_pages() {
        let command = encoded(&[(0x8000_0200, LONG as u32)], true);
        assert_eq!(
            (command.flags(), command.0[3], command.0[4]),
            (Submission::SGL_FLAG, 0x8000_0200, LONG as u64)
        );
    }

    #[test]
    fn two_pages_several_pieces_and_controllers_without_lists_have_pages() {
        for (pieces, sgl) in [
            (&[(0x8000_0000, 8192)][..], true),
            (&[(0x8000_0000, 8192), (0x9000_0000, 8192)], true),
            (&[(0x8000_0000, LONG as u32)], false),
        ] {
            assert_eq!(encoded(pieces, sgl).flags(), 0, "{pieces:x?} {sgl}");
        }
    }
}
