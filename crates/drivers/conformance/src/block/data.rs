//! Bytes go where they belong and nowhere else.

use ring3_device::dma::DmaBuffer;

use super::Check;
use super::pattern;
use super::subject::{Step, Subject, ensure, skip};
use ring3_class::block::{Data, IoError, Operation, Queue, Request};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "what was written is read back, from one block to the longest transfer",
        run: every_size,
    },
    Check { name: "the first and the last block are written and read", run: ends },
    Check { name: "a write changes no block beside its own", run: neighbours },
    Check { name: "data may start within a page", run: within_a_page },
    Check { name: "data may lie in scattered pages", run: scattered },
    Check { name: "a flush completes, with and without something to flush", run: flush },
    Check {
        name: "a write with FUA is read back, or refused by a disk that cannot write through",
        run: fua,
    },
    Check { name: "blocks read as zeroes after write zeroes, and no others", run: write_zeroes },
    Check { name: "discard is accepted and changes no other block", run: discard },
];

fn every_size(subject: &Subject<'_>) -> Step {
    let (mut queue, max) = (subject.queue(4)?, subject.max_blocks());
    let powers = (0..32).map(|log| 1u64 << log).take_while(|&size| size <= max.into());
    let around =
        powers.flat_map(|size| [size.saturating_sub(1), size, size + 1]).chain([max.into()]);
    let mut sizes: Vec<u32> =
        around.filter(|&size| size > 0 && size <= max.into()).map(|size| size as u32).collect();
    sizes.sort();
    sizes.dedup();
    for (index, &blocks) in sizes.iter().enumerate() {
        let lba = (index as u64 * 3).min(subject.info().blocks - u64::from(blocks));
        let generation = subject.write(&mut *queue, lba, blocks)?;
        subject.verify(&mut *queue, lba, blocks, generation)?;
    }
    subject.silent(&mut *queue)
}

fn ends(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(1)?;
    let last = subject.info().blocks - 1;
    let (first_write, last_write) =
        (subject.write(&mut *queue, 0, 1)?, subject.write(&mut *queue, last, 1)?);
    if last > 0 {
        subject.verify(&mut *queue, 0, 1, first_write)?;
    }
    subject.verify(&mut *queue, last, 1, last_write)
}

/// Blocks that are written from the start of the disk on, and which of them are changed then.
struct Among {
    blocks: u32,
    inner: u64,
    changed: u32,
}

impl Among {
    /// As many as fit: a block or two between others, and on a disk of two blocks one beside the
    /// other.
    fn of(subject: &Subject<'_>) -> Step<Self> {
        subject.needs(2)?;
        match subject.max_blocks() {
            0 | 1 => skip("its transfers have one block"),
            blocks @ 2..4 => Ok(Self { blocks, inner: 1, changed: 1 }),
            blocks => Ok(Self {
                blocks: blocks.min(16),
                inner: u64::from(blocks.min(16)) / 2 - 1,
                changed: 2,
            }),
        }
    }

    /// The blocks beside those that were changed hold write `generation`.
    fn others_hold(&self, subject: &Subject<'_>, queue: &mut dyn Queue, generation: u64) -> Step {
        let behind = self.inner + u64::from(self.changed);
        subject.verify(queue, 0, self.inner as u32, generation)?;
        match self.blocks - behind as u32 {
            0 => Ok(()),
            left => subject.verify(queue, behind, left, generation),
        }
    }
}

fn neighbours(subject: &Subject<'_>) -> Step {
    let among = Among::of(subject)?;
    let mut queue = subject.queue(1)?;
    let before = subject.write(&mut *queue, 0, among.blocks)?;
    let after = subject.write(&mut *queue, among.inner, among.changed)?;
    subject.verify(&mut *queue, among.inner, among.changed, after)?;
    among.others_hold(subject, &mut *queue, before)
}

/// Writes from the segments of one buffer and reads into those of another.
fn by_segments(
    subject: &Subject<'_>,
    buffer: DmaBuffer,
    list: &[(usize, usize)],
    blocks: u32,
) -> Step {
    let segments = |buffer: &DmaBuffer| -> Step<Data> {
        let spans: Option<Vec<_>> =
            list.iter().map(|&(at, len)| buffer.span().part(at as u32, len as u32)).collect();
        let list = spans.and_then(|spans| subject.disk.dma().arena().list(&spans));
        list.map(Data::from)
            .ok_or_else(|| String::from("a buffer of the disk's arena does not lie there").into())
    };
    let (mut queue, generation, lba) =
        (subject.queue(1)?, subject.generation(), 5.min(subject.info().blocks - u64::from(blocks)));
    let bytes = pattern::blocks(lba, blocks, generation, subject.block_size());
    let mut rest = &bytes[..];
    for &(at, len) in list {
        let (piece, tail) = rest.split_at(len.min(rest.len()));
        buffer.write(at, piece)?;
        rest = tail;
    }
    subject.succeed(&mut *queue, Request::write(1, lba, blocks, segments(&buffer)?))?;
    subject.verify(&mut *queue, lba, blocks, generation)?;
    buffer.fill(0xa5);
    subject.succeed(&mut *queue, Request::read(2, lba, blocks, segments(&buffer)?))?;
    let (mut all, mut found) = (vec![0; buffer.len()], Vec::new());
    buffer.read(0, &mut all)?;
    for &(at, len) in list {
        found.extend_from_slice(&all[at..at + len]);
        all[at..at + len].fill(0xa5);
    }
    pattern::verify(&found, lba, generation, subject.block_size())?;
    ensure!(all.iter().all(|&byte| byte == 0xa5), "a read wrote beside its segments");
    Ok(())
}

