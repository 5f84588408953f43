//! The receive filter of a card.

use serde::{Deserialize, Serialize};

use super::Mac;

/// The EtherType of a VLAN tag.
pub(super) const TAGGED: [u8; 2] = [0x81, 0x00];

/// What a card shall let through: the whole wish, so that setting one needs no memory of the last,
/// and a reset sets it again. What is for everybody always comes through.
///
/// A card lets through all of it. It may let more through where its tables are too small
/// ([`FilterLimits`](super::FilterLimits)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// The card's own address.
    pub address: Mac,
    /// Further addresses of its users.
    pub unicast: Vec<Mac>,
    /// Groups.
    pub multicast: Multicast,
    /// Everything, whoever it is for, with any tag.
    pub promiscuous: bool,
    /// VLANs; `None` is all. What has no tag, or VLAN 0 in it, comes through.
    pub vlans: Option<Vec<u16>>,
}

/// Groups whose packets are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Multicast {
    /// These.
    Of(Vec<Mac>),
    /// All.
    All,
}

impl Default for Multicast {
    fn default() -> Self {
        Self::Of(Vec::new())
    }
}

impl Filter {
    /// What is for `address` and for everybody.
    pub fn own(address: Mac) -> Self {
        Self { address, ..Self::default() }
    }

    /// Whether a `frame` as it is on the wire is wanted.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        let Some(to) = frame.first_chunk().copied().map(Mac) else { return false };
        self.promiscuous || (self.accepts_address(to) && self.accepts_tag(frame))
    }

    fn accepts_address(&self, to: Mac) -> bool {
        match &self.multicast {
            _ if to == Mac::BROADCAST => true,
            Multicast::All if to.is_group() => true,
            Multicast::Of(groups) if to.is_group() => groups.contains(&to),
            _ => to == self.address || self.unicast.contains(&to),
        }
    }

    fn accepts_tag(&self, frame: &[u8]) -> bool {
        let (Some(vlans), Some(&[high, low])) = (&self.vlans, tag(frame)) else { return true };
        let vlan = u16::from_be_bytes([high, low]) & 0xfff;
        vlan == 0 || vlans.contains(&vlan)
    }
}

/// The tag of a frame that has one.
pub(super) fn tag(frame: &[u8]) -> Option<&[u8; 2]> {
    (frame.get(12..14)? == TAGGED).then(|| frame.get(14..16)?.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

    fn frame(to: Mac, vlan: Option<u16>) -> Vec<u8> {
        let mut frame = [&to.0[..], &[2, 0, 0, 0, 0, 9]].concat();
        if let Some(vlan) = vlan {
            frame.extend(TAGGED);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend([8, 0, 1, 2, 3]);
        frame
    }

    #[test]
    fn what_is_for_others_is_not_accepted_unless_everything_is() {
        let mut filter = Filter::own(OWN);
        let other = Mac([2, 0, 0, 0, 0, 2]);
        assert!(filter.accepts(&frame(OWN, None)) && filter.accepts(&frame(Mac::BROADCAST, None)));
        assert!(
            !filter.accepts(&frame(other, None))
                && !filter.accepts(&frame(GROUP, None))
                && !filter.accepts(&[2, 0])
        );
        filter.unicast.push(other);
        assert!(filter.accepts(&frame(other, None)));
        let filter = Filter { promiscuous: true, vlans: Some(Vec::new()), ..Filter::own(OWN) };
        assert!(filter.accepts(&frame(GROUP, Some(7))));
    }

    #[test]
    fn groups_are_accepted_by_name_or_all_of_them() {
        let with = |multicast| Filter { multicast, ..Filter::own(OWN) };
        assert!(with(Multicast::Of(vec![GROUP])).accepts(&frame(GROUP, None)));
        assert!(with(Multicast::All).accepts(&frame(GROUP, None)));
        assert!(!with(Multicast::All).accepts(&frame(Mac([2, 0, 0, 0, 0, 2]), None)));
    }

    #[test]
    fn a_tag_of_another_vlan_is_not_accepted_and_a_priority_alone_is() {
        let filter = Filter { vlans: Some(vec![7]), ..Filter::own(OWN) };
        let accepts = |vlan| filter.accepts(&frame(OWN, vlan));
        assert!(
            accepts(None) && accepts(Some(7)) && accepts(Some(0xe007)) && accepts(Some(0x2000))
        );
        assert!(!accepts(Some(8)));
    }
}
