//! A user over the class API: the card is in its process, and it speaks UDP itself.
//!
//! What is echoed goes out in the buffer in which it came: the headers are turned around, and
//! nothing is copied.

use std::mem;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ring3_class::net::{Mac, Nic, Packet, Queue};
use ring3_device::Deadline;

use super::filled::{self, ROOM};
use super::frame::{HEADERS, Host, parse, turn_around, udp};
use super::load::{Kind, Load};
use super::measure::{PATIENCE, QUIET, Seen};
use super::talk::{Ask, MARK, Mark, PEER_DATA, PEER_TALK, TELL, Tally, USER_DATA, USER_TALK};
use super::{User, Work, no_answer};
use crate::Error;

/// Packets of a batch.
const BATCH: usize = 32;
/// Buffers of its own to send of.
const OWN: usize = 128;
/// By which they are known.
const OWN_TOKEN: u32 = 1;
/// How long an answer is waited for before the question is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// The clock is read after so many turns.
const LOOK: u32 = 32;

/// A card and its queue.
pub struct Direct<'a> {
    nic: &'a dyn Nic,
    queue: Box<dyn Queue>,
    me: Host,
    peer: Host,
    /// What was received, then what goes out.
    batch: Box<[Packet]>,
    /// What was sent.
    back: Box<[Packet]>,
    /// Buffers of its own that are here.
    own: Vec<Packet>,
    /// What the peer has answered last.
    answer: Option<Tally>,
    /// A packet to send, whole.
    frame: Vec<u8>,
}

impl<'a> Direct<'a> {
    /// Opens a queue of `nic`, as the host `here`; whoever is at the other end of the cable is
    /// `peer`.
    pub fn open(nic: &'a dyn Nic, here: Ipv4Addr, peer: Ipv4Addr) -> Result<Self, Error> {
        let (queue, own) = filled::open(nic, OWN, OWN_TOKEN)?;
        let me = Host { mac: nic.info().mac, ip: here };
        let peer = Host { mac: Mac::BROADCAST, ip: peer };
        Ok(Self {
            nic,
            queue,
            me,
            peer,
            batch: filled::places(BATCH),
            back: filled::places(BATCH),
            own,
            answer: None,
            frame: Vec::new(),
        })
    }

    /// Takes what has come and does with it what `load` is; whether there was something.
    fn turn(&mut self, load: Option<&Load>, seen: &mut Seen) -> Result<bool, Error> {
        self.take_back()?;
        let sent = match load {
            Some(load) if load.kind == Kind::Out => self.send_own(load, seen)?,
            _ => false,
        };
        let count =
            self.queue.rx_return(&mut self.batch).map_err(|source| failed(self.nic, source))?;
        if count == 0 {
            return Ok(sent);
        }
        let before = seen.packets / TELL;
        let mut mark = None;
        let mut echoed = 0;
        for at in 0..count {
            match self.look(at, load, seen) {
                Seeing::Echo => {
                    self.batch.swap(echoed, at);
                    echoed += 1;
                }
                Seeing::Taken(last) => mark = last.or(mark),
            }
        }
        // What the card has no room for is lost, as any packet may be; its buffer is received into
        // again.
        let sent = self.queue.tx_provide(&mut self.batch[..echoed]).count;
        seen.packets -= (echoed - sent) as u64;
        self.provide(sent, count);
        if let Some(mark) = mark.filter(|_| seen.packets / TELL != before) {
            self.tell(mark, seen.packets)?;
        }
        Ok(true)
    }

    /// Gives the buffers of the batch from `from` to `to` to the card.
    fn provide(&mut self, from: usize, to: usize) {
        // There is room: they are fewer than the card has returned.
        let _ = self.queue.rx_provide(&mut self.batch[from..to]);
    }

    /// Looks at the packet in a place of the batch.
    #[inline]
    fn look(&mut self, at: usize, load: Option<&Load>, seen: &mut Seen) -> Seeing {
        let packet = &self.batch[at];
        let mut head = [0; HEADERS + MARK];
        if (packet.len as usize) < head.len()
            || packet.meta.more()
            || packet.read(0, &mut head).is_err()
        {
            return Seeing::Taken(None);
        }
        if head[36..38] != USER_DATA.to_be_bytes() {
            self.hear(at);
            return Seeing::Taken(None);
        }
        let Some(mark) = parse_data(&head) else { return Seeing::Taken(None) };
        match load.map(|load| load.kind) {
            Some(Kind::Echo(_) | Kind::Rate(_)) => {
                let Some(headers) = head.first_chunk_mut() else { return Seeing::Taken(None) };
                turn_around(headers);
                if packet.write(0, headers).is_err() {
                    return Seeing::Taken(None);
                }
                seen.see(&mark);
                Seeing::Echo
            }
            _ => {
                seen.see(&mark);
                Seeing::Taken(Some(mark))
            }
        }
    }

