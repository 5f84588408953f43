//! What a simulated card is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::{Error, Uri};
use ring3_spec::e1000::MSIX_VECTORS;

use crate::Timing;
use crate::options::{Options, duration, mac, number};
use crate::wire::{self, WireShape};

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The address in its NVM.
    pub mac: [u8; 6],
    /// How the NVM reads.
    pub nvm: Nvm,
    /// Which port of the card it is, 0 or 1: the address of the second one differs from the NVM's
    /// in the last bit.
    pub port: u8,
    /// How long firmware has NVM and PHY after power-on.
    pub firmware: Duration,
    /// What is at the other end.
    pub wire: WireShape,
    /// Whether the link comes up.
    pub link: bool,
    /// MSI-X vectors, 0 to 5; 0 leaves MSI and the pin.
    pub vectors: u16,
    /// How long a reset takes.
    pub ready: Duration,
    /// When it sends.
    pub timing: Timing,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            mac: [0x52, 0x54, 0x00, 0x12, 0x34, 0x56],
            nvm: Nvm::Good,
            port: 0,
            firmware: Duration::ZERO,
            wire: WireShape::Test,
            link: true,
            vectors: MSIX_VECTORS,
            ready: Duration::ZERO,
            timing: Timing::Inline,
        }
    }
}

/// How an NVM reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvm {
    /// As it was written.
    Good,
    /// With a wrong checksum.
    Bad,
    /// With a wrong checksum the first time.
    Flaky,
}

const KEYS: [&str; 9] =
    ["mac", "wire", "link", "vectors", "ready", "nvm", "port", "firmware", "fault"];

/// The shape that `uri` describes.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let options = Options::of(uri, "e1000", &KEYS)?;
    let default = Shape::default();
    let vectors = |text: &str| {
        number(text).filter(|count| *count <= MSIX_VECTORS.into()).map(|count| count as u16)
    };
    let shape = Shape {
        mac: options.get(
            "mac",
            "an address of one card, as 52:54:00:12:34:56",
            default.mac,
            mac,
        )?,
        nvm: options.get("nvm", "good, bad or flaky", Nvm::Good, |text| match text {
            "good" => Some(Nvm::Good),
            "bad" => Some(Nvm::Bad),
            "flaky" => Some(Nvm::Flaky),
            _ => None,
        })?,
        port: options.get("port", "0 or 1", 0, |text| number(text).filter(|port| *port < 2))? as u8,
        firmware: options.get("firmware", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        wire: options.get("wire", "test, mirror or cable/NAME", default.wire, wire::shape)?,
        link: options.switch("link", true)?,
        vectors: options.get("vectors", "0 to 5", default.vectors, vectors)?,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
    };
    Ok((options, shape))
}
