//! What the kernel tells of a TCP connection. [linux/tcp.h, struct tcp_info]

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Bytes of the part that is looked at, and where its fields are.
const BYTES: usize = 144;
const SEGMENT: usize = 16;
const WINDOW: usize = 80;
const RETRANSMITTED: usize = 100;
const SEGMENTS_OUT: usize = 136;
const SEGMENTS_IN: usize = 140;

/// A connection at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Bytes that its congestion control lets be under way.
    pub window: u64,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Segments that were sent, those without data included.
    pub sent: u32,
    /// Segments that were received, those without data included.
    pub received: u32,
}

impl Connection {
    /// What `stream` is now.
    pub fn of(stream: &TcpStream) -> io::Result<Self> {
        let mut told = [0; BYTES];
        let mut length = BYTES as libc::socklen_t;
        // SAFETY: the call writes no more bytes than `length` says, which are there. A kernel that
        // knows fewer leaves the others as they are.
        let asked = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                told.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if asked == 0 { Ok(Self::read(&told)) } else { Err(io::Error::last_os_error()) }
    }

    fn read(told: &[u8; BYTES]) -> Self {
        let field =
            |at: usize| u32::from_ne_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
        Self {
            window: u64::from(field(WINDOW)) * u64::from(field(SEGMENT)),
            retransmitted: field(RETRANSMITTED),
            sent: field(SEGMENTS_OUT),
            received: field(SEGMENTS_IN),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn segments_that_come_and_go_are_counted_and_the_window_is_in_bytes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let before = Connection::of(&here).unwrap();
        here.write_all(b"question").unwrap();
        there.read_exact(&mut [0; 8]).unwrap();
        there.write_all(b"answer").unwrap();
        here.read_exact(&mut [0; 6]).unwrap();
        let after = Connection::of(&here).unwrap();
        assert!(
            after.sent > before.sent && after.received > before.received,
            "{before:?} {after:?}"
        );
        assert!(after.window >= 10 * 1024 && after.retransmitted == 0, "{after:?}");
    }
}
