//! Who is at the other end of the cable.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ring3_class::net::Mac;

use super::frame::{HEADERS, Host, Place, answer_arp, parse, udp};
use super::load::{Kind, Load};
use super::measure::PATIENCE;
use super::talk::{AHEAD, Ask, MARK, Mark, PEER_DATA, PEER_TALK, Tally, USER_DATA, USER_TALK};
use super::wire::{End, Wire};
use crate::Error;

/// A load of which nothing has come for so long has lost packets: they are sent anew.
const STALL: Duration = Duration::from_millis(300);
/// When what the wire has not taken is tried again.
const RETRY: Duration = Duration::from_micros(100);
/// Packets of a rate that are sent one after the other before somebody looks whether something has
/// come.
const BURST: u64 = 64;
/// Frames that are taken before what is due is done.
const BATCH: usize = 64;
/// More than the longest frame that a card sends to a peer.
const LONGEST: usize = 65_600;

/// Puts a frame on the wire: false if it was not taken.
pub type Send<'a> = dyn FnMut(&[u8]) -> bool + 'a;

/// A cable, `name` in `folder`, at whose other end is a peer with this address.
pub fn peer(folder: &Path, name: &str, mac: Mac) -> Result<Wire, Error> {
    Wire::new(folder, name, move |end| serve(end, Peer::new(mac)))
}

fn serve(end: &End, mut peer: Peer) {
    let mut frame = vec![0; LONGEST];
    let mut send = |frame: &[u8]| end.send(frame);
    while !end.is_over() {
        for _ in 0..BATCH {
            let Some(length) = end.receive(&mut frame) else { break };
            peer.take(&frame[..length], Instant::now(), &mut send, &mut |frame| end.reply(frame));
        }
        let next = peer.tick(Instant::now(), &mut send);
        end.wait(next.map_or(Duration::MAX, |next| next.saturating_duration_since(Instant::now())));
    }
}

/// Asks the peer of `wire` on behalf of a host that cannot ask itself, such as one that sends back
/// all that it receives.
pub fn ask_for(wire: &Wire, host: Host, ask: &Ask) -> Result<Tally, Error> {
    let ours = wire.ours().with_extension("asker");
    let failed = |error| Error::os("asking the peer", error);
    let _ = std::fs::remove_file(&ours);
    let socket = UnixDatagram::bind(&ours).map_err(failed)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let question =
        serde_json::to_vec(ask).map_err(|error| Error::format("a question to the peer", error))?;
    let there = Host { mac: Mac::BROADCAST, ip: Ipv4Addr::from(u32::from(host.ip) + 1) };
    socket
        .send_to(&udp((host, USER_TALK), (there, PEER_TALK), &question), wire.ours())
        .map_err(failed)?;
    let mut answer = [0; 2048];
    let length = socket.recv(&mut answer).map_err(failed)?;
    let tally =
        parse(&answer[..length]).and_then(|datagram| serde_json::from_slice(datagram.payload).ok());
    tally.ok_or_else(|| Error::format("the peer's answer", "it is none"))
}

/// Makes loads as it is asked to, one at a time. It has every address that somebody asks for.
pub struct Peer {
    mac: Mac,
    run: Option<Run>,
}

/// A load.
struct Run {
    id: u32,
    load: Load,
    /// A packet for the user; mark and number are written anew for each.
    packet: Vec<u8>,
    began: Instant,
    heard: Instant,
    /// Packets that may go now.
    credit: u64,
    /// Packets that the user has said to have received.
    told: u64,
    stopped: bool,
    tally: Tally,
    latency: Option<Histogram<u64>>,
}

impl Peer {
    /// With this address.
    pub fn new(mac: Mac) -> Self {
        Self { mac, run: None }
    }

