//! Many packets: in order, each once, and what happens when there is no room.

use super::Check;
use super::frame::{number, numbered};
use super::subject::{SETTINGS, Step, Subject, ensure, skip};
use ring3_class::net::{Meta, Packet, QueueSettings};
use ring3_device::{Deadline, Error};
use std::mem;
use std::time::Duration;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "packets that are sent come out in order, each once", run: sends_in_order },
    Check { name: "packets that come are received in order, each once", run: receives_in_order },
    Check { name: "a full queue takes no more, and each buffer comes back once", run: full },
    Check {
        name: "packets without a buffer are lost and counted, and the next are received",
        run: overflow,
    },
    Check { name: "the counters count packets and bytes", run: counters },
];

/// Frames that come where eight find a buffer.
const FLOOD: u32 = 48;
/// Between two looks at what was missed, while nothing is received.
const LOOK: Duration = Duration::from_millis(1);
/// Longer than a count of what was missed may take to be seen.
const COUNTED: Duration = Duration::from_millis(250);

fn length(number: u32) -> usize {
    60 + (number as usize * 37) % 1455
}

fn sends_in_order(subject: &Subject<'_>) -> Step {
    let (mut port, burst) = (subject.open(SETTINGS)?, subject.options.burst.max(1));
    for first in (0..subject.options.packets).step_by(burst as usize) {
        let mut batch = Vec::new();
        for number in first..first + burst {
            batch.push(port.packet(&subject.out(number, length(number)), Meta::default())?);
        }
        port.send_pieces(&mut batch)?;
        for expected in first..first + burst {
            let came = subject.sent()?;
            ensure!(
                came == subject.out(expected, length(expected)),
                "frame {:?} came out for {expected}",
                number(&came)
            );
        }
    }
    subject.silent()
}

fn receives_in_order(subject: &Subject<'_>) -> Step {
    let (mut port, burst) = (subject.open(SETTINGS)?, subject.options.burst.max(1));
    for first in (0..subject.options.packets).step_by(burst as usize) {
        for number in first..first + burst {
            subject.send(&numbered(subject.mac(), number, length(number)))?;
        }
        for expected in first..first + burst {
            let (bytes, _) = port.receive()?;
            let right = bytes == numbered(subject.mac(), expected, length(expected));
            ensure!(right, "packet {:?} was received for {expected}", number(&bytes));
        }
    }
    port.silent()
}

fn full(subject: &Subject<'_>) -> Step {
    let mut port = subject.open_empty(QueueSettings { tx_depth: 8, ..SETTINGS })?;
    let depth = u32::from(port.queue.depth().1);
    let mut batch = Vec::new();
    for number in 0..2 * depth {
        let packet = port.packet(&subject.out(number, 60), Meta::default())?;
        batch.push(Packet { token: number, ..packet });
    }
    let taken = port.queue.tx_provide(&mut batch);
    ensure!(taken.refused.is_none(), "a packet was refused: {taken:?}");
    ensure!(
        taken.count >= 1 && taken.count <= depth as usize,
        "a queue of {depth} took {}",
        taken.count
    );
    let (came, stayed) = batch.split_at(taken.count);
    ensure!(
        came.iter().all(|packet| packet.buffer.is_none()),
        "a buffer that was taken is still there"
    );
    ensure!(
        stayed.iter().all(|packet| packet.buffer.is_some()),
        "a buffer that was not taken is gone"
    );
    let mut tokens = Vec::new();
    let deadline = subject.deadline();
    while tokens.len() < taken.count {
        ensure!(!deadline.expired(), "{} of {} buffers came back", tokens.len(), taken.count);
        let mut back: [Packet; 3] = Default::default();
        let count = port.queue.tx_return(&mut back)?;
        tokens.extend(back.iter().take(count).map(|packet| packet.token));
        ensure!(
            back.iter().take(count).all(|packet| packet.buffer.is_some()),
            "a place was returned without its buffer"
        );
    }
    tokens.sort_unstable();
    ensure!(
        tokens.iter().copied().eq(0..taken.count as u32),
        "of {} buffers there came back {tokens:?}",
        taken.count
    );
    for expected in 0..taken.count as u32 {
        let came = subject.sent()?;
        ensure!(
            number(&came) == Some(expected),
            "frame {:?} came out for {expected}",
            number(&came)
        );
    }
    Ok(())
}

