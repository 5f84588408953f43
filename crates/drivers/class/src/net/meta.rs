//! Metadata of a packet, in addition to its bytes.

use serde::{Deserialize, Serialize};

use super::{Checksum, Kind, Segmentation};

/// What is known about a packet beside its bytes. The default knows nothing and asks for nothing.
///
/// One word says what is asked for and what is known beside it, so that of a packet that asks for
/// nothing, as most do, one look says so, and one store forgets everything. Numbers count only
/// where it says so.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(from = "Known", into = "Known")]
pub struct Meta {
    /// In its upper half what a card has to do for a packet to be sent, or pieces; in its lower
    /// half what is known.
    word: u32,
    vlan: u16,
    start: u16,
    offset: u16,
    size: u16,
    headers: u16,
    hash: u32,
}

/// What is asked for: all of these.
const ASKS: u32 = 0xffff << 16;
const PARTIAL: u32 = 1 << 16;
const MORE: u32 = 1 << 17;
const TAGGED: u32 = 1 << 18;
/// What is cut, if anything: two bits.
const KIND: u32 = 3 << 19;
const KINDS: [(Kind, u32); 3] =
    [(Kind::Tcp4, 1 << 19), (Kind::Tcp6, 2 << 19), (Kind::Udp, 3 << 19)];
/// What is known. The first is where virtio's header has it.
const VALID: u32 = 1 << 1;
const HASHED: u32 = 1 << 2;
/// Where the header after the Ethernet header begins: eight bits from here on.
const NETWORK: u32 = 8;

impl Meta {
    /// Whether a packet to be sent asks the card for nothing, and is one piece. What was known of
    /// it when it was received asks for nothing.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.word & ASKS == 0
    }

    /// Knows nothing any more.
    #[inline]
    pub fn forget(&mut self) {
        self.word = 0;
    }

    /// Knows nothing any more but whether the checksum was found right.
    #[inline]
    pub fn forget_but_checksum(&mut self, is_valid: bool) {
        self.word = u32::from(is_valid) * VALID;
    }

    /// The same of a card whose flags have [`VALID_BIT`](Self::VALID_BIT) for a checksum that was
    /// found right; no other bit of them counts.
    #[inline]
    pub fn forget_but_valid(&mut self, bits: u32) {
        self.word = bits & VALID;
    }

    /// Of the flags that [`forget_but_valid`](Self::forget_but_valid) takes: the checksum was found
    /// right. It is where virtio's header has it.
    pub const VALID_BIT: u32 = VALID;

    /// The next place of the batch is of this packet, too.
    #[inline]
    pub fn more(&self) -> bool {
        self.word & MORE != 0
    }

    /// Says whether the next place of the batch is of this packet, too.
    #[inline]
    pub fn set_more(&mut self, more: bool) {
        self.word = self.word & !MORE | if more { MORE } else { 0 };
    }

    /// See [`more`](Self::more).
    #[inline]
    pub fn with_more(mut self, more: bool) -> Self {
        self.set_more(more);
        self
    }

    /// Where the header after the Ethernet header begins: 14, or 18 behind a tag in the frame. Only
    /// looked at with [`segmentation`](Self::segmentation).
    #[inline]
    pub fn network(&self) -> u8 {
        (self.word >> NETWORK) as u8
    }

    /// See [`network`](Self::network).
    #[inline]
    pub fn with_network(self, network: u8) -> Self {
        Self { word: self.word & !(0xff << NETWORK) | u32::from(network) << NETWORK, ..self }
    }

    /// The transport's checksum.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        match (self.word & PARTIAL != 0, self.word & VALID != 0) {
            (false, false) => Checksum::Unknown,
            (false, true) => Checksum::Valid,
            (true, _) => Checksum::Partial { start: self.start, offset: self.offset },
        }
    }

    /// See [`checksum`](Self::checksum).
    #[inline]
    pub fn with_checksum(self, checksum: Checksum) -> Self {
        let word = self.word & !(PARTIAL | VALID);
        match checksum {
            Checksum::Unknown => Self { word, ..self },
            Checksum::Valid => Self { word: word | VALID, ..self },
            Checksum::Partial { start, offset } => {
                Self { word: word | PARTIAL, start, offset, ..self }
            }
        }
    }

    /// A packet that stands for several.
    #[inline]
    pub fn segmentation(&self) -> Option<Segmentation> {
        let (kind, _) = KINDS.into_iter().find(|(_, bits)| self.word & KIND == *bits)?;
        Some(Segmentation { kind, size: self.size, headers: self.headers })
    }

    /// See [`segmentation`](Self::segmentation).
    #[inline]
    pub fn with_segmentation(self, segmentation: Option<Segmentation>) -> Self {
        let word = self.word & !KIND;
        let Some(Segmentation { kind, size, headers }) = segmentation else {
            return Self { word, ..self };
        };
        let bits = KINDS.into_iter().find(|(known, _)| *known == kind).map_or(0, |(_, bits)| bits);
        Self { word: word | bits, size, headers, ..self }
    }

    /// The tag (priority and VLAN) that is not in the bytes: taken out by the card, or to be put in
    /// by it.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        (self.word & TAGGED != 0).then_some(self.vlan)
    }

    /// See [`vlan`](Self::vlan).
    #[inline]
    pub fn with_vlan(self, vlan: Option<u16>) -> Self {
        let word = self.word & !TAGGED;
        vlan.map_or(Self { word, ..self }, |vlan| Self { word: word | TAGGED, vlan, ..self })
    }

    /// Received: what the card has made of addresses and ports to choose a queue.
    #[inline]
    pub fn hash(&self) -> Option<u32> {
        (self.word & HASHED != 0).then_some(self.hash)
    }

    /// See [`hash`](Self::hash).
    #[inline]
    pub fn with_hash(self, hash: Option<u32>) -> Self {
        let word = self.word & !HASHED;
        hash.map_or(Self { word, ..self }, |hash| Self { word: word | HASHED, hash, ..self })
    }
}

