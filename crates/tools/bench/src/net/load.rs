//! What is asked of a card: `udp-64-echo-qd1`, `udp-1024-echo-at20`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// So many packets are under way; one that comes back is followed by the next.
    Echo(u16),
    /// Packets to be echoed come at a rate, in thousands of bits of payload a second, whatever
    /// becomes of them.
    Rate(u32),
    /// Nothing comes.
    Idle,
    /// The user sends as fast as it can, in batches.
    Out,
    /// The peer sends as fast as the user receives, which says so now and then.
    In,
}

/// A load of UDP packets, all of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// What is done.
    pub kind: Kind,
    /// Bytes of payload of a packet, 24 to 1472.
    pub bytes: u16,
}

/// Bytes of payload that a packet has.
pub const SIZE: std::ops::RangeInclusive<u16> = super::talk::MARK as u16..=1472;

/// Rates of the figure, in millions of bits a second: from far below what a guest of 62.5 million
/// instructions a second can echo to beyond.
pub const SWEEP: [u32; 10] = [10, 15, 20, 25, 30, 35, 40, 50, 60, 80];

impl Load {
    /// The paper's: 1024 bytes, at `mbit` millions of bits a second.
    pub const fn at(mbit: u32) -> Self {
        Self::at_kbit(1000 * mbit)
    }

    /// The same in thousands of bits a second.
    pub const fn at_kbit(kbit: u32) -> Self {
        Self { kind: Kind::Rate(kbit), bytes: 1024 }
    }

    /// Nothing at all.
    pub const IDLE: Self = Self { kind: Kind::Idle, bytes: 1024 };

    /// Packets of 64 bytes, out, in, and there and back with one and with 32 under way.
    pub fn closed() -> [Self; 4] {
        [Kind::Out, Kind::In, Kind::Echo(1), Kind::Echo(32)].map(|kind| Self { kind, bytes: 64 })
    }

    /// The rate of the load in thousands of bits a second, if it has one.
    pub fn rate(&self) -> Option<u32> {
        match self.kind {
            Kind::Rate(kbit) => Some(kbit),
            _ => None,
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes;
        match self.kind {
            Kind::Echo(window) => write!(f, "udp-{bytes}-echo-qd{window}"),
            Kind::Rate(kbit) => write!(f, "udp-{bytes}-echo-at{}", f64::from(kbit) / 1e3),
            Kind::Idle => f.write_str("idle"),
            Kind::Out => write!(f, "udp-{bytes}-out"),
            Kind::In => write!(f, "udp-{bytes}-in"),
        }
    }
}

/// A name that does not describe a load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no load of a network card: write udp-BYTES-out, udp-BYTES-in, udp-BYTES-echo-qdN (1 \
    to 256) or udp-BYTES-echo-atMBIT (0.001 to 100000) with 24 to 1472 bytes, as in \
    udp-64-echo-qd1, or idle"
)]
pub struct UnknownLoad(String);

impl FromStr for Load {
    type Err = UnknownLoad;

    fn from_str(text: &str) -> Result<Self, UnknownLoad> {
        parse(text).ok_or_else(|| UnknownLoad(text.into()))
    }
}

fn parse(text: &str) -> Option<Load> {
    if text == "idle" {
        return Some(Load::IDLE);
    }
    let (bytes, kind) = text.strip_prefix("udp-")?.split_once('-')?;
    let kind = match kind.strip_prefix("echo-") {
        None if kind == "out" => Kind::Out,
        None if kind == "in" => Kind::In,
        None => return None,
        Some(echo) => match (echo.strip_prefix("qd"), echo.strip_prefix("at")) {
            (Some(window), _) => {
                Kind::Echo(window.parse().ok().filter(|window| (1..=256).contains(window))?)
            }
            (_, Some(mbit)) => Kind::Rate(rate(mbit)?),
            _ => return None,
        },
    };
    Some(Load { kind, bytes: bytes.parse().ok().filter(|bytes| SIZE.contains(bytes))? })
}

/// Thousands of bits a second, written in millions.
fn rate(mbit: &str) -> Option<u32> {
    let kbit = (mbit.parse::<f64>().ok()? * 1e3).round();
    (1.0..=1e8).contains(&kbit).then_some(kbit as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_as_they_were_read() {
        for name in [
            "udp-64-out",
            "udp-1472-in",
            "udp-64-echo-qd32",
            "udp-1024-echo-at10",
            "udp-1024-echo-at0.4",
            "idle",
        ] {
            assert_eq!(name.parse::<Load>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_name_that_makes_no_sense_is_refused_with_an_example() {
        for name in [
            "",
            "udp-64",
            "udp-23-out",
            "udp-1473-in",
            "udp-64-echo-qd0",
            "udp-64-echo-at0",
            "udp-64-echo-atNaN",
            "udp-64-echo-x",
            "tcp-64-out",
        ] {
            assert!(
                name.parse::<Load>().unwrap_err().to_string().contains("udp-64-echo-qd1"),
                "{name}"
            );
        }
    }
}
