//! What a disk must do when it is only read: what was read stays the same, however it is read.
//!
//! Nothing here writes. The content is the user's and not known, so that a first read says what
//! later ones must find.

use std::collections::HashMap;

use ring3_device::dma::{DmaBuffer, Foreign, Mode, Piece};

use super::Check;
use super::subject::{Step, Subject, ensure, skip};
use ring3_class::block::{Data, ForeignAccess, IoError, Operation, Queue, Request, open};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "blocks read the same in small pieces and together, up to the longest transfer",
        run: every_size,
    },
    Check { name: "the first and the last block are read, twice the same", run: ends },
    Check { name: "reads may start within a page", run: within_a_page },
    Check { name: "reads may scatter into pages that do not touch", run: scattered },
    Check { name: "reads beyond the end are refused", run: beyond_the_end },
    Check { name: "many reads in flight end exactly once, each with its own data", run: many },
    Check { name: "several queues at once read the same", run: several_queues },
    Check { name: "a read longer than the device takes is cut and ends once", run: long },
    Check { name: "reads into foreign memory find the same, mapped or copied", run: foreign },
];

/// Blocks of a small piece.
const PIECE: u32 = 8;

/// Reads `blocks` blocks in small pieces, one after the other.
fn in_pieces(subject: &Subject<'_>, queue: &mut dyn Queue, lba: u64, blocks: u32) -> Step<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = PIECE.min(subject.max_blocks());
    for done in (0..blocks).step_by(most as usize) {
        let piece = most.min(blocks - done);
        bytes.extend(subject.read(queue, lba + u64::from(done), piece)?);
    }
    Ok(bytes)
}

/// Fails if `found` is not what was read first from block `lba` on.
fn same(subject: &Subject<'_>, found: &[u8], first: &[u8], lba: u64) -> Step {
    ensure!(
        found.len() == first.len(),
        "{} bytes were read from block {lba} on, and then {}",
        first.len(),
        found.len()
    );
    let differs = found.iter().zip(first).position(|(one, other)| one != other);
    differs.map_or(Ok(()), |at| {
        let (block, byte) = (lba + (at / subject.block_size()) as u64, at % subject.block_size());
        Err(format!("block {block} was read twice, and differs from byte {byte} on").into())
    })
}

fn every_size(subject: &Subject<'_>) -> Step {
    let (mut queue, max) = (subject.queue(4)?, subject.max_blocks());
    let first = in_pieces(subject, &mut *queue, 0, max)?;
    let powers = (0..32).map(|log| 1u32 << log).take_while(|&size| size <= max);
    for blocks in powers.flat_map(|size| [size, size - 1, size + 1]).chain([max]) {
        if (1..=max).contains(&blocks) {
            let found = subject.read(&mut *queue, 0, blocks)?;
            same(subject, &found, &first[..blocks as usize * subject.block_size()], 0)?;
        }
    }
    subject.silent(&mut *queue)
}

fn ends(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(1)?;
    for lba in [0, subject.info().blocks - 1] {
        let first = subject.read(&mut *queue, lba, 1)?;
        same(subject, &subject.read(&mut *queue, lba, 1)?, &first, lba)?;
    }
    Ok(())
}

/// Reads from block 0 on into the segments of `buffer`.
fn by_segments(
    subject: &Subject<'_>,
    buffer: &DmaBuffer,
    list: &[(usize, usize)],
    blocks: u32,
) -> Step {
    const GUARD: u8 = 0xa5;
    let mut queue = subject.queue(1)?;
    let first = in_pieces(subject, &mut *queue, 0, blocks)?;
    buffer.fill(GUARD);
    let spans: Option<Vec<_>> =
        list.iter().map(|&(at, len)| buffer.span().part(at as u32, len as u32)).collect();
    let Some(segments) = spans.and_then(|spans| subject.disk.dma().arena().list(&spans)) else {
        return Err("a buffer of the disk's arena does not lie there".to_owned().into());
    };
    subject.succeed(&mut *queue, Request::read(1, 0, blocks, Data::from(segments)))?;
    let (mut all, mut found) = (vec![0; buffer.len()], Vec::new());
    buffer.read(0, &mut all)?;
    for &(at, len) in list {
        found.extend_from_slice(&all[at..at + len]);
        all[at..at + len].fill(GUARD);
    }
    same(subject, &found, &first, 0)?;
    ensure!(all.iter().all(|&byte| byte == GUARD), "a read wrote beside its segments");
    Ok(())
}

fn within_a_page(subject: &Subject<'_>) -> Step {
    let align = subject.info().segments.align.max(1) as usize;
    for offset in [align, 512, 4096 - align] {
        // A page less than the longest transfer, because the data touches one page more.
        let most = subject.max_blocks().saturating_sub(4096 / subject.info().block_size).max(1);
        for blocks in [1, most] {
            let len = blocks as usize * subject.block_size();
            let buffer = subject.buffer(len + 2 * 4096)?;
            by_segments(subject, &buffer, &[(offset.next_multiple_of(align), len)], blocks)?;
        }
    }
    Ok(())
}

