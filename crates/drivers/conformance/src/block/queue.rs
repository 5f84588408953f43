//! One queue: what goes in comes out once, waits end, and nothing is given back early.

use std::time::{Duration, Instant};

use ring3_device::Deadline;

use super::Check;
use super::subject::{Step, Subject, ensure};
use ring3_class::block::{Queue, Request};

/// Those that only read.
pub(super) const READING: &[Check] = &[
    Check { name: "a full queue gives the request back, and takes it later", run: full },
    Check { name: "a wait for nothing ends at its deadline", run: wait_for_nothing },
    Check { name: "an idle queue costs no CPU", run: idle },
    Check { name: "sleeping is safe only while nothing is pending", run: arming },
    Check {
        name: "a queue sleeps by interrupt though the one before it was dropped while it polled",
        run: arming_anew,
    },
];

pub(super) const CHECKS: &[Check] = &[
    Check { name: "nothing ends that was not rung", run: unrung },
    Check { name: "a queue that is dropped under load gives no memory back early", run: dropped },
    Check { name: "queues can be opened and dropped again and again without loss", run: reopened },
];

/// Submits reads of one block until the queue is full; how many it took.
fn fill(subject: &Subject<'_>, queue: &mut dyn Queue) -> Step<u16> {
    let depth = queue.depth();
    for token in 0..u64::from(depth) + 1 {
        let buffer = subject.buffer(subject.block_size())?;
        let Err(rejected) =
            queue.submit(Request::read(token, token % subject.info().blocks, 1, buffer))
        else {
            continue;
        };
        ensure!(rejected.error.is_none(), "a full queue said {:?}", rejected.error);
        ensure!(
            rejected.request.token == token,
            "request {token} came back as {}",
            rejected.request.token
        );
        ensure!(
            rejected.request.data.len() == subject.block_size(),
            "a rejected request came back without its data"
        );
        return Ok(token as u16);
    }
    Err(format!("a queue of depth {depth} took more than that").into())
}

fn full(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(8)?;
    let took = fill(subject, &mut *queue)?;
    ensure!(took == queue.depth(), "a queue of depth {} took {took}", queue.depth());
    ensure!(
        queue.in_flight() == took,
        "{took} requests were taken, {} are in flight",
        queue.in_flight()
    );
    queue.ring();
    let first = subject.take(&mut *queue)?;
    let again = Request::read(1000, 0, 1, first.data);
    ensure!(queue.submit(again).is_ok(), "a queue with room gave the request back");
    queue.ring();
    let mut seen = vec![first.token];
    for _ in 0..took {
        seen.push(subject.take(&mut *queue)?.token);
    }
    seen.sort();
    let expected: Vec<_> = (0..u64::from(took)).chain([1000]).collect();
    ensure!(seen == expected, "the requests that ended are {seen:?}");
    subject.silent(&mut *queue)
}

fn unrung(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    let before = subject.write(&mut *queue, 0, 1)?;
    let data = subject.filled(0, 1, subject.generation())?;
    ensure!(queue.submit(Request::write(1, 0, 1, data)).is_ok(), "an empty queue rejected a write");
    queue.wait(Deadline::after(Duration::from_millis(20)))?;
    ensure!(queue.reap_one()?.is_none(), "a request ended that was not rung");
    // Another queue sees that the disk was not touched.
    if subject.disk.max_queues() > 1 {
        subject.verify(&mut *subject.queue(1)?, 0, 1, before)?;
    }
    queue.ring();
    subject.take(&mut *queue)?;
    subject.silent(&mut *queue)
}

fn wait_for_nothing(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    for limit in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(100)] {
        let start = Instant::now();
        let found = queue.wait(Deadline::after(limit))?;
        let took = start.elapsed();
        ensure!(!found, "a queue with nothing in flight said that there is something to reap");
        ensure!(took >= limit, "a wait of {limit:?} ended after {took:?}");
        ensure!(took < limit + Duration::from_secs(1), "a wait of {limit:?} took {took:?}");
    }
    Ok(())
}

fn idle(subject: &Subject<'_>) -> Step {
    const LONG: Duration = Duration::from_millis(500);
    let mut queue = subject.queue(4)?;
    // Under load first, so that the queue has learned to poll.
    for lba in 0..64 {
        subject.read(&mut *queue, lba % subject.info().blocks, 1)?;
    }
    let mut used = Duration::MAX;
    // In a guest, time in which the host does not run its processor is counted, too: what is
    // burnt by looking is burnt each time.
    for _ in 0..3 {
        let before = cpu();
        queue.wait(Deadline::after(LONG))?;
        used = used.min(cpu().saturating_sub(before));
        if used < LONG / 20 {
            break;
        }
    }
    ensure!(used < LONG / 20, "{used:?} of CPU in {LONG:?} of doing nothing");
    Ok(())
}

