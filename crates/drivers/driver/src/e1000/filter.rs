//! What is let through: exact addresses as far as there are places, a hash for further groups,
//! everything for further addresses. [82574 10.2.5]

use std::ops::Range;

use ring3_class::net::{Filter, Mac, Multicast};
use ring3_device::Registers;
use ring3_spec::e1000::receive::{
    self, ADDRESSES, AddressHigh, Control, MULTICAST_WORDS, VLAN_WORDS,
};

/// Exact places that are for unicast addresses, the card's own included; groups have the rest.
pub(super) const UNICAST: usize = 8;
/// Exact places for groups.
pub(super) const GROUPS: usize = ADDRESSES as usize - UNICAST;

/// Writes what is not so in the tables; what RCTL needs beside them.
pub(super) fn program(registers: &Registers, filter: &Filter) -> Control {
    let groups: &[Mac] = match &filter.multicast {
        Multicast::Of(groups) => groups,
        Multicast::All => &[],
    };
    // The card's own address comes first, where the card has it after a reset.
    place(registers, 0..1, &[filter.address]);
    place(registers, 1..UNICAST as u32, &filter.unicast[..filter.unicast.len().min(UNICAST - 1)]);
    place(registers, UNICAST as u32..ADDRESSES, &groups[..groups.len().min(GROUPS)]);
    let hashed = groups.iter().skip(GROUPS).map(|group| receive::multicast_hash(&group.0, 0));
    write_table(MULTICAST_WORDS, hashed, |index, bits| {
        registers.write(receive::multicast(index), bits)
    });
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

/// Has the exact places of `range` hold the `wanted` addresses, and no others. An address that is
/// there stays where it is: frames for it come all the while, and one whose place is written
/// meanwhile is lost.
fn place(registers: &Registers, range: Range<u32>, wanted: &[Mac]) {
    let mut held: Vec<_> = range.map(|index| (index, read_address(registers, index))).collect();
    let mut missing = Vec::new();
    for mac in wanted {
        match held.iter().position(|(_, held)| *held == Some(*mac)) {
            Some(at) => drop(held.swap_remove(at)),
            None => missing.push(*mac),
        }
    }
    // What is left is free: the places that are empty are taken first.
    held.sort_by_key(|&(index, held)| (held.is_some(), index));
    let mut missing = missing.into_iter();
    for (index, held) in held {
        match (missing.next(), held) {
            (None, None) => {}
            (mac, held) => write_address(registers, index, mac, held),
        }
    }
}

pub(super) fn read_address(registers: &Registers, index: u32) -> Option<Mac> {
    let high = registers.read(receive::address_high(index));
    let ([a, b, c, d], [e, f, ..]) =
        (registers.read(receive::address_low(index)).to_le_bytes(), high.0.to_le_bytes());
    (high.valid() != 0).then_some(Mac([a, b, c, d, e, f]))
}

/// Writes an address where `held` is.
fn write_address(registers: &Registers, index: u32, address: Option<Mac>, held: Option<Mac>) {
    let (low, high) = match address {
        Some(Mac([a, b, c, d, e, f])) => (
            u32::from_le_bytes([a, b, c, d]),
            AddressHigh(u32::from_le_bytes([e, f, 0, 0])).with_valid(1),
        ),
        None => (0, AddressHigh(0)),
    };
    if held.is_some() {
        // The place is not valid while its halves differ.
        registers.write(receive::address_high(index), AddressHigh(0));
    }
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
