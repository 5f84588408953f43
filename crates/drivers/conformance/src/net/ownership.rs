//! Who has a buffer, and what is never taken.

use std::time::Duration;

use super::Check;
use super::frame::numbered;
use super::subject::{SETTINGS, Step, Subject, ensure};
use ring3_class::net::{Checksum, Kind, Meta, Packet, QueueSettings, Refused, Segmentation};
use ring3_device::{Deadline, Error};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "every buffer comes back when a queue is dropped, however often it is opened",
        run: restart,
    },
    Check { name: "what is returned goes over whatever is in a batch", run: written_over },
    Check {
        name: "packets and buffers that make no sense are refused, and the queue lives",
        run: hostile,
    },
    Check { name: "settings that the card does not have are refused", run: settings },
    Check { name: "queues are opened once", run: busy },
    Check {
        name: "a wait ends when a packet comes, and at its deadline when none does",
        run: waits,
    },
];

fn restart(subject: &Subject<'_>) -> Step {
    // What the driver keeps for itself, it has taken by now.
    drop(subject.open(SETTINGS)?);
    let before = subject.nic.dma().arena().free_bytes();
    for round in 0..8 {
        let mut port = subject.open(SETTINGS)?;
        let frame = numbered(subject.mac(), round, 333);
        subject.send(&frame)?;
        let mut came = port.receive()?.0;
        if round > 0 && came == numbered(subject.mac(), round - 1, 333) {
            // It was on the wire when the last queue was dropped.
            came = port.receive()?.0;
        }
        ensure!(came == frame, "after {round} restarts something else was received");
        subject.send(&frame)?;
        port.send(&subject.out(round, 77), Meta::default())?;
        subject.sent()?;
        drop(port);
        let after = subject.nic.dma().arena().free_bytes();
        ensure!(
            after == before,
            "{} bytes of the arena did not come back",
            before.saturating_sub(after)
        );
    }
    // What was on the wire when the last queue was dropped comes before what is sent now, and not
    // to the next check.
    let (mut port, last) = (subject.open(SETTINGS)?, numbered(subject.mac(), 8, 334));
    subject.send(&last)?;
    while port.receive()?.0 != last {}
    Ok(())
}

fn written_over(subject: &Subject<'_>) -> Step {
    drop(subject.open(SETTINGS)?);
    let before = subject.nic.dma().arena().free_bytes();
    let mut port = subject.open(SETTINGS)?;
    let full = || (0..3).map(|_| subject.buffer(2048)).collect::<Step<Vec<_>>>();
    let mut packets = Vec::new();
    for token in 0..2 {
        subject.send(&numbered(subject.mac(), token, 100))?;
        packets.push(Packet { token, ..port.packet(&subject.out(token, 100), Meta::default())? });
    }
    ensure!(
        port.queue.tx_provide(&mut packets).count == 2,
        "a queue with room did not take two packets"
    );
    let (deadline, mut came, mut back) = (subject.deadline(), 0, 0);
    while came + back < 4 {
        let mut batch = full()?;
        let count = port.queue.rx_return(&mut batch)?;
        for packet in &batch[..count] {
            ensure!(
                packet.len == 100,
                "a packet of {} bytes was received for one of 100",
                packet.len
            );
            came += 1;
        }
        let mut batch = full()?;
        let count = port.queue.tx_return(&mut batch)?;
        for packet in &batch[..count] {
            ensure!(packet.token == back, "buffer {} came back for {back}", packet.token);
            back += 1;
        }
        ensure!(
            !deadline.expired(),
            "{came} of 2 packets were received, and {back} of 2 buffers came back"
        );
        port.queue.wait(Deadline::after(Duration::from_millis(1)))?;
        port.queue.tick(std::time::Instant::now())?;
    }
    // They are off the wire before the next check, which may want it silent.
    for token in 0..2 {
        ensure!(
            subject.sent()? == subject.out(token, 100),
            "packet {token} came out of the card as something else"
        );
    }
    drop((port, packets));
    let after = subject.nic.dma().arena().free_bytes();
    ensure!(
        after == before,
        "{} bytes of the arena did not come back",
        before.saturating_sub(after)
    );
    Ok(())
}

