//! A connection of TCP by whoever asks: as little of the protocol as two hosts on one cable need,
//! so that what is measured is the other one's stack.
//!
//! Segments are as long as a frame takes, without options but the first one's, and come in order or
//! are dropped: a window of 64 KiB is no more than a card has buffers for. What is not acknowledged
//! in time is sent again from there on. [RFC 9293 3]

use std::time::{Duration, Instant};

use ring3_class::net::sum;

use super::super::frame::{HEADERS, Host, udp};
use super::{Kind, Pinger, SEGMENT};
use crate::Error;

/// Services of the other one. [RFC 863, 864]
const DISCARD: u16 = 9;
const CHARGEN: u16 = 19;
/// Bytes of all headers: Ethernet's, IPv4's, TCP's.
const HEAD: usize = 54;
const TCP: usize = 34;
/// The option that says how long segments may be: 1460. [RFC 9293 3.7.1]
const LONGEST: [u8; 4] = [2, 4, (SEGMENT >> 8) as u8, SEGMENT as u8];
/// Segments that go with one write to the doorbell.
const BURST: u32 = 32;
/// What we take without an acknowledgement.
const WINDOW: u16 = u16::MAX;
/// Nothing new for so long: what was sent is sent again.
const LOST: Duration = Duration::from_millis(200);
/// Nothing new for so long: there is nobody.
const PATIENCE: Duration = Duration::from_secs(20);
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Segments that went one way, how long that took, and how long nobody wanted the processor.
pub(super) fn stream(
    pinger: &mut Pinger<'_>,
    kind: Kind,
    time: Duration,
) -> Result<(u64, Duration, Duration), Error> {
    let mut connection =
        Connection::open(pinger, if kind == Kind::TcpIn { DISCARD } else { CHARGEN })?;
    // Until windows have grown.
    connection.run(pinger, kind, time / 4)?;
    let (start, looks) = (Instant::now(), pinger.looks());
    let bytes = connection.run(pinger, kind, time)?;
    let measured = (bytes.div_ceil(SEGMENT as u64), start.elapsed(), pinger.idle_since(looks));
    connection.reset(pinger)?;
    Ok(measured)
}

/// What a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    window: u16,
    bytes: u32,
}

/// The segment in a frame for our port, if it is one.
fn hear(head: &[u8; HEAD], ports: [u16; 2]) -> Option<Heard> {
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let is_tcp = head[12..15] == [8, 0, 0x45] && head[23] == 6;
    if !is_tcp || [word(TCP + 2), word(TCP)] != ports {
        return None;
    }
    let headers = 20 + u32::from(head[TCP + 12] >> 4) * 4;
    let bytes = u32::from(word(16)).checked_sub(headers)?;
    Some(Heard {
        sequence: long(TCP + 4),
        acknowledged: long(TCP + 8),
        flags: head[TCP + 13],
        window: word(TCP + 14),
        bytes,
    })
}

/// A frame with everything that stays the same, whose sum is made anew for what does not.
struct Template {
    frame: Vec<u8>,
    /// The sum of all of it but numbers and flags.
    sum: u16,
}

