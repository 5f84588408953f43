//! What a card does for the packets of its users.

use super::Check;
use super::frame::{self, is_right, numbered, tagged, tcp, udp};
use super::subject::{SETTINGS, Step, Subject, ensure, skip};
use ring3_class::net::{Checksum, Kind, Meta, Segmentation};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a checksum that is left to the card is right on the wire", run: tx_checksum },
    Check {
        name: "a checksum that is right is said to be, and one that is wrong never",
        run: rx_checksum,
    },
    Check { name: "TCP that is left to the card to cut is frames of the asked size", run: tso },
    Check { name: "a tag beside the bytes is in the frame on the wire", run: vlan_insert },
    Check {
        name: "a tag on the wire is received beside the bytes, or in them where the card says so",
        run: vlan_strip,
    },
];

/// Where the transport's header is in a frame of the suite's, and its checksum from there.
const UDP: Checksum = Checksum::Partial { start: 34, offset: 6 };
const TCP: Checksum = Checksum::Partial { start: 34, offset: 16 };

fn tx_checksum(subject: &Subject<'_>) -> Step {
    if !subject.info().offloads.tx_checksum {
        return skip("it makes no checksums");
    }
    let mut port = subject.open(SETTINGS)?;
    for payload in [18, 19, 100, 1001, 1472] {
        let out = udp(frame::PEER, subject.mac(), payload);
        port.send(&out, Meta::default().with_checksum(UDP).with_network(14))?;
        let came = subject.sent()?;
        ensure!(is_right(&came), "the checksum of {payload} bytes in UDP is wrong on the wire");
        ensure!(
            came.len() == out.len() && came[42..] == out[42..],
            "{payload} bytes in UDP came out otherwise"
        );
        port.send(
            &tcp(frame::PEER, subject.mac(), payload.min(1460)),
            Meta::default().with_checksum(TCP).with_network(14),
        )?;
        ensure!(
            is_right(&subject.sent()?),
            "the checksum of {payload} bytes in TCP is wrong on the wire"
        );
    }
    Ok(())
}

fn rx_checksum(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let mut right = udp(subject.mac(), frame::PEER, 100);
    ring3_class::net::complete(&mut right, 34, 6);
    let mut wrong = right.clone();
    wrong[60] ^= 1;
    subject.send(&right)?;
    let (bytes, of_right) = port.receive()?;
    ensure!(bytes == right, "a datagram was received otherwise");
    subject.send(&wrong)?;
    let (_, of_wrong) = port.receive()?;
    ensure!(
        of_wrong.checksum() == Checksum::Unknown,
        "of a wrong checksum the card said {:?}",
        of_wrong.checksum()
    );
    let said = matches!(of_right.checksum(), Checksum::Valid | Checksum::Unknown);
    ensure!(said, "of a right checksum the card said {:?}", of_right.checksum());
    Ok(())
}

fn tso(subject: &Subject<'_>) -> Step {
    let info = subject.info();
    if !info.offloads.tso4 {
        return skip("it does not cut TCP");
    }
    let mut port = subject.open(SETTINGS)?;
    let alone = subject.quirks().sends_headers_alone;
    for (payload, size) in [(1461, 1460), (2920, 1460), (10_001, 1000)] {
        if payload + 54 > info.max_segmented as usize || alone && payload % usize::from(size) == 0 {
            continue;
        }
        let out = tcp(frame::PEER, subject.mac(), payload);
        let segmentation = Some(Segmentation { kind: Kind::Tcp4, size, headers: 54 });
        port.send(
            &out,
            Meta::default().with_checksum(TCP).with_network(14).with_segmentation(segmentation),
        )?;
        let mut seen = 0;
        while seen < payload {
            let came = subject.sent()?;
            let expected = (payload - seen).min(size.into());
            ensure!(
                is_right(&came),
                "a frame that was cut of {payload} bytes has a wrong checksum or length"
            );
            let total = usize::from(u16::from_be_bytes([came[16], came[17]]));
            ensure!(
                total == 40 + expected,
                "a frame of {total} bytes in IP came out where {} were due",
                40 + expected
            );
            let sequence = u32::from_be_bytes([came[38], came[39], came[40], came[41]]);
            ensure!(
                sequence == 100 + seen as u32,
                "sequence number {sequence} after {seen} bytes from 100 on"
            );
            ensure!(
                came[54..54 + expected] == out[54 + seen..54 + seen + expected],
                "other bytes came out after {seen}"
            );
            seen += expected;
        }
    }
    subject.silent()?;
    if alone {
        return skip(
            "not shown here: this model sends headers alone after a packet that ends with a whole \
            segment; others are right",
        );
    }
    Ok(())
}

fn vlan_insert(subject: &Subject<'_>) -> Step {
    if !subject.info().offloads.vlan_insert {
        return skip("it puts no tags in");
    }
    let mut port = subject.open(SETTINGS)?;
    let out = subject.out(1, 100);
    for tag in [1, 0x2fff, 0xe064] {
        port.send(&out, Meta::default().with_vlan(Some(tag)))?;
        let came = subject.sent()?;
        ensure!(
            came == tagged(&out, tag),
            "a packet with tag {tag:#x} came out as {:02x?}",
            &came[12..18]
        );
    }
    port.send(&out, Meta::default())?;
    ensure!(subject.sent()? == out, "a packet without a tag came out otherwise");
    Ok(())
}

fn vlan_strip(subject: &Subject<'_>) -> Step {
    let mut port = subject.open(SETTINGS)?;
    let frame = numbered(subject.mac(), 1, 100);
    let on_wire = tagged(&frame, 0x2064);
    subject.send(&on_wire)?;
    if subject.info().shared {
        port.silent()?;
        subject.send(&frame)?;
        let (bytes, _) = port.receive()?;
        ensure!(bytes == frame, "a shared card received something with a tag");
        return Ok(());
    }
    let (bytes, meta) = port.receive()?;
    let right = match subject.info().offloads.vlan_strip {
        true => meta.vlan() == Some(0x2064) && bytes == frame,
        false => meta.vlan().is_none() && bytes == on_wire,
    };
    ensure!(
        right,
        "a tagged frame was received with {:?} beside its {} bytes",
        meta.vlan(),
        bytes.len()
    );
    subject.send(&frame)?;
    let (bytes, meta) = port.receive()?;
    ensure!(
        bytes == frame && meta.vlan().is_none(),
        "a frame without a tag was received with {:?}",
        meta.vlan()
    );
    Ok(())
}
