//! What a card is, out of its features and its configuration. [virtio 5.1.3, 5.1.4]

use std::sync::Arc;

use ring3_class::net::{FilterLimits, Info, Mac, Offloads};
use ring3_device::Error;
use ring3_device::irq::Irq;
use ring3_spec::register::{Reg, Ro};
use ring3_spec::virtio::net;

use super::super::transport::Transport;
use super::card::MAX_DEPTH;
use super::control::MAX_ADDRESSES;
use super::header::HEADROOM;
use super::pairs::MAX_PAIRS;

/// The largest MTU of a card that names none.
const MTU: u32 = 9000;
/// The smallest MTU. [RFC 791]
const MIN_MTU: u32 = 68;
/// Most pieces of a packet: 64 KiB in pages, and headers.
const MAX_PIECES: u16 = 18;
/// The longest packet of IP, and its Ethernet header.
const MAX_SEGMENTED: u32 = 65535 + 14;

/// What the card behind `transport` is, with `features`.
pub(super) fn describe(transport: &Transport, features: u64) -> Result<Info, Error> {
    let has = |feature: u64| features & feature != 0;
    let [rx, tx] = [receive(0), transmit(0)].map(|queue| transport.queue_size(queue));
    if rx < 2 || tx < 2 || !rx.is_power_of_two() || !tx.is_power_of_two() {
        return Err(Error::Protocol(format!("queues of {rx} and {tx} entries")));
    }
    let mtu = if has(net::MTU) { u32::from(transport.config(net::CONFIG_MTU)) } else { MTU };
    if mtu < MIN_MTU {
        return Err(Error::Protocol(format!("an MTU of {mtu} at most")));
    }
    let addresses = if has_filters(features) { MAX_ADDRESSES as u16 } else { 0 };
    let tso = |feature| has(net::CSUM) && has(feature);
    Ok(Info {
        model: "virtio network card".into(),
        mac: Mac(std::array::from_fn(|at| {
            transport.config(Reg::<u8, Ro>::at(net::CONFIG_MAC + at as u32))
        })),
        mtu: (MIN_MTU, mtu),
        max_queues: 1,
        max_depth: (rx.min(MAX_DEPTH), tx.min(MAX_DEPTH)),
        headroom: HEADROOM,
        max_pieces: max_pieces(tx),
        receives_pieces: has(net::MRG_RXBUF),
        max_segmented: if tso(net::HOST_TSO4) || tso(net::HOST_TSO6) { MAX_SEGMENTED } else { 0 },
        counts_missed: false,
        offloads: Offloads {
            tx_checksum: has(net::CSUM),
            rx_checksum: has(net::GUEST_CSUM),
            tso4: tso(net::HOST_TSO4),
            tso6: tso(net::HOST_TSO6),
            ..Offloads::default()
        },
        filters: FilterLimits { unicast: addresses, multicast: addresses, vlan: false },
        shared: false,
    })
}

/// The queue that pair `pair` receives with. [virtio 5.1.2]
pub(super) fn receive(pair: u16) -> u16 {
    2 * pair
}

/// The queue that pair `pair` sends with. [virtio 5.1.2]
pub(super) fn transmit(pair: u16) -> u16 {
    2 * pair + 1
}

/// Whether commands can be given.
pub(super) fn has_control(features: u64) -> bool {
    features & net::CTRL_VQ != 0
}

/// Whether those of filters can.
pub(super) fn has_filters(features: u64) -> bool {
    has_control(features) && features & net::CTRL_RX != 0
}

/// How many pairs the card has, of which it uses as many as it is told to; one without the feature.
/// [virtio 5.1.4]
pub(super) fn card_pairs(transport: &Transport, features: u64) -> Result<u16, Error> {
    if features & net::MQ == 0 {
        return Ok(1);
    }
    match transport.config(net::CONFIG_MAX_PAIRS) {
        pairs @ 1..=0x8000 if has_control(features) || pairs == 1 => Ok(pairs.min(0x4000)),
        pairs @ 1..=0x8000 => Err(Error::Unsupported(format!(
            "{pairs} pairs of queues, and no control queue to say how many are used"
        ))),
        pairs => Err(Error::Protocol(format!("{pairs} pairs of queues"))),
    }
}

/// How many pairs can be opened: each has an interrupt of its own, if there are `vectors`.
pub(super) fn max_queues(card_pairs: u16, vectors: Option<&[Arc<Irq>]>) -> u16 {
    let signalled = vectors.map_or(MAX_PAIRS, |vectors| vectors.len().saturating_sub(1) as u16);
    card_pairs.min(MAX_PAIRS).min(signalled).max(1)
}

/// Most pieces of a packet, for a queue of `tx` entries.
pub(super) fn max_pieces(tx: u16) -> u16 {
    MAX_PIECES.min(tx)
}
