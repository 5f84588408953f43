//! What a simulated card is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::{Error, Uri};
use ring3_spec::e1000::{
    DEVICE_82573E, DEVICE_82573L, DEVICE_82574L, DEVICE_82574LA, DEVICE_82583V, MSIX_VECTORS,
};

use crate::Timing;
use crate::options::{Options, duration, mac, number};
use crate::wire::{self, WireShape};

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Which member of the family it is.
    pub card: Card,
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
            card: Card::I82574l,
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

/// A member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// 82573E or 82573V: PHY and NVM belong to who holds SWSM; no MSI-X.
    I82573e,
    /// 82573L: the same.
    I82573l,
    /// 82574L.
    I82574l,
    /// 82574LA: the same.
    I82574la,
    /// 82583V: an 82574 without MSI-X.
    I82583v,
}

impl Card {
    /// Its PCI device id.
    pub fn device(self) -> u16 {
        match self {
            Self::I82573e => DEVICE_82573E,
            Self::I82573l => DEVICE_82573L,
            Self::I82574l => DEVICE_82574L,
            Self::I82574la => DEVICE_82574LA,
            Self::I82583v => DEVICE_82583V,
        }
    }

    /// It is an 82573.
    pub(super) fn is_82573(self) -> bool {
        matches!(self, Self::I82573e | Self::I82573l)
    }

    fn has_msix(self) -> bool {
        matches!(self, Self::I82574l | Self::I82574la)
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
    /// It is a Flash, which CTRL.RST does not have the card read.
    Flash,
}

const KEYS: [&str; 10] =
    ["card", "mac", "wire", "link", "vectors", "ready", "nvm", "port", "firmware", "fault"];

/// The shape that `uri` describes.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let options = Options::of(uri, "e1000", &KEYS)?;
    let default = Shape::default();
    let vectors = |text: &str| {
        number(text).filter(|count| *count <= MSIX_VECTORS.into()).map(|count| count as u16)
    };
    let card =
        options.get("card", "82573e, 82573l, 82574l, 82574la or 82583v", default.card, |text| {
            match text {
                "82573e" => Some(Card::I82573e),
                "82573l" => Some(Card::I82573l),
                "82574l" => Some(Card::I82574l),
                "82574la" => Some(Card::I82574la),
                "82583v" => Some(Card::I82583v),
                _ => None,
            }
        })?;
    let usual = if card.has_msix() { default.vectors } else { 0 };
    let vectors = |text: &str| vectors(text).filter(|count| card.has_msix() || *count == 0);
    let shape = Shape {
        card,
        mac: options.get(
            "mac",
            "an address of one card, as 52:54:00:12:34:56",
            default.mac,
            mac,
        )?,
        nvm: options.get("nvm", "good, bad, flaky or flash", Nvm::Good, |text| match text {
            "good" => Some(Nvm::Good),
            "bad" => Some(Nvm::Bad),
            "flaky" => Some(Nvm::Flaky),
            "flash" => Some(Nvm::Flash),
            _ => None,
        })?,
        port: options.get("port", "0 or 1", 0, |text| number(text).filter(|port| *port < 2))? as u8,
        firmware: options.get("firmware", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        wire: options.get("wire", "test, mirror or cable/NAME", default.wire, wire::shape)?,
        link: options.switch("link", true)?,
        vectors: options.get("vectors", "0 to 5, 0 without MSI-X", usual, vectors)?,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
    };
    Ok((options, shape))
}
