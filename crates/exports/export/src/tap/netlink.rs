//! What the kernel knows of the interface, by rtnetlink: asked, set, and when to ask again.
//! [rtnetlink(7)]
//!
//! # Why not otherwise
//! `SIOCGIFFLAGS` hides that a program listens to everything (a capture, a bridge), `/sys` may be
//! of another network namespace, and addresses of groups and of what is stacked on the interface
//! are told by a dump of its forwarding entries alone. What a notification says is not looked at:
//! it is the reason to ask, whatever was lost of them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use ring3_class::net::Mac;

/// Groups that say when something may have changed: links, forwarding entries, addresses of both
/// versions of IP. [linux/rtnetlink.h]
const GROUPS: [u32; 4] = [1, 3, 5, 9];
/// Groups joined and left, of both versions of IP: Linux 6.14 and later. [linux/rtnetlink.h]
const JOINED: [u32; 2] = [37, 38];
/// Bytes of answers that are taken at once: more than the kernel ever writes.
const ANSWER: usize = 64 << 10;

/// What users of an interface want of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedSettings {
    /// Its address.
    pub address: Mac,
    /// Most bytes of a packet without its Ethernet header.
    pub mtu: u32,
    /// Somebody has set it up.
    pub up: bool,
    /// Somebody wants every packet.
    pub promiscuous: bool,
    /// Somebody wants every packet to groups.
    pub all_groups: bool,
    /// Further addresses of its users.
    pub unicast: Vec<Mac>,
    /// Groups that were joined.
    pub groups: Vec<Mac>,
}

/// What the kernel has counted of an interface since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// It has a carrier.
    pub carrier: bool,
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Received packets for which there was no place.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that were not sent.
    pub tx_dropped: u64,
}

/// A socket to ask by.
pub struct Netlink {
    socket: Socket,
    /// Where answers come.
    answer: RefCell<Box<[u8]>>,
}

/// A socket that is readable when there may be something new.
pub struct Changes(Socket);

impl Netlink {
    /// In the network namespace of the calling thread.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, answer: RefCell::new(vec![0; ANSWER].into()) })
    }

    /// What is wanted of the interface `index`; ENODEV if it is gone.
    pub fn requested_settings(&self, index: u32) -> io::Result<RequestedSettings> {
        let mut requested = RequestedSettings::default();
        // The kernel would add its figures up over all processors.
        let bare = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
        self.ask(
            RouteNetlinkMessage::GetLink(link(index, vec![bare])),
            NLM_F_ACK,
            &mut |answer| {
                if let RouteNetlinkMessage::NewLink(link) = answer {
                    requested.read_link(link);
                }
            },
        )?;
        let mut all = NeighbourMessage::default();
        all.header.family = AddressFamily::Bridge;
        self.ask(RouteNetlinkMessage::GetNeighbour(all), NLM_F_DUMP, &mut |answer| {
            if let RouteNetlinkMessage::NewNeighbour(entry) = answer {
                requested.read_entry(index, entry);
            }
        })?;
        for addresses in [&mut requested.unicast, &mut requested.groups] {
            addresses.sort_unstable();
            addresses.dedup();
        }
        Ok(requested)
    }

    /// The number of the interface `name` of the calling thread's namespace; ENODEV if there is
    /// none.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(index(name)?)
    }

    /// Number and name of the interface that the kernel has made of the virtio device `device`.
    pub fn made_of(&self, device: &str) -> io::Result<Option<(u32, String)>> {
        let mut found = None;
        self.ask(RouteNetlinkMessage::GetLink(link(0, Vec::new())), NLM_F_DUMP, &mut |answer| {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                found = name_if_made_of(device, &link)
                    .map(|name| (link.header.index, name))
                    .or(found.take());
            }
        })?;
        Ok(found)
    }

    /// What has gone through the interface `index`; ENODEV if it is gone.
    pub fn figures(&self, index: u32) -> io::Result<InterfaceCounters> {
        let mut figures = InterfaceCounters::default();
        self.ask(
            RouteNetlinkMessage::GetLink(link(index, Vec::new())),
            NLM_F_ACK,
            &mut |answer| {
                if let RouteNetlinkMessage::NewLink(link) = answer {
                    figures.read_link(link);
                }
            },
        )?;
        Ok(figures)
    }

    /// Sets the interface's MTU. It needs CAP_NET_ADMIN.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> io::Result<()> {
        self.set(index, LinkAttribute::Mtu(mtu))
    }

    /// Sets how long a packet may be that the card cuts. It needs CAP_NET_ADMIN.
    pub fn set_longest(&self, index: u32, bytes: u32) -> io::Result<()> {
        self.set(index, LinkAttribute::GsoMaxSize(bytes))
    }

    fn set(&self, index: u32, attribute: LinkAttribute) -> io::Result<()> {
        self.ask(RouteNetlinkMessage::SetLink(link(index, vec![attribute])), NLM_F_ACK, &mut |_| {})
    }

    /// Sends `question` and handles its answers, up to their end. An answer that cannot be read is
    /// left out: newer kernels say more.
    fn ask(
        &self,
        question: RouteNetlinkMessage,
        flags: u16,
        handle: &mut dyn FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::from(question);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = self.answer.borrow_mut();
        loop {
            let length = match self.socket.recv(&mut &mut answer[..], 0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            let mut rest = &answer[..length];
            while let Some(size) = rest
                .first_chunk()
                .map(|&size| u32::from_ne_bytes(size) as usize)
                .filter(|&size| size >= 16)
            {
                let (one, others) = rest.split_at(size.min(rest.len()));
                rest = &others[others.len().min(size.next_multiple_of(4) - size)..];
                match NetlinkMessage::<RouteNetlinkMessage>::deserialize(one)
                    .map(|message| message.payload)
                {
                    Ok(NetlinkPayload::Done(_)) => return Ok(()),
                    Ok(NetlinkPayload::Error(error)) if error.code.is_none() => return Ok(()),
                    Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                    Ok(NetlinkPayload::InnerMessage(message)) => handle(message),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "an answer of the kernel's cannot be read")
                    }
                }
            }
        }
    }
}