/// The same with a field for each thing: what is saved, shown and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    more: bool,
    network: u8,
    checksum: Checksum,
    segmentation: Option<Segmentation>,
    vlan: Option<u16>,
    hash: Option<u32>,
}

impl From<Meta> for Known {
    fn from(meta: Meta) -> Self {
        Self {
            more: meta.more(),
            network: meta.network(),
            checksum: meta.checksum(),
            segmentation: meta.segmentation(),
            vlan: meta.vlan(),
            hash: meta.hash(),
        }
    }
}

impl From<Known> for Meta {
    fn from(known: Known) -> Self {
        let Known { more, network, checksum, segmentation, vlan, hash } = known;
        let meta = Self::default().with_more(more).with_network(network).with_checksum(checksum);
        meta.with_segmentation(segmentation).with_vlan(vlan).with_hash(hash)
    }
}

impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        Known::from(*self) == Known::from(*other)
    }
}

impl Eq for Meta {}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Known::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn known() -> impl Strategy<Value = Known> {
        let checksum = prop_oneof![
            Just(Checksum::Unknown),
            Just(Checksum::Valid),
            any::<(u16, u16)>().prop_map(|(start, offset)| Checksum::Partial { start, offset }),
        ];
        let kind = prop_oneof![Just(Kind::Tcp4), Just(Kind::Tcp6), Just(Kind::Udp)];
        let cut = (kind, any::<u16>(), any::<u16>())
            .prop_map(|(kind, size, headers)| Segmentation { kind, size, headers });
        let rest = (any::<bool>(), any::<u8>(), any::<Option<u16>>(), any::<Option<u32>>());
        (checksum, proptest::option::of(cut), rest).prop_map(
            |(checksum, segmentation, (more, network, vlan, hash))| Known {
                more,
                network,
                checksum,
                segmentation,
                vlan,
                hash,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_known_comes_back_as_it_was_said_whatever_was_known_before(
            before in known(), after in known(),
        ) {
            let Known { more, network, checksum, segmentation, vlan, hash } = after;
            let meta =
                Meta::from(before).with_more(more).with_network(network).with_checksum(checksum);
            let meta = meta.with_segmentation(segmentation).with_vlan(vlan).with_hash(hash);
            prop_assert_eq!(Known::from(meta), after);
            prop_assert_eq!(meta, Meta::from(after));
        }

        #[test]
        fn a_packet_is_plain_if_it_asks_for_nothing_and_is_one_piece(known in known()) {
            let asks = known.more
                || matches!(known.checksum, Checksum::Partial { .. })
                || known.segmentation.is_some()
                || known.vlan.is_some();
            prop_assert_eq!(Meta::from(known).is_plain(), !asks);
        }

        #[test]
        fn what_was_forgotten_is_not_known(known in known()) {
            let mut meta = Meta::from(known);
            meta.forget_but_checksum(true);
            prop_assert_eq!(meta, Meta::default().with_checksum(Checksum::Valid));
            meta.forget();
            prop_assert_eq!(meta, Meta::default());
            let mut meta = Meta::from(known);
            meta.forget_but_valid(!Meta::VALID_BIT);
            prop_assert_eq!(meta, Meta::default());
            meta.forget_but_valid(u32::MAX);
            prop_assert_eq!(meta, Meta::default().with_checksum(Checksum::Valid));
        }
    }
}