    /// Keeps the peer's answer, if the packet is one.
    #[cold]
    fn hear(&mut self, at: usize) {
        let packet = &self.batch[at];
        let mut frame = vec![0; packet.len.min(ROOM) as usize];
        if packet.read(0, &mut frame).is_err() {
            return;
        }
        let Some(datagram) = parse(&frame).filter(|datagram| datagram.to == (self.me, USER_TALK))
        else {
            return;
        };
        if let Ok(tally) = serde_json::from_slice(datagram.payload) {
            self.peer.mac = datagram.from.0.mac;
            self.answer = Some(tally);
        }
    }

    /// Takes buffers back whose packets were sent: those that were received into are received into
    /// again.
    fn take_back(&mut self) -> Result<(), Error> {
        let count =
            self.queue.tx_return(&mut self.back).map_err(|source| failed(self.nic, source))?;
        let mut received = 0;
        for at in 0..count {
            if self.back[at].token == OWN_TOKEN {
                self.own.push(mem::take(&mut self.back[at]));
            } else {
                self.back.swap(received, at);
                received += 1;
            }
        }
        if received > 0 {
            let _ = self.queue.rx_provide(&mut self.back[..received]);
        }
        Ok(())
    }

    /// Sends a batch of packets of its own; whether there was one.
    fn send_own(&mut self, load: &Load, seen: &mut Seen) -> Result<bool, Error> {
        let count = self.own.len().min(BATCH);
        let from = self.own.len() - count;
        for packet in &mut self.own[from..] {
            packet.fill(&self.frame).map_err(|source| failed(self.nic, source))?;
        }
        let sent = self.queue.tx_provide(&mut self.own[from..]).count;
        self.own.drain(from..from + sent);
        seen.packets += sent as u64;
        debug_assert!(load.kind == Kind::Out);
        Ok(sent > 0)
    }

    /// Sends `frame`, if there is a buffer.
    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        let Some(mut packet) = self.own.pop() else { return Ok(()) };
        packet.fill(frame).map_err(|source| failed(self.nic, source))?;
        let mut packet = [packet];
        if self.queue.tx_provide(&mut packet).count == 0 {
            self.own.extend(packet);
        }
        Ok(())
    }

    /// Tells the peer how much has come.
    fn tell(&mut self, mark: Mark, number: u64) -> Result<(), Error> {
        let told = Mark { number: mark.number.max(number), ..mark };
        let frame = udp((self.me, USER_DATA), (self.peer, PEER_DATA), &told.bytes());
        self.send(&frame)
    }

    /// Sleeps until something comes, for at most so long.
    fn wait(&mut self, most: Duration) -> Result<bool, Error> {
        self.queue.wait(Deadline::after(most)).map_err(|source| failed(self.nic, source))
    }

    /// A turn, and sleep if there was nothing; false after silence.
    fn turn_or_wait(
        &mut self,
        load: Option<&Load>,
        seen: &mut Seen,
        most: Duration,
    ) -> Result<bool, Error> {
        if self.turn(load, seen)? || self.wait(most)? {
            return Ok(true);
        }
        self.queue.tick(Instant::now()).map_err(|source| failed(self.nic, source))?;
        Ok(false)
    }
}

/// What becomes of a packet.
enum Seeing {
    /// It goes back where it came from.
    Echo,
    /// It was for us alone; its mark, if it belongs to a load.
    Taken(Option<Mark>),
}

/// The mark of a packet whose headers are those of a datagram of a load.
#[inline]
fn parse_data(head: &[u8; HEADERS + MARK]) -> Option<Mark> {
    let is_udp = head[12..14] == [8, 0] && head[14] == 0x45 && head[23] == 17;
    Mark::of(&head[HEADERS..]).filter(|_| is_udp)
}

fn failed(nic: &dyn Nic, source: ring3_device::Error) -> Error {
    Error::Device { name: nic.name(), source }
}

