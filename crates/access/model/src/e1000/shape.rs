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
    /// Whether the checksum of the NVM is right.
    pub good_nvm: bool,
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
            good_nvm: true,
            wire: WireShape::Test,
            link: true,
            vectors: MSIX_VECTORS,
            ready: Duration::ZERO,
            timing: Timing::Inline,
        }
    }
}

const KEYS: [&str; 7] = ["mac", "wire", "link", "vectors", "ready", "nvm", "fault"];

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
        good_nvm: options.get("nvm", "good or bad", true, |text| match text {
            "good" => Some(true),
            "bad" => Some(false),
            _ => None,
        })?,
        wire: options.get("wire", "test, mirror or cable/NAME", default.wire, wire::shape)?,
        link: options.switch("link", true)?,
        vectors: options.get("vectors", "0 to 5", default.vectors, vectors)?,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
    };
    Ok((options, shape))
}
