//! `bench loopback`: two cards cabled together, after Enea: packets with a magic word and a time
//! stamp go from one to the other.
//!
//! # Shape
//! A [`Port`] sends and receives frames by one card: a packet socket of the kernel
//! ([`PacketSocket`]), or the class API ([`ClassPort`]). [`run`] has one thread for each card: one
//! sends [as the load says](Pace), the other receives and compares the time stamp of each packet
//! with the time.

mod class;
mod socket;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ring3_class::net::Mac;

use super::talk::{MARK, Mark};
use crate::Error;
use crate::report::Measurement;

pub use class::ClassPort;
pub use socket::PacketSocket;

/// The placements in the order of their turns.
pub const LOOPBACK_PLACEMENTS: [&str; 3] = ["kernel", "process", "dpdk"];

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// For local experiments. [IEEE 802 9.2.3]
const KIND: u16 = 0x88b5;
/// Packets under way at most, where as many are sent as the receiver takes.
const WINDOW: u64 = 128;
/// Packets of a batch.
const BATCH: usize = 32;
/// From one packet to the next, where they are sent one by one.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long the receiver waits for a packet before it looks whether it is over.
const QUIET: Duration = Duration::from_millis(50);
/// A window of which nothing has come for so long is lost.
const STALL: Duration = Duration::from_secs(1);

/// How packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as the other side takes them: throughput.
    Stream,
    /// One each millisecond: latency.
    Paced,
}

/// A load: packets of one size, with or without others who want the processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// How they are sent.
    pub pace: Pace,
    /// Bytes of a frame without its check sequence, 60 to 1514.
    pub bytes: usize,
    /// Tasks that never sleep meanwhile.
    pub stress: usize,
}

/// Tasks of a load with stress.
const STRESS: usize = 4;

impl Loop {
    /// All of the page.
    pub fn all() -> Vec<Self> {
        let calm = [(Pace::Stream, 60), (Pace::Stream, 1514), (Pace::Paced, 60)];
        let with = |stress| calm.map(|(pace, bytes)| Self { pace, bytes, stress });
        [with(0), with(STRESS)].concat()
    }
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = if self.pace == Pace::Stream { "stream" } else { "paced" };
        write!(f, "loop-{}-{pace}{}", self.bytes, if self.stress > 0 { "-stress" } else { "" })
    }
}

impl FromStr for Loop {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (text, stress) =
                text.strip_suffix("-stress").map_or((text, 0), |text| (text, STRESS));
            let (bytes, pace) = text.strip_prefix("loop-")?.split_once('-')?;
            let pace = [("stream", Pace::Stream), ("paced", Pace::Paced)]
                .into_iter()
                .find(|(name, _)| *name == pace)?
                .1;
            let bytes = bytes.parse().ok().filter(|bytes| (60..=1514).contains(bytes))?;
            Some(Self { pace, bytes, stress })
        };
        parse().ok_or_else(|| {
            format!(
                "{text:?} is no load of two cards: loop-BYTES-stream or loop-BYTES-paced with \
                 60 to 1514 bytes, and -stress behind it for four tasks that never sleep"
            )
        })
    }
}

/// A card, by whoever drives it.
pub trait Port: Send {
    /// Sends `frame` up to `count` times, each with the next of `marks`; how many were taken.
    fn send(
        &mut self,
        frame: &mut [u8],
        count: usize,
        marks: &mut dyn FnMut() -> Mark,
    ) -> Result<usize, Error>;

    /// Waits for packets for `limit` at most, and shows the mark of each that came.
    fn receive(&mut self, limit: Duration, see: &mut dyn FnMut(Mark)) -> Result<(), Error>;
}

/// What has come of a run.
pub struct Ran {
    /// Packets.
    pub sent: u64,
    /// Of these, so many arrived.
    pub received: u64,
    /// From the first to the last.
    pub elapsed: Duration,
    /// Nanoseconds from the sending of each to when the receiver saw it.
    pub latency: Histogram<u64>,
}

