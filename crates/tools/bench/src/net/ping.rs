//! `bench ping`: how long a ping takes beside a load of the same interface.
//!
//! # Shape
//! The thread that measures sends an echo request each [`INTERVAL`], and takes the answers. The
//! load is made by threads of their own, as fast as their sockets take it. All of them are ordinary
//! users of the interface.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ring3_class::net::sum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, send, socket,
};
use strum::Display;

use super::measure::PATIENCE;
use super::streams::SINK;
use super::tcp::connect;
use crate::Error;
use crate::kill::now;
use crate::report::Measurement;
use crate::restart::Pause;

/// The placements of `bench ping`.
pub const PING_PLACEMENTS: [&str; 10] = [
    "kernel",
    "export",
    "export-tap",
    "export-tap-ordinary",
    "export-tap-real-time",
    "export-tap-confined",
    "export-vhost",
    "export-vduse",
    "export-vduse-ordinary",
    "export-vduse-real-time",
];
/// From one request to the next.
const INTERVAL: Duration = Duration::from_millis(10);
/// A request without an answer after so long is lost.
const LOST: Duration = Duration::from_secs(1);
/// Until a load is what it stays.
const SETTLE: Duration = Duration::from_millis(300);
/// Bytes of payload of a datagram, which has a frame of its own, and of a piece of a stream.
const DATAGRAM: usize = 1400;
const PIECE: usize = 64 << 10;
/// Streams at a time.
const STREAMS: usize = 4;
/// Nobody listens there. [RFC 863]
const DISCARD: u16 = 9;
/// How often a thread of a load looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of an IPv4 header without options, and of an echo request. [RFC 791, 792]
const IP: usize = 20;
const ECHO: usize = 16;

/// What goes on beside the ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
#[strum(serialize_all = "lowercase")]
pub enum Beside {
    /// Nothing.
    Idle,
    /// One program sends datagrams of 1400 bytes, one call each.
    Datagrams,
    /// Four connections of TCP are written to.
    Streams,
}

impl Beside {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Idle, Self::Datagrams, Self::Streams];
}

impl FromStr for Beside {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|beside| beside.to_string() == text);
        found.ok_or_else(|| {
            format!("{text:?} is no load of this benchmark: idle, datagrams or streams")
        })
    }
}

/// Pings `peer` for `time` beside a load, and fills the numbers of `into` in.
pub fn measure_ping(
    beside: Beside,
    peer: Ipv4Addr,
    time: Duration,
    into: Measurement,
) -> Result<Measurement, Error> {
    let mut ping = Ping::open(peer)?;
    ping.reach()?;
    let connections = if beside == Beside::Streams { STREAMS } else { 0 };
    let streams = (0..connections).map(|_| connect(peer, SINK)).collect::<Result<Vec<_>, _>>()?;
    let (over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = Load { peer, over: &over, bytes: &bytes };
    let (measured, sent) = thread::scope(|scope| {
        let threads = match beside {
            Beside::Idle => Vec::new(),
            Beside::Datagrams => vec![scope.spawn(|| load.datagrams())],
            Beside::Streams => {
                streams.into_iter().map(|stream| scope.spawn(|| load.stream(stream))).collect()
            }
        };
        thread::sleep(SETTLE);
        let (start, before) = (Instant::now(), bytes.load(Ordering::Relaxed));
        let measured = ping.measure(time);
        let rate = (bytes.load(Ordering::Relaxed) - before) as f64 * 8.0
            / 1e6
            / start.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        let panicked = |_| Err(io::Error::other("a thread of the load panicked"));
        let ended =
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked));
        (measured, ended.map(|()| rate))
    });
    let failed = |error| Error::os(format!("pinging {peer} beside {beside}"), error);
    let (times, lost) = measured.map_err(failed)?;
    let rate = sent.map_err(failed)?;
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let into =
        into.with("latency_us_min", times.min() as f64 / 1e3).with("latency_us_p50", at(0.5));
    let into =
        into.with("latency_us_p99", at(0.99)).with("latency_us_max", times.max() as f64 / 1e3);
    Ok(into.with("loss_percent", lost).with("mbit_s", rate))
}

