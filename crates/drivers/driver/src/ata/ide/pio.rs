//! Data that the processor moves, a block for each time that the drive asks. [ATA-6 9.8, 9.9]
//!
//! A request's memory is named by device addresses, as for the bus master, and reached by them.

use ring3_class::block::{Data, IoError};
use ring3_device::dma::{Dma, Segment};
use ring3_device::{Deadline, poll_until};

use super::channel::{Channel, ChannelFault, End, Running};
use super::transfer::{PROMPTLY, is_absent};

impl Channel {
    /// A command whose data the processor moves: moves the next block if the drive is ready for it.
    /// [ATA-6 9.8, 9.9]
    pub(super) fn look_at_pio(&mut self) -> Option<End> {
        let status = self.ports.alternate();
        if status.busy() == 1 || is_absent(status) {
            return None;
        }
        self.ports.status();
        self.acknowledge();
        let (total, moved) =
            (self.bytes(), self.running.as_ref().map_or(0, |running| running.moved));
        if status.failed() {
            // A block that has an error in it may be offered nevertheless; the next command ends
            // that, too. [ATA-6 9.8]
            self.idle = status.data_request() == 0;
            return Some(self.failed(status));
        }
        if status.data_request() == 0 {
            self.idle = true;
            return if moved == total { self.done() } else { Some(End::Short) };
        }
        if moved == total {
            self.trouble = Some(ChannelFault::Reset(
                "the drive wants more data than it was told",
                IoError::Transport,
            ));
            return None;
        }
        self.move_block(total, moved)
    }

    /// The first block of a write is asked for without an interrupt. [ATA-6 9.9]
    pub(super) fn give_first_block(&mut self) {
        let asks = || Some(self.ports.alternate()).filter(|status| status.busy() == 0);
        let status = asks().or_else(|| {
            poll_until(Deadline::after(PROMPTLY), "a request for data", || Ok(asks())).ok()
        });
        // Whatever else it says is found by the next look, and at the latest by `tick`.
        if status.is_some_and(|status| status.data_request() == 1 && !status.failed()) {
            self.move_block(self.bytes(), 0);
        }
    }

    fn move_block(&mut self, total: usize, moved: usize) -> Option<End> {
        let Some(Running { drive, request, command, .. }) = &self.running else { return None };
        let state = self.states[usize::from(*drive & 1)].as_deref()?;
        let len = (total - moved).min(state.pio_block()).min(self.block.len());
        let (block, dma) = (&mut self.block[..len], self.function.device.dma());
        let writes = command.is_some_and(|command| command.protocol.writes());
        let reached = if writes {
            let gathered = gather(dma, &request.data, moved, block);
            if gathered {
                self.ports.write_data(block);
            }
            gathered
        } else {
            self.ports.read_data(block);
            scatter(dma, &request.data, moved, block)
        };
        if !reached {
            // Nothing that was not meant is written: the command ends by a reset.
            self.trouble =
                Some(ChannelFault::Reset("the request's memory is not there", IoError::Invalid));
            self.no_more_attempts();
            return None;
        }
        if let Some(running) = &mut self.running {
            running.moved = moved + len;
        }
        if !writes && moved + len == total {
            // No interrupt and no status comes behind the last block that is read. [ATA-6 9.8]
            return Some(End::Done);
        }
        self.ports.await_selection();
        None
    }
}

/// Copies `block.len()` bytes of `data` from byte `skip` on into `block`.
fn gather(dma: &Dma, data: &Data, skip: usize, block: &mut [u8]) -> bool {
    let mut at = 0;
    for Segment { iova, len } in pieces(data, skip, block.len()) {
        let Some(part) = block.get_mut(at..at + len as usize) else { return false };
        if dma.read(iova, part).is_err() {
            return false;
        }
        at += len as usize;
    }
    at == block.len()
}

/// Copies `block` to `data` from byte `skip` on.
fn scatter(dma: &Dma, data: &Data, skip: usize, block: &[u8]) -> bool {
    let mut at = 0;
    for Segment { iova, len } in pieces(data, skip, block.len()) {
        let Some(part) = block.get(at..at + len as usize) else { return false };
        if dma.write(iova, part).is_err() {
            return false;
        }
        at += len as usize;
    }
    at == block.len()
}

/// Bytes `skip..skip + len` of `data`.
fn pieces(data: &Data, skip: usize, len: usize) -> impl Iterator<Item = Segment> {
    let mut skip = skip as u64;
    data.segments(skip as usize + len).filter_map(move |segment| {
        let gone = skip.min(segment.len.into());
        skip -= gone;
        let left = segment.len - gone as u32;
        (left > 0).then_some(Segment { iova: segment.iova.wrapping_add(gone), len: left })
    })
}
