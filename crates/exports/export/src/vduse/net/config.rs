//! A card's description as a virtio card's: features and configuration. [virtio 5.1.3, 5.1.4]

use ring3_class::net::Info;
use ring3_spec::virtio::net;
use ring3_vduse::features;

/// Entries of each ring.
pub const DEPTH: u16 = 256;

/// What the driver is offered. No control queue, which the kernel refuses, and so one pair of
/// queues.
pub fn features(card: &Info) -> u64 {
    let (able, cuts) = (card.offloads, card.offloads.tx_checksum && card.max_segmented > 0);
    let offered = [
        (
            true,
            features::ALL
                | net::MAC
                | net::STATUS
                | net::MRG_RXBUF
                | net::GUEST_CSUM
                | net::GUEST_TSO4
                | net::GUEST_TSO6,
        ),
        (able.tx_checksum, net::CSUM),
        (cuts && able.tso4, net::HOST_TSO4),
        (cuts && able.tso6, net::HOST_TSO6),
    ];
    offered.into_iter().filter(|(has, _)| *has).fold(0, |all, (_, feature)| all | feature)
}

/// The configuration, without a link.
pub fn config(card: &Info) -> [u8; net::CONFIG_LEN as usize] {
    let mut bytes = [0; net::CONFIG_LEN as usize];
    bytes[..6].copy_from_slice(&card.mac.0);
    bytes[8..10].copy_from_slice(&1u16.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use ring3_class::net::{Cable, Nic, Offloads};

    use super::*;

    #[test]
    fn nothing_is_cut_without_checksums_and_there_is_no_control_queue() {
        let plain = Cable::new(4096).unwrap().1.info().clone();
        let none = Info { offloads: Offloads::default(), ..plain.clone() };
        assert_eq!(
            features(&none)
                & (net::CSUM | net::HOST_TSO4 | net::HOST_TSO6 | net::CTRL_VQ | net::MQ),
            0
        );
        let able = Offloads { tx_checksum: true, tso4: true, tso6: true, ..Offloads::default() };
        let card = Info { offloads: able, max_segmented: 65535, ..plain };
        let wanted = net::CSUM | net::HOST_TSO4 | net::HOST_TSO6;
        assert_eq!(features(&card) & wanted, wanted);
        let cannot = Info { offloads: Offloads { tx_checksum: false, ..able }, ..card };
        assert_eq!(features(&cannot) & wanted, 0);
    }
}