impl Template {
    /// With a header of so many bytes, the rest of which is in `payload`.
    fn new((me, to): (Host, Host), ports: [u16; 2], header: usize, payload: &[u8]) -> Self {
        // A datagram has the same headers before it, but for the protocol, and TCP's are 12 bytes
        // longer.
        let mut frame =
            udp((me, ports[0]), (to, ports[1]), &[&[0; HEAD - HEADERS][..], payload].concat());
        frame[23] = 6;
        frame[24..26].fill(0);
        let check = !sum(&frame[14..TCP]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame[TCP + 4..HEAD].fill(0);
        (frame[TCP + 12], frame[TCP + 14], frame[TCP + 15]) =
            ((header << 2) as u8, (WINDOW >> 8) as u8, WINDOW as u8);
        let pseudo =
            [&frame[26..TCP], &[0, 6], &((frame.len() - TCP) as u16).to_be_bytes()].concat();
        let sum = add(sum(&pseudo), sum(&frame[TCP..]));
        Self { frame, sum }
    }

    fn fill(&mut self, sequence: u32, acknowledged: u32, flags: u8) -> &[u8] {
        let numbers = [sequence, acknowledged].map(u32::to_be_bytes).concat();
        self.frame[TCP + 4..TCP + 12].copy_from_slice(&numbers);
        self.frame[TCP + 13] = flags;
        let all = add(add(self.sum, sum(&numbers)), u16::from(flags));
        self.frame[TCP + 16..TCP + 18].copy_from_slice(&(!all).to_be_bytes());
        &self.frame
    }
}

/// The sum of two sums in ones' complement. [RFC 1071]
fn add(one: u16, other: u16) -> u16 {
    let (sum, over) = one.overflowing_add(other);
    sum + u16::from(over)
}

struct Connection {
    ports: [u16; 2],
    segment: Template,
    empty: Template,
    /// The first byte that is not acknowledged, the next to send, and the end of what may be sent.
    acknowledged: u32,
    next: u32,
    limit: u32,
    /// The next byte that is to come, and whether somebody waits to hear that.
    wanted: u32,
    owed: bool,
    ended: bool,
}

impl Connection {
    fn open(pinger: &mut Pinger<'_>, port: u16) -> Result<Self, Error> {
        // Another one each time: what is left of the one before is not this one's.
        let own = 10_000 + (pinger.looks() % 50_000) as u16;
        let ports = [own, port];
        let first = pinger.looks() as u32;
        let mut made = Self {
            ports,
            segment: Template::new(pinger.ends(), ports, 20, &[0x55; SEGMENT]),
            empty: Template::new(pinger.ends(), ports, 20, &[]),
            acknowledged: first,
            next: first.wrapping_add(1),
            limit: first,
            wanted: 0,
            owed: false,
            ended: false,
        };
        let mut syn = Template::new(pinger.ends(), ports, 24, &LONGEST);
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            pinger.send_each(1, |packet| packet.fill(syn.fill(first, 0, SYN)))?;
            let sent = Instant::now();
            while sent.elapsed() < LOST {
                let mut answer = None;
                pinger.heads(|head| answer = answer.or(hear(head, ports)))?;
                let Some(heard) = answer.filter(|heard| heard.flags & (SYN | ACK) == SYN | ACK)
                else {
                    continue;
                };
                made.wanted = heard.sequence.wrapping_add(1);
                (made.acknowledged, made.limit) =
                    (made.next, made.next.wrapping_add(heard.window.into()));
                made.tell(pinger, ACK)?;
                return Ok(made);
            }
        }
        Err(Error::Invalid(format!(
            "nobody takes a connection to port {port} within {} s",
            PATIENCE.as_secs()
        )))
    }

    /// Moves bytes for so long; how many.
    fn run(&mut self, pinger: &mut Pinger<'_>, kind: Kind, time: Duration) -> Result<u64, Error> {
        let (start, mut heard, mut moved) = (Instant::now(), Instant::now(), 0_u64);
        while start.elapsed() < time {
            if kind == Kind::TcpIn {
                self.send(pinger)?;
            }
            let before = (self.acknowledged, self.wanted);
            self.listen(pinger)?;
            let bytes =
                self.acknowledged.wrapping_sub(before.0) + self.wanted.wrapping_sub(before.1);
            moved += u64::from(bytes);
            if self.ended {
                return Err(Error::Invalid("the connection was ended by the other side".into()));
            }
            if bytes > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > PATIENCE {
                return Err(Error::Invalid(format!(
                    "nothing has moved for {} s",
                    PATIENCE.as_secs()
                )));
            } else if kind == Kind::TcpIn
                && self.next != self.acknowledged
                && heard.elapsed() > LOST
            {
                // Of a card that was full: from there on.
                self.next = self.acknowledged;
            }
        }
        Ok(moved)
    }

    /// Sends what the other side takes, a burst at most.
    fn send(&mut self, pinger: &mut Pinger<'_>) -> Result<(), Error> {
        let free = self.limit.wrapping_sub(self.next);
        // Behind it, if the window was shut.
        let count = if free > 1 << 30 { 0 } else { (free / SEGMENT as u32).min(BURST) };
        if count == 0 {
            return Ok(());
        }
        let (segment, next, wanted) = (&mut self.segment, &mut self.next, self.wanted);
        pinger.send_each(count as usize, |packet| {
            packet.fill(segment.fill(*next, wanted, ACK))?;
            *next = next.wrapping_add(SEGMENT as u32);
            Ok(())
        })
    }

