//! Who may do what with a card: a socket, and what everyone who connects to it gets.

use std::path::PathBuf;
use std::str::FromStr;

use ring3_class::Error;
use ring3_class::net::{FilterLimits, Info, Mac, Offloads};

use super::super::terms::{SocketOption, parse};

/// A socket and its terms: `PATH[,KEY=VALUE]...`. Limits are each client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where to connect.
    pub path: PathBuf,
    /// The file's rights: who may connect.
    pub mode: u32,
    /// Clients at the same time; 1 with an address, and 8 without, if `None`.
    pub clients: Option<u16>,
    /// The address of its client; made from the card's if `None`.
    pub mac: Option<Mac>,
    /// The VLAN that its clients are in, which know nothing of it; frames without tags if `None`.
    pub vlan: Option<u16>,
    /// Packets sent in a second.
    pub pps: Option<u64>,
    /// Bytes sent in a second.
    pub rate: Option<u64>,
    /// Buffers of a queue each way.
    pub depth: u16,
    /// Bytes of memory for packets.
    pub memory: u64,
    /// Its part of the card where several want to send, 1 to 100.
    pub weight: u16,
}

/// Keys, for messages.
const KEYS: &str = "mode, clients, mac, vlan, pps (packets in a second), rate (bytes in a second), \
                    depth, memory, weight";

impl Access {
    /// Frames without tags, for this user.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: 0o600,
            clients: None,
            mac: None,
            vlan: None,
            pps: None,
            rate: None,
            depth: 256,
            memory: 16 << 20,
            weight: 1,
        }
    }

    /// Clients at the same time.
    pub fn places(&self) -> u16 {
        self.clients.unwrap_or(if self.mac.is_some() { 1 } else { 8 })
    }

    fn set(&mut self, term: SocketOption<'_>) -> Result<(), String> {
        match term.key {
            "mode" => self.mode = term.mode()?,
            "clients" => self.clients = Some(term.number(1, 64)? as u16),
            "mac" => {
                let mac: Mac = term.value.parse()?;
                if mac.is_group() || mac == Mac::default() {
                    return Err(term.wrong(
                        "the address of one card: the second digit is even, and not all are 0",
                    ));
                }
                self.mac = Some(mac);
            }
            "vlan" => self.vlan = Some(term.number(1, 4094)? as u16),
            "pps" => self.pps = Some(term.number(1, 1 << 32)?),
            "rate" => self.rate = Some(term.number(1, 1 << 40)?),
            "depth" => self.depth = term.number(8, 1024)? as u16,
            "memory" => self.memory = term.number(1 << 16, 1 << 31)?,
            "weight" => self.weight = term.number(1, 100)? as u16,
            _ => return Err(term.unknown(KEYS)),
        }
        match (self.mac, self.clients) {
            (Some(_), Some(clients)) if clients > 1 => {
                Err("mac= names one client's address: give it clients=1, or each its own socket"
                    .into())
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, Self::new, Self::set)
    }
}

/// What a client of an [`Access`] gets of one card.
pub struct CardGrant {
    pub access: Access,
    /// The card as it sees it, but for the address.
    pub info: Info,
    /// Addresses of its places.
    pub addresses: Vec<Mac>,
}

/// Groups that are told apart for a client; who wants more gets all.
pub const GROUPS: usize = 64;
/// Most pieces of a packet of a client's.
pub const MAX_PIECES: u16 = 32;

/// The grants of `accesses` on the card that `info` describes, opened with `mtu`; `mapped` as it
/// reaches clients' memory. [`Error::Invalid`] if two places have one address.
pub fn grants(
    accesses: Vec<Access>,
    info: &Info,
    mtu: u32,
    mapped: bool,
) -> Result<Vec<CardGrant>, Error> {
    let mut seat = 0;
    let grants: Vec<_> = accesses
        .into_iter()
        .map(|access| {
            let places = usize::from(access.places());
            let addresses = (seat..seat + places)
                .map(|seat| access.mac.unwrap_or_else(|| made(info.mac, seat)))
                .collect();
            seat += places;
            CardGrant { info: part(info, &access, mtu, mapped), access, addresses }
        })
        .collect();
    let mut all: Vec<_> = grants.iter().flat_map(|grant| &grant.addresses).collect();
    all.sort();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Invalid(format!(
            "two clients would have the address {}: give each its own mac=",
            pair[0]
        ))),
        None => Ok(grants),
    }
}