    /// Takes a frame from the wire.
    ///
    /// Answers go by `reply` to whoever has asked, which need not be the card.
    pub fn take(&mut self, frame: &[u8], now: Instant, send: &mut Send, reply: &mut Send) {
        let Some(datagram) = parse(frame) else {
            if let Some(answer) = answer_arp(frame, self.mac) {
                send(&answer);
            }
            return;
        };
        match datagram.to.1 {
            PEER_DATA => {
                self.run.iter_mut().for_each(|run| run.returned(datagram.payload, now, send))
            }
            PEER_TALK => {
                let Ok(ask) = serde_json::from_slice(datagram.payload) else { return };
                let me = Host { mac: self.mac, ip: datagram.to.0.ip };
                self.asked(&ask, (me, datagram.from), now, (send, reply));
            }
            _ => {}
        }
    }

    /// Does what is due, and says when it wants to be called next at the latest.
    pub fn tick(&mut self, now: Instant, send: &mut Send) -> Option<Instant> {
        self.run.as_mut().filter(|run| !run.stopped)?.tick(now, send)
    }

    fn asked(
        &mut self,
        ask: &Ask,
        (me, asker): (Host, Place),
        now: Instant,
        (send, reply): (&mut Send, &mut Send),
    ) {
        if let Ask::Begin(id, load) = *ask
            && self.run.as_ref().is_none_or(|run| run.id != id)
        {
            self.run = Some(Run::new(id, load, (me, asker.0), now));
        }
        let Some(run) = self.run.as_mut().filter(|run| run.id == ask.id()) else { return };
        run.stopped |= matches!(ask, Ask::Stop(_));
        // A tally is numbers: it can be written.
        let answer = serde_json::to_vec(&run.tally()).unwrap_or_default();
        reply(&udp((me, PEER_TALK), asker, &answer));
        if matches!(ask, Ask::Begin(..)) {
            run.pump(now, send);
        }
    }
}

impl Run {
    fn new(id: u32, load: Load, (me, user): (Host, Host), now: Instant) -> Self {
        let packet =
            udp((me, PEER_DATA), (user, USER_DATA), &vec![0; usize::from(load.bytes).max(MARK)]);
        let credit = match load.kind {
            Kind::Echo(window) => window.into(),
            Kind::In => AHEAD,
            Kind::Rate(_) | Kind::Out | Kind::Idle => 0,
        };
        // A minute by the nanosecond, three digits; without it there are no latencies.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).ok();
        let tally = Tally { id, ..Tally::default() };
        Self {
            id,
            load,
            packet,
            began: now,
            heard: now,
            credit,
            told: 0,
            stopped: false,
            tally,
            latency,
        }
    }

    /// Something has come for the load.
    fn returned(&mut self, payload: &[u8], now: Instant, send: &mut Send) {
        let Some(mark) = Mark::of(payload).filter(|mark| mark.id == self.id) else { return };
        self.heard = now;
        self.tally.received += 1;
        match self.load.kind {
            Kind::Echo(_) | Kind::Rate(_) => {
                let took = self.since(now).saturating_sub(mark.at);
                self.latency.iter_mut().for_each(|latency| latency.saturating_record(took));
                self.credit += u64::from(matches!(self.load.kind, Kind::Echo(_)));
            }
            Kind::In => {
                self.told = self.told.max(mark.number);
                self.credit = (self.told + AHEAD).saturating_sub(self.tally.sent);
            }
            Kind::Out | Kind::Idle => {}
        }
        self.pump(now, send);
    }

    fn tick(&mut self, now: Instant, send: &mut Send) -> Option<Instant> {
        if let Kind::Rate(kbit) = self.load.kind {
            let due = u128::from(self.since(now)) * u128::from(kbit)
                / u128::from(8_000_000 * u64::from(self.load.bytes));
            self.credit = (due as u64).saturating_sub(self.tally.sent).min(BURST);
            self.pump(now, send);
            let next =
                u64::from(self.load.bytes) * 8_000_000 * (self.tally.sent + 1) / u64::from(kbit);
            return Some(self.began + Duration::from_nanos(next));
        }
        let lost = now.duration_since(self.heard) >= STALL;
        match self.load.kind {
            Kind::Echo(window) if lost => self.credit = window.into(),
            Kind::In if lost => self.credit = AHEAD,
            _ => {}
        }
        if lost {
            self.heard = now;
        }
        self.pump(now, send);
        Some(if self.credit > 0 { now + RETRY } else { self.heard + STALL })
    }