    /// Takes what has come, and says so if bytes were among it.
    fn listen(&mut self, pinger: &mut Pinger<'_>) -> Result<(), Error> {
        let ports = self.ports;
        pinger.heads(|head| hear(head, ports).into_iter().for_each(|heard| self.take(heard)))?;
        if std::mem::take(&mut self.owed) { self.tell(pinger, ACK) } else { Ok(()) }
    }

    fn take(&mut self, heard: Heard) {
        self.ended |= heard.flags & (RST | FIN) != 0;
        let by = heard.acknowledged.wrapping_sub(self.acknowledged);
        if by <= self.next.wrapping_sub(self.acknowledged) {
            self.acknowledged = heard.acknowledged;
            self.limit = heard.acknowledged.wrapping_add(heard.window.into());
        }
        if heard.bytes > 0 {
            // What comes out of turn is asked for once more.
            self.owed = true;
            if heard.sequence == self.wanted {
                self.wanted = self.wanted.wrapping_add(heard.bytes);
            }
        }
    }

    fn tell(&mut self, pinger: &mut Pinger<'_>, flags: u8) -> Result<(), Error> {
        let frame = self.empty.fill(self.next, self.wanted, flags);
        pinger.send_each(1, |packet| packet.fill(frame))
    }

    /// Ends it at once, behind what is under way: a reset that is not exactly the next byte is not
    /// heard. [RFC 5961 3.2]
    fn reset(mut self, pinger: &mut Pinger<'_>) -> Result<(), Error> {
        self.tell(pinger, RST | ACK)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ring3_class::net::Mac;

    use super::*;

    const PORTS: [u16; 2] = [12_345, DISCARD];

    fn ends() -> (Host, Host) {
        let host =
            |last| Host { mac: Mac([2, 0, 0, 0, 0, last]), ip: Ipv4Addr::new(10, 9, 0, last) };
        (host(2), host(1))
    }

    fn connection() -> Connection {
        let template = |payload: &[u8]| Template::new(ends(), PORTS, 20, payload);
        let (segment, empty) = (template(&[0x55; SEGMENT]), template(&[]));
        Connection {
            ports: PORTS,
            segment,
            empty,
            acknowledged: 100,
            next: 3020,
            limit: 9000,
            wanted: 500,
            owed: false,
            ended: false,
        }
    }

    fn heard(sequence: u32, acknowledged: u32, bytes: u32) -> Heard {
        Heard { sequence, acknowledged, flags: ACK, window: 5000, bytes }
    }

    #[test]
    fn a_segment_has_right_sums_whatever_its_numbers_are_and_is_heard_as_it_was_said() {
        for (payload, header) in [(&[0x55; SEGMENT][..], 20), (&[], 20), (&LONGEST, 24)] {
            let mut template = Template::new(ends(), PORTS, header, payload);
            for sequence in [0, 0x1234_5678, u32::MAX] {
                let frame = template.fill(sequence, !sequence, ACK).to_vec();
                let pseudo =
                    [&frame[26..TCP], &[0, 6], &((frame.len() - TCP) as u16).to_be_bytes()]
                        .concat();
                assert_eq!(
                    (sum(&frame[14..TCP]), add(sum(&pseudo), sum(&frame[TCP..]))),
                    (0xffff, 0xffff)
                );
                let bytes = (payload.len() + 20 - header) as u32;
                let said =
                    Heard { sequence, acknowledged: !sequence, flags: ACK, window: WINDOW, bytes };
                assert_eq!(hear(frame.first_chunk().unwrap(), [PORTS[1], PORTS[0]]), Some(said));
                assert_eq!(hear(frame.first_chunk().unwrap(), PORTS), None);
            }
        }
    }

    #[test]
    fn bytes_in_turn_move_the_window_and_others_are_asked_for_once_more() {
        let mut connection = connection();
        connection.take(heard(500, 1560, 1460));
        assert_eq!(
            (connection.acknowledged, connection.limit, connection.wanted),
            (1560, 6560, 1960)
        );
        assert!(std::mem::take(&mut connection.owed));
        connection.take(heard(4000, 1560, 1460));
        assert!(connection.wanted == 1960 && connection.owed);
    }

    #[test]
    fn what_was_never_sent_is_not_acknowledged_and_a_reset_is_the_end() {
        let mut connection = connection();
        connection.take(heard(500, 4000, 0));
        assert_eq!(
            (connection.acknowledged, connection.limit, connection.owed),
            (100, 9000, false)
        );
        connection.take(Heard { flags: RST | ACK, ..heard(500, 100, 0) });
        assert!(connection.ended);
    }
}
