//! Which pair of queues a packet that comes is for: that from which its flow last sent. [virtio
//! 5.1.6.5.5]

/// Flows that are told apart.
const FLOWS: usize = 256;
/// IPv4, IPv6. [IEEE registry of EtherTypes]
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// What the card has seen of each flow.
pub(super) struct Steering {
    /// Pairs that are used.
    used: u16,
    pairs: [u16; FLOWS],
}

impl Default for Steering {
    fn default() -> Self {
        Self { used: 1, pairs: [0; FLOWS] }
    }
}

impl Steering {
    /// Pairs that are used.
    pub(super) fn used(&self) -> u16 {
        self.used
    }

    /// So many are used from now on.
    pub(super) fn use_pairs(&mut self, count: u16) {
        *self = Self { used: count, ..Self::default() };
    }

    /// `frame` was sent from `pair`.
    pub(super) fn sent(&mut self, frame: &[u8], pair: u16) {
        self.pairs[flow(frame)] = pair;
    }

    /// The pair that `frame`, which has come, is for.
    pub(super) fn of(&self, frame: &[u8]) -> u16 {
        self.pairs[flow(frame)].min(self.used - 1)
    }
}

/// The flow of a frame, the same in both directions: of its addresses, and of its ports if it has
/// some.
fn flow(frame: &[u8]) -> usize {
    let at = |from: usize, len: usize| frame.get(from..from + len).unwrap_or_default();
    let (network, ports) = match at(12, 2) {
        kind if kind == IPV4 => {
            let header = at(14, 1).first().map_or(0, |first| usize::from(first & 0xf) * 4);
            (at(26, 8), at(14 + header, 4))
        }
        kind if kind == IPV6 => (at(22, 32), at(54, 4)),
        _ => (at(0, 12), &[][..]),
    };
    // Either end's bytes are added, so that it does not matter which is the source.
    let sum = |bytes: &[u8]| {
        let (one, other) = bytes.split_at(bytes.len() / 2);
        one.iter().zip(other).fold(7usize, |sum, (a, b)| {
            sum.wrapping_mul(31).wrapping_add(usize::from(*a) + usize::from(*b))
        })
    };
    sum(network).wrapping_mul(31).wrapping_add(sum(ports)) % FLOWS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram over IPv4 between these ports.
    fn datagram(from: u16, to: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        (frame[12], frame[13], frame[14]) = (8, 0, 0x45);
        frame[34..36].copy_from_slice(&from.to_be_bytes());
        frame[36..38].copy_from_slice(&to.to_be_bytes());
        frame
    }

    #[test]
    fn an_answer_comes_to_the_pair_that_has_asked_and_others_to_the_first() {
        let mut steering = Steering::default();
        steering.use_pairs(4);
        for pair in 0..4 {
            steering.sent(&datagram(1000 + pair, 7), pair);
        }
        assert_eq!([0, 1, 2, 3].map(|pair| steering.of(&datagram(7, 1000 + pair))), [0, 1, 2, 3]);
        assert_eq!(steering.of(&datagram(7, 2000)), 0);
        steering.use_pairs(2);
        assert_eq!(steering.of(&datagram(7, 1001)), 0);
    }

    #[test]
    fn a_frame_of_any_length_is_of_some_flow() {
        let frame = datagram(1, 2);
        (0..frame.len()).for_each(|len| assert!(flow(&frame[..len]) < FLOWS));
        assert!(flow(&[0xff; 14]) < FLOWS);
    }
}
