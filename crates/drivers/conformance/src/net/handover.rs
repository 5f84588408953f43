//! Queues that change hands while the card works.

use super::Check;
use super::frame::numbered;
use super::subject::{SETTINGS, Step, Subject, ensure, skip};
use ring3_class::net::{Meta, Packet};
use ring3_class::{Error, Saved};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "a queue that is detached under traffic is resumed with all that came and went, and \
               nothing twice",
        run: resumed,
    },
    Check {
        name: "a queue that was detached takes nothing more, and is resumed once",
        run: detached,
    },
];

fn save_queue(queue: &mut dyn ring3_class::net::Queue) -> Step<Saved> {
    let saved = match queue.detach() {
        Err(Error::Unsupported(why)) => return skip(why),
        saved => saved?,
    };
    let text = serde_json::to_string(&saved).map_err(|error| error.to_string())?;
    Ok(serde_json::from_str(&text).map_err(|error| error.to_string())?)
}

fn resumed(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    for round in 0..40 {
        let out = [0, 1].map(|part| subject.out(2 * round + part, 60 + round as usize));
        let mut batch = Vec::new();
        for (part, bytes) in (0..).zip(&out) {
            let packet = port.packet(bytes, Meta::default())?;
            batch.push(Packet { token: 2 * round + part, ..packet });
        }
        ensure!(
            port.queue.tx_provide(&mut batch).count == 2,
            "a queue with room did not take two packets"
        );
        let frames = [0, 1, 2].map(|part| numbered(subject.mac(), 3 * round + part, 600));
        subject.send(&frames[0])?;
        let held = port.queue.outstanding();
        let saved = save_queue(&mut *port.queue)?;
        subject.send(&frames[1])?;
        let resumed = subject.nic.resume_queues(&[saved])?.pop();
        port.queue = resumed.ok_or_else(|| "no queue was resumed".to_owned())?;
        ensure!(
            port.queue.outstanding() == held,
            "{held:?} buffers were left, and {:?} are held",
            port.queue.outstanding()
        );
        subject.send(&frames[2])?;
        for frame in &frames {
            ensure!(port.receive()?.0 == *frame, "after a hand-over something else was received");
        }
        for bytes in &out {
            ensure!(subject.sent()? == *bytes, "after a hand-over something else came out");
        }
        port.drain()?;
    }
    port.silent()?;
    subject.silent()
}

fn detached(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let saved = save_queue(&mut *port.queue)?;
    let packet = port.packet(&subject.out(1, 60), Meta::default())?;
    ensure!(
        port.queue.tx_provide(&mut [packet]).count == 0,
        "a queue that was detached took a packet"
    );
    ensure!(
        port.queue.rx_provide(&mut [subject.buffer(SETTINGS.rx_room)?]).count == 0,
        "a queue that was detached took a buffer"
    );
    ensure!(port.queue.detach().is_err(), "a queue was detached twice");
    let mut resumed = subject.nic.resume_queues(std::slice::from_ref(&saved))?;
    let again = subject.nic.resume_queues(&[saved]);
    ensure!(again.is_err(), "a queue was resumed twice");
    port.queue = resumed.pop().ok_or_else(|| "no queue was resumed".to_owned())?;
    let frame = numbered(subject.mac(), 7, 60);
    subject.send(&frame)?;
    ensure!(port.receive()?.0 == frame, "after a hand-over something else was received");
    Ok(())
}