fn within_a_page(subject: &Subject<'_>) -> Step {
    let align = subject.info().segments.align.max(1) as usize;
    for offset in [align, 512, 4096 - align] {
        // A page less than the longest transfer, because the data touches one page more.
        for blocks in
            [1, (subject.max_blocks().saturating_sub(4096 / subject.info().block_size)).max(1)]
        {
            let len = blocks as usize * subject.block_size();
            by_segments(
                subject,
                subject.buffer(len + 2 * 4096)?,
                &[(offset.next_multiple_of(align), len)],
                blocks,
            )?;
        }
    }
    Ok(())
}

fn scattered(subject: &Subject<'_>) -> Step {
    let page = subject.info().segments.boundary.max(512) as usize;
    let pages = (subject.max_blocks() as usize * subject.block_size() / page)
        .min(subject.info().segments.max as usize)
        .min(64);
    if pages < 2
        || !page.is_multiple_of(subject.block_size()) && !subject.block_size().is_multiple_of(page)
    {
        subject.needs((2 * page).div_ceil(subject.block_size()) as u64)?;
        return skip("it takes one piece only");
    }
    let blocks = (pages * page / subject.block_size()) as u32;
    // Every second page, last one first, so that no two touch.
    let list: Vec<_> = (0..pages).rev().map(|index| (index * 2 * page, page)).collect();
    let memory = subject.disk.dma().arena().alloc(pages * 2 * page, page.max(4096))?;
    by_segments(subject, memory, &list, blocks)
}

fn flush(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(2)?;
    subject.succeed(&mut *queue, Request::flush(1))?;
    let generation = subject.write(&mut *queue, 0, 1)?;
    subject.succeed(&mut *queue, Request::flush(2))?;
    subject.verify(&mut *queue, 0, 1, generation)
}

fn fua(subject: &Subject<'_>) -> Step {
    let (mut queue, generation, lba) = (subject.queue(1)?, subject.generation(), subject.block(9));
    let write = Request::write(1, lba, 1, subject.filled(lba, 1, generation)?).with_fua();
    if subject.info().volatile_cache && !subject.info().fua {
        let error = subject.fail(&mut *queue, write)?;
        ensure!(
            error == IoError::Unsupported,
            "a disk that cannot write through ended such a write with: {error}"
        );
        return subject.silent(&mut *queue);
    }
    subject.succeed(&mut *queue, write)?;
    subject.verify(&mut *queue, lba, 1, generation)
}

fn write_zeroes(subject: &Subject<'_>) -> Step {
    if subject.info().max_blocks(Operation::WriteZeroes) < 2 {
        return skip("it cannot write zeroes");
    }
    let among = Among::of(subject)?;
    let mut queue = subject.queue(1)?;
    let before = subject.write(&mut *queue, 0, among.blocks)?;
    subject.succeed(&mut *queue, Request::write_zeroes(1, among.inner, among.changed))?;
    let found = subject.read(&mut *queue, among.inner, among.changed)?;
    ensure!(found.iter().all(|&byte| byte == 0), "not all bytes are zero");
    among.others_hold(subject, &mut *queue, before)
}

fn discard(subject: &Subject<'_>) -> Step {
    if subject.info().max_blocks(Operation::Discard) < 2 {
        return skip("it cannot discard");
    }
    let among = Among::of(subject)?;
    let mut queue = subject.queue(1)?;
    let before = subject.write(&mut *queue, 0, among.blocks)?;
    subject.succeed(&mut *queue, Request::discard(1, among.inner, among.changed))?;
    // What the blocks hold now is the device's choice; that they can be read and written is not.
    subject.read(&mut *queue, among.inner, among.changed)?;
    among.others_hold(subject, &mut *queue, before)?;
    let after = subject.write(&mut *queue, among.inner, among.changed)?;
    subject.verify(&mut *queue, among.inner, among.changed, after)
}
