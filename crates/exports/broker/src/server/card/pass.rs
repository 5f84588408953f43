//! Packets from where they are to who gets them: of clients in their turns, and of the wire.

use std::time::Instant;

use ring3_class::net::{Mac, Meta, Packet};
use ring3_class::wait::sooner;

use super::super::session::ClientSession;
use super::super::share::TurnResult;
use super::packet::{ForwardedPacket, moved};
use super::switch::{self, Path};
use super::wire::{InFlightPiece, QueuedPiece};
use super::{CardBroker, Inside, give_back};
use crate::frame::Piece;

/// Bytes of a tag, and where it is.
const TAG: usize = 4;
const TAG_AT: usize = 12;
const TAGGED: [u8; 2] = [0x81, 0x00];
/// Packets that are sent in one turn: so that who is refused again and again keeps nobody from what
/// comes.
const PACKETS: usize = 1024;

/// Bytes that no packet has.
const LONGEST: u64 = 1 << 17;

impl CardBroker {
    /// Deals the card's time out.
    pub(super) fn schedule(&mut self) {
        let now = self.limited.then(Instant::now);
        let (mut left, mut idle, count) = (PACKETS, 0, self.inside.lobby.seats.len());
        self.inside.lobby.seats.iter_mut().flatten().for_each(|client| client.for_wire = false);
        let mut stopped = None;
        while idle < count && left > 0 {
            match self.serve_client(self.cursor, now, &mut left) {
                TurnResult::Full => {
                    stopped.get_or_insert(self.cursor);
                    idle += 1;
                }
                TurnResult::Used => idle = 0,
                TurnResult::Idle => idle += 1,
            }
            self.cursor = (self.cursor + 1) % count;
        }
        // The wire's next room is for the one whose turn it was.
        self.cursor = stopped.unwrap_or(self.cursor);
        let seats = &mut self.inside.lobby.seats;
        self.wire.publish(|flight, memory| give_back(seats, flight, memory));
        let clients =
            self.inside.lobby.seats.iter().flatten().filter(|client| !client.session().closing);
        let first = clients.map(|client| client.held_until).fold(None, sooner);
        self.thaw.set(first, &mut self.inside.lobby.reactor);
    }

    fn serve_client(&mut self, seat: usize, now: Option<Instant>, left: &mut usize) -> TurnResult {
        if let Some(client) = self.inside.lobby.seats[seat].as_mut() {
            client.share.begin();
            // It was looked at in this deal, which makes no room.
            if client.for_wire && !self.wire.has_room() {
                return TurnResult::Full;
            }
        }
        loop {
            let Some(client) =
                self.inside.lobby.seats[seat].as_mut().filter(|client| !client.session().closing)
            else {
                return TurnResult::Idle;
            };
            client.held_until = now.and_then(|now| client.share.held_until(now));
            let peeked = match &mut client.port {
                Some(port) if client.held_until.is_none() => port.peek(),
                _ => Ok(None),
            };
            let (frames, bytes) = match peeked {
                // What is longer than any packet will be lost: nobody waits until it could be
                // afforded.
                Ok(Some((_, bytes))) if bytes > LONGEST => (1, 0),
                Ok(Some(work)) => work,
                Ok(None) => {
                    client.share.end(true);
                    return TurnResult::Idle;
                }
                Err(error) => {
                    client.cut(&error, &mut self.inside.lobby.reactor);
                    return TurnResult::Idle;
                }
            };
            if !client.share.affords(frames, bytes) || *left == 0 {
                client.share.end(false);
                return TurnResult::Used;
            }
            if !self.send(seat) {
                return TurnResult::Full;
            }
            *left -= 1;
            if let Some(client) = self.inside.lobby.seats[seat].as_mut() {
                client.share.charge(frames, bytes);
            }
        }
    }

    /// Sends the next packet of a client: to others, to the wire, or nowhere. False if it is for
    /// the wire and that has no room: then nothing was done.
    fn send(&mut self, seat: usize) -> bool {
        let Some(client) = self.inside.lobby.seats[seat].as_mut() else { return true };
        let Some(port) = &mut client.port else { return true };
        let (pieces, memory) = port.take();
        let read = |at: usize, bytes: &mut [u8]| {
            let lengths = pieces.iter().map(|piece| (piece.offset as usize, piece.len as usize));
            scattered(lengths, at, bytes, |offset, skip, bytes| {
                memory.foreign.read(offset + skip, bytes).is_ok()
            })
        };
        let len = pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>();
        let meta = pieces.first().map_or(Meta::default(), |piece| piece.meta.with_more(false));
        let mut head = std::mem::take(&mut self.head);
        let in_head = usize::try_from(len).unwrap_or(usize::MAX).min(head.len());
        let whole = read(0, &mut head[..in_head])
            && self.limits.check_whole(&meta, in_head as u32, len).is_ok();
        let to = switch::admit(&head[..in_head], client.mac).filter(|_| whole);
        let path = to.map(|to| Path { to, vlan: client.grant.access.vlan, from: Some(seat) });
        let out = path.is_some_and(|path| self.state.up && self.inside.table.goes_out(path));
        if out && !self.wire.has_room() {
            client.for_wire = true;
            port.put_off(pieces);
            self.head = head;
            return false;
        }
        let packet =
            ForwardedPacket { head: &head[..in_head], len: len as usize, meta, rest: &read };
        let inside = path.is_some_and(|path| self.inside.deliver(path, &packet));
        // What there is nobody for inside goes nowhere, as on any switch.
        let lost = path.is_none_or(|path| !inside && !out && self.inside.table.goes_out(path));
        let sent = if out {
            self.send_out(seat, &packet, path.and_then(|path| path.vlan), &pieces)
        } else {
            0
        };
        if let Some(client) = self.inside.lobby.seats[seat].as_mut() {
            client.count_sent(len as usize, lost);
            if let Some(port) = &mut client.port {
                pieces[..pieces.len() - sent].iter().for_each(|piece| port.end(piece.tag, lost));
                port.put_back(pieces);
            }
        }
        self.head = head;
        true
    }

