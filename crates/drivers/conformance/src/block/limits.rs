//! What makes no sense is refused, costs nothing, and the queue goes on.

use super::Check;
use super::subject::{Step, Subject, ensure, skip};
use ring3_class::block::{Data, IoError, Operation, Queue, Request};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "blocks beyond the end are refused", run: beyond_the_end },
    Check { name: "a request for no blocks is refused", run: no_blocks },
    Check { name: "data shorter than its blocks is refused", run: short_data },
    Check {
        name: "a transfer longer than the longest is refused or done, not cut short",
        run: too_long,
    },
    Check { name: "a write-protected disk refuses to change", run: read_only },
];

/// The queue works after a refusal.
fn still_works(subject: &Subject<'_>, queue: &mut dyn Queue) -> Step {
    subject.read(queue, 0, 1)?;
    subject.silent(queue)
}

fn beyond_the_end(subject: &Subject<'_>) -> Step {
    let (mut queue, end) = (subject.queue(4)?, subject.info().blocks);
    let last = subject.read(&mut *queue, end - 1, 1)?;
    for (lba, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        let len = blocks as usize * subject.block_size();
        for operation in [Operation::Read, Operation::Write] {
            let request =
                Request { operation, ..Request::read(1, lba, blocks, subject.buffer(len)?) };
            let error = subject.fail(&mut *queue, request)?;
            ensure!(
                error == IoError::OutOfRange,
                "{operation:?} of {blocks} blocks at {lba} failed with {error:?}"
            );
        }
    }
    ensure!(
        subject.read(&mut *queue, end - 1, 1)? == last,
        "a write beyond the end changed the last block"
    );
    still_works(subject, &mut *queue)
}

fn no_blocks(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    for operation in [Operation::Read, Operation::Write] {
        let request = Request { operation, ..Request::read(1, 0, 0, subject.buffer(4096)?) };
        subject.fail(&mut *queue, request)?;
    }
    still_works(subject, &mut *queue)
}

fn short_data(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    let before = subject.write(&mut *queue, 0, 1)?;
    for operation in [Operation::Read, Operation::Write] {
        let short = subject.buffer(subject.block_size() - 1)?;
        subject.fail(&mut *queue, Request { operation, ..Request::read(1, 0, 1, short) })?;
        subject.fail(&mut *queue, Request { operation, ..Request::read(2, 0, 1, Data::None) })?;
    }
    subject.verify(&mut *queue, 0, 1, before)?;
    still_works(subject, &mut *queue)
}

fn too_long(subject: &Subject<'_>) -> Step {
    let (mut queue, blocks) =
        (subject.queue(4)?, subject.info().max_transfer / subject.info().block_size + 1);
    subject.needs(blocks.into())?;
    let generation = subject.generation();
    let Ok(data) = subject.filled(0, blocks, generation) else {
        return skip("the arena is smaller");
    };
    let done = ring3_class::block::execute(
        &mut *queue,
        Request::write(1, 0, blocks, data),
        subject.deadline(),
    )?;
    if done.result.is_ok() {
        subject.verify(&mut *queue, u64::from(blocks) - 1, 1, generation)?;
    }
    still_works(subject, &mut *queue)
}

fn read_only(subject: &Subject<'_>) -> Step {
    if !subject.info().read_only {
        return skip("it is not write-protected");
    }
    let mut queue = subject.queue(4)?;
    let data = subject.buffer(subject.block_size())?;
    let error = subject.fail(&mut *queue, Request::write(1, 0, 1, data))?;
    ensure!(error == IoError::ReadOnly, "a write failed with {error:?}");
    still_works(subject, &mut *queue)
}
