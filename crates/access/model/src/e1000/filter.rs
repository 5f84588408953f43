//! Which frames are the host's. [82574 7.1.1, 10.2.5]

use ring3_spec::e1000::{general, receive};

use super::store::Store;

/// Bytes of the two addresses.
const ADDRESSES: usize = 12;
const BROADCAST: [u8; 6] = [0xff; 6];

/// Whether `frame` passes, and if so, whether by an exact filter.
pub(super) fn passes(registers: &Store, frame: &[u8]) -> Option<bool> {
    let to: [u8; 6] = frame.get(..6)?.try_into().ok()?;
    vlan_passes(registers, frame).then(|| address_passes(registers, &to)).flatten()
}

fn address_passes(registers: &Store, to: &[u8; 6]) -> Option<bool> {
    let control = registers.get(receive::CONTROL);
    let is_group = to[0] & 1 != 0;
    if *to == BROADCAST && control.broadcast() != 0
        || (0..receive::ADDRESSES).any(|index| is_address(registers, index, to))
    {
        return Some(true);
    }
    if is_group && in_table(registers, to, control.multicast_offset()) {
        return Some(false);
    }
    let promiscuous =
        if is_group { control.multicast_promiscuous() } else { control.unicast_promiscuous() };
    (promiscuous != 0).then_some(false)
}

fn is_address(registers: &Store, index: u32, to: &[u8; 6]) -> bool {
    let (low, high) =
        (registers.get(receive::address_low(index)), registers.get(receive::address_high(index)));
    let bytes = u64::from_le_bytes([to[0], to[1], to[2], to[3], to[4], to[5], 0, 0]);
    high.valid() != 0 && u64::from(high.bytes()) << 32 | u64::from(low) == bytes
}

fn in_table(registers: &Store, to: &[u8; 6], offset: u32) -> bool {
    let bit = receive::multicast_hash(to, offset);
    registers.get(receive::multicast(bit / 32)) >> (bit % 32) & 1 != 0
}

fn vlan_passes(registers: &Store, frame: &[u8]) -> bool {
    match tag(registers, frame) {
        Some(tag) if registers.get(receive::CONTROL).vlan_filter() != 0 => {
            let id = u32::from(tag) & 0xfff;
            registers.get(receive::vlans(id / 32)) >> (id % 32) & 1 != 0
        }
        _ => true,
    }
}

/// The frame's VLAN tag, if its type is VET's.
pub(super) fn tag(registers: &Store, frame: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    (word(ADDRESSES)? == registers.get(general::VLAN_TYPE) as u16)
        .then(|| word(ADDRESSES + 2))
        .flatten()
}

/// Takes the tag out of a frame that has one.
pub(super) fn strip(frame: &mut Vec<u8>) {
    frame.drain(ADDRESSES..ADDRESSES + 4);
}

/// Puts a tag into a frame.
pub(super) fn insert(registers: &Store, frame: &mut Vec<u8>, tag: u16) {
    let kind = registers.get(general::VLAN_TYPE) as u16;
    let bytes = [kind.to_be_bytes(), tag.to_be_bytes()].concat();
    frame.splice(ADDRESSES..ADDRESSES, bytes);
}