fn overflow(subject: &Subject<'_>) -> Step {
    if !subject.info().counts_missed {
        return skip("it does not count what it has no buffer for");
    }
    if subject.quirks().holds_back {
        return skip(
            "not shown here: frames wait on this wire while the card has no buffer, so that it \
            misses none",
        );
    }
    let before = missed_before(subject)?;
    let mut port = subject.open_empty(SETTINGS)?;
    let provided = 8u32;
    port.provide(provided as usize)?;
    let all = FLOOD;
    for number in 0..all {
        subject.send(&numbered(subject.mac(), number, 1000))?;
    }
    let missed = || Ok::<_, Error>((subject.nic.counters()?.rx_missed - before) as u32);
    // What is taken out provides its buffer again: with a slow peer, every frame would find one. A
    // wire that holds frames back for a card without buffers has it miss none until then.
    let patience = Deadline::after((10 * subject.options.silence).min(subject.options.patience));
    while missed()? == 0 && !patience.expired() {}
    let deadline = subject.deadline();
    let (mut last, mut received) = (None, 0);
    while received + missed()? < all {
        ensure!(
            !deadline.expired(),
            "of {all} frames {received} were received, and {} counted as missed",
            missed()?
        );
        let Some((bytes, _)) = port.receive_until(Deadline::after(LOOK))? else { continue };
        let number = number(&bytes);
        ensure!(number.is_some() && number > last, "packet {number:?} was received after {last:?}");
        (last, received) = (number, received + 1);
    }
    let lost = missed()?;
    ensure!(
        received >= provided && lost > 0,
        "{received} of {all} frames found a buffer, where {provided} were"
    );
    ensure!(
        received + lost == all,
        "of {all} frames {received} were received, and {lost} counted as missed"
    );
    let next = numbered(subject.mac(), all, 60);
    subject.send(&next)?;
    let (bytes, _) = port.receive()?;
    ensure!(
        bytes == next,
        "after {received} frames and an overflow of {lost}, packet {:?} was received for {all}",
        number(&bytes)
    );
    Ok(())
}

/// What was missed until now, with what earlier checks have lost and another process has not
/// counted yet: a frame that is longer than a buffer, say.
fn missed_before(subject: &Subject<'_>) -> Step<u64> {
    let deadline = subject.deadline();
    let mut before = subject.nic.counters()?.rx_missed;
    loop {
        std::thread::sleep(COUNTED);
        let now = subject.nic.counters()?.rx_missed;
        if now == mem::replace(&mut before, now) {
            return Ok(now);
        }
        ensure!(!deadline.expired(), "packets are counted as missed that nobody sends: {now}");
    }
}

fn counters(subject: &Subject<'_>) -> Step {
    let before = subject.nic.counters()?;
    let mut port = subject.open(SETTINGS)?;
    for number in 0..4 {
        port.send(&subject.out(number, 100), Meta::default())?;
        subject.sent()?;
        subject.send(&numbered(subject.mac(), number, 200))?;
        port.receive()?;
    }
    let (own, after) = (port.queue.counters(), subject.nic.counters()?);
    ensure!(
        (own.tx_packets, own.tx_bytes, own.tx_lost) == (4, 400, 0),
        "4 packets of 100 bytes were sent: {own:?}"
    );
    ensure!(
        (own.rx_packets, own.rx_bytes) == (4, 800),
        "4 packets of 200 bytes were received: {own:?}"
    );
    let counted = (after.tx_packets - before.tx_packets, after.rx_packets - before.rx_packets);
    ensure!(counted == (4, 4), "4 packets went each way, and the card counted {counted:?}");
    Ok(())
}
