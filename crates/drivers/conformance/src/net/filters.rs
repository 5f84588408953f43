//! What is let through, and the link.

use std::time::{Duration, Instant};

use super::Check;
use super::frame::{self, STRANGER, numbered, tagged};
use super::subject::{Port, SETTINGS, Step, Subject, ensure, skip};
use ring3_class::net::{Filter, Mac, Meta, Multicast};
use ring3_device::{Deadline, Error};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "what is for the card and for everybody is received, and nothing else",
        run: own,
    },
    Check { name: "a further address is received", run: further },
    Check {
        name: "a promiscuous card receives everything, and nothing else's afterwards",
        run: promiscuous,
    },
    Check { name: "groups are received when they are named, or all", run: groups },
    Check { name: "frames of other VLANs are not received", run: vlans },
    Check {
        name: "what is sent from another address comes out as it is, and never of a card that is \
               shared",
        run: source,
    },
    Check { name: "a link that goes is heard of, and traffic goes on when it is back", run: flap },
];

const GROUP: Mac = Mac([1, 0, 0x5e, 1, 2, 3]);
const OTHER_GROUP: Mac = Mac([0x33, 0x33, 0, 7, 8, 9]);

/// Sends a frame of each kind, in order: those that are to be received must be, and the others not.
fn sees(
    subject: &Subject<'_>,
    port: &mut Port<'_, '_>,
    filter: &Filter,
    frames: &[(Vec<u8>, bool)],
) -> Step {
    subject.nic.set_filter(filter)?;
    frames.iter().try_for_each(|(frame, _)| subject.send(frame))?;
    for (frame, _) in frames.iter().filter(|(_, wanted)| *wanted) {
        let (bytes, meta) = port.receive()?;
        let bytes = meta.vlan().map_or_else(|| bytes.clone(), |tag| tagged(&bytes, tag));
        let to = |frame: &[u8]| format!("{:02x?}", &frame[..18]);
        ensure!(
            bytes == *frame,
            "with {filter:?}, {} was received where {} was due",
            to(&bytes),
            to(frame)
        );
    }
    port.silent()
}

/// Ends a check on a card that lets everything through.
fn filters(subject: &Subject<'_>) -> Step {
    if subject.info().filters.unicast == 0 { skip("it does not filter") } else { Ok(()) }
}

/// A shared card refuses `filter`, and receives nothing for others after that.
fn only_own(subject: &Subject<'_>, filter: &Filter) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let set = subject.nic.set_filter(filter);
    ensure!(
        matches!(set, Err(Error::Unsupported(_))),
        "a shared card let {filter:?} be set: {set:?}"
    );
    sees(
        subject,
        &mut port,
        &Filter::own(subject.mac()),
        &[(to(STRANGER), false), (to(subject.mac()), true)],
    )
}

/// What is not from the card's own address goes out as it is, or not at all if the card is shared.
fn source(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let before = port.queue.counters().tx_lost;
    let out = frame::between(frame::PEER, STRANGER, 1, 100);
    port.send(&out, Meta::default())?;
    if subject.info().shared {
        let tagged = tagged(&subject.out(2, 100), 7);
        port.send(&tagged, Meta::default())?;
        let lost = port.queue.counters().tx_lost - before;
        ensure!(
            lost == 2,
            "of a packet from another address and one with a tag {lost} were counted as lost"
        );
    } else {
        ensure!(subject.sent()? == out, "a packet from another address came out otherwise");
    }
    let own = subject.out(3, 100);
    port.send(&own, Meta::default())?;
    ensure!(subject.sent()? == own, "after a packet from another address something else came out");
    subject.silent()
}

fn to(mac: Mac) -> Vec<u8> {
    numbered(mac, 1, 100)
}

fn own(subject: &Subject<'_>) -> Step {
    filters(subject)?;
    let mut port = subject.open(SETTINGS)?;
    let frames = [
        (to(STRANGER), false),
        (to(subject.mac()), true),
        (to(GROUP), false),
        (to(Mac::BROADCAST), true),
    ];
    sees(subject, &mut port, &Filter::own(subject.mac()), &frames)
}

