//! What a load generator does: `randread-4k-qd32`.

use std::fmt;
use std::str::FromStr;

/// In which order the offsets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Uniformly random, aligned to the request's size.
    Random,
    /// One after the other, from the start again after the end.
    Sequential,
}

/// Which operations there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Each with the same probability.
    Both,
}

/// A load: order, operations, bytes of a request and how many are in flight. Written
/// `ORDERMIX-SIZE-qdDEPTH`, and with a rate `ORDERMIX-SIZE-qdDEPTH-atRATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    /// Order of the offsets.
    pub order: Order,
    /// Reads, writes or both.
    pub mix: Mix,
    /// Bytes of one request: whole sectors of 512 bytes, up to 16 MiB.
    pub bytes: u32,
    /// Requests in flight: 1 to 1024.
    pub depth: u16,
    /// Requests per second, each started at its time whatever becomes of those before; as many as
    /// can be if `None`.
    pub rate: Option<u32>,
}

/// Bytes of a sector, the unit of all sizes.
pub const SECTOR: u32 = 512;

/// The loads that every disk is measured with.
pub const STANDARD: [&str; 4] =
    ["randread-4k-qd1", "randread-4k-qd32", "randwrite-4k-qd32", "seqread-128k-qd8"];

/// A name that does not describe a load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no workload: write (rand|seq)(read|write|rw)-SIZE-qdDEPTH with a size from 512 to \
    16m (a multiple of 512) and a depth from 1 to 1024, as in randread-4k-qd32"
)]
pub struct UnknownWorkload(String);

impl Workload {
    /// One sequential read of `sectors` after the other, as a program does that calls read() in a
    /// loop.
    pub fn reading(sectors: u32) -> Self {
        Self {
            order: Order::Sequential,
            mix: Mix::Read,
            bytes: sectors * SECTOR,
            depth: 1,
            rate: None,
        }
    }

    /// The same at a rate.
    pub fn at(self, rate: u32) -> Self {
        Self { rate: Some(rate), ..self }
    }

    /// Whether it changes what is on the disk.
    pub fn writes(&self) -> bool {
        self.mix != Mix::Read
    }
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        parse(text).ok_or_else(|| UnknownWorkload(text.into()))
    }
}

fn parse(text: &str) -> Option<Workload> {
    let mut parts = text.split('-');
    let (kind, size, depth) = (parts.next()?, parts.next()?, parts.next()?);
    let (order, mix) = match kind.split_at_checked(if kind.starts_with("rand") { 4 } else { 3 })? {
        ("rand", mix) => (Order::Random, mix),
        ("seq", mix) => (Order::Sequential, mix),
        _ => return None,
    };
    let mix = match mix {
        "read" => Mix::Read,
        "write" => Mix::Write,
        "rw" => Mix::Both,
        _ => return None,
    };
    let bytes = parse_size(size)?;
    let depth = depth.strip_prefix("qd")?.parse().ok()?;
    let rate = match parts.next() {
        Some(rate) => Some(
            rate.strip_prefix("at")?.parse().ok().filter(|rate| (1..=10_000_000).contains(rate))?,
        ),
        None => None,
    };
    let sane = bytes.is_multiple_of(SECTOR)
        && (SECTOR..=16 << 20).contains(&bytes)
        && (1..=1024).contains(&depth)
        && parts.next().is_none();
    sane.then_some(Workload { order, mix, bytes, depth, rate })
}

fn parse_size(text: &str) -> Option<u32> {
    let (number, shift) = match text.strip_suffix('k') {
        Some(number) => (number, 10),
        None => text.strip_suffix('m').map_or((text, 0), |number| (number, 20)),
    };
    number.parse::<u32>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::Random => "rand",
            Order::Sequential => "seq",
        };
        let mix = match self.mix {
            Mix::Read => "read",
            Mix::Write => "write",
            Mix::Both => "rw",
        };
        let (number, unit) = match self.bytes {
            bytes if bytes.is_multiple_of(1 << 20) => (bytes >> 20, "m"),
            bytes if bytes.is_multiple_of(1 << 10) => (bytes >> 10, "k"),
            bytes => (bytes, ""),
        };
        write!(f, "{order}{mix}-{number}{unit}-qd{}", self.depth)?;
        self.rate.map_or(Ok(()), |rate| write!(f, "-at{rate}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_as_they_were_read() {
        for name in STANDARD.into_iter().chain([
            "seqwrite-512-qd1",
            "seqread-1536-qd1",
            "randrw-1m-qd128",
            "randread-4k-qd32-at1000",
        ]) {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_name_that_makes_no_sense_is_refused_with_an_example() {
        for name in [
            "",
            "randread",
            "randread-4k",
            "read-4k-qd1",
            "randread-700-qd1",
            "randread-4k-qd0",
            "randread-256-qd1",
            "randread-4k-qd1-x",
            "randread-4k-qd1-at0",
        ] {
            let error = name.parse::<Workload>().unwrap_err();
            assert!(error.to_string().contains("randread-4k-qd32"), "{name}");
        }
    }
}
