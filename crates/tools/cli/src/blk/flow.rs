//! Bytes between a disk and a file, many requests in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_class::block::{
    BlockQueue, Completion, Disk, ForeignAccess, Info, Operation, Queue, Request, next, open,
};
use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;

use super::target::Span;

/// Requests in flight.
pub const DEPTH: u16 = 16;
/// Bytes of each; less if the device takes less.
const CHUNK: u32 = 256 << 10;
/// The longest wait for one request: longer than the driver takes to recover a device.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of the buffers that a flow uses.
pub const BUFFERS: usize = DEPTH as usize * CHUNK as usize;

/// What a flow does with each finished piece, in order.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// A queue and the buffers that go through it.
pub struct Flow {
    name: String,
    queue: BlockQueue,
    free: Vec<DmaBuffer>,
    chunk: u64,
}

impl Flow {
    pub fn new(disk: &dyn Disk) -> Result<Self> {
        let (name, info) = (disk.name(), disk.info());
        let queue = open(disk, DEPTH, ForeignAccess { copies: 1, ..ForeignAccess::default() })
            .with_context(|| name.clone())?;
        let chunk = u64::from((info.max_transfer.min(CHUNK) / info.block_size).max(1));
        let bytes = chunk as usize * info.block_size as usize;
        let free = (0..queue.depth().min(DEPTH))
            .map(|_| disk.dma().arena().alloc_pages(bytes))
            .collect::<Result<_, _>>()?;
        Ok(Self { name, queue, free, chunk })
    }

    fn info(&self) -> &Info {
        self.queue.info()
    }

    /// Hands the content of `span` to `sink`, in order.
    pub fn read(
        &mut self,
        span: Span,
        mut sink: impl FnMut(&[u8]) -> Result<()>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let (end, block_size) = (span.lba + span.blocks, self.info().block_size as usize);
        let (mut next_read, mut next_out, mut done) = (span.lba, span.lba, BTreeMap::new());
        let mut bytes = vec![0; self.chunk as usize * block_size];
        while next_out < end {
            while next_read < end
                && let Some(buffer) = self.free.pop()
            {
                let blocks = self.chunk.min(end - next_read);
                self.submit(Request::read(next_read, next_read, blocks as u32, buffer))?;
                next_read += blocks;
            }
            let completion = self.finish("reading")?;
            done.insert(completion.token, completion);
            while let Some(completion) = done.remove(&next_out) {
                let blocks = self.chunk.min(end - next_out);
                let piece = &mut bytes[..blocks as usize * block_size];
                let buffer = completion
                    .data
                    .into_buffer()
                    .context("a buffer was lent and none came back")?;
                buffer.read(0, piece)?;
                sink(piece)?;
                self.free.push(buffer);
                next_out += blocks;
                progress(piece.len() as u64);
            }
        }
        Ok(())
    }

    /// Writes what `source` fills until it has no more or `span` is full; how many bytes that were.
    /// `source` returns how much of the slice it filled: all, or less at its end, which must be
    /// whole blocks. With `zeroes`, pieces that are zero are not transferred but zeroed by the
    /// device.
    pub fn write(
        &mut self,
        span: Span,
        mut source: impl FnMut(&mut [u8]) -> Result<usize>,
        zeroes: bool,
        progress: Progress<'_>,
    ) -> Result<u64> {
        let (end, block_size) = (span.lba + span.blocks, self.info().block_size as usize);
        let zeroes =
            zeroes && u64::from(self.info().max_blocks(Operation::WriteZeroes)) >= self.chunk;
        let (mut lba, mut bytes, mut more) =
            (span.lba, vec![0; self.chunk as usize * block_size], true);
        while more || self.queue.in_flight() > 0 {
            while more && self.queue.in_flight() < DEPTH && !self.free.is_empty() {
                let room = self.chunk.min(end - lba) as usize * block_size;
                let len = if room == 0 { 0 } else { source(&mut bytes[..room])? };
                more = len == room && room > 0;
                let (piece, blocks) = (&bytes[..len], (len / block_size) as u32);
                if zeroes && len > 0 && piece.iter().all(|&byte| byte == 0) {
                    self.submit(Request::write_zeroes(lba, lba, blocks))?;
                } else if len > 0
                    && let Some(buffer) = self.free.pop()
                {
                    buffer.write(0, piece)?;
                    self.submit(Request::write(lba, lba, blocks, buffer))?;
                }
                lba += u64::from(blocks);
                progress(len as u64);
            }
            if self.queue.in_flight() > 0 {
                let completion = self.finish("writing")?;
                self.free.extend(completion.data.into_buffer());
            }
        }
        Ok((lba - span.lba) * block_size as u64)
    }

