//! The far end of a cable that speaks TCP: it takes what is sent to it, and sends as fast as is
//! taken.
//!
//! The stack is smoltcp, without congestion control: a cable loses nothing. It behaves as a host
//! whose card cuts packets and whose kernel puts segments together: it counts up IPv4's
//! identification, and looks at what has come in batches, for each of which it says once what it
//! has. Answers to single segments would have the sender send single ones, too.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use ring3_class::net::{Mac, sum};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration as Span, Instant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use super::frame::{answer_ping, is_udp};
use super::wire::{End, Wire};
use crate::Error;

/// Where bytes are taken, of four connections at a time, and where they come from.
pub const SINK: u16 = 4009;
pub const SOURCE: u16 = 4010;

/// Bytes that a connection keeps each way.
const ROOM: usize = 1 << 20;
/// Bytes of a frame without its check sequence.
const FRAME: usize = 1514;
/// When what the cable has not taken is tried again.
const RETRY: Duration = Duration::from_micros(100);
/// What has come is answered together, as by a host that puts segments together: so many frames,
/// which are 64 KiB, or until nothing has followed for so long.
const BURST: usize = 45;
const GATHER: Duration = Duration::from_millis(1);
/// A user of whom nothing was heard for so long is gone.
const SILENCE: Span = Span::from_secs(4);
/// IPv4's header in a frame, and where its identification and its sum are. [RFC 791 3.1]
const IP: std::ops::Range<usize> = 14..34;
const ID: usize = 18;
const SUM: usize = 24;

/// A cable, `name` in `folder`, at whose other end is a host with these addresses, in a network of
/// 24 bits.
pub fn streams(folder: &Path, name: &str, mac: Mac, ip: Ipv4Addr) -> Result<Wire, Error> {
    Wire::new(folder, name, move |end| serve(end, mac, ip))
}

fn serve(end: &End, mac: Mac, ip: Ipv4Addr) {
    let mut line =
        Line { end, came: VecDeque::new(), frame: vec![0; FRAME], waiting: Vec::new(), id: 0 };
    let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
    let mut interface = Interface::new(config, &mut line, Instant::now());
    // There is room for one.
    interface.update_ip_addrs(|addresses| addresses.push(IpCidr::new(ip.into(), 24)).unwrap_or(()));
    let mut sockets = SocketSet::new(Vec::new());
    let ports = [SINK, SINK, SINK, SINK, SOURCE].map(|port| (port, sockets.add(socket(port))));
    let nothing = vec![0; ROOM];
    while !end.is_over() {
        interface.poll(Instant::now(), &mut line, &mut sockets);
        for (port, handle) in ports {
            work(port, sockets.get_mut(handle), &nothing);
        }
        // What has just been taken or put is due.
        interface.poll(Instant::now(), &mut line, &mut sockets);
        let due =
            interface.poll_delay(Instant::now(), &sockets).map_or(Duration::MAX, Duration::from);
        line.wait(if line.waiting.is_empty() { due } else { RETRY });
    }
}

/// Takes what has come for a port, or gives it what it can send, and lets the next user connect
/// when one has closed.
fn work(port: u16, socket: &mut Socket<'_>, nothing: &[u8]) {
    if socket.can_send() && port == SOURCE {
        let _ = socket.send_slice(nothing);
    }
    if socket.can_recv() {
        let _ = socket.recv(|bytes| (bytes.len(), ()));
    }
    match socket.state() {
        // Nobody waits for what is left.
        State::CloseWait => socket.abort(),
        State::Closed => listen(port, socket),
        _ => {}
    }
}

fn listen(port: u16, socket: &mut Socket<'_>) {
    // A user whose interface was taken away says no more.
    socket.set_timeout(Some(SILENCE));
    socket.set_keep_alive(Some(SILENCE / 4));
    // It is closed, so that it can listen.
    let _ = socket.listen(port);
}

fn socket(port: u16) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; ROOM]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_ack_delay(None);
    socket.set_nagle_enabled(false);
    listen(port, &mut socket);
    socket
}

/// The cable as a device of smoltcp's.
struct Line<'a> {
    end: &'a End,
    came: VecDeque<Vec<u8>>,
    frame: Vec<u8>,
    /// A frame that the cable has not taken; until it has, there is no other.
    waiting: Vec<u8>,
    id: u16,
}

impl Line<'_> {
    /// Until something has come and nothing more is waited for, for at most `limit`.
    fn wait(&mut self, limit: Duration) {
        self.end.wait(limit);
        loop {
            let before = self.came.len();
            while let Some(bytes) = self.end.receive(&mut self.frame) {
                let frame = &self.frame[..bytes];
                // Who pings measures the way, and not how this end gathers. Nobody is here for
                // datagrams.
                match answer_ping(frame) {
                    Some(answer) => drop(self.end.send(&answer)),
                    None if is_udp(frame) => {}
                    None => self.came.push_back(frame.to_vec()),
                }
            }
            if self.came.len() == before || self.came.len() >= BURST {
                return;
            }
            self.end.wait(GATHER);
        }
    }

    /// Whether another frame can be sent.
    fn is_free(&mut self) -> bool {
        if !self.waiting.is_empty() && self.end.send(&self.waiting) {
            self.waiting.clear();
        }
        self.waiting.is_empty()
    }
}