    /// Sends what may go. Of a rate, a packet that the wire does not take is lost; of the others it
    /// waits.
    fn pump(&mut self, now: Instant, send: &mut Send) {
        while self.credit > 0 && !self.stopped {
            let mark = Mark { id: self.id, number: self.tally.sent, at: self.since(now) };
            self.packet[HEADERS..HEADERS + MARK].copy_from_slice(&mark.bytes());
            if !send(&self.packet) && self.load.rate().is_none() {
                return;
            }
            self.tally.sent += 1;
            self.credit -= 1;
        }
    }

    fn since(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }

    fn tally(&self) -> Tally {
        let at = |quantile| {
            self.latency
                .as_ref()
                .map_or(0.0, |latency| latency.value_at_quantile(quantile) as f64 / 1e3)
        };
        Tally { p50_us: at(0.5), p99_us: at(0.99), ..self.tally }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::frame::turn_around;
    use super::*;

    const USER: Host = Host { mac: Mac([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 9, 0, 1) };
    const PEER: Host = Host { mac: Mac([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 9, 0, 2) };

    struct Table {
        peer: Peer,
        now: Instant,
    }

    impl Table {
        fn new() -> Self {
            Self { peer: Peer::new(PEER.mac), now: Instant::now() }
        }

        fn frame(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
            let sent = RefCell::new(Vec::new());
            let send = |frame: &[u8]| {
                sent.borrow_mut().push(frame.to_vec());
                true
            };
            self.peer.take(frame, self.now, &mut { send }, &mut { send });
            sent.into_inner()
        }

        /// The answer, and what came with it.
        fn ask(&mut self, ask: Ask) -> (Tally, Vec<Vec<u8>>) {
            let question =
                udp((USER, USER_TALK), (PEER, PEER_TALK), &serde_json::to_vec(&ask).unwrap());
            let mut sent = self.frame(&question);
            let answer = sent.remove(0);
            let datagram = parse(&answer).unwrap();
            assert_eq!((datagram.to, datagram.from.0.mac), ((USER, USER_TALK), PEER.mac));
            (serde_json::from_slice(datagram.payload).unwrap(), sent)
        }

        fn tick(&mut self, after: Duration) -> usize {
            self.now += after;
            let mut sent = 0;
            self.peer.tick(self.now, &mut |_| {
                sent += 1;
                true
            });
            sent
        }
    }

    fn echo(frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        turn_around(frame.first_chunk_mut().unwrap());
        frame
    }

    fn load(name: &str) -> Load {
        name.parse().unwrap()
    }

    #[test]
    fn as_many_packets_are_under_way_as_were_asked_for_and_each_that_returns_is_followed_by_one() {
        let mut table = Table::new();
        let (tally, sent) = table.ask(Ask::Begin(1, load("udp-64-echo-qd2")));
        assert_eq!((tally.id, sent.len(), parse(&sent[0]).unwrap().payload.len()), (1, 2, 64));
        assert_eq!(table.frame(&echo(&sent[1])).len(), 1);
        let (tally, sent) = table.ask(Ask::Stop(1));
        assert_eq!((tally.sent, tally.received, sent.len()), (3, 1, 0));
    }

    #[test]
    fn a_load_that_is_asked_for_twice_is_begun_once() {
        let mut table = Table::new();
        table.ask(Ask::Begin(1, load("udp-64-echo-qd1")));
        let (tally, sent) = table.ask(Ask::Begin(1, load("udp-64-echo-qd1")));
        assert_eq!((tally.sent, sent.len()), (1, 0));
    }

    #[test]
    fn nothing_is_sent_after_the_stop_and_what_still_comes_is_counted() {
        let mut table = Table::new();
        let (_, sent) = table.ask(Ask::Begin(1, load("udp-64-echo-qd1")));
        table.ask(Ask::Stop(1));
        assert!(table.frame(&echo(&sent[0])).is_empty() && table.tick(STALL * 2) == 0);
        assert_eq!(table.ask(Ask::Tell(1)).0.received, 1);
    }

    #[test]
    fn lost_packets_are_sent_anew_after_a_while() {
        let mut table = Table::new();
        table.ask(Ask::Begin(1, load("udp-64-echo-qd3")));
        assert_eq!(
            (table.tick(STALL / 2), table.tick(STALL / 2), table.tick(STALL / 2)),
            (0, 3, 0)
        );
    }

    #[test]
    fn a_rate_is_kept_whatever_returns() {
        let mut table = Table::new();
        table.ask(Ask::Begin(1, Load::at(8)));
        // 8 Mb/s of 1024 bytes are 976 packets a second.
        let sent: usize = (0..1000).map(|_| table.tick(Duration::from_millis(1))).sum();
        assert!((975..=977).contains(&sent), "{sent}");
    }

    #[test]
    fn what_the_wire_does_not_take_waits_for_a_window_and_is_lost_for_a_rate() {
        for (name, waits) in [("udp-64-echo-qd4", 0), ("udp-1024-echo-at100", 12)] {
            let mut table = Table::new();
            let question = serde_json::to_vec(&Ask::Begin(1, load(name))).unwrap();
            table.peer.take(
                &udp((USER, USER_TALK), (PEER, PEER_TALK), &question),
                table.now,
                &mut |_| false,
                &mut |_| false,
            );
            table.now += Duration::from_millis(1);
            table.peer.tick(table.now, &mut |_| false);
            assert_eq!(table.ask(Ask::Stop(1)).0.sent, waits, "{name}");
        }
    }

    #[test]
    fn who_receives_is_sent_as_much_ahead_as_it_has_told() {
        let mut table = Table::new();
        let (_, sent) = table.ask(Ask::Begin(9, load("udp-64-in")));
        assert_eq!(sent.len() as u64, AHEAD);
        let told = Mark { id: 9, number: 64, at: 0 };
        assert_eq!(
            table.frame(&udp((USER, USER_DATA), (PEER, PEER_DATA), &told.bytes())).len(),
            64
        );
    }

    #[test]
    fn what_belongs_to_no_load_and_what_makes_no_sense_is_ignored() {
        let mut table = Table::new();
        let (_, sent) = table.ask(Ask::Begin(2, load("udp-64-echo-qd1")));
        let stale = Mark { id: 1, number: 0, at: 0 };
        for payload in [&stale.bytes()[..], b"x", b""] {
            assert!(table.frame(&udp((USER, USER_DATA), (PEER, PEER_DATA), payload)).is_empty());
            assert!(table.frame(&udp((USER, USER_TALK), (PEER, PEER_TALK), payload)).is_empty());
        }
        assert_eq!((table.ask(Ask::Tell(2)).0.received, sent.len()), (0, 1));
    }

    #[test]
    fn a_card_that_appears_later_is_served_and_its_echo_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let there = Host { mac: Mac([2, 0, 0, 0, 0, 2]), ip: Ipv4Addr::new(10, 9, 0, 2) };
        let here = Host { mac: Mac([2, 0, 0, 0, 0, 1]), ip: Ipv4Addr::new(10, 9, 0, 1) };
        let wire = peer(folder.path(), "c", there.mac).unwrap();
        let card = UnixDatagram::bind(wire.theirs()).unwrap();
        card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let ask = |ask: Ask| {
            card.send_to(
                &udp((here, USER_TALK), (there, PEER_TALK), &serde_json::to_vec(&ask).unwrap()),
                wire.ours(),
            )
            .unwrap();
        };
        let mut frame = [0; 2000];
        let mut receive = || {
            let length = card.recv(&mut frame).unwrap();
            frame[..length].to_vec()
        };
        ask(Ask::Begin(3, "udp-64-echo-qd1".parse().unwrap()));
        assert_eq!(parse(&receive()).unwrap().to.1, USER_TALK);
        for _ in 0..5 {
            let mut packet = receive();
            turn_around(packet.first_chunk_mut().unwrap());
            card.send_to(&packet, wire.ours()).unwrap();
        }
        receive();
        ask(Ask::Stop(3));
        let tally: Tally = serde_json::from_slice(parse(&receive()).unwrap().payload).unwrap();
        assert_eq!((tally.id, tally.sent, tally.received), (3, 6, 5));
        assert!(tally.p50_us > 0.0, "{tally:?}");
    }
}