    /// Queues a packet for the card: how many of its last pieces the card has from now on, which
    /// end when they come back.
    fn send_out(
        &mut self,
        seat: usize,
        packet: &ForwardedPacket<'_>,
        vlan: Option<u16>,
        pieces: &[Piece],
    ) -> usize {
        let (bytes, mut meta, mut len) = (&mut self.scratch, packet.meta, packet.head.len());
        match vlan {
            None => bytes[..len].copy_from_slice(packet.head),
            Some(vlan) => {
                let Some(moved) = moved(meta, TAG as i16) else { return 0 };
                meta = moved;
                let (addresses, rest) = packet.head.split_at(TAG_AT);
                bytes[..TAG_AT].copy_from_slice(addresses);
                bytes[TAG_AT..TAG_AT + 2].copy_from_slice(&TAGGED);
                bytes[TAG_AT + 2..TAG_AT + TAG].copy_from_slice(&vlan.to_be_bytes());
                bytes[TAG_AT + TAG..len + TAG].copy_from_slice(rest);
                len += TAG;
            }
        }
        let Some(port) =
            self.inside.lobby.seats[seat].as_mut().and_then(|client| client.port.as_mut())
        else {
            return 0;
        };
        let (mut skip, mut count) = (packet.head.len(), 0);
        let tails = pieces.iter().filter_map(|piece| {
            let inside = skip.min(piece.len as usize);
            skip -= inside;
            let len = piece.len - inside as u32;
            let memory = if len > 0 { port.view() } else { None }?;
            count += 1;
            let start = piece.offset as u32 + inside as u32;
            Some(QueuedPiece { flight: InFlightPiece { seat, tag: piece.tag }, memory, start, len })
        });
        self.wire.send(&bytes[..len], meta, tails);
        count
    }
}

impl Inside {
    /// Gives a packet to those of the clients that it is for; whether there are some.
    fn deliver(&mut self, path: Path, packet: &ForwardedPacket<'_>) -> bool {
        let mut found = false;
        for seat in self.table.seats(path) {
            found = true;
            let Some(client) =
                self.lobby.seats[seat].as_mut().filter(|client| !client.session().closing)
            else {
                continue;
            };
            if let Err(error) = client.receive(packet) {
                client.cut(&error, &mut self.lobby.reactor);
            }
        }
        found
    }

    /// Takes a packet from the wire, in pieces.
    pub(super) fn take(&mut self, pieces: &[Packet]) {
        let len = pieces.iter().map(|piece| piece.len as usize).sum::<usize>();
        let read = |at: usize, bytes: &mut [u8]| {
            let lengths = pieces.iter().map(|piece| (piece, piece.len as usize));
            scattered(lengths, at, bytes, |piece, skip, bytes| {
                piece.read(skip as u32, bytes).is_ok()
            })
        };
        let mut head = [0; TAG_AT + TAG + 2];
        let meta = pieces.first().map_or(Meta::default(), |piece| piece.meta);
        if len < head.len() || !read(0, &mut head) {
            return;
        }
        let inside = (head[TAG_AT..TAG_AT + 2] == TAGGED)
            .then(|| u16::from_be_bytes([head[TAG_AT + 2], head[TAG_AT + 3]]));
        let skip = if inside.is_some() { TAG } else { 0 };
        // A tag with VLAN 0 is a priority alone.
        let vlan = meta.vlan().or(inside).map(|tag| tag & 0xfff).filter(|&vlan| vlan != 0);
        let Some(meta) = moved(meta, -(skip as i16)) else { return };
        let to = Mac(std::array::from_fn(|at| head[at]));
        let rest = |at: usize, bytes: &mut [u8]| read(at + skip, bytes);
        let packet = ForwardedPacket {
            head: &head[..TAG_AT],
            len: len - skip,
            meta: meta.with_more(false),
            rest: &rest,
        };
        self.deliver(Path { to, vlan, from: None }, &packet);
    }
}

/// Reads `bytes` of pieces of these lengths, from the packet's byte `at` on, each part by `read`,
/// of the piece and how many of its bytes to skip.
fn scattered<P>(
    pieces: impl Iterator<Item = (P, usize)>,
    mut at: usize,
    mut bytes: &mut [u8],
    read: impl Fn(P, usize, &mut [u8]) -> bool,
) -> bool {
    for (piece, len) in pieces {
        if at >= len {
            at -= len;
            continue;
        }
        let count = bytes.len().min(len - at);
        let (now, later) = std::mem::take(&mut bytes).split_at_mut(count);
        if !read(piece, at, now) {
            return false;
        }
        (bytes, at) = (later, 0);
        if bytes.is_empty() {
            break;
        }
    }
    bytes.is_empty()
}