impl User for Direct<'_> {
    fn ask(&mut self, ask: &Ask) -> Result<Tally, Error> {
        let question = serde_json::to_vec(ask)
            .map_err(|error| Error::format("a question to the peer", error))?;
        let load = if let Ask::Begin(_, load) = ask { Some(*load) } else { None };
        let frame = udp((self.me, USER_TALK), (self.peer, PEER_TALK), &question);
        let start = Instant::now();
        self.answer = None;
        while start.elapsed() < PATIENCE {
            self.send(&frame)?;
            let again = Instant::now() + AGAIN;
            while Instant::now() < again {
                self.turn_or_wait(
                    load.as_ref().filter(|load| load.kind != Kind::Out),
                    &mut Seen::default(),
                    QUIET,
                )?;
                if let Some(tally) = self.answer.take_if(|tally| tally.id == ask.id()) {
                    return Ok(tally);
                }
            }
        }
        Err(no_answer(PATIENCE))
    }

    fn work(
        &mut self,
        load: &Load,
        time: Duration,
        begin: &mut dyn FnMut(),
        end: &mut dyn FnMut(),
    ) -> Result<Work, Error> {
        let bytes = vec![0; usize::from(load.bytes)];
        self.frame = udp((self.me, USER_DATA), (self.peer, PEER_DATA), &bytes);
        // Who only sends has nothing else to wake up for.
        self.queue.wake_on_tx(load.kind == Kind::Out);
        let (asked, mut seen) = (Instant::now(), Seen::default());
        while load.kind != Kind::Out && seen.packets == 0 {
            self.turn_or_wait(Some(load), &mut seen, QUIET)?;
            if asked.elapsed() > PATIENCE {
                return Err(Error::Invalid(format!("{load}: nothing comes")));
            }
        }
        begin();
        let (start, before) = (Instant::now(), seen);
        for turn in 0_u32.. {
            let silent = !self.turn_or_wait(Some(load), &mut seen, QUIET)?;
            if (silent || turn % LOOK == 0) && start.elapsed() >= time {
                break;
            }
        }
        end();
        self.queue.wake_on_tx(false);
        Ok(seen.since(&before))
    }

    fn idle(&mut self, time: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while let Some(left) = time.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            self.turn_or_wait(None, &mut Seen::default(), left)?;
        }
        Ok(())
    }

    fn drain(&mut self, load: &Load) -> Result<(), Error> {
        let echo = Some(load).filter(|load| load.kind != Kind::Out);
        while self.turn_or_wait(echo, &mut Seen::default(), QUIET)? {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ring3_class::net::{Cable, End, Filter};

    use super::super::Peer;
    use super::super::measure::{Method, measure};
    use ring3_class::net::QueueSettings;

    use super::*;
    use crate::report::Measurement;

    /// The peer on the other end of a cable in memory, until `stop`.
    fn serve(end: &End, stop: &AtomicBool) {
        let mac = end.info().mac;
        end.set_filter(&Filter { promiscuous: true, ..Filter::own(mac) }).unwrap();
        let (mut queue, mut peer) =
            (end.open_queues(1, &QueueSettings::default()).unwrap().remove(0), Peer::new(mac));
        let buffer = || Packet::new(end.dma().arena().alloc(2048, 64).unwrap(), 0);
        let mut empty: Vec<_> = (0..256).map(|_| buffer()).collect();
        assert_eq!(queue.rx_provide(&mut empty).count, 256);
        while !stop.load(Ordering::Relaxed) {
            let mut out: Vec<Vec<u8>> = Vec::new();
            let mut batch: [Packet; 32] = std::array::from_fn(|_| Packet::default());
            let count = queue.rx_return(&mut batch).unwrap();
            for packet in &batch[..count] {
                let mut frame = vec![0; packet.len as usize];
                packet.read(0, &mut frame).unwrap();
                let said = RefCell::new(&mut out);
                let say = |frame: &[u8]| {
                    said.borrow_mut().push(frame.to_vec());
                    true
                };
                peer.take(&frame, Instant::now(), &mut { &say }, &mut { &say });
            }
            assert_eq!(queue.rx_provide(&mut batch[..count]).count, count);
            peer.tick(Instant::now(), &mut |frame| {
                out.push(frame.to_vec());
                true
            });
            for frame in out {
                let mut packet = buffer();
                packet.fill(&frame).unwrap();
                assert_eq!(queue.tx_provide(&mut [packet]).count, 1);
                assert_eq!(queue.tx_return(&mut [Packet::default()]).unwrap(), 1);
            }
            queue.wait(Deadline::after(Duration::from_millis(1))).unwrap();
        }
    }

    fn measured(name: &str) -> Measurement {
        let (_cable, here, there) = Cable::new(4 << 20).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let order = stop.clone();
            let peer = scope.spawn(move || serve(&there, &order));
            let (me, other) = (Ipv4Addr::new(10, 9, 3, 1), Ipv4Addr::new(10, 9, 3, 2));
            let method = Method {
                time: Duration::from_millis(50),
                instruction_ns: None,
                soaker_step: None,
                cpus: 1,
            };
            let load = name.parse().unwrap();
            let into = Measurement::new(1, name, "process");
            let measured = Direct::open(&here, me, other)
                .and_then(|mut user| measure(&mut user, &load, 1, &method, None, into));
            stop.store(true, Ordering::Relaxed);
            peer.join().unwrap();
            measured.unwrap()
        })
    }

    #[test]
    fn each_load_is_measured_on_a_cable_in_memory() {
        for name in [
            "udp-64-echo-qd1",
            "udp-1024-echo-qd32",
            "udp-64-in",
            "udp-64-out",
            "udp-1024-echo-at10",
        ] {
            let values = measured(name).values;
            assert!(values["packets_s"] > 0.0 && values["mbit_s"] > 0.0, "{name}: {values:?}");
        }
    }

    #[test]
    fn what_is_echoed_of_a_rate_is_what_was_offered_where_nothing_is_lost() {
        let values = measured("udp-1024-echo-at2").values;
        assert!(
            values["loss_percent"] < 20.0 && (1.0..4.0).contains(&values["offered_mbit_s"]),
            "{values:?}"
        );
    }
}
