//! The layer above the driver, on this driver: long requests and foreign memory.

use ring3_device::dma::{Foreign, Mode, Piece};

use super::subject::{Step, Subject, ensure, skip};
use super::{Check, pattern};
use ring3_class::block::{BlockQueue, Data, ForeignAccess, Operation, Queue, Request, open};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a request longer than the device takes is cut and ends once", run: long },
    Check { name: "a long write-zeroes is cut to the limit of the device", run: long_zeroes },
    Check {
        name: "foreign pages are reached without a copy, where the backend can map",
        run: mapped,
    },
    Check { name: "foreign bytes that the device cannot reach are copied", run: copied },
    Check { name: "foreign pieces are gathered and scattered", run: pieces },
];

fn queue(subject: &Subject<'_>, mode: Mode) -> Step<BlockQueue> {
    Ok(open(
        subject.disk,
        subject.options.depth,
        ForeignAccess { mode, ..ForeignAccess::default() },
    )?)
}

fn foreign(bytes: &[u8]) -> Step<Foreign> {
    let memory = Foreign::new(bytes.len())?;
    memory.write(0, bytes)?;
    Ok(memory)
}

fn long(subject: &Subject<'_>) -> Step {
    let (mut queue, most) =
        (queue(subject, Mode::ZeroCopy)?, subject.info().max_blocks(Operation::Read));
    let blocks = most.saturating_mul(3).saturating_add(most / 2 + 1);
    subject.needs(blocks.into())?;
    if blocks as usize * subject.block_size() > subject.disk.dma().arena().free_bytes() / 3 {
        return skip("the arena does not hold three of its longest transfers several times");
    }
    let generation = subject.write(&mut queue, 0, blocks)?;
    subject.verify(&mut queue, 0, blocks, generation)?;
    ensure!(queue.stats().parts == 8, "two requests were done in {} parts", queue.stats().parts);
    subject.silent(&mut queue)
}

fn long_zeroes(subject: &Subject<'_>) -> Step {
    let most = subject.info().max_blocks(Operation::WriteZeroes);
    let blocks = most.saturating_add(3);
    if most == 0 {
        return skip("it cannot write zeroes");
    }
    subject.needs(u64::from(blocks) + 1)?;
    let mut queue = queue(subject, Mode::ZeroCopy)?;
    let (first, last) =
        (subject.write(&mut queue, 0, 1)?, subject.write(&mut queue, u64::from(blocks), 1)?);
    ensure!(first != last, "two writes have one number");
    subject.succeed(&mut queue, Request::write_zeroes(1, 0, blocks))?;
    for lba in [0, u64::from(blocks) - 1] {
        ensure!(
            subject.read(&mut queue, lba, 1)?.iter().all(|&byte| byte == 0),
            "block {lba} is not zero"
        );
    }
    subject.verify(&mut queue, u64::from(blocks), 1, last)
}

/// Writes from foreign memory and reads into it.
fn round_trip(
    subject: &Subject<'_>,
    queue: &mut BlockQueue,
    make: impl Fn(Vec<u8>) -> Step<Foreign>,
) -> Step {
    let (blocks, generation) = (subject.max_blocks().min(64), subject.generation());
    let bytes = pattern::blocks(0, blocks, generation, subject.block_size());
    let mut found = vec![0; bytes.len()];
    let (from, to) = (make(bytes)?, make(vec![0xa5; found.len()])?);
    let piece = |memory: &Foreign| Piece { memory: memory.clone(), offset: 0, len: found.len() };
    subject.succeed(queue, Request::write(1, 0, blocks, piece(&from)))?;
    subject.verify(queue, 0, blocks, generation)?;
    subject.succeed(queue, Request::read(2, 0, blocks, piece(&to)))?;
    to.read(0, &mut found)?;
    Ok(pattern::verify(&found, 0, generation, subject.block_size())?)
}

fn mapped(subject: &Subject<'_>) -> Step {
    let mut queue = queue(subject, Mode::ZeroCopy)?;
    round_trip(subject, &mut queue, |bytes| foreign(&bytes))?;
    let stats = queue.stream_stats();
    if subject.disk.dma().iommu().can_map(&foreign(&[0])?.region().pages()?) {
        ensure!(stats.copied == 0 && stats.mapped == 2, "{} transfers were copied", stats.copied);
    }
    drop(queue);
    Ok(())
}

fn copied(subject: &Subject<'_>) -> Step {
    let mut unmappable = queue(subject, Mode::ZeroCopy)?;
    round_trip(subject, &mut unmappable, |bytes| Ok(Foreign::from(bytes)))?;
    drop(unmappable);
    let mut chosen = queue(subject, Mode::Copy)?;
    round_trip(subject, &mut chosen, |bytes| foreign(&bytes))?;
    ensure!(chosen.stream_stats().mapped == 0, "memory was mapped although copying was asked for");
    Ok(())
}

fn pieces(subject: &Subject<'_>) -> Step {
    let (mut queue, generation) = (queue(subject, Mode::ZeroCopy)?, subject.generation());
    let blocks = subject.max_blocks().min(24);
    let bytes = pattern::blocks(0, blocks, generation, subject.block_size());
    // Pieces of odd lengths in two allocations, in turn.
    let (memory, step) = ([foreign(&bytes)?, Foreign::from(bytes.clone())], 1000);
    let cut = |offset: usize| {
        let len = step.min(bytes.len() - offset);
        Piece { memory: memory[offset / step % 2].clone(), offset, len }
    };
    let list = || -> Data { Data::Foreign((0..bytes.len()).step_by(step).map(cut).collect()) };
    subject.succeed(&mut queue, Request::write(1, 0, blocks, list()))?;
    subject.verify(&mut queue, 0, blocks, generation)?;
    memory.iter().try_for_each(|memory| memory.write(0, &vec![0xa5; bytes.len()]))?;
    subject.succeed(&mut queue, Request::read(2, 0, blocks, list()))?;
    let mut found = vec![0; bytes.len()];
    for offset in (0..bytes.len()).step_by(step) {
        let end = (offset + step).min(bytes.len());
        memory[offset / step % 2].read(offset, &mut found[offset..end])?;
    }
    pattern::verify(&found, 0, generation, subject.block_size())?;
    subject.silent(&mut queue)
}
