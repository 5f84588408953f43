//! What is let through: exact addresses as far as there are places, a hash for further groups, everything for further addresses. [82574 10.2.5]

use ring3_class::net::{Filter, Mac, Multicast};
use ring3_device::Registers;
use ring3_spec::e1000::receive::{self, ADDRESSES, AddressHigh, Control, MULTICAST_WORDS, VLAN_WORDS};

/// Exact places that are for unicast addresses, the card's own included; groups have the rest.
pub(super) const UNICAST: usize = 8;
/// Exact places for groups.
pub(super) const GROUPS: usize = ADDRESSES as usize - UNICAST;

/// Writes the tables; what RCTL needs beside them.
pub(super) fn program(registers: &Registers, filter: &Filter) -> Control {
    let groups: &[Mac] = match &filter.multicast {
        Multicast::Of(groups) => groups,
        Multicast::All => &[],
    };
    let unicast = [filter.address].into_iter().chain(filter.unicast.iter().copied());
    let exact: Vec<Mac> = unicast.take(UNICAST).chain(groups.iter().copied().take(GROUPS)).collect();
    (0..).zip(0..ADDRESSES).for_each(|(place, index)| write_address(registers, index, exact.get(place as usize)));
    let hashed = groups.iter().skip(GROUPS).map(|group| receive::multicast_hash(&group.0, 0));
    write_table(MULTICAST_WORDS, hashed, |index, bits| registers.write(receive::multicast(index), bits));
    let vlans = filter.vlans.iter().flatten().map(|vlan| u32::from(vlan & 0xfff)).chain([0]);
    write_table(VLAN_WORDS, vlans, |index, bits| registers.write(receive::vlans(index), bits));
    let all_unicast = filter.promiscuous || filter.unicast.len() >= UNICAST;
    let all_groups = filter.promiscuous || filter.multicast == Multicast::All;
    Control(0)
        .with_broadcast(1)
        .with_unicast_promiscuous(all_unicast.into())
        .with_multicast_promiscuous(all_groups.into())
        .with_vlan_filter((filter.vlans.is_some() && !filter.promiscuous).into())
}

fn write_address(registers: &Registers, index: u32, address: Option<&Mac>) {
    let (low, high) = match address {
        Some(Mac([a, b, c, d, e, f])) => {
            (u32::from_le_bytes([*a, *b, *c, *d]), AddressHigh(u32::from_le_bytes([*e, *f, 0, 0])).with_valid(1))
        }
        None => (0, AddressHigh(0)),
    };
    // The place is not valid while its halves differ.
    registers.write(receive::address_high(index), AddressHigh(0));
    registers.write(receive::address_low(index), low);
    registers.write(receive::address_high(index), high);
}

/// Writes a table of one bit for each of 32 times `words` numbers.
fn write_table(words: u32, bits: impl Iterator<Item = u32>, write: impl Fn(u32, u32)) {
    let mut table = vec![0u32; words as usize];
    for bit in bits {
        if let Some(word) = table.get_mut((bit / 32) as usize) {
            *word |= 1 << (bit % 32);
        }
    }
    (0..).zip(table).for_each(|(index, bits)| write(index, bits));
}