/// What pings have seen of an interface while something happened to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// Requests that were made, one each `INTERVAL`.
    pub sent: u64,
    /// Of these, those that were answered within `LOST`.
    pub answered: u64,
    /// Times between an answer and the next one, where that came later than it should have.
    pub pauses: Vec<Pause>,
}

/// Pings `peer` while `happens` runs, once it has answered for the first time.
///
/// # Errors
/// No pings can be sent, nobody answers, or the socket fails.
pub fn watch<T>(peer: Ipv4Addr, happens: impl FnOnce() -> T) -> Result<(Watched, T), Error> {
    let mut ping = Ping::open(peer)?;
    ping.reach()?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| ping.watch(&over));
        let happened = happens();
        over.store(true, Ordering::Relaxed);
        let seen = watching.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
        let seen = seen.map_err(|error| Error::os(format!("pinging {peer}"), error))?;
        Ok((seen, happened))
    })
}

/// What the threads of a load have.
struct Load<'a> {
    peer: Ipv4Addr,
    over: &'a AtomicBool,
    bytes: &'a AtomicU64,
}

impl Load<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn datagrams(&self) -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((self.peer, DISCARD))?;
        socket.set_write_timeout(Some(LOOK))?;
        while !self.is_over() {
            // What the interface has no room for is lost, as any packet may be.
            self.count(socket.send(&[0; DATAGRAM]).unwrap_or(0));
        }
        Ok(())
    }

    fn stream(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(LOOK))?;
        let piece = vec![0; PIECE];
        while !self.is_over() {
            match stream.write(&piece) {
                Ok(bytes) => self.count(bytes),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A socket for pings.
struct Ping {
    socket: OwnedFd,
    sequence: u16,
    sent: Vec<(u16, Instant)>,
}

impl Ping {
    fn open(peer: Ipv4Addr) -> Result<Self, Error> {
        let open = || {
            let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))?;
            net::connect(&socket, &SocketAddr::from((peer, 0)))?;
            Ok(socket)
        };
        let opened: rustix::io::Result<_> = open();
        let socket =
            opened.map_err(|error| Error::os("opening a raw socket (CAP_NET_RAW)", error))?;
        Ok(Self { socket, sequence: 0, sent: Vec::new() })
    }

    /// Until the link is there nobody can be reached.
    fn reach(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Without a link it cannot be sent.
            let _ = self.request();
            if self.answer(INTERVAL * 10).ok().flatten().is_some() {
                return Ok(());
            }
        }
        Err(Error::Invalid(format!(
            "nobody at the other end of the cable answers a ping within {} s",
            PATIENCE.as_secs()
        )))
    }

    fn request(&mut self) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.sent.push((self.sequence, Instant::now()));
        send(&self.socket, &request(self.sequence), SendFlags::empty())?;
        Ok(())
    }

    /// How long the next answer has taken that comes within `limit`.
    fn answer(&mut self, limit: Duration) -> io::Result<Option<Duration>> {
        let end = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let mut bytes = [0; 256];
            let (count, _) = recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT)?;
            let answered = sequence(&bytes[..count]);
            if let Some(place) =
                self.sent.iter().position(|(sequence, _)| Some(*sequence) == answered)
            {
                return Ok(Some(self.sent.remove(place).1.elapsed()));
            }
        }
    }

    /// Times in nanoseconds, and how many of a hundred were lost.
    fn measure(&mut self, time: Duration) -> io::Result<(Histogram<u64>, f64)> {
        let mut times =
            Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(io::Error::other)?;
        self.sent.clear();
        let (start, mut next, mut requests) = (Instant::now(), Instant::now(), 0);
        while start.elapsed() < time {
            if Instant::now() >= next {
                // One that the kernel does not take is lost.
                let _ = self.request();
                (next, requests) = (next + INTERVAL, requests + 1);
            }
            if let Some(took) = self.answer(next.saturating_duration_since(Instant::now()))? {
                times.saturating_record(took.as_nanos() as u64);
            }
        }
        let end = Instant::now() + LOST;
        while !self.sent.is_empty() && Instant::now() < end {
            if let Some(took) = self.answer(end.saturating_duration_since(Instant::now()))? {
                times.saturating_record(took.as_nanos() as u64);
            }
        }
        Ok((times, 100.0 * self.sent.len() as f64 / f64::from(requests.max(1))))
    }
}

