//! Filters, and the commands that set them. [virtio 5.1.6.5]

use std::collections::BTreeSet;

use ring3_spec::virtio::net;

type Mac = [u8; 6];

/// What the card lets through.
pub(super) struct Filter {
    pub(super) address: Mac,
    unicast: Vec<Mac>,
    groups: Vec<Mac>,
    promiscuous: bool,
    all_groups: bool,
    vlans: BTreeSet<u16>,
    features: u64,
}

impl Filter {
    /// Of a card that was made with `address` and offers `features`: without commands for filters
    /// it lets everything through, as QEMU's does.
    pub(super) fn new(address: Mac, features: u64) -> Self {
        let promiscuous = features & net::CTRL_RX == 0;
        Self {
            address,
            unicast: Vec::new(),
            groups: Vec::new(),
            promiscuous,
            all_groups: false,
            vlans: BTreeSet::new(),
            features,
        }
    }

    /// Does a command; false if it is none.
    pub(super) fn command(&mut self, command: &[u8]) -> bool {
        let Some((&[class, what], data)) = command.split_first_chunk() else { return false };
        match (class, what, data) {
            (net::CONTROL_RX, ..) | (net::CONTROL_MAC, net::MAC_TABLE_SET, _)
                if self.features & net::CTRL_RX == 0 =>
            {
                return false;
            }
            (net::CONTROL_MAC, net::MAC_ADDR_SET, _) if self.features & net::CTRL_MAC_ADDR == 0 => {
                return false;
            }
            (net::CONTROL_RX, net::RX_PROMISCUOUS, &[on]) => self.promiscuous = on != 0,
            (net::CONTROL_RX, net::RX_ALL_MULTICAST, &[on]) => self.all_groups = on != 0,
            (net::CONTROL_MAC, net::MAC_ADDR_SET, data) => match data.try_into() {
                Ok(address) => self.address = address,
                Err(_) => return false,
            },
            (net::CONTROL_MAC, net::MAC_TABLE_SET, data) => {
                let Some((unicast, rest)) = table(data) else { return false };
                let Some((groups, &[])) = table(rest) else { return false };
                (self.unicast, self.groups) = (unicast, groups);
            }
            (net::CONTROL_VLAN, net::VLAN_ADD, &[low, high]) => {
                let _ = self.vlans.insert(u16::from_le_bytes([low, high]));
            }
            (net::CONTROL_VLAN, net::VLAN_DEL, &[low, high]) => {
                let _ = self.vlans.remove(&u16::from_le_bytes([low, high]));
            }
            _ => return false,
        }
        true
    }

    pub(super) fn accepts(&self, frame: &[u8]) -> bool {
        let (Some(to), Some(kind)) = (frame.first_chunk::<6>(), frame.get(12..14)) else {
            return false;
        };
        if self.promiscuous {
            return true;
        }
        // No VLAN that was added means that none is filtered by.
        if let (&[0x81, 0x00], Some(&[high, low])) = (kind, frame.get(14..16))
            && !self.vlans.is_empty()
        {
            let vlan = u16::from_be_bytes([high, low]) & 0xfff;
            if vlan != 0 && !self.vlans.contains(&vlan) {
                return false;
            }
        }
        match to[0] & 1 {
            0 => *to == self.address || self.unicast.contains(to),
            _ => *to == [0xff; 6] || self.all_groups || self.groups.contains(to),
        }
    }
}

/// A table of addresses behind its length, and what follows it. [virtio 5.1.6.5.2]
fn table(data: &[u8]) -> Option<(Vec<Mac>, &[u8])> {
    let (count, rest) = data.split_first_chunk()?;
    let bytes = (u32::from_le_bytes(*count) as usize).checked_mul(6)?;
    let (addresses, rest) = rest.split_at_checked(bytes)?;
    Some((addresses.as_chunks().0.to_vec(), rest))
}