impl InterfaceCounters {
    fn read_link(&mut self, link: LinkMessage) {
        for attribute in link.attributes {
            match attribute {
                // The flag would be of an interface that is up.
                LinkAttribute::Carrier(carrier) => self.carrier = carrier != 0,
                LinkAttribute::Stats64(stats) => {
                    (self.rx_packets, self.rx_bytes, self.rx_dropped) =
                        (stats.rx_packets, stats.rx_bytes, stats.rx_dropped);
                    (self.tx_packets, self.tx_bytes, self.tx_dropped) =
                        (stats.tx_packets, stats.tx_bytes, stats.tx_dropped);
                }
                _ => {}
            }
        }
    }
}

impl RequestedSettings {
    fn read_link(&mut self, link: LinkMessage) {
        self.up = link.header.flags.contains(LinkFlags::Up);
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => self.address = mac(&bytes).unwrap_or(self.address),
                LinkAttribute::Mtu(mtu) => self.mtu = mtu,
                LinkAttribute::Promiscuity(count) => self.promiscuous = count > 0,
                LinkAttribute::AllMulticast(count) => self.all_groups = count > 0,
                _ => {}
            }
        }
        // Before Linux 6.0 nobody counts; the flag is of who has set it by hand.
        self.all_groups |= link.header.flags.contains(LinkFlags::Allmulti);
    }

    fn read_entry(&mut self, index: u32, entry: NeighbourMessage) {
        if entry.header.ifindex != index {
            return;
        }
        for attribute in entry.attributes {
            if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute
                && let Some(address) = mac(&bytes)
            {
                if address.is_group() {
                    self.groups.push(address)
                } else {
                    self.unicast.push(address)
                }
            }
        }
    }
}

impl Changes {
    /// In the network namespace of the calling thread.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        GROUPS.iter().try_for_each(|&group| socket.add_membership(group))?;
        // An older kernel has none: its groups are asked for now and then.
        let _ = JOINED.iter().try_for_each(|&group| socket.add_membership(group));
        Ok(Self(socket))
    }

    /// Forgets what was said so far. That some was lost for want of room is as good as a word.
    pub fn drain(&self) {
        let mut bytes = [0; 4096];
        let lost = |error: io::Error| error.raw_os_error() == Some(libc::ENOBUFS);
        while self.0.recv(&mut &mut bytes[..], 0).map_or_else(lost, |_| true) {}
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What an interface is called, if it was made of that device of the virtio bus.
fn name_if_made_of(device: &str, link: &LinkMessage) -> Option<String> {
    let has = |wanted: LinkAttribute| link.attributes.contains(&wanted);
    let is_its = has(LinkAttribute::ParentDevName(device.into()))
        && has(LinkAttribute::ParentDevBusName("virtio".into()));
    let name = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    };
    link.attributes.iter().find_map(name).filter(|_| is_its)
}

fn link(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut link = LinkMessage::default();
    (link.header.index, link.attributes) = (index, attributes);
    link
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

/// The number of the interface `name` in the network namespace of the calling thread.
pub fn index(name: &str) -> rustix::io::Result<u32> {
    let any = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    rustix::net::netdevice::name_to_index(&any, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_known_and_what_is_not_there_is_no_device() {
        let netlink = Netlink::new().unwrap();
        let requested = netlink.requested_settings(1).unwrap();
        assert!(requested.mtu >= 1500 && requested.address == Mac::default(), "{requested:?}");
        let gone = netlink.requested_settings(i32::MAX as u32).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENODEV));
    }
}
