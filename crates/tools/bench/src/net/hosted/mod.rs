//! `bench dde`: a card whose unmodified driver of Linux is in the kernel or in a process, after
//! Weisbach 2011.
//!
//! # Shape
//! A [`Pinger`] stands at the other end of the cable, in the same machine: a card of ring3's in
//! this process. It runs in the scheduler's idle class and never sleeps, so that it has the
//! processor when nobody else wants it and loses it at once to whoever does: it is the other
//! machine of the thesis, whose own time is not that of the machine that is measured. What passes
//! from its sending until it sees the answer is what all others took, and its own few instructions;
//! and what they waited for, an interrupt that the card holds back for example. Of that it knows by
//! the looks at its empty ring that it has made meanwhile. Its card delivers within the instruction
//! that rings its doorbell, so that by the instruction clock nothing of the host is in that time.
//!
//! Where the kernel's protocols are to answer, echo requests are answered by themselves, and
//! [`Services`] are programs for UDP.

mod connection;
mod latency;
mod pinger;
mod services;

pub use latency::Latencies;
pub use pinger::Pinger;
pub use services::Services;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::Error;
use crate::cpu::Calls;
use crate::report::Measurement;

/// Who answers, in the order of their turns.
pub const HOSTED_PLACEMENTS: [&str; 11] = [
    "kernel",
    "hosted-raw",
    "hosted-raw-copy",
    "hosted-raw-msi",
    "hosted-lwip",
    "hosted-lwip-copy",
    "hosted-lwip-msi",
    "hosted-tap",
    "hosted-raw-polled",
    "hosted-lwip-polled",
    "hosted-tap-polled",
];

/// So many of them are usual; the others never sleep, and have a processor of their own.
pub const HOSTED_USUAL: usize = 8;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One echo request of ICMP after the other: how long each takes.
    Ping,
    /// Datagrams that are echoed, 32 under way.
    Echo,
    /// Datagrams that are taken: of 32, the last is echoed, and the next 32 follow it.
    In,
    /// A connection of TCP whose bytes are taken.
    TcpIn,
    /// One that sends as fast as they are taken.
    TcpOut,
}

/// Bytes of a segment of TCP in a full frame, without options.
const SEGMENT: usize = 1460;

/// A load: packets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostedLoad {
    /// What is done.
    pub kind: Kind,
    /// Bytes behind the header of ICMP or UDP, 18 to 1472; of TCP, 1460.
    pub bytes: usize,
}

impl HostedLoad {
    /// Those of the thesis.
    pub fn all() -> Vec<Self> {
        let of = |kind, bytes| Self { kind, bytes };
        let tcp = [Kind::TcpIn, Kind::TcpOut].map(|kind| of(kind, SEGMENT));
        let packets =
            [of(Kind::Ping, 56), of(Kind::Ping, 1472), of(Kind::Echo, 1472), of(Kind::In, 1472)];
        [&packets[..], &tcp].concat()
    }

    /// Whether it is for who answers in `placement`: without a stack, there is no TCP.
    pub fn suits(&self, placement: &str) -> bool {
        !matches!(self.kind, Kind::TcpIn | Kind::TcpOut) || !placement.starts_with("hosted-raw")
    }
}

impl fmt::Display for HostedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Ping => write!(f, "icmp-{}", self.bytes),
            Kind::Echo => write!(f, "udp-{}-echo", self.bytes),
            Kind::In => write!(f, "udp-{}-in", self.bytes),
            Kind::TcpIn => write!(f, "tcp-{}-in", self.bytes),
            Kind::TcpOut => write!(f, "tcp-{}-out", self.bytes),
        }
    }
}

impl FromStr for HostedLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (protocol, rest) = text.split_once('-')?;
            let (bytes, kind) = match protocol {
                "icmp" => (rest, Kind::Ping),
                "udp" => rest
                    .strip_suffix("-echo")
                    .map(|bytes| (bytes, Kind::Echo))
                    .or_else(|| Some((rest.strip_suffix("-in")?, Kind::In)))?,
                "tcp" if rest == "1460-in" => ("1460", Kind::TcpIn),
                "tcp" if rest == "1460-out" => ("1460", Kind::TcpOut),
                _ => return None,
            };
            let bytes = bytes.parse().ok().filter(|bytes| (18..=1472).contains(bytes))?;
            Some(Self { kind, bytes })
        };
        parse().ok_or_else(|| {
            format!(
                "{text:?} is no load of hosted drivers: icmp-BYTES, udp-BYTES-echo or \
                udp-BYTES-in, of 18 to 1472 bytes, tcp-1460-in or tcp-1460-out"
            )
        })
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Echo requests.
    pub samples: usize,
    /// How long datagrams go.
    pub time: Duration,
    /// Nanoseconds of an instruction by the instruction clock; `None` by the wall clock.
    pub instruction_ns: Option<f64>,
    /// Whose system calls are counted.
    pub driver: Option<u32>,
}