/// The Ethernet header and the room of a frame from one card to the other.
pub fn frame(load: &Loop, from: Mac, to: Mac) -> Vec<u8> {
    let mut frame = vec![0; load.bytes.max(HEADER + MARK)];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..HEADER].copy_from_slice(&KIND.to_be_bytes());
    frame
}

/// The mark of a frame of ours.
#[inline]
fn mark(frame: &[u8]) -> Option<Mark> {
    (frame.get(12..HEADER)? == KIND.to_be_bytes()).then(|| Mark::of(&frame[HEADER..])).flatten()
}

/// Puts a mark into a frame.
#[inline]
fn put(frame: &mut [u8], mark: &Mark) {
    frame[HEADER..HEADER + MARK].copy_from_slice(&mark.bytes());
}

/// Sends copies of `frame` by one card and receives them by the other for `time`. `id` is a number
/// that no other run has.
pub fn run(
    load: &Loop,
    id: u32,
    frame: &mut [u8],
    (from, to): (&mut dyn Port, &mut dyn Port),
    time: Duration,
) -> Result<Ran, Error> {
    let (came, over, began) = (AtomicU64::new(0), AtomicBool::new(false), Instant::now());
    let none = |error| Error::format("the bounds of latencies", error);
    let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(none)?;
    let (sent, elapsed) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(id, to, (&came, &over), began, &mut latency));
        let sent = send(load, id, frame, from, &came, (began, time));
        let elapsed = began.elapsed();
        over.store(true, Ordering::Relaxed);
        let received = receiver
            .join()
            .map_err(|_| Error::Invalid("the receiving thread has panicked".into()))?;
        received.and(sent).map(|sent| (sent, elapsed))
    })?;
    Ok(Ran { sent, received: came.into_inner(), elapsed, latency })
}

fn send(
    load: &Loop,
    id: u32,
    frame: &mut [u8],
    port: &mut dyn Port,
    came: &AtomicU64,
    (began, time): (Instant, Duration),
) -> Result<u64, Error> {
    let (mut number, mut heard, mut lost) = (0, (0, began), 0);
    let marks = |number: u64| Mark { id, number, at: began.elapsed().as_nanos() as u64 };
    while began.elapsed() < time {
        let count = match load.pace {
            Pace::Stream => {
                let received = came.load(Ordering::Relaxed);
                if received > heard.0 {
                    heard = (received, Instant::now());
                } else if heard.1.elapsed() > STALL {
                    (lost, heard.1) = (number - received, Instant::now());
                }
                (WINDOW + received + lost).saturating_sub(number).min(BATCH as u64) as usize
            }
            Pace::Paced => usize::from(began.elapsed() >= INTERVAL * (number as u32 + 1)),
        };
        let mut next = number;
        let sent = match count {
            0 => 0,
            _ => port.send(frame, count, &mut || {
                next += 1;
                marks(next - 1)
            })?,
        };
        number += sent as u64;
        match load.pace {
            // The other thread may want this processor.
            Pace::Stream if sent == 0 => thread::yield_now(),
            Pace::Stream => {}
            Pace::Paced => {
                thread::sleep((INTERVAL * (number as u32 + 1)).saturating_sub(began.elapsed()))
            }
        }
    }
    Ok(number)
}

fn receive(
    id: u32,
    port: &mut dyn Port,
    (came, over): (&AtomicU64, &AtomicBool),
    began: Instant,
    latency: &mut Histogram<u64>,
) -> Result<(), Error> {
    loop {
        let (last, before) = (over.load(Ordering::Relaxed), came.load(Ordering::Relaxed));
        let mut count = before;
        port.receive(QUIET, &mut |mark| {
            if mark.id == id {
                count += 1;
                latency.saturating_record(
                    (began.elapsed().as_nanos() as u64).saturating_sub(mark.at).max(1),
                );
            }
        })?;
        came.store(count, Ordering::Relaxed);
        // What was under way at the end has come when nothing has come for a while.
        if last && count == before {
            return Ok(());
        }
    }
}

