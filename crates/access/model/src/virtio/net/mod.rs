//! A virtio network card as a model: merged buffers, checksums, cutting, filters by the control
//! queue. [virtio 5.1]
//!
//! # Time
//! A notification is served inside of the write that it is. A frame that comes finds buffers or is
//! lost, and counted.

mod card;
mod control;
mod frame;
mod handle;
mod steering;

pub use card::VirtioNetModel;
pub use handle::InjectedFault;

use ring3_device::{Error, OpenOptions, Uri};
use ring3_spec::virtio::net;

use super::function::Places;
use crate::options::{Options, mac};
use crate::wire::{self, WireShape};
use crate::{SimDevice, SimHandle};

/// A simulated virtio network card.
pub type SimVirtioNet = SimDevice<VirtioNetModel>;
/// The other side of it: its wire, and what goes wrong.
pub type VirtioNetHandle = SimHandle<VirtioNetModel>;

/// The address of a card that nobody gives one.
const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

/// What is fixed when a card is made.
pub(super) struct Shape {
    wire: WireShape,
    /// Its address.
    mac: [u8; 6],
    /// Pairs of queues.
    pairs: u16,
    packed: bool,
    events: bool,
    /// Features that it does not offer.
    without: u64,
    places: Places,
}

/// Features that a user may switch off, by QEMU's words, each with those that need it. [virtio
/// 5.1.3.1]
const FEATURES: [(&str, u64); 8] = [
    ("csum", net::CSUM | net::HOST_TSO4),
    ("guest_csum", net::GUEST_CSUM),
    ("host_tso4", net::HOST_TSO4),
    ("mrg_rxbuf", net::MRG_RXBUF),
    ("status", net::STATUS),
    ("ctrl_vq", net::CTRL_VQ | net::CTRL_RX | net::CTRL_VLAN | net::CTRL_MAC_ADDR | net::MQ),
    ("ctrl_rx", net::CTRL_RX | net::CTRL_VLAN),
    ("ctrl_mac_addr", net::CTRL_MAC_ADDR),
];

/// Pairs of queues, by the word of a user.
fn pairs(text: &str) -> Option<u16> {
    text.parse().ok().filter(|pairs| (1..=8).contains(pairs))
}

/// Opens `sim:virtio-net`.
///
/// Options, besides those of [every model](crate), `delay=` apart: `wire=test` (a test's
/// [handle](VirtioNetHandle); or `mirror`, or `cable/NAME`, as of [an e1000](crate::e1000::open)),
/// `mac=52:54:00:12:34:56`, `queues=1` (pairs of them, up to 8), `packed=off` (offers packed
/// virtqueues), `events=on` (offers to be told by positions), `structures=together` (in BAR 4;
/// `apart`: each in a BAR of its own). `csum`, `guest_csum`, `host_tso4`, `mrg_rxbuf`, `status`,
/// `ctrl_vq`, `ctrl_rx`, `ctrl_mac_addr`: `off` takes that feature away, and those that need it.
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimVirtioNet, Error> {
    let known = ["wire", "mac", "queues", "packed", "events", "structures"]
        .into_iter()
        .chain(FEATURES.map(|(name, _)| name));
    let options = Options::of(uri, "virtio-net", &known.collect::<Vec<_>>())?;
    let mut without = 0;
    for (name, features) in FEATURES {
        without |= if options.switch(name, true)? { 0 } else { features };
    }
    let shape = Shape {
        wire: options.get("wire", "test, mirror or cable/NAME", WireShape::Test, wire::shape)?,
        mac: options.get("mac", "the address of one card, as 52:54:00:12:34:56", MAC, mac)?,
        pairs: options.get("queues", "1 to 8 pairs of queues", 1, pairs)?,
        packed: options.switch("packed", false)?,
        events: options.switch("events", true)?,
        without,
        places: options.get("structures", "together or apart", Places::TOGETHER, Places::named)?,
    };
    if uri.options.contains_key("delay") {
        return Err(Error::Invalid(format!(
            "{uri}: this model has no delay=: a notification is served at once"
        )));
    }
    SimDevice::new(uri.to_string(), VirtioNetModel::new(&shape), &options.platform(asked)?)
}