impl Ping {
    /// Sends and counts until `over`.
    fn watch(&mut self, over: &AtomicBool) -> io::Result<Watched> {
        let (mut seen, mut last, mut next) = (Watched::default(), now(), Instant::now());
        self.sent.clear();
        while !over.load(Ordering::Relaxed) {
            if Instant::now() >= next {
                // One that the kernel does not take is lost.
                let _ = self.request();
                (next, seen.sent) = (next.max(Instant::now()) + INTERVAL, seen.sent + 1);
                // A late answer is that of a queue, and none of a driver that is there again.
                self.sent.retain(|(_, sent)| sent.elapsed() < LOST);
            }
            let limit = next.saturating_duration_since(Instant::now());
            // While the link is down, the socket has errors instead of answers.
            if self.answer(limit).ok().flatten().is_some() {
                let time = now();
                seen.answered += 1;
                if time - last > 2 * INTERVAL.as_nanos() as u64 {
                    seen.pauses.push(Pause { from: last, until: time });
                }
                last = time;
            }
        }
        Ok(seen)
    }
}

/// An echo request of this program's. [RFC 792]
fn request(sequence: u16) -> [u8; ECHO] {
    let mut bytes = [0; ECHO];
    (bytes[0], bytes[4], bytes[5]) = (8, b'r', b'3');
    bytes[6..8].copy_from_slice(&sequence.to_be_bytes());
    let check = !sum(&bytes);
    bytes[2..4].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// Which request the packet answers, if it answers one of this program's.
fn sequence(packet: &[u8]) -> Option<u16> {
    let echo: &[u8; 8] = packet.get(IP..)?.first_chunk()?;
    (echo[0] == 0 && echo[4..6] == *b"r3").then(|| u16::from_be_bytes([echo[6], echo[7]]))
}

#[cfg(test)]
mod tests {
    use super::super::frame::answer_ping;
    use super::*;

    #[test]
    fn a_load_is_read_as_it_is_printed_and_another_is_refused_with_all_names() {
        Beside::ALL.iter().for_each(|beside| assert_eq!(beside.to_string().parse(), Ok(*beside)));
        assert!("tcp".parse::<Beside>().unwrap_err().contains("datagrams"));
    }

    #[test]
    fn the_peers_answer_to_a_request_is_known_by_its_number() {
        let mut frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45][..], &[0; 19]].concat();
        frame[23] = 1;
        frame[26..34].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
        frame.extend(request(0x1234));
        let answer = answer_ping(&frame).unwrap();
        assert_eq!(
            (&answer[..6], &answer[26..34]),
            (&[2, 0, 0, 0, 0, 1][..], &[10, 9, 0, 2, 10, 9, 0, 1][..])
        );
        assert_eq!((sequence(&answer[14..]), sum(&answer[34..])), (Some(0x1234), 0xffff));
        assert_eq!((sequence(&frame[14..]), answer_ping(&answer)), (None, None));
    }

    #[test]
    fn an_interface_that_answers_always_has_no_long_pause() {
        // Raw sockets are root's.
        if Ping::open(Ipv4Addr::LOCALHOST).is_err() {
            return;
        }
        let nap = || thread::sleep(INTERVAL * 5);
        let (seen, ()) = watch(Ipv4Addr::LOCALHOST, nap).unwrap();
        assert!(seen.sent > 0 && seen.answered > 0 && seen.answered <= seen.sent, "{seen:?}");
    }

    #[test]
    fn the_loopback_answers_every_ping() {
        let Ok(mut ping) = Ping::open(Ipv4Addr::LOCALHOST) else {
            return println!("skipped: no raw sockets");
        };
        ping.reach().unwrap();
        let (times, lost) = ping.measure(INTERVAL * 10).unwrap();
        assert!(times.len() >= 10 && lost == 0.0, "{} {lost}", times.len());
    }
}
