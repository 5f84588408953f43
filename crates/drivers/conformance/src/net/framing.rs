//! Frames of all lengths.

use super::Check;
use super::frame::numbered;
use super::subject::{Port, SETTINGS, Step, Subject, ensure, skip};
use ring3_class::net::{Meta, QueueSettings};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "frames of 60 to 1,514 bytes arrive as they were sent, both ways", run: usual },
    Check { name: "frames of up to 9,014 bytes arrive as they were sent, both ways", run: jumbo },
    Check { name: "a packet shorter than 60 bytes arrives with its bytes first", run: short },
    Check { name: "a packet in pieces is one frame on the wire", run: pieces },
    Check { name: "a frame longer than a buffer is received in pieces", run: received_in_pieces },
    Check {
        name: "a frame longer than the MTU is not received, and the next one is",
        run: too_long,
    },
];

fn both_ways(
    subject: &Subject<'_>,
    port: &mut Port<'_, '_>,
    lengths: impl Iterator<Item = usize>,
) -> Step {
    for (number, len) in (0..).zip(lengths) {
        let out = subject.out(number, len);
        port.send(&out, Meta::default())?;
        let came = subject.sent()?;
        ensure!(
            came == out,
            "a frame of {len} bytes was sent, and {} came out, which differ",
            came.len()
        );
        let frame = numbered(subject.mac(), number, len);
        subject.send(&frame)?;
        let (bytes, _) = port.receive()?;
        ensure!(
            bytes == frame,
            "a frame of {len} bytes came, and {} were received, which differ",
            bytes.len()
        );
    }
    port.silent()?;
    subject.silent()
}

fn usual(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    both_ways(subject, &mut port, (60..=1514).step_by(17).chain([61, 62, 63, 64, 1513, 1514]))
}

fn jumbo(subject: &Subject<'_>) -> Step {
    let most = subject.info().mtu.1.min(9000);
    if most <= 1500 {
        return skip(format!("its MTU is {most} at most"));
    }
    let mut port = subject.open(QueueSettings { mtu: most, rx_room: most + 18, ..SETTINGS })?;
    let most = most as usize + 14;
    both_ways(
        subject,
        &mut port,
        [60, 1514, 1518, 2047, 2048, 2049, 4096, 4097, 8192]
            .into_iter()
            .filter(|&len| len < most)
            .chain([most - 1, most]),
    )
}

fn short(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    for len in [18, 42, 59] {
        let out = subject.out(1, len);
        port.send(&out, Meta::default())?;
        let came = subject.sent()?;
        let rest = came.get(len..).unwrap_or_default();
        ensure!(
            came.starts_with(&out) && rest.iter().all(|&byte| byte == 0),
            "{len} bytes were sent, and {came:02x?} came out"
        );
    }
    Ok(())
}

fn pieces(subject: &Subject<'_>) -> Step {
    let most = usize::from(subject.info().max_pieces).min(4);
    if most < 2 {
        return skip("it sends packets in one piece only");
    }
    let mut port = subject.open(SETTINGS)?;
    for count in 2..=most {
        let out = subject.out(count as u32, 1000);
        let cut = out.chunks(1000_usize.div_ceil(count));
        let mut parts = Vec::new();
        for (index, part) in cut.enumerate() {
            parts.push(port.packet(part, Meta::default().with_more(index + 1 < count))?);
        }
        port.send_pieces(&mut parts)?;
        ensure!(subject.sent()? == out, "a packet in {count} pieces came out otherwise");
    }
    subject.silent()
}

fn received_in_pieces(subject: &Subject<'_>) -> Step {
    if !subject.info().receives_pieces {
        return skip("it receives a frame into one buffer only");
    }
    let mut port = subject.open(QueueSettings { rx_room: 512, ..SETTINGS })?;
    for (number, len) in (0..).zip([60, 500, 512, 513, 1000, 1024, 1514]) {
        let frame = numbered(subject.mac(), number, len);
        subject.send(&frame)?;
        ensure!(
            port.receive()?.0 == frame,
            "a frame of {len} bytes was received otherwise in buffers of 512"
        );
    }
    port.silent()
}

fn too_long(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(QueueSettings { rx_room: 4096, ..SETTINGS })?;
    if subject.send(&numbered(subject.mac(), 1, 3000)).is_err() {
        return skip("the wire's other end sends none");
    }
    let next = numbered(subject.mac(), 2, 60);
    subject.send(&next)?;
    let (bytes, _) = port.receive()?;
    ensure!(
        bytes == next,
        "a frame of 3,000 bytes was received as {} at an MTU of 1,500",
        bytes.len()
    );
    Ok(())
}