    /// Makes what was written durable.
    pub fn flush(&mut self) -> Result<()> {
        self.submit(Request::flush(0))?;
        self.finish("flushing").map(drop)
    }

    fn submit(&mut self, request: Request) -> Result<()> {
        if let Err(rejected) = self.queue.submit(request) {
            match rejected.error {
                Some(error) => bail!("{}: block {}: {error}", self.name, rejected.request.lba),
                None => bail!(
                    "{}: the queue is full with {} of {}",
                    self.name,
                    self.queue.in_flight(),
                    self.queue.depth()
                ),
            }
        }
        Ok(())
    }

    fn finish(&mut self, doing: &str) -> Result<Completion> {
        self.queue.ring();
        let completion =
            next(&mut self.queue, Deadline::after(PATIENCE)).with_context(|| self.name.clone())?;
        match completion.result {
            Ok(()) => Ok(completion),
            Err(error) => bail!("{}: {doing} from block {}: {error}", self.name, completion.token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::block::Ram;

    const ALL: Span = Span { lba: 0, blocks: 4096 };

    fn disk() -> Ram {
        Ram::new(512, 4096, 16 << 20).unwrap()
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 512 * 3 + i + 1) as u8).collect()
    }

    fn write(disk: &Ram, span: Span, bytes: &[u8], zeroes: bool) -> u64 {
        let mut rest = bytes;
        let source = |piece: &mut [u8]| Ok(std::io::Read::read(&mut rest, piece)?);
        Flow::new(disk).unwrap().write(span, source, zeroes, &mut |_| {}).unwrap()
    }

    fn read(disk: &Ram, span: Span) -> Vec<u8> {
        let mut bytes = Vec::new();
        let sink = |piece: &[u8]| {
            bytes.extend_from_slice(piece);
            Ok(())
        };
        Flow::new(disk).unwrap().read(span, sink, &mut |_| {}).unwrap();
        bytes
    }

    #[test]
    fn a_whole_disk_is_read_in_order_although_requests_end_in_any() {
        let (disk, bytes) = (disk(), pattern(2 << 20));
        assert_eq!(write(&disk, ALL, &bytes, false), 2 << 20);
        assert!(read(&disk, ALL) == bytes);
    }

    #[test]
    fn only_the_span_is_written() {
        let (disk, span) = (disk(), Span { lba: 10, blocks: 300 });
        assert_eq!(write(&disk, span, &pattern(1 << 20), false), 300 * 512);
        let bytes = read(&disk, ALL);
        assert!(bytes[10 * 512..310 * 512] == pattern(300 * 512));
        assert!(bytes[..10 * 512].iter().chain(&bytes[310 * 512..]).all(|&byte| byte == 0));
    }

    #[test]
    fn an_input_that_ends_early_writes_what_there_is() {
        assert_eq!(write(&disk(), ALL, &pattern(512), false), 512);
        assert_eq!(write(&disk(), ALL, &[], false), 0);
    }

    #[test]
    fn zeroes_overwrite_what_was_there_without_being_transferred() {
        let disk = disk();
        write(&disk, ALL, &pattern(2 << 20), false);
        write(&disk, ALL, &vec![0; 1 << 20], true);
        let bytes = read(&disk, ALL);
        assert!(
            bytes[..1 << 20].iter().all(|&byte| byte == 0)
                && bytes[1 << 20..] == pattern(2 << 20)[1 << 20..]
        );
    }
}