fn scattered(subject: &Subject<'_>) -> Step {
    let page = subject.info().segments.boundary.max(512) as usize;
    let pages = (subject.max_blocks() as usize * subject.block_size() / page)
        .min(subject.info().segments.max as usize)
        .min(64);
    if pages < 2 || !page.is_multiple_of(subject.block_size()) {
        return skip("it takes one piece only, or has too few blocks");
    }
    let blocks = (pages * page / subject.block_size()) as u32;
    // Every second page, last one first, so that no two touch.
    let list: Vec<_> = (0..pages).rev().map(|index| (index * 2 * page, page)).collect();
    let memory = subject.disk.dma().arena().alloc(pages * 2 * page, page.max(4096))?;
    by_segments(subject, &memory, &list, blocks)
}

fn beyond_the_end(subject: &Subject<'_>) -> Step {
    let (mut queue, end) = (subject.queue(4)?, subject.info().blocks);
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        let data = subject.buffer(blocks as usize * subject.block_size())?;
        let error = subject.fail(&mut *queue, Request::read(1, lba, blocks, data))?;
        ensure!(
            error == IoError::OutOfRange,
            "a read of {blocks} blocks at {lba} failed with {error:?}"
        );
    }
    subject.read(&mut *queue, 0, 1)?;
    subject.silent(&mut *queue)
}

/// Keeps reads of different lengths in flight, from `first` on, and compares each with what was
/// read before.
fn churn(subject: &Subject<'_>, queue: &mut dyn Queue, first: u64, room: u64) -> Step {
    let depth = u64::from(queue.depth().min(subject.options.depth)).min(room);
    let share = (room / depth).clamp(1, u64::from(subject.max_blocks()).min(17));
    let place = |token: u64| {
        let index = token % depth;
        (first + index * share, (index % share + 1) as u32)
    };
    let mut known = HashMap::new();
    for token in 0..depth {
        let (lba, blocks) = place(token);
        known.insert(lba, in_pieces(subject, queue, lba, blocks)?);
    }
    let start = |queue: &mut dyn Queue, token: u64| -> Step {
        let (lba, blocks) = place(token);
        let data = subject.buffer(blocks as usize * subject.block_size())?;
        ensure!(
            queue.submit(Request::read(token, lba, blocks, data)).is_ok(),
            "a queue with room rejected request {token}"
        );
        Ok(())
    };
    let total = u64::from(subject.options.requests).max(depth);
    let mut waiting: Vec<bool> = vec![false; total as usize];
    for token in 0..depth {
        start(queue, token)?;
        waiting[token as usize] = true;
    }
    queue.ring();
    for next in depth..total + depth {
        let done = subject.take(queue)?;
        let expected = waiting.get_mut(done.token as usize).is_some_and(std::mem::take);
        ensure!(expected, "request {:#x} ended, but was not in flight", done.token);
        let Some(buffer) = done.data.into_buffer() else {
            return Err("a buffer was lent and none came back".to_owned().into());
        };
        let (lba, _) = place(done.token);
        let mut found = vec![0; buffer.len()];
        buffer.read(0, &mut found)?;
        same(subject, &found, &known[&lba], lba)?;
        if next < total {
            start(queue, next)?;
            waiting[next as usize] = true;
            queue.ring();
        }
    }
    subject.silent(queue)
}

fn many(subject: &Subject<'_>) -> Step {
    churn(subject, &mut *subject.queue(subject.options.depth)?, 0, subject.info().blocks)
}

fn several_queues(subject: &Subject<'_>) -> Step {
    let queues = u64::from(subject.disk.max_queues()).min(4).min(subject.info().blocks);
    if queues < 2 {
        return skip("it has one queue or one block only");
    }
    // All read the same blocks: nobody writes.
    let room = subject.info().blocks;
    let work = || churn(subject, &mut *subject.queue(subject.options.depth)?, 0, room);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..queues).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("the driver panicked".to_owned().into()))
        })
    })
}

fn long(subject: &Subject<'_>) -> Step {
    let mut queue = open(subject.disk, subject.options.depth, ForeignAccess::default())?;
    let most = subject.info().max_blocks(Operation::Read);
    let blocks = most.saturating_mul(3).saturating_add(most / 2 + 1);
    subject.needs(blocks.into())?;
    if blocks as usize * subject.block_size() > subject.disk.dma().arena().free_bytes() / 3 {
        return skip("the arena does not hold three of its longest transfers several times");
    }
    let whole = subject.read(&mut queue, 0, blocks)?;
    ensure!(queue.stats().parts == 4, "a request was done in {} parts", queue.stats().parts);
    let tail = u64::from(blocks - 1);
    let last = subject.read(&mut queue, tail, 1)?;
    same(subject, &whole[whole.len() - last.len()..], &last, tail)?;
    subject.silent(&mut queue)
}

fn foreign(subject: &Subject<'_>) -> Step {
    let blocks = subject.max_blocks().min(64);
    let first = in_pieces(subject, &mut *subject.queue(1)?, 0, blocks)?;
    for mode in [Mode::ZeroCopy, Mode::Copy] {
        let access = ForeignAccess { mode, ..ForeignAccess::default() };
        let mut queue = open(subject.disk, subject.options.depth, access)?;
        let memory = Foreign::new(first.len())?;
        let piece = Piece { memory: memory.clone(), offset: 0, len: first.len() };
        subject.succeed(&mut queue, Request::read(1, 0, blocks, piece))?;
        let mut found = vec![0; first.len()];
        memory.read(0, &mut found)?;
        same(subject, &found, &first, 0)?;
    }
    Ok(())
}
