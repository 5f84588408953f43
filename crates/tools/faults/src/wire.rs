//! Requests from an application to the process of a driver, and their ends: what stands for the
//! kernel's block device in a campaign.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes of a block, at most.
pub const LARGEST_BLOCK: usize = 4096;
const HEAD: usize = 16;

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// The driver works; `block` is how many bytes a block has.
    Ready = 1,
    /// Read a block, and what it holds.
    Read = 2,
    /// Write a block, and that it is written.
    Write = 3,
    /// It failed.
    Failed = 4,
}

/// A request or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What.
    pub verb: Verb,
    /// Which request.
    pub tag: u16,
    /// Which block.
    pub block: u64,
    /// What it holds, if that is told.
    pub data: Vec<u8>,
}

/// One end.
pub struct Wire(OwnedFd);

impl Wire {
    /// Both.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), other))
    }

    /// Sends `packet`; waits for room.
    pub fn send(&self, packet: &Packet) -> Result<(), Errno> {
        let mut bytes = vec![packet.verb as u8, 0];
        bytes.extend(packet.tag.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(packet.block.to_le_bytes());
        bytes.extend(&packet.data);
        send(&self.0, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// The next packet, if one is there; [`Errno::PIPE`] when the other end is gone. What is no
    /// packet counts as none.
    pub fn receive(&self) -> Result<Option<Packet>, Errno> {
        let mut bytes = [0; HEAD + LARGEST_BLOCK];
        let got = match recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Errno::PIPE),
            Ok((_, got)) => got.min(bytes.len()),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(Errno::PIPE),
            Err(error) => return Err(error),
        };
        let verb = [Verb::Ready, Verb::Read, Verb::Write, Verb::Failed]
            .into_iter()
            .find(|verb| *verb as u8 == bytes[0]);
        let Some(verb) = verb.filter(|_| got >= HEAD) else { return Ok(None) };
        let (tag, block) = (
            u16::from_le_bytes([bytes[2], bytes[3]]),
            bytes[8..16].try_into().map_or(0, u64::from_le_bytes),
        );
        Ok(Some(Packet { verb, tag, block, data: bytes[HEAD..got].to_vec() }))
    }
}

impl From<OwnedFd> for Wire {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_arrives_as_it_was_sent_and_the_end_is_seen() {
        let (one, other) = Wire::pair().unwrap();
        let other = Wire::from(other);
        let packet = Packet { verb: Verb::Write, tag: 513, block: 1 << 40, data: vec![7; 512] };
        one.send(&packet).unwrap();
        assert_eq!(other.receive(), Ok(Some(packet)));
        assert_eq!(other.receive(), Ok(None));
        drop(one);
        assert_eq!(other.receive(), Err(Errno::PIPE));
    }

    #[test]
    fn what_is_no_packet_counts_as_none() {
        let (one, other) = Wire::pair().unwrap();
        send(&other, b"nonsense", SendFlags::empty()).unwrap();
        send(&other, &[9; 100], SendFlags::empty()).unwrap();
        assert_eq!((one.receive(), one.receive()), (Ok(None), Ok(None)));
    }
}
