//! Who gets a frame.
//!
//! A client is in one VLAN, or in none, and knows nothing of tags. What is for one goes to that
//! client alone, or, if there is none of that address in the sender's VLAN, to the wire; what is
//! for a group goes to the wire and to all others of the VLAN that want it. Nothing goes back to
//! where it came from, and nothing from one VLAN to another but by the wire.

use ring3_class::net::{Filter, Mac, Multicast};

/// Addresses that are for the two ends of a cable, and that no switch passes on: pauses among them.
/// [IEEE 802.1Q 8.6.3, 802.3 31B.1]
const RESERVED: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];
/// EtherTypes of tags, and of what controls a cable. [IEEE 802.1Q 9.6, 802.3 31]
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const CONTROL: u16 = 0x8808;

/// Groups of all clients together that the card is told; beyond them it lets all through.
const GROUPS: usize = 128;

/// Those who may get something.
#[derive(Default)]
pub struct Table(Vec<Entry>);

/// One of them.
pub struct Entry {
    pub seat: usize,
    pub mac: Mac,
    pub vlan: Option<u16>,
    pub groups: Multicast,
}

/// Where a frame goes, and where from.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    pub to: Mac,
    pub vlan: Option<u16>,
    /// The seat of its sender; from the wire if `None`.
    pub from: Option<usize>,
}

impl Table {
    pub fn new(entries: Vec<Entry>) -> Self {
        Self(entries)
    }

    /// Seats that get what goes by `path`.
    pub fn seats(&self, path: Path) -> impl Iterator<Item = usize> {
        self.0.iter().filter(move |entry| entry.takes(path)).map(|entry| entry.seat)
    }

    /// Whether it goes to the wire.
    pub fn goes_out(&self, path: Path) -> bool {
        path.from.is_some()
            && (path.to.is_group()
                || !self.0.iter().any(|entry| entry.vlan == path.vlan && entry.mac == path.to))
    }

    /// What a card with the address `own` lets through for all of them.
    pub fn filter(&self, own: Mac) -> Filter {
        let named = |entry: &Entry| match &entry.groups {
            Multicast::Of(groups) => Some(groups.clone()),
            Multicast::All => None,
        };
        let groups = self
            .0
            .iter()
            .map(named)
            .collect::<Option<Vec<_>>>()
            .map(|groups| each(groups.concat()));
        let multicast =
            groups.filter(|groups| groups.len() <= GROUPS).map_or(Multicast::All, Multicast::Of);
        let vlans = Some(each(self.0.iter().filter_map(|entry| entry.vlan).collect()));
        Filter {
            unicast: self.0.iter().map(|entry| entry.mac).collect(),
            multicast,
            vlans,
            ..Filter::own(own)
        }
    }
}

impl Entry {
    fn takes(&self, Path { to, vlan, from }: Path) -> bool {
        let wanted = match &self.groups {
            _ if to == Mac::BROADCAST => true,
            Multicast::All if to.is_group() => true,
            Multicast::Of(groups) if to.is_group() => groups.contains(&to),
            _ => to == self.mac,
        };
        wanted && self.vlan == vlan && Some(self.seat) != from
    }
}

/// Each of them once.
fn each<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all.dedup();
    all
}

/// Addresses and type of a frame; `None` if it is too short.
pub fn read(frame: &[u8]) -> Option<(Mac, Mac, u16)> {
    let (to, rest) = frame.split_first_chunk()?;
    let (from, rest) = rest.split_first_chunk()?;
    Some((Mac(*to), Mac(*from), u16::from_be_bytes(*rest.first_chunk()?)))
}

/// Where the `frame` of a client with the address `own` is for, if it may send that.
pub fn admit(frame: &[u8], own: Mac) -> Option<Mac> {
    let (to, from, kind) = read(frame)?;
    let passed = from == own
        && !TAGS.contains(&kind)
        && kind != CONTROL
        && !(to.0.starts_with(&RESERVED) && to.0[5] < 0x10);
    passed.then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, last])
    }

    /// Seats 0 and 1 without a VLAN, of which 1 wants the group; 2 and 3 in VLAN 7, of which 3
    /// wants all groups.
    fn table() -> Table {
        let entry = |seat: usize, vlan, groups| Entry { seat, mac: mac(seat as u8), vlan, groups };
        let (none, group) = (Multicast::default(), Multicast::Of(vec![GROUP]));
        Table::new(vec![
            entry(0, None, none.clone()),
            entry(1, None, group),
            entry(2, Some(7), none),
            entry(3, Some(7), Multicast::All),
        ])
    }

    fn way(to: Mac, vlan: Option<u16>, from: Option<usize>) -> (Vec<usize>, bool) {
        let path = Path { to, vlan, from };
        (table().seats(path).collect(), table().goes_out(path))
    }

    #[test]
    fn what_is_for_one_goes_to_that_one_or_to_the_wire() {
        assert_eq!(way(mac(1), None, Some(0)), (vec![1], false));
        assert_eq!(way(mac(9), None, Some(0)), (vec![], true));
        assert_eq!(way(mac(0), None, Some(0)), (vec![], false));
        assert_eq!(way(mac(1), None, None), (vec![1], false));
        assert_eq!(way(mac(9), None, None), (vec![], false));
    }

    #[test]
    fn what_is_for_many_goes_to_all_others_of_the_vlan_that_want_it_and_to_the_wire() {
        assert_eq!(way(Mac::BROADCAST, None, Some(0)), (vec![1], true));
        assert_eq!(way(Mac::BROADCAST, Some(7), None), (vec![2, 3], false));
        assert_eq!(way(GROUP, None, None), (vec![1], false));
        assert_eq!(way(GROUP, Some(7), Some(2)), (vec![3], true));
        assert_eq!(way(Mac([3, 0, 0, 0, 0, 0]), None, Some(0)), (vec![], true));
    }

    #[test]
    fn the_card_lets_through_what_any_of_them_wants() {
        let mut table = table();
        assert_eq!(table.filter(mac(9)).multicast, Multicast::All);
        table.0.pop();
        let filter = table.filter(mac(9));
        assert_eq!((filter.multicast, filter.vlans), (Multicast::Of(vec![GROUP]), Some(vec![7])));
        assert_eq!(filter.unicast, [mac(0), mac(1), mac(2)]);
    }

    #[test]
    fn nothing_goes_from_one_vlan_to_another() {
        assert_eq!(way(mac(2), None, Some(0)), (vec![], true));
        assert_eq!(way(mac(2), Some(8), None), (vec![], false));
        assert_eq!(way(mac(0), Some(7), Some(2)), (vec![], true));
    }

    #[test]
    fn a_client_sends_from_its_own_address_no_tags_and_nothing_that_is_the_cables() {
        let frame =
            |to: Mac, from: Mac, kind: u16| [&to.0[..], &from.0, &kind.to_be_bytes()].concat();
        assert_eq!(admit(&frame(mac(9), mac(1), 0x800), mac(1)), Some(mac(9)));
        assert_eq!(admit(&frame(mac(9), mac(2), 0x800), mac(1)), None);
        for kind in [0x8100, 0x88a8, 0x9100, 0x8808] {
            assert_eq!(admit(&frame(mac(9), mac(1), kind), mac(1)), None);
        }
        assert_eq!(admit(&frame(Mac([1, 0x80, 0xc2, 0, 0, 1]), mac(1), 0x800), mac(1)), None);
        assert_eq!(admit(&frame(mac(9), mac(1), 0x800)[..13], mac(1)), None);
    }
}