/// The address of a place, made from the card's: locally administered, and another one for each
/// place and for cards of one maker. [IEEE 802 8.4]
fn made(card: Mac, seat: usize) -> Mac {
    let [first, second, third, rest @ ..] = card.0;
    let ([high, low], [a, b, c]) = ((seat as u16).wrapping_add(1).to_be_bytes(), rest);
    Mac([first & !1 | 2, second ^ high, third ^ low, a, b, c])
}

/// What of a card its clients have.
fn part(card: &Info, access: &Access, mtu: u32, mapped: bool) -> Info {
    let can = card.offloads;
    let cuts = mapped && can.tx_checksum && card.max_segmented > 0;
    let (tso4, tso6) = (cuts && can.tso4, cuts && can.tso6);
    Info {
        mtu: (card.mtu.0.min(mtu), mtu),
        max_queues: 1,
        max_depth: (access.depth, access.depth),
        headroom: 0,
        max_pieces: if mapped { (card.max_pieces - 1).min(MAX_PIECES) } else { MAX_PIECES },
        receives_pieces: true,
        // A tag is put before what is cut.
        max_segmented: if tso4 || tso6 { card.max_segmented.saturating_sub(4) } else { 0 },
        counts_missed: true,
        offloads: Offloads {
            tx_checksum: can.tx_checksum,
            rx_checksum: can.rx_checksum || can.tx_checksum,
            tso4,
            tso6,
            coalescing: can.coalescing || tso4 || tso6,
            ..Offloads::default()
        },
        filters: FilterLimits { unicast: 1, multicast: GROUPS as u16, vlan: false },
        shared: true,
        ..card.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::net::{Cable, Nic};

    fn granted(terms: &[&str]) -> Result<Vec<CardGrant>, Error> {
        let accesses = terms.iter().map(|terms| format!("/a{terms}").parse().unwrap()).collect();
        grants(accesses, Cable::new(4096).unwrap().1.info(), 1500, true)
    }

    #[test]
    fn terms_stand_behind_the_path() {
        let access: Access =
            "/run/a,mac=02:00:00:00:00:07,vlan=7,pps=100,rate=10M,depth=8,mode=660"
                .parse()
                .unwrap();
        let mac = Some(Mac([2, 0, 0, 0, 0, 7]));
        let limits =
            Access { pps: Some(100), rate: Some(10 << 20), depth: 8, ..Access::new("/run/a") };
        assert_eq!(access, Access { mode: 0o660, mac, vlan: Some(7), ..limits });
        assert_eq!(access.places(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("/a,mac=01:00:00:00:00:07", "one card"),
            ("/a,mac=7", "no Ethernet address"),
            ("/a,mac=02:00:00:00:00:07,clients=2", "clients=1"),
            ("/a,clients=2,mac=02:00:00:00:00:07", "clients=1"),
            ("/a,vlan=4095", "from 1 to 4094"),
            ("/a,iops=1", "there are: mode"),
        ] {
            let error = text.parse::<Access>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn every_place_has_an_address_of_its_own_that_is_nobodys_by_right() {
        let grants =
            granted(&[",clients=64", ",clients=64,vlan=7", ",clients=64", ",clients=64"]).unwrap();
        let card = Cable::new(4096).unwrap().1.info().mac;
        let all: Vec<_> = grants.iter().flat_map(|grant| &grant.addresses).collect();
        assert!(all.len() == 256 && all.iter().all(|mac| mac.0[0] & 3 == 2 && **mac != card));
    }

    #[test]
    fn one_address_for_two_is_refused() {
        let error = granted(&[",mac=02:00:00:00:00:07", ",vlan=2,mac=02:00:00:00:00:07"])
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("02:00:00:00:00:07"), "{error}");
    }
}