impl Ran {
    /// Fills in what can be said of a run.
    pub fn fill(&self, load: &Loop, into: Measurement) -> Measurement {
        let seconds = self.elapsed.as_secs_f64().max(1e-9);
        let at = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e3;
        let lost = self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64;
        let into = into.with("packets_s", self.received as f64 / seconds);
        let into =
            into.with("mbit_s", self.received as f64 * load.bytes as f64 * 8.0 / 1e6 / seconds);
        let into = into
            .with("loss_percent", 100.0 * lost)
            .with("latency_us_p50", at(0.5))
            .with("latency_us_p99", at(0.99));
        into.with("latency_us_p999", at(0.999))
            .with("latency_us_max", self.latency.max() as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A cable without cards.
    struct Out(Sender<Vec<u8>>);
    struct In(Receiver<Vec<u8>>);

    impl Port for Out {
        fn send(
            &mut self,
            frame: &mut [u8],
            count: usize,
            marks: &mut dyn FnMut() -> Mark,
        ) -> Result<usize, Error> {
            for _ in 0..count {
                put(frame, &marks());
                self.0.send(frame.to_vec()).unwrap();
            }
            Ok(count)
        }

        fn receive(&mut self, _: Duration, _: &mut dyn FnMut(Mark)) -> Result<(), Error> {
            unreachable!("it only sends")
        }
    }

    impl Port for In {
        fn send(
            &mut self,
            _: &mut [u8],
            _: usize,
            _: &mut dyn FnMut() -> Mark,
        ) -> Result<usize, Error> {
            unreachable!("it only receives")
        }

        fn receive(&mut self, limit: Duration, see: &mut dyn FnMut(Mark)) -> Result<(), Error> {
            self.0
                .recv_timeout(limit)
                .ok()
                .and_then(|frame| mark(&frame))
                .into_iter()
                .for_each(see);
            Ok(())
        }
    }

    fn ran(name: &str) -> (Loop, Ran) {
        let load: Loop = name.parse().unwrap();
        let (out, into) = channel();
        let mut frame = frame(&load, Mac([2; 6]), Mac([4; 6]));
        let ran =
            run(&load, 7, &mut frame, (&mut Out(out), &mut In(into)), Duration::from_millis(30))
                .unwrap();
        (load, ran)
    }

    #[test]
    fn every_packet_that_was_sent_is_received_and_has_a_latency() {
        for name in ["loop-60-stream", "loop-60-paced"] {
            let (load, ran) = ran(name);
            assert!(
                ran.sent > 0 && ran.sent == ran.received && ran.latency.len() == ran.received,
                "{name}: {}",
                ran.sent
            );
            let into = ran.fill(&load, Measurement::new(1, load, "kernel"));
            assert!(
                into.values["latency_us_max"] >= into.values["latency_us_p50"]
                    && into.values["loss_percent"] == 0.0
            );
        }
    }

    #[test]
    fn names_are_read_as_they_are_printed_and_others_are_refused_with_an_example() {
        Loop::all().iter().for_each(|load| assert_eq!(load.to_string().parse(), Ok(*load)));
        for name in ["", "loop-59-stream", "loop-60-fast", "loop-60", "loop-1515-paced-stress"] {
            assert!(name.parse::<Loop>().unwrap_err().contains("loop-BYTES-stream"), "{name}");
        }
    }

    #[test]
    fn frames_of_others_have_no_mark() {
        let mut frame = frame(&Loop::all()[0], Mac([2; 6]), Mac([4; 6]));
        let one = Mark { id: 1, number: 2, at: 3 };
        put(&mut frame, &one);
        assert_eq!((frame.len(), mark(&frame)), (60, Some(one)));
        frame[13] ^= 1;
        assert_eq!((mark(&frame), mark(&frame[..13])), (None, None));
    }
}