fn hostile(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let cut = |size, headers| Segmentation { kind: Kind::Tcp4, size, headers };
    let partial = |start, offset| Checksum::Partial { start, offset };
    let wrong = [
        Meta::default().with_more(true),
        Meta::default().with_checksum(partial(u16::MAX, u16::MAX)),
        Meta::default().with_checksum(partial(99, 0)),
        Meta::default().with_checksum(partial(0, 16)),
        Meta::default().with_segmentation(Some(cut(1460, 54))),
        Meta::default()
            .with_segmentation(Some(cut(0, 54)))
            .with_checksum(partial(34, 16))
            .with_network(14),
        Meta::default()
            .with_segmentation(Some(cut(1460, u16::MAX)))
            .with_checksum(partial(34, 16))
            .with_network(14),
        Meta::default()
            .with_segmentation(Some(cut(u16::MAX, 54)))
            .with_checksum(partial(34, 16))
            .with_network(255),
    ];
    for meta in wrong {
        let packet = port.packet(&subject.out(1, 100), meta)?;
        refused(port.queue.tx_provide(&mut [packet]), &format!("{meta:?}"))?;
    }
    let bytes = subject.out(1, 100);
    for (len, start) in [
        (13, None),
        (0, None),
        (u32::MAX, None),
        (1519, None),
        (100, Some(u32::MAX)),
        (100, Some(1 << 20)),
    ] {
        let packet = port.packet(&bytes, Meta::default())?;
        let start = start.unwrap_or(packet.start);
        refused(
            port.queue.tx_provide(&mut [Packet { len, start, ..packet }]),
            &format!("{len} bytes at {start}"),
        )?;
    }
    refused(port.queue.tx_provide(&mut [Packet { len: 100, ..Packet::default() }]), "no buffer")?;
    let pieces = (0..=subject.info().max_pieces)
        .map(|_| port.packet(&[0; 1], Meta::default().with_more(true)));
    let mut pieces = pieces.collect::<Step<Vec<_>>>()?;
    pieces.push(port.packet(&bytes, Meta::default())?);
    refused(port.queue.tx_provide(&mut pieces), "too many pieces")?;

    let mut empty = small_buffer(subject, &mut port)?;
    refused(port.queue.rx_provide(&mut empty), "a buffer that is too small")?;
    refused(port.queue.rx_provide(&mut [Packet::default()]), "no buffer")?;

    subject.silent()?;
    port.send(&bytes, Meta::default())?;
    ensure!(subject.sent()? == bytes, "after refused packets something else came out");
    Ok(())
}

/// A buffer that is one byte too small, in a queue with room for it.
fn small_buffer(
    subject: &Subject<'_>,
    port: &mut super::subject::Port<'_, '_>,
) -> Step<[Packet; 1]> {
    subject.send(&numbered(subject.mac(), 1, 60))?;
    let mut batch = [Packet::default()];
    let deadline = subject.deadline();
    while port.queue.rx_return(&mut batch)? == 0 {
        ensure!(port.queue.wait(deadline)?, "nothing was received");
    }
    Ok([subject.buffer(port.settings.rx_room - 1)?])
}

fn refused(provided: ring3_class::net::Provided, what: &str) -> Step {
    let sensible = provided.count == 0
        && provided.refused.is_some_and(|why: Refused| !why.to_string().is_empty());
    ensure!(sensible, "{what} was not refused: {provided:?}");
    Ok(())
}

fn settings(subject: &Subject<'_>) -> Step {
    let (count, mtu) = (subject.info().max_queues, subject.info().mtu.1);
    let wrong = [
        (0, SETTINGS),
        (count.saturating_add(1), SETTINGS),
        (1, QueueSettings { rx_depth: 0, ..SETTINGS }),
        (1, QueueSettings { tx_depth: 0, ..SETTINGS }),
        (1, QueueSettings { mtu: mtu.saturating_add(1), rx_room: 1 << 17, ..SETTINGS }),
        (1, QueueSettings { mtu: 0, ..SETTINGS }),
        (1, QueueSettings { rx_room: 1, ..SETTINGS }),
    ];
    for (count, settings) in wrong {
        let opened = subject.nic.open_queues(count, &settings);
        ensure!(
            matches!(opened, Err(Error::Invalid(_))),
            "{count} queues with {settings:?} were not refused"
        );
    }
    subject.open(SETTINGS).map(drop)
}

fn busy(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let again = subject.nic.open_queues(1, &SETTINGS);
    ensure!(matches!(again, Err(Error::Busy(_))), "queues were opened twice");
    let frame = numbered(subject.mac(), 1, 60);
    subject.send(&frame)?;
    ensure!(port.receive()?.0 == frame, "the first queue receives something else");
    Ok(())
}

fn waits(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let start = std::time::Instant::now();
    let short = Duration::from_millis(20);
    ensure!(!port.queue.wait(Deadline::after(short))?, "a wait ended where nothing had come");
    ensure!(start.elapsed() >= short, "a wait ended before its deadline");
    for number in 0..20 {
        ensure!(!port.queue.pending(), "something is pending that nobody sent");
        let frame = numbered(subject.mac(), number, 60);
        subject.send(&frame)?;
        ensure!(port.queue.wait(subject.deadline())?, "a wait did not end when a packet came");
        ensure!(port.receive()?.0 == frame, "something else was received");
    }
    Ok(())
}
