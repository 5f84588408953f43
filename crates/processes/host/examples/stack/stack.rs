//! What a program does with a stack: serves, pings, sends datagrams, gets a page.

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use ring3_class::net::Nic;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device};
use smoltcp::socket::{icmp, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr, IpEndpoint};

use super::card::Card;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Where datagrams are echoed, and where pages are served. [RFC 862, 9110]
const ECHO: u16 = 7;
const HTTP: u16 = 80;
/// A port and an identity of ours.
const OURS: u16 = 49_152;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest sleep: so often somebody looks whether to stop.
const SLEEP: Duration = Duration::from_millis(100);
/// Bytes that a socket keeps each way.
const ROOM: usize = 16 << 10;

/// What is served.
const PAGE: &str =
    "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nserved by a card out of the kernel\n";

/// A stack on a card.
pub struct Stack {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    /// The next port of ours: each connection has another one.
    port: u16,
}

impl Stack {
    /// A host with this address, in a network of 24 bits.
    pub fn new(nic: Arc<dyn Nic>, address: Ipv4Addr) -> Result<Self> {
        let mut card = Card::open(nic)?;
        let config = Config::new(EthernetAddress(card.mac()).into());
        let mut interface = Interface::new(config, &mut card, Instant::now());
        // There is room for one.
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::Ipv4(address), 24)).unwrap_or(())
        });
        Ok(Self { card, interface, sockets: SocketSet::new(Vec::new()), port: OURS })
    }

    /// Lets the stack do what is due, with what has come.
    fn poll(&mut self) {
        self.interface.poll(Instant::now(), &mut self.card, &mut self.sockets);
    }

    /// Sleeps until the card has something or the stack wants to go on: at once, if sockets have
    /// something to send.
    fn sleep(&mut self) -> Result<()> {
        let due = self.interface.poll_delay(Instant::now(), &self.sockets);
        Ok(self.card.wait(due.map_or(SLEEP, Duration::from).min(SLEEP))?)
    }

    /// Goes on until `done` gives something.
    fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Clock::now();
        while start.elapsed() < PATIENCE {
            self.poll();
            if let Some(done) = done(self)? {
                return Ok(done);
            }
            self.sleep()?;
        }
        Err(format!("{what}: no answer within {} s", PATIENCE.as_secs()).into())
    }

    /// Sends a ping to `peer` and says how long its answer took.
    pub fn ping(&mut self, peer: Ipv4Addr, number: u16) -> Result<Duration> {
        let buffer =
            || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 1024]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        socket.bind(icmp::Endpoint::Ident(OURS)).map_err(|error| error.to_string())?;
        let checksums = self.card.capabilities().checksum;
        let request = Icmpv4Repr::EchoRequest { ident: OURS, seq_no: number, data: b"ring3" };
        let bytes = socket
            .send(request.buffer_len(), IpAddress::Ipv4(peer))
            .map_err(|error| error.to_string())?;
        request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &checksums);
        let (handle, start) = (self.sockets.add(socket), Clock::now());
        let answered = self.until("ping", |stack| {
            let Ok((bytes, from)) = stack.sockets.get_mut::<icmp::Socket>(handle).recv() else {
                return Ok(None);
            };
            Ok((is_answer(bytes, number, &checksums) && from == IpAddress::Ipv4(peer))
                .then(|| start.elapsed()))
        });
        self.sockets.remove(handle);
        answered
    }

    /// Has `peer` echo `bytes`, and gives what came back.
    pub fn echo(&mut self, peer: Ipv4Addr, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut socket = udp_socket();
        socket.bind(OURS).map_err(|error| error.to_string())?;
        socket
            .send_slice(bytes, IpEndpoint::new(IpAddress::Ipv4(peer), ECHO))
            .map_err(|error| error.to_string())?;
        let handle = self.sockets.add(socket);
        let echoed = self.until("echo", |stack| {
            Ok(stack
                .sockets
                .get_mut::<udp::Socket>(handle)
                .recv()
                .ok()
                .map(|(bytes, _)| bytes.to_vec()))
        });
        self.sockets.remove(handle);
        echoed
    }

    /// Gets a page of `peer`, head and all.
    pub fn get(&mut self, peer: Ipv4Addr, path: &str) -> Result<String> {
        let mut socket = tcp_socket();
        self.port = self.port.checked_add(1).unwrap_or(OURS);
        let there = (IpAddress::Ipv4(peer), HTTP);
        socket
            .connect(self.interface.context(), there, self.port)
            .map_err(|error| error.to_string())?;
        let handle = self.sockets.add(socket);
        let (mut request, mut page) =
            (format!("GET {path} HTTP/1.0\r\n\r\n").into_bytes(), Vec::new());
        let got = self.until("get", |stack| {
            let socket = stack.sockets.get_mut::<tcp::Socket>(handle);
            if socket.can_send() && !request.is_empty() {
                let sent = socket.send_slice(&request).map_err(|error| error.to_string())?;
                request.drain(..sent);
            }
            take(socket, &mut page)?;
            // The server ends the page by closing; the connection is over when it has heard that we
            // do, too.
            if request.is_empty() && !socket.may_recv() {
                socket.close();
            }
            Ok((!socket.is_open()).then_some(()))
        });
        self.sockets.remove(handle);
        got?;
        Ok(String::from_utf8(page)?)
    }

    /// Echoes datagrams and serves a page until `stop`; pings are answered by the stack itself.
    pub fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut echo = udp_socket();
        echo.bind(ECHO).map_err(|error| error.to_string())?;
        let (echo, mut http) = (self.sockets.add(echo), self.sockets.add(tcp_socket()));
        while !stop.load(Ordering::Relaxed) {
            self.poll();
            let socket = self.sockets.get_mut::<udp::Socket>(echo);
            while let Ok((bytes, from)) = socket.recv() {
                let bytes = bytes.to_vec();
                // Without room for the answer it is lost, as any datagram may be.
                let _ = socket.send_slice(&bytes, from.endpoint);
            }
            http = self.serve_page(http)?;
            self.sleep()?;
        }
        Ok(())
    }

    /// Answers a request that is whole. Gives the socket that listens next: one that has closed
    /// would wait ten seconds for late segments.
    fn serve_page(&mut self, mut http: SocketHandle) -> Result<SocketHandle> {
        if self.sockets.get::<tcp::Socket>(http).state() == tcp::State::TimeWait {
            self.sockets.remove(http);
            http = self.sockets.add(tcp_socket());
        }
        let socket = self.sockets.get_mut::<tcp::Socket>(http);
        if !socket.is_open() {
            socket.listen(HTTP).map_err(|error| error.to_string())?;
        }
        let whole = socket.can_recv()
            && socket.peek(ROOM).is_ok_and(|request| request.ends_with(b"\r\n\r\n"));
        if whole && socket.can_send() {
            take(socket, &mut Vec::new())?;
            socket.send_slice(PAGE.as_bytes()).map_err(|error| error.to_string())?;
            socket.close();
        }
        Ok(http)
    }
}

fn is_answer(bytes: &[u8], number: u16, checksums: &ChecksumCapabilities) -> bool {
    let answer =
        Icmpv4Packet::new_checked(bytes).and_then(|packet| Icmpv4Repr::parse(&packet, checksums));
    matches!(
        answer,
        Ok(Icmpv4Repr::EchoReply { ident: OURS, seq_no, data: b"ring3" }) if seq_no == number,
    )
}

/// Moves what has come behind `into`.
fn take(socket: &mut tcp::Socket, into: &mut Vec<u8>) -> Result<()> {
    if socket.can_recv() {
        let took = |bytes: &mut [u8]| {
            into.extend_from_slice(bytes);
            (bytes.len(), ())
        };
        socket.recv(took).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn udp_socket() -> udp::Socket<'static> {
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 32], vec![0; ROOM]);
    udp::Socket::new(buffer(), buffer())
}

fn tcp_socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; ROOM]);
    tcp::Socket::new(buffer(), buffer())
}