/// Does `load` with whoever `pinger` was pointed to, and fills the numbers of `into` in; of the
/// first round, also the distribution. What a driver calls is counted afterwards, in a part of the
/// same once more: the kernel's counters are switched with their threads, which takes some thousand
/// instructions each time.
pub fn measure_hosted(
    pinger: &mut Pinger<'_>,
    load: &HostedLoad,
    extent: &Extent,
    into: Measurement,
) -> Result<Measurement, Error> {
    let (into, _) = measure(pinger, load, extent, into)?;
    let Some(driver) = extent.driver else { return Ok(into) };
    let part = Extent { samples: (extent.samples / 4).max(64), time: extent.time / 4, ..*extent };
    let (calls, maps, start) = (Calls::start(driver)?, Calls::maps(driver)?, Instant::now());
    let (_, packets) = measure(pinger, load, &part, into.clone())?;
    let (calls, maps, packets) = (calls.count() as f64, maps.count() as f64, packets.max(1) as f64);
    // What is called by the clock and not for a packet is as much a second in every load.
    let into = into
        .with("calls_per_op", calls / packets)
        .with("calls_s", calls / start.elapsed().as_secs_f64().max(1e-9));
    Ok(into.with("maps_per_op", maps / packets))
}

fn measure(
    pinger: &mut Pinger<'_>,
    load: &HostedLoad,
    extent: &Extent,
    into: Measurement,
) -> Result<(Measurement, u64), Error> {
    let nanos = extent.instruction_ns;
    if load.kind == Kind::Ping {
        let (times, idle) = pinger.ping(load.bytes, extent.samples)?;
        let (count, all) = (times.len().max(1) as f64, Duration::from_nanos(times.iter().sum()));
        let into = into.with(
            "loss_percent",
            100.0 * (1.0 - times.len() as f64 / extent.samples.max(1) as f64),
        );
        let into = costs(into, nanos, all.saturating_sub(idle), count);
        return Ok((Latencies::new(times).fill(load, into), extent.samples as u64));
    }
    let (packets, elapsed, idle) = match load.kind {
        Kind::TcpIn | Kind::TcpOut => connection::stream(pinger, load.kind, extent.time)?,
        _ => pinger.stream(load, extent.time)?,
    };
    let (seconds, count) = (elapsed.as_secs_f64().max(1e-9), packets.max(1) as f64);
    let into = into.with("packets_s", packets as f64 / seconds);
    let into = into.with("mbit_s", packets as f64 * load.bytes as f64 * 8.0 / 1e6 / seconds);
    Ok((costs(into, nanos, elapsed.saturating_sub(idle), count), packets))
}

/// What one of so many takes of the processor.
fn costs(
    into: Measurement,
    instruction_ns: Option<f64>,
    busy: Duration,
    count: f64,
) -> Measurement {
    match instruction_ns {
        Some(nanos) => into.with("instructions_per_op", busy.as_nanos() as f64 / nanos / count),
        None => into.with("busy_us_per_op", busy.as_secs_f64() * 1e6 / count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed_and_others_are_refused_with_what_there_is() {
        HostedLoad::all().iter().for_each(|load| assert_eq!(load.to_string().parse(), Ok(*load)));
        for name in ["", "icmp", "icmp-17", "udp-56", "udp-1473-in", "tcp-56-echo", "tcp-1400-in"] {
            assert!(name.parse::<HostedLoad>().unwrap_err().contains("udp-BYTES-in"), "{name}");
        }
    }

    #[test]
    fn tcp_is_for_who_has_a_stack() {
        let suits = |name: &str, placement| name.parse::<HostedLoad>().unwrap().suits(placement);
        assert!(
            suits("tcp-1460-in", "hosted-lwip-polled")
                && suits("tcp-1460-out", "kernel")
                && suits("icmp-56", "hosted-raw")
        );
        assert!(!suits("tcp-1460-in", "hosted-raw-polled"));
    }
}
