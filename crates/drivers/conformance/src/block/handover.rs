//! Queues that change hands while the device works.

use super::subject::{Step, Subject, ensure, skip};
use super::{Check, pattern};
use ring3_class::block::{Completion, Queue, Request, detach};
use ring3_class::{Error, Saved};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "a queue that is detached under load is resumed with all that was in flight, and \
               nothing is done twice",
        run: resumed,
    },
    Check {
        name: "a queue that was detached takes nothing more, and is resumed once",
        run: detached,
    },
];

/// Rounds: enough for the rings to begin several laps.
const ROUNDS: u64 = 40;

/// Leaves `queue`, by way of what another process would read. `ended` gets what had to end first.
fn save_queue(
    subject: &Subject<'_>,
    queue: &mut dyn Queue,
    ended: &mut Vec<Completion>,
) -> Step<Saved> {
    let saved = match detach(queue, ended, subject.deadline()) {
        Err(Error::Unsupported(why)) => return skip(why),
        saved => saved?,
    };
    let text = serde_json::to_string(&saved).map_err(|error| error.to_string())?;
    Ok(serde_json::from_str(&text).map_err(|error| error.to_string())?)
}

fn resumed(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(8)?;
    let places = u64::from(queue.depth().min(8)).min(subject.info().blocks);
    let mut written = vec![None; places as usize];
    for round in 0..ROUNDS {
        let mut waiting = Vec::new();
        for lba in 0..places {
            // The last of each round are submitted and not rung.
            if lba + 1 == places {
                queue.ring();
            }
            let request = match written[lba as usize] {
                Some(_) if (lba + round) % 3 == 0 => {
                    Request::read(lba, lba, 1, subject.buffer(subject.block_size())?)
                }
                _ => {
                    let generation = subject.generation();
                    written[lba as usize] = Some(generation);
                    Request::write(lba, lba, 1, subject.filled(lba, 1, generation)?)
                }
            };
            ensure!(queue.submit(request).is_ok(), "a queue with room rejected request {lba}");
            waiting.push(lba);
        }
        let mut ended = Vec::new();
        let saved = save_queue(subject, &mut *queue, &mut ended)?;
        drop(queue);
        queue = subject.disk.resume_queue(&saved)?;
        let left = places as usize - ended.len();
        ensure!(
            usize::from(queue.in_flight()) == left,
            "{left} requests were left, and {} are in flight",
            queue.in_flight()
        );
        queue.ring();
        while !waiting.is_empty() {
            let done = match ended.pop() {
                Some(done) => done,
                None => subject.take(&mut *queue)?,
            };
            check(subject, done, &mut waiting, &written)?;
        }
        subject.silent(&mut *queue)?;
    }
    for (lba, generation) in (0..).zip(written) {
        subject.verify(&mut *queue, lba, 1, generation.unwrap_or(0))?;
    }
    Ok(())
}

/// Takes the end of a request that is `waiting`, and whose bytes must be those that were written
/// last.
fn check(
    subject: &Subject<'_>,
    done: Completion,
    waiting: &mut Vec<u64>,
    written: &[Option<u64>],
) -> Step {
    let lba = done.token;
    let Some(at) = waiting.iter().position(|&token| token == lba) else {
        return Err(format!("request {lba:#x} ended, but was not in flight").into());
    };
    waiting.swap_remove(at);
    let Some(buffer) = done.data.into_buffer() else {
        return Err(format!("request {lba} came back without its buffer").into());
    };
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes)?;
    Ok(pattern::verify(&bytes, lba, written[lba as usize].unwrap_or(0), subject.block_size())?)
}

fn detached(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    let generation = subject.write(&mut *queue, 0, 1)?;
    let saved = save_queue(subject, &mut *queue, &mut Vec::new())?;
    let rejected = queue.submit(Request::read(1, 0, 1, subject.buffer(subject.block_size())?));
    ensure!(
        rejected.is_err_and(|rejected| rejected.error.is_some()),
        "a queue that was detached took a request"
    );
    queue.ring();
    ensure!(queue.detach().is_err(), "a queue was detached twice");
    let mut resumed = subject.disk.resume_queue(&saved)?;
    drop(queue);
    ensure!(subject.disk.resume_queue(&saved).is_err(), "a queue was resumed twice");
    subject.verify(&mut *resumed, 0, 1, generation)
}
