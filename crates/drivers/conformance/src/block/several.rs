//! Many requests, several queues.

use std::time::Instant;

use super::subject::{Step, Subject, ensure, skip};
use super::{Check, pattern};
use ring3_class::block::{Queue, Request};

/// Those that only read.
pub(super) const READING: &[Check] = &[
    Check { name: "a tick while requests are in flight ends none of them early", run: ticking },
    Check {
        name: "a queue wants to be ticked at a later time while requests are in flight, and not at \
               all while none are",
        run: ticks,
    },
];

pub(super) const CHECKS: &[Check] = &[
    Check { name: "many requests in flight end exactly once, each with its own data", run: many },
    Check { name: "several queues at once do not disturb each other", run: several_queues },
    Check {
        name: "a queue more than there are is refused and changes nothing",
        run: too_many_queues,
    },
];

/// A place on the disk that one request at a time works on.
struct Place {
    lba: u64,
    blocks: u32,
    /// The write that it holds, and whether the request in flight is a read of it.
    generation: u64,
    reading: bool,
    /// The request in flight.
    token: Option<u64>,
}

/// Keeps `options.depth` requests in flight from `first` on; every write is read back and compared.
fn churn(subject: &Subject<'_>, queue: &mut dyn Queue, first: u64, room: u64) -> Step {
    let depth = u64::from(queue.depth().min(subject.options.depth)).min(room);
    let share = (room / depth).clamp(1, u64::from(subject.max_blocks()).min(17));
    let place = |index: u64| {
        let (lba, blocks) = (first + index * share, (index % share + 1) as u32);
        Place { lba, blocks, generation: 0, reading: true, token: None }
    };
    let mut places: Vec<_> = (0..depth).map(place).collect();
    let total = u64::from(subject.options.requests).max(depth);
    let (mut started, mut ended) = (0, 0);
    for index in 0..depth {
        started += 1;
        start(subject, queue, &mut places[index as usize], index | started << 16)?;
    }
    queue.ring();
    while ended < started {
        let done = subject.take(queue)?;
        ended += 1;
        let index = done.token & 0xffff;
        let place = places.get_mut(index as usize).filter(|place| place.token == Some(done.token));
        let Some(place) = place else {
            return Err(format!("request {:#x} ended, but was not in flight", done.token).into());
        };
        place.token = None;
        if place.reading {
            let Some(buffer) = done.data.into_buffer() else {
                return Err("a buffer was lent and none came back".to_owned().into());
            };
            let mut bytes = vec![0; buffer.len()];
            buffer.read(0, &mut bytes)?;
            pattern::verify(&bytes, place.lba, place.generation, subject.block_size())?;
        }
        if started < total {
            started += 1;
            start(subject, queue, place, index | started << 16)?;
            queue.ring();
        }
    }
    subject.silent(queue)
}

/// Starts a write, or a read of the last one.
fn start(subject: &Subject<'_>, queue: &mut dyn Queue, place: &mut Place, token: u64) -> Step {
    place.reading = !place.reading;
    let request = if place.reading {
        let buffer = subject.buffer(place.blocks as usize * subject.block_size())?;
        Request::read(token, place.lba, place.blocks, buffer)
    } else {
        place.generation = subject.generation();
        Request::write(
            token,
            place.lba,
            place.blocks,
            subject.filled(place.lba, place.blocks, place.generation)?,
        )
    };
    place.token = Some(token);
    match queue.submit(request) {
        Ok(()) => Ok(()),
        Err(rejected) => {
            Err(format!("a queue with room rejected request {token:#x}: {:?}", rejected.error)
                .into())
        }
    }
}

fn many(subject: &Subject<'_>) -> Step {
    subject.needs(2)?;
    churn(subject, &mut *subject.queue(subject.options.depth)?, 0, subject.info().blocks)
}

fn several_queues(subject: &Subject<'_>) -> Step {
    let queues = u64::from(subject.disk.max_queues()).min(4);
    if queues < 2 {
        return skip("it has one queue only");
    }
    subject.needs(2)?;
    let count = queues.min(subject.info().blocks);
    let room = subject.info().blocks / count;
    let work = |index: u64| {
        churn(subject, &mut *subject.queue(subject.options.depth)?, index * room, room)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err("the driver panicked".to_owned().into()))
        })
    })
}

fn too_many_queues(subject: &Subject<'_>) -> Step {
    let max = subject.disk.max_queues();
    if max > 64 {
        return skip("it has more queues than anyone opens");
    }
    let mut queues = (0..max).map(|_| subject.queue(2)).collect::<Step<Vec<_>>>()?;
    ensure!(subject.disk.open_queue(2).is_err(), "queue {} of {max} was opened", max + 1);
    for queue in &mut queues {
        let generation = subject.write(&mut **queue, 0, 1)?;
        subject.verify(&mut **queue, 0, 1, generation)?;
    }
    queues.pop();
    subject.queue(2).map(drop)
}

fn ticking(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(8)?;
    let count = queue.depth().min(8).into();
    for token in 0..count {
        let data = subject.buffer(subject.block_size())?;
        ensure!(
            queue.submit(Request::read(token, token % subject.info().blocks, 1, data)).is_ok(),
            "an empty queue rejected a read"
        );
    }
    queue.ring();
    for _ in 0..count {
        queue.tick(Instant::now())?;
        subject.take(&mut *queue)?;
    }
    queue.tick(Instant::now())?;
    subject.silent(&mut *queue)
}

fn ticks(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(2)?;
    for token in 0..4 {
        ensure!(
            queue.tick(Instant::now())?.is_none(),
            "a queue with nothing in flight wants to be ticked"
        );
        let data = subject.buffer(subject.block_size())?;
        ensure!(
            queue.submit(Request::read(token, 0, 1, data)).is_ok(),
            "an empty queue rejected a read"
        );
        queue.ring();
        let now = Instant::now();
        let next = queue.tick(now)?;
        ensure!(
            next.is_none_or(|next| next > now),
            "the tick that it wants next is due already, so that its owner would do nothing else"
        );
        subject.take(&mut *queue)?;
    }
    subject.silent(&mut *queue)
}
