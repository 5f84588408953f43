//! The data of a command: out of the drive, into it, and what they have done when they have all
//! moved.

use ring3_spec::ata::{ErrorBits, TaskFile, TrimRange};

use super::drive::{Drive, End};
use super::plan::{Data, Plan};

impl Drive {
    /// Gives the `len` bytes of a command's data from `at` on to `sink`, piece by piece, until it
    /// fails.
    pub(crate) fn give<E>(
        &self,
        plan: &Plan,
        at: usize,
        len: usize,
        mut sink: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let corrupt = plan.corrupt && at == 0;
        let mut sink = |offset: usize, bytes: &[u8]| match bytes {
            [first, rest @ ..] if corrupt && offset == 0 => {
                sink(0, &[!first])?;
                if rest.is_empty() { Ok(()) } else { sink(1, rest) }
            }
            _ => sink(offset, bytes),
        };
        match &plan.data {
            Data::Blocks { lba, .. } => {
                self.medium.read((lba << self.shape.block_shift) + at as u64, len, sink)
            }
            Data::Page(page) => page.get(at..at + len).map_or(Ok(()), |bytes| sink(0, bytes)),
            Data::None => Ok(()),
        }
    }

    /// Lets `source` fill the `len` bytes of a command's data from `at` on, piece by piece, until
    /// it fails.
    pub(crate) fn take<E>(
        &mut self,
        plan: &mut Plan,
        at: usize,
        len: usize,
        mut source: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let corrupt = plan.corrupt && at == 0;
        let source = |offset: usize, bytes: &mut [u8]| {
            source(offset, bytes)?;
            if let (true, Some(first)) = (corrupt && offset == 0, bytes.first_mut()) {
                *first = !*first;
            }
            Ok(())
        };
        match &mut plan.data {
            Data::Blocks { lba, .. } => {
                self.medium.write((*lba << self.shape.block_shift) + at as u64, len, source)
            }
            Data::Page(page) => {
                let mut source = source;
                page.get_mut(at..at + len).map_or(Ok(()), |bytes| source(0, bytes))
            }
            Data::None => Ok(()),
        }
    }

    /// Ends a command whose data have moved.
    pub(crate) fn finish(&mut self, task: &TaskFile, plan: &Plan) -> End {
        match &plan.data {
            Data::Blocks { lba, blocks, durable } if plan.protocol.writes() => {
                self.medium.settle(*lba, (*blocks).into(), *durable);
            }
            Data::Page(page) if plan.protocol.writes() => return self.discard(page),
            _ => {}
        }
        End::well(task.lba)
    }

    /// TRIM: all ranges are checked before the first block is freed; what is freed reads as zeroes.
    /// [ACS-3 7.5.3]
    fn discard(&mut self, page: &[u8]) -> End {
        let ranges = || page.as_chunks::<8>().0.iter().map(|bytes| TrimRange::from_bytes(*bytes));
        if let Some(bad) =
            ranges().find(|range| !self.medium.contains(range.lba, range.blocks.into()))
        {
            return End::error(ErrorBits(0).with_id_not_found(1), bad.lba);
        }
        let blocks: u64 = ranges().map(|range| u64::from(range.blocks)).sum();
        let bytes = blocks << self.shape.block_shift;
        if self.shape.quirks.iter().any(|quirk| quirk.breaks_at(bytes)) {
            return End::fault();
        }
        for range in ranges().filter(|range| range.blocks > 0) {
            self.medium.zero(range.lba, range.blocks.into(), !self.cache);
        }
        End::well(0)
    }
}