/// CPU time of this thread.
fn cpu() -> Duration {
    Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime))
        .unwrap_or_default()
}

fn arming(subject: &Subject<'_>) -> Step {
    let mut queue = subject.queue(4)?;
    if queue.irq().is_none() {
        return super::subject::skip("it has no interrupt");
    }
    for round in 0..20 {
        read_asleep(subject, &mut *queue, round)?;
    }
    ensure!(queue.arm()?, "a queue with nothing in flight cannot be armed");
    queue.disarm()?;
    subject.silent(&mut *queue)
}

/// Each queue finds the interrupt as the one before left it: held back.
fn arming_anew(subject: &Subject<'_>) -> Step {
    // Many, because a queue whose read ends before it sleeps shows nothing.
    for round in 0..20 {
        let mut queue = subject.queue(4)?;
        if queue.irq().is_none() {
            return super::subject::skip("it has no interrupt");
        }
        read_asleep(subject, &mut *queue, round)?;
    }
    Ok(())
}

/// Reads a block, sleeping until it is there, and holds the interrupt back.
fn read_asleep(subject: &Subject<'_>, queue: &mut dyn Queue, token: u64) -> Step {
    let data = subject.buffer(subject.block_size())?;
    ensure!(
        queue.submit(Request::read(token, 0, 1, data)).is_ok(),
        "an empty queue rejected a read"
    );
    queue.ring();
    if queue.arm()? {
        let raised = queue.irq().map(|irq| sleep(irq, subject.options.patience)).transpose()?;
        ensure!(raised == Some(true), "an armed queue was never woken for its completion");
    }
    queue.disarm()?;
    let done = subject.take(queue)?;
    ensure!(done.token == token, "request {token} ended as {}", done.token);
    Ok(())
}

/// Sleeps on an interrupt's descriptor as an event loop does; false if it was not raised.
fn sleep(irq: &ring3_device::irq::Irq, limit: Duration) -> Step<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec::try_from(limit).ok();
    let ready = poll(&mut [PollFd::new(irq, PollFlags::IN)], timeout.as_ref());
    ready
        .map(|count| count > 0)
        .map_err(|error| format!("sleeping on an interrupt: {error}").into())
}

fn dropped(subject: &Subject<'_>) -> Step {
    const MARK: u8 = 0x3c;
    let blocks = subject.max_blocks();
    let len = blocks as usize * subject.block_size();
    let mut queue = subject.queue(8)?;
    let count = queue.depth().min(8);
    for token in 0..u64::from(count) {
        let lba = token * u64::from(blocks) % (subject.info().blocks - u64::from(blocks) + 1);
        ensure!(
            queue.submit(Request::read(token, lba, blocks, subject.buffer(len)?)).is_ok(),
            "an empty queue rejected a read"
        );
    }
    queue.ring();
    drop(queue);
    // The memory is someone else's now: a device that was not stopped would write there.
    let buffers = (0..count).map(|_| subject.buffer(len)).collect::<Step<Vec<_>>>()?;
    buffers.iter().for_each(|buffer| buffer.fill(MARK));
    std::thread::sleep(Duration::from_millis(100));
    let mut bytes = vec![0; len];
    for buffer in &buffers {
        buffer.read(0, &mut bytes)?;
        ensure!(
            bytes.iter().all(|&byte| byte == MARK),
            "the device wrote to memory that it was not lent any more"
        );
    }
    drop(buffers);
    let mut queue = subject.queue(4)?;
    let generation = subject.write(&mut *queue, 0, 1)?;
    subject.verify(&mut *queue, 0, 1, generation)
}

fn reopened(subject: &Subject<'_>) -> Step {
    let mut free = Vec::new();
    for _ in 0..6 {
        let mut queue = subject.queue(8)?;
        let generation = subject.write(&mut *queue, subject.block(1), 1)?;
        subject.verify(&mut *queue, subject.block(1), 1, generation)?;
        drop(queue);
        free.push(subject.disk.dma().arena().free_bytes());
    }
    // The first rounds may keep something for later ones.
    ensure!(
        free[2..].iter().all(|&bytes| bytes >= free[2]),
        "free memory of the arena after each round: {free:?}"
    );
    Ok(())
}