fn further(subject: &Subject<'_>) -> Step {
    if subject.info().shared {
        let wrong = [
            Filter { unicast: vec![STRANGER], ..Filter::own(subject.mac()) },
            Filter::own(STRANGER),
        ];
        return wrong.iter().try_for_each(|filter| only_own(subject, filter));
    }
    if subject.info().filters.unicast < 2 {
        return skip("it compares one address");
    }
    let mut port = subject.open(SETTINGS)?;
    let filter = Filter { unicast: vec![STRANGER], ..Filter::own(subject.mac()) };
    sees(
        subject,
        &mut port,
        &filter,
        &[(to(frame::PEER), false), (to(STRANGER), true), (to(subject.mac()), true)],
    )?;
    if subject.quirks().keeps_address {
        return skip(
            "not shown here: this card receives frames for its own address whatever it is given; a \
            further one is received",
        );
    }
    let filter = Filter::own(STRANGER);
    sees(subject, &mut port, &filter, &[(to(subject.mac()), false), (to(STRANGER), true)])
}

fn promiscuous(subject: &Subject<'_>) -> Step {
    filters(subject)?;
    if subject.info().shared {
        return only_own(subject, &Filter { promiscuous: true, ..Filter::own(subject.mac()) });
    }
    let mut port = subject.open(SETTINGS)?;
    let all = Filter { promiscuous: true, ..Filter::own(subject.mac()) };
    sees(
        subject,
        &mut port,
        &all,
        &[(to(STRANGER), true), (to(GROUP), true), (to(subject.mac()), true)],
    )?;
    sees(
        subject,
        &mut port,
        &Filter::own(subject.mac()),
        &[(to(STRANGER), false), (to(subject.mac()), true)],
    )
}

fn groups(subject: &Subject<'_>) -> Step {
    filters(subject)?;
    let mut port = subject.open(SETTINGS)?;
    let with = |multicast| Filter { multicast, ..Filter::own(subject.mac()) };
    let exact = subject.info().filters.multicast > 0;
    if exact {
        let frames = [(to(OTHER_GROUP), false), (to(GROUP), true), (to(Mac::BROADCAST), true)];
        sees(subject, &mut port, &with(Multicast::Of(vec![GROUP])), &frames)?;
    }
    sees(
        subject,
        &mut port,
        &with(Multicast::All),
        &[(to(OTHER_GROUP), true), (to(GROUP), true), (to(STRANGER), false)],
    )?;
    sees(
        subject,
        &mut port,
        &with(Multicast::default()),
        &[(to(GROUP), false), (to(Mac::BROADCAST), true)],
    )
}

fn vlans(subject: &Subject<'_>) -> Step {
    if !subject.info().filters.vlan {
        return skip("it does not filter by VLAN");
    }
    let mut port = subject.open(SETTINGS)?;
    let filter = Filter { vlans: Some(vec![7, 4094]), ..Filter::own(subject.mac()) };
    let of = |tag| tagged(&to(subject.mac()), tag);
    let frames = [
        (of(8), false),
        (of(7), true),
        (of(0xe000 | 4094), true),
        (of(4093), false),
        (to(subject.mac()), true),
    ];
    sees(subject, &mut port, &filter, &frames)?;
    sees(subject, &mut port, &Filter::own(subject.mac()), &[(of(8), true)])
}

/// Waits until the link is as it should be: what has changed must be heard of.
pub(super) fn link(subject: &Subject<'_>, up: bool) -> Step {
    let mut watch = subject.nic.link_watch()?;
    let deadline = subject.deadline();
    loop {
        if subject.nic.link()?.up == up {
            return Ok(());
        }
        ensure!(
            !deadline.expired(),
            "the link is {} for long, and the card says otherwise",
            if up { "up" } else { "down" }
        );
        watch.wait(Deadline::after(Duration::from_millis(50)))?;
        watch.tick(Instant::now())?;
    }
}

fn flap(subject: &Subject<'_>) -> Step {
    subject.plug(true)?;
    let mut port = subject.open(SETTINGS)?;
    for round in 0..3 {
        link(subject, true)?;
        port.send(&subject.out(round, 100), Meta::default())?;
        subject.sent()?;
        subject.plug(false)?;
        link(subject, false)?;
        subject.plug(true)?;
    }
    link(subject, true)?;
    subject.send(&to(subject.mac()))?;
    port.receive().map(drop)
}