impl Device for Line<'_> {
    type RxToken<'b>
        = Came
    where
        Self: 'b;
    type TxToken<'b>
        = Going<'b>
    where
        Self: 'b;

    fn receive(&mut self, _: Instant) -> Option<(Came, Going<'_>)> {
        // Who cannot answer does not listen.
        if !self.is_free() {
            return None;
        }
        let frame = self.came.pop_front()?;
        Some((Came(frame), Going { end: self.end, waiting: &mut self.waiting, id: &mut self.id }))
    }

    fn transmit(&mut self, _: Instant) -> Option<Going<'_>> {
        self.is_free().then_some(Going {
            end: self.end,
            waiting: &mut self.waiting,
            id: &mut self.id,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut able = DeviceCapabilities::default();
        able.medium = Medium::Ethernet;
        able.max_transmission_unit = FRAME;
        // A cable damages nothing; sums of what is sent are looked at by the card.
        able.checksum.tcp = Checksum::Tx;
        able.checksum.ipv4 = Checksum::Tx;
        able
    }
}

struct Came(Vec<u8>);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(&self.0)
    }
}

struct Going<'a> {
    end: &'a End,
    waiting: &'a mut Vec<u8>,
    id: &'a mut u16,
}

impl TxToken for Going<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.waiting.clear();
        self.waiting.resize(length, 0);
        let filled = fill(self.waiting);
        *self.id = self.id.wrapping_add(1);
        number(self.waiting, *self.id);
        if self.end.send(self.waiting) {
            self.waiting.clear();
        }
        filled
    }
}

/// Gives an IPv4 packet its identification.
fn number(frame: &mut [u8], id: u16) {
    if frame.get(12..14) != Some(&[0x08, 0x00]) || frame.len() < IP.end {
        return;
    }
    frame[ID..ID + 2].copy_from_slice(&id.to_be_bytes());
    frame[SUM..SUM + 2].fill(0);
    let check = !sum(&frame[IP]);
    frame[SUM..SUM + 2].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_packets_number_is_in_its_header_whose_sum_is_right_and_other_frames_stay_as_they_are() {
        let mut frame = vec![0; 60];
        (frame[12], frame[14], frame[17]) = (0x08, 0x45, 46);
        number(&mut frame, 0x1234);
        assert_eq!((&frame[ID..ID + 2], sum(&frame[IP])), (&[0x12, 0x34][..], 0xffff));
        let mut other = vec![0; 60];
        number(&mut other, 7);
        assert_eq!(other, vec![0; 60]);
    }

    #[test]
    fn who_connects_to_a_port_is_answered_with_a_numbered_segment_and_the_port_listens_again_afterwards()
     {
        let folder = tempfile::tempdir().unwrap();
        let wire = streams(folder.path(), "c", Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 9, 0, 2))
            .unwrap();
        let card = UnixDatagram::bind(wire.theirs()).unwrap();
        card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let arp = [
            &[0xff; 6][..],
            &[2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 9, 0, 1],
            &[0; 6],
            &[10, 9, 0, 2],
        ]
        .concat();
        let mut frame = vec![0; 2000];
        card.send_to(&arp, wire.ours()).unwrap();
        card.recv(&mut frame).unwrap();
        assert_eq!(
            (&frame[12..14], &frame[20..22], &frame[28..32]),
            (&[8, 6][..], &[0, 2][..], &[10, 9, 0, 2][..])
        );
        for (port, last) in [(1000, 1), (1001, 2)] {
            card.send_to(&segment(port, 0x02, 0), wire.ours()).unwrap();
            let length = card.recv(&mut frame).unwrap();
            let flags = frame[47];
            assert_eq!(
                (frame[23], flags, &frame[36..38]),
                (6, 0x12, &u16::to_be_bytes(port)[..]),
                "SYN and ACK: {:x?}",
                &frame[..length]
            );
            assert_eq!(
                frame[ID..ID + 2],
                u16::to_be_bytes(last + 1),
                "what is sent is counted, the answer to ARP included"
            );
            let sequence = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            // It is reset, so that the next one may come.
            card.send_to(&segment(port, 0x14, sequence.wrapping_add(1)), wire.ours()).unwrap();
        }
    }

    /// A segment of TCP from a port of 10.9.0.1 to the [`SINK`], with these flags; its number is 1
    /// more behind a SYN.
    fn segment(port: u16, flags: u8, acknowledged: u32) -> Vec<u8> {
        let mut frame = [
            &[
                2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0,
                0, 10, 9, 0, 1, 10, 9, 0, 2,
            ][..],
            &[0; 20],
        ]
        .concat();
        number(&mut frame, 7);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&SINK.to_be_bytes());
        frame[41] = u8::from(flags & 0x02 == 0);
        frame[42..46].copy_from_slice(&acknowledged.to_be_bytes());
        (frame[46], frame[47], frame[48]) = (0x50, flags, 0xff);
        frame
    }
}
